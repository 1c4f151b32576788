package system

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	chaosFlag = flag.String("chaos", "", "form of the chaos test: short, or long for every fault at full length")
	// heirLease is the lease in a lock that names an heir. scripts/chaos.sh builds the servers under test with a
	// shorter lease, and sets this flag to that lease.
	heirLease = flag.Duration("heir-lease", 90*time.Second,
		"lease of a lock with an heir, as linked into nstance-server")
)

func TestMain(m *testing.M) {
	if os.Getenv(launchVariable) != "" {
		fmt.Fprintf(os.Stderr, "chaos: launch: %v\n", launch())
		os.Exit(1)
	}
	flag.Parse()
	if *chaosFlag == "" {
		os.Exit(m.Run())
	}
	code, done, err := isolate()
	if err != nil {
		fmt.Fprintf(os.Stderr, "chaos: %v\n", err)
		os.Exit(1)
	}
	if !done {
		code = m.Run()
	}
	os.Exit(code)
}

// longForm reports whether the test is in its long form: it runs every fault, each for its full time.
func longForm() bool { return *chaosFlag == "long" }

// fault is one fault and how the shard must react.
type fault struct {
	name, want string
	// In its short form, the test uses this fault only for shards of the forms in this list, such as withHeir.
	short []string
	// run causes the fault, ends it, and returns what it observed meanwhile.
	run func(ctx context.Context, s *shard) (seen string, err error)
}

// Names of the forms.
const (
	withHeir = "heir"
	alone    = "alone"
)

// TestChaos injects faults into two shards at the same time, one with an heir and one without. It checks what must hold
// during a fault, and ends the fault before it checks the outcome. After each fault the shard must converge.
func TestChaos(t *testing.T) {
	if *chaosFlag == "" {
		t.Log("run by scripts/chaos.sh, which builds the binaries")
		return
	}
	for _, f := range []form{{name: withHeir, heir: true, number: 1}, {name: alone, number: 2}} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := startShard(t, f)
			list := faults
			if f.heir {
				list = slices.Concat(heirFaults, faults)
			}
			var table strings.Builder
			for _, f := range list {
				if !longForm() && !slices.Contains(f.short, s.name) {
					continue
				}
				if !t.Run(f.name, func(t *testing.T) { s.runFault(t, f, &table) }) {
					return // the next fault would start from a broken shard
				}
			}
			fmt.Printf("\n%s: lease %v\n| fault | expectation | seen |\n|---|---|---|\n%s", s.name, s.effectiveLease(),
				table.String())
		})
	}
}

// runFault runs one fault, waits until the shard has converged, and adds a row to the table.
func (s *shard) runFault(t *testing.T, f fault, table *strings.Builder) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), convergeTimeout+faultTime(20*time.Minute),
		errors.New("the fault took too long"))
	defer cancel()
	s.polls.reset()
	seen, err := f.run(ctx, s)
	lost := s.network.repair()
	if err != nil {
		t.Fatal(err)
	}
	if lost > 0 {
		seen += fmt.Sprintf("; %d packets lost", lost)
	}
	began := time.Now()
	if err := s.converge(ctx); err != nil {
		t.Fatal(err)
	}
	seen += fmt.Sprintf("; at most %.1f s without a leader; converged %.1f s after", s.polls.longestGap().Seconds(),
		time.Since(began).Seconds())
	if s.heir {
		if _, _, _, err := s.awaitPair(ctx); err != nil {
			t.Fatal(err)
		}
		seen += fmt.Sprintf(", with an heir %.1f s after", time.Since(began).Seconds())
	}
	seen = strings.TrimPrefix(seen, "; ")
	t.Log(seen)
	fmt.Fprintf(table, "| %s | %s | %s |\n", f.name, f.want, seen)
}
