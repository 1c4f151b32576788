package plan_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/proof/plantest"
)

// TestRule60WaitsNoLongerThanTheGrace checks that a rollout waits for a load balancer that does not answer, but no
// longer than the [plan.StartGrace].
func TestRule60WaitsNoLongerThanTheGrace(t *testing.T) {
	f := plantest.New(1)
	undrained(f)
	f.Group.Size = 1
	f.Add()
	f.AskBalancers()
	f.NoAnswer, f.Group.InfraHash = true, "v2"
	f.Run(f.Settings.RegistrationTimeout)
	if n := former(f); n != 1 || len(f.VMs) != 2 {
		t.Errorf("after the registration time-out %d of %d have the former configuration, want 1 of 2", n, len(f.VMs))
	}
	f.Run(2 * time.Minute)
	if n := former(f); f.Err() != nil || n != 0 {
		t.Errorf("two minutes later %d have the former configuration; %v", n, f.Err())
	}
}

// TestRule60SilentInstanceThatNeverJoinedGoesFirst checks which of two silent instances is deleted. The load balancers
// never called the first one healthy, so it must be deleted. The second one has served, so it must stay.
func TestRule60SilentInstanceThatNeverJoinedGoesFirst(t *testing.T) {
	f := plantest.New(1)
	undrained(f)
	f.Group.Size = 1
	f.Add()
	f.AskBalancers()
	f.Run(time.Minute)
	served := f.VMs[0]
	f.Refuses = func(vm *plantest.VM) string {
		if vm == served {
			return ""
		}
		return plantest.Refusal
	}
	f.CutOff(served)
	for range 10 * 60 {
		if len(f.VMs) == 2 && f.VMs[1].Healthy {
			break
		}
		f.Run(time.Second)
	}
	f.CutOff(f.VMs[1])
	replacement := f.VMs[1]
	f.Run(5 * time.Minute)
	if f.Err() != nil || !slices.Contains(f.VMs, served) || slices.Contains(f.VMs, replacement) {
		t.Errorf("%v\n%s", f.Err(), f.Transcript())
	}
}
