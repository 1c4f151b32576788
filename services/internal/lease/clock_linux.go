package lease

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/services/internal/election"
)

// SystemClock returns CLOCK_BOOTTIME (clock_gettime(2)). Unlike CLOCK_MONOTONIC it counts the time during which the
// system is suspended.
func SystemClock() Clock { return systemClock{} }

type systemClock struct{}

func (systemClock) Now() election.Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Every kernel since 2.6.39 has CLOCK_BOOTTIME. Without it no server may lead.
		panic(fmt.Sprintf("read CLOCK_BOOTTIME: %v", err))
	}
	return election.Instant(ts.Nano())
}
