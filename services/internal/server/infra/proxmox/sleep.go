package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// The locks of a VM whose memory is being saved, and of a VM whose memory is saved.
const (
	lockSuspending = "suspending"
	lockSuspended  = "suspended"
)

// memoryPatience is how long Sleep and Wake wait for their tasks, in which the node writes or reads the memory of a VM.
const memoryPatience = 10 * time.Second

// Sleep implements infra.Sleeper. It suspends the VM to disk: Proxmox VE saves the VM's memory to a volume. If the
// storage has no room for this volume, the VM runs on.
func (p *Provider) Sleep(ctx context.Context, vm infra.VM, how string) error {
	what := "put " + vm.ProviderID + " to sleep"
	if how != config.SparesSuspended {
		return infra.Errorf(infra.Invalid, what, "VMs on Proxmox VE cannot sleep as %q, only as %q", how,
			config.SparesSuspended)
	}
	return p.onVM(ctx, what, vm, func(r resource, live liveVM) error {
		if live.asleep() || live.Lock == lockSuspending {
			return nil
		}
		_, err := p.changePower(ctx, r, "suspend", url.Values{"todisk": {"1"}})
		if answer, ok := errors.AsType[*apiError](err); ok && answer.status == 0 { // the task failed
			if live, readErr := p.readLive(ctx, r.Node, r.VMID); readErr == nil && live.Lock == lockSuspending {
				err = fmt.Errorf("%w; the VM runs on, but stays locked: unlock it with qm unlock %d", err, r.VMID)
			}
		}
		return err
	})
}

// changePower runs the task suspend or start of a VM. done is false if the task runs longer than memoryPatience.
func (p *Provider) changePower(ctx context.Context, r resource, task string, form url.Values) (done bool, err error) {
	waiting, cancel := context.WithTimeout(ctx, memoryPatience)
	defer cancel()
	err = p.client.run(waiting, http.MethodPost, form, "nodes", r.Node, "qemu", r.VMID, "status", task)
	if _, lost := errors.AsType[*lostError](err); lost && waiting.Err() != nil && ctx.Err() == nil {
		return false, nil
	}
	return true, err
}

// Wake implements infra.Sleeper.
func (p *Provider) Wake(ctx context.Context, vm infra.VM) error {
	what := "wake " + vm.ProviderID
	return p.onVM(ctx, what, vm, func(r resource, live liveVM) error {
		switch {
		case live.Lock == lockSuspending:
			return infra.Errorf(infra.Conflict, what, "the VM still falls asleep")
		case live.Status == "running":
			return nil
		}
		done, err := p.changePower(ctx, r, "start", nil)
		if !done || err != nil && !has(err, "already running") {
			return err
		}
		// Another server may have deleted the VM just before it was started.
		config, err := p.readConfig(ctx, r.Node, r.VMID)
		if err != nil {
			return &lostError{err}
		}
		if !config.metadata.Deleted.IsZero() {
			if err := p.deleteVM(ctx, r.Node, r.VMID, vm.Tags); err != nil {
				return err
			}
			return infra.Errorf(infra.NotFound, what, "the VM was deleted while it was woken")
		}
		return nil
	})
}

// onVM calls f with a VM that runs, sleeps, or falls asleep, while no other call of this process changes it. It fails
// as NotFound if the VM is gone, is being deleted, or has ended.
func (p *Provider) onVM(ctx context.Context, what string, vm infra.VM, f func(resource, liveVM) error) error {
	if err := ctx.Err(); err != nil {
		return infra.Wrap(infra.Indeterminate, what, err)
	}
	vmid, err := parseProviderID(vm.ProviderID)
	if err != nil {
		return infra.Wrap(infra.Invalid, what, err)
	}
	defer p.lock(vmid)()
	inv, err := p.readInventory(ctx)
	if err != nil {
		return p.client.classify(what, err)
	}
	r, exists := inv.guests[vmid]
	switch {
	case !exists:
		return infra.Errorf(infra.NotFound, what, "there is no VM %d", vmid)
	case r.Type != "qemu":
		return infra.Errorf(infra.Invalid, what, "it is a container")
	case !inv.online[r.Node]:
		return infra.Errorf(infra.Indeterminate, what, "node %s is offline", r.Node)
	}
	config, err := p.readConfig(ctx, r.Node, vmid)
	if err != nil {
		return p.client.classifyOnNode(what, err)
	}
	if !config.ok {
		return infra.Errorf(infra.Invalid, what, "it is not an instance")
	}
	if err := infra.CheckOwned(what, config.metadata.Tags, vm.Tags); err != nil {
		return err
	}
	live, err := p.readLive(ctx, r.Node, vmid)
	if err != nil {
		return p.client.classifyOnNode(what, err)
	}
	switch state := p.describe(vmid, live, config.metadata).State; {
	case state == infra.Pending:
		return infra.Errorf(infra.Conflict, what, "the VM is %s", state)
	case !config.metadata.Deleted.IsZero():
		return infra.Errorf(infra.NotFound, what, "the VM is %s", state)
	case live.Status == "stopped" && !live.asleep():
		return infra.Errorf(infra.NotFound, what, "the VM has ended, and is not suspended")
	}
	return p.classifyLookUp(what, f(r, live))
}
