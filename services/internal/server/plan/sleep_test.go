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

// sleepy returns a spare that runs and can sleep.
func sleepy(change func(*plan.Instance)) plan.Instance {
	return with(func(i *plan.Instance) {
		i.Spare, i.Sleep, i.Role = true, config.SparesStopped, plan.RoleSpare
		if change != nil {
			change(i)
		}
	})
}

// asleep returns a spare that has slept for 30 min.
func asleep(change func(*plan.Instance)) plan.Instance {
	return sleepy(func(i *plan.Instance) {
		i.LastReport, i.LostAt, i.Connected = ago(30*time.Minute), ago(30*time.Minute), false
		i.AsleepAt, i.SleepRequested = ago(30*time.Minute), ago(30*time.Minute)
		i.CertificateEnds = now.Add(24 * time.Hour)
		i.Provider = observed(plan.ProviderStopped)
		if change != nil {
			change(i)
		}
	})
}

// waking returns a member that slept, and became a member d ago.
func waking(d time.Duration, change func(*plan.Instance)) plan.Instance {
	return asleep(func(i *plan.Instance) {
		i.Spare, i.PromotedAt, i.Healthy, i.EverHealthy = false, ago(d), false, false
		i.WakeRequested, i.Provider.At = ago(d), ago(d)
		if change != nil {
			change(i)
		}
	})
}

