package machine

import (
	"context"
	"io/fs"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// wakeInterval is the time between two looks at the clocks.
	wakeInterval = 500 * time.Millisecond
	// shortestSleep is how far a clock must jump to count as sleep. A busy machine can be late by less.
	shortestSleep = 5 * time.Second
	// inStep is the largest difference between the clocks of a machine that shows the right time. The hardware clock
	// counts whole seconds.
	inStep = 2 * time.Second
)

// clocks are the clocks of a machine at one moment.
type clocks struct {
	running  time.Duration // while the machine runs, from an arbitrary start
	wall     time.Time     // of the operating system
	hardware time.Time     // of the machine; zero: there is none
}

// slept compares the clocks with those at an earlier moment. It reports whether the machine, or only this process,
// stood still in between. behind reports whether the operating system has not noticed that, so that its clock is wrong
// and the hardware clock is right. It is false if the clocks differed before.
func (now clocks) slept(before clocks) (slept, behind bool) {
	running, wall := now.running-before.running, now.wall.Sub(before.wall)
	slept = running >= shortestSleep || wall-running >= shortestSleep
	if now.hardware.IsZero() || before.hardware.IsZero() {
		return slept, false
	}
	jump := now.hardware.Sub(before.hardware) - max(running, wall)
	behind = jump >= shortestSleep && before.hardware.Sub(before.wall).Abs() <= inStep
	return slept || jump >= shortestSleep, behind
}

// A SleepWatch notices that this machine was asleep. If an emulator such as QEMU saves and restores a machine, the
// machine's operating system does not notice: its clock continues with the time at which the machine fell asleep. The
// SleepWatch then sets the clock.
type SleepWatch struct {
	read func() clocks
	set  func(time.Time) error
	log  *slog.Logger
}

// NewSleepWatch returns a SleepWatch. sys is the file system /sys.
func NewSleepWatch(sys fs.FS, log *slog.Logger) *SleepWatch {
	start := time.Now()
	return &SleepWatch{log: log,
		read: func() clocks {
			return clocks{time.Since(start), time.Now().Round(0), hardwareClock(sys)}
		},
		set: func(t time.Time) error {
			tv := unix.NsecToTimeval(t.UnixNano())
			return unix.Settimeofday(&tv)
		}}
}

// hardwareClock returns the time of the machine's hardware clock, in whole seconds, or zero if there is none.
func hardwareClock(sys fs.FS) time.Time {
	text, err := fs.ReadFile(sys, "class/rtc/rtc0/since_epoch")
	if err != nil {
		return time.Time{}
	}
	seconds, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}

// Watch watches until ctx ends. It sends to the channel each time the machine has woken, after it has set the clock.
func (w *SleepWatch) Watch(ctx context.Context) <-chan struct{} {
	woken := make(chan struct{}, 1)
	go func() {
		tick := time.NewTicker(wakeInterval)
		defer tick.Stop()
		for before := w.read(); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now := w.read()
			if now.hardware.IsZero() && !before.hardware.IsZero() && now.running-before.running < shortestSleep {
				continue // just after a machine has woken, its hardware clock may not be readable yet
			}
			slept, behind := now.slept(before)
			if behind {
				// The clock of the hardware is half a second ahead of its whole seconds, on average.
				w.setClock(now.hardware.Add(time.Second/2), now.wall)
				now = w.read()
			}
			before = now
			if slept {
				select {
				case woken <- struct{}{}:
				default:
				}
			}
		}
	}()
	return woken
}

func (w *SleepWatch) setClock(to, from time.Time) {
	if err := w.set(to); err != nil {
		w.log.Warn("The clock is behind because the machine was asleep, and cannot be set", "error", err,
			"duration", to.Sub(from))
		return
	}
	w.log.Info("The clock was set: the machine was asleep", "duration", to.Sub(from))
}
