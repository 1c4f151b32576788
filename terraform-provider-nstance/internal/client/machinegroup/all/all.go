// Package all lists the clouds with groups of machines. It is separate from package machinegroup, because the packages
// of the clouds link SDKs. A new cloud must be added to clouds.go.
package all

import (
	"context"
	"errors"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup"
)

// Clouds returns all clouds with groups of machines.
func Clouds() []machinegroup.Cloud { return clouds }

// Names returns the names of the clouds.
func Names() []string { return names(func(machinegroup.Cloud) bool { return true }) }

// Knowing returns the names of the clouds that know [machinegroup.State.Current].
func Knowing() []string { return names(func(c machinegroup.Cloud) bool { return c.KnowsCurrent }) }

func names(match func(machinegroup.Cloud) bool) (names []string) {
	for _, c := range Clouds() {
		if match(c) {
			names = append(names, c.Name)
		}
	}
	return names
}

// Open returns a group. access is for a cloud that has profiles and roles. If the group cannot be opened, each look at
// it returns the error.
func Open(ctx context.Context, place machinegroup.Place, access cloud.Access) machinegroup.Group {
	err := errors.New("its cloud has no groups of machines")
	for _, c := range Clouds() {
		if c.Name == place.Kind {
			var group machinegroup.Group
			if group, err = c.Open(ctx, place, access); err == nil {
				return group
			}
		}
	}
	return unopened{place, err}
}

// unopened is a group that cannot be opened.
type unopened struct {
	place machinegroup.Place
	err   error
}

// Look implements machinegroup.Group.
func (u unopened) Look(context.Context) (machinegroup.State, error) {
	return machinegroup.State{}, u.err
}

// String implements machinegroup.Group.
func (u unopened) String() string { return "group of machines " + u.place.Name }
