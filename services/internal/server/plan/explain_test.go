package plan_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/proof/plantest"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// TestExplain checks that Explain returns the plan of Next, and for each instance its rule, its cause, and until when
// the rule applies.
func TestExplain(t *testing.T) {
	f := plantest.New(1)
	f.Settings.EligibleAge = 24 * time.Hour
	f.Group.Size = 4
	for range 4 {
		f.Add()
	}
	f.VMs[1].Notice = true
	f.VMs[2].InfraHash = "old"
	f.VMs[3].OnDemand = true
	s := f.Snapshot()
	e := plan.Explain(s)
	if next := plan.Next(s); !reflect.DeepEqual(next, e.Decision) {
		t.Errorf("the plan is %+v, that of Next %+v", e.Decision, next)
	}
	aged := s.Instances[0].LaunchedAt.Add(24 * time.Hour)
	want := []plan.Verdict{
		{Instance: f.VMs[0].ID, Rule: 17, RuleName: "well", Until: aged},
		{Instance: f.VMs[1].ID, Rule: 3, RuleName: "notice", Cause: plan.CauseNotice},
		{Instance: f.VMs[2].ID, Rule: 15, RuleName: "drifted", Cause: plan.CauseDrift},
		{Instance: f.VMs[3].ID, Rule: 9, RuleName: "on-demand"},
	}
	for n := range e.Verdicts {
		if len(e.Verdicts[n].Wait.Parts) == 0 {
			t.Errorf("%+v has no sentence", e.Verdicts[n])
		}
		e.Verdicts[n].Wait = plan.Wait{}
	}
	if !reflect.DeepEqual(e.Verdicts, want) {
		t.Errorf("verdicts\n%+v\nwant\n%+v", e.Verdicts, want)
	}
	if e.Desired != 4 || e.Guarded {
		t.Errorf("desired %d, guarded %v: want 4 and not guarded", e.Desired, e.Guarded)
	}
}

// TestRule61Explain checks that Explain says until when an instance has time to recover.
func TestRule61Explain(t *testing.T) {
	s := snapshot(5, silent(), silent(), well(), well(), well())
	s.Guard.Exceeded = true
	e := plan.Explain(s)
	until := now.Add(106 * time.Second) // 30 s between two attempts, 10 s for one, a report and its slack
	if got := e.Verdicts[0]; !e.Guarded || got.Rule != 11 || !got.Until.Equal(until) || e.NextPlan.After(until) {
		t.Errorf("guarded %v, %+v, planned again at %v; want rule 11 until %v", e.Guarded, got, e.NextPlan, until)
	}
}

// TestRule62Explain checks that Explain names the rules of an instance that recovered while its replacement boots, and
// of one that fails again and again.
func TestRule62Explain(t *testing.T) {
	flapping, replacement := well(), booting()
	flapping.Lapses = plan.Lapses{Count: 5, Since: ago(20 * time.Minute)}
	replacement.Finishes = id(1)
	e := plan.Explain(snapshot(2, well(), flapping, replacement))
	for n, want := range []plan.Verdict{
		{Instance: id(1), Rule: 62, RuleName: "finish", Cause: plan.CauseFlapping},
		{Instance: id(2), Rule: 63, RuleName: "flapping", Cause: plan.CauseFlapping},
	} {
		got := e.Verdicts[n]
		if got.Until.After(now.Add(40 * time.Minute)) {
			t.Errorf("rule %d applies until %v, but the lapses are forgotten before", got.Rule, got.Until)
		}
		got.Until, got.Wait = time.Time{}, plan.Wait{}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("verdict %+v, want %+v", got, want)
		}
	}
}

// TestExplainRollout checks that a plan contains the reason why a rollout waits, and when the reason ends.
func TestExplainRollout(t *testing.T) {
	const hour = time.Hour
	for _, tt := range []struct {
		name   string
		change func(s *plan.Snapshot)
		reason string // a part of it; "": the rollout does not wait
		ends   time.Duration
	}{
		{name: "a wave begins", change: func(*plan.Snapshot) {}},
		{"paused", func(s *plan.Snapshot) { s.Group.Rollout.Paused = true }, "(rule 45)", 0},
		{"halted", func(s *plan.Snapshot) { s.Group.Rollout.HaltOnFailures, s.RolloutFailures = 1, 1 }, "(rule 47)", 0},
		{"outside the windows", func(s *plan.Snapshot) {
			s.Group.Windows = []config.Window{window("Mon-Sun 09:00-10:00 UTC"), window("Mon-Sun 06:00-07:00 UTC")}
		}, "(rule 49)", 6 * hour},
		{"inside a window", func(s *plan.Snapshot) {
			s.Group.Windows = []config.Window{window("Mon-Sun 00:00-01:00 UTC")}
		}, "", 0},
		{"two of two in the hour", func(s *plan.Snapshot) {
			s.Group.MaxPerHour = 2
			s.Instances[0].CreatedAt = s.Now.Add(-50 * time.Minute)
			s.Instances[1].CreatedAt = s.Now.Add(-20 * time.Minute)
		}, "(rule 50)", 10 * time.Minute},
		{"three of two in the hour", func(s *plan.Snapshot) {
			s.Group.MaxPerHour = 2
			for n, age := range []time.Duration{20 * time.Minute, 50 * time.Minute, 40 * time.Minute} {
				s.Instances[n].CreatedAt = s.Now.Add(-age)
			}
		}, "(rule 50)", 20 * time.Minute},
		{"canaries that run for too short", func(s *plan.Snapshot) {
			s.Group.Rollout.Canary, s.Group.Rollout.BakeTime = 2, config.Duration(10*time.Minute)
			for n, age := range []time.Duration{time.Minute, 4 * time.Minute} {
				s.Instances[n].InfraHash, s.Instances[n].RegisteredAt = "v2", s.Now.Add(-age)
			}
		}, "(rule 46)", 9 * time.Minute},
	} {
		f := plantest.New(1)
		f.Group.Size = 4
		for range 4 {
			f.Add().CreatedAt = f.Now.Add(-2 * hour)
		}
		f.Group.InfraHash = "v2"
		s := f.Snapshot()
		tt.change(&s)
		var until time.Time
		if tt.ends > 0 {
			until = s.Now.Add(tt.ends)
		}
		e := plan.Explain(s)
		if !strings.Contains(e.Rollout, tt.reason) || (e.Rollout == "") != (tt.reason == "") ||
			!e.RolloutUntil.Equal(until) {
			t.Errorf("%s: %q until %v, want %q until %v", tt.name, e.Rollout, e.RolloutUntil, tt.reason, until)
		}
		if next := e.NextPlan; !until.IsZero() && (next.IsZero() || next.After(until)) {
			t.Errorf("%s: planned again at %v, want it at %v at the latest", tt.name, next, until)
		}
	}
}
