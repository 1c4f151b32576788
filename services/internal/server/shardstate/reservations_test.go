package shardstate_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// TestReservationsOfATerminatingShard checks that a terminating shard keeps no reservations. A client that destroys the
// shard waits until the shard has no reservations.
func TestReservationsOfATerminatingShard(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	woken := 0
	state := shardstate.New(shardstate.Options{Term: 1, Now: func() time.Time {
		return now
	}, Wake: func() { woken++ }})
	key := config.GroupKey{Tenant: ident.DefaultTenant, Group: "g"}
	groups := map[config.GroupKey]config.Group{key: {GroupKey: key, Kind: "wrk", Size: 1}}
	configure := func(terminating bool) {
		shard := (&config.Shard{Terminating: terminating}).WithDefaults()
		state.Configure(shard, groups)
	}
	pool := shardstate.Pool{Tenant: key.Tenant, Kind: "wrk"}
	reserve := func(n byte) shardstate.Reservation {
		id, err := ident.NewID("wrk", now, constant(n))
		if err != nil {
			t.Fatal(err)
		}
		r := shardstate.Reservation{Record: record.Instance{ID: id, State: record.Reserved, Tenant: pool.Tenant,
			Kind: pool.Kind}, Token: "1"}
		state.AddReservation(r)
		return r
	}

	configure(false)
	before := reserve(1)
	if got := state.Pools(); len(got) != 1 || got[0] != pool || state.ReservationsLeft(pool) != 1 {
		t.Fatalf("pools %v with %d reservations", got, state.ReservationsLeft(pool))
	}
	state.GarbageCollectionDue()
	configure(true)
	if !state.GarbageCollectionDue() {
		t.Error("no garbage collection is due")
	}
	during := reserve(2)
	if got := state.Pools(); len(got) != 0 || state.ReservationsLeft(pool) != 0 {
		t.Errorf("pools %v with %d reservations, want none", got, state.ReservationsLeft(pool))
	}
	for _, r := range []shardstate.Reservation{before, during} {
		if _, ok := state.Leftover(r.Record.ID); !ok {
			t.Errorf("%s is not left over", r.Record.ID)
		}
	}
	if !state.GarbageCollectionDue() || woken == 0 {
		t.Error("a reservation that arrived late is not collected")
	}
}

// constant is a reader of one repeated byte.
type constant byte

func (c constant) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(c)
	}
	return len(p), nil
}
