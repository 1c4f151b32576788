//go:build mutation

package sim

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestFindBrokenRule simulates one seed after the other, beginning with SIM_FIRST. It stops when a real time of
// SIM_HUNT has passed, and reports the first broken rule. TestMutants runs it in a binary with a deliberate bug.
func TestFindBrokenRule(t *testing.T) {
	limit, err := time.ParseDuration(os.Getenv("SIM_HUNT"))
	if err != nil {
		limit = time.Second
	}
	first, ok := number(t, "SIM_FIRST")
	if !ok {
		first = 1
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	began := time.Now()
	var mu sync.Mutex
	var found *Broken
	next, played := first, 0
	var wg sync.WaitGroup
	for range workers() {
		wg.Go(func() {
			for {
				mu.Lock()
				seed := next
				over := found != nil || time.Since(began) > limit
				next++
				mu.Unlock()
				if over {
					return
				}
				_, err := newWorld(seed).Run()
				mu.Lock()
				var broken *Broken
				if played++; errors.As(err, &broken) && (found == nil || broken.Seed < found.Seed) {
					found = broken
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if found != nil {
		t.Errorf("broken rule=%q seed=%d worlds=%d took=%v text=%q", found.Rule, found.Seed, played,
			time.Since(began).Round(time.Millisecond), found.Text)
	}
}

var brokenLine = regexp.MustCompile(`broken rule="([^"]*)" seed=(\d+) worlds=(\d+) took=(\S+) text="((?:[^"\\]|\\.)*)"`)

// TestMutants builds the simulator with each deliberate bug. For each bug, it simulates one world after another until a
// rule breaks, for at most SIM_BUDGET (60s). MUTANTS names the bugs to test, separated by commas. MUTANTS=quick selects
// those marked as quick.
func TestMutants(t *testing.T) {
	budget := os.Getenv("SIM_BUDGET")
	if budget == "" {
		budget = "60s"
	}
	limit, err := time.ParseDuration(budget)
	if err != nil {
		t.Fatalf("SIM_BUDGET: %v", err)
	}
	which := os.Getenv("MUTANTS")
	for _, m := range mutants {
		if which == "quick" && !m.quick || which != "" && which != "quick" &&
			!slices.Contains(strings.Split(which, ","), m.name) {
			continue
		}
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) { m.hunt(t, limit) })
	}
}

func (m *mutant) hunt(t *testing.T, limit time.Duration) {
	dir := t.TempDir()
	overlay, err := m.edit.WriteOverlay(services, dir)
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "sim.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "mutation", "-overlay", overlay, "-o",
		binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit+time.Minute)
	defer cancel()
	hunt := exec.CommandContext(ctx, binary, "-test.run", "^TestFindBrokenRule$", "-test.timeout", "0")
	hunt.Env = append(os.Environ(), "SIM_HUNT="+limit.String(), "SIM_FIRST=1")
	out, err := hunt.CombinedOutput()
	found := brokenLine.FindSubmatch(out)
	switch {
	case found != nil:
		t.Logf("%s: caught by rule %q at seed %s, after %s worlds and %s: %s", m.why, found[1], found[2], found[3],
			found[4], found[5])
	case err != nil:
		t.Fatalf("hunt: %v\n%s", err, out)
	default:
		t.Errorf("%s: not caught in %v", m.why, limit)
	}
}
