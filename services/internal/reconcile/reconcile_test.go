package reconcile_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/observe"
	"github.com/nstance-kit/nstance/services/internal/plan"
	"github.com/nstance-kit/nstance/services/internal/reconcile"
	"github.com/nstance-kit/nstance/services/internal/tasks"
)

// create_rate_limit spaces creates, over all groups.
func TestCreateEvery(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	world := observe.New(observe.Options{Cluster: "c", Shard: "s", Term: 1, Now: func() time.Time { return now }, Wake: func() {}})
	groups := map[config.GroupKey]config.Group{}
	for _, name := range []string{"a", "b"} {
		key := config.GroupKey{Tenant: ident.DefaultTenant, Group: name}
		groups[key] = config.Group{GroupKey: key, Kind: "wrk", Size: 2, MaxSurge: 1}
	}
	world.Configure((&config.Shard{}).WithDefaults(), groups)
	started := 0
	every := time.Minute
	loop := &reconcile.Loop{
		World: world, Log: slog.New(slog.DiscardHandler),
		// Creates are started and never end.
		Env:         tasks.Env{Now: func() time.Time { return now }, Go: func(string, func()) {}},
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
		now = now.Add(every / 2)
		loop.Pass(context.Background())
		if started != want {
			t.Fatalf("half a pause later %d creates were started, want %d", started, want)
		}
		now = now.Add(every / 2)
	}
	every = 0
	world.TouchAll()
	loop.Pass(context.Background())
	if started != 4 {
		t.Errorf("without a limit %d creates were started, want 4", started)
	}
}
