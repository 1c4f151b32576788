package leader_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/act/leader"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

var (
	owner   = infra.Owner{Cluster: "c", Shard: "s"}
	workers = config.GroupKey{Tenant: "default", Group: "workers"}
	errTest = errors.New("test")
)

const term = 7

// shard is a leader of term 7 with a bucket and a provider in memory, in a synctest bubble.
type shard struct {
	*leader.Leader
	t        testing.TB
	store    *mem.Store
	state    *clusterstate.State
	provider *mock.Provider
	env      tasks.Env
	wait     func()
	wake     chan struct{}

	mu         sync.Mutex
	storeFault func(mem.Request) mem.Fault
	script     func(mock.Call) mock.Outcome
	events     []shardstate.InstanceEvent
	remaining  time.Duration
	refused    uint64
}

func (s *shard) Term() uint64 { return term }
func (s *shard) Remaining() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remaining
}
func (s *shard) Confirm(context.Context) error { return nil }
func (s *shard) Refuse(term uint64)            { s.refused = term }
func (s *shard) Render(_ context.Context, _ config.Group, rec record.Instance) (filegen.Machine, error) {
	return filegen.Machine{Hostname: rec.ID.String()}, nil
}
func (s *shard) Push(context.Context, ident.ID) error          { return nil }
func (s *shard) Drain(ident.ID)                                {}
func (s *shard) Role(ident.ID)                                 {}
func (s *shard) Forget(context.Context, config.GroupKey) error { return nil }
func (s *shard) Images() map[string]string                     { return nil }
func (s *shard) Halt(context.Context, config.GroupKey, record.GroupVersion, string, time.Time) error {
	return nil
}
func (s *shard) EndHalt(context.Context, config.GroupKey) error { return nil }
func (s *shard) KeepGood(context.Context, config.GroupKey, record.GroupVersion, map[string]string, time.Time) error {
	return nil
}
func (s *shard) Instance(e shardstate.InstanceEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}
func (s *shard) Group(config.GroupKey)       {}
func (s *shard) Error(shardstate.ErrorEvent) {}

func newShard(t testing.TB, size int) *shard {
	t.Helper()
	s := &shard{t: t, remaining: time.Hour, wake: make(chan struct{}, 1)}
	s.env, s.wait = tasks.Real()
	s.store = mem.New(mem.Options{Sleep: s.env.Sleep, Inject: func(_ context.Context, r mem.Request) mem.Fault {
		s.mu.Lock()
		fault := s.storeFault
		s.mu.Unlock()
		if fault != nil {
			return fault(r)
		}
		return mem.Fault{}
	}})
	s.state = clusterstate.New(clusterstate.Options{Cluster: s.store, Shard: s.store, ClusterID: owner.Cluster,
		ShardID: owner.Shard, Now: s.env.Now,
		Rand: s.env.Rand, Sleep: s.env.Sleep, ForEach: s.env.ForEach})
	s.provider = mock.New(mock.Config{Now: time.Now, Sleep: s.env.Sleep, Shutdown: time.Second,
		Script: func(_ context.Context, call mock.Call) mock.Outcome {
			s.mu.Lock()
			script := s.script
			s.mu.Unlock()
			if script != nil {
				return script(call)
			}
			return mock.Outcome{}
		}})
	s.Leader = leader.NewLeader(&execute.Executor{Owner: owner, Incarnation: "me", Authority: s,
		Provider: s.provider, Renderer: s, Files: s,
		Groups: s, Env: s.env, Log: slog.New(slog.DiscardHandler)}, s.state, s, func() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	})
	s.configure(size)
	return s
}

func (s *shard) configure(size int) {
	g := config.Group{GroupKey: workers, Static: true, Kind: "wrk", Template: "t", Size: size, MaxSurge: 1,
		Subnets: []string{"a"}, InfraHash: "i1"}
	g.MaxUnhealthy, _ = config.ParseLimit("40%")
	s.State.Configure((&config.Shard{}).WithDefaults(), map[config.GroupKey]config.Group{workers: g})
}

// fault sets the function that injects faults into requests to the bucket.
func (s *shard) fault(fault func(mem.Request) mem.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storeFault = fault
}

