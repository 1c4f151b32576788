package lease

import "golang.org/x/sys/unix"

// suspendedClock is CLOCK_BOOTTIME (clock_gettime(2)). Unlike CLOCK_MONOTONIC it counts the time during which the
// system is suspended.
const suspendedClock = unix.CLOCK_BOOTTIME
