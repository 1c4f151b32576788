package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// fixed is the default number of runs.
	fixed = 60
	// enough is the number of failing seeds at which a test stops.
	enough = 20
	// shrinkRuns is the maximum number of runs to find a smaller schedule of one failing seed.
	shrinkRuns = 600
)

// TestWorlds simulates runs, several in parallel. Without variables, it uses a fixed set of seeds.
//
//   - SIM_SEED selects one seed and prints its log. SIM_ONLY selects some of its faults.
//   - SIM_DURATION is the real time for which random seeds are simulated.
//   - SIM_WORLDS is the number of seeds to simulate, from SIM_FIRST on.
//   - SIM_SWARM is the number of seeds to simulate, from SIM_FIRST or a random seed on. The test then prints the
//     progress, and shrinks the first failing schedule of each rule.
//   - SIM_DISRUPTION=1 simulates shorter runs in which all groups have windows and max_per_hour.
func TestWorlds(t *testing.T) {
	if seed, ok := number(t, "SIM_SEED"); ok {
		opts := options(seed)
		opts.Only = chosen(t)
		opts.Log = func(format string, args ...any) { t.Logf(format, args...) }
		if _, err := New(opts).Run(); err != nil {
			t.Errorf("%v\nrepeat it with: make sim SEED=%d", err, seed)
		}
		return
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	began := time.Now()
	worlds, counted := number(t, "SIM_WORLDS")
	if !counted {
		worlds = fixed
	}
	swarm, isSwarm := number(t, "SIM_SWARM")
	if isSwarm {
		worlds = swarm
	}
	more := func(played uint64) bool { return played < worlds }
	text := os.Getenv("SIM_DURATION")
	timed := text != "" && !counted && !isSwarm
	if timed {
		duration, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("SIM_DURATION: %v", err)
		}
		more = func(uint64) bool { return time.Since(began) < duration }
	}
	first, ok := number(t, "SIM_FIRST")
	switch {
	case !ok && (timed || isSwarm):
		first = rand.Uint64N(1 << 48)
	case !ok:
		first = 1
	}
	total, played, broken := playAll(t, first, more, isSwarm)
	took := time.Since(began)
	t.Logf("%d worlds from seed %d on, %.0f shard-hours in %v (%.0f in a real minute): %d terms, %d of heirs, %d "+
		"creates, %d batches, %d delete calls, %d replacements, %d faults, %d steps",
		played, first, total.Simulated.Hours(), took.Round(time.Millisecond), total.Simulated.Hours()/took.Minutes(),
		total.Terms, total.Inherited, total.Creates, total.Batches,
		total.Deletes, total.Replaced, total.Faults, total.Steps)
	if isSwarm {
		reportRules(t, broken)
	}
	if n := int(played); n >= fixed && !limited() && (total.Terms < 2*n || total.Inherited < n || total.Creates < 5*n ||
		total.Batches < n/2 || total.Replaced < 2*n || total.Faults < 10*n) {
		t.Errorf("these worlds were too peaceful to prove anything")
	}
	if played < fixed {
		return
	}
	for _, k := range Kinds() {
		if total.Kinds[k] == 0 {
			t.Errorf("%q never came about", k)
		}
	}
}

