package sim

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// fleet holds the provider's VMs as they really are, regardless of the faults that clients see. It also simulates their
// agents.
type fleet struct {
	world      *World
	byProvider map[string]*machine
	byInstance map[ident.ID]*machine
	order      []*machine // VMs of this shard that have not ended, in order of appearance
	asked      map[ident.ID]*ask
	planted    int
}

// machine is one VM and its agent.
type machine struct {
	providerID string
	id         ident.ID
	key        config.GroupKey
	state      infra.State
	since      time.Time // when the VM appeared
	lostAt     time.Time // when the VM was lost without a delete call
	agent      agent
	verdict    verdict
	dice       *dice
	onDemand   bool
	spot       bool
	spare      bool
	// balancedUntil is when the load balancers that the VM left have finished its requests.
	balancedUntil time.Time
	asked         int   // counts the random decisions about this VM
	calls         calls // delete calls for this VM
}

// ask is a create call without a recorded result.
type ask struct {
	term   uint64
	key    config.GroupKey
	digest string
	calls  calls
	spare  bool
}

// calls counts calls about one object within a minute.
type calls struct {
	from time.Time
	n    int
}

// often counts a call. It reports whether there have been more calls within a minute than a caller with a backoff
// makes.
func (c *calls) often(now time.Time) bool {
	if now.Sub(c.from) > minute {
		c.from, c.n = now, 0
	}
	c.n++
	return c.n > 20
}

// alive reports whether the VM runs or is about to run.
func (m *machine) alive() bool { return m.state.Alive() }

// doomed reports whether the VM has announced its end.
func (m *machine) doomed() bool { return m.agent.notice || m.agent.powerOff }

// changed handles a change in the state of a VM at the provider. The change takes effect at the time `at`, which may be
// in the future.
func (f *fleet) changed(vm infra.VM, at time.Time) {
	w := f.world
	if vm.Tags.Owner != ours {
		if vm.State != infra.Running {
			w.fail(ruleOwnVMs, "a VM of %v is %s", vm.Tags.Owner, vm.State)
		}
		return
	}
	m := f.byProvider[vm.ProviderID]
	if m == nil {
		m = &machine{providerID: vm.ProviderID, id: vm.Tags.Instance, dice: w.dice("machine",
			hashText(vm.Tags.Instance.String())), since: w.sched.now, key: config.GroupKey{Tenant: vm.Tags.Tenant,
			Group: vm.Tags.Group}}
		m.agent.world, m.onDemand = w, vm.Tags.OnDemand
		m.spot, m.spare = vm.Tags.Spot, vm.Tags.Spare
		f.byProvider[vm.ProviderID] = m
		f.order = append(f.order, m)
		if other := f.byInstance[m.id]; other != nil {
			w.fail(ruleOneVM, "instance %s has two VMs: %s and %s", m.id, other.providerID, m.providerID)
		}
		f.byInstance[m.id] = m
	}
	if !at.After(w.sched.now) {
		f.becomes(m, vm.State)
		return
	}
	w.sched.after(at.Sub(w.sched.now), func() {
		if vm, ok := w.provider.Instance(m.id); ok {
			f.becomes(m, vm.State)
		}
	})
}

func (f *fleet) becomes(m *machine, state infra.State) {
	if m.state == state {
		return
	}
	was := m.state
	m.state = state
	switch {
	case state == infra.Running && m.agent.public != nil:
		f.wakes(m)
	case state == infra.Running:
		f.boot(m)
	case was == infra.Running:
		f.hangUp(m)
	}
	if state == infra.Deleted {
		for n, other := range f.order {
			if other == m {
				f.order = append(f.order[:n], f.order[n+1:]...)
				break
			}
		}
	}
}

// lose ends a VM with the function `how`, without a delete call.
func (f *fleet) lose(m *machine, how func(providerID string) error) {
	if m.state == infra.Deleted {
		return
	}
	m.lostAt = f.world.sched.now
	if err := how(m.providerID); err != nil {
		panic(err)
	}
}

// any returns a random VM that has not ended, or nil if there is none.
func (f *fleet) any(d *dice) *machine {
	if len(f.order) == 0 {
		return nil
	}
	return f.order[d.IntN(len(f.order))]
}

// orphans returns the number of orphans and the number of all VMs. It counts only orphans that a leader has had time to
// notice and that no person has confirmed.
func (f *fleet) orphans(t *term) (orphans, all int) {
	for _, m := range f.order {
		if !m.alive() {
			continue
		}
		all++
		if d := f.world.bucket.byID[m.id]; (d == nil || d.removed) && !t.confirmed[m.providerID] &&
			f.world.sched.now.Sub(m.since) > 2*minute {
			orphans++
		}
	}
	return orphans, all
}

// recorded updates the simulated VM after each new version of its record.
func (f *fleet) recorded(d *document) {
	if d.State != record.Reserved {
		delete(f.asked, d.ID)
	}
}
