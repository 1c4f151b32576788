package lease

import "github.com/nstance-kit/nstance/services/internal/election"

// Clock reads a machine's clock, which counts while the machine is suspended. Now may be called concurrently. Readings
// never go back.
//
// Timers do not count suspended time, so nothing is decided when a timer fires: the clock is read again.
type Clock interface{ Now() election.Instant }
