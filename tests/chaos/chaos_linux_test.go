package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// calm is how long coming to rest may take: the longest thing on the way is the minute for which a VM may be missing
// from the provider's list.
const calm = 3 * time.Minute

var (
	// long is for `make chaos`: every fault, as long as the text has it.
	long = os.Getenv("CHAOS") == "long"
	// heirLease is the first of the times that the servers were linked with.
	heirLease = 90 * time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv(launchVariable) != "" {
		fmt.Fprintf(os.Stderr, "chaos: launch: %v\n", launch())
		os.Exit(1)
	}
	if os.Getenv("CHAOS") == "" { // needs the repository's binaries, which `go test` alone does not build
		os.Exit(m.Run())
	}
	code, done, err := isolate()
	if times := strings.Fields(os.Getenv("CHAOS_HEIR")); err == nil && len(times) > 0 {
		heirLease, err = time.ParseDuration(times[0])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "chaos: %v\n", err)
		os.Exit(1)
	}
	if !done {
		code = m.Run()
	}
	os.Exit(code)
}

// fault is one thing that goes wrong.
type fault struct {
	name, want string
	// short says in which forms the short run has it.
	short []string
	// do breaks something, mends it, and says what was seen meanwhile. The context ends when all patience is exhausted.
	do func(ctx context.Context, s *shard) (seen string, err error)
}

// Names of forms.
const (
	withHeir = "heir"
	alone    = "alone"
)

// TestChaos breaks two shards side by side: one whose leader has an heir, and one without.
func TestChaos(t *testing.T) {
	if os.Getenv("CHAOS") == "" {
		t.Log("run by scripts/chaos.sh, which builds what it breaks")
		return
	}
	for _, f := range []form{{name: withHeir, heir: true, number: 1}, {name: alone, number: 2}} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, f)
			list := faults
			if f.heir {
				list = slices.Concat(heirFaults, faults)
			}
			var table strings.Builder
			for _, f := range list {
				if !long && !slices.Contains(f.short, s.name) {
					continue
				}
				if !t.Run(f.name, func(t *testing.T) { s.suffer(t, f, &table) }) {
					return // what follows would be judged for what this one left
				}
			}
			fmt.Printf("\n%s: lease %v\n| fault | expectation | seen |\n|---|---|---|\n%s", s.name, s.lease(),
				table.String())
		})
	}
}

// suffer plays one fault.
func (s *shard) suffer(t *testing.T, f fault, table *strings.Builder) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), calm+lasting(20*time.Minute), errors.New("it took too long"))
	defer cancel()
	s.watch.reset()
	seen, err := f.do(ctx, s)
	lost := s.network.mend()
	if err != nil {
		t.Fatal(err)
	}
	if lost > 0 {
		seen += fmt.Sprintf("; %d packets lost", lost)
	}
	began := time.Now()
	if err := s.rest(ctx); err != nil {
		t.Fatal(err)
	}
	seen += fmt.Sprintf("; at most %.1f s without a leader; at rest %.1f s after", s.watch.without().Seconds(),
		time.Since(began).Seconds())
	if s.heir {
		if _, _, _, err := s.pair(ctx); err != nil {
			t.Fatal(err)
		}
		seen += fmt.Sprintf(", with an heir %.1f s after", time.Since(began).Seconds())
	}
	seen = strings.TrimPrefix(seen, "; ")
	t.Log(seen)
	fmt.Fprintf(table, "| %s | %s | %s |\n", f.name, f.want, seen)
}
