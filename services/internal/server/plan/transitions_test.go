package plan_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

func TestReportTransitions(t *testing.T) {
	fresh := plan.Instance{State: record.Registered, RegisteredAt: ago(time.Minute)}
	earlier := ago(time.Second)
	for _, c := range []struct {
		name   string
		before plan.Instance
		report plan.Report
		want   func(*plan.Instance)
		effect plan.ReportEffect
	}{
		{name: "the first healthy report ends the backoff", before: fresh, report: plan.Report{Healthy: true},
			want:   func(i *plan.Instance) { i.Healthy, i.EverHealthy = true, true },
			effect: plan.ReportEffect{Changed: true, Recovered: true, EndsBackoff: true}},
		{name: "the first unhealthy report", before: fresh, report: plan.Report{RuntimeHash: "r1"},
			want:   func(i *plan.Instance) { i.RuntimeHash = "r1" },
			effect: plan.ReportEffect{Changed: true, Failed: true}},
		{name: "a repeated report only proves that the agent is alive", before: well(),
			report: plan.Report{Healthy: true, RuntimeHash: "r1"}, want: func(*plan.Instance) {}},
		{name: "an instance that was healthy before recovers without ending the backoff",
			before: with(func(i *plan.Instance) { i.Healthy = false }),
			report: plan.Report{Healthy: true, RuntimeHash: "r1"},
			want:   func(i *plan.Instance) { i.Healthy = true },
			effect: plan.ReportEffect{Changed: true, Recovered: true}},
		{name: "a health check fails (rule 52)", before: well(),
			report: plan.Report{Healthy: true, RuntimeHash: "r1", FailedCheck: "web: refused"},
			want: func(i *plan.Instance) {
				i.Healthy, i.FailedCheck, i.CheckFailedAt = false, "web: refused", now
				i.Lapses = plan.Lapses{Since: now, Count: 1}
			},
			effect: plan.ReportEffect{Changed: true, Failed: true}},
		{name: "another health check fails", before: with(func(i *plan.Instance) {
			i.Healthy, i.FailedCheck, i.CheckFailedAt = false, "web: refused", earlier
		}), report: plan.Report{Healthy: true, RuntimeHash: "r1", FailedCheck: "db: exit status 1"},
			want:   func(i *plan.Instance) { i.FailedCheck = "db: exit status 1" },
			effect: plan.ReportEffect{Changed: true}},
		{name: "the health check passes", before: with(func(i *plan.Instance) {
			i.Healthy, i.FailedCheck, i.CheckFailedAt = false, "web: refused", earlier
		}), report: plan.Report{Healthy: true, RuntimeHash: "r1"},
			want: func(i *plan.Instance) {
				i.Healthy, i.FailedCheck, i.CheckFailedAt = true, "", time.Time{}
			},
			effect: plan.ReportEffect{Changed: true, Recovered: true}},
		{name: "a new instance is not healthy before its checks (rule 53)", before: fresh,
			report: plan.Report{Healthy: true, ChecksPending: true},
			want:   func(i *plan.Instance) { i.ChecksPending = true },
			effect: plan.ReportEffect{Changed: true, Failed: true}},
		{name: "a healthy instance stays healthy while it has no result of new checks (rule 53)", before: well(),
			report: plan.Report{Healthy: true, RuntimeHash: "r1", ChecksPending: true},
			want:   func(i *plan.Instance) { i.ChecksPending = true },
			effect: plan.ReportEffect{Changed: true}},
		{name: "an instance whose agent starts the checks again does not become healthy by that (rule 53)",
			before: with(func(i *plan.Instance) {
				i.Healthy, i.FailedCheck, i.CheckFailedAt = false, "web: refused", earlier
			}), report: plan.Report{Healthy: true, RuntimeHash: "r1", ChecksPending: true},
			want: func(i *plan.Instance) {
				i.ChecksPending, i.FailedCheck, i.CheckFailedAt = true, "", time.Time{}
			},
			effect: plan.ReportEffect{Changed: true}},
		{name: "a notice stays", before: with(func(i *plan.Instance) { i.Notice, i.NoticeDeadline = true, now }),
			report: plan.Report{Healthy: true, RuntimeHash: "r1"}, want: func(*plan.Instance) {}},
		{name: "a notice", before: well(), report: plan.Report{Healthy: true, RuntimeHash: "r1", Notice: true},
			want:   func(i *plan.Instance) { i.Notice = true },
			effect: plan.ReportEffect{Changed: true, Noticed: true, NoticeCounts: true}},
		{name: "a notice of an instance that is being deleted", before: deleting(nil),
			report: plan.Report{Healthy: true, RuntimeHash: "r1", Notice: true},
			want:   func(i *plan.Instance) { i.Notice = true },
			effect: plan.ReportEffect{Changed: true, Noticed: true}},
		{name: "the end of the drain hook (rule 27)", before: deleting(nil),
			report: plan.Report{Healthy: true, RuntimeHash: "r1", HookEnded: true},
			want:   func(i *plan.Instance) { i.HookEnded = true },
			effect: plan.ReportEffect{Changed: true, HookEnded: true}},
		{name: "the end of the drain hook stays", before: deleting(func(i *plan.Instance) { i.HookEnded = true }),
			report: plan.Report{Healthy: true, RuntimeHash: "r1"}, want: func(*plan.Instance) {}},
		{name: "the repeated end of the drain hook", before: deleting(func(i *plan.Instance) { i.HookEnded = true }),
			report: plan.Report{Healthy: true, RuntimeHash: "r1", HookEnded: true}, want: func(*plan.Instance) {}},
		{name: "the end of a drain hook without a deletion", before: well(),
			report: plan.Report{Healthy: true, RuntimeHash: "r1", HookEnded: true}, want: func(*plan.Instance) {}},
		{name: "a power-off", before: well(),
			report: plan.Report{Healthy: true, RuntimeHash: "r1", Stopping: plan.PowerOff},
			want:   func(i *plan.Instance) { i.PowerOffAt = now },
			effect: plan.ReportEffect{Changed: true, PowersOff: true}},
		{name: "a repeated power-off keeps its time", before: with(func(i *plan.Instance) { i.PowerOffAt = earlier }),
			report: plan.Report{Healthy: true, RuntimeHash: "r1", Stopping: plan.PowerOff},
			want:   func(*plan.Instance) {}},
		{name: "a reboot", before: well(), report: plan.Report{Healthy: true, RuntimeHash: "r1", Stopping: plan.Reboot},
			want: func(i *plan.Instance) {
				i.RestartingAt, i.Reboot, i.Lapses = now, true, plan.Lapses{Since: now, Count: 1}
			},
			effect: plan.ReportEffect{Changed: true, Restarts: true}},
		{name: "an upgrade after a reboot was announced keeps the reboot",
			before: with(func(i *plan.Instance) { i.RestartingAt, i.Reboot = earlier, true }),
			report: plan.Report{Healthy: true, RuntimeHash: "r1", Stopping: plan.Upgrade},
			want:   func(*plan.Instance) {}},
		{name: "a plain report after a reboot ends it",
			before: with(func(i *plan.Instance) { i.RestartingAt, i.Reboot = earlier, true }),
			report: plan.Report{Healthy: true, RuntimeHash: "r1"},
			want:   func(i *plan.Instance) { i.RestartingAt, i.Reboot = time.Time{}, false },
			effect: plan.ReportEffect{Changed: true}},
		{name: "a file that could not be stored", before: well(),
			report: plan.Report{Healthy: true, RuntimeHash: "r1", FilesFailed: true},
			want:   func(i *plan.Instance) { i.FilesFailed = true }, effect: plan.ReportEffect{Changed: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := c.before
			c.want(&want)
			want.LastReport = now
			got, effect := plan.ApplyReport(c.before, c.report, now)
			if got != want {
				t.Errorf("instance:\n%+v, want\n%+v", got, want)
			}
			if effect != c.effect {
				t.Errorf("effect: %+v, want %+v", effect, c.effect)
			}
		})
	}
}

