//go:build mutation

package sim

import (
	"errors"
	"fmt"
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

// worldBudget is how many worlds TestMutants simulates for each deliberate bug by default. A number of worlds gives the
// same result on every machine, and a time would not.
const worldBudget = 700

// TestFindBrokenRule simulates SIM_HUNT seeds, one after the other, beginning with SIM_FIRST. It reports the first
// broken rule. TestMutants runs it in a binary with a deliberate bug.
func TestFindBrokenRule(t *testing.T) {
	most, ok := number(t, "SIM_HUNT")
	if !ok {
		most = 10
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
				over := found != nil || seed >= first+most
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
// rule breaks, in at most SIM_BUDGET worlds. MUTANTS names the bugs to test, separated by commas. MUTANTS=quick selects
// those marked as quick.
func TestMutants(t *testing.T) {
	budget, ok := number(t, "SIM_BUDGET")
	if !ok {
		budget = worldBudget
	}
	which := os.Getenv("MUTANTS")
	for _, m := range mutants {
		if which == "quick" && !m.quick || which != "" && which != "quick" &&
			!slices.Contains(strings.Split(which, ","), m.name) {
			continue
		}
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) { m.hunt(t, budget) })
	}
}

func (m *mutant) hunt(t *testing.T, worlds uint64) {
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
	hunt := exec.CommandContext(t.Context(), binary, "-test.run", "^TestFindBrokenRule$", "-test.timeout", "0")
	hunt.Env = append(os.Environ(), fmt.Sprint("SIM_HUNT=", worlds), "SIM_FIRST=1")
	out, err := hunt.CombinedOutput()
	found := brokenLine.FindSubmatch(out)
	switch {
	case found != nil:
		t.Logf("%s: caught by rule %q at seed %s, after %s worlds and %s: %s", m.why, found[1], found[2], found[3],
			found[4], found[5])
	case err != nil:
		t.Fatalf("hunt: %v\n%s", err, out)
	default:
		t.Errorf("%s: not caught in %d worlds", m.why, worlds)
	}
}