func (s *shard) answer(script func(mock.Call) mock.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = script
}

// inBubble runs a test of a shard in a synctest bubble, and waits for all of the leader's tasks.
func inBubble(t *testing.T, size int, test func(t *testing.T, s *shard)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t, size)
		test(t, s)
		s.wait()
	})
}

func (s *shard) newID() ident.ID {
	s.t.Helper()
	id, err := ident.NewID("wrk", time.Now(), s.env.Rand)
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// write puts an instance record into the bucket, as an earlier leader would.
func (s *shard) write(id ident.ID, state record.State, change func(*record.Instance)) {
	s.t.Helper()
	now := time.Now().UTC()
	rec := record.Instance{Schema: record.InstanceSchema, ID: id, State: state, Revision: 1, Term: 3, ReservedTerm: 3,
		Writer: "w", Cluster: owner.Cluster,
		Shard: owner.Shard, Tenant: workers.Tenant, Kind: "wrk", CreatedAt: now}
	if state != record.Reserved {
		rec.Group, rec.ProviderID = workers.Group, "vm-"+id.String()
	}
	switch state {
	case record.Registered:
		rec.RegisteredAt, rec.PublicKey, rec.NonceID = now, make([]byte, 32), "n"
		rec.Certificate = &record.CertificateRef{Serial: strings.Repeat("0", 32), NotAfter: now}
	case record.Deleted:
		rec.DeletedAt = now
	}
	change(&rec)
	if _, err := s.state.PutInstance(s.t.Context(), rec, ""); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shard) plant(id ident.ID) {
	s.t.Helper()
	if err := s.provider.Plant(infra.VM{ProviderID: "vm-" + id.String(),
		Tags: infra.Tags{Owner: owner, Tenant: workers.Tenant, Group: workers.Group, Instance: id}}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shard) standing(kind plan.AlertKind) bool {
	for _, e := range s.State.Standing(workers.Tenant) {
		if e.Kind == kind {
			return true
		}
	}
	return false
}

func asWritten(*record.Instance) {}

func TestTakeOver(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *shard) {
		registered, reserved, deleted, hidden, orphan := s.newID(), s.newID(), s.newID(), s.newID(), s.newID()
		s.write(registered, record.Registered, asWritten)
		s.write(reserved, record.Reserved, asWritten)
		s.write(deleted, record.Deleted, asWritten)
		for _, id := range []ident.ID{registered, hidden, orphan} {
			s.plant(id)
		}
		// The bucket's list does not contain the two newest records yet. TakeOver can learn of them only because the
		// provider lists their VMs.
		left := s.newID()
		s.write(hidden, record.Registered, asWritten)
		s.write(left, record.Reserved, asWritten)
		s.plant(left)
		s.fault(func(r mem.Request) mem.Fault {
			if r.Op == mem.List {
				return mem.Fault{Stale: 2}
			}
			return mem.Fault{}
		})
		s.State.GarbageCollectionDue()
		if err := s.TakeOver(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, id := range []ident.ID{registered, hidden} {
			if rec, _, ok := s.State.Record(id); !ok || rec.State != record.Registered {
				t.Errorf("%s: %+v, %t", id, rec, ok)
			}
		}
		for _, id := range []ident.ID{reserved, left} {
			if _, ok := s.State.Leftover(id); !ok {
				t.Errorf("%s is not to be settled", id)
			}
		}
		if _, ok := s.State.Tombstone(deleted); !ok {
			t.Error("a tombstone is not known")
		}
		if orphans := s.State.Orphans(); len(orphans) != 1 || orphans[0].Tags.Instance != orphan {
			t.Errorf("orphans %v", orphans)
		}
		if !s.State.GarbageCollectionDue() {
			t.Error("no garbage collection is due")
		}
	})
}

func TestTakeOverWithoutBucket(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *shard) {
		s.fault(func(mem.Request) mem.Fault { return mem.Fault{Err: errTest} })
		if err := s.TakeOver(t.Context()); !errors.Is(err, errTest) {
			t.Error(err)
		}
		s.fault(nil)
		s.plant(s.newID())
		s.fault(func(r mem.Request) mem.Fault {
			if r.Op == mem.Get {
				return mem.Fault{Err: errTest}
			}
			return mem.Fault{}
		})
		if err := s.TakeOver(t.Context()); !errors.Is(err, errTest) {
			t.Errorf("%v: the VM without a record is unknown", err)
		}
	})
}

