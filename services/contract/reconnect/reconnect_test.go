package reconnect_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
)

func TestLongestPauseFollowsTheReportInterval(t *testing.T) {
	for interval, want := range map[time.Duration]time.Duration{
		0: reconnect.MaxPause, time.Millisecond: time.Second, 5 * time.Second: 5 * time.Second,
		time.Minute: reconnect.MaxPause,
	} {
		if got := reconnect.LongestPause(interval); got != want {
			t.Errorf("reports every %s: %s, want %s", interval, got, want)
		}
		if back := reconnect.ReturnTime(interval); back < want+reconnect.AttemptTimeout+interval {
			t.Errorf("reports every %s: all agents are expected after %s", interval, back)
		}
	}
}

func TestBackoffHasALimit(t *testing.T) {
	for failures, want := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: 2 * time.Second,
		4: 8 * time.Second, 6: 20 * time.Second, 34: 20 * time.Second, 1 << 40: 20 * time.Second} {
		if got := reconnect.Backoff(time.Second, 20*time.Second, failures); got != want {
			t.Errorf("after %d failures: %s, want %s", failures, got, want)
		}
	}
	if got := reconnect.Backoff(time.Minute, time.Second, 1); got != time.Second {
		t.Errorf("the first pause is %s", got)
	}
	for failures := range 200 { // without a limit of its own
		if got := reconnect.Backoff(time.Second, 1<<63-1, failures); got < time.Second {
			t.Fatalf("after %d failures: %s", failures, got)
		}
	}
	if got := reconnect.Backoff(0, time.Minute, 5); got != time.Minute {
		t.Errorf("without a first pause: %s", got)
	}
}
