package shardstate

import (
	"bytes"
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
func (w *State) PutRecord(rec record.Instance, token objstore.Token) {
	w.mu.Lock()
	inst := w.instances[rec.ID]
	if inst != nil && inst.record.Revision > rec.Revision {
		w.mu.Unlock()
		return
	}
	var over []ErrorEvent
	switch {
	case rec.State == record.Deleted:
		if inst != nil {
			over = w.drop(inst)
		}
		w.tombstones[rec.ID] = tombstone{record: rec, token: token}
		w.settled(rec.ID)
	case rec.Group == "":
		// A record without a group is a reservation that is not used yet. The State keeps reservations in w.reserved
		// and w.leftovers, not among the instances.
	case w.tombstoned(rec.ID):
	default:
		if inst == nil {
			inst = w.addInstance(&rec)
		}
		inst.plan = plan.ApplyRecord(inst.plan, &inst.record, &rec, w.opts.Now())
		inst.record, inst.token = rec, token
		w.settled(rec.ID)
	}
	if inst != nil {
		w.touch(inst.group)
	}
	w.mu.Unlock()
	w.publishResolved(over)
	w.opts.Wake()
}

// settled removes an instance's reservation from the leftovers. A stray VM of that instance counts as a pending create
// only as long as the leftover exists. So settled marks the VM's group as dirty. Call with mu held.
func (w *State) settled(id ident.ID) {
	if _, left := w.leftovers[id]; !left {
		return
	}
	delete(w.leftovers, id)
	for _, s := range w.strays {
		if g := w.groups[config.GroupKey{Tenant: s.vm.Tags.Tenant, Group: s.vm.Tags.Group}]; g != nil &&
			s.vm.Tags.Instance == id {
			w.touch(g)
		}
	}
}

func (w *State) tombstoned(id ident.ID) bool {
	_, ok := w.tombstones[id]
	return ok
}

// addInstance adds an instance to the group of its record. Call with mu held.
func (w *State) addInstance(rec *record.Instance) *instance {
	g := w.groupOf(rec)
	inst := &instance{group: g, plan: plan.Instance{ID: rec.ID}}
	at, _ := slices.BinarySearchFunc(g.instances, rec.ID, func(have *instance, id ident.ID) int {
		return have.plan.ID.Compare(id)
	})
	g.instances = slices.Insert(g.instances, at, inst)
	w.instances[rec.ID] = inst
	return inst
}

// drop removes an instance from its group and resolves the errors about the instance. It returns an event for each of
// these errors, which the caller publishes. Call with mu held.
func (w *State) drop(inst *instance) []ErrorEvent {
	delete(w.instances, inst.plan.ID)
	g := inst.group
	if at := slices.Index(g.instances, inst); at >= 0 {
		g.instances = slices.Delete(g.instances, at, at+1)
	}
	w.touch(g)
	return w.settle(func(key ErrorKey) bool { return key.Instance == inst.plan.ID })
}

// Record returns the last known record and token of an instance. It returns ok false if the State holds no live
// instance with this ID.
func (w *State) Record(id ident.ID) (rec record.Instance, token objstore.Token, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if inst := w.instances[id]; inst != nil {
		return inst.record, inst.token, true
	}
	return record.Instance{}, "", false
}

// KeyHolder returns another instance than id whose agent has, or had before its last renewal, the given public key.
func (w *State) KeyHolder(key []byte, id ident.ID) (holder ident.ID, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other, inst := range w.instances {
		if other != id && (bytes.Equal(inst.record.PublicKey, key) || bytes.Equal(inst.record.PreviousKey, key)) {
			return other, true
		}
	}
	return ident.ID{}, false
}

// Seen reports whether token is the version of the instance's record that the State holds. It searches instances,
// tombstones and reservations.
func (w *State) Seen(id ident.ID, token objstore.Token) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if inst := w.instances[id]; inst != nil && inst.token == token {
		return true
	}
	if t, ok := w.tombstones[id]; ok && t.token == token {
		return true
	}
	if left, ok := w.leftovers[id]; ok && left.Token == token {
		return true
	}
	for _, pool := range w.reserved {
		if slices.ContainsFunc(pool, func(r Reservation) bool { return r.Record.ID == id && r.Token == token }) {
			return true
		}
	}
	return false
}

// Tombstone returns the record of a deleted instance. It returns false if the State holds no tombstone for it.
func (w *State) Tombstone(id ident.ID) (record.Instance, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, ok := w.tombstones[id]
	return t.record, ok
}

// RemoveTombstone removes a tombstone from the State. The caller has already deleted the tombstone from the bucket.
func (w *State) RemoveTombstone(id ident.ID) {
	w.mu.Lock()
	delete(w.tombstones, id)
	w.mu.Unlock()
}

// Begin notes that work on an instance has started, so that the next plan does not request the same work. If the
// instance is gone or has other work running, Begin returns false and changes nothing.
func (w *State) Begin(id ident.ID, work plan.Work) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	inst := w.instances[id]
	if inst == nil || inst.plan.Work != plan.Idle {
		return false
	}
	inst.plan.Work = work
	return true
}

// End marks the end of an instance's work. A non-nil err counts towards the instance's backoff.
func (w *State) End(id ident.ID, err error) {
	w.mu.Lock()
	if inst := w.instances[id]; inst != nil {
		inst.plan = plan.ApplyWorkResult(inst.plan, err != nil, w.opts.Now())
		w.touch(inst.group)
	}
	w.mu.Unlock()
	w.opts.Wake()
}

// Announced records that this leader published an event which asks operators to drain the instance's node.
func (w *State) Announced(id ident.ID) { w.change(id, func(i *instance) { i.plan.Announced = true }) }

// Drained records that an operator reported the node as drained.
func (w *State) Drained(id ident.ID) { w.change(id, func(i *instance) { i.plan.Drained = true }) }

// TerminateRequested records that the provider accepted the delete call.
func (w *State) TerminateRequested(id ident.ID) {
	w.change(id, func(i *instance) { i.plan.TerminateRequested = w.opts.Now() })
}

// Balanced records whether the instance is registered with every load balancer of its group. began is a time just
// before the caller sent the registration to the provider. If the group's load balancers have changed since began,
// Balanced does nothing.
func (w *State) Balanced(id ident.ID, in bool, began time.Time) {
	w.change(id, func(i *instance) {
		if !i.plan.BalancedAt.After(began) {
			i.plan.InLoadBalancers, i.plan.BalancedAt = in, w.opts.Now()
		}
	})
}

// FilesSent records the hash of a runtime configuration after all its files were sent to the instance's agent.
func (w *State) FilesSent(id ident.ID, hash string) {
	w.change(id, func(i *instance) { i.plan.FilesSent = hash })
}

func (w *State) change(id ident.ID, fn func(*instance)) {
	w.mu.Lock()
	inst := w.instances[id]
	if inst != nil {
		fn(inst)
		w.touch(inst.group)
	}
	w.mu.Unlock()
	if inst != nil {
		w.opts.Wake()
	}
}

// ExpectCreates adds delta to the number of a group's running creates that have no ID yet. It adds `spot` to the number
// of spot instances among them.
func (w *State) ExpectCreates(key config.GroupKey, delta, spot int) {
	w.mu.Lock()
	if g := w.groups[key]; g != nil {
		g.pending += delta
		g.pendingSpot += spot
		if delta < 0 {
			w.touch(g)
		}
	}
	w.mu.Unlock()
	if delta < 0 {
		w.opts.Wake()
	}
}