func TestStreamTransitions(t *testing.T) {
	i := plan.ApplyDisconnect(with(func(i *plan.Instance) { i.FilesSent = "r1" }), now)
	if i.Connected || !i.LostAt.Equal(now) || i.FilesSent != "r1" {
		t.Errorf("after the stream closed: %+v", i)
	}
	if i = plan.ApplyConnect(i); !i.Connected || !i.LostAt.IsZero() || i.FilesSent != "" {
		t.Errorf("after a stream opened: %+v", i)
	}
}

// TestRule30LateDeletion checks that a leader that learns late of a deletion grants half of the drain time, at most 30
// s.
func TestRule30LateDeletion(t *testing.T) {
	for _, c := range []struct {
		name            string
		decided, drain  time.Duration // time since the decision, and the drain time
		want            time.Duration // time granted from now on
		alreadyDeleting bool
	}{
		{name: "learned in time", decided: time.Second, drain: 5 * time.Minute, want: 5*time.Minute - time.Second},
		{name: "learned after the deadline", decided: time.Hour, drain: 5 * time.Minute, want: 30 * time.Second},
		{name: "learned after a short drain", decided: time.Hour, drain: 20 * time.Second, want: 10 * time.Second},
		{name: "no drain", decided: time.Hour, want: -time.Hour},
		{name: "a deletion that is already known keeps its deadline", decided: time.Hour, drain: 5 * time.Minute,
			want: -55 * time.Minute, alreadyDeleting: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := record.Instance{ID: id(1), State: record.Deleting, DeletingAt: ago(c.decided),
				DeleteDeadline: ago(c.decided).Add(c.drain)}
			before := well()
			if c.alreadyDeleting {
				before.State, before.DeleteDeadline = record.Deleting, rec.DeleteDeadline
			}
			if got := plan.ApplyRecord(before, &rec, &rec, now).DeleteDeadline.Sub(now); got != c.want {
				t.Errorf("the drain may take %s, want %s", got, c.want)
			}
		})
	}
}

