package shardstate

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Pool identifies a set of interchangeable reservations.
type Pool struct{ Tenant, Kind string }

// Reservation is an instance record in the bucket with the state reserved. No instance uses it yet.
type Reservation struct {
	Record record.Instance
	Token  objstore.Token
}

// AddReservation adds a new reservation of the present leader to the pool of its tenant and kind. In a shard that is
// being terminated, the reservation becomes a leftover immediately.
func (s *State) AddReservation(r Reservation) {
	s.mu.Lock()
	if s.settings.Terminating {
		s.mu.Unlock()
		s.AddLeftover(r)
		return
	}
	defer s.mu.Unlock()
	pool := Pool{r.Record.Tenant, r.Record.Kind}
	s.reserved[pool] = append(s.reserved[pool], r)
}

// abandonReservations turns all reservations into leftovers, which garbage collection removes. A client that waits for
// an empty shard must not wait for unused reservations. It cannot distinguish them from VMs that are being created.
// Call with mu held.
func (s *State) abandonReservations() {
	for _, reservations := range s.reserved {
		for _, r := range reservations {
			s.leftovers[r.Record.ID] = r
			s.collectionDue = true
		}
	}
	clear(s.reserved)
}

// TakeReservation takes the oldest reservation of a pool. left is the number of reservations that remain.
func (s *State) TakeReservation(pool Pool) (r Reservation, left int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.reserved[pool]
	if len(have) == 0 {
		return Reservation{}, 0, false
	}
	r = have[0]
	s.reserved[pool] = have[1:]
	return r, len(have) - 1, true
}

// ReservationsLeft returns the number of reservations in a pool.
func (s *State) ReservationsLeft(pool Pool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.reserved[pool])
}

// Pools returns the pools that live groups use, sorted. It returns none in a shard that is being terminated.
func (s *State) Pools() []Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settings.Terminating {
		return nil
	}
	var pools []Pool
	for _, g := range s.groups {
		if g.Deleted || g.Kind == "" {
			continue
		}
		if pool := (Pool{g.Tenant, g.Kind}); !slices.Contains(pools, pool) {
			pools = append(pools, pool)
		}
	}
	slices.SortFunc(pools, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Kind, b.Kind))
	})
	return pools
}

// Subnets returns the subnets of all live groups that have more than one subnet, sorted.
func (s *State) Subnets() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]struct{}{}
	for _, g := range s.groups {
		if !g.Deleted && len(g.Subnets) > 1 {
			for _, subnet := range g.Subnets {
				seen[subnet] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// AddLeftover adds a reservation that an earlier leader made, or that this leader no longer needs. Garbage collection
// decides what becomes of it.
func (s *State) AddLeftover(r Reservation) {
	s.mu.Lock()
	s.leftovers[r.Record.ID] = r
	s.collectionDue = true
	s.mu.Unlock()
	s.opts.Wake()
}

// Leftover returns the leftover reservation for the instance with the given ID, if there is one.
func (s *State) Leftover(id ident.ID) (Reservation, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.leftovers[id]
	return r, ok
}

// Use turns a reservation into an instance of a group and marks it as being created. rec is the reservation's record
// with group and parameters filled in. token is the version of the reservation in the bucket, which does not have these
// fields yet. finishes is the result of [plan.Action.Finishes].
func (s *State) Use(rec record.Instance, token objstore.Token, finishes ident.ID) {
	s.mu.Lock()
	inst := s.addInstance(&rec)
	inst.record, inst.token, inst.plan.Work, inst.plan.Finishes = rec, token, plan.Creating, finishes
	inst.plan = plan.ApplyRecord(inst.plan, &rec, &rec, s.opts.Now())
	s.mu.Unlock()
}
