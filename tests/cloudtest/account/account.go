// Package account finds out what a cluster has in a cloud account, and deletes it. It uses the cloud's API only: no
// state of OpenTofu, no server of the cluster, and no file of an earlier process.
package account

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Tag is the name of the tag or label that everything of a run of cloud-test has. The value is the cluster's name.
const Tag = "nstance-cloud-test"

// Account is one account of a cloud, seen with the credentials of the user. A VM is named by the ID that the records of
// its cluster have.
type Account interface {
	// Identify returns which account the credentials belong to.
	Identify(ctx context.Context) (Identity, error)
	// Zone returns a zone of the region that offers all machine types. If "want" is not empty, it is that zone.
	Zone(ctx context.Context, region, want string, types []string) (string, error)
	// Image returns the newest machine image of a role ("server" or "agent") that was built for a cluster.
	Image(ctx context.Context, cluster, role string) (string, error)
	// Inventory returns what a cluster has, in the order in which it can be deleted. With the cluster "", it returns
	// everything in the account.
	Inventory(ctx context.Context, cluster string) ([]Resource, error)
	// Kinds returns the kinds of resources that Inventory looks for.
	Kinds() []string
	// Workers and Servers return the IDs of the VMs of a cluster, and of the machines of its servers, that are pending
	// or running. Kill ends a machine.
	Workers(ctx context.Context, cluster string) ([]string, error)
	Servers(ctx context.Context, cluster string) ([]string, error)
	Kill(ctx context.Context, id string) error
}

// Identity says which account will be used.
type Identity struct {
	Account string // number or project ID, which the user confirms
	Caller  string // who calls, as far as the cloud says it
}

// Resource is something in an account.
type Resource struct {
	Kind, ID string

	remove func(ctx context.Context) error
}

// String returns the kind and the ID.
func (r Resource) String() string { return r.Kind + " " + r.ID }

// RefusedError means that the cloud refuses a call, so that a repetition is useless.
type RefusedError struct{ Err error }

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the cloud's error.
func (e *RefusedError) Unwrap() error { return e.Err }

// LeftError lists what could not be deleted, with the last error of each.
type LeftError struct{ Left map[string]error }

// Error implements error.
func (e *LeftError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d resources are left:", len(e.Left))
	for _, name := range slices.Sorted(maps.Keys(e.Left)) {
		fmt.Fprintf(&text, "\n  %s", name)
		if err := e.Left[name]; err != nil {
			fmt.Fprintf(&text, ": %v", err)
		}
	}
	return text.String()
}

// The limits of Sweep.
const (
	shortest = 500 * time.Millisecond // the pause after the first round of deletions
	longest  = 10 * time.Second
	settling = 3 * time.Second // after this time, an account that seems empty is looked at again
	patience = 15 * time.Minute
	refusals = 3
)

// Sweep deletes what a cluster has in an account, until two inventories in a row are empty. It fails if nothing has
// changed for a quarter of an hour, or if the cloud refuses all calls. The function "report" is told what is left,
// whenever that has changed.
func Sweep(ctx context.Context, a Account, cluster string, report func(left []Resource)) error {
	pause, changed, before := shortest, time.Now(), -1
	for refused, empty := 0, 0; ; {
		found, err := a.Inventory(ctx, cluster)
		left := map[string]error{}
		switch {
		case err != nil:
			left["what the inventory does not show"] = err
		case len(found) == 0:
			if empty++; empty == 2 {
				return nil
			}
		default:
			empty = 0
			if len(found) != before {
				before, changed, pause = len(found), time.Now(), shortest
				report(found)
			}
			for _, r := range found {
				left[r.String()] = r.remove(ctx)
			}
		}
		if len(left) > 0 && allRefused(left) {
			refused++
		} else {
			refused = 0
		}
		if refused == refusals || len(left) > 0 && time.Since(changed) > patience {
			return &LeftError{left}
		}
		wait := pause
		if empty > 0 {
			wait = settling
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
		pause = min(2*pause, longest)
	}
}

func allRefused(left map[string]error) bool {
	for _, err := range left {
		if _, ok := errors.AsType[*RefusedError](err); !ok {
			return false
		}
	}
	return true
}

// belongs reports whether a resource with a name and tags belongs to a cluster.
func belongs(cluster, name string, tags map[string]string) bool {
	return cluster == "" || tags[Tag] == cluster || tags["nstance:cluster"] == cluster ||
		tags["nstance-cluster"] == cluster || name == cluster || strings.HasPrefix(name, cluster+"-")
}
