package plan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/proof/plantest"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// spare makes an instance a warm spare.
func spare(i plan.Instance) plan.Instance { i.Spare = true; return i }

// olderSpare returns a ready spare that was launched d before the others.
func olderSpare(d time.Duration) plan.Instance {
	return spare(with(func(i *plan.Instance) { i.LaunchedAt = i.LaunchedAt.Add(-d) }))
}

// TestRules77To81Spares checks which spares become members, and how the pool of spares is kept.
func TestRules77To81Spares(t *testing.T) {
	wants := func(n int) func(*plan.Snapshot) {
		return func(s *plan.Snapshot) { s.Group.Spares.Count = n }
	}
	two := wants(2)
	and := func(changes ...func(*plan.Snapshot)) func(*plan.Snapshot) {
		return func(s *plan.Snapshot) {
			for _, change := range changes {
				change(s)
			}
		}
	}
	backoff := func(s *plan.Snapshot) { s.Backoff = plan.Backoff{Failures: 1, Last: s.Now} }
	promoting := spare(with(func(i *plan.Instance) { i.Work = plan.Promoting }))
	spot := func(s *plan.Snapshot) { s.Group.Purchase.SpotPercent = 100 }
	spotSpare := spare(with(func(i *plan.Instance) { i.Spot = true }))
	silentSpare, driftedSpare := spare(silent()), spare(drifted())
	for _, c := range []struct {
		name      string
		size      int
		instances []plan.Instance
		change    func(*plan.Snapshot)
		want      []string
	}{
		{name: "complete", size: 2,
			instances: []plan.Instance{well(), well(), spare(well()), spare(well())}, change: two},
		{name: "none yet", size: 1, instances: []plan.Instance{well()}, change: two,
			want: []string{"create spare", "create spare"}},
		{name: "one is being created", size: 1, instances: []plan.Instance{well(), spare(creating())}, change: two,
			want: []string{"create spare"}},
		{name: "a create has no ID yet", size: 1, instances: []plan.Instance{well()},
			change: and(two, func(s *plan.Snapshot) { s.PendingSpares = 1 }), want: []string{"create spare"}},
		{name: "a lost member", size: 2,
			instances: []plan.Instance{well(), lost(), spare(well()), olderSpare(time.Hour)},
			change:    two,
			want:      []string{"promote i4 for i2", "create spare", "mark_deleting i2 gone"}},
		{name: "a lost member while the group backs off", size: 2,
			instances: []plan.Instance{well(), lost(), spare(well())}, change: and(two, backoff),
			want: []string{"promote i3 for i2", "mark_deleting i2 gone", "raise_error backoff"}},
		{name: "more are lost than there are spares", size: 3, instances: []plan.Instance{lost(), lost(), lost(),
			spare(well())}, change: wants(1), want: []string{"promote i4 for i1", "create for i2", "create for i3",
			"create spare", "mark_deleting i1 gone", "mark_deleting i2 gone", "mark_deleting i3 gone"}},
		{name: "it becomes a member already", size: 2, instances: []plan.Instance{well(), lost(), promoting,
			spare(well())}, change: two, want: []string{"create spare", "mark_deleting i2 gone"}},
		{name: "a larger size", size: 2, instances: []plan.Instance{well(), spare(well())}, change: wants(1),
			want: []string{"promote i2", "create spare"}},
		{name: "no budget for creates", size: 2, instances: []plan.Instance{lost(), spare(well())},
			change: and(two, func(s *plan.Snapshot) { s.CreateBudget = 0 }),
			want:   []string{"promote i2 for i1", "mark_deleting i1 gone"}},
		{name: "the lack before the pool", size: 3, instances: []plan.Instance{well()},
			change: and(two, func(s *plan.Snapshot) { s.CreateBudget = 2 }), want: []string{"create", "create"}},
		{name: "a silent member", size: 2,
			instances: []plan.Instance{well(), silent(), spare(well())}, change: wants(1),
			want: []string{"promote i3 for i2", "create spare"}},
		{name: "a wave", size: 2, instances: []plan.Instance{drifted(), drifted(), spare(well())}, change: wants(1),
			want: []string{"promote i3 for i1", "create spare"}},
		{name: "a wave of spot instances", size: 1, instances: []plan.Instance{drifted(), spare(well())},
			change: and(wants(1), spot), want: []string{"create for i1"}},
		{name: "a lost spot instance", size: 1, instances: []plan.Instance{lost(), spare(well()), spotSpare},
			change: and(two, spot), want: []string{"promote i3 for i1", "create spare", "mark_deleting i1 gone"}},
		{name: "a lost spot instance, without a spot spare", size: 1, instances: []plan.Instance{lost(), spare(well())},
			change: and(wants(1), spot), want: []string{"create for i1", "mark_deleting i1 gone"}},
		{name: "a lost spot instance, and on-demand ones may take its place", size: 1,
			instances: []plan.Instance{lost(), spare(well())}, change: and(wants(1), spot, func(s *plan.Snapshot) {
				s.Group.Purchase.Fallback = config.FallbackOnDemand
			}), want: []string{"promote i2 for i1", "create spare", "mark_deleting i1 gone"}},
		{name: "no spare that is ready", size: 3,
			instances: []plan.Instance{well(), well(), spare(booting()), driftedSpare},
			change:    two, want: []string{"create"}},
		{name: "its promotion failed just now", size: 1, instances: []plan.Instance{spare(with(func(i *plan.Instance) {
			i.Failed = plan.Failure{At: now, Count: 1}
		}))}, change: wants(1), want: []string{"create"}},
		{name: "an outdated spare", size: 1, instances: []plan.Instance{well(), driftedSpare}, change: wants(1),
			want: []string{"create spare"}},
		{name: "an outdated spare, renewed", size: 1, instances: []plan.Instance{well(), driftedSpare, spare(well())},
			change: wants(1), want: []string{"mark_deleting i2 drift +1m0s"}},
		{name: "outdated spares, one at a time", size: 1,
			instances: []plan.Instance{well(), driftedSpare, spare(drifted()),
				spare(booting())}, change: two},
		{name: "an outdated spare in a halted group", size: 2, instances: []plan.Instance{well(), well(), driftedSpare},
			change: and(wants(1), func(s *plan.Snapshot) {
				s.Group.Rollout.HaltOnFailures, s.RolloutFailures = 1, 1
			})},
		{name: "an aged spare", size: 1, instances: []plan.Instance{well(), olderSpare(24 * time.Hour)},
			change: and(wants(1), func(s *plan.Snapshot) { s.Group.Spares.MaxAge = config.Duration(24 * time.Hour) }),
			want:   []string{"create spare"}},
		{name: "a protected spare does not age", size: 1,
			instances: []plan.Instance{well(), olderSpare(24 * time.Hour)},
			change: and(wants(1), func(s *plan.Snapshot) {
				s.Group.Spares.MaxAge, s.Group.Protected = config.Duration(24*time.Hour), []ident.ID{id(2)}
			})},
		{name: "a silent spare", size: 1, instances: []plan.Instance{well(), silentSpare}, change: wants(1),
			want: []string{"create spare"}},
		{name: "a silent spare while the guard holds", size: 1, instances: []plan.Instance{well(), silentSpare},
			change: and(wants(1), func(s *plan.Snapshot) { s.Shard = plan.ShardHealth{Running: 9, Silent: 9} })},
		{name: "a lost spare", size: 1, instances: []plan.Instance{well(), spare(lost())}, change: wants(1),
			want: []string{"create spare", "mark_deleting i2 gone"}},
		{name: "fewer spares are wanted", size: 1,
			instances: []plan.Instance{well(), spare(well()), olderSpare(time.Hour),
				driftedSpare}, change: wants(1),
			want: []string{"mark_deleting i3 scale_down +1m0s", "mark_deleting i4 drift +1m0s"}},
		{name: "no spares are wanted", size: 1, instances: []plan.Instance{well(), spare(well()), spare(booting())},
			want: []string{"mark_deleting i2 scale_down +1m0s", "mark_deleting i3 scale_down +1m0s"}},
		{name: "a protected spare", size: 1, instances: []plan.Instance{well(), spare(well())},
			change: func(s *plan.Snapshot) { s.Group.Protected = []ident.ID{id(2)} }},
		{name: "size 0", size: 0, instances: []plan.Instance{spare(well())}, change: wants(1),
			want: []string{"mark_deleting i1 scale_down +1m0s"}},
		{name: "a deleted group", size: 1, instances: []plan.Instance{spare(well())},
			change: and(wants(1), func(s *plan.Snapshot) { s.Group.Deleted = true }),
			want:   []string{"mark_deleting i1 group_deleted +1m0s"}},
		{name: "failed creations of spares delay only these", size: 2, instances: []plan.Instance{well()},
			change: and(two, func(s *plan.Snapshot) { s.SpareBackoff = plan.Backoff{Failures: 1, Last: s.Now} }),
			want:   []string{"create", "raise_error backoff"}},
		{name: "then they go on one by one", size: 1, instances: []plan.Instance{well()},
			change: and(two, func(s *plan.Snapshot) {
				s.SpareBackoff = plan.Backoff{Failures: 1, Last: ago(time.Minute)}
			}),
			want: []string{"create spare", "raise_error backoff"}},
		{name: "it joins no load balancer", size: 1, instances: []plan.Instance{with(func(i *plan.Instance) {
			i.InLoadBalancers = true
		}), spare(well())}, change: and(wants(1), balanced)},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := snapshot(c.size, c.instances...)
			if c.change != nil {
				c.change(&s)
			}
			lines, d := planned(s)
			if err := plantest.Check(s, d); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(c.want, lines); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSpareBecomesMember checks what a promotion makes of what the leader knows of an instance.
func TestSpareBecomesMember(t *testing.T) {
	rec := record.Instance{ID: id(1), State: record.Registered, RegisteredAt: ago(time.Hour), Spare: &record.Spare{}}
	next := rec
	if !plan.RequestPromote(&next, now) || plan.RequestPromote(&next, now.Add(time.Hour)) ||
		!next.Spare.PromotedAt.Equal(now) || !rec.IsSpare() {
		t.Errorf("%+v, before %+v", next.Spare, rec.Spare)
	}
	for _, state := range []record.State{record.Created, record.Deleting} {
		if other := (record.Instance{State: state, Spare: &record.Spare{}}); plan.RequestPromote(&other, now) {
			t.Errorf("it is promoted in state %s", state)
		}
	}
	healthy := plan.Report{Healthy: true, Role: plan.RoleSpare}
	i, _ := plan.ApplyReport(plan.ApplyRecord(plan.Instance{}, &rec, &rec, now), healthy, now)
	if !i.Spare || !i.Healthy {
		t.Fatalf("%+v", i)
	}
	i = plan.ApplyRecord(i, &rec, &next, now)
	if i, _ = plan.ApplyReport(i, healthy, now); i.Healthy || i.Spare || !i.PromotedAt.Equal(now) {
		t.Errorf("the agent has the role of a spare, and counts as healthy: %+v", i)
	}
	healthy.Role = plan.RoleMember
	if i, effect := plan.ApplyReport(i, healthy, now); !i.Healthy || !effect.Recovered || effect.EndsBackoff {
		t.Errorf("%+v, %+v", i, effect)
	}
	old, _ := plan.ApplyReport(plan.ApplyRecord(plan.Instance{}, &rec, &rec, now), plan.Report{Healthy: true}, now)
	if old = plan.ApplyRecord(old, &rec, &next, now); !old.Healthy {
		t.Error("an agent that knows no roles is no longer healthy")
	}
}

// TestSparesInWords checks what a group with spares waits for.
func TestSparesInWords(t *testing.T) {
	say := func(instances ...plan.Instance) string {
		s := snapshot(1, instances...)
		s.Group.Spares.Count = 1
		return plan.Explain(s).Says.Words(now)
	}
	if text := say(well(), spare(well())); text != "the instance is healthy and up to date; 1 spare ready" {
		t.Error(text)
	}
	if text := say(lost(), spare(well())); !strings.Contains(text, "becomes a member") {
		t.Error(text)
	}
	if text := say(well(), spare(drifted())); !strings.Contains(text, "is deleted when its replacement is healthy") {
		t.Error(text)
	}
	s := snapshot(1, well(), spare(well()))
	s.Group.Spares.Count = 1
	if v := plan.Explain(s).Verdicts[1]; v.Rule != 77 || !strings.Contains(v.Wait.Words(now), "a spare, and ready") {
		t.Errorf("%+v", v)
	}
}
