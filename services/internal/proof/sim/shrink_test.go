package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestShrink checks that Shrink reduces a schedule of many faults to the two faults that a failure needs.
func TestShrink(t *testing.T) {
	for seed := uint64(1); seed < 500; seed++ {
		opts := options(seed)
		opts.Faulty, opts.Quiet = 10*time.Minute, 0
		opts.trap = func(counts map[Kind]int) bool { return counts[resize] > 0 && counts[lostVM] > 0 }
		shrunk := Shrink(opts, 300)
		if shrunk == nil || shrunk.Of < 50 {
			continue // this run lacks these faults, or has hardly any others
		}
		if n := len(shrunk.Faults); n < 2 || n > shrunk.Of/10 { // a fault may need others to occur
			t.Errorf("%d of %d faults are left: %v", len(shrunk.Faults), shrunk.Of, shrunk.Faults)
		}
		log := shrunk.String()
		for _, want := range []string{string(resize), string(lostVM), "fell into the trap", "SIM_ONLY=",
			fmt.Sprintf("make sim SEED=%d", seed)} {
			if !strings.Contains(log, want) {
				t.Errorf("the story lacks %q:\n%s", want, log)
			}
		}
		return
	}
	t.Error("no world has both faults")
}

// TestScheduleCanBeThinned replays a run with all faults that occurred in it, and checks that the run is the same.
// Without one of these faults, the run is the same up to the time of that fault.
func TestScheduleCanBeThinned(t *testing.T) {
	story := func(only map[uint64]bool) (Result, []string) {
		var lines []string
		opts := options(11)
		opts.Only = only
		opts.Log = func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
		result, _ := New(opts).Run()
		return result, lines
	}
	all, log := story(nil)
	if again, _ := story(ids(all.Injected)); again.Steps != all.Steps || len(again.Injected) != len(all.Injected) {
		t.Errorf("the whole schedule makes %d steps and %d faults of %d and %d", again.Steps, len(again.Injected),
			all.Steps, len(all.Injected))
	}
	out := all.Injected[len(all.Injected)/2]
	only := ids(all.Injected)
	delete(only, out.ID)
	thinned, logThen := story(only)
	for _, f := range thinned.Injected {
		if f.ID == out.ID {
			t.Fatal("a fault that was left out came about")
		}
	}
	same := 0
	for n := 0; n < min(len(log), len(logThen)) && log[n] == logThen[n]; n++ {
		same = n + 1
	}
	at, err := time.ParseDuration(strings.Fields(log[min(same, len(log)-1)])[0])
	if err != nil || at < out.At {
		t.Errorf("the stories part at %v (%v), the fault was at %v", at, err, out.At)
	}
}
