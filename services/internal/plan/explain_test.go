package plan_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/plan"
	"github.com/nstance-kit/nstance/services/internal/plan/plantest"
)

// TestExplain checks that Explain has the plan of Next and names the rule, cause and time of each instance.
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
	if !slices.Equal(e.Verdicts, want) {
		t.Errorf("verdicts\n%+v\nwant\n%+v", e.Verdicts, want)
	}
	if e.Desired != 4 || e.Guarded {
		t.Errorf("desired %d, guarded %v: want 4 and not guarded", e.Desired, e.Guarded)
	}
}
