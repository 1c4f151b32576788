package plan_test

import (
	"bytes"
	"fmt"
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

var now = plantest.Epoch

func ago(d time.Duration) time.Time { return now.Add(-d) }

// snapshot returns a group of the given size with the given instances, which are named i1, i2 and so on.
func snapshot(size int, instances ...plan.Instance) plan.Snapshot {
	for n := range instances {
		instances[n].ID = id(n + 1)
	}
	return plan.Snapshot{
		Now: now, Term: 1, LeaderSince: ago(time.Hour), ServingSince: ago(time.Hour),
		SilenceFrom: ago(time.Hour), CreateBudget: -1,
		Operators: true,
		Instances: instances,
		Settings: plan.Settings{HealthInterval: time.Minute, RegistrationTimeout: 5 * time.Minute,
			Retention:       30 * time.Minute,
			CollectInterval: 2 * time.Minute},
		Group: config.Group{GroupKey: config.GroupKey{Tenant: "default", Group: "workers"}, Size: size, MaxSurge: 1,
			MaxUnhealthy: config.Limit{Value: 40, Percent: true}, DrainTimeout: config.Duration(time.Minute),
			InfraHash: "v1", RuntimeHash: "r1"},
	}
}

func id(n int) ident.ID {
	made, err := ident.NewID("knd", now.Add(time.Duration(n)*time.Second), bytes.NewReader(make([]byte, 16)))
	if err != nil {
		panic(err)
	}
	return made
}

// with returns a healthy instance that is one hour old, after applying change to it.
func with(change func(*plan.Instance)) plan.Instance {
	i := plan.Instance{State: record.Registered, CreatedAt: ago(time.Hour), LaunchedAt: ago(time.Hour),
		RegisteredAt: ago(59 * time.Minute),
		InfraHash:    "v1", RuntimeHash: "r1", ProviderID: "vm", Provider: observed(plan.ProviderRunning),
		Healthy:     true,
		EverHealthy: true,
		LastReport:  ago(10 * time.Second), Connected: true}
	if change != nil {
		change(&i)
	}
	return i
}

func observed(state plan.ProviderState) plan.Observed[plan.ProviderState] {
	return plan.Observed[plan.ProviderState]{Value: state, Complete: true, At: ago(time.Second)}
}

func well() plan.Instance { return with(nil) }

func older(d time.Duration) plan.Instance {
	return with(func(i *plan.Instance) { i.LaunchedAt = i.LaunchedAt.Add(-d) })
}

func silent() plan.Instance {
	return with(func(i *plan.Instance) {
		i.LastReport, i.Connected, i.LostAt = ago(10*time.Minute), false, ago(10*time.Minute)
	})
}

func drifted() plan.Instance { return with(func(i *plan.Instance) { i.InfraHash = "v0" }) }

func booting() plan.Instance {
	return plan.Instance{State: record.Created, CreatedAt: ago(time.Minute), LaunchedAt: ago(time.Minute),
		InfraHash: "v1", ProviderID: "vm",
		Provider: observed(plan.ProviderRunning)}
}

func creating() plan.Instance {
	return plan.Instance{State: record.Reserved, Work: plan.Creating, CreatedAt: ago(time.Second), InfraHash: "v1"}
}

func lost() plan.Instance {
	return with(func(i *plan.Instance) { i.Provider = observed(plan.ProviderGone); i.Connected = false })
}

func deleting(change func(*plan.Instance)) plan.Instance {
	return with(func(i *plan.Instance) {
		i.State, i.DeletingAt, i.DeleteDeadline, i.DeleteReason = record.Deleting, ago(time.Second),
			now.Add(time.Minute), "a reason"
		if change != nil {
			change(i)
		}
	})
}

func onDemand(i plan.Instance) plan.Instance { i.OnDemand = true; return i }

// planned returns one short line for each planned action, and the decision.
func planned(s plan.Snapshot) (lines []string, d plan.Decision) {
	d = plan.Next(s)
	name := func(of ident.ID) string {
		for n := range s.Instances {
			if s.Instances[n].ID == of {
				return fmt.Sprintf("i%d", n+1)
			}
		}
		return of.String()
	}
	for _, a := range d.Actions {
		parts := []string{string(a.Kind)}
		if !a.Instance.IsZero() {
			parts = append(parts, name(a.Instance))
		}
		if !a.Replaces.IsZero() {
			parts = append(parts, "for "+name(a.Replaces))
		}
		if a.Spare {
			parts = append(parts, "spare")
		}
		if a.Kind != plan.Create && a.Kind != plan.Promote {
			parts = append(parts, string(a.Cause)+string(a.Alert))
		}
		if !a.Deadline.IsZero() {
			parts = append(parts, "+"+a.Deadline.Sub(now).String())
		}
		lines = append(lines, strings.Join(strings.Fields(strings.Join(parts, " ")), " "))
	}
	return lines, d
}

func TestRules(t *testing.T) {
	for _, c := range []struct {
		name     string
		snapshot plan.Snapshot
		change   func(*plan.Snapshot)
		want     []string
		wake     time.Duration // 0: not checked; negative: none
		blocked  string
	}{
		{name: "nothing to do; the next missed report", snapshot: snapshot(2, well(), well()), wake: 56 * time.Second},
		{name: "an empty group of size zero", snapshot: snapshot(0), wake: -1},

		// Scaling up.
		{name: "creates what is missing", snapshot: snapshot(3, well()), want: []string{"create", "create"}},
		{name: "creates under way count", snapshot: snapshot(4, well(), creating()),
			change: func(s *plan.Snapshot) { s.PendingCreates = 2 }},
		{name: "a create budget", snapshot: snapshot(9), want: []string{"create", "create"},
			blocked: "the limit of concurrent creates of the shard is reached",
			wake:    30 * time.Second,
			change:  func(s *plan.Snapshot) { s.CreateBudget, s.CreateBudgetAt = 2, now.Add(30*time.Second) }},
		{name: "a create budget with an unknown rate", snapshot: snapshot(1),
			blocked: "the limit of concurrent creates of the shard is reached",
			wake:    time.Second, change: func(s *plan.Snapshot) { s.CreateBudget = 0 }},
		{name: "create_rate_limit", snapshot: snapshot(3), want: []string{"create"}, wake: 90 * time.Second,
			blocked: "create_rate_limit allows 1 create per 1m30s in the shard, and it is used",
			change: func(s *plan.Snapshot) {
				s.CreateBudget, s.CreateBudgetAt, s.CreateEvery = 1, now.Add(90*time.Second), 90*time.Second
			}},
		{name: "a negative size is none", snapshot: snapshot(-1)},

		// Scaling down.
		{name: "the oldest go", snapshot: snapshot(1, well(), older(time.Minute), older(2*time.Minute)),
			want: []string{"mark_deleting i3 scale_down +1m0s", "mark_deleting i2 scale_down +1m0s"}},
		{name: "unhealthy first, then never registered, then the oldest",
			snapshot: snapshot(2, older(time.Hour), booting(), silent(), well(), well()),
			want: []string{"mark_deleting i3 scale_down +1m0s", "mark_deleting i1 scale_down +1m0s",
				"mark_deleting i2 scale_down +1m0s"}},
		{name: "rule 44: the instance that an operator chose, and no other",
			snapshot: snapshot(2, older(time.Hour), booting(), well()),
			change:   func(s *plan.Snapshot) { s.Group.Removed = []ident.ID{s.Instances[2].ID} },
			want:     []string{"mark_deleting i3 requested +1m0s"}},
		{name: "rule 44: without a surplus the chosen instance is deleted and replaced",
			snapshot: snapshot(2, older(time.Hour), well()),
			change:   func(s *plan.Snapshot) { s.Group.Removed = []ident.ID{s.Instances[1].ID} },
			want:     []string{"create", "mark_deleting i2 requested +1m0s"}},
		{name: "rule 44: a chosen instance whose create is under way is waited for",
			snapshot: snapshot(1, well(), creating()),
			change:   func(s *plan.Snapshot) { s.Group.Removed = []ident.ID{s.Instances[1].ID} }},
		{name: "rule 54: a scale-down spares a protected instance", snapshot: snapshot(1, older(time.Hour), well()),
			change: func(s *plan.Snapshot) { s.Group.Protected = []ident.ID{s.Instances[0].ID} },
			want:   []string{"mark_deleting i2 scale_down +1m0s"}},
		{name: "rule 54: if all are protected, none goes", snapshot: snapshot(1, older(time.Hour), well()),
			blocked: "the group is larger than its size, and its other instances are protected",
			change: func(s *plan.Snapshot) {
				s.Group.Protected = []ident.ID{s.Instances[0].ID, s.Instances[1].ID}
			}},
		{name: "rule 54: an unready instance is protected too", snapshot: snapshot(1, well(), booting()),
			change: func(s *plan.Snapshot) { s.Group.Protected = []ident.ID{s.Instances[1].ID} }},
		{name: "rule 54: a protected instance is neither drifted nor aged",
			snapshot: snapshot(2, drifted(), older(48*time.Hour)),
			change: func(s *plan.Snapshot) {
				s.Settings.EligibleAge = 24 * time.Hour
				s.Group.Protected = []ident.ID{s.Instances[0].ID, s.Instances[1].ID}
			}},
		{name: "rule 54: a protected instance that is drifted is no canary",
			snapshot: snapshot(3, drifted(), drifted(), drifted()),
			change: func(s *plan.Snapshot) {
				s.Group.MaxSurge, s.Group.Rollout.Canary = 2, 1
				s.Group.Protected = []ident.ID{s.Instances[0].ID}
			}, want: []string{"create for i2"}},
		{name: "rule 54: a silent instance is replaced all the same", snapshot: snapshot(1, silent(), well()),
			change: func(s *plan.Snapshot) { s.Group.Protected = []ident.ID{s.Instances[0].ID} },
			want:   []string{"mark_deleting i1 unhealthy +1m0s"}},
		{name: "rule 54: a group that is deleted protects nothing", snapshot: snapshot(1, well()),
			change: func(s *plan.Snapshot) {
				s.Group.Deleted = true
				s.Group.Protected = []ident.ID{s.Instances[0].ID}
			}, want: []string{"mark_deleting i1 group_deleted +1m0s"}},
		{name: "never registered before the oldest", snapshot: snapshot(2, older(time.Hour), booting(), well()),
			want: []string{"mark_deleting i2 scale_down +1m0s"}},
		{name: "a create under way is what goes: it is waited for", snapshot: snapshot(2, older(time.Hour), well(),
			creating())},
		{name: "a create without ID is what goes", snapshot: snapshot(2, older(time.Hour), well()),
			change: func(s *plan.Snapshot) { s.PendingCreates = 1 }},
		{name: "intents under way count", snapshot: snapshot(1, well(), with(func(i *plan.Instance) {
			i.Work = plan.MarkingDeleting
		}), deleting(nil)),
			want: []string{"drain i3 +1m0s"}},
		{name: "an intent that failed keeps its place and waits", snapshot: snapshot(1, well(),
			with(func(i *plan.Instance) {
				i.LaunchedAt = ago(2 * time.Hour)
				i.Failed = plan.Failure{At: now, Count: 1}
			})), wake: 997 * time.Millisecond},
		{name: "one that is doomed anyway goes before one that stays",
			snapshot: snapshot(2, older(time.Hour), drifted(), well()),
			want:     []string{"mark_deleting i2 drift +1m0s"}},
		{name: "a group that drifted as a whole", snapshot: snapshot(1, drifted(), drifted()),
			want: []string{"mark_deleting i1 scale_down +1m0s"}},
		{name: "no drain without drain time-out", snapshot: snapshot(0, well()),
			want:   []string{"mark_deleting i1 scale_down"},
			change: func(s *plan.Snapshot) { s.Group.DrainTimeout = 0 }},
		{name: "a new leader waits for instances that have not reported", snapshot: snapshot(1, unheard(), unheard()),
			wake:    4 * time.Minute,
			change:  func(s *plan.Snapshot) { s.SilenceFrom, s.LeaderSince = time.Time{}, ago(time.Minute) },
			blocked: "waiting for the agents to report before removing any"},
		{name: "but not for ever", snapshot: snapshot(1, unheard(), unheard()),
			want:   []string{"mark_deleting i1 scale_down +1m0s"},
			change: func(s *plan.Snapshot) { s.SilenceFrom, s.LeaderSince = time.Time{}, ago(5*time.Minute) }},
		{name: "nor on the way to zero", snapshot: snapshot(0, unheard()),
			want:   []string{"mark_deleting i1 scale_down +1m0s"},
			change: func(s *plan.Snapshot) { s.SilenceFrom, s.LeaderSince = time.Time{}, ago(time.Minute) }},
		{name: "drifted instances that boot do not hold a surplus twice",
			snapshot: snapshot(0, driftedBooting(), driftedBooting()),
			want:     []string{"mark_deleting i2 scale_down +1m0s", "mark_deleting i1 scale_down +1m0s"}},
		{name: "surplus booting instances, some drifted", snapshot: snapshot(1, driftedBooting(), driftedBooting(),
			booting()),
			want: []string{"mark_deleting i3 scale_down +1m0s"}},
		{name: "a surplus that only a drifted one excused goes with it",
			snapshot: snapshot(1, booting(), booting(), driftedBooting()),
			want:     []string{"mark_deleting i3 scale_down +1m0s", "mark_deleting i2 scale_down +1m0s"}},
		{name: "of those that are not well the drifted first", snapshot: snapshot(1, well(), notWell(2*time.Hour, "v1"),
			notWell(time.Hour, "v0")),
			want: []string{"mark_deleting i3 drift +1m0s", "mark_deleting i2 scale_down +1m0s"}},

		// Lost instances.
		{name: "gone", snapshot: snapshot(2, lost(), well()), want: []string{"create for i1", "mark_deleting i1 gone"}},
		{name: "gone according to an incomplete list", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.Provider = plan.Observed[plan.ProviderState]{Value: plan.ProviderGone, At: now}
		}))},
		{name: "stopped", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.Provider = observed(plan.ProviderStopped)
		})),
			want: []string{"create for i1", "mark_deleting i1 gone"}},
		{name: "going", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.Provider = observed(plan.ProviderGoing)
		})),
			want: []string{"create for i1", "mark_deleting i1 gone"}},
		{name: "all together, no surge", snapshot: snapshot(3, lost(), lost(), lost()),
			want: []string{"create for i1", "create for i2", "create for i3",
				"mark_deleting i1 gone", "mark_deleting i2 gone", "mark_deleting i3 gone"}},
		{name: "gone in a group that is too large anyway", snapshot: snapshot(1, lost(), well()),
			want: []string{"mark_deleting i1 gone"}},
		{name: "a spot notice", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.Notice, i.NoticeDeadline = true, now.Add(40*time.Second)
		})),
			want: []string{"create for i1", "mark_deleting i1 notice +40s"}},
		{name: "a spot notice for the year 9999 lengthens no drain", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.Notice, i.NoticeDeadline = true, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
		})),
			want: []string{"create for i1", "mark_deleting i1 notice +1m0s"}},
		{name: "a spot notice for 1960 means now", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.Notice, i.NoticeDeadline = true, time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC)
		})),
			want: []string{"create for i1", "mark_deleting i1 notice +0s"}},
		{name: "a spot notice without deadline", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.Notice = true
		})),
			want: []string{"create for i1", "mark_deleting i1 notice +1m0s"}},
		{name: "a spot notice, no drain time-out", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.Notice, i.NoticeDeadline = true, now.Add(2*time.Minute)
		})),
			want: []string{"create for i1", "mark_deleting i1 notice"}, change: func(s *plan.Snapshot) {
				s.Group.DrainTimeout = 0
			}},
		{name: "power off, no grace: the provider is not asked", snapshot: snapshot(1, poweringOff(0)),
			want: []string{"create for i1", "mark_deleting i1 power_off +1m0s"}},
		{name: "power off, within the grace: asked", snapshot: snapshot(1, poweringOff(0)), want: []string{"ask i1"},
			wake:   30 * time.Second,
			change: graceOf(30 * time.Second)},
		{name: "power off, within the grace: it still runs, asked again later",
			snapshot: snapshot(1, poweringOff(10*time.Second)),
			wake:     8 * time.Second, change: graceOf(30 * time.Second)},
		{name: "power off, within the grace: stopping", snapshot: snapshot(1, func() plan.Instance {
			i := poweringOff(10 * time.Second)
			i.Provider = observed(plan.ProviderGoing)
			return i
		}()), want: []string{"create for i1", "mark_deleting i1 power_off"}, change: graceOf(30 * time.Second)},
		{name: "power off, the grace is over", snapshot: snapshot(1, poweringOff(30*time.Second)),
			want: []string{"create for i1",
				"mark_deleting i1 power_off +1m0s"}, change: graceOf(30 * time.Second)},

		// Questions to the provider.
		{name: "stream lost: asked", snapshot: snapshot(1, lostStream(0)), want: []string{"ask i1"}},
		{name: "stream lost: asked already", snapshot: snapshot(1, with(func(i *plan.Instance) {
			*i = lostStream(0)
			i.Asking = true
		}))},
		{name: "stream lost: it runs, reports are waited for", snapshot: snapshot(1, lostStream(5*time.Second)),
			wake: 56 * time.Second},
		{name: "stream lost, asked before it was", snapshot: snapshot(1, lostStream(500*time.Millisecond)),
			want: []string{"ask i1"}},
		{name: "a question that failed waits", snapshot: snapshot(1, with(func(i *plan.Instance) {
			*i = lostStream(0)
			i.AskFailed = plan.Failure{At: now, Count: 3}
		})), wake: 3608 * time.Millisecond},
		{name: "a restart was announced", snapshot: snapshot(1, restarting(20*time.Second, false)),
			wake: 100 * time.Second},
		{name: "a restart takes too long", snapshot: snapshot(1, restarting(2*time.Minute, false)),
			want: []string{"ask i1"}},
		{name: "a reboot may take longer", snapshot: snapshot(1, restarting(4*time.Minute, true)), wake: time.Minute},
		{name: "a reboot takes too long", snapshot: snapshot(1, restarting(5*time.Minute, true)),
			want: []string{"create for i1", "ask i1"}},
		{name: "one report missed", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.LastReport = ago(66 * time.Second)
		})), want: []string{"ask i1"},
			wake: 2 * time.Minute, change: func(s *plan.Snapshot) { s.Instances[0].Provider.At = ago(time.Minute) }},
		{name: "silence does not count yet", snapshot: snapshot(1, silent()), wake: -1, change: func(s *plan.Snapshot) {
			s.SilenceFrom = time.Time{}
		}},
		{name: "silence counts from when agents could connect", snapshot: snapshot(1, silent()), wake: 6 * time.Second,
			change: func(s *plan.Snapshot) {
				s.SilenceFrom = ago(time.Minute)
			}},

		// Unhealthy instances.
		{name: "three reports missed: replaced first", snapshot: snapshot(2, silent(), well()),
			want: []string{"create for i1"}},
		{name: "registered by a leader whose clock was an hour ahead: silent nevertheless",
			snapshot: snapshot(2, with(func(i *plan.Instance) {
				*i = silent()
				i.RegisteredAt = ago(-time.Hour)
			}), well()), want: []string{"create for i1"}},
		{name: "its replacement boots", snapshot: snapshot(2, silent(), well(), booting()), wake: 56 * time.Second},
		{name: "its replacement is well", snapshot: snapshot(2, silent(), well(), well()),
			want: []string{"mark_deleting i1 unhealthy +1m0s"}},
		{name: "its replacement has registered, but is not well", snapshot: snapshot(1, silent(), unwell(time.Minute))},
		{name: "its replacement was never well in its time: that one goes",
			snapshot: snapshot(1, silent(), unwell(5*time.Minute)),
			want:     []string{"mark_deleting i2 unhealthy +1m0s"}},
		{name: "two silent, one surge", snapshot: snapshot(5, silent(), silent(), well(), well(), well()),
			want: []string{"create for i1"}},
		{name: "two silent, two surge", snapshot: snapshot(5, silent(), silent(), well(), well(), well()),
			want:   []string{"create for i1", "create for i2"},
			change: func(s *plan.Snapshot) { s.Group.MaxSurge = 2 }},
		{name: "two silent, two surge, one replacement there", snapshot: snapshot(5, silent(), silent(), well(), well(),
			well(), booting()),
			want: []string{"create for i2"}, change: func(s *plan.Snapshot) { s.Group.MaxSurge = 2 }},
		{name: "one silent is deleted", snapshot: snapshot(5, silent(), silent(), well(), well(), well(), well()),
			want: []string{"mark_deleting i1 unhealthy +1m0s"}},
		{name: "its deletion is being written: it keeps its place", snapshot: snapshot(5, with(func(i *plan.Instance) {
			*i = silent()
			i.Work = plan.MarkingDeleting
		}), silent(), well(), well(), well(), well())},
		{name: "its deletion is durable: the next is replaced", snapshot: snapshot(5, announced(), silent(), well(),
			well(), well(), well()),
			want: []string{"create for i2"}},
		{name: "it came back: the replacement is too many", snapshot: snapshot(1, well(), booting()),
			want: []string{"mark_deleting i2 scale_down +1m0s"}},
		{name: "silent, but the provider says gone: no surge", snapshot: snapshot(2, with(func(i *plan.Instance) {
			*i = silent()
			i.Provider = observed(plan.ProviderGone)
		}), well()), want: []string{"create for i1", "mark_deleting i1 gone"}},

		// The unhealthy guard.
		{name: "more silent than max_unhealthy: none is replaced", snapshot: snapshot(5, silent(), silent(), silent(),
			well(), well()),
			want: []string{"raise_error unhealthy_guard"}},
		{name: "more silent than max_unhealthy, known", snapshot: snapshot(5, silent(), silent(), silent(), well(),
			well()),
			change: func(s *plan.Snapshot) { s.GuardRaised = true }},
		{name: "what is gone is still replaced", snapshot: snapshot(6, silent(), silent(), silent(), well(), well(),
			lost()),
			want: []string{"create for i6", "mark_deleting i6 gone"}, change: func(s *plan.Snapshot) {
				s.GuardRaised = true
			}},
		{name: "registrations are not overdue meanwhile", snapshot: snapshot(6, silent(), silent(), silent(), well(),
			well(), unregistered()), want: []string{"raise_error late_registration"},
			change: func(s *plan.Snapshot) { s.GuardRaised = true }},
		{name: "silent ones on their way out count too", snapshot: snapshot(5, silent(), silent(), silentDeleting(),
			well(), well(), well()),
			want: []string{"drain i3 +1m0s", "raise_error unhealthy_guard"}},
		{name: "few enough", snapshot: snapshot(5, silent(), silent(), well(), well(), well()),
			want:   []string{"create for i1", "resolve_error unhealthy_guard"},
			change: func(s *plan.Snapshot) { s.GuardRaised = true }},
		{name: "rule 61: few enough, and they have time to recover",
			snapshot: snapshot(5, silent(), silent(), well(), well(), well()),
			change: func(s *plan.Snapshot) {
				s.GuardRaised, s.Guard.Exceeded = true, true
			}},
		{name: "rule 61: the shard's time to recover", snapshot: snapshot(5, silent(), well(), well(), well(), well()),
			want:   []string{"raise_error unhealthy_guard"},
			change: func(s *plan.Snapshot) { s.Shard.HoldUntil = now.Add(time.Second) }},
		{name: "rule 61: the time is over", snapshot: snapshot(5, silent(), silent(), well(), well(), well()),
			want: []string{"create for i1", "resolve_error unhealthy_guard"},
			change: func(s *plan.Snapshot) {
				s.GuardRaised, s.Guard = true, plan.Guard{HoldUntil: now, FellAt: ago(time.Minute)}
			}},
		{name: "a count of one", snapshot: snapshot(5, silent(), silent(), well(), well(), well()),
			want:   []string{"raise_error unhealthy_guard"},
			change: func(s *plan.Snapshot) { s.Group.MaxUnhealthy = config.Limit{Value: 1} }},
		{name: "the shard's guard", snapshot: snapshot(1, silent()), want: []string{"raise_error unhealthy_guard"},
			change: func(s *plan.Snapshot) { s.Shard = plan.ShardHealth{Running: 9, Silent: 4} }},
		{name: "three of a shard are not enough", snapshot: snapshot(1, silent()), want: []string{"create for i1"},
			change: func(s *plan.Snapshot) { s.Shard = plan.ShardHealth{Running: 5, Silent: 3} }},
		{name: "a wave is seen whole: the others are late when the first is silent",
			snapshot: snapshot(5, silent(), late(), late(), well(), well()),
			want:     []string{"raise_error unhealthy_guard"}, change: answered},
		{name: "scale-down goes on under the guard", snapshot: snapshot(2, silent(), silent(), silent(), well(),
			well()),
			want: []string{"mark_deleting i1 scale_down +1m0s", "mark_deleting i2 scale_down +1m0s",
				"mark_deleting i3 scale_down +1m0s"},
			change: func(s *plan.Snapshot) { s.GuardRaised = true }},

		// Failed creations.
		{name: "not registered in time", snapshot: snapshot(2, unregistered(), well()),
			want: []string{"mark_deleting i1 unregistered +1m0s"}},
		{name: "not registered, the intent is being written", snapshot: snapshot(1, with(func(i *plan.Instance) {
			*i = unregistered()
			i.Work = plan.MarkingDeleting
		}))},
		{name: "not registered, the intent is durable, backing off", snapshot: snapshot(1),
			blocked: "backing off: mute", want: []string{"raise_error backoff"},
			wake: 1020 * time.Millisecond, change: func(s *plan.Snapshot) {
				s.Backoff = plan.Backoff{Failures: 1, Last: now, Reason: "mute"}
			}},
		{name: "backing off is over", snapshot: snapshot(4), want: []string{"create", "create"},
			change: func(s *plan.Snapshot) {
				s.Backoff, s.BackoffRaised = plan.Backoff{Failures: 1, Last: ago(2 * time.Second), Reason: "mute"}, true
			}},
		{name: "after many failures one at a time", snapshot: snapshot(4, creating()), blocked: "backing off: mute",
			change: func(s *plan.Snapshot) {
				s.Backoff, s.BackoffRaised = plan.Backoff{Failures: 5, Last: ago(time.Hour), Reason: "mute"}, true
			}},
		{name: "success", snapshot: snapshot(1, well()), want: []string{"resolve_error backoff"},
			change: func(s *plan.Snapshot) {
				s.BackoffRaised = true
			}},
		{name: "the VM ended before it registered: not replaced in a hot loop",
			snapshot: snapshot(1, with(func(i *plan.Instance) {
				*i = booting()
				i.Provider = observed(plan.ProviderGone)
			})), want: []string{"mark_deleting i1 unregistered"}},
		{name: "the registration's time begins with silence's", snapshot: snapshot(1, unregistered()),
			want: []string{"raise_error late_registration"}, wake: 2 * time.Minute,
			change: func(s *plan.Snapshot) { s.SilenceFrom = ago(3 * time.Minute) }},
		{name: "no agent at all since this leader began, and none before", snapshot: snapshot(1, unregistered()),
			want: []string{"raise_error late_registration"}, wake: 2 * time.Minute,
			change: func(s *plan.Snapshot) { s.SilenceFrom, s.LeaderSince = time.Time{}, ago(3*time.Minute) }},
		{name: "no agent at all since this leader began, but before: ours",
			snapshot: snapshot(2, unregistered(), unheard()), wake: -1,
			change: func(s *plan.Snapshot) { s.SilenceFrom, s.LeaderSince = time.Time{}, ago(time.Hour) }},
		{name: "reserved, and nothing under way", snapshot: snapshot(1, with(func(i *plan.Instance) {
			*i = creating()
			i.Work = plan.Idle
		})), want: []string{"settle i1"}},

		// Expiry and drift.
		{name: "forced", snapshot: snapshot(2, older(time.Hour), well()), want: []string{"create for i1"},
			change: forced},
		{name: "forced, replaced", snapshot: snapshot(1, older(time.Hour), well()),
			want: []string{"mark_deleting i1 expired +1m0s"}, change: forced},
		{name: "forced goes before unhealthy", snapshot: snapshot(3, silent(), older(time.Hour), well(), well()),
			want: []string{"mark_deleting i2 expired +1m0s"}, change: forced},
		{name: "forced while another drains", snapshot: snapshot(1, older(time.Hour), announced()),
			want: []string{"create for i1"}, change: forced},
		{name: "forced, and one that never registered is no replacement",
			snapshot: snapshot(2, older(2*time.Hour), agedUnregistered(), well()),
			change:   func(s *plan.Snapshot) { s.Settings.ForcedAge, s.SilenceFrom = 2*time.Hour, ago(time.Minute) }},
		{name: "never registered has no age", snapshot: snapshot(2, agedUnregistered(), well()),
			change: func(s *plan.Snapshot) {
				s.Settings.ForcedAge, s.SilenceFrom = 2*time.Hour, ago(time.Minute)
			}},
		{name: "the next age", snapshot: snapshot(1, older(time.Hour)), wake: 30 * time.Second,
			change: func(s *plan.Snapshot) { s.Settings.ForcedAge = 2*time.Hour + 30*time.Second }},
		{name: "eligible, one at a time", snapshot: snapshot(2, older(time.Hour), older(time.Hour)),
			want: []string{"create for i1"}, change: eligible},
		{name: "eligible waits for a drain", snapshot: snapshot(1, older(time.Hour), announced()), change: eligible},
		{name: "eligible waits for an unhealthy one", snapshot: snapshot(2, older(time.Hour), silent(), booting()),
			change: eligible},
		{name: "eligible waits for a booting one", snapshot: snapshot(2, older(time.Hour), booting()),
			change: eligible},
		{name: "eligible waits for the guard", snapshot: snapshot(5, older(time.Hour), well(), silent(), silent(),
			silent()), change: func(s *plan.Snapshot) {
			eligible(s)
			s.GuardRaised = true
		}},
		{name: "rule 20: a wave has max_surge instances", snapshot: snapshot(3, drifted(), drifted(), drifted()),
			want:   []string{"create for i1", "create for i2"},
			change: func(s *plan.Snapshot) { s.Group.MaxSurge = 2 }},
		{name: "rule 45: no wave while the rollout is paused", snapshot: snapshot(2, drifted(), drifted()),
			change: func(s *plan.Snapshot) { s.Group.Rollout.Paused = true }},
		{name: "rule 46: the canary comes first", snapshot: snapshot(3, drifted(), drifted(), drifted()),
			want: []string{"create for i1"},
			change: func(s *plan.Snapshot) {
				s.Group.MaxSurge, s.Group.Rollout.Canary = 3, 1
			}},
		{name: "rule 47: no wave after a halt", snapshot: snapshot(2, drifted(), drifted()),
			want: []string{"halt_rollout"},
			change: func(s *plan.Snapshot) {
				s.Group.Rollout.HaltOnFailures, s.RolloutFailures = 2, 2
			}},
		{name: "rule 47: the alert does not wait for a store that fails", snapshot: snapshot(2, drifted(), drifted()),
			want: []string{"halt_rollout", "raise_error rollout_halted"},
			change: func(s *plan.Snapshot) {
				s.Group.Rollout.HaltOnFailures, s.RolloutFailures = 2, 2
				s.StoreFailed = plan.Failure{At: ago(time.Hour), Count: 1}
			}},
		{name: "rule 47: one failure less", snapshot: snapshot(2, drifted(), drifted()),
			want: []string{"create for i1"},
			change: func(s *plan.Snapshot) {
				s.Group.Rollout.HaltOnFailures, s.RolloutFailures = 2, 1
			}},
		{name: "rule 47: aged instances are replaced after a halt", snapshot: snapshot(2, older(time.Hour), well()),
			want: []string{"create for i1"},
			change: func(s *plan.Snapshot) {
				eligible(s)
				s.Group.Rollout.HaltOnFailures, s.RolloutFailures = 2, 2
			}},
		{name: "rule 48: max_unavailable are deleted first", snapshot: snapshot(4, drifted(), drifted(), drifted(),
			drifted()),
			want:   []string{"mark_deleting i1 drift +1m0s", "mark_deleting i2 drift +1m0s"},
			change: func(s *plan.Snapshot) { s.Group.Rollout.MaxUnavailable = 2 }},
		{name: "rule 48: unregistered ones go before those that have not connected to the new leader",
			snapshot: snapshot(2, drifted(), drifted()),
			want:     []string{"mark_deleting i2 drift +1m0s"},
			change: func(s *plan.Snapshot) {
				s.Group.Rollout.MaxUnavailable = 1
				s.Instances[0].Healthy, s.Instances[0].Connected, s.Instances[0].LastReport = false, false, time.Time{}
				s.Instances[1].State, s.Instances[1].RegisteredAt = record.Created, time.Time{}
				s.Instances[1].CreatedAt, s.Instances[1].LaunchedAt = ago(time.Minute), ago(time.Minute)
				s.LeaderSince, s.SilenceFrom = ago(time.Second), ago(time.Second)
			}},
		{name: "rule 48: the canary is alone", snapshot: snapshot(2, drifted(), drifted()),
			want:   []string{"mark_deleting i1 drift +1m0s"},
			change: func(s *plan.Snapshot) { s.Group.Rollout.MaxUnavailable, s.Group.Rollout.Canary = 2, 1 }},
		{name: "rule 48: the guard's instances are unavailable already",
			snapshot: snapshot(5, silent(), silent(), silent(), drifted(), drifted()),
			want:     []string{"create for i4"},
			change: func(s *plan.Snapshot) {
				s.Group.Rollout.MaxUnavailable, s.GuardRaised = 2, true
			}},
		{name: "rule 49: no wave outside the windows", snapshot: snapshot(2, drifted(), drifted()),
			change: func(s *plan.Snapshot) {
				s.Group.Windows = []config.Window{window("Mon-Sun 09:00-17:00 UTC")}
			}},
		{name: "rule 49: a wave in one of two windows", snapshot: snapshot(2, drifted(), drifted()),
			want: []string{"create for i1"},
			change: func(s *plan.Snapshot) {
				s.Group.Windows = []config.Window{window("Mon-Sun 09:00-17:00 UTC"), window("Mon-Sun 22:00-04:00 UTC")}
			}},
		{name: "rule 49: a lost instance is replaced outside the windows", snapshot: snapshot(1, lost()),
			want: []string{"create for i1", "mark_deleting i1 gone"},
			change: func(s *plan.Snapshot) {
				s.Group.Windows = []config.Window{window("Mon-Sun 09:00-17:00 UTC")}
			}},
		{name: "rule 50: no more than max_per_hour young instances",
			snapshot: snapshot(3, drifted(), drifted(),
				with(func(i *plan.Instance) { i.CreatedAt = ago(50 * time.Minute) })),
			change: func(s *plan.Snapshot) { s.Group.MaxPerHour = 1 }},
		{name: "rule 50: the rest of max_per_hour", want: []string{"create for i1"},
			snapshot: snapshot(3, drifted(), drifted(),
				with(func(i *plan.Instance) { i.CreatedAt = ago(50 * time.Minute) })),
			change: func(s *plan.Snapshot) { s.Group.MaxSurge, s.Group.MaxPerHour = 3, 2 }},
		{name: "rule 51: the schedule that began last sets the size", snapshot: snapshot(1, well()),
			want: []string{"create", "create"},
			change: func(s *plan.Snapshot) {
				s.Group.Schedules = []config.SizeSchedule{{Cron: "0 * * * *", Zone: time.UTC, Size: 3}}
			}},
		{name: "drift, its replacement boots", snapshot: snapshot(2, drifted(), drifted(), booting())},
		{name: "drift, its replacement is well", snapshot: snapshot(2, drifted(), drifted(), well()),
			want: []string{"mark_deleting i1 drift +1m0s"}},
		{name: "drift waits for a drain", snapshot: snapshot(1, drifted(), announced())},
		{name: "drift goes on once the other was terminated", snapshot: snapshot(1, drifted(),
			deleting(func(i *plan.Instance) {
				i.TerminateRequested, i.Announced = ago(500*time.Millisecond), true
			})), want: []string{"create for i1"}},
		{name: "drift is the cure for an instance that is not well", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.InfraHash, i.Healthy = "v0", false
		})), want: []string{"create for i1"}},
		{name: "drift of one that is not well, replaced", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.InfraHash, i.Healthy = "v0", false
		}), well()), want: []string{"mark_deleting i1 drift +1m0s"}},
		{name: "drift under the guard", snapshot: snapshot(3, silentDrifted(), silentDrifted(), silentDrifted()),
			want:   nil,
			change: func(s *plan.Snapshot) { s.GuardRaised = true }},
		{name: "an unknown hash is no drift", snapshot: snapshot(1, with(func(i *plan.Instance) { i.InfraHash = "" }))},

		// Drains and terminations.
		{name: "drain is announced", snapshot: snapshot(0, deleting(nil)), want: []string{"drain i1 +1m0s"},
			wake: time.Minute},
		{name: "drain was announced", snapshot: snapshot(0, announced()), wake: time.Minute},
		{name: "drained", snapshot: snapshot(0, deleting(func(i *plan.Instance) {
			i.Announced, i.Drained = true, true
		})), want: []string{"terminate i1"}},
		{name: "rule 27: nobody takes part", snapshot: snapshot(0, deleting(nil)), want: []string{"terminate i1"},
			change: alone},
		{name: "rule 27: an operator that was connected keeps its part", snapshot: snapshot(0, announced()),
			change: alone, wake: time.Minute},
		{name: "rule 27: an operator that connects late takes no part before its stream is known",
			snapshot: snapshot(0, deleting(func(i *plan.Instance) { i.Announced = true })),
			want:     []string{"terminate i1"}},
		{name: "rule 27: the hook is asked", snapshot: snapshot(0, deleting(nil)), want: []string{"drain i1 +1m0s"},
			change: hooked, wake: time.Minute},
		{name: "rule 27: the hook runs, also if the group has none any more", change: alone, wake: time.Minute,
			snapshot: snapshot(0, deleting(func(i *plan.Instance) { i.Announced, i.Hook = true, true }))},
		{name: "rule 27: a hook that was added later is not awaited", change: hooked, want: []string{"terminate i1"},
			snapshot: snapshot(0, deleting(func(i *plan.Instance) { i.Announced = true }))},
		{name: "rule 27: it could not leave its load balancers", want: []string{"drain i1 +1m0s"},
			change: func(s *plan.Snapshot) { alone(s); balanced(s) },
			snapshot: snapshot(0, deleting(func(i *plan.Instance) {
				i.Announced, i.InLoadBalancers, i.BalancersUntil = true, true, now.Add(time.Minute)
			}))},
		{name: "rule 64: the leader does not serve operators yet", wake: time.Minute,
			change:   func(s *plan.Snapshot) { s.Operators, s.ServingSince = false, time.Time{} },
			snapshot: snapshot(0, deleting(func(i *plan.Instance) { i.Announced = true }))},
		{name: "rule 27: the hook has ended", want: []string{"terminate i1"}, change: hooked,
			snapshot: snapshot(0, deleting(func(i *plan.Instance) {
				i.Announced, i.Hook, i.HookEnded = true, true, true
			}))},
		{name: "rule 27: the hook has ended, the operator drains", wake: time.Minute, change: hooked,
			snapshot: snapshot(0, deleting(func(i *plan.Instance) {
				i.Announced, i.Operator, i.Hook, i.HookEnded = true, true, true, true
			}))},
		{name: "rule 27: the operator has drained, the hook runs", wake: time.Minute, change: hooked,
			snapshot: snapshot(0, deleting(func(i *plan.Instance) {
				i.Announced, i.Operator, i.Drained, i.Hook = true, true, true, true
			}))},
		{name: "rule 27: no hook without an agent", want: []string{"terminate i1"}, change: hooked,
			snapshot: snapshot(0, deleting(func(i *plan.Instance) { i.RegisteredAt = time.Time{} }))},
		{name: "rule 27: it leaves its load balancers first", snapshot: snapshot(0, deleting(nil)),
			want: []string{"drain i1 +1m0s"}, change: func(s *plan.Snapshot) { alone(s); balanced(s) }},
		{name: "rule 27: its load balancers finish its requests", wake: 20 * time.Second, change: alone,
			snapshot: snapshot(0, deleting(func(i *plan.Instance) {
				i.Announced, i.BalancersUntil = true, now.Add(20*time.Second)
			}))},
		{name: "rule 27: the deadline comes before its load balancers are done", wake: time.Minute, change: alone,
			snapshot: snapshot(0, deleting(func(i *plan.Instance) {
				i.Announced, i.BalancersUntil = true, now.Add(time.Hour)
			}))},
		{name: "rule 64: operators may come back", wake: 20 * time.Second, change: func(s *plan.Snapshot) {
			s.Operators, s.ServingSince = false, ago(10*time.Second)
		}, snapshot: snapshot(0, deleting(func(i *plan.Instance) { i.Announced = true }))},
		{name: "rule 64: an operator restarts", wake: 20 * time.Second, want: []string{"drain i1 +1m0s"},
			change: func(s *plan.Snapshot) {
				s.Operators, s.OperatorLeftAt = false, ago(10*time.Second)
			}, snapshot: snapshot(0, deleting(nil))},
		{name: "rule 64: what an operator drained waits for no other", want: []string{"terminate i1"},
			change:   func(s *plan.Snapshot) { s.Operators, s.ServingSince = false, ago(10*time.Second) },
			snapshot: snapshot(0, deleting(func(i *plan.Instance) { i.Announced, i.Drained = true, true }))},
		{name: "rule 20: drains count towards a wave",
			snapshot: snapshot(3, drifted(), drifted(), drifted(), announced()),
			want:     []string{"create for i1", "create for i2"},
			change:   func(s *plan.Snapshot) { s.Group.MaxSurge = 3 }},
		{name: "the deadline has come", snapshot: snapshot(0, deleting(func(i *plan.Instance) {
			i.DeleteDeadline = now
		})), want: []string{"terminate i1"}},
		{name: "no drain", snapshot: snapshot(0, deleting(func(i *plan.Instance) {
			i.DeleteDeadline = time.Time{}
		})), want: []string{"terminate i1"}},
		{name: "stopping: no drain", snapshot: snapshot(0, deleting(func(i *plan.Instance) {
			i.Provider = observed(plan.ProviderGoing)
		})), want: []string{"terminate i1"}},
		{name: "stopped: no drain", snapshot: snapshot(0, deleting(func(i *plan.Instance) {
			i.Provider = observed(plan.ProviderStopped)
		})), want: []string{"terminate i1"}},
		{name: "gone: forgotten", snapshot: snapshot(0, deleting(func(i *plan.Instance) {
			i.Provider = observed(plan.ProviderGone)
		})), want: []string{"forget i1"}},
		{name: "terminated a moment ago", snapshot: snapshot(0, deleting(func(i *plan.Instance) {
			i.TerminateRequested = now
		})), wake: time.Second},
		{name: "terminated, asked", snapshot: snapshot(0, deleting(func(i *plan.Instance) {
			i.TerminateRequested = ago(2 * time.Second)
		})), want: []string{"ask i1"},
			change: func(s *plan.Snapshot) { s.Instances[0].Provider.At = ago(3 * time.Second) }},
		{name: "terminated, but it still runs", snapshot: snapshot(0, deleting(func(i *plan.Instance) {
			i.TerminateRequested = ago(62 * time.Second)
		})),
			want: []string{"terminate i1"}},
		{name: "terminated, it ran half a minute later: asked before it is terminated again",
			snapshot: snapshot(0, deleting(func(i *plan.Instance) {
				i.TerminateRequested, i.Provider.At = ago(62*time.Second), ago(30*time.Second)
			})), wake: 2 * time.Second},
		{name: "terminated, and it is going", snapshot: snapshot(0, deleting(func(i *plan.Instance) {
			i.TerminateRequested, i.Provider = ago(62*time.Second), observed(plan.ProviderGoing)
		}))},
		{name: "its stream is lost in the drain", snapshot: snapshot(0, deleting(func(i *plan.Instance) {
			i.Announced, i.Operator, i.Connected, i.LostAt = true, true, false, now
		})), want: []string{"ask i1"}},
		{name: "work under way", snapshot: snapshot(0, deleting(func(i *plan.Instance) { i.Work = plan.Terminating }))},
		{name: "work that failed", snapshot: snapshot(0, deleting(func(i *plan.Instance) {
			i.Failed = plan.Failure{At: ago(time.Second), Count: 7}
		})), wake: 53360 * time.Millisecond},

		// Instances that stay.
		{name: "files are out of date", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.RuntimeHash = "r0"
		})), want: []string{"push_files i1"}},
		{name: "files were just sent", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.RuntimeHash, i.FilesSent = "r0", "r1"
		}))},
		{name: "a file failed", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.FilesFailed = true
		})), want: []string{"push_files i1"}},
		{name: "no agent to send files to", snapshot: snapshot(1, with(func(i *plan.Instance) {
			*i = lostStream(5 * time.Second)
			i.RuntimeHash = "r0"
		}))},
		{name: "what it has is not known yet", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.LastReport, i.RegisteredAt, i.RuntimeHash = time.Time{}, ago(time.Second), ""
		}))},
		{name: "load balancers at the first healthy report", snapshot: snapshot(1, well()),
			want: []string{"register_load_balancers i1"}, change: balanced},
		{name: "load balancers only of healthy ones", snapshot: snapshot(1, unwell(time.Minute)), change: balanced},
		{name: "registered with the load balancers", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.InLoadBalancers = true
		})), change: balanced},
		{name: "files before load balancers", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.RuntimeHash = "r0"
		})),
			want: []string{"push_files i1"}, change: balanced},
		{name: "after a failure the other one", snapshot: snapshot(1, with(func(i *plan.Instance) {
			i.RuntimeHash, i.MaintenanceFailed = "r0", plan.Failure{At: ago(time.Minute), Count: 1}
		})), want: []string{"register_load_balancers i1"}, change: balanced},

		// On-demand instances.
		{name: "on-demand ones are not the group's", snapshot: snapshot(1, well(), onDemand(well()))},
		{name: "silent on-demand ones are left", snapshot: snapshot(0, onDemand(silent()))},
		{name: "drifted on-demand ones are left", snapshot: snapshot(0, onDemand(drifted()))},
		{name: "gone on-demand ones are not replaced", snapshot: snapshot(0, onDemand(lost())),
			want: []string{"mark_deleting i1 gone"}},
		{name: "on-demand age", snapshot: snapshot(0, onDemand(well())),
			want:   []string{"mark_deleting i1 expired +1m0s"},
			change: func(s *plan.Snapshot) { s.Settings.OnDemandAge = time.Hour }},
		{name: "forced age is not theirs", snapshot: snapshot(0, onDemand(older(5*time.Hour))), change: forced},
		{name: "an on-demand one that never registered", snapshot: snapshot(0, onDemand(unregistered())),
			want: []string{"mark_deleting i1 unregistered +1m0s"}},
		{name: "on-demand ones get files", snapshot: snapshot(0, onDemand(with(func(i *plan.Instance) {
			i.RuntimeHash = "r0"
		}))), want: []string{"push_files i1"}},

		// Deleted and terminating groups.
		{name: "a deleted group", snapshot: snapshot(2, well(), onDemand(well())),
			want: []string{"mark_deleting i1 group_deleted +1m0s",
				"mark_deleting i2 group_deleted +1m0s"}, change: func(s *plan.Snapshot) { s.Group.Deleted = true }},
		{name: "a deleted group creates nothing", snapshot: snapshot(2, lost()),
			want:   []string{"mark_deleting i1 gone"},
			change: func(s *plan.Snapshot) { s.Group.Deleted = true }},
		{name: "a deleted group without instances", snapshot: snapshot(2), want: []string{"forget_group"},
			wake:   10 * time.Second,
			change: func(s *plan.Snapshot) { s.Group.Deleted = true }},
		{name: "a deleted group with a create under way", snapshot: snapshot(2), change: func(s *plan.Snapshot) {
			s.Group.Deleted, s.PendingCreates = true, 1
		}},
		{name: "a deleted group of the shard configuration", snapshot: snapshot(2), change: func(s *plan.Snapshot) {
			s.Group.Deleted, s.Group.Static = true, true
		}},
		{name: "a shard that is emptied", snapshot: snapshot(2, well(), onDemand(well())),
			want: []string{"mark_deleting i1 terminating +1m0s",
				"mark_deleting i2 terminating +1m0s"}, change: func(s *plan.Snapshot) {
				s.Settings.Terminating = true
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.snapshot
			if c.change != nil {
				c.change(&s)
			}
			got, d := planned(s)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
			if err := plantest.Check(s, d); err != nil {
				t.Error(err)
			}
			if d.Blocked != c.blocked {
				t.Errorf("blocked: %q, want %q", d.Blocked, c.blocked)
			}
			switch wake := d.NextPlan.Sub(now).Round(time.Millisecond); {
			case c.wake < 0 && !d.NextPlan.IsZero():
				t.Errorf("wakes after %s, want never", wake)
			case c.wake > 0 && wake != c.wake:
				t.Errorf("wakes after %s, want %s", wake, c.wake)
			}
		})
	}
}

