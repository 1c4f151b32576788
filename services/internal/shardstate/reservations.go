package shardstate

import (
	"maps"
	"slices"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/plan"
)

// Pool names a set of interchangeable reservations.
type Pool struct{ Tenant, Kind string }

// Reservation is a durable record in state reserved that no instance uses yet.
type Reservation struct {
	Record record.Instance
	Token  objstore.Token
}

// AddReservation puts a fresh reservation of this term into its pool. In a shard that is being emptied it is left over
// at once.
func (w *State) AddReservation(r Reservation) {
	w.mu.Lock()
	if w.settings.Terminating {
		w.mu.Unlock()
		w.AddLeftover(r)
		return
	}
	defer w.mu.Unlock()
	pool := Pool{r.Record.Tenant, r.Record.Kind}
	w.reserved[pool] = append(w.reserved[pool], r)
}

// abandonReservations makes leftovers of all reservations: whoever waits for the shard to be empty cannot tell one that
// was never used from one whose VM is being created. Call with mu held.
func (w *State) abandonReservations() {
	for _, reservations := range w.reserved {
		for _, r := range reservations {
			w.leftovers[r.Record.ID] = r
			w.sweep = true
		}
	}
	clear(w.reserved)
}

// TakeReservation takes the oldest reservation of a pool. left is how many remain.
func (w *State) TakeReservation(pool Pool) (r Reservation, left int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	have := w.reserved[pool]
	if len(have) == 0 {
		return Reservation{}, 0, false
	}
	r = have[0]
	w.reserved[pool] = have[1:]
	return r, len(have) - 1, true
}

// ReservationsLeft counts what a pool holds.
func (w *State) ReservationsLeft(pool Pool) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.reserved[pool])
}

// Pools returns every pool that some live group draws from, sorted: none in a shard that is being emptied.
func (w *State) Pools() []Pool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.settings.Terminating {
		return nil
	}
	var pools []Pool
	for _, g := range w.groups {
		if g.Deleted || g.Kind == "" {
			continue
		}
		if pool := (Pool{g.Tenant, g.Kind}); !slices.Contains(pools, pool) {
			pools = append(pools, pool)
		}
	}
	slices.SortFunc(pools, func(a, b Pool) int {
		switch {
		case a == b:
			return 0
		case a.Tenant < b.Tenant || a.Tenant == b.Tenant && a.Kind < b.Kind:
			return -1
		default:
			return 1
		}
	})
	return pools
}

// Subnets returns, sorted, the subnets of all live groups that have a choice of them.
func (w *State) Subnets() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[string]struct{}{}
	for _, g := range w.groups {
		if !g.Deleted && len(g.Subnets) > 1 {
			for _, subnet := range g.Subnets {
				seen[subnet] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// AddLeftover notes a reservation, of an earlier term or not wanted any more, that collection has to settle.
func (w *State) AddLeftover(r Reservation) {
	w.mu.Lock()
	w.leftovers[r.Record.ID] = r
	w.sweep = true
	w.mu.Unlock()
	w.opts.Wake()
}

// Leftover returns such a reservation, if it is still unsettled.
func (w *State) Leftover(id ident.ID) (Reservation, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.leftovers[id]
	return r, ok
}

// Use turns a reservation into an instance of a group that is being created: rec is the reservation's record with group
// and parameters filled in. The record in the bucket still is the bare reservation; its token stays the one to compare
// with.
func (w *State) Use(rec record.Instance, token objstore.Token) {
	w.mu.Lock()
	inst := &instance{record: rec, token: token}
	inst.plan.ID, inst.plan.Work = rec.ID, plan.Creating
	inst.group = w.groupOf(&rec)
	inst.plan = plan.ApplyRecord(inst.plan, &rec, w.opts.Now())
	w.instances[rec.ID] = inst
	inst.group.insert(inst)
	w.mu.Unlock()
}

// Discard drops an instance whose creation was definitely refused: it never lived.
func (w *State) Discard(id ident.ID) {
	w.mu.Lock()
	if inst := w.instances[id]; inst != nil {
		w.drop(inst)
	}
	w.mu.Unlock()
	w.opts.Wake()
}
