package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/act/scale"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// TestScaledSizeIsStored checks that the next leader goes on from the size that a leader has chosen, and that an
// operator can hold the size.
func TestScaledSizeIsStored(t *testing.T) {
	r := newTestShard(t)
	r.configure(func(doc map[string]any) {
		doc["groups"] = map[string]any{"default": map[string]any{"g": map[string]any{"template": "t", "size": 1,
			"scaling": map[string]any{"max": 5,
				"metrics": []any{map[string]any{"cpu": map[string]any{"target": "50%"}}}}}}}
	})
	key := config.GroupKey{Tenant: "default", Group: "g"}
	p := r.start(testKey)
	p.await("a VM", func() bool { return r.running() == 1 })
	if err := scale.Store(t.Context(), p.server.manager, key, 3, time.Now()); err != nil {
		t.Fatal(err)
	}
	p.await("three VMs", func() bool { return r.running() == 3 })
	_ = p.end()

	next := r.start(testKey)
	next.await("a leader", func() bool { return next.server.leading.Load() != nil })
	if g := next.server.manager.Groups()[key]; g.Size != 3 || g.SizeHeld {
		t.Errorf("the next leader has the size %d, held %t", g.Size, g.SizeHeld)
	}
	two := 2
	_, err := next.server.manager.Upsert(t.Context(), key, "", config.Caller{Name: "alice", Pinned: true,
		Sets: []string{"size"}}, func(spec *config.GroupSpec, _ bool) error { spec.Size = &two; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := scale.Store(t.Context(), next.server.manager, key, 5, time.Now()); !errors.Is(err, scale.ErrHeld) {
		t.Errorf("a size that an operator pinned: %v", err)
	}
	gone := config.GroupKey{Tenant: "default", Group: "gone"}
	if err := scale.Store(t.Context(), next.server.manager, gone, 5, time.Now()); err == nil {
		t.Error("a group that does not exist was resized")
	}
	_ = next.end()
}

// choose lets the agents report a share of their processors to the leader, and lets it choose sizes three times.
func (p *run) choose(share float32, agents ...testAgent) {
	t := p.testShard.t
	t.Helper()
	p.await("a leader", func() bool { return p.server.leading.Load() != nil })
	l := p.server.leading.Load()
	for _, a := range agents {
		stream, ok := l.leader.State.Connected(a.id)
		if !ok || !l.leader.State.Reported(a.id, stream, shardstate.Report{Healthy: true,
			Metrics: shardstate.Metrics{CPU: share, MemoryTotal: 1}}) {
			t.Fatalf("the leader does not know %s", a.id)
		}
	}
	env, wait := tasks.Real()
	now, left := time.Now(), 3
	env.Now = func() time.Time { return now }
	env.Sleep = func(context.Context, time.Duration) error {
		if left == 0 {
			return context.Canceled
		}
		left, now = left-1, now.Add(plan.ScalingEvery)
		return nil
	}
	_ = p.server.scaleGroups(t.Context(), l, env)
	wait()
}

// TestScalingSurvivesLeaders kills a leader while a group grows. The next leader goes on from the last size: it does
// not shrink the group, although its first numbers are small, and the group grows when the numbers ask for it.
func TestScalingSurvivesLeaders(t *testing.T) {
	r := newTestShard(t)
	provider := nonceProvider{r.provider, make(chan string, 9), make(chan ident.ID, 9)}
	r.changeCloud(func(c *infra.Cloud) {
		c.Open = func(context.Context, infra.Env) (infra.Provider, error) { return provider, nil }
	})
	type object = map[string]any
	r.configure(func(doc object) {
		server := doc["server"].(object)
		server["check_registration_address"] = false
		server["leader_election"] = object{"lease_duration": "4s", "renew_interval": "1s", "peer_lease": "0s"}
		doc["groups"] = map[string]any{"default": map[string]any{"g": map[string]any{"template": "t", "size": 1,
			"scaling": map[string]any{"max": 9,
				"metrics": []any{map[string]any{"cpu": map[string]any{"target": "50%"}}}}}}}
	})
	size := func(p *run) int {
		return p.server.manager.Groups()[config.GroupKey{Tenant: "default", Group: "g"}].Size
	}
	p, kill := r.startKillable(testKey)
	p.await("a leader", func() bool { return p.server.leading.Load() != nil })
	first := r.registerAgent(p, provider)
	p.choose(1, first)
	if got := size(p); got != 2 {
		t.Fatalf("at 100 %% of 50 %%: size %d, want 2", got)
	}
	p.await("a second VM", func() bool { return r.running() == 2 })
	kill()

	next := r.start(testKey)
	next.choose(0.01, first)
	if got := size(next); got != 2 || r.running() != 2 {
		t.Fatalf("the next leader has the size %d and %d VMs, want 2", got, r.running())
	}
	second := r.registerAgent(next, provider)
	next.choose(1, first, second)
	if got := size(next); got != 4 {
		t.Errorf("when both are at 100 %% of 50 %%: size %d, want 4", got)
	}
	next.await("four VMs", func() bool { return r.running() == 4 })
	_ = next.end()
}