func unheard() plan.Instance {
	return with(func(i *plan.Instance) {
		i.Healthy, i.EverHealthy, i.LastReport, i.Connected = false, false, time.Time{}, false
	})
}

func unwell(since time.Duration) plan.Instance {
	return with(func(i *plan.Instance) { i.Healthy, i.EverHealthy, i.RegisteredAt = false, false, ago(since) })
}

func unregistered() plan.Instance {
	i := booting()
	i.CreatedAt, i.LaunchedAt = ago(6*time.Minute), ago(5*time.Minute)
	return i
}

func agedUnregistered() plan.Instance {
	i := booting()
	i.CreatedAt, i.LaunchedAt = ago(151*time.Minute), ago(150*time.Minute)
	return i
}

func driftedBooting() plan.Instance { i := booting(); i.InfraHash = "v0"; return i }

func notWell(age time.Duration, infra string) plan.Instance {
	return with(func(i *plan.Instance) { i.Healthy, i.LaunchedAt, i.InfraHash = false, ago(age), infra })
}

func silentDrifted() plan.Instance { i := silent(); i.InfraHash = "v0"; return i }

func silentDeleting() plan.Instance {
	i := silent()
	i.State, i.DeletingAt, i.DeleteDeadline = record.Deleting, ago(time.Second), now.Add(time.Minute)
	return i
}

