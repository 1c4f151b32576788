package shardstate

import (
	"slices"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/plan"
)

// PutRecord takes a record as it now is in the bucket. An older revision than the one known is ignored.
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
		// An unused reservation; the pool or the left-overs hold it.
	case w.tombstoned(rec.ID):
	default:
		if inst == nil {
			inst = &instance{}
			w.instances[rec.ID] = inst
			inst.group = w.groupOf(&rec)
			inst.plan.ID = rec.ID
			inst.group.insert(inst)
		}
		inst.record, inst.token = rec, token
		inst.plan = plan.ApplyRecord(inst.plan, &rec, w.opts.Now())
		w.settled(rec.ID)
	}
	if inst != nil {
		w.touch(inst.group)
	}
	w.mu.Unlock()
	for _, event := range over {
		w.opts.Events.Error(event)
	}
	w.opts.Wake()
}

// settled drops a reservation of an earlier term, and asks for a look at the group that its VM counted for. Call with
// mu held.
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

func (g *group) insert(inst *instance) {
	at, _ := slices.BinarySearchFunc(g.instances, inst.plan.ID, func(have *instance, id ident.ID) int {
		return have.plan.ID.Compare(id)
	})
	g.instances = slices.Insert(g.instances, at, inst)
}

// drop takes an instance out of its group and returns the errors that end with it, to be published. Call with mu held.
func (w *State) drop(inst *instance) []ErrorEvent {
	delete(w.instances, inst.plan.ID)
	g := inst.group
	if at := slices.Index(g.instances, inst); at >= 0 {
		g.instances = slices.Delete(g.instances, at, at+1)
	}
	w.touch(g)
	return w.settle(func(key ErrorKey) bool { return key.Instance == inst.plan.ID })
}

// Record returns an instance's record and token as last seen; ok is false for what this World does not hold as a live
// instance.
func (w *State) Record(id ident.ID) (rec record.Instance, token objstore.Token, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if inst := w.instances[id]; inst != nil {
		return inst.record, inst.token, true
	}
	return record.Instance{}, "", false
}

// Seen reports whether token names the version of an instance's record that this World holds, as instance, tombstone or
// reservation.
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

// Tombstone returns the record of a deleted instance that is still remembered.
func (w *State) Tombstone(id ident.ID) (record.Instance, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, ok := w.tombstones[id]
	return t.record, ok
}

// RemoveTombstone forgets a tombstone whose object was deleted from the bucket.
func (w *State) RemoveTombstone(id ident.ID) {
	w.mu.Lock()
	delete(w.tombstones, id)
	w.mu.Unlock()
}

// Begin marks the work that starts for an instance, so that the next plan does not ask for it again. It answers false,
// and changes nothing, if the instance is gone or other work is under way.
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

// End marks the end of an instance's work; err counts towards its back-off.
func (w *State) End(id ident.ID, err error) {
	w.mu.Lock()
	if inst := w.instances[id]; inst != nil {
		inst.plan = plan.ApplyWorkResult(inst.plan, err != nil, w.opts.Now())
		w.touch(inst.group)
	}
	w.mu.Unlock()
	w.opts.Wake()
}

// Announced notes that a drain was announced by this leader.
func (w *State) Announced(id ident.ID) { w.change(id, func(i *instance) { i.plan.Announced = true }) }

// Drained notes an operator's word that the node is drained.
func (w *State) Drained(id ident.ID) { w.change(id, func(i *instance) { i.plan.Drained = true }) }

// TerminateRequested notes that the provider accepted the delete.
func (w *State) TerminateRequested(id ident.ID) {
	w.change(id, func(i *instance) { i.plan.TerminateRequested = w.opts.Now() })
}

// Balanced notes that the instance is registered with every load balancer of its group.
func (w *State) Balanced(id ident.ID, in bool) {
	w.change(id, func(i *instance) { i.plan.InLoadBalancers = in })
}

// FilesSent notes which runtime configuration was last sent in full.
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

// ExpectCreates adjusts the number of creates of a group that are under way but have no ID yet.
func (w *State) ExpectCreates(key config.GroupKey, delta int) {
	w.mu.Lock()
	if g := w.groups[key]; g != nil {
		g.pending += delta
		if delta < 0 {
			w.touch(g)
		}
	}
	w.mu.Unlock()
	if delta < 0 {
		w.opts.Wake()
	}
}
