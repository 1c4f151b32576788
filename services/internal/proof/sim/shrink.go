package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Shrunk is the result of Shrink: the smallest set of faults found that still breaks the same rule.
type Shrunk struct {
	Seed   uint64
	Err    *Broken
	Faults []Injected // the faults that remain
	Of     int        // number of faults in the original run
	Runs   int
	Story  []string // the last lines before the rule broke
}

// storyLines is the number of lines that Shrink keeps from the end of the log.
const storyLines = 60

// Shrink searches for a smaller set of faults with which a failing run still breaks the same rule. It first leaves out
// whole kinds, then parts of the schedule, halves before quarters ("Simplifying and Isolating Failure-Inducing Input",
// Zeller and Hildebrandt, 2002). The parameter runs limits the number of runs. Shrink returns nil if the original run
// does not fail.
func Shrink(opts Options, runs int) *Shrunk {
	opts.Log = nil
	play := func(only map[uint64]bool, log func(string, ...any)) (Result, *Broken) {
		o := opts
		o.Only, o.Log = only, log
		result, err := New(o).Run()
		var broken *Broken
		if !errors.As(err, &broken) {
			return result, nil
		}
		return result, broken
	}
	first, broken := play(opts.Only, nil)
	if broken == nil {
		return nil
	}
	s := &Shrunk{Seed: opts.Seed, Err: broken, Faults: first.Injected, Of: len(first.Injected), Runs: 1}
	// fails repeats the run with only the given faults. If the run still breaks the same rule, fails keeps the faults
	// that occurred in it.
	fails := func(faults []Injected) bool {
		if s.Runs >= runs {
			return false
		}
		s.Runs++
		result, err := play(ids(faults), nil)
		if err == nil || err.Rule != s.Err.Rule || len(result.Injected) >= len(s.Faults) {
			return false
		}
		s.Faults, s.Err = result.Injected, err
		return true
	}
	for _, k := range Kinds() {
		rest := slices.DeleteFunc(slices.Clone(s.Faults), func(f Injected) bool { return f.Kind == k })
		if len(rest) < len(s.Faults) {
			fails(rest)
		}
	}
	for parts := 2; len(s.Faults) > 0 && s.Runs < runs; {
		size := (len(s.Faults) + parts - 1) / parts
		found := false
		for at := 0; at < len(s.Faults); {
			without := slices.Delete(slices.Clone(s.Faults), at, min(at+size, len(s.Faults)))
			if fails(without) {
				found = true
			} else {
				at += size
			}
		}
		switch {
		case found:
			parts = max(2, parts-1)
		case size == 1:
			parts = 0
		default:
			parts *= 2
		}
		if parts == 0 {
			break
		}
	}
	result, _ := play(ids(s.Faults), func(format string, args ...any) {
		s.Story = append(s.Story, fmt.Sprintf(format, args...))
		if len(s.Story) > 2*storyLines {
			s.Story = slices.Delete(s.Story, 0, storyLines)
		}
	})
	s.Faults = result.Injected
	s.Story = s.Story[max(0, len(s.Story)-storyLines):]
	return s
}

func ids(faults []Injected) map[uint64]bool {
	only := make(map[uint64]bool, len(faults))
	for _, f := range faults {
		only[f.ID] = true
	}
	return only
}

// String returns a report with the remaining faults and the last log lines.
func (s *Shrunk) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d breaks rule %q with %d of its %d faults (%d runs):\n", s.Seed, s.Err.Rule, len(s.Faults),
		s.Of, s.Runs)
	var only []string
	for _, f := range s.Faults {
		fmt.Fprintf(&b, "  %12v  %s: %s\n", f.At, f.Kind, f.What)
		only = append(only, fmt.Sprintf("%x", f.ID))
	}
	b.WriteString("and then:\n")
	for _, line := range s.Story {
		b.WriteString("  " + line + "\n")
	}
	fmt.Fprintf(&b, "%v\nrepeat it with: SIM_ONLY=%s make sim SEED=%d", s.Err, strings.Join(only, ","), s.Seed)
	return b.String()
}
