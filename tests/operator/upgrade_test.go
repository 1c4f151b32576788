package operator

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// oldScript builds an earlier version and prints its directory.
const oldScript = "scripts/old.sh"

// TestUpgrade upgrades the servers of an earlier version, and then its operator. The bucket comes from the earlier
// version, and so do all programs at first. Each operator scales a pool up and down. Only this scaling may create
// instances, because any other creation would mean that an instance was replaced.
func TestUpgrade(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole Kubernetes and two shards")
	}
	t.Parallel()
	current := thisVersion(t)
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), filepath.Join(current.root, oldScript))
	cmd.Stderr = &stderr
	dir, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", oldScript, err, &stderr)
	}
	path := strings.TrimSpace(string(dir))
	old := version{filepath.Join(path, "bin"), filepath.Join(path, "src")}

	l := newLabFrom(t, old, setup{change: groups}, setup{change: groups})
	settled := func(ctx context.Context) error {
		return errors.Join(l.east.settled(ctx, workers, 2), l.west.settled(ctx, workers, 2))
	}
	await(t, "the old servers have made their static groups", patience, settled)
	l.startOperator(t, old)
	l.registered(t)
	l.works(t, "old operator, old servers")
	for _, s := range l.shards() {
		s.mu.Lock()
		s.bin = current.bin
		s.mu.Unlock()
		if err := s.server().Stop(patience); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the new servers lead", patience, settled)
	l.startOperator(t, current)
	l.works(t, "new operator, new servers")
}

// startOperator installs the CRDs and permissions of a version. It stops the operator that runs, and starts the
// operator of that version.
func (l *lab) startOperator(t *testing.T, of version) {
	t.Helper()
	l.version = of
	if err := l.InstallCRDs(t.Context(), filepath.Join(of.root, "config", "crd")); err != nil {
		t.Fatal(err)
	}
	l.permit(t)
	if n := len(l.operators); n > 0 {
		if err := l.operators[n-1].Stop(patience); err != nil {
			t.Fatal(err)
		}
	}
	l.operator(t, "--disable-webhooks") // the earlier version has a flag for its webhooks
}

// works checks that the operator leads. Then it scales the pool up and down, and checks that no instance is replaced.
func (l *lab) works(t *testing.T, what string) {
	t.Helper()
	began := time.Now()
	await(t, what+": four", patience, func(ctx context.Context) error { return l.spread(ctx, workers, l.both(2, 2)) })
	made, before := l.made(workers), l.ids(t, workers, l.shards()...)
	for _, step := range []struct{ replicas, east, west int }{{5, 3, 2}, {4, 2, 2}} {
		if err := l.scale(t.Context(), workers, step.replicas); err != nil {
			t.Fatal(err)
		}
		await(t, fmt.Sprintf("%s: %d", what, step.replicas), patience, func(ctx context.Context) error {
			return l.spread(ctx, workers, l.both(step.east, step.west))
		})
		after := l.ids(t, workers, l.shards()...)
		if lost := without(before, after); step.replicas > len(before) && len(lost) > 0 {
			t.Errorf("%s: scaling up deleted %v", what, lost)
		}
		if extra := without(after, before); step.replicas < len(before) && len(extra) > 0 {
			t.Errorf("%s: scaling down created %v", what, extra)
		}
		before = after
	}
	if n := l.made(workers) - made; n != 1 {
		t.Errorf("%s: %d instances were created, want one", what, n)
	}
	t.Logf("%s: %.1f s", what, time.Since(began).Seconds())
}

// without returns the strings of the first list that the second one lacks.
func without(all, taken []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(taken, s) })
}
