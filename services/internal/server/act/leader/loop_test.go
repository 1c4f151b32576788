package leader_test

import (
	"context"
	"crypto/rand"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/act/leader"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// TestCreateRateLimit checks that create_rate_limit applies to the creates of all groups together. If the limit
// changes, the new pause counts from the last create.
func TestCreateRateLimit(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	state := shardstate.New(shardstate.Options{Term: 1, Now: func() time.Time {
		return now
	}, Wake: func() {}})
	groups := map[config.GroupKey]config.Group{}
	for _, name := range []string{"a", "b"} {
		key := config.GroupKey{Tenant: ident.DefaultTenant, Group: name}
		groups[key] = config.Group{GroupKey: key, Kind: "wrk", Size: 3, MaxSurge: 1}
	}
	state.Configure((&config.Shard{}).WithDefaults(), groups)
	started := 0
	every := time.Minute
	loop := &leader.Loop{
		Executor: &execute.Executor{State: state, Log: slog.New(slog.DiscardHandler),
			// Creates start and never end.
			Env: tasks.Env{Now: func() time.Time { return now }, Go: func(string, func()) {}}},
		Planned:     func(time.Duration) {},
		CreateEvery: func() time.Duration { return every },
		Started: func(kind plan.Kind) {
			if kind == plan.Create {
				started++
			}
		},
	}
	for want := 1; want <= 3; want++ {
		next := loop.Pass(context.Background())
		if started != want {
			t.Fatalf("at %s %d creates were started, want %d", now.Format(time.TimeOnly), started, want)
		}
		if wait := next.Sub(now); wait != every {
			t.Fatalf("the next look is in %s, want %s", wait, every)
		}
		last := now
		now = now.Add(every / 2)
		loop.Pass(context.Background())
		if started != want {
			t.Fatalf("half a pause later %d creates were started, want %d", started, want)
		}
		// The status of both groups, and the result of Explain, say when the next create may start.
		const text = "create_rate_limit allows 1 create per 1m in the shard, and it is used"
		for key := range groups {
			if want == 3 {
				break // one of them may have all its instances
			}
			view, _ := state.GroupView(key)
			_, explained, _ := loop.Explain(key)
			if view.Blocked != text || explained.Blocked != text || !view.BlockedUntil.Equal(last.Add(every)) ||
				!explained.BlockedUntil.Equal(last.Add(every)) {
				t.Fatalf("%s is blocked by %q until %s and by %q until %s, want %q until %s", key, view.Blocked,
					view.BlockedUntil, explained.Blocked, explained.BlockedUntil, text, last.Add(every))
			}
		}
		now = now.Add(every / 2)
	}
	loop.Pass(context.Background())
	now = now.Add(every / 2)
	change := func(limit time.Duration, want int) {
		every = limit
		for key := range groups {
			state.TouchGroup(key)
		}
		loop.Pass(context.Background())
		if started != want {
			t.Errorf("with the new limit %s %d creates were started, want %d", every, started, want)
		}
	}
	change(time.Second, 5)
	change(0, 6)
}

// TestCreatesAreBounded checks the limit of running creates, however many instances are missing. When creates end,
// others start, until all instances are requested.
func TestCreatesAreBounded(t *testing.T) {
	const size, most = 600, 128
	inBubble(t, size, func(t *testing.T, s *shard) {
		var asked atomic.Int64
		s.answer(func(call mock.Call) mock.Outcome {
			if call.Kind != mock.Create {
				return mock.Outcome{}
			}
			asked.Add(1)
			return mock.Outcome{Latency: time.Second}
		})
		ctx, cancel := context.WithCancel(t.Context())
		s.env.Go("loop", func() { _ = s.Loop.Run(ctx, s.wake) })
		var high, before int64
		for range 20 {
			synctest.Wait()
			now := asked.Load()
			if high = max(high, now-before); now == size {
				break
			}
			before = now
			time.Sleep(time.Second) // fake time, in which the running creates end
		}
		if high != most {
			t.Errorf("%d creates in flight, want %d", high, most)
		}
		if n := asked.Load(); n != size {
			t.Errorf("%d creates were asked for, want %d", n, size)
		}
		cancel()
	})
}

// TestReportsInTimeArePlannedOnce checks that nothing is planned while all instances of a group report in time, even
// though each report changes which instance must report next. It also checks that the leader asks the provider about an
// instance when its report is overdue.
func TestReportsInTimeArePlannedOnce(t *testing.T) {
	const instances, interval = 20, time.Minute
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	key := config.GroupKey{Tenant: ident.DefaultTenant, Group: "a"}
	state := shardstate.New(shardstate.Options{Term: 1, Now: func() time.Time {
		return now
	}, Wake: func() {}})
	state.Configure((&config.Shard{}).WithDefaults(),
		map[config.GroupKey]config.Group{key: {GroupKey: key, Kind: "wrk", Size: instances, MaxSurge: 1,
			MaxUnhealthy: config.Limit{Value: 40, Percent: true}}})
	if every := state.Settings().HealthInterval; every != interval {
		t.Fatalf("reports are expected every %s, not %s", every, interval)
	}
	plans, passes := 0, 0
	var started []string
	env := tasks.Env{Now: func() time.Time {
		return now
	}, Go: func(name string, _ func()) { started = append(started, name) }}
	loop := &leader.Loop{Executor: &execute.Executor{State: state, Log: slog.New(slog.DiscardHandler), Env: env},
		Planned: func(time.Duration) { plans++ }, CreateEvery: func() time.Duration { return 0 }}
	loop.Asker = &shardstate.Asker{State: state, Env: env}

	ids, streams := make([]ident.ID, instances), make([]uint64, instances)
	for n := range ids {
		id, err := ident.NewID("wrk", now.Add(time.Duration(n)), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		ids[n] = id
		state.PutRecord(record.Instance{ID: id, State: record.Registered, Tenant: key.Tenant, Group: key.Group,
			CreatedAt: now, RegisteredAt: now,
			ProviderID: "vm-" + id.String()}, "1")
		streams[n], _ = state.Connected(id)
		state.Reported(id, streams[n], shardstate.Report{Healthy: true})
	}
	next := loop.Pass(t.Context())
	// The instances report one after the other, spread over the interval. The loop runs a pass whenever one is due.
	began := now
	play := func(d time.Duration, mute int) {
		for end := now.Add(d); now.Before(end); {
			now = now.Add(interval / instances)
			for ; !next.IsZero() && !next.After(now) && passes < 10000; passes++ {
				at := now
				now = next
				next = loop.Pass(t.Context())
				now = at
			}
			if n := int(now.Sub(began)/(interval/instances)) % instances; n != mute {
				state.Reported(ids[n], streams[n], shardstate.Report{Healthy: true})
			}
		}
	}
	before := plans
	play(10*interval, -1)
	if plans != before {
		t.Errorf("%d plans while everything was well", plans-before)
	}
	if passes > 15*10 {
		t.Errorf("%d looks in ten intervals", passes)
	}
	play(interval, 0) // instance 0 reported last
	if plans != before || len(started) > 0 {
		t.Errorf("%d plans, started %q before a report was missed", plans-before, started)
	}
	play(interval/5, 0)
	if plans == before || !slices.Equal(started, []string{"ask the provider"}) {
		t.Errorf("%d plans, started %q after a report was missed, want one question to the provider", plans-before,
			started)
	}
}
