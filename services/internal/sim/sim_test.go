package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"time"
)

const (
	// fixed is the default number of runs.
	fixed = 60
	// enough is the number of failing seeds at which a test stops.
	enough = 20
)

// TestWorlds plays runs, several in parallel. SIM_SEED selects one seed and prints its log. SIM_DURATION (in real time)
// plays random seeds for that time. SIM_WORLDS plays that number of seeds from SIM_FIRST on. The default is a fixed set
// of seeds.
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
	first, ok := number(t, "SIM_FIRST")
	if !ok {
		first = 1
	}
	worlds, ok := number(t, "SIM_WORLDS")
	if !ok {
		worlds = fixed
	}
	more := func(played uint64) bool { return played < worlds }
	if text := os.Getenv("SIM_DURATION"); text != "" && !ok {
		duration, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("SIM_DURATION: %v", err)
		}
		first = rand.Uint64N(1 << 48)
		more = func(uint64) bool { return time.Since(began) < duration }
	}
	total, played := playAll(t, first, more)
	took := time.Since(began)
	t.Logf("%d worlds from seed %d on, %.0f shard-hours in %v (%.0f in a real minute): %d terms, %d of heirs, %d "+
		"create calls, %d delete calls, %d replacements, %d faults, %d steps",
		played, first, total.Simulated.Hours(), took.Round(time.Millisecond), total.Simulated.Hours()/took.Minutes(),
		total.Terms, total.Inherited, total.Creates,
		total.Deletes, total.Replaced, total.Faults, total.Steps)
	if n := int(played); n >= fixed && (total.Terms < 2*n || total.Inherited < n || total.Creates < 5*n ||
		total.Replaced < 2*n || total.Faults < 10*n) {
		t.Errorf("these worlds were too peaceful to prove anything")
	}
	if played < fixed {
		return
	}
	for _, k := range Kinds() {
		if *total.Coverage.row(k) == [numStates]uint64{} {
			t.Errorf("%q never came about", k)
		}
	}
}

// playAll plays runs in parallel until more returns false, and sums up their results.
func playAll(t *testing.T, first uint64, more func(played uint64) bool) (total Result, played uint64) {
	var mu sync.Mutex
	failed := 0
	next := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		if !more(played) || failed >= enough {
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
				if err != nil {
					failed++
					t.Errorf("%v\nrepeat it with: make sim SEED=%d", err, seed)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return total, played
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
	r.Deletes += o.Deletes
	r.Faults += o.Faults
	r.Replaced += o.Replaced
	r.Coverage.merge(&o.Coverage)
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

func options(seed uint64) Options {
	return Options{Seed: seed, Faulty: 40 * time.Minute, Quiet: 15 * time.Minute}
}

func newWorld(seed uint64) *World { return New(options(seed)) }

// TestSeedsRepeat checks that a seed determines a run completely.
func TestSeedsRepeat(t *testing.T) {
	story := func() (lines []string) {
		world := newWorld(7)
		world.opts.Log = func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
		_, _ = world.Run()
		return lines
	}
	a, b := story(), story()
	if len(a) == 0 || len(a) != len(b) {
		t.Fatalf("%d and %d lines", len(a), len(b))
	}
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("line %d differs:\n%s\n%s", i, a[i], b[i])
		}
	}
}