func TestProviderTransitions(t *testing.T) {
	asked := ago(0)
	answer := func(state plan.ProviderState) plan.ProviderAnswer {
		return plan.ProviderAnswer{Asked: asked, State: state, ProviderID: "vm-9", LaunchedAt: ago(time.Minute)}
	}
	absent := plan.ProviderAnswer{Asked: asked, Absent: true}
	young := with(func(i *plan.Instance) { i.LaunchedAt = ago(59 * time.Second) })
	for _, c := range []struct {
		name   string
		before plan.Instance
		answer plan.ProviderAnswer
		want   plan.ProviderState
		effect plan.ProviderEffect
	}{
		{"the same state", well(), answer(plan.ProviderRunning), plan.ProviderRunning, plan.ProviderEffect{}},
		{"stopped", well(), answer(plan.ProviderStopped), plan.ProviderStopped,
			plan.ProviderEffect{Changed: true, Lost: true}},
		{"stopped while it is being deleted", deleting(nil), answer(plan.ProviderStopped), plan.ProviderStopped,
			plan.ProviderEffect{Changed: true}},
		{"no state in the answer", well(), answer(plan.ProviderUnknown), plan.ProviderRunning, plan.ProviderEffect{}},
		{"an answer to an older question", with(func(i *plan.Instance) { i.Provider.At = now.Add(time.Second) }),
			answer(plan.ProviderStopped), plan.ProviderRunning, plan.ProviderEffect{Stale: true}},
		{"absent after the grace", well(), absent, plan.ProviderGone, plan.ProviderEffect{Changed: true, Lost: true}},
		{"absent within the grace", young, absent, plan.ProviderRunning, plan.ProviderEffect{}},
		{"absent while its create call is under way", creating(), absent, plan.ProviderUnknown, plan.ProviderEffect{}},
		{"absent, without launch time", plan.Instance{State: record.Created, CreatedAt: ago(time.Minute)}, absent,
			plan.ProviderGone, plan.ProviderEffect{Changed: true, Lost: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, effect := plan.ApplyProviderAnswer(c.before, c.answer)
			if got.Provider.Value != c.want || effect != c.effect {
				t.Errorf("state %q, effect %+v; want %q, %+v", got.Provider.Value, effect, c.want, c.effect)
			}
			if !effect.Stale && !got.Provider.At.Equal(asked) {
				t.Errorf("asked at %s, want %s", got.Provider.At, asked)
			}
		})
	}
	got, _ := plan.ApplyProviderAnswer(plan.Instance{State: record.Created, CreatedAt: now},
		answer(plan.ProviderRunning))
	if got.ProviderID != "vm-9" || !got.LaunchedAt.Equal(ago(time.Minute)) || !got.Provider.Complete {
		t.Errorf("the answer's facts are not taken over: %+v", got)
	}
}

