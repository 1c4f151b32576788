package execute_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// noSpot is a script for a provider that has no spot capacity.
func noSpot(call mock.Call) mock.Outcome {
	if call.Kind == mock.Create && call.Request.Tags.Spot {
		return mock.Outcome{Err: infra.Errorf(infra.Capacity, "create", "no spot capacity")}
	}
	return mock.Outcome{}
}

// TestSpotFallsBack checks that an instance is bought on demand after every placement was refused for a spot instance.
// The plan and the record must show how the instance was bought.
func TestSpotFallsBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.script = noSpot
		for range 5 { // each of the four placements takes a decision
			b.reserve()
			b.do(plan.Action{Kind: plan.Create, Spot: true, Fallback: true})
			b.wait()
		}
		checkBought(t, b, 1, 0)
		s, _ := b.State.Snapshot(workers, nil)
		if s.SpotRefusedAt.IsZero() || s.PendingSpot != 0 || s.Backoff.Failures != 0 {
			t.Errorf("refused at %v, %d pending, back-off %+v", s.SpotRefusedAt, s.PendingSpot, s.Backoff)
		}
		b.script = nil
		b.reserve()
		b.do(plan.Action{Kind: plan.Create})
		b.wait()
		checkBought(t, b, 2, 0)
	})
}

// TestReturnToSpotIsRefused tries to return to spot instances while there is no spot capacity. The attempts must create
// no instance, and must not make the group back off.
func TestReturnToSpotIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.script = noSpot
		for range 6 {
			b.reserve()
			b.do(plan.Action{Kind: plan.Create, Spot: true, Cause: plan.CauseReturnToSpot})
			b.wait()
		}
		checkBought(t, b, 0, 0)
		if s, _ := b.State.Snapshot(workers, nil); s.SpotRefusedAt.IsZero() || s.Backoff.Failures != 0 {
			t.Errorf("refused at %v, back-off %+v", s.SpotRefusedAt, s.Backoff)
		}
	})
}

// TestAdvisedReplacementIsRefused tries to replace an instance because of a recommendation while there is no spot
// capacity. The attempts must create no instance, and only such attempts must back off, until one succeeds.
func TestAdvisedReplacementIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.script = noSpot
		for range 6 {
			b.reserve()
			b.do(plan.Action{Kind: plan.Create, Spot: true, Cause: plan.CauseRecommendation})
			b.wait()
		}
		checkBought(t, b, 0, 0)
		if s, _ := b.State.Snapshot(workers, nil); s.Advised.Backoff.Failures == 0 || s.Advised.Count != 0 ||
			s.Backoff.Failures != 0 || s.BackoffRaised {
			t.Errorf("advised %+v, back-off %+v", s.Advised, s.Backoff)
		}
		b.script = nil
		time.Sleep(4 * time.Minute) // the refused placements are tried again
		b.reserve()
		b.do(plan.Action{Kind: plan.Create, Spot: true, Cause: plan.CauseRecommendation})
		b.wait()
		checkBought(t, b, 0, 1)
		if s, _ := b.State.Snapshot(workers, nil); s.Advised.Count != 1 || s.Advised.Backoff.Failures != 0 {
			t.Errorf("after a success: %+v", s.Advised)
		}
	})
}

// checkBought checks how many instances of the group were bought on demand, and how many as spot instances.
func checkBought(t *testing.T, b *bench, onDemand, spot int) {
	t.Helper()
	s, _ := b.State.Snapshot(workers, nil)
	n := 0
	for _, i := range s.Instances {
		if i.Spot {
			n++
		}
		if rec := b.read(i.ID); rec.Spot != i.Spot {
			t.Errorf("the record of %s says spot %t, the plan %t", i.ID, rec.Spot, i.Spot)
		}
	}
	if n != spot || len(s.Instances)-n != onDemand {
		t.Errorf("%d spot instances of %d, want %d and %d others", n, len(s.Instances), spot, onDemand)
	}
}
