// Package gcp looks at zonal managed instance groups of Compute Engine.
package gcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"

	"google.golang.org/api/googleapi"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup"
)

const endpoint = "https://compute.googleapis.com/compute/v1/"

// Cloud returns Google Cloud. A group is named by its name, zone and project. Default of the project: that of the
// credentials.
func Cloud() machinegroup.Cloud {
	return machinegroup.Cloud{Name: "gcp", KnowsCurrent: true, Open: open}
}

// group sends requests itself, so that the Terraform provider does not link an SDK that changes the cloud.
type group struct {
	client              *http.Client
	project, zone, name string
}

func open(ctx context.Context, place machinegroup.Place, _ cloud.Access) (machinegroup.Group, error) {
	access, err := googlecloud.Open(ctx, cloud.Federation{})
	if err != nil {
		return nil, err
	}
	project := cmp.Or(place.Project, access.Project)
	switch {
	case project == "":
		return nil, googlecloud.ErrNoProject
	case place.Zone == "":
		return nil, errors.New("the group has no zone")
	}
	return &group{access.Client, project, place.Zone, place.Name}, nil
}

// String implements machinegroup.Group.
func (g *group) String() string {
	return fmt.Sprintf("managed instance group %s in %s of project %s", g.name, g.zone, g.project)
}

// manager is the part of an instanceGroupManager that Look needs.
type manager struct {
	InstanceTemplate string
	Status           struct {
		IsStable      bool
		VersionTarget struct{ IsReached bool }
	}
}

// managedInstances is the part of an answer of listManagedInstances that Look needs.
type managedInstances struct {
	ManagedInstances []struct {
		Name, Instance, CurrentAction string
		Version                       struct{ InstanceTemplate string }
		LastAttempt                   struct {
			Errors struct {
				Errors []struct{ Code, Message string }
			}
		}
	}
}

// Look implements machinegroup.Group. The group repeats a refused creation until it succeeds, and keeps the errors of
// the last attempt until then. It also waits for the health check of a new instance: until then it is not stable.
// https://cloud.google.com/compute/docs/instance-groups/getting-info-about-migs
func (g *group) Look(ctx context.Context) (state machinegroup.State, err error) {
	var m manager
	if err := g.call(ctx, http.MethodGet, "", &m); err != nil {
		return state, err
	}
	var list managedInstances
	if err := g.call(ctx, http.MethodPost, "/listManagedInstances", &list); err != nil {
		return state, err
	}
	var doing []string
	for _, i := range list.ManagedInstances {
		name := cmp.Or(i.Name, path.Base(i.Instance))
		if i.CurrentAction != "NONE" {
			doing = append(doing, name+" is "+i.CurrentAction)
		}
		if path.Base(i.Version.InstanceTemplate) != path.Base(m.InstanceTemplate) {
			continue
		}
		state.Machine = name
		if failures := i.LastAttempt.Errors.Errors; len(failures) > 0 && strings.Contains(i.CurrentAction, "CREATING") {
			state.Refusal = failures[0].Code + ": " + failures[0].Message
		}
	}
	state.Doing = strings.Join(doing, ", ")
	state.Current = m.Status.IsStable && m.Status.VersionTarget.IsReached
	return state, nil
}

// call sends a request about the group and decodes the answer.
func (g *group) call(ctx context.Context, method, suffix string, into any) error {
	url := strings.TrimSuffix(googlecloud.Endpoint("compute", endpoint), "/") + "/projects/" + g.project + "/zones/" +
		g.zone + "/instanceGroupManagers/" + g.name + suffix
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := g.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if err := googleapi.CheckResponse(answer); err != nil {
		return err
	}
	return json.NewDecoder(answer.Body).Decode(into)
}
