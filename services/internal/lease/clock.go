package lease

// Clock reads a machine's clock that counts while the machine is suspended. Now may be called concurrently; readings
// never go back.
//
// Timers are ordinary ones, which do not count suspended time, so a timer that fires decides nothing: the clock is read
// again.
type Clock interface{ Now() Instant }
