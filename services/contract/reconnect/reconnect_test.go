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