func TestWorkTransitionsCountFailuresByKind(t *testing.T) {
	var i plan.Instance
	end := func(work plan.Work, failed bool) {
		i.Work = work
		i = plan.ApplyWorkResult(i, failed, now)
	}
	end(plan.Maintaining, true)
	end(plan.Maintaining, true)
	end(plan.MarkingDeleting, true)
	i.Asking = true
	i = plan.ApplyAskResult(i, true, now)
	if i.MaintenanceFailed.Count != 2 || i.Failed.Count != 1 || i.AskFailed.Count != 1 || i.Work != plan.Idle ||
		i.Asking {
		t.Fatalf("after the failures: %+v", i)
	}
	end(plan.Draining, false)
	if i.MaintenanceFailed.Count != 2 || i.Failed != (plan.Failure{}) || i.AskFailed.Count != 1 {
		t.Fatalf("after a success: %+v", i)
	}
}

// TestRule25BackoffDoublesWithinBounds checks that the backoff doubles with every failure.
func TestRule25BackoffDoublesWithinBounds(t *testing.T) {
	key := config.GroupKey{Tenant: "default", Group: "workers"}
	if until := (plan.Backoff{}).Until(key); !until.IsZero() {
		t.Errorf("without failures: %s", until)
	}
	want := time.Second
	different := map[time.Duration]bool{}
	for failures := 1; failures < 2000; failures++ {
		got := plan.Backoff{Failures: failures, Last: now}.Until(key).Sub(now)
		if got < want*9/10 || got > want*11/10 {
			t.Fatalf("%d failures: %s, want %s plus or minus 10 %%", failures, got, want)
		}
		if want = min(2*want, 5*time.Minute); failures > 20 {
			different[got] = true
		}
	}
	if len(different) < 100 {
		t.Errorf("only %d different waits: no jitter", len(different))
	}
	other := plan.Backoff{Failures: 9, Last: now}.Until(config.GroupKey{Tenant: "default", Group: "others"})
	if other.Equal(plan.Backoff{Failures: 9, Last: now}.Until(key)) {
		t.Error("two groups wait in step")
	}
}

func TestRule25CreationsThatFailTogetherCountOnce(t *testing.T) {
	key := config.GroupKey{Tenant: "default", Group: "workers"}
	var b plan.Backoff
	for n := range 1000 {
		b = plan.ApplyCreateFailure(b, key, "no capacity", now.Add(time.Duration(n)*100*time.Microsecond))
	}
	if b.Failures != 1 || !b.Last.Equal(now) || b.Reason != "no capacity" {
		t.Errorf("a thousand together: %+v", b)
	}
	if b = plan.ApplyCreateFailure(b, key, "still none", b.Until(key)); b.Failures != 2 || b.Reason != "still none" {
		t.Errorf("after the wait: %+v", b)
	}
}

