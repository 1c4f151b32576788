package mock

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Place is a combination of instance type and subnet that has limited room for VMs. An empty field means all types or
// all subnets.
type Place struct{ Type, Subnet string }

// all returns p and every place that includes p: all subnets with the type of p, all types in the subnet of p, and all
// types in all subnets. It returns each place once.
func (p Place) all() []Place {
	places := []Place{p}
	for _, wider := range []Place{{Type: p.Type}, {Subnet: p.Subnet}, {}} {
		if !slices.Contains(places, wider) {
			places = append(places, wider)
		}
	}
	return places
}

// SetCapacity limits the number of VMs at a place. A negative n removes the limit. A VM takes up room until its end is
// requested.
func (p *Provider) SetCapacity(place Place, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n < 0 {
		delete(p.limits, place)
		return
	}
	p.limits[place] = n
}

// Kill crashes a VM without a provider call. The VM is stopped immediately.
func (p *Provider) Kill(providerID string) error { return p.SetState(providerID, infra.Stopped) }

// Terminate removes a VM without a provider call, as a person at a console would. The VM is deleted immediately.
func (p *Provider) Terminate(providerID string) error { return p.SetState(providerID, infra.Deleted) }

// SetState sets the state of a VM, which then remains in that state. It fails for a deleted VM.
func (p *Provider) SetState(providerID string, s infra.State) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Now()
	p.land(now)
	m, ok := p.byID[providerID]
	if !ok {
		return fmt.Errorf("mock: no VM %q", providerID)
	}
	if vm, _ := m.at(now); vm.State == infra.Deleted {
		return fmt.Errorf("mock: VM %q is deleted", providerID)
	}
	m.set(now, s)
	p.occupy(m, s.Alive())
	p.changed(m, now)
	return nil
}

// Plant adds a VM that was not created through this provider, for example an orphan or a foreign VM. vm needs a unique
// ProviderID. If vm has no State, it is running. Its instance ID counts as used.
func (p *Provider) Plant(vm infra.VM) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.byID[vm.ProviderID]; ok || vm.ProviderID == "" {
		return fmt.Errorf("mock: provider ID %q is missing or taken", vm.ProviderID)
	}
	now := p.cfg.Now()
	if vm.State == "" {
		vm.State = infra.Running
	}
	if vm.LaunchedAt.IsZero() {
		vm.LaunchedAt = now
	}
	m := p.add(vm, Place{})
	m.history = []change{{now, vm.State}}
	p.occupy(m, vm.State.Alive())
	p.changed(m, now)
	return nil
}

// VMs returns the current state of every VM that is not deleted, for all owners, sorted by provider ID. The result is
// never stale, and VMs does not count as a call of the provider.
func (p *Provider) VMs() []infra.VM {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Now()
	p.land(now)
	vms := make([]infra.VM, 0, len(p.byID))
	for _, id := range slices.Sorted(maps.Keys(p.byID)) {
		if vm, ok := p.byID[id].at(now); ok && vm.State != infra.Deleted {
			vms = append(vms, vm)
		}
	}
	return vms
}

// Instance returns the current state of the VM that was made for an instance ID, if there is one. Instance does not
// count as a call of the provider.
func (p *Provider) Instance(id ident.ID) (infra.VM, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Now()
	p.land(now)
	m, ok := p.byInstance[id]
	if !ok {
		return infra.VM{}, false
	}
	return m.at(now)
}

// Land applies each late call (see Outcome.Late) whose delay has passed. Without Land, the provider's next call applies
// them.
func (p *Provider) Land() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.land(p.cfg.Now())
}

// Count returns the number of calls of a kind, including failed calls.
func (p *Provider) Count(kind Kind) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[kind]
}

// SetMachine sets the state of a server's machine.
func (p *Provider) SetMachine(machineID string, s infra.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.machines[machineID] = s
}

// Holder returns the machine that has the leader network, or "" if there is none.
func (p *Provider) Holder() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holder
}

// Members returns the provider IDs registered with a load balancer, sorted.
func (p *Provider) Members(lb string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.balancers[lb]))
}