// announced is an instance that an operator drains.
func announced() plan.Instance {
	return deleting(func(i *plan.Instance) { i.Announced, i.Operator = true, true })
}

// hooked gives a group a drain hook and leaves it without an operator.
func hooked(s *plan.Snapshot) {
	s.Operators, s.Group.Drain = false, &config.DrainHook{Exec: []string{"/usr/local/bin/drain"}}
}

func alone(s *plan.Snapshot) { s.Operators = false }

func late() plan.Instance {
	return with(func(i *plan.Instance) { i.LastReport = ago(90 * time.Second) })
}

func lostStream(d time.Duration) plan.Instance {
	return with(func(i *plan.Instance) { i.Connected, i.LostAt = false, ago(d) })
}

func poweringOff(d time.Duration) plan.Instance {
	return with(func(i *plan.Instance) { i.PowerOffAt = ago(d) })
}

func restarting(d time.Duration, reboot bool) plan.Instance {
	return with(func(i *plan.Instance) {
		i.RestartingAt, i.Reboot, i.LastReport, i.Connected, i.LostAt = ago(d), reboot, ago(d), false, ago(d)
		i.Provider.At = ago(d + time.Second)
	})
}

func graceOf(d time.Duration) func(*plan.Snapshot) {
	return func(s *plan.Snapshot) { s.Settings.ShutdownGrace = d }
}
func forced(s *plan.Snapshot)   { s.Settings.ForcedAge = 2 * time.Hour }
func eligible(s *plan.Snapshot) { s.Settings.EligibleAge = 2 * time.Hour }
func balanced(s *plan.Snapshot) { s.Group.LoadBalancers = []string{"www"} }