// playAll simulates one seed after the other, several in parallel, while the function `more` returns true. It adds up
// the results. If progress is true, playAll prints a line every ten seconds.
func playAll(t *testing.T, first uint64, more func(played uint64) bool, progress bool) (total Result, played uint64,
	failed []*Broken) {
	began := time.Now()
	printed := began
	var mu sync.Mutex
	next := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		if progress && time.Since(printed) > 10*time.Second {
			printed = time.Now()
			hours := total.Simulated.Hours()
			fmt.Printf("%d worlds, %.0f shard-hours, %.0f a minute, %d faults, %d broken\n", played, hours,
				hours/time.Since(began).Minutes(), total.Faults, len(failed))
		}
		if !more(played) || len(failed) >= enough {
			return 0, false
		}
		played++
		return first + played - 1, true
	}
	var wg sync.WaitGroup
	for range workers() {
		wg.Go(func() {
			for seed, ok := next(); ok; seed, ok = next() {
				result, err := newWorld(seed).Run()
				mu.Lock()
				total.add(result)
				var broken *Broken
				if errors.As(err, &broken) {
					failed = append(failed, broken)
					t.Errorf("%v\nrepeat it with: make sim SEED=%d", err, seed)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return total, played, failed
}

// limited reports whether all groups have windows and max_per_hour.
func limited() bool { return os.Getenv("SIM_DISRUPTION") != "" }

// reportRules logs the failing seeds of each rule, and the shrunk schedule of the rule's first failing seed.
func reportRules(t *testing.T, failed []*Broken) {
	seeds := map[string][]uint64{}
	for _, broken := range failed {
		seeds[broken.Rule] = append(seeds[broken.Rule], broken.Seed)
	}
	for _, rule := range slices.Sorted(maps.Keys(seeds)) {
		t.Logf("rule %q: %d seeds", rule, len(seeds[rule]))
		if shrunk := Shrink(options(slices.Min(seeds[rule])), shrinkRuns); shrunk != nil {
			t.Log(shrunk)
		}
	}
}

// workers returns the number of parallel runs: SIM_WORKERS, or the number of processors.
func workers() int {
	if n, err := strconv.Atoi(os.Getenv("SIM_WORKERS")); err == nil && n > 0 {
		return n
	}
	return runtime.GOMAXPROCS(0)
}

func (r *Result) add(o Result) {
	r.Simulated += o.Simulated
	r.Steps += o.Steps
	r.Terms += o.Terms
	r.Inherited += o.Inherited
	r.Creates += o.Creates
	r.Batches += o.Batches
	r.Deletes += o.Deletes
	r.Faults += o.Faults
	r.Replaced += o.Replaced
	if r.Kinds == nil {
		r.Kinds = map[Kind]int{}
	}
	for k, n := range o.Kinds {
		r.Kinds[k] += n
	}
}

func number(t *testing.T, variable string) (n uint64, ok bool) {
	text := os.Getenv(variable)
	if text == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n, true
}

// chosen returns the faults that SIM_ONLY names, or nil for all.
func chosen(t *testing.T) map[uint64]bool {
	text, ok := os.LookupEnv("SIM_ONLY")
	if !ok {
		return nil
	}
	only := map[uint64]bool{}
	for id := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(id, 16, 64)
		if err != nil && text != "" {
			t.Fatalf("SIM_ONLY: %v", err)
		}
		only[n] = true
	}
	return only
}

func options(seed uint64) Options {
	if limited() { // windows and max_per_hour end with the faults
		return Options{Seed: seed, Faulty: 30 * time.Minute, Limited: true}
	}
	return Options{Seed: seed, Faulty: 40 * time.Minute, Quiet: 15 * time.Minute}
}

func newWorld(seed uint64) *World { return New(options(seed)) }

// TestKeptSeeds simulates seeds that once broke a rule, and that no step of CI plays.
func TestKeptSeeds(t *testing.T) {
	for _, seed := range []uint64{
		5492,  // an unready instance was deleted in favour of others that had not registered
		9382,  // a window closed before the replacement that began in it was healthy
		9548,  // an instance with announced maintenance was superfluous while no window was open
		10864, // a leader did not know that an earlier one had preserved an instance
		11046, // of two failing instances, the one that had been healthy was removed
	} {
		if _, err := newWorld(seed).Run(); err != nil && !limited() {
			t.Errorf("%v\nrepeat it with: make sim SEED=%d", err, seed)
		}
	}
}

// TestSeedsRepeat checks that a seed determines a run completely. In the second World, several groups are scaled at the
// same time.
func TestSeedsRepeat(t *testing.T) {
	for _, seed := range []uint64{7, 30180} {
		story := func() (lines []string) {
			world := newWorld(seed)
			world.opts.Log = func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
			_, _ = world.Run()
			return lines
		}
		a, b := story(), story()
		if len(a) == 0 || len(a) != len(b) {
			t.Fatalf("seed %d: %d and %d lines", seed, len(a), len(b))
		}
		for i := range a {
			if a[i] != b[i] {
				t.Fatalf("seed %d: line %d differs:\n%s\n%s", seed, i, a[i], b[i])
			}
		}
	}
}
