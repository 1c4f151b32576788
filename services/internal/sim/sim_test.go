package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// fixed is how many worlds are played when nobody says for how long.
const fixed = 30

// TestWorld plays seeded worlds. SIM_SEED plays that one, with its story; SIM_DURATION (of real time) says for how long random ones are
// played, else a fixed set is.
func TestWorld(t *testing.T) {
	if text := os.Getenv("SIM_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("SIM_SEED: %v", err)
		}
		play(t, seed, func(format string, args ...any) { t.Logf(format, args...) })
		return
	}
	began := time.Now()
	var total Result
	worlds := 0
	done := func() bool { return worlds >= fixed }
	next := func() uint64 { return uint64(worlds) + 1 }
	if text := os.Getenv("SIM_DURATION"); text != "" {
		duration, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("SIM_DURATION: %v", err)
		}
		first := rand.Uint64()
		done = func() bool { return time.Since(began) >= duration }
		next = func() uint64 { return first + uint64(worlds) }
	}
	for ; !done() && !t.Failed(); worlds++ {
		result := play(t, next(), nil)
		total.Simulated += result.Simulated
		total.Steps += result.Steps
		total.Terms += result.Terms
		total.Creates += result.Creates
		total.Deletes += result.Deletes
		total.Faults += result.Faults
		total.Replaced += result.Replaced
	}
	took := time.Since(began)
	t.Logf("%d worlds, %.0f shard-hours in %v (%.0f an hour of real minutes): %d terms, %d create calls, %d delete calls, %d replacements, %d faults, %d steps",
		worlds, total.Simulated.Hours(), took.Round(time.Millisecond), total.Simulated.Hours()/took.Minutes(), total.Terms, total.Creates, total.Deletes,
		total.Replaced, total.Faults, total.Steps)
	if worlds >= fixed && (total.Terms < 2*worlds || total.Creates < worlds || total.Faults < worlds) {
		t.Errorf("these worlds were too peaceful to prove anything")
	}
}

func play(t *testing.T, seed uint64, log func(string, ...any)) Result {
	t.Helper()
	world := New(Options{Seed: seed, Faulty: 40 * time.Minute, Quiet: 15 * time.Minute, Log: log})
	result, err := world.Run()
	if err != nil {
		t.Errorf("%v\nrepeat it with: make sim SEED=%d", err, seed)
	}
	return result
}

// TestSeedsRepeat: a seed says everything about a run.
func TestSeedsRepeat(t *testing.T) {
	story := func() (lines []string) {
		world := New(Options{Seed: 7, Faulty: 10 * time.Minute, Quiet: 15 * time.Minute, Log: func(format string, args ...any) {
			lines = append(lines, fmt.Sprintf(format, args...))
		}})
		if _, err := world.Run(); err != nil {
			t.Error(err)
		}
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