// answered sets the time of the provider's answers about all instances to now.
func answered(s *plan.Snapshot) {
	for n := range s.Instances {
		s.Instances[n].Provider.At = now
	}
}

// TestFirmWakeUp checks NextIfReporting, which is when to plan again if all healthy instances report in time. If any
// report may change the plan of a group, NextIfReporting must not be later than NextPlan.
func TestFirmWakeUp(t *testing.T) {
	tripped := snapshot(2, well(), well())
	tripped.Shard = plan.ShardHealth{Running: 10, Silent: 9}
	aging := snapshot(2, well(), well())
	aging.Settings.ForcedAge = 2 * time.Hour
	const report, never = 56 * time.Second, 0
	for _, c := range []struct {
		name string
		plan.Snapshot
		wake, firm time.Duration
	}{
		{"all well", snapshot(2, well(), well()), report, never},
		{"one will be too old", aging, report, time.Hour},
		{"one boots", snapshot(2, well(), booting()), report, 90 * time.Second},
		{"one is late", snapshot(2, well(), late()), report, report},
		{"one is silent", snapshot(2, well(), silent()), report, report},
		{"one has lost its stream", snapshot(2, well(), lostStream(time.Second)), report, report},
		{"one goes", snapshot(1, well(), deleting(nil)), report, report},
		{"the guard holds", tripped, report, report},
	} {
		d := plan.Next(c.Snapshot)
		if wake := d.NextPlan.Sub(now); wake != c.wake {
			t.Errorf("%s: wakes after %s, want %s", c.name, wake, c.wake)
		}
		if firm := d.NextIfReporting.Sub(now); firm != c.firm && !(c.firm == never && d.NextIfReporting.IsZero()) {
			t.Errorf("%s: firmly after %s, want %s", c.name, firm, c.firm)
		}
	}
}

