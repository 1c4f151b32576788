package plan_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// TestWait checks what a group waits for, in words. The names of the instances are i1, i2 and so on, as in the
// snapshot. Now is 00:00:00.
func TestWait(t *testing.T) {
	young := func(d time.Duration) plan.Instance { // others of the group took a minute to register
		i := booting()
		i.CreatedAt, i.LaunchedAt = ago(d), ago(d)
		return i
	}
	fast := with(func(i *plan.Instance) { i.RegisteredAt = i.CreatedAt.Add(900 * time.Millisecond) })
	current := func(d time.Duration) plan.Instance {
		return with(func(i *plan.Instance) { i.CreatedAt, i.RegisteredAt = ago(d), ago(d-time.Minute) })
	}
	unready := func(change func(i *plan.Instance)) plan.Instance {
		return with(func(i *plan.Instance) {
			i.Healthy, i.EverHealthy, i.RegisteredAt = false, false, ago(time.Minute)
			change(i)
		})
	}
	drains := func(change func(*plan.Snapshot), instances ...plan.Instance) plan.Snapshot {
		s := snapshot(1, instances...)
		change(&s)
		return s
	}
	rollout := func(change func(*plan.Snapshot), instances ...plan.Instance) plan.Snapshot {
		s := snapshot(len(instances), instances...)
		s.ConfiguredAt = ago(10 * time.Minute)
		change(&s)
		return s
	}
	for _, tt := range []struct {
		name string
		of   plan.Snapshot
		want string // Explain's sentence
		rest bool
	}{
		{"at rest", snapshot(2, well(), well()), "all 2 instances are healthy and up to date", true},
		{"one at rest", snapshot(1, well()), "the instance is healthy and up to date", true},
		{"empty", snapshot(0), "the group has no instances, as configured", true},
		{"deleted", drains(func(s *plan.Snapshot) { s.Group.Size, s.Group.Deleted = 0, true }),
			"the group is deleted, and its entry is being removed", false},
		{"a schedule", drains(func(s *plan.Snapshot) {
			s.Group.Schedules = []config.SizeSchedule{{Cron: "0 6 * * *", Zone: time.UTC, Size: 3},
				{Cron: "0 18 * * *", Zone: time.UTC, Size: 1}}
		}, well()), "the instance is healthy and up to date; the size becomes 3 at 06:00:00", true},
		{"an age", drains(func(s *plan.Snapshot) { s.Settings.EligibleAge = 3 * time.Hour }, well()),
			"the instance is healthy and up to date; i1 reaches eligible_age at 02:00:00", true},
		{"a forced age on another day", drains(func(s *plan.Snapshot) { s.Settings.ForcedAge = 49 * time.Hour },
			well()),
			"the instance is healthy and up to date; i1 reaches forced_age at 2026-01-03 00:00:00", true},
		{"preserved", drains(func(s *plan.Snapshot) {
			s.Group.Preserve = config.Preserve{Max: 1, For: config.Duration(24 * time.Hour)}
		}, well(), preserved(time.Hour)), "the instance is healthy and up to date; i2 is preserved until 23:00:00",
			true},

		{"too small", snapshot(3, well()), "2 VMs are being created", false},
		{"being created", snapshot(1, creating()), "i1 is being created", false},
		{"reserving", drains(func(s *plan.Snapshot) { s.PendingCreates = 1 }), "1 VM is being created", false},
		{"booting", snapshot(2, fast, young(3*time.Second)),
			"i2 has not registered for 3.0 s (usually 0.9 s); it is replaced at 00:04:57", false},
		{"late", snapshot(3, fast, young(40*time.Second), young(40*time.Second)),
			"2 VMs have not registered for 40 s (usually 0.9 s); they are replaced at 00:04:20", false},
		{"the first of its group", snapshot(1, young(100*time.Second)),
			"i1 has not registered for 100 s; it is replaced at 00:03:20", false},
		{"booting while the guard holds", drains(func(s *plan.Snapshot) {
			s.Shard = plan.ShardHealth{Running: 10, Silent: 9}
		}, young(time.Minute)), "i1 has not registered for 60 s", false},
		{"backing off", drains(func(s *plan.Snapshot) {
			s.Backoff = plan.Backoff{Failures: 4, Last: s.Now, Reason: "no capacity"}
		}), "1 more instance at 00:00:07: backing off: no capacity", false},
		{"a VM boots during a backoff", drains(func(s *plan.Snapshot) {
			s.Group.Size, s.Backoff = 2, plan.Backoff{Failures: 4, Last: ago(time.Hour), Reason: "no capacity"}
		}, young(3*time.Second)), "i1 has not registered for 3.0 s; it is replaced at 00:04:57; 1 VM is being created",
			false},
		{"the create rate limit", drains(func(s *plan.Snapshot) {
			s.CreateBudget, s.CreateBudgetAt, s.CreateEvery = 0, s.Now.Add(time.Minute), 2*time.Minute
		}), "1 more instance at 00:01:00: create_rate_limit allows 1 create per 2m in the shard, and it is used",
			false},
		{"concurrent creates", drains(func(s *plan.Snapshot) { s.CreateBudget = 0 }),
			"1 more instance: the limit of concurrent creates of the shard is reached", false},
		{"throttled", drains(func(s *plan.Snapshot) {
			s.Waiting = plan.WaitingCreates{Needed: 4, Pace: plan.Pace{Every: time.Second, Slowed: s.Now}}
		}), "1 more instance: the provider throttles creates", false},
		{"larger than its size, but protected", drains(func(s *plan.Snapshot) {
			s.Group.Protected = []ident.ID{id(1),
				id(2)}
		},
			well(), well()), "the group is larger than its size, and its other instances are protected", false},
		{"agents after a takeover", drains(func(s *plan.Snapshot) {
			s.LeaderSince, s.SilenceFrom = ago(time.Minute), ago(time.Minute)
		}, well(), unheard()), "waiting for the agents to report before removing any; i2 has not reported to this " +
			"leader yet; it has time until 00:02:06", false},

		{"the guard", snapshot(5, silent(), silent(), silent(), well(), well()), "3 of the group's 5 running " +
			"instances are silent: not " +
			"replacing them, the fault is more likely here (rule 26)", false},
		{"the guard, in time to recover", drains(func(s *plan.Snapshot) {
			s.Group.Size, s.Guard.Exceeded = 5, true
		}, silent(), silent(), well(), well(), well()), "2 of the group's 5 running instances are silent: not " +
			"replacing " +
			"them, more were, and they have time to recover (rule 61) until 00:01:46", false},
		{"unheard", drains(func(s *plan.Snapshot) { s.SilenceFrom = time.Time{} }, unheard()),
			"i1 has not reported to this leader yet", false},
		{"silent", snapshot(2, well(), with(func(i *plan.Instance) { i.LastReport = ago(100 * time.Second) })),
			"i2 has not reported for 100 s; it counts as unhealthy at 00:01:26", false},
		{"a replacement under way", snapshot(4, well(), well(), well(), silent(), young(3*time.Second)),
			"i5 has not registered for 3.0 s (usually 60 s); it is replaced at 00:04:57; i4 is deleted when its " +
				"replacement is healthy: it runs but is silent", false},
		{"restarting", snapshot(1, with(func(i *plan.Instance) {
			i.RestartingAt, i.LastReport = ago(5*time.Second), ago(5*time.Second)
			i.Connected, i.LostAt = false, ago(time.Second)
		})), "i1 restarts; it has time until 00:01:55", false},
		{"powering off", drains(func(s *plan.Snapshot) { s.Settings.ShutdownGrace = time.Minute },
			with(func(i *plan.Instance) { i.PowerOffAt = ago(10 * time.Second) })),
			"i1 powers off; it is replaced at 00:00:50", false},
		{"a check that never passed", snapshot(1, unready(func(i *plan.Instance) {
			i.FailedCheck = "web: status " +
				"503"
		})),
			"i1 is not healthy yet: web: status 503; it is replaced at 00:04:00", false},
		{"pending checks", snapshot(1, unready(func(i *plan.Instance) { i.ChecksPending = true })),
			"i1 is not healthy yet: its health checks have not passed yet; it is replaced at 00:04:00", false},
		{"load balancers", drains(func(s *plan.Snapshot) {
			s.Group.LoadBalancerHealth, s.Group.LoadBalancers = true, []string{"web"}
		}, with(func(i *plan.Instance) { i.RegisteredAt, i.InLoadBalancers = ago(time.Minute), true })),
			"i1 waits until its load balancers call it healthy until 00:04:00", false},

		{"an operator drains", snapshot(0, announced()), "i1 drains until 00:01:00: an operator drains its node",
			false},
		{"drains", snapshot(0, announced(), announced()), "2 instances drain until 00:01:00", false},
		{"an operator may connect", drains(func(s *plan.Snapshot) {
			s.Group.Size, s.Operators, s.ServingSince = 0, false, ago(10*time.Second)
		}, deleting(func(i *plan.Instance) { i.Announced = true })),
			"i1 drains until 00:00:20: an operator may still connect", false},
		{"too large", snapshot(1, well(), well()), "i1 is being deleted", false},
		{"terminating", snapshot(0, deleting(func(i *plan.Instance) { i.TerminateRequested = ago(30 * time.Second) })),
			"i1 is being terminated (for 30 s)", false},
		{"an attempt that failed", snapshot(0, deleting(func(i *plan.Instance) {
			i.DeleteDeadline, i.Failed = ago(time.Second), plan.Failure{At: now, Count: 4}
		})), "i1: the last attempt at its next step failed; the next is at 00:00:07", false},
		{"files", snapshot(1, with(func(i *plan.Instance) { i.RuntimeHash = "r0" })),
			"i1 gets its files, or joins its load balancers", false},

		{"a wave", rollout(func(*plan.Snapshot) {}, drifted(), drifted(), drifted()),
			"1 VM is being created; then 2 more", false},
		{"no estimate before one wave is done", rollout(func(s *plan.Snapshot) { s.Group.Size = 2 },
			drifted(), drifted(), current(5*time.Minute)), "i1 is being deleted; then 1 more", false},
		{"an estimate", rollout(func(s *plan.Snapshot) { s.Group.Size = 5 }, announced(), drifted(), drifted(),
			drifted(),
			current(9*time.Minute), current(5*time.Minute)),
			"i1 drains until 00:01:00: an operator drains its node; then 3 more, about 40 min", false},
		{"an estimate with max_per_hour", rollout(func(s *plan.Snapshot) { s.Group.Size, s.Group.MaxPerHour = 5, 1 },
			announced(), drifted(), drifted(), drifted(), current(9*time.Minute), current(5*time.Minute)),
			"i1 drains until 00:01:00: an operator drains its node; then 3 more, about 3 h", false},
		{"max_per_hour", rollout(func(s *plan.Snapshot) { s.Group.MaxPerHour = 1 }, drifted(), drifted(),
			current(5*time.Minute)), "2 instances to replace: disruption.max_per_hour instances were created " +
			"within the " +
			"hour (rule 50) until 00:55:00", false},
		{"paused", rollout(func(s *plan.Snapshot) { s.Group.Rollout.Paused = true }, drifted(), drifted()),
			"2 instances to replace: the rollout is paused (rule 45)", false},
		{"halted", rollout(func(s *plan.Snapshot) {
			s.Group.Rollout.HaltOnFailures, s.RolloutFailures, s.HaltRaised = 1, 1, "x"
			s.StoreFailed = plan.Failure{At: s.Now, Count: 3}
		}, drifted(), well()), "1 instance to replace: the rollout is halted: at least 1 instances with the new " +
			"configuration failed to register or became unhealthy (rule 47)", false},
		{"a closed window", rollout(func(s *plan.Snapshot) {
			s.Group.Windows = []config.Window{window("Mon-Sun 06:00-07:00 UTC")}
		}, drifted(), drifted()), "2 instances to replace: no window of disruption.windows is open (rule 49) until " +
			"06:00:00", false},
		{"canaries", rollout(func(s *plan.Snapshot) {
			s.Group.Rollout.Canary, s.Group.Rollout.BakeTime = 1, config.Duration(10*time.Minute)
		}, drifted(), current(5*time.Minute)), "1 instance to replace: the first instances with the new " +
			"configuration " +
			"run for less than bake_time (rule 46) until 00:06:00", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := plan.Explain(tt.of)
			got := ""
			for _, p := range e.Says.Parts {
				if n := slices.IndexFunc(tt.of.Instances,
					func(i plan.Instance) bool { return i.ID == p.Instance }); n >= 0 {
					p = plan.Part{Text: "i" + strconv.Itoa(n+1)} // the short forms of the test's IDs are alike
				}
				got += p.Words(now)
			}
			if got != tt.want || e.Says.Resting != tt.rest {
				t.Errorf("%q, resting: %t\nwant %q", got, e.Says.Resting, tt.want)
			}
			for _, v := range e.Verdicts {
				if v.Wait.Words(now) == "" {
					t.Errorf("no sentence for %+v", v)
				}
			}
		})
	}
}

// TestWaitSame checks that an estimate does not make another sentence.
func TestWaitSame(t *testing.T) {
	a := plan.Wait{Parts: []plan.Part{{Text: "then 3 more, about "}, {Took: time.Minute}}}
	b := plan.Wait{Parts: []plan.Part{{Text: "then 3 more, about "}, {Took: time.Hour}}}
	c := plan.Wait{Parts: []plan.Part{{Text: "then 2 more, about "}, {Took: time.Minute}}}
	if !a.Same(b) || a.Same(c) || a.Same(plan.Wait{Resting: true}) {
		t.Error("only the estimate may differ")
	}
}