func TestTakeoverFindsAHigherTerm(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *shard) {
		s.write(s.newID(), record.Registered, func(r *record.Instance) { r.Term = term + 2 })
		if err := s.TakeOver(t.Context()); err == nil || s.refused != term+2 {
			t.Errorf("%v, refused %d", err, s.refused)
		}
	})
}

// TestTakeOverWithoutProvider checks that a provider that does not answer delays TakeOver only briefly. If the provider
// throttles the list only for a moment, TakeOver repeats it and gets an answer.
func TestTakeOverWithoutProvider(t *testing.T) {
	for _, tt := range []struct {
		name    string
		outcome mock.Outcome
		fails   int
		lists   uint64
		listed  bool
	}{
		{"throttled twice", mock.Outcome{Err: infra.Errorf(infra.Throttled, "list", "slow down")}, 2, 3, true},
		{"refused", mock.Outcome{Err: infra.Errorf(infra.Denied, "list", "no")}, 99, 3, false},
		{"slow and refused", mock.Outcome{Latency: 10 * time.Second, Err: infra.Errorf(infra.Indeterminate, "list",
			"time-out")}, 99, 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, 3, func(t *testing.T, s *shard) {
				n := 0
				s.answer(func(mock.Call) mock.Outcome {
					if n++; n <= tt.fails {
						return tt.outcome
					}
					return mock.Outcome{}
				})
				if err := s.TakeOver(t.Context()); err != nil {
					t.Error(err)
				}
				if lists := s.provider.Count(mock.List); lists != tt.lists ||
					s.State.ShardSnapshot().Listed.Complete != tt.listed || s.standing("provider") == tt.listed {
					t.Errorf("%d lists, known: %t", lists, s.State.ShardSnapshot().Listed.Complete)
				}
			})
		})
	}
}

func TestCollect(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *shard) {
		ctx, cancel := context.WithCancel(t.Context())
		down := time.Now().Add(10 * time.Second)
		s.answer(func(call mock.Call) mock.Outcome {
			if call.Kind == mock.List && time.Now().Before(down) {
				return mock.Outcome{Err: infra.Errorf(infra.Throttled, "list", "slow down")}
			}
			return mock.Outcome{}
		})
		go s.Collect(ctx)
		time.Sleep(5 * time.Second)
		if !s.standing("provider") || s.State.ReservationsLeft(shardstate.Pool{Tenant: workers.Tenant,
			Kind: "wrk"}) != execute.ReservePool {
			t.Errorf("standing: %t, %d reservations", s.standing("provider"),
				s.State.ReservationsLeft(shardstate.Pool{Tenant: workers.Tenant, Kind: "wrk"}))
		}
		time.Sleep(20 * time.Second)
		// Collect has listed the provider's VMs 0, 1, 3, 7 and 15 s after its start.
		if n := s.provider.Count(mock.List); n != 5 || s.standing("provider") ||
			!s.State.ShardSnapshot().Listed.Complete {
			t.Errorf("%d lists, standing: %t", n, s.standing("provider"))
		}
		time.Sleep(s.State.Settings().CollectInterval)
		if n := s.provider.Count(mock.List); n != 6 {
			t.Errorf("%d lists", n)
		}
		cancel()
		time.Sleep(time.Hour)
		if n := s.provider.Count(mock.List); n != 6 {
			t.Errorf("%d lists", n)
		}
	})
}

// TestCollectAfterTakeover checks that Collect uses the list from TakeOver instead of a first list of its own. Collect
// lists again one interval later.
func TestCollectAfterTakeover(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *shard) {
		if err := s.TakeOver(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go s.Collect(ctx)
		for _, lists := range []uint64{1, 2, 3} {
			time.Sleep(time.Second)
			if n := s.provider.Count(mock.List); n != lists {
				t.Errorf("%d lists, want %d", n, lists)
			}
			time.Sleep(s.State.Settings().CollectInterval - time.Second)
		}
		cancel()
		time.Sleep(time.Hour)
	})
}

