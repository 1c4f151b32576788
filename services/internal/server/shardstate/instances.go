package shardstate

import (
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// PutRecord stores the current record of an instance as read from the bucket. It ignores a revision that is older than
// the known one.
func (s *State) PutRecord(rec record.Instance, token objstore.Token) {
	s.mu.Lock()
	inst := s.instances[rec.ID]
	if inst != nil && inst.record.Revision > rec.Revision {
		s.mu.Unlock()
		return
	}
	var over []ErrorEvent
	switch {
	case rec.State == record.Deleted:
		if inst != nil {
			over = s.drop(inst)
		}
		s.tombstones[rec.ID] = tombstone{record: rec, token: token}
		s.settled(rec.ID)
	case rec.Group == "":
		// A record without a group is a reservation that is not used yet. The State keeps reservations in s.reserved
		// and s.leftovers, not among the instances.
	case s.tombstoned(rec.ID):
	default:
		if inst == nil {
			inst = s.addInstance(&rec)
		}
		inst.plan = plan.ApplyRecord(inst.plan, &inst.record, &rec, s.opts.Now())
		inst.record, inst.token = rec, token
		s.settled(rec.ID)
	}
	if inst != nil {
		s.touch(inst.group)
	}
	s.mu.Unlock()
	s.publishResolved(over)
	s.opts.Wake()
}

// settled removes an instance's reservation from the leftovers. A stray VM of that instance counts as a pending create
// only as long as the leftover exists. So settled marks the VM's group as dirty. Call with mu held.
func (s *State) settled(id ident.ID) {
	if _, left := s.leftovers[id]; !left {
		return
	}
	delete(s.leftovers, id)
	for _, stray := range s.strays {
		if g := s.groups[config.GroupKey{Tenant: stray.vm.Tags.Tenant, Group: stray.vm.Tags.Group}]; g != nil &&
			stray.vm.Tags.Instance == id {
			s.touch(g)
		}
	}
}

func (s *State) tombstoned(id ident.ID) bool {
	_, ok := s.tombstones[id]
	return ok
}

// addInstance adds an instance to the group of its record. Call with mu held.
func (s *State) addInstance(rec *record.Instance) *instance {
	g := s.groupOf(rec)
	inst := &instance{group: g, plan: plan.Instance{ID: rec.ID}}
	at, _ := slices.BinarySearchFunc(g.instances, rec.ID, func(have *instance, id ident.ID) int {
		return have.plan.ID.Compare(id)
	})
	g.instances = slices.Insert(g.instances, at, inst)
	s.instances[rec.ID] = inst
	return inst
}

// drop removes an instance from its group and resolves the errors about the instance. It returns an event for each of
// these errors, which the caller publishes. Call with mu held.
func (s *State) drop(inst *instance) []ErrorEvent {
	delete(s.instances, inst.plan.ID)
	g := inst.group
	if at := slices.Index(g.instances, inst); at >= 0 {
		g.instances = slices.Delete(g.instances, at, at+1)
	}
	s.touch(g)
	return s.settle(func(key ErrorKey) bool { return key.Instance == inst.plan.ID })
}

// Record returns the last known record and token of an instance. It returns ok false if the State holds no live
// instance with this ID.
func (s *State) Record(id ident.ID) (rec record.Instance, token objstore.Token, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if inst := s.instances[id]; inst != nil {
		return inst.record, inst.token, true
	}
	return record.Instance{}, "", false
}

// Seen reports whether token is the version of the instance's record that the State holds. It searches instances,
// tombstones and reservations.
func (s *State) Seen(id ident.ID, token objstore.Token) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if inst := s.instances[id]; inst != nil && inst.token == token {
		return true
	}
	if t, ok := s.tombstones[id]; ok && t.token == token {
		return true
	}
	if left, ok := s.leftovers[id]; ok && left.Token == token {
		return true
	}
	for _, pool := range s.reserved {
		if slices.ContainsFunc(pool, func(r Reservation) bool { return r.Record.ID == id && r.Token == token }) {
			return true
		}
	}
	return false
}

// Tombstone returns the record of a deleted instance. It returns false if the State holds no tombstone for it.
func (s *State) Tombstone(id ident.ID) (record.Instance, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tombstones[id]
	return t.record, ok
}

// RemoveTombstone removes a tombstone from the State. The caller has already deleted the tombstone from the bucket.
func (s *State) RemoveTombstone(id ident.ID) {
	s.mu.Lock()
	delete(s.tombstones, id)
	s.mu.Unlock()
}

// Begin notes that work on an instance has started, so that the next plan does not request the same work. If the
// instance is gone or has other work running, Begin returns false and changes nothing.
func (s *State) Begin(id ident.ID, work plan.Work) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	inst := s.instances[id]
	if inst == nil || inst.plan.Work != plan.Idle {
		return false
	}
	inst.plan.Work = work
	return true
}

// End marks the end of an instance's work. A non-nil err counts towards the instance's backoff.
func (s *State) End(id ident.ID, err error) {
	s.mu.Lock()
	if inst := s.instances[id]; inst != nil {
		inst.plan = plan.ApplyWorkResult(inst.plan, err != nil, s.opts.Now())
		s.touch(inst.group)
	}
	s.mu.Unlock()
	s.opts.Wake()
}

