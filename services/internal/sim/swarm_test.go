package sim

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// shrinkRuns is the maximum number of runs to find a smaller schedule of one failing seed.
const shrinkRuns = 600

// TestSwarm plays SIM_SWARM runs from seed SIM_FIRST on, or from a seed derived from the clock. It prints its progress
// every ten seconds, and shrinks the first failing schedule of each rule. It writes to the file SIM_COVERAGE which
// fault met which state. Without SIM_SWARM it plays four runs, and checks that the coverage table has content.
func TestSwarm(t *testing.T) {
	worlds, many := number(t, "SIM_SWARM")
	if !many {
		worlds = 4
	}
	first, ok := number(t, "SIM_FIRST")
	switch {
	case !ok && many:
		first = uint64(time.Now().Unix()) << 20
	case !ok:
		first = 1 << 20
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	began := time.Now()
	s := swarm{first: first, worlds: worlds, broken: map[string][]uint64{}}
	stop := make(chan struct{})
	var reports sync.WaitGroup
	if many {
		reports.Go(func() { s.reportProgress(stop, began) })
	}
	s.play()
	close(stop)
	reports.Wait()
	took := time.Since(began)
	t.Logf("%d worlds from seed %d on, %.0f shard-hours in %v (%.0f in a real minute): %d terms, %d of heirs, %d "+
		"create calls, %d delete calls, %d replacements, %d faults, %d steps",
		s.played.Load(), first, s.total.Simulated.Hours(), took.Round(time.Millisecond),
		s.total.Simulated.Hours()/took.Minutes(), s.total.Terms, s.total.Inherited, s.total.Creates,
		s.total.Deletes, s.total.Replaced, s.total.Faults, s.total.Steps)
	if err := s.save(); err != nil {
		t.Fatal(err)
	}
	s.report(t)
	if table := s.total.Coverage.Table(); !strings.Contains(table, "| "+string(lostVM)+" |") ||
		!strings.Contains(table, "were never met") ||
		!strings.Contains(table, "| "+stateNames[acting]+" |") {
		t.Errorf("the coverage table is nearly empty:\n%s", table)
	}
}

type swarm struct {
	first, worlds uint64
	next, played  atomic.Uint64
	mu            sync.Mutex
	total         Result
	broken        map[string][]uint64 // seeds by rule
	errs          []*Broken
}

func (s *swarm) play() {
	var wg sync.WaitGroup
	for range workers() {
		wg.Go(func() {
			for {
				n := s.next.Add(1) - 1
				if n >= s.worlds || s.failures() >= enough {
					return
				}
				result, err := newWorld(s.first + n).Run()
				s.played.Add(1)
				s.mu.Lock()
				s.total.add(result)
				var broken *Broken
				if errors.As(err, &broken) {
					s.broken[broken.Rule] = append(s.broken[broken.Rule], broken.Seed)
					s.errs = append(s.errs, broken)
					fmt.Println(broken)
				}
				s.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func (s *swarm) failures() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.errs)
}

// reportProgress prints the progress every ten seconds.
func (s *swarm) reportProgress(stop <-chan struct{}, began time.Time) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			n := s.played.Load()
			s.mu.Lock()
			hours, faults, failed := s.total.Simulated.Hours(), s.total.Faults, len(s.errs)
			if err := s.save(); err != nil {
				fmt.Println(err)
			}
			s.mu.Unlock()
			fmt.Printf("%d of %d worlds, %.0f shard-hours, %.0f a minute, %d faults, %d broken\n", n, s.worlds, hours,
				hours/time.Since(began).Minutes(), faults, failed)
		}
	}
}

// save writes the coverage to the file SIM_COVERAGE, if set. It is also called every ten seconds, for runs that are
// interrupted.
func (s *swarm) save() error {
	name := os.Getenv("SIM_COVERAGE")
	if name == "" {
		return nil
	}
	return os.WriteFile(name, []byte(s.total.Coverage.Table()), 0o644)
}

// report fails the test for every failing seed, and prints the shrunk schedule of the first seed of each rule.
func (s *swarm) report(t *testing.T) {
	for _, err := range s.errs {
		t.Errorf("%v\nrepeat it with: make sim SEED=%d", err, err.Seed)
	}
	for _, rule := range slices.Sorted(maps.Keys(s.broken)) {
		seeds := s.broken[rule]
		t.Logf("rule %q: %d seeds", rule, len(seeds))
		if shrunk := Shrink(options(slices.Min(seeds)), shrinkRuns); shrunk != nil {
			t.Log(shrunk)
		}
	}
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