// TestRecheck checks that the leader finds late writes of an earlier leader: those that came after TakeOver had read
// the bucket. It finds them a minute after the takeover. Later checks without changes cost one request every ten
// minutes.
func TestRecheck(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *shard) {
		marked, kept, dead := s.newID(), s.newID(), s.newID()
		for _, id := range []ident.ID{marked, kept, dead} {
			s.write(id, record.Registered, asWritten)
		}
		if err := s.TakeOver(t.Context()); err != nil {
			t.Fatal(err)
		}
		late := func(id ident.ID, change func(*record.Instance)) {
			rec, token, ok := s.State.Record(id)
			if !ok {
				t.Fatalf("%s is not known", id)
			}
			rec.Revision++
			change(&rec)
			if _, err := s.state.PutInstance(t.Context(), rec, token); err != nil {
				t.Fatal(err)
			}
		}
		now := time.Now().UTC()
		late(marked, func(r *record.Instance) {
			r.State, r.DeletingAt, r.DeleteReason, r.DeleteDeadline = record.Deleting, now, "requested", now
		})
		late(dead, func(r *record.Instance) { r.State, r.DeletedAt = record.Deleted, now })
		reserved, created := s.newID(), s.newID()
		s.write(reserved, record.Reserved, asWritten)
		s.write(created, record.Created, asWritten)

		pass := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Recheck(ctx)
		pass(time.Minute - time.Second)
		if rec, _, _ := s.State.Record(marked); rec.State != record.Registered {
			t.Errorf("too early: %s", rec.State)
		}
		pass(2 * time.Second)
		for id, want := range map[ident.ID]record.State{marked: record.Deleting, kept: record.Registered,
			created: record.Created} {
			if rec, _, ok := s.State.Record(id); !ok || rec.State != want {
				t.Errorf("%s: %s, %t; want %s", id, rec.State, ok, want)
			}
		}
		if _, ok := s.State.Tombstone(dead); !ok {
			t.Error("a tombstone is not known")
		}
		if _, ok := s.State.Leftover(reserved); !ok {
			t.Error("a reservation is not to be settled")
		}
		lists := 0
		s.fault(func(r mem.Request) mem.Fault {
			if r.Op != mem.List {
				t.Errorf("%s of %s", r.Op, r.Key)
			}
			lists++
			return mem.Fault{}
		})
		pass(time.Hour)
		s.fault(nil)
		if lists != 6 {
			t.Errorf("%d lists in an hour", lists)
		}
		s.write(s.newID(), record.Registered, func(r *record.Instance) { r.Term = term + 1 })
		s.fault(func(mem.Request) mem.Fault { lists = -1; return mem.Fault{Err: errTest} })
		pass(10 * time.Minute)
		if lists != -1 || s.refused != 0 {
			t.Errorf("%d, refused %d", lists, s.refused)
		}
		s.fault(nil)
		pass(10 * time.Minute)
		if s.refused != term+1 {
			t.Errorf("a record of a higher term: refused %d", s.refused)
		}
	})
}

func TestHoldAddress(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *shard) {
		ctx, cancel := context.WithCancel(t.Context())
		failures := 2
		s.answer(func(call mock.Call) mock.Outcome {
			if failures--; failures >= 0 {
				return mock.Outcome{Err: infra.Errorf(infra.Throttled, "acquire", "slow down")}
			}
			return mock.Outcome{}
		})
		s.remaining = 0
		done := make(chan struct{})
		go func() {
			s.HoldAddress(ctx, s.provider, "here", leader.AddressCheck)
			close(done)
		}()
		time.Sleep(500 * time.Millisecond)
		if n := s.provider.Count(mock.Acquire); n != 0 || !s.standing("leader_network") {
			t.Errorf("%d calls without authority", n)
		}
		s.mu.Lock()
		s.remaining = time.Hour
		s.mu.Unlock()
		time.Sleep(10 * time.Second)
		if s.provider.Holder() != "here" || s.standing("leader_network") || s.provider.Count(mock.Acquire) != 3 {
			t.Errorf("the address is at %q after %d calls", s.provider.Holder(), s.provider.Count(mock.Acquire))
		}
		// Another machine takes the address. The leader checks every minute and takes it back.
		if err := s.provider.Acquire(t.Context(), "there"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if s.provider.Holder() != "here" {
			t.Errorf("the address is at %q", s.provider.Holder())
		}
		cancel()
		<-done
		if s.provider.Holder() != "" {
			t.Errorf("the address is at %q", s.provider.Holder())
		}
	})
}

