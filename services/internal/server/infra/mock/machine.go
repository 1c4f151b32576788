package mock

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// machine is one VM with all its past states and all future states that are already determined.
type machine struct {
	vm      infra.VM // State is not used
	digest  string
	sleep   string   // CreateRequest.Sleep
	history []change // ordered by time; never empty
	place   Place
	holds   bool // whether it takes up room at its place
}

type change struct {
	at    time.Time
	state infra.State
}

// landing is a call that takes effect after its caller got an error.
type landing struct {
	at     time.Time
	effect func(at time.Time) error
}

// at returns the VM with the state that it had at time t. It returns false if the VM did not exist at t.
func (m *machine) at(t time.Time) (infra.VM, bool) {
	for _, c := range slices.Backward(m.history) {
		if !c.at.After(t) {
			vm := m.vm
			vm.State = c.state
			return vm, true
		}
	}
	return infra.VM{}, false
}

// set makes the machine enter the state s at time t, and cancels all later state changes.
func (m *machine) set(t time.Time, s infra.State) {
	m.history = slices.DeleteFunc(m.history, func(c change) bool { return c.at.After(t) })
	if n := len(m.history); n == 0 || m.history[n-1].state != s {
		m.history = append(m.history, change{t, s})
	}
}

// final returns the last state change that is already determined.
func (m *machine) final() change { return m.history[len(m.history)-1] }

// forgotten reports whether a VM was deleted so long ago that the provider no longer returns it.
func (p *Provider) forgotten(m *machine, now time.Time) bool {
	last := m.final()
	return last.state == infra.Deleted && now.Sub(last.at) > p.cfg.Remember
}

// land applies all late calls that are due. Their results are discarded. The caller holds p.mu.
func (p *Provider) land(now time.Time) {
	for len(p.late) > 0 && !p.late[0].at.After(now) {
		l := p.late[0]
		p.late = slices.Delete(p.late, 0, 1)
		_ = l.effect(l.at)
	}
}

// create makes a VM, or finds the VM that the same request made. The caller holds p.mu.
func (p *Provider) create(at time.Time, req infra.CreateRequest, digest string) (infra.VM, error) {
	what := op(Call{Kind: Create, Instance: req.Tags.Instance})
	if req.Tags.Instance.IsZero() {
		return infra.VM{}, infra.Errorf(infra.Invalid, what, "no instance ID")
	}
	if err := checkSleep(what, req); err != nil {
		return infra.VM{}, err
	}
	if m, ok := p.byInstance[req.Tags.Instance]; ok {
		if m.digest != digest {
			return infra.VM{}, infra.Errorf(infra.Conflict, what, "made before with other parameters")
		}
		if s := m.final().state; s == infra.Deleted {
			return infra.VM{}, infra.Errorf(infra.Conflict, what, "the VM of this request was deleted")
		}
		vm, _ := m.at(at)
		return vm, nil
	}
	if place := (Place{req.InstanceType, req.Subnet}); p.room(place, 1) < 1 {
		return infra.VM{}, noRoom(what, place)
	}
	vm, _ := p.make(at, req, digest).at(at)
	return vm, nil
}

// room returns for how many VMs, at most n, there is room at a place. The caller holds p.mu.
func (p *Provider) room(place Place, n int) int {
	for _, place := range place.all() {
		if limit, ok := p.limits[place]; ok {
			n = min(n, limit-p.used[place])
		}
	}
	return n
}

func noRoom(what string, place Place) error {
	return infra.Errorf(infra.Capacity, what, "no room for type %q in subnet %q", place.Type, place.Subnet)
}

// make makes a VM. The caller holds p.mu.
func (p *Provider) make(at time.Time, req infra.CreateRequest, digest string) *machine {
	p.made++
	n := p.made
	hostname := cmp.Or(req.Hostname, req.Tags.Instance.String())
	m := p.add(infra.VM{
		ProviderID: fmt.Sprintf("mock-%08d", n),
		Tags:       req.Tags,
		IPv4:       fmt.Sprintf("10.%d.%d.%d", n>>16&0xff, n>>8&0xff, n&0xff),
		IPv6:       fmt.Sprintf("fd00::%x:%x", n>>16&0xffff, n&0xffff),
		Hostname:   hostname,
		LaunchedAt: at,
	}, Place{req.InstanceType, req.Subnet})
	m.digest, m.sleep = digest, req.Sleep
	m.history = []change{{at, infra.Pending}}
	if p.cfg.Boot >= 0 {
		m.history = append(m.history, change{at.Add(p.cfg.Boot), infra.Running})
	}
	p.changed(m, at)
	return m
}

// changed calls Config.Changed with each state that the VM enters at or after the given time. The caller holds p.mu.
func (p *Provider) changed(m *machine, at time.Time) {
	if p.cfg.Changed == nil {
		return
	}
	for _, c := range m.history {
		if !c.at.Before(at) {
			vm := m.vm
			vm.State = c.state
			p.cfg.Changed(vm, c.at)
		}
	}
}

// add registers a VM. The caller sets its history and holds p.mu.
func (p *Provider) add(vm infra.VM, place Place) *machine {
	m := &machine{vm: vm, place: place}
	p.byID[vm.ProviderID] = m
	if p.byInstance[vm.Tags.Instance] == nil && !vm.Tags.Instance.IsZero() {
		p.byInstance[vm.Tags.Instance] = m
	}
	owned := p.byOwner[vm.Tags.Owner]
	i, _ := slices.BinarySearchFunc(owned, vm, func(m *machine, vm infra.VM) int {
		return cmp.Or(m.vm.Tags.Instance.Compare(vm.Tags.Instance), cmp.Compare(m.vm.ProviderID, vm.ProviderID))
	})
	p.byOwner[vm.Tags.Owner] = slices.Insert(owned, i, m)
	p.occupy(m, true)
	return m
}

// end sets the VM's state to deleting from the given time on, and to deleted after Config.Shutdown. It does nothing if
// the VM has ended. The caller holds p.mu.
func (p *Provider) end(m *machine, at time.Time) {
	if s := m.final().state; s == infra.Deleted || s == infra.Deleting {
		return
	}
	m.set(at, infra.Deleting)
	m.history = append(m.history, change{at.Add(p.cfg.Shutdown), infra.Deleted})
	p.occupy(m, false)
	p.changed(m, at)
}

// occupy makes the VM count towards the limits of its places. If holds is false, the VM no longer counts. The caller
// holds p.mu.
func (p *Provider) occupy(m *machine, holds bool) {
	if m.holds == holds {
		return
	}
	m.holds = holds
	for _, place := range m.place.all() {
		if holds {
			p.used[place]++
		} else {
			p.used[place]--
		}
	}
}

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
	vm.State = cmp.Or(vm.State, infra.Running)
	vm.LaunchedAt = cmp.Or(vm.LaunchedAt, now)
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
