package lease

// suspendedClock is CLOCK_MONOTONIC of <time.h>. Unlike CLOCK_UPTIME_RAW, which Go's time uses, it counts while the
// system is asleep (clock_gettime(3)).
const suspendedClock = 6
