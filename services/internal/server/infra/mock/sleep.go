package mock

import (
	"context"
	"slices"
	"time"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/mock"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Sleep implements infra.Sleeper. A VM that falls asleep is stopping for the time Config.FallAsleep. While a VM sleeps,
// it takes up no room.
func (p *Provider) Sleep(ctx context.Context, vm infra.VM, how string) error {
	call := Call{Kind: Sleep, ProviderID: vm.ProviderID, Owner: vm.Tags.Owner, Instance: vm.Tags.Instance, Name: how}
	return p.change(ctx, call, func(at time.Time, out Outcome) error {
		m, state, err := p.sleeper(at, call, vm)
		switch {
		case err != nil:
			return err
		case how == "" || how != m.sleep:
			return infra.Errorf(infra.Invalid, op(call), "the VM was created with sleep %q, not %q", m.sleep, how)
		case state == infra.Stopping || state == infra.Stopped:
			return nil
		case state != infra.Running:
			return infra.Errorf(infra.Conflict, op(call), "the VM is %s", state)
		}
		p.move(m, at, infra.Stopping, infra.Stopped, p.cfg.FallAsleep, out.Stuck)
		p.occupy(m, false)
		return nil
	})
}

// Wake implements infra.Sleeper. A VM that wakes is pending for the time Config.WakeUp. Every stopped VM that was
// created with CreateRequest.Sleep can be woken, also if it was killed.
func (p *Provider) Wake(ctx context.Context, vm infra.VM) error {
	call := Call{Kind: Wake, ProviderID: vm.ProviderID, Owner: vm.Tags.Owner, Instance: vm.Tags.Instance}
	return p.change(ctx, call, func(at time.Time, out Outcome) error {
		m, state, err := p.sleeper(at, call, vm)
		switch {
		case err != nil:
			return err
		case state.Alive():
			return nil
		case m.sleep == "":
			return infra.Errorf(infra.Invalid, op(call), "the VM was created without sleep")
		case state == infra.Stopping:
			return infra.Errorf(infra.Conflict, op(call), "the VM is %s", state)
		case p.room(m.place, 1) < 1:
			return noRoom(op(call), m.place)
		}
		p.move(m, at, infra.Pending, infra.Running, p.cfg.WakeUp, out.Stuck)
		p.occupy(m, true)
		return nil
	})
}

// sleeper returns the VM of a call and its state. It fails if the VM is gone or is not the caller's. The caller holds
// p.mu.
func (p *Provider) sleeper(at time.Time, call Call, vm infra.VM) (*machine, infra.State, error) {
	m := p.byID[vm.ProviderID]
	if m == nil || p.forgotten(m, at) {
		return nil, "", infra.Errorf(infra.NotFound, op(call), "no such VM")
	}
	if err := infra.CheckOwned(op(call), m.vm.Tags, vm.Tags); err != nil {
		return nil, "", err
	}
	now, _ := m.at(at)
	if now.State == infra.Failed || ended(now.State) {
		return nil, "", infra.Errorf(infra.NotFound, op(call), "the VM is %s", now.State)
	}
	return m, now.State, nil
}

// move lets a VM enter the state first, and after the given time the state then. A negative time, or stuck, means that
// the VM remains in the first state. The caller holds p.mu.
func (p *Provider) move(m *machine, at time.Time, first, then infra.State, after time.Duration, stuck bool) {
	m.set(at, first)
	if after >= 0 && !stuck {
		m.history = append(m.history, change{at.Add(after), then})
	}
	p.changed(m, at)
}

// checkSleep checks the field Sleep of a request.
func checkSleep(what string, req infra.CreateRequest) error {
	if req.Sleep == "" || slices.Contains(contract.Block.Sleeps, req.Sleep) {
		return nil
	}
	return infra.Errorf(infra.Invalid, what, "VMs cannot sleep as %q", req.Sleep)
}