// TestRules82To84Sleep checks when spares are put to sleep and woken, and what counts as a fault of them.
func TestRules82To84Sleep(t *testing.T) {
	spares := func(n int) func(*plan.Snapshot) {
		return func(s *plan.Snapshot) {
			s.Group.Spares = config.Spares{Count: n, State: config.SparesStopped}
			s.Settings.RequestTimeout = 30 * time.Second
		}
	}
	and := func(changes ...func(*plan.Snapshot)) func(*plan.Snapshot) {
		return func(s *plan.Snapshot) {
			for _, change := range changes {
				change(s)
			}
		}
	}
	one, two := spares(1), spares(2)
	answer := func(state plan.ProviderState, before time.Duration) func(*plan.Instance) {
		return func(i *plan.Instance) { i.Provider = observed(state); i.Provider.At = ago(before) }
	}
	for _, c := range []struct {
		name      string
		size      int
		instances []plan.Instance
		change    func(*plan.Snapshot)
		want      []string
	}{
		{name: "a spare that is ready", size: 1, instances: []plan.Instance{well(), sleepy(nil)}, change: one,
			want: []string{"sleep i2"}},
		{name: "one of a group whose spares run", size: 1, instances: []plan.Instance{well(), spare(well())},
			change: func(s *plan.Snapshot) { s.Group.Spares.Count = 1 }},
		{name: "its agent has no role yet", size: 1, instances: []plan.Instance{well(), sleepy(func(i *plan.Instance) {
			i.Role = ""
		})}, change: one},
		{name: "its agent is gone", size: 1, instances: []plan.Instance{well(), sleepy(func(i *plan.Instance) {
			i.Connected = false
		})}, change: one, want: []string{}},
		{name: "its checks have not passed", size: 1,
			instances: []plan.Instance{well(), sleepy(func(i *plan.Instance) { i.ChecksPending = true })}, change: one},
		{name: "it is not healthy", size: 1,
			instances: []plan.Instance{well(), sleepy(func(i *plan.Instance) {
				i.Healthy, i.EverHealthy = false, false
			})}, change: one, want: []string{"create spare"}},
		{name: "its files are outdated", size: 1,
			instances: []plan.Instance{well(), sleepy(func(i *plan.Instance) { i.RuntimeHash = "r0" })}, change: one,
			want: []string{"push_files i2"}},
		{name: "a file could not be stored", size: 1,
			instances: []plan.Instance{well(), sleepy(func(i *plan.Instance) {
				i.FilesFailed, i.FilesSent = true, "r1"
			})}, change: one},
		{name: "its machine powers off", size: 1,
			instances: []plan.Instance{well(), sleepy(func(i *plan.Instance) { i.PowerOffAt = now })}, change: and(one,
				func(s *plan.Snapshot) { s.Settings.ShutdownGrace = time.Minute }), want: []string{"ask i2"}},
		{name: "its agent restarts", size: 1,
			instances: []plan.Instance{well(), sleepy(func(i *plan.Instance) { i.RestartingAt = now })}, change: one},
		{name: "it is used before it sleeps", size: 1, instances: []plan.Instance{lost(), sleepy(nil)}, change: one,
			want: []string{"promote i2 for i1", "create spare", "mark_deleting i1 gone"}},
		{name: "one did not wake just now", size: 1, instances: []plan.Instance{well(), sleepy(nil)},
			change: and(one, func(s *plan.Snapshot) { s.NotWokenAt = ago(9 * time.Minute) })},
		{name: "one did not wake", size: 1, instances: []plan.Instance{well(), sleepy(nil)},
			change: and(one, func(s *plan.Snapshot) { s.NotWokenAt = ago(10 * time.Minute) }),
			want:   []string{"sleep i2"}},
		{name: "it sleeps", size: 1, instances: []plan.Instance{well(), asleep(nil)}, change: one},
		{name: "a new leader knows nothing else of it", size: 1,
			instances: []plan.Instance{well(), asleep(func(i *plan.Instance) {
				i.LastReport, i.LostAt, i.Healthy, i.EverHealthy, i.Role = time.Time{}, time.Time{}, false, false, ""
				i.SleepRequested = time.Time{}
			})}, change: one},
		{name: "a leader died before it put it to sleep", size: 1, instances: []plan.Instance{well(),
			asleep(func(i *plan.Instance) {
				i.Provider, i.SleepRequested = observed(plan.ProviderRunning), time.Time{}
			})}, change: one, want: []string{"sleep i2"}},
		{name: "it falls asleep", size: 1, instances: []plan.Instance{well(), asleep(func(i *plan.Instance) {
			i.AsleepAt, i.SleepRequested = ago(2*time.Second), ago(2*time.Second)
			i.Provider = observed(plan.ProviderStopping)
			i.Provider.At = ago(1500 * time.Millisecond)
		})}, change: one, want: []string{"ask i2"}},
		{name: "it does not fall asleep", size: 1, instances: []plan.Instance{well(), asleep(func(i *plan.Instance) {
			i.SleepRequested, i.Provider = ago(12*time.Minute), observed(plan.ProviderRunning)
		})}, change: one, want: []string{"sleep i2"}},
		{name: "its VM is gone", size: 1,
			instances: []plan.Instance{well(), asleep(answer(plan.ProviderGone, time.Second))},
			change:    one, want: []string{"create spare", "mark_deleting i2 gone"}},
		{name: "its VM failed", size: 1,
			instances: []plan.Instance{well(), asleep(answer(plan.ProviderFailed, time.Second))},
			change:    one, want: []string{"create spare", "mark_deleting i2 gone"}},
		{name: "its VM is being deleted", size: 1,
			instances: []plan.Instance{well(), asleep(answer(plan.ProviderGoing, time.Second))},
			change:    one, want: []string{"create spare", "mark_deleting i2 gone"}},
		{name: "another state of spares", size: 1, instances: []plan.Instance{well(), asleep(nil)},
			change: func(s *plan.Snapshot) { s.Group.Spares.Count = 1 }, want: []string{"create spare"}},
		{name: "another state of spares, renewed", size: 1,
			instances: []plan.Instance{well(), asleep(nil), spare(well())},
			change:    func(s *plan.Snapshot) { s.Group.Spares.Count = 1 }, want: []string{"mark_deleting i2 drift"}},
		{name: "its certificate would expire", size: 1, instances: []plan.Instance{well(),
			asleep(func(i *plan.Instance) { i.CertificateEnds = now.Add(15 * time.Minute) })},
			change: and(one, func(s *plan.Snapshot) { s.Group.Protected = []ident.ID{id(2)} }),
			want:   []string{"create spare"}},
		{name: "fewer spares are wanted", size: 1, instances: []plan.Instance{well(), asleep(nil)},
			change: func(*plan.Snapshot) {}, want: []string{"mark_deleting i2 drift"}},
		{name: "a spare that runs first", size: 1,
			instances: []plan.Instance{lost(), asleep(func(i *plan.Instance) { i.LaunchedAt = ago(9 * time.Hour) }),
				sleepy(nil)}, change: two,
			want: []string{"promote i3 for i1", "create spare", "mark_deleting i1 gone"}},
		{name: "no spare that falls asleep", size: 1, instances: []plan.Instance{lost(),
			asleep(answer(plan.ProviderStopping, time.Second))}, change: one,
			want: []string{"create for i1", "mark_deleting i1 gone"}},
		{name: "a spare that cannot sleep", size: 1, instances: []plan.Instance{lost(), asleep(func(i *plan.Instance) {
			i.SleepRequested, i.Provider = time.Time{}, observed(plan.ProviderRunning)
			i.MaintenanceFailed = plan.Failure{At: now, Count: 3}
		})}, change: one, want: []string{"promote i2 for i1", "create spare", "mark_deleting i1 gone"}},
		{name: "it becomes a member", size: 1, instances: []plan.Instance{waking(0, func(i *plan.Instance) {
			i.WakeRequested = time.Time{}
		}), asleep(nil)}, change: one, want: []string{"wake i1"}},
		{name: "it wakes", size: 1, instances: []plan.Instance{waking(2*time.Second, answer(plan.ProviderPending,
			500*time.Millisecond)), asleep(nil)}, change: one},
		{name: "it still sleeps", size: 1, instances: []plan.Instance{waking(2*time.Second, answer(plan.ProviderStopped,
			500*time.Millisecond)), asleep(nil)}, change: one, want: []string{"wake i1"}},
		{name: "its time to wake is over", size: 1, instances: []plan.Instance{
			waking(30*time.Second, answer(plan.ProviderStopped, time.Second)), asleep(nil)}, change: one,
			want: []string{"wake i1", "ask i1"}},
		{name: "it did not wake", size: 1, instances: []plan.Instance{
			waking(31*time.Second, answer(plan.ProviderStopped, time.Second)), asleep(nil)}, change: one,
			want: []string{"promote i2 for i1", "create spare", "mark_deleting i1 not_woken"}},
		{name: "it did not wake, and there is no other", size: 1, instances: []plan.Instance{
			waking(31*time.Second, answer(plan.ProviderStopped, time.Second))}, change: one,
			want: []string{"create for i1", "create spare", "mark_deleting i1 not_woken"}},
		{name: "it cannot be woken", size: 1, instances: []plan.Instance{waking(time.Second, func(i *plan.Instance) {
			i.WakeFailed, i.WakeRequested = "not found", time.Time{}
		}), asleep(nil)}, change: one,
			want: []string{"promote i2 for i1", "create spare", "mark_deleting i1 not_woken"}},
		{name: "a new leader gives it time again", size: 1, instances: []plan.Instance{
			waking(time.Minute, func(i *plan.Instance) { i.WakeRequested = time.Time{} }), asleep(nil)},
			change: and(one, func(s *plan.Snapshot) { s.LeaderSince = ago(29 * time.Second) }),
			want:   []string{"wake i1", "ask i1"}},
		{name: "it runs, and its agent is not back yet", size: 1, instances: []plan.Instance{
			waking(4*time.Minute, answer(plan.ProviderRunning, time.Minute)), asleep(nil)}, change: one},
		{name: "its agent does not come back", size: 1, instances: []plan.Instance{
			waking(5*time.Minute, answer(plan.ProviderRunning, time.Minute)), asleep(nil)}, change: one,
			want: []string{"promote i2 for i1", "create spare"}},
		{name: "a member that slept once, and stops", size: 1, instances: []plan.Instance{
			waking(time.Hour, func(i *plan.Instance) { i.Woken = true }), asleep(nil)}, change: one,
			want: []string{"promote i2 for i1", "create spare", "mark_deleting i1 gone"}},
		{name: "a deleted group", size: 1, instances: []plan.Instance{asleep(nil), waking(0, nil)},
			change: and(one, func(s *plan.Snapshot) { s.Group.Deleted = true }),
			want:   []string{"mark_deleting i2 group_deleted", "mark_deleting i1 group_deleted"}},
		{name: "its deletion needs no drain", size: 1,
			instances: []plan.Instance{well(), asleep(func(i *plan.Instance) {
				i.State, i.DeletingAt, i.DeleteDeadline = record.Deleting, now, now.Add(time.Minute)
			}), asleep(nil)}, change: one, want: []string{"terminate i2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := snapshot(c.size, c.instances...)
			c.change(&s)
			lines, d := planned(s)
			if err := plantest.Check(s, d); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(strings.Join(c.want, "\n"), strings.Join(lines, "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSleepOfASpare checks what reports, answers and records make of a spare that is put to sleep and woken.
func TestSleepOfASpare(t *testing.T) {
	rec := record.Instance{ID: id(1), State: record.Registered, RegisteredAt: ago(time.Hour),
		Spare:       &record.Spare{Sleep: config.SparesStopped},
		Certificate: &record.CertificateRef{NotAfter: now.Add(time.Hour)}}
	awake := rec
	if !plan.RequestSleep(&rec, now) || plan.RequestSleep(&rec, now.Add(1)) || !rec.Spare.AsleepAt.Equal(now) ||
		!awake.Spare.AsleepAt.IsZero() {
		t.Errorf("%+v, before %+v", rec.Spare, awake.Spare)
	}
	for _, other := range []record.Instance{{State: record.Registered, Spare: &record.Spare{}},
		{State: record.Deleting, Spare: &record.Spare{Sleep: config.SparesStopped}}, {State: record.Registered}} {
		if plan.RequestSleep(&other, now) {
			t.Errorf("%+v is put to sleep", other)
		}
	}
	report := plan.Report{Healthy: true, Role: plan.RoleSpare, RuntimeHash: "r1"}
	i, _ := plan.ApplyReport(plan.ApplyRecord(plan.Instance{}, &awake, &awake, now), report, now)
	i = plan.ApplyRecord(i, &awake, &rec, now)
	if !i.Asleep() || !i.Rests() || i.Waking() || !i.CertificateEnds.Equal(now.Add(time.Hour)) {
		t.Fatalf("%+v", i)
	}
	down := plan.Report{Stopping: plan.PowerOff, FailedCheck: "web: refused", Role: plan.RoleSpare}
	i, effect := plan.ApplyReport(i, down, now.Add(time.Second))
	if effect != (plan.ReportEffect{}) || !i.PowerOffAt.IsZero() || i.FailedCheck != "" || i.Lapses.Count != 0 {
		t.Errorf("what the agent says before it sleeps: %+v, %+v", effect, i)
	}
	stopped := plan.ProviderAnswer{Asked: now.Add(time.Minute), State: plan.ProviderStopped}
	i, answer := plan.ApplyProviderAnswer(i, stopped)
	if answer.Lost || !plan.CountsAsSpare(&i) {
		t.Errorf("%+v", answer)
	}

	member := rec
	if !plan.RequestPromote(&member, now.Add(time.Hour)) || member.Spare.AsleepAt.IsZero() || member.Spare.Sleep == "" {
		t.Fatalf("%+v", member.Spare)
	}
	i = plan.ApplyRecord(i, &rec, &member, now.Add(time.Hour))
	if !i.Waking() || i.Healthy || i.EverHealthy || !plan.Counts(&i) {
		t.Errorf("%+v", i)
	}
	for work, role := range map[plan.Work]plan.Role{plan.Idle: plan.RoleMember, plan.Waking: plan.RoleSpare} {
		report.Role, i.Work = role, work
		if i, _ = plan.ApplyReport(i, report, now.Add(time.Hour)); i.Healthy || i.Woken {
			t.Errorf("a report before the VM is woken counts: work %d, role %s", work, role)
		}
	}
	report.Role, i.Work = plan.RoleMember, plan.Waking
	if i, _ := plan.ApplyReport(i, report, now.Add(time.Hour)); !i.Healthy || !i.Woken || i.WakeRequested.IsZero() {
		t.Errorf("the report of a member whose VM is being woken does not count: %+v", i)
	}
	i.Work = plan.Idle
	if !plan.AwaitsFiles(&i, "r1", false, "r2") || plan.AwaitsFiles(&i, "r2", false, "r2") ||
		plan.AwaitsFiles(&i, "r1", true, "r2") {
		t.Error("which files it awaits")
	}
	i.WakeRequested, report.Role = now.Add(time.Hour), plan.RoleMember
	i, effect = plan.ApplyReport(i, report, now.Add(time.Hour+time.Second))
	if !plan.Counts(&i) || i.Provider.Value != plan.ProviderRunning {
		t.Errorf("the provider's old answer counts: %+v", i.Provider)
	}
	late := plan.ProviderAnswer{Asked: now.Add(time.Hour + 30*time.Second), State: plan.ProviderStopped}
	if i, _ := plan.ApplyProviderAnswer(i, late); !plan.Counts(&i) {
		t.Error("a late answer of the provider counts")
	}
	if !i.Woken || !i.Healthy || !effect.Recovered || i.Rests() || plan.AwaitsFiles(&i, "r1", false, "r2") {
		t.Errorf("%+v, %+v", i, effect)
	}
	if !plan.Counts(&i) {
		t.Error("an agent reports, and its VM counts as stopped because of an earlier answer")
	}
	stopped.Asked = now.Add(time.Hour)
	if i, answer = plan.ApplyProviderAnswer(i, stopped); !answer.Stale || !plan.Counts(&i) {
		t.Errorf("an answer to a question from before the report: %+v", answer)
	}
	i, _ = plan.ApplyProviderAnswer(i, plan.ProviderAnswer{Asked: now.Add(time.Hour), State: plan.ProviderRunning})
	stopped.Asked = now.Add(2 * time.Hour)
	if i, answer = plan.ApplyProviderAnswer(i, stopped); !answer.Lost || plan.Counts(&i) {
		t.Errorf("%+v", answer)
	}

	// A new leader wakes a member that may not have been woken.
	if i = plan.ApplyRecord(plan.Instance{}, &member, &member, now.Add(time.Hour+9*time.Minute)); !i.Waking() {
		t.Errorf("%+v", i)
	}
	if i = plan.ApplyRecord(plan.Instance{}, &member, &member, now.Add(time.Hour+10*time.Minute)); i.Waking() {
		t.Errorf("%+v", i)
	}
}

// TestSleepInWords checks what a group whose spares sleep waits for.
func TestSleepInWords(t *testing.T) {
	say := func(n int, instances ...plan.Instance) string {
		s := snapshot(1, instances...)
		s.Group.Spares = config.Spares{Count: n, State: config.SparesStopped}
		s.Settings.RequestTimeout = 30 * time.Second
		return plan.Explain(s).Says.Words(now)
	}
	falling := asleep(func(i *plan.Instance) { i.Provider = observed(plan.ProviderStopping) })
	for _, c := range []struct {
		n         int
		instances []plan.Instance
		want      string
	}{
		{2, []plan.Instance{well(), asleep(nil), asleep(nil)}, "2 spares ready, asleep"},
		{2, []plan.Instance{well(), asleep(nil), sleepy(func(i *plan.Instance) { i.Role = "" })},
			"2 spares ready, 1 asleep"},
		{1, []plan.Instance{well(), falling}, "falls asleep (for 30 min)"},
		{1, []plan.Instance{well(), sleepy(nil)}, "falls asleep"},
		{1, []plan.Instance{waking(4*time.Second, nil), asleep(nil)}, "is being woken (for 4.0 s)"},
		{1, []plan.Instance{waking(time.Minute, func(i *plan.Instance) { i.WakeFailed = "gone" }), asleep(nil)},
			"becomes a member"},
	} {
		if text := say(c.n, c.instances...); !strings.Contains(text, c.want) {
			t.Errorf("%s, want %s", text, c.want)
		}
	}
	s := snapshot(1, waking(time.Minute, func(i *plan.Instance) { i.WakeFailed = "no such VM" }), asleep(nil))
	s.Group.Spares = config.Spares{Count: 1, State: config.SparesStopped}
	rest := snapshot(1, well(), asleep(nil))
	rest.Group.Spares = s.Group.Spares
	if v := plan.Explain(rest).Verdicts[1]; v.Rule != 77 || !strings.Contains(v.Wait.Words(now), "asleep and ready") {
		t.Errorf("%+v", v)
	}
	for _, a := range plan.Next(s).Actions {
		if a.Kind == plan.Mark && a.Reason != "its VM cannot be woken: no such VM" {
			t.Error(a.Reason)
		}
	}
}
