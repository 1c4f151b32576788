package libvirt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// memoryPatience is how long Sleep and Wake wait while libvirt writes or reads the memory of a VM. It is shorter than
// the usual request_timeout, because a call that exceeds that timeout ends the connection to the host.
const memoryPatience = 10 * time.Second

// Sleep implements infra.Sleeper. It saves the memory of the VM to a file on its host (libvirt's managed save). If that
// fails, for example because the host's disk is full, the VM runs on.
func (p *Provider) Sleep(ctx context.Context, vm infra.VM, how string) error {
	what := "put " + vm.ProviderID + " to sleep"
	if how != config.SparesSuspended {
		return infra.Errorf(infra.Invalid, what, "VMs on libvirt cannot sleep as %q, only as %q", how,
			config.SparesSuspended)
	}
	return p.onDomain(ctx, what, vm, func(c *libvirt.Libvirt, d domain) error {
		if err := p.checkLive(what, d); err != nil {
			return err
		}
		switch {
		case d.saved || d.state == infra.Stopping:
			return nil
		case d.state != infra.Running:
			return infra.Errorf(infra.Conflict, what, "the VM is %s", p.describe(d, nil).State)
		}
		return p.awaitMemory(what, func() error {
			return saveError(what, d.host, c.DomainManagedSave(d.dom, uint32(libvirt.DomainSaveRunning)))
		})
	})
}

// saveError gives the error of a save its class.
func saveError(what string, h *host, err error) error {
	if _, coded := errors.AsType[libvirt.Error](err); coded && strings.Contains(err.Error(), "No space left") {
		return infra.Wrap(infra.Capacity, what, fmt.Errorf("host %s has no disk space for the VM's memory in "+
			"/var/lib/libvirt/qemu/save: the VM runs on: %w", h.name, err))
	}
	return err
}

// awaitMemory runs a call in which libvirt writes or reads the memory of a VM. If the call takes longer than
// memoryPatience, awaitMemory returns nil, and logs the error later.
func (p *Provider) awaitMemory(what string, call func() error) error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(memoryPatience):
		go func() {
			if err := <-done; err != nil {
				p.log.Warn("a call that took long failed", "call", what, "error", err)
			}
		}()
		return nil
	}
}

// Wake implements infra.Sleeper.
func (p *Provider) Wake(ctx context.Context, vm infra.VM) error {
	what := "wake " + vm.ProviderID
	return p.onDomain(ctx, what, vm, func(c *libvirt.Libvirt, d domain) error {
		if err := p.checkLive(what, d); err != nil {
			return err
		}
		switch {
		case d.state.Alive():
			return nil
		case !d.saved: // it still falls asleep
			return infra.Errorf(infra.Conflict, what, "the VM is %s", d.state)
		}
		_, maxKiB, _, _, _, err := c.DomainGetInfo(d.dom)
		if err != nil {
			return err
		}
		defer d.host.reserve(d.dom.Name, int64(maxKiB/1024))() //nolint:gosec // a size in KiB is below 2^63
		if err := p.checkMemory(c, what, d.host); err != nil {
			return err
		}
		return p.awaitMemory(what, func() error {
			_, err := c.DomainCreateWithFlags(d.dom, 0)
			return d.host.startError(what, err)
		})
	})
}

// checkLive fails as NotFound if a VM has ended.
func (p *Provider) checkLive(what string, d domain) error {
	if state := p.describe(d, nil).State; !d.saved && (state == infra.Stopped || state == infra.Failed) {
		return infra.Errorf(infra.NotFound, what, "the VM has ended, and no memory of it is saved")
	}
	return nil
}

// onDomain calls f with the domain of a VM, while no other call of this process changes it. It fails as NotFound if the
// VM is gone.
func (p *Provider) onDomain(ctx context.Context, what string, vm infra.VM,
	f func(*libvirt.Libvirt, domain) error) error {
	h, id, err := p.find(what, vm.ProviderID)
	if err != nil {
		return err
	}
	_, err = call(ctx, h, what, func(c *libvirt.Libvirt) (struct{}, error) {
		defer h.lock(vm.Tags.Instance)()
		if err := ctx.Err(); err != nil {
			return struct{}{}, err
		}
		dom, err := c.DomainLookupByUUID(id)
		if err != nil {
			return struct{}{}, err
		}
		d, err := readDomain(c, h, dom)
		if err != nil {
			return struct{}{}, err
		}
		if err := infra.CheckOwned(what, d.tags, vm.Tags); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, f(c, d)
	})
	return err
}
