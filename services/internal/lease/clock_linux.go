package lease

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// SystemClock is CLOCK_BOOTTIME (clock_gettime(2)): like CLOCK_MONOTONIC, but it counts the time that the system is
// suspended.
func SystemClock() Clock { return systemClock{} }

type systemClock struct{}

func (systemClock) Now() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// It has been there since Linux 2.6.39. Without it nothing may be led.
		panic(fmt.Sprintf("read CLOCK_BOOTTIME: %v", err))
	}
	return Instant(ts.Nano())
}
