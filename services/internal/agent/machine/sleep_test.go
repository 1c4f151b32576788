package machine

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
)

// TestSlept compares clocks before and after several things that can happen to a machine.
func TestSlept(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const hour = 3600
	for name, test := range map[string]struct {
		// offset is how far the hardware clock is ahead of the wall clock at first, in seconds. The others are how far
		// each clock advances.
		offset, running, wall, hardware float64
		noHardware                      bool
		slept, behind                   bool
	}{
		"nothing happens":                 {running: 0.5, wall: 0.5, hardware: 1},
		"without a hardware clock":        {running: 1, wall: 1, noHardware: true},
		"busy":                            {running: 4, wall: 4, hardware: 4},
		"the process was stopped":         {running: 60, wall: 60, hardware: 60, slept: true},
		"the system knows":                {running: 1, wall: hour, hardware: hour, slept: true},
		"it knows, no hardware clock":     {running: 1, wall: hour, noHardware: true, slept: true},
		"saved and restored":              {running: 1, wall: 1, hardware: hour, slept: true, behind: true},
		"restored, in another time zone":  {offset: 2 * hour, running: 1, wall: 1, hardware: hour, slept: true},
		"the clock was set back":          {running: 1, wall: -60, hardware: 1},
		"the clock was set ahead":         {running: 1, wall: 60, hardware: 1, slept: true},
		"the hardware clock was set":      {offset: -60, running: 1, wall: 1, hardware: 60, slept: true},
		"the hardware clock was set back": {offset: 60, running: 1, wall: 1, hardware: -60},
		"it is a bit ahead":               {offset: 1.5, running: 1, wall: 1, hardware: 2},
	} {
		seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
		before := clocks{time.Hour, start, start.Add(seconds(test.offset))}
		now := clocks{before.running + seconds(test.running), start.Add(seconds(test.wall)),
			before.hardware.Add(seconds(test.hardware))}
		if test.noHardware {
			before.hardware, now.hardware = time.Time{}, time.Time{}
		}
		if slept, behind := now.slept(before); slept != test.slept || behind != test.behind {
			t.Errorf("%s: slept %t, behind %t, want %t, %t", name, slept, behind, test.slept, test.behind)
		}
	}
}

// TestSleepWatchSetsTheClock lets a machine sleep twice. Each time, its hardware clock cannot be read at first. Then the
// watch sets the clock, and reports once. The second time, the clock cannot be set.
func TestSleepWatchSetsTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asleep, ahead atomic.Int64 // how long the machine slept, and how far its clock was set ahead
		var refused atomic.Bool
		var unreadable atomic.Int64 // how often the hardware clock cannot be read
		start := time.Now()
		w := &SleepWatch{log: slog.New(slog.DiscardHandler),
			read: func() clocks {
				hardware := time.Now().Add(time.Duration(asleep.Load())).Truncate(time.Second)
				if unreadable.Add(-1) >= 0 {
					hardware = time.Time{}
				}
				return clocks{time.Since(start), time.Now().Add(time.Duration(ahead.Load())), hardware}
			},
			set: func(to time.Time) error {
				if refused.Load() {
					return errors.New("not permitted")
				}
				ahead.Store(int64(time.Until(to)))
				return nil
			}}
		woken := w.Watch(t.Context())
		quiet := func() {
			t.Helper()
			time.Sleep(10 * time.Second)
			select {
			case <-woken:
				t.Fatal("the machine did not sleep")
			default:
			}
		}
		for range 2 {
			quiet()
			unreadable.Store(3)
			asleep.Add(int64(time.Hour))
			<-woken
			if off := time.Duration(ahead.Load() - asleep.Load()).Abs(); off > time.Second && !refused.Load() {
				t.Errorf("the clock is wrong by %s", off)
			}
			quiet()
			refused.Store(true)
		}
	})
}

// TestHardwareClock reads the hardware clock of machines with and without one.
func TestHardwareClock(t *testing.T) {
	for text, want := range map[string]int64{"1796013064\n": 1796013064, "": 0, "later\n": 0} {
		got := hardwareClock(fstest.MapFS{"class/rtc/rtc0/since_epoch": {Data: []byte(text)}})
		if got.IsZero() != (want == 0) || want != 0 && got.Unix() != want {
			t.Errorf("%q: %s", text, got)
		}
	}
	if got := hardwareClock(fstest.MapFS{}); !got.IsZero() {
		t.Errorf("without a hardware clock: %s", got)
	}
}
