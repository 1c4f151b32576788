package shards

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// TestDeadlineOfADrainIgnoresTheLeadersClock checks that a drain ends after the remaining time that the leader sends,
// although the leader's clock differs from the operator's.
func TestDeadlineOfADrainIgnoresTheLeadersClock(t *testing.T) {
	now := time.Now()
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		announced := now.Add(ahead + time.Minute)
		d := drainOf(&nstancev1.InstanceEvent{Deadline: timestamppb.New(announced),
			Remaining: durationpb.New(time.Minute)}, now)
		if left := d.Deadline.Sub(now); left != time.Minute || !d.Announced.Equal(announced) {
			t.Errorf("leader's clock %s ahead: %s left, announced %s", ahead, left, d.Announced)
		}
	}
	old := drainOf(&nstancev1.InstanceEvent{Deadline: timestamppb.New(now.Add(time.Minute))}, now)
	if left := old.Deadline.Sub(now); left != time.Minute {
		t.Errorf("without the remaining time: %s left", left)
	}
	if d := drainOf(&nstancev1.InstanceEvent{}, now); !d.Deadline.IsZero() {
		t.Errorf("without a deadline: %s", d.Deadline)
	}
}
