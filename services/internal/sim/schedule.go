package sim

import (
	"fmt"
	"time"
)

// Injected is one fault that befell a world. Its ID names the occasion (which request of whom, which moment) and is the
// same in every run of the seed in which that occasion arises.
type Injected struct {
	ID   uint64
	Kind Kind
	At   time.Duration
	What string // in a traced run
}

// schedule decides which faults of a world come about: all that its dice ask for, or of those the ones that somebody
// chose.
type schedule struct {
	world    *World
	only     map[uint64]bool // nil: all
	without  map[Kind]bool
	injected []Injected
	seen     map[Kind]bool
	cover    Coverage
}

// admit says whether a fault that the dice ask for on an occasion comes about, and notes it, with the states that it
// meets.
func (s *schedule) admit(occasion uint64, k Kind, met states) bool {
	w := s.world
	if w.quiet || s.without[k] || s.only != nil && !s.only[occasion] {
		return false
	}
	s.injected = append(s.injected, Injected{ID: occasion, Kind: k, At: w.sched.elapsed})
	w.result.Faults++
	s.seen[k] = true
	s.cover.add(k, met)
	if w.opts.trap != nil && w.opts.trap(s.seen) {
		w.fail(ruleSimulator, "%s fell into the trap", k)
	}
	return true
}

// about says in words what the fault that was admitted last does.
func (s *schedule) about(format string, args ...any) {
	if w := s.world; w.tracing() {
		last := &s.injected[len(s.injected)-1]
		last.What = fmt.Sprintf(format, args...)
		w.trace("%s: %s", last.Kind, last.What)
	}
}

// occasion numbers the requests of one server to one edge about one thing: the same request of another run has the same
// number.
func (s *server) occasion(edge, about string) uint64 {
	key := mix(hashText(edge) ^ mix(hashText(about)))
	s.asked[key]++
	return mix(s.world.opts.Seed ^ mix(hashText(s.process.name)^mix(key^uint64(s.asked[key]))))
}