// TestHoldAddressPausesAfterManyFailures checks that the pause between attempts has a limit: a pause that doubles
// without one overflows after 34 failures.
func TestHoldAddressPausesAfterManyFailures(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *shard) {
		ctx, cancel := context.WithCancel(t.Context())
		s.answer(func(mock.Call) mock.Outcome {
			if s.provider.Count(mock.Acquire) > 200 {
				cancel()
			}
			return mock.Outcome{Err: infra.Errorf(infra.Throttled, "acquire", "slow down")}
		})
		done := make(chan struct{})
		go func() {
			s.HoldAddress(ctx, s.provider, "here", leader.AddressCheck)
			close(done)
		}()
		time.Sleep(100 * leader.AddressCheck) // well over the 34 failures
		before := s.provider.Count(mock.Acquire)
		time.Sleep(10 * leader.AddressCheck)
		if calls := s.provider.Count(mock.Acquire) - before; before < 90 || before > 110 || calls > 10 {
			t.Errorf("%d calls in 100 intervals, and then %d in 10", before, calls)
		}
		cancel()
		<-done
	})
}

func TestCreateInstance(t *testing.T) {
	inBubble(t, 0, func(t *testing.T, s *shard) {
		ctx := t.Context()
		made, err := s.CreateInstance(ctx, workers, ident.ID{}, "", map[string]string{"a": "b"})
		if err != nil || made.Prefix() != "wrk" {
			t.Fatal(made, err)
		}
		if rec, _, _ := s.State.Record(made); rec.State != record.Created || !rec.OnDemand || rec.Vars["a"] != "b" {
			t.Errorf("%+v", rec)
		}
		again, err := s.CreateInstance(ctx, workers, made, "", nil)
		if err != nil || again != made || s.provider.Count(mock.Create) != 1 {
			t.Errorf("again: %v, %v, %d calls", again, err, s.provider.Count(mock.Create))
		}

		managed, dead := s.newID(), s.newID()
		s.write(managed, record.Registered, asWritten)
		s.write(dead, record.Deleted, asWritten)
		if err := s.TakeOver(ctx); err != nil {
			t.Fatal(err)
		}
		old, _ := ident.NewID("wrk", time.Now().Add(-s.State.Settings().Retention-time.Minute), s.env.Rand)
		foreign, _ := ident.NewID("oth", time.Now(), s.env.Rand)
		for _, tt := range []struct {
			name string
			key  config.GroupKey
			id   ident.ID
			want error
		}{
			{"no such group", config.GroupKey{Tenant: "default", Group: "x"}, ident.ID{}, leader.ErrNoGroup},
			{"another kind", workers, foreign, leader.ErrKind},
			{"a managed instance's ID", workers, managed, leader.ErrDead},
			{"a dead ID", workers, dead, leader.ErrDead},
			{"an ID that may have been used", workers, old, leader.ErrDead},
		} {
			if _, err := s.CreateInstance(ctx, tt.key, tt.id, "", nil); !errors.Is(err, tt.want) {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		if n := s.provider.Count(mock.Create); n != 1 {
			t.Errorf("%d calls", n)
		}
	})
}

// TestCreateInstanceLeftByAnEarlierLeader repeats two create calls that an earlier leader did not finish. Both calls
// fail until the leader knows whether their VMs exist. Then the call whose VM exists returns the instance. The ID of
// the other call cannot be used again.
func TestCreateInstanceLeftByAnEarlierLeader(t *testing.T) {
	inBubble(t, 0, func(t *testing.T, s *shard) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		running, nothing := s.newID(), s.newID()
		for _, id := range []ident.ID{running, nothing} {
			s.write(id, record.Reserved, func(r *record.Instance) { r.Group, r.OnDemand = workers.Group, true })
		}
		if err := s.provider.Plant(infra.VM{ProviderID: "vm", Tags: infra.Tags{Owner: owner, Tenant: workers.Tenant,
			Group: workers.Group, Instance: running,
			OnDemand: true}}); err != nil {
			t.Fatal(err)
		}
		var superseded *clusterstate.SupersededError
		for _, id := range []ident.ID{running, nothing} {
			for range 2 { // first found in the bucket, then known
				if _, err := s.CreateInstance(ctx, workers, id, "", nil); !errors.As(err, &superseded) {
					t.Errorf("%v", err)
				}
			}
		}
		s.env.Go("loop", func() { _ = s.Loop.Run(ctx, s.wake) })
		time.Sleep(time.Second)
		if id, err := s.CreateInstance(ctx, workers, running, "", nil); err != nil || id != running {
			t.Errorf("%v, %v", id, err)
		}
		if _, err := s.CreateInstance(ctx, workers, nothing, "", nil); !errors.Is(err, leader.ErrDead) {
			t.Error(err)
		}
		if n := s.provider.Count(mock.Create); n != 0 {
			t.Errorf("%d calls", n)
		}

		higher := s.newID()
		s.write(higher, record.Created, func(r *record.Instance) { r.Term, r.OnDemand = term+1, true })
		if _, err := s.CreateInstance(ctx, workers, higher, "", nil); !errors.As(err, &superseded) || s.refused != term+
			1 {
			t.Errorf("%v, refused %d", err, s.refused)
		}
		cancel()
	})
}

func TestDeleteInstance(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, s *shard) {
		ctx := t.Context()
		id, dead := s.newID(), s.newID()
		s.write(id, record.Registered, asWritten)
		s.write(dead, record.Deleted, asWritten)
		s.plant(id)
		if err := s.TakeOver(ctx); err != nil {
			t.Fatal(err)
		}
		s.fault(func(r mem.Request) mem.Fault { return mem.Fault{Err: errTest} })
		if err := s.DeleteInstance(ctx, id, "requested"); !errors.Is(err, errTest) {
			t.Errorf("not durable, and answered: %v", err)
		}
		s.fault(nil)
		for range 2 {
			if err := s.DeleteInstance(ctx, id, "requested"); err != nil {
				t.Error(err)
			}
		}
		rec, _, err := s.state.GetInstance(ctx, workers.Tenant, id)
		if err != nil || rec.State != record.Deleting || rec.DeleteReason != "requested" || rec.Revision != 2 {
			t.Errorf("%+v, %v", rec, err)
		}
		if len(s.events) != 1 || s.events[0].Type != shardstate.EventPendingDeletion {
			t.Errorf("told %+v", s.events)
		}
		if err := s.DeleteInstance(ctx, dead, "requested"); err != nil {
			t.Errorf("what is dead: %v", err)
		}
		if err := s.DeleteInstance(ctx, s.newID(), "requested"); !errors.Is(err, leader.ErrNoInstance) {
			t.Errorf("unknown instance: %v", err)
		}
	})
}