func TestGroupChangeEndsTheBackoff(t *testing.T) {
	before := config.Group{Size: 2, Template: "t", Subnets: []string{"a"}, MaxSurge: 1}
	for _, c := range []struct {
		name   string
		change func(*config.Group)
		ends   bool
	}{
		{"the surge", func(g *config.Group) { g.MaxSurge = 2 }, false},
		{"the size", func(g *config.Group) { g.Size = 3 }, true},
		{"the size, by the leader", func(g *config.Group) { g.Size, g.Scaling = 3, &config.Scaling{Max: 9} }, false},
		{"the size, held by a person", func(g *config.Group) {
			g.Size, g.Scaling, g.SizeHeld = 3, &config.Scaling{Max: 9}, true
		}, true},
		{"a subnet", func(g *config.Group) { g.Subnets = []string{"a", "b"} }, true},
		{"the infra configuration", func(g *config.Group) { g.InfraHash = "v2" }, true},
	} {
		after := before
		c.change(&after)
		if got := plan.EndsBackoff(&before, &after); got != c.ends {
			t.Errorf("a change of %s: %v", c.name, got)
		}
	}
}

// TestRule39NoticesBeyondTheSizeBackOff checks that a group backs off only if it gets more notices than its size. The
// count of notices begins again after an hour.
func TestRule39NoticesBeyondTheSizeBackOff(t *testing.T) {
	group := config.Group{GroupKey: config.GroupKey{Tenant: "default", Group: "workers"}, Size: 50}
	var n plan.Notices
	for range group.Size {
		n = plan.ApplyNotice(n, &group, now)
	}
	if n.Backoff.Failures != 0 {
		t.Errorf("a reclaim of the whole group backs off: %+v", n)
	}
	for second := range 3600 {
		n = plan.ApplyNotice(n, &group, now.Add(time.Duration(second)*time.Second))
	}
	if wait := n.Backoff.Until(group.GroupKey).Sub(n.Backoff.Last); n.Backoff.Failures < 15 || wait < 4*time.Minute {
		t.Errorf("an hour of notices: %d failures, the group waits %s", n.Backoff.Failures, wait)
	}
	if n = plan.ApplyNotice(n, &group, now.Add(time.Hour)); n.Count != 1 || n.Backoff.Failures != 0 {
		t.Errorf("in the next hour: %+v", n)
	}
}

// TestRule40ExplicitDeletionShortensADrain checks that a requested deletion brings the deadline of a drain forward, and
// that no other deletion moves it.
func TestRule40ExplicitDeletionShortensADrain(t *testing.T) {
	for _, c := range []struct {
		name     string
		deletion plan.Deletion
		want     time.Duration
	}{
		{"requested, earlier", plan.Deletion{Cause: plan.CauseRequested, Deadline: now.Add(time.Minute)}, time.Minute},
		{"requested, without a drain", plan.Deletion{Cause: plan.CauseRequested}, 0},
		{"a notice, earlier", plan.Deletion{Cause: plan.CauseNotice, Deadline: now.Add(time.Minute)}, time.Minute},
		{"a notice, later", plan.Deletion{Cause: plan.CauseNotice, Deadline: now.Add(time.Hour)}, 5 * time.Minute},
		{"requested, later", plan.Deletion{Cause: plan.CauseRequested, Deadline: now.Add(time.Hour)}, 5 * time.Minute},
		{"scale-down, earlier", plan.Deletion{Cause: plan.CauseScaleDown, Deadline: now}, 5 * time.Minute},
	} {
		before := record.Instance{ID: id(1), State: record.Deleting, DeleteReason: "the cloud takes its VM away",
			DeletingAt: ago(time.Minute), DeleteDeadline: now.Add(5 * time.Minute)}
		rec := before
		changed := plan.RequestDelete(&rec, c.deletion, now)
		if got := rec.DeleteDeadline.Sub(now); got != c.want || changed != (c.want != 5*time.Minute) ||
			rec.DeleteReason != before.DeleteReason || !rec.DeletingAt.Equal(before.DeletingAt) {
			t.Errorf("%s: changed is %v, record %+v", c.name, changed, rec)
		}
		known := plan.ApplyRecord(deleting(func(i *plan.Instance) {
			i.DeleteDeadline = before.DeleteDeadline
		}), &before, &rec, now)
		if got := known.DeleteDeadline.Sub(now); got != c.want {
			t.Errorf("%s: the planner sees %s, want %s", c.name, got, c.want)
		}
	}
	// The leader learned of the deletion after the recorded deadline, so it granted more drain time (rule 30). An
	// earlier deadline in the record must not shorten the granted time.
	before := record.Instance{ID: id(1), State: record.Deleting, DeletingAt: ago(time.Minute),
		DeleteDeadline: ago(10 * time.Second)}
	rec := before
	rec.DeleteDeadline = ago(15 * time.Second)
	granted := deleting(func(i *plan.Instance) { i.DeleteDeadline = now.Add(20 * time.Second) })
	if got := plan.ApplyRecord(granted, &before, &rec, now).DeleteDeadline; !got.Equal(granted.DeleteDeadline) {
		t.Errorf("an earlier deadline in the record takes granted time back: %s, want %s", got, granted.DeleteDeadline)
	}
}

