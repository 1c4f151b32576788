package layer2

import (
	"slices"
	"testing"
	"time"
)

// TestSchedule simulates two minutes in which the address is acquired every Interval. Meanwhile, a former leader claims
// the address once, and another machine claims it twice.
func TestSchedule(t *testing.T) {
	var s schedule
	var announced, probed []time.Duration
	conflicts := map[string][]time.Duration{}
	for now := time.Duration(0); now <= 2*time.Minute; now += Interval {
		switch now {
		case time.Second: // a former leader: its address still has a lifetime
			s.hear(now, "former")
		case 50 * time.Second, 60 * time.Second:
			s.hear(now, "other")
		}
		if s.announce(now) {
			announced = append(announced, now)
		}
		if s.probe(now) {
			probed = append(probed, now)
		}
		if other := s.conflict(now); other != "" {
			conflicts[other] = append(conflicts[other], now)
		}
	}
	// Announcements are sent only when the address is acquired. If an announcement is due between two acquisitions, it
	// is sent at the later one.
	want := []time.Duration{0, 200 * time.Millisecond, 600 * time.Millisecond, time.Second, 2 * time.Second,
		30 * time.Second, time.Minute, 90 * time.Second, 2 * time.Minute}
	if !slices.Equal(announced, want) {
		t.Errorf("announced at %v, want %v", announced, want)
	}
	want = []time.Duration{4 * time.Second, 34 * time.Second, 64 * time.Second, 94 * time.Second}
	if !slices.Equal(probed, want) {
		t.Errorf("probed at %v, want %v", probed, want)
	}
	if other := conflicts["other"]; len(conflicts) != 1 || other[0] != 50*time.Second ||
		other[len(other)-1] != 95*time.Second-Interval {
		t.Errorf("conflicts: %v", conflicts)
	}
}