// TestRule23RegisteredOnesStay checks that an unready instance is not deleted as surplus in favour of others that have
// not registered yet, even if these are of the kind that the group lacks.
func TestRule23RegisteredOnesStay(t *testing.T) {
	unready := func(hash string) plan.Instance {
		return with(func(i *plan.Instance) { i.InfraHash, i.Healthy, i.EverHealthy = hash, false, false })
	}
	spot := func(i plan.Instance) plan.Instance { i.Spot = true; return i }
	for _, tt := range []struct {
		name  string
		third plan.Instance
		want  []string
	}{
		{"two others have registered", spot(booting()), nil},
		{"three others have registered", spot(well()), []string{"mark_deleting i3"}},
	} {
		s := snapshot(3, well(), unready("v1"), unready("v0"), spot(booting()), tt.third)
		s.Group.Purchase = config.Purchase{SpotPercent: 100}
		var marked []string
		lines, _ := planned(s)
		for _, line := range lines {
			if strings.HasPrefix(line, "mark_deleting") {
				marked = append(marked, strings.Join(strings.Fields(line)[:2], " "))
			}
		}
		if diff := cmp.Diff(tt.want, marked); diff != "" {
			t.Errorf("%s: %s (want -, got +)", tt.name, diff)
		}
	}
}

// TestRule19KeepsWhatWasHealthy checks which of two failing instances is deleted. It must be the one that was never
// healthy, although neither has been healthy in its load balancers, and the other one is newer.
func TestRule19KeepsWhatWasHealthy(t *testing.T) {
	failing := func(age time.Duration, wasHealthy bool) plan.Instance {
		return with(func(i *plan.Instance) {
			i.LaunchedAt, i.RegisteredAt = ago(age), ago(age)
			i.Healthy, i.EverHealthy, i.FailedCheck = false, wasHealthy, "web: refused"
		})
	}
	s := snapshot(1, failing(2*time.Hour, false), failing(time.Hour, true))
	s.Group.MaxUnhealthy, s.Group.LoadBalancerHealth = config.Limit{Value: 100, Percent: true}, true
	if lines, _ := planned(s); len(lines) != 1 || !strings.HasPrefix(lines[0], "mark_deleting i1 ") {
		t.Errorf("%q", lines)
	}
}