// Announced records that this leader published an event which asks operators to drain the instance's node, and when the
// deregistration delay of the instance's load balancers is over; zero: there is none. An operator that is connected now
// takes part in the drain. The present drain hook of the group does, even if the group gets another one later.
func (s *State) Announced(id ident.ID, balancersUntil time.Time) {
	s.change(id, func(i *instance) {
		if !i.plan.Announced && i.group.Drain != nil {
			hook := *i.group.Drain
			i.plan.Hook, i.hook = true, &hook
		}
		i.plan.Announced, i.plan.BalancersUntil = true, balancersUntil
		i.plan.Operator = i.plan.Operator || s.operators[i.record.Tenant] > 0
	})
}

// DrainHook returns the hook with which the instance's drain was announced; nil: none.
func (s *State) DrainHook(id ident.ID) *config.DrainHook {
	s.mu.Lock()
	defer s.mu.Unlock()
	if inst := s.instances[id]; inst != nil {
		return inst.hook
	}
	return nil
}

// Serving records that operators can connect to this leader from now on.
func (s *State) Serving() {
	s.mu.Lock()
	s.servingSince = s.opts.Now()
	s.mu.Unlock()
}

// OperatorConnected records that an operator takes part in the drains of a tenant's instances, also in those that are
// under way. The caller calls the function that it returns when the operator is disconnected. The operator keeps its
// part in the drains that it learned of.
func (s *State) OperatorConnected(tenant string) (disconnected func()) {
	s.mu.Lock()
	s.operators[tenant]++
	for _, inst := range s.instances {
		if inst.record.State == record.Deleting && inst.record.Tenant == tenant {
			inst.plan.Operator = true
		}
	}
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		if s.operators[tenant]--; s.operators[tenant] == 0 {
			s.operatorLeftAt[tenant] = s.opts.Now()
		}
		s.mu.Unlock()
	}
}

// Promoted records that a spare has become a member. finishes is the result of [plan.Action.Finishes].
func (s *State) Promoted(id, finishes ident.ID) {
	s.change(id, func(i *instance) { i.plan.Finishes = finishes })
}

// SleepRequested records that the provider accepted to put the VM of a spare to sleep.
func (s *State) SleepRequested(id ident.ID) {
	s.change(id, func(i *instance) { i.plan.SleepRequested = s.opts.Now() })
}

// WakeRequested records that the provider accepted to wake the VM of a member.
func (s *State) WakeRequested(id ident.ID) {
	s.change(id, func(i *instance) { i.plan.WakeRequested = s.opts.Now() })
}

// WakeFailed records why the provider cannot wake the VM of a member.
func (s *State) WakeFailed(id ident.ID, why string) {
	s.change(id, func(i *instance) { i.plan.WakeFailed = why })
}

// NotWoken records that a member of a group is deleted because its VM did not wake.
func (s *State) NotWoken(key config.GroupKey) {
	s.mu.Lock()
	if g := s.groups[key]; g != nil {
		g.notWokenAt = s.opts.Now()
		s.touch(g)
	}
	s.mu.Unlock()
}

// Drained records that an operator reported the node as drained.
func (s *State) Drained(id ident.ID) { s.change(id, func(i *instance) { i.plan.Drained = true }) }

// TerminateRequested records that the provider accepted the delete call.
func (s *State) TerminateRequested(id ident.ID) {
	s.change(id, func(i *instance) { i.plan.TerminateRequested = s.opts.Now() })
}

// Balanced records that the instance was registered with every load balancer of its group, or that it was removed from
// them. began is a time just
// before the caller sent the registration to the provider. If the group's load balancers have changed since began,
// Balanced does nothing.
func (s *State) Balanced(id ident.ID, in bool, began time.Time) {
	s.change(id, func(i *instance) {
		again := !in && i.plan.Deregistered // its load balancers have finished its requests since the first time
		if !i.plan.BalancedAt.After(began) && !again {
			i.plan.InLoadBalancers, i.plan.Deregistered, i.plan.BalancedAt = in, !in, s.opts.Now()
		}
	})
}

// FilesSent records the hash of a runtime configuration after all its files were sent to the instance's agent.
func (s *State) FilesSent(id ident.ID, hash string) {
	s.change(id, func(i *instance) { i.plan.FilesSent = hash })
}

func (s *State) change(id ident.ID, fn func(*instance)) {
	s.mu.Lock()
	inst := s.instances[id]
	if inst != nil {
		fn(inst)
		s.touch(inst.group)
	}
	s.mu.Unlock()
	if inst != nil {
		s.opts.Wake()
	}
}

// ExpectCreates adds n to the running creates of a group that have no ID yet.
func (s *State) ExpectCreates(key config.GroupKey, n Pending) {
	fewer := n.Members < 0 || n.Spares < 0
	s.mu.Lock()
	if g := s.groups[key]; g != nil {
		g.pending.add(n)
		if fewer {
			s.touch(g)
		}
	}
	s.mu.Unlock()
	if fewer {
		s.opts.Wake()
	}
}

// Pending counts creates that have no ID yet: those of members, the spot instances among these, and those of spares.
type Pending struct{ Members, Spot, Spares int }

func (p *Pending) add(n Pending) {
	p.Members += n.Members
	p.Spot += n.Spot
	p.Spares += n.Spares
}

// PendingOf returns what a create action counts for.
func PendingOf(a plan.Action) (p Pending) {
	switch {
	case a.Kind != plan.Create:
	case a.Spare:
		p.Spares = 1
	case a.Spot:
		p.Members, p.Spot = 1, 1
	default:
		p.Members = 1
	}
	return p
}