// TestExplicitDeletionShortensADrain checks a requested deletion of an instance that is already being deleted. The
// drain now ends after the group's present drain time-out at the latest, and watchers receive the new deadline.
func TestExplicitDeletionShortensADrain(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, s *shard) {
		ctx, id := t.Context(), s.newID()
		s.write(id, record.Deleting, func(r *record.Instance) {
			r.DeleteReason, r.DeletingAt = "the cloud takes its VM away", time.Now().UTC()
			r.DeleteDeadline = time.Now().UTC().Add(time.Hour)
		})
		s.plant(id)
		if err := s.TakeOver(ctx); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.DeleteInstance(ctx, id, "requested"); err != nil {
				t.Fatal(err)
			}
		}
		want := time.Now().UTC().Add(s.State.DrainTimeout(workers))
		rec, _, err := s.state.GetInstance(ctx, workers.Tenant, id)
		if err != nil || !rec.DeleteDeadline.Equal(want) || rec.DeleteReason != "the cloud takes its VM away" ||
			rec.Revision != 2 {
			t.Errorf("the record is %+v (%v), want the deadline %s", rec, err, want)
		}
		if view, _ := s.State.Instance(id); !view.Plan.DeleteDeadline.Equal(want) {
			t.Errorf("the planner sees the deadline %s, want %s", view.Plan.DeleteDeadline, want)
		}
		if len(s.events) != 1 || !s.events[0].Deadline.Equal(want) {
			t.Errorf("events %+v, want one with the new deadline", s.events)
		}
	})
}