func TestRequestDeleteHappensOnce(t *testing.T) {
	rec := record.Instance{State: record.Registered}
	first := plan.Deletion{Reason: "first", Cause: plan.CauseRequested, Deadline: now.Add(time.Minute)}
	if !plan.RequestDelete(&rec, first, now) || rec.State != record.Deleting || rec.DeleteReason != "first" ||
		!rec.DeletingAt.Equal(now) || !rec.DeleteDeadline.Equal(now.Add(time.Minute)) {
		t.Fatalf("the first request: %+v", rec)
	}
	want := rec
	second := plan.Deletion{Reason: "second", Deadline: now.Add(time.Hour)}
	if plan.RequestDelete(&rec, second, now.Add(time.Second)) || !reflect.DeepEqual(rec, want) {
		t.Errorf("the second request changed the record to %+v, want %+v", rec, want)
	}
	undrained := record.Instance{State: record.Created}
	if plan.RequestDelete(&undrained, plan.Deletion{}, now); !undrained.DeleteDeadline.Equal(now) {
		t.Errorf("without a drain the deadline is %s, want now", undrained.DeleteDeadline)
	}
}

func TestIsDraining(t *testing.T) {
	for _, c := range []struct {
		name string
		i    plan.Instance
		want bool
	}{
		{"waiting for an operator", deleting(nil), true},
		{"acknowledged", deleting(func(i *plan.Instance) { i.Drained = true }), false},
		{"past its deadline", deleting(func(i *plan.Instance) { i.DeleteDeadline = now }), false},
		{"terminating", deleting(func(i *plan.Instance) { i.TerminateRequested = now }), false},
		{"its VM is gone", deleting(func(i *plan.Instance) { i.Provider = observed(plan.ProviderGone) }), false},
		{"absent from an incomplete list", deleting(func(i *plan.Instance) {
			i.Provider = plan.Observed[plan.ProviderState]{Value: plan.ProviderGone, At: now}
		}), true},
	} {
		if got := plan.IsDraining(&c.i, now); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestCounts(t *testing.T) {
	notice, incomplete := well(), well()
	notice.Notice = true
	incomplete.Provider = plan.Observed[plan.ProviderState]{Value: plan.ProviderGone}
	marking := well()
	marking.Work = plan.MarkingDeleting
	for _, c := range []struct {
		name string
		i    plan.Instance
		want bool
	}{
		{"well", well(), true}, {"booting", booting(), true}, {"creating", creating(), true},
		{"silent", silent(), true},
		{"gone", lost(), false}, {"gone by an incomplete answer", incomplete, true}, {"a notice", notice, false},
		{"deleting", deleting(nil), false}, {"marked", marking, false}, {"on demand", onDemand(well()), false},
	} {
		if got := plan.Counts(&c.i); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// failing returns an instance whose health check fails, after applying change to it.
func failing(change func(*plan.Instance)) plan.Instance {
	return with(func(i *plan.Instance) {
		i.Healthy, i.FailedCheck, i.CheckFailedAt = false, "web: status 503, want 200", ago(time.Minute)
		if change != nil {
			change(i)
		}
	})
}

// formerly returns an instance that an earlier leader deleted. This leader learned only later that a health check of
// the instance fails.
func formerly(reason string, change func(*plan.Instance)) plan.Instance {
	return failing(func(i *plan.Instance) {
		i.State, i.DeletingAt, i.CheckFailedAt, i.DeleteReason = record.Deleting, ago(time.Minute), ago(time.Second),
			reason
		if change != nil {
			change(i)
		}
	})
}

// TestRule26CountSilence checks which instances the shard's unhealthy guard counts as running and as silent.
func TestRule26CountSilence(t *testing.T) {
	s := snapshot(0).Settings
	soon := silentDeleting()
	soon.DeletingAt = ago(9 * time.Minute) // its last report was a minute before
	rebooting := restarting(4*time.Minute, true)
	off := poweringOff(0)
	for _, c := range []struct {
		name            string
		i               plan.Instance
		running, silent bool
	}{
		{"well", well(), true, false}, {"late", late(), true, true}, {"stream lost", lostStream(time.Second), true,
			true},
		{"silent", silent(), true, true}, {"booting", booting(), false, false}, {"gone", lost(), false, false},
		{"deleted for its silence", silentDeleting(), true, true}, {"deleted before it was silent", soon, false, false},
		{"deleting", deleting(nil), false, false}, {"rebooting", rebooting, true, false},
		{"powers off", off, false, false},
		{"a failing check", failing(nil), true, true},
		{"a failing check, never healthy", failing(func(i *plan.Instance) { i.EverHealthy = false }), true, true},
		{"deleted for its failing check", failing(func(i *plan.Instance) {
			i.State, i.DeletingAt, i.CheckFailedAt = record.Deleting, ago(time.Second), ago(time.Minute)
		}), true, true},
		{"unhealthy in a load balancer once", with(func(i *plan.Instance) { i.Balancer.Rounds = 1 }), true, true},
		{"its check fails while it drains", failing(func(i *plan.Instance) {
			i.State, i.DeletingAt, i.CheckFailedAt = record.Deleting, ago(time.Minute), ago(time.Second)
		}), false, false},
		{"deleted for a failing check by a former leader", formerly("its health check fails: web (rule 52)", nil), true,
			true},
		{"the same, and it passes again", formerly("its health check fails: web (rule 52)", func(i *plan.Instance) {
			i.FailedCheck, i.CheckFailedAt = "", time.Time{}
		}), false, false},
		{"deleted for its load balancer by a former leader", formerly("it is unhealthy in lb (rule 59)",
			func(i *plan.Instance) { i.FailedCheck, i.CheckFailedAt = "", time.Time{} }), true, true},
		{"scaled down by a former leader, and its check fails", formerly("the group is larger than its size (rule 22)",
			nil), false, false},
	} {
		running, silent := plan.CountSilence(&c.i, s, ago(time.Hour), now)
		if running != c.running || silent != c.silent {
			t.Errorf("%s: running %v silent %v", c.name, running, silent)
		}
		if _, silent := plan.CountSilence(&c.i, s, time.Time{}, now); silent {
			t.Errorf("%s: silent although silence does not count yet", c.name)
		}
	}
}

// TestRule33TimeToComeBack checks the time in which an instance may reconnect to a new leader. A short report interval
// must not shorten it.
func TestRule33TimeToComeBack(t *testing.T) {
	s := snapshot(2, unheard(), well())
	s.Settings.HealthInterval = 5 * time.Second
	s.Instances[1].LastReport = ago(time.Second)
	back := reconnect.ReturnTime(s.Settings.HealthInterval) + s.Settings.HealthInterval/10
	s.SilenceFrom = ago(back - time.Second)
	if lines, _ := planned(s); slices.Contains(lines, "create for i1") {
		t.Errorf("replaced %s after the first agent connected: %q", back-time.Second, lines)
	}
	s.SilenceFrom = ago(back)
	if lines, _ := planned(s); !slices.Contains(lines, "create for i1") {
		t.Errorf("not replaced %s after the first agent connected: %q", back, lines)
	}
	s.Instances[0].LastReport = ago(20 * time.Second)
	s.SilenceFrom = ago(20 * time.Second)
	if lines, _ := planned(s); !slices.Contains(lines, "create for i1") {
		t.Errorf("an instance that reported to this leader is not replaced after three missed reports: %q", lines)
	}
}

// TestRule59Verdicts applies several verdicts of a load balancer to an instance, one after the other.
func TestRule59Verdicts(t *testing.T) {
	const grace = 5 * time.Minute
	const why = "load balancer web: Target.Timeout"
	well, sick := plan.BalancerVerdict{Healthy: true}, plan.BalancerVerdict{Failed: why}
	other, undecided := plan.BalancerVerdict{Failed: "other"}, plan.BalancerVerdict{}
	joined := func(before time.Duration) plan.Instance {
		return with(func(i *plan.Instance) { i.InLoadBalancers, i.BalancedAt = true, ago(before) })
	}
	leaving := joined(time.Hour)
	leaving.State, leaving.DeletingAt = record.Deleting, ago(time.Second)
	leaving.Healthy, leaving.FailedCheck = false, why
	leaving.Balancer = plan.BalancerHealth{WasHealthy: true, Rounds: 2, Failed: why}
	checked := failing(nil)
	checked.InLoadBalancers, checked.BalancedAt = true, ago(time.Hour)
	for _, c := range []struct {
		name     string
		i        plan.Instance
		verdicts []plan.BalancerVerdict
		want     string // the verdict that counts
		failed   bool   // the last verdict made the instance unhealthy
	}{
		{"no verdict", joined(time.Minute), []plan.BalancerVerdict{undecided}, "", false},
		{"once", joined(time.Hour), []plan.BalancerVerdict{well, sick}, "", false},
		{"twice", joined(time.Hour), []plan.BalancerVerdict{well, sick, sick}, why, true},
		{"twice, with a gap", joined(time.Hour), []plan.BalancerVerdict{sick, undecided, sick}, "", false},
		{"again for another reason", joined(time.Hour), []plan.BalancerVerdict{sick, sick, other}, why, false},
		{"new, not healthy yet", joined(time.Minute), []plan.BalancerVerdict{undecided, sick, sick, sick}, "", false},
		{"new, and healthy once", joined(time.Minute), []plan.BalancerVerdict{well, undecided, sick, sick}, why, true},
		{"the grace is over", joined(grace), []plan.BalancerVerdict{sick, sick}, why, true},
		{"recovered", joined(time.Hour), []plan.BalancerVerdict{sick, sick, well}, "", false},
		{"not in use any more", joined(time.Hour), []plan.BalancerVerdict{sick, sick, undecided}, "", false},
		{"drained", leaving, []plan.BalancerVerdict{undecided, undecided}, why, false},
		{"a health check fails too", checked, []plan.BalancerVerdict{sick, sick}, why, false},
	} {
		i, failed := c.i, false
		for _, v := range c.verdicts {
			i, failed = plan.ApplyBalancerVerdict(i, v, grace, now)
		}
		if i.Balancer.Failed != c.want || failed != c.failed || i.Healthy && c.want != "" {
			t.Errorf("%s: %+v, healthy %v, failed %v; want %q, %v", c.name, i.Balancer, i.Healthy, failed, c.want,
				c.failed)
		}
		// After the next report, the instance is healthy unless a load balancer's verdict or a health check makes it
		// unhealthy.
		report := plan.Report{Healthy: true, RuntimeHash: i.RuntimeHash}
		if c.i.FailedCheck != c.want {
			report.FailedCheck = c.i.FailedCheck
		}
		next, _ := plan.ApplyReport(i, report, now)
		if healthy := c.want == "" && report.FailedCheck == ""; next.Healthy != healthy ||
			next.FailedCheck == "" != healthy {
			t.Errorf("%s: after a report healthy %v, failed check %q", c.name, next.Healthy, next.FailedCheck)
		}
	}
}
