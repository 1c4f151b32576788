package lease

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
)

// Clock reads a clock of the machine that also counts while the machine is suspended. Now may be called concurrently.
// Readings never go back.
//
// A timer does not count the time of a suspension. So when a timer fires, the clock is read before anything is decided.
type Clock interface{ Now() election.Instant }

// SystemClock returns the system's clock that also counts while the system is suspended.
func SystemClock() Clock { return systemClock{} }

type systemClock struct{}

func (systemClock) Now() election.Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(suspendedClock, &ts); err != nil {
		// This clock exists in every kernel since Linux 2.6.39. Without it, no server may lead.
		panic(fmt.Sprintf("read clock %d: %v", suspendedClock, err))
	}
	return election.Instant(ts.Nano())
}