// TestLoop checks that the loop brings a group to its size, replaces a lost instance, and deletes surplus instances.
func TestLoop(t *testing.T) {
	inBubble(t, 5, func(t *testing.T, s *shard) {
		ctx, cancel := context.WithCancel(t.Context())
		if err := s.TakeOver(ctx); err != nil {
			t.Fatal(err)
		}
		s.env.Go("loop", func() { _ = s.Loop.Run(ctx, s.wake) })
		s.env.Go("collect", func() { s.Collect(ctx) })
		alive := func() (n int) {
			for _, vm := range s.provider.VMs() {
				if vm.State.Alive() {
					n++
				}
			}
			return n
		}
		time.Sleep(time.Second)
		if n := alive(); n != 5 {
			t.Fatalf("%d VMs", n)
		}
		if err := s.provider.Terminate(s.provider.VMs()[2].ProviderID); err != nil {
			t.Fatal(err)
		}
		// The terminated VM never registered, so it counts as a failed create. Wait until the leader finds the loss and
		// the backoff has ended.
		time.Sleep(s.State.Settings().CollectInterval + 5*time.Second)
		if n := alive(); n != 5 {
			t.Errorf("%d VMs", n)
		}
		s.configure(2)
		time.Sleep(time.Minute)
		if n := alive(); n != 2 {
			t.Errorf("%d VMs", n)
		}
		cancel()
	})
}

// TestLoopDefers checks the limit of running actions other than creates, and that deferred actions are planned again
// when slots become free.
func TestLoopDefers(t *testing.T) {
	inBubble(t, 0, func(t *testing.T, s *shard) {
		ctx, cancel := context.WithCancel(t.Context())
		const n = 200
		for k := range n {
			id, err := ident.NewID("wrk", time.Now().Add(time.Duration(k)*time.Millisecond), s.env.Rand)
			if err != nil {
				t.Fatal(err)
			}
			s.write(id, record.Registered, asWritten)
			s.plant(id)
		}
		if err := s.TakeOver(ctx); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		running, most := 0, 0
		s.fault(func(r mem.Request) mem.Fault {
			if r.Op != mem.Put {
				return mem.Fault{}
			}
			mu.Lock()
			defer mu.Unlock()
			running++
			most = max(most, running)
			time.AfterFunc(999*time.Millisecond, func() {
				mu.Lock()
				defer mu.Unlock()
				running--
			})
			return mem.Fault{Before: time.Second}
		})
		s.env.Go("loop", func() { _ = s.Loop.Run(ctx, s.wake) })
		time.Sleep(30 * time.Second)
		mu.Lock()
		if most != 64 {
			t.Errorf("%d actions at a time", most)
		}
		mu.Unlock()
		for _, vm := range s.provider.VMs() {
			if vm.State.Alive() {
				t.Fatalf("%s still runs", vm.ProviderID)
			}
		}
		cancel()
	})
}

// TestCreatesAreNotDelayedByOtherActions checks that other actions do not delay creates.
func TestCreatesAreNotDelayedByOtherActions(t *testing.T) {
	inBubble(t, 100, func(t *testing.T, s *shard) {
		ctx, cancel := context.WithCancel(t.Context())
		s.fault(func(r mem.Request) mem.Fault {
			return mem.Fault{Before: 20 * time.Millisecond}
		})
		for k := range 100 {
			id, _ := ident.NewID("wrk", time.Now().Add(time.Duration(k)*time.Millisecond), s.env.Rand)
			s.write(id, record.Registered, asWritten)
			s.plant(id)
			if err := s.provider.Kill("vm-" + id.String()); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.TakeOver(ctx); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s.env.Go("loop", func() { _ = s.Loop.Run(ctx, s.wake) })
		for s.provider.Count(mock.Create) < 100 && time.Since(began) < time.Minute {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("a hundred creates took %v", took)
		}
		cancel()
	})
}
