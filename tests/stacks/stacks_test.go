// Package stacks applies the examples to a fake cloud on this host, uses the resulting shards, and destroys them. It
// uses tofu or terraform, the real AWS provider, this repository's provider, and real servers and agents. The machines
// boot the userdata that they receive.
package stacks

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

var terraformFlag = flag.String("terraform", "",
	"path of terraform, for one of the stacks; without it tofu applies both")

// TestMain skips the stacks in `go test -short`. They take minutes, and need root and tools that scripts/tool.sh
// builds.
func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("stacks are not tested with -short: make test-aws")
		return
	}
	code := m.Run()
	if err := lab.Discard(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// TestStacks applies the examples with tofu. With the flag -terraform, it applies one of the examples with terraform
// instead. It compares the recorded calls with the servers' permissions and with the operations of the fake AWS.
func TestStacks(t *testing.T) {
	t.Parallel()
	var calls ledger
	t.Run("apply", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *ledger){"single-shard": singleShard, "multi-az": multiAZ,
			"environments": environments, "live": live} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, &calls)
			})
		}
	})
	t.Run("permissions", func(t *testing.T) { calls.Compare(t, "aws.md") })
	t.Run("operations", calls.checkOperations)
}

// cli returns the argument, or the path of tofu if the argument is empty.
func cli(t *testing.T, terraform string) string {
	t.Helper()
	if terraform != "" {
		return terraform
	}
	path, err := lab.Tofu(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return path
}
