// Package memory limits how much more memory the process holds than it uses. It sets how far the heap may grow before a
// garbage collection, and returns free memory to the system.
//
// Invariant: an idle process collects rarely and holds little more memory than it uses. A busy process never collects
// more often than with Go's default. The package does not change the behavior of the program otherwise.
package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// usual is Go's default growth between two collections, in percent of the live memory.
	usual = 100
	// least is the growth of an idle process, in percent.
	least = 8
	// apart is the desired time between two collections, as long as the growth stays between least and usual. A
	// collection marks all live memory, which costs 0.2 to 0.4 s of CPU time with 8,000 agents.
	apart = time.Minute
	// interval is the time between two adjustments.
	interval = 5 * time.Second
	// Free memory is returned when it exceeds both returned percent of the live memory and spare bytes.
	returned = 15
	spare    = 16 << 20
	// spare is also the smallest growth in bytes. Otherwise a process with little live memory would collect many times
	// a second after an idle period, until the next adjustment. A busy process may grow by at least room bytes, because
	// a collection occupies both processors of a small machine for 20 to 40 ms.
	room = 64 << 20
	// pause is the shortest time between two returns of memory, because each of them forces a collection.
	pause = time.Minute
)

// Keep adjusts the frequency of garbage collections to the allocation rate until ctx ends. It does nothing if GOGC or
// GOMEMLIMIT is set (runtime, "Environment Variables").
func Keep(ctx context.Context) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	defer debug.SetGCPercent(usual)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	k := keeper{percent: usual, before: read(time.Now())}
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			percent, giveBack := k.decideGrowth(read(now))
			if percent != k.percent {
				debug.SetGCPercent(percent)
				k.percent = percent
			}
			if giveBack {
				debug.FreeOSMemory()
			}
		}
	}
}

// sample holds memory statistics of the runtime.
type sample struct {
	at        time.Time
	allocated uint64 // bytes since the start of the process
	live      uint64 // bytes at the last collection: heap, stacks, and globals, to which the growth refers
	free      uint64 // bytes neither in use nor returned to the system
}

func read(now time.Time) sample {
	values := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(values)
	number := func(i int) uint64 { return values[i].Value.Uint64() }
	return sample{at: now, allocated: number(0), live: number(1) + number(2) + number(3), free: number(4)}
}

// keeper holds the state between two samples.
type keeper struct {
	percent int
	before  sample
	gave    time.Time
}

// decideGrowth returns the growth that the heap may have now, in percent, and whether to return free memory.
func (k *keeper) decideGrowth(s sample) (percent int, giveBack bool) {
	passed := s.at.Sub(k.before.at)
	rate := float64(s.allocated-k.before.allocated) / max(passed.Seconds(), 0.001)
	k.before = s
	percent, idle := usual, false
	if live := float64(s.live); live > 0 {
		wanted := 100 * rate * apart.Seconds() / live
		percent = int(min(max(wanted, least, 100*spare/live), max(usual, 100*room/live)))
		idle = wanted < usual/2
	}
	giveBack = idle && s.free > spare && s.free > s.live*returned/100 && s.at.Sub(k.gave) >= pause
	if giveBack {
		k.gave = s.at
	}
	return percent, giveBack
}
