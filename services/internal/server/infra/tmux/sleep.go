package tmux

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// A sleeping VM is one whose processes are stopped by SIGSTOP. tmux continues a stopped process that it has started
// itself (server_child_stopped in its server.c). So the window of a VM that can sleep runs a shell that waits for the
// agent, and all processes of the window except that shell are stopped.

var _ infra.Sleeper = (*Provider)(nil)

// member is a process of a VM other than the window's process.
type member struct {
	pid     int
	stopped bool
}

// suspended reports whether a VM has processes and all are stopped.
func suspended(members []member) bool {
	for _, m := range members {
		if !m.stopped {
			return false
		}
	}
	return len(members) > 0
}

// Sleep implements infra.Sleeper with SIGSTOP. When it returns without an error, the VM sleeps.
func (p *Provider) Sleep(ctx context.Context, vm infra.VM, how string) error {
	return p.change(ctx, "sleep", vm, func(what string, d *document) error {
		switch {
		case how != d.Sleep || how != config.SparesSuspended:
			return infra.Errorf(infra.Invalid, what, "the VM was created with sleep %q, not %q", d.Sleep, how)
		case !d.AsleepAt.IsZero():
		case len(members(d.process())) == 0:
			return infra.Errorf(infra.Conflict, what, "the VM boots")
		default:
			// Write the document first: if this call dies, a repeat stops the processes that still run.
			d.AsleepAt = p.now().UTC().Round(0)
			if err := p.state.write(*d); err != nil {
				return err
			}
		}
		return suspend(ctx, d.process())
	})
}

// suspend stops the processes of a VM. A process can start another one until it is stopped, so there are several
// rounds.
func suspend(ctx context.Context, machine process) error {
	ctx, cancel := context.WithTimeout(ctx, killGrace)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		now := members(machine)
		if suspended(now) {
			return nil
		}
		for _, m := range now {
			if !m.stopped {
				_ = unix.Kill(m.pid, unix.SIGSTOP) // it may have ended in the meantime
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("its processes do not stop: %w", ctx.Err())
		}
	}
}

// Wake implements infra.Sleeper with SIGCONT. When it returns without an error, the VM runs.
func (p *Provider) Wake(ctx context.Context, vm infra.VM) error {
	return p.change(ctx, "wake", vm, func(_ string, d *document) error {
		if d.AsleepAt.IsZero() {
			return nil
		}
		for _, m := range members(d.process()) {
			_ = unix.Kill(m.pid, unix.SIGCONT) // it may have ended in the meantime
		}
		d.AsleepAt = time.Time{} // last: if this call dies, a repeat continues the processes
		return p.state.write(*d)
	})
}

// change calls fn with the document of a VM that runs or sleeps. fn runs with the lock held.
func (p *Provider) change(ctx context.Context, name string, vm infra.VM,
	fn func(what string, d *document) error) error {
	what := name + " " + vm.ProviderID
	id, err := parseProviderID(vm.ProviderID)
	if err != nil {
		return infra.Wrap(infra.Invalid, what, err)
	}
	entered := Event{Time: p.now(), Op: name + "_entered", Instance: id, Shard: vm.Tags.Shard}
	err = p.locked(ctx, what, id, vm.Tags, fn)
	if _, ok := errors.AsType[*infra.Error](err); ok {
		return err
	}
	if err != nil {
		return infra.Wrap(infra.Indeterminate, what, err)
	}
	done := entered
	done.Time, done.Op = p.now(), name+"_done"
	p.note(entered)
	p.note(done)
	return nil
}

func (p *Provider) locked(ctx context.Context, what string, id ident.ID, want infra.Tags,
	fn func(what string, d *document) error) error {
	unlock, err := p.state.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	d, known, err := p.state.read(id)
	if err != nil {
		return err
	}
	if !known {
		return infra.Errorf(infra.NotFound, what, "no such VM")
	}
	if err := infra.CheckOwned(what, d.tags(), want); err != nil {
		return err
	}
	panes, err := p.session.panes(ctx)
	if err != nil {
		return err
	}
	state := p.describe(d, panes).State
	asleep := !d.AsleepAt.IsZero() && (state == infra.Stopped || state == infra.Stopping)
	switch {
	case state == infra.Pending || d.PID == 0 && state == infra.Running:
		return infra.Errorf(infra.Conflict, what, "the VM boots")
	case state == infra.Running || asleep:
		return fn(what, &d)
	default:
		return infra.Errorf(infra.NotFound, what, "the VM is %s", state)
	}
}
