package transport

import (
	"testing"
	"time"
)

// Who says much at once waits behind all others who do; who says little does not, and what each may say in all remains
// its own.
func TestRush(t *testing.T) {
	now, rush := time.Now(), rushPace.limiter()
	const frame = 50 * time.Microsecond
	say := func(b *budget, much time.Duration) (wait, behind time.Duration) {
		for said := time.Duration(0); said < much; said += frame {
			wait, behind = b.spend(rush, frame, now)
		}
		return wait, behind
	}
	var floods []*budget
	for n := range 16 {
		b := newBudget(registrationPace)
		floods = append(floods, b)
		// The first five milliseconds of each are its own, the first ten of rush are nobody's; the others come at half
		// a second each second.
		_, behind := say(b, 85*time.Millisecond)
		if want := 2 * (time.Duration(n+1)*80 - 10) * time.Millisecond; behind < want-time.Millisecond || behind > want+
			time.Millisecond {
			t.Errorf("flood %d waits %s behind others, want %s", n, behind, want)
		}
	}
	for name, pace := range map[string]pace{"an agent": agentPace, "an operator": operatorPace,
		"a registration": registrationPace} {
		if wait, behind := say(newBudget(pace), calmBurst); wait != 0 || behind != 0 {
			t.Errorf("%s waits %s, and %s behind the floods", name, wait, behind)
		}
	}
	// Of a burst of 100 ms and 5 ms a second, 85 are gone.
	if wait, _ := say(floods[0], 15*time.Millisecond); wait != 0 {
		t.Errorf("within its pace, and waits %s", wait)
	}
	if wait, _ := say(floods[0], 5*time.Millisecond); wait != time.Second {
		t.Errorf("a second beyond its pace, and waits %s", wait)
	}
}
