package lease

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/services/internal/election"
)

// clockMonotonic is CLOCK_MONOTONIC of <time.h>. Unlike CLOCK_UPTIME_RAW, which Go's time uses, it counts while the
// system is asleep (clock_gettime(3)).
const clockMonotonic = 6

// SystemClock returns CLOCK_MONOTONIC, for development on macOS.
func SystemClock() Clock { return systemClock{} }

type systemClock struct{}

func (systemClock) Now() election.Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(clockMonotonic, &ts); err != nil {
		panic(fmt.Sprintf("read CLOCK_MONOTONIC: %v", err))
	}
	return election.Instant(ts.Nano())
}
