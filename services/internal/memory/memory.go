// Package memory owns how much more memory the process holds than it uses: how far the heap may grow before it is
// collected, and when what is free goes back to the system.
//
// Invariant: a process in which little happens is collected seldom and holds little more than it uses; one in which
// much happens is never collected more often than Go does by itself. Nothing here changes what the program does.
package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// usual is Go's own growth between two collections, in percent of what is in use.
	usual = 100
	// least is the growth of a process in which nothing happens.
	least = 8
	// apart is the time that should lie between two collections, as long as the growth is between the two. Each marks
	// everything, 0.2 to 0.4 s of CPU time with 8,000 agents.
	apart = time.Minute
	// interval is how often is looked.
	interval = 5 * time.Second
	// Free memory is given back when it is more than so many percent of what is in use, and more than spare bytes.
	returned = 15
	spare    = 16 << 20
	// However little is in use, spare bytes is the least growth: who was idle would be collected many times a second
	// when something happens, until the next look. And where much happens, room bytes are: a collection takes both
	// processors of a small machine for some 20 to 40 ms, whatever else they should do.
	room = 64 << 20
	// pause lies between two times that it is: it takes a collection.
	pause = time.Minute
)

// Keep sets how often the heap is collected by how much is allocated, until ctx ends. Who set GOGC or GOMEMLIMIT
// (runtime, "Environment Variables") knows better: then nothing is done.
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
			percent, giveBack := k.look(read(now))
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

// sample is what the runtime says of its memory.
type sample struct {
	at        time.Time
	allocated uint64 // since the start
	live      uint64 // found by the last collection: heap, stacks and globals, of which growth is counted
	free      uint64 // neither in use nor given back
}

func read(now time.Time) sample {
	values := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(values)
	number := func(i int) uint64 { return values[i].Value.Uint64() }
	return sample{at: now, allocated: number(0), live: number(1) + number(2) + number(3), free: number(4)}
}

// keeper remembers what it takes to judge the next sample.
type keeper struct {
	percent int
	before  sample
	gave    time.Time
}

// look says how far the heap may grow now, and whether to give back what is free.
func (k *keeper) look(s sample) (percent int, giveBack bool) {
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
