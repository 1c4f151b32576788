package sim

import (
	"fmt"
	"time"
)

// Injected is one fault of a run. Its ID identifies the occasion of the fault, such as one request of one server, or
// one moment. The same occasion has the same ID in every run of the seed.
type Injected struct {
	ID   uint64
	Kind Kind
	At   time.Duration
	What string // only in a traced run
}

// schedule decides which of the drawn faults occur: all of them, or a chosen subset.
type schedule struct {
	world    *World
	only     map[uint64]bool // nil: all
	injected []Injected
	counts   map[Kind]int
}

// admit reports whether a drawn fault occurs, and records it.
func (s *schedule) admit(occasion uint64, k Kind) bool {
	w := s.world
	if w.quiet || s.only != nil && !s.only[occasion] {
		return false
	}
	s.injected = append(s.injected, Injected{ID: occasion, Kind: k, At: w.sched.elapsed})
	w.result.Faults++
	s.counts[k]++
	if w.opts.trap != nil && w.opts.trap(s.counts) {
		w.fail(ruleSimulator, "%s fell into the trap", k)
	}
	return true
}

// about adds a description to the latest fault of the run, and logs it. It does nothing in a run without a log.
func (s *schedule) about(format string, args ...any) {
	if w := s.world; w.tracing() {
		last := &s.injected[len(s.injected)-1]
		last.What = fmt.Sprintf(format, args...)
		w.trace("%s: %s", last.Kind, last.What)
	}
}

// occasion returns a number for the server's next request about one object. edge names the client that makes the
// request. The same request has the same number in another run.
func (s *server) occasion(edge, about string) uint64 {
	key := mix(hashText(edge) ^ mix(hashText(about)))
	s.asked[key]++
	return mix(s.world.opts.Seed ^ mix(hashText(s.process.name)^mix(key^uint64(s.asked[key]))))
}
