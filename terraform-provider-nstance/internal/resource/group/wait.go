package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/poll"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// getter reads an attribute of a plan or state.
type getter func(ctx context.Context, at path.Path, target any) diag.Diagnostics

// wait polls until the group has all its instances, and they are healthy and up to date. If `wait_for_instances` is not
// set, wait returns nil immediately.
func (r *Resource) wait(ctx context.Context, get getter, k key, of func(timeouts.Value, context.Context,
	time.Duration) (time.Duration, diag.Diagnostics)) diag.Diagnostic {
	var wanted types.Bool
	if diags := get(ctx, path.Root("wait_for_instances"), &wanted); diags.HasError() {
		return diags[0]
	}
	if !wanted.ValueBool() {
		return nil
	}
	patience, diags := base.Timeout(ctx, get, of, defaultWait)
	if diags.HasError() {
		return diags[0]
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var seen fleet
	err := poll.Until(ctx, func(ctx context.Context) (bool, error) {
		now, err := r.fleet(ctx, k)
		if err != nil {
			return false, err
		}
		seen = now
		tflog.Info(ctx, "waiting for the group's instances", map[string]any{"group": k.String(),
			"state": seen.String()})
		return seen.complete(), nil
	})
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, context.DeadlineExceeded):
		return failure("Changed, but cannot wait for the instances of", k, err)
	}
	return diagnostic.Failure{
		What:  fmt.Sprintf("Group %s is changed, but its instances were not complete within %s", k.name, patience),
		Where: "shard " + k.shard, Why: errors.New(seen.String()),
		Do: "The server continues. nstance-admin group status and instance list show the progress. Set timeouts to " +
			"wait longer.",
	}.Error()
}

// fleet is the status of a group's instances. A nil group means that the group does not exist.
type fleet struct {
	group   *nstancev1.GroupStatus
	drifted int
}

func (r *Resource) fleet(ctx context.Context, k key) (fleet, error) {
	var out fleet
	err := r.Servers.Call(ctx, k.shard, func(ctx context.Context, client servers.Client) error {
		answer, err := client.ListInstances(ctx, &nstancev1.ListInstancesRequest{Group: k.name})
		if err != nil {
			return err
		}
		out.drifted = 0
		for _, i := range answer.GetInstances() {
			if (i.GetInfraDrift() || i.GetRuntimeDrift()) && i.GetDeletedAt() == nil {
				out.drifted++
			}
		}
		return nil
	})
	if err != nil {
		return fleet{}, err
	}
	out.group, err = r.readGroup(ctx, k)
	return out, err
}

func (f fleet) complete() bool {
	g := f.group
	return g != nil && !g.GetDeleting() && g.GetActualSize() == g.GetSize() && g.GetHealthy() == g.GetSize() &&
		f.drifted == 0 && g.GetHalted().GetRolledBackTo() == nil
}

func (f fleet) String() string {
	if f.group == nil {
		return "there is no such group"
	}
	text := fmt.Sprintf("it has %d of %d instances, %d are healthy, %d are not up to date", f.group.GetActualSize(),
		f.group.GetSize(), f.group.GetHealthy(), f.drifted)
	if reason := cmp.Or(f.group.GetWait().GetText(), f.group.GetBlockedReason()); reason != "" {
		text += "; " + reason
	}
	if halted := f.group.GetHalted(); halted != nil {
		text += "; " + halted.GetMessage()
	}
	return text
}

// awaitGone waits until the server no longer has a deleted group. The server removes the group when the group's last
// instance is deleted.
func (r *Resource) awaitGone(ctx context.Context, get getter, k key) diag.Diagnostic {
	patience, diags := base.Timeout(ctx, get, timeouts.Value.Delete, defaultDelete)
	if diags.HasError() {
		return diags[0]
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	left := 0
	err := poll.Until(ctx, func(ctx context.Context) (bool, error) {
		group, err := r.readGroup(ctx, k)
		if err != nil {
			return false, err
		}
		left = len(group.GetInstanceIds())
		return group == nil || !group.GetDeleting(), nil // if it is not deleting, another client created it again
	})
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, context.DeadlineExceeded):
		return failure("Deleted, but cannot read whether instances are left of", k, err)
	}
	return diagnostic.Failure{
		What:  fmt.Sprintf("Group %s is deleted, but its instances were not gone within %s", k.name, patience),
		Where: "shard " + k.shard, Why: fmt.Errorf("%d are left", left),
		Do: "The server continues to drain them. Destroy again to wait for the rest. Set timeouts.delete to wait " +
			"longer.",
	}.Error()
}
