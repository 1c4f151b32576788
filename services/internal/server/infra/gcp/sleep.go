package gcp

import (
	"context"
	"net/http"
	"slices"
	"strconv"

	"google.golang.org/api/compute/v1"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
)

// Sleep implements infra.Sleeper with instances.stop and instances.suspend. It returns when the VM has left the status
// RUNNING, because saving the memory takes minutes. A suspended VM keeps the data of its local SSDs, as it keeps its
// memory. A stopped VM loses them, as it loses its memory.
//
// https://cloud.google.com/compute/docs/instances/suspend-stop-reset-instances-overview
func (p *Provider) Sleep(ctx context.Context, vm infra.VM, how string) error {
	what := "put " + vm.ProviderID + " to sleep"
	if err := checkSleep(what, how); err != nil {
		return err
	}
	found, err := p.owned(ctx, what, vm)
	if err != nil {
		return err
	}
	switch found.Status {
	case "RUNNING":
	case "PENDING_STOP", "STOPPING", "SUSPENDING", "TERMINATED", "STOPPED", "SUSPENDED":
		return p.notDeleted(ctx, what, found)
	default:
		return infra.Errorf(infra.Conflict, what, "the VM is %s", found.Status)
	}
	call, sleep := "instances.stop", p.api.stop
	if how == config.SparesSuspended {
		call, sleep = "instances.suspend", p.api.suspend
	}
	op, err := sleep(ctx, vm.ProviderID, slices.ContainsFunc(found.Disks, func(d *compute.AttachedDisk) bool {
		return d.Type == "SCRATCH"
	}))
	if err == nil {
		err = p.api.waitForStatus(ctx, op, vm.ProviderID, found.Status)
	}
	return p.unlessChanged(ctx, what, call, found, err)
}

// Wake implements infra.Sleeper with instances.start and instances.resume. It returns when the operation has ended,
// because only then it is known whether the zone has room for the VM. Google stops a VM that was suspended for 60 days,
// so the status decides which of the two calls is needed.
func (p *Provider) Wake(ctx context.Context, vm infra.VM) error {
	what := "wake " + vm.ProviderID
	found, err := p.owned(ctx, what, vm)
	if err != nil {
		return err
	}
	call, wake := "instances.start", p.api.start
	switch found.Status {
	case "RUNNING", "PROVISIONING", "STAGING", "PENDING":
		return nil
	case "TERMINATED", "STOPPED":
	case "SUSPENDED":
		call, wake = "instances.resume", p.api.resume
	default:
		if err := p.notDeleted(ctx, what, found); err != nil {
			return err
		}
		return infra.Errorf(infra.Conflict, what, "the VM is %s", found.Status)
	}
	return p.unlessChanged(ctx, what, call, found, wake(ctx, vm.ProviderID))
}

// checkSleep returns an error of class Invalid if VMs cannot sleep in the given way.
func checkSleep(what, how string) error {
	if slices.Contains(contract.Block.Sleeps, how) {
		return nil
	}
	return refused(what, "VMs cannot sleep as %q", how)
}

// owned returns the instance with the ID of a VM. It fails as Invalid if the instance has another owner, and as
// NotFound if there is no such instance.
func (p *Provider) owned(ctx context.Context, what string, vm infra.VM) (*compute.Instance, error) {
	if !numericID.MatchString(vm.ProviderID) {
		return nil, refused(what, "%q is not the ID of an instance", vm.ProviderID)
	}
	found, err := p.api.get(ctx, vm.ProviderID)
	if err != nil {
		return nil, p.classify(what, "instances.get", err)
	}
	return found, infra.CheckOwned(what, p.describe(found).Tags, vm.Tags)
}

// notDeleted returns an error of class NotFound if an instance is being deleted. An instance that is being deleted has
// the same status as one that is being stopped.
func (p *Provider) notDeleted(ctx context.Context, what string, in *compute.Instance) error {
	ops, err := p.operationsOn(ctx, what, strconv.FormatUint(in.Id, 10))
	if err != nil {
		return err
	}
	if slices.ContainsFunc(ops, func(op *compute.Operation) bool {
		return deletes(op.OperationType) && op.Status != "DONE"
	}) {
		return infra.Errorf(infra.NotFound, what, "the VM is being deleted")
	}
	return nil
}

// unlessChanged classifies the error of a call that was to change the status of an instance. If the instance has
// another status than before, or if another operation on it has begun, the caller must decide again.
func (p *Provider) unlessChanged(ctx context.Context, what, call string, before *compute.Instance, err error) error {
	err = p.classify(what, call, err)
	switch {
	case infra.ClassOf(err) != infra.Invalid:
		return err
	case codeOf(err) == "resourceNotReady": // another operation changes it
		return infra.Reclass(err, infra.Conflict)
	}
	now, getErr := p.api.get(ctx, strconv.FormatUint(before.Id, 10))
	switch {
	case googlecloud.StatusOf(getErr) == http.StatusNotFound:
		return infra.Reclass(err, infra.NotFound)
	case getErr != nil:
		return p.classify(what, "instances.get", getErr)
	case now.Status != before.Status:
		return infra.Reclass(err, infra.Conflict)
	}
	if deleted := p.notDeleted(ctx, what, now); deleted != nil {
		return deleted
	}
	return err
}
