package operatorapi

import (
	"testing"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// TestStateOfWokenVM checks that a VM runs for clients as soon as it runs for the planner: when its agent reports after
// the VM was woken, although the provider's last answer was that it has stopped.
func TestStateOfWokenVM(t *testing.T) {
	for _, test := range []struct {
		planned plan.ProviderState
		vm      infra.State
		want    infra.State
	}{
		{plan.ProviderRunning, infra.Stopped, infra.Running},
		{plan.ProviderRunning, infra.Pending, infra.Pending},
		{plan.ProviderStopped, infra.Stopped, infra.Stopped},
		{plan.ProviderGone, infra.Running, infra.Deleted},
		{plan.ProviderRunning, "", infra.Unknown},
	} {
		var v shardstate.InstanceView
		v.Plan.Provider.Value, v.VM.State = test.planned, test.vm
		if got := providerState(v); got != test.want {
			t.Errorf("%v of the planner and %q of the provider are %q, want %q", test.planned, test.vm, got, test.want)
		}
	}
}
