package admin

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// terminal returns a pseudoterminal whose input is the given lines.
func terminal(t *testing.T, typed string) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	if _, err := master.WriteString(typed); err != nil {
		t.Fatal(err)
	}
	return slave
}

// onTerminal runs a command line on a terminal on which a person has typed text.
func (c terminalless) onTerminal(t *testing.T, typed string, args ...string) (stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), args, "1.2.3", Environment{Stdin: terminal(t, typed), Stdout: &out, Stderr: &errs,
		Getenv: func(name string) string { return c.env[name] }, Now: fleettest.Clock, Rand: fleettest.Rand(c.rand)})
	return errs.String(), code
}

// TestShardCommandsAsk checks that commands which roll or delete instances ask for a confirmation on a terminal, and
// need --yes without a terminal. A change to a larger size needs no confirmation.
func TestShardCommandsAsk(t *testing.T) {
	for line, call := range map[string]string{
		"group roll workers --shard us-a":                      "RollGroup",
		"group scale workers 1 --shard us-a":                   "UpsertGroup",
		"group scale workers 5 --all-shards --total":           "UpsertGroup",
		"group delete batch --shard us-a":                      "DeleteGroup",
		"instance delete " + firstID + " --shard us-a":         "DeleteInstance",
		"server step-down --shard us-a":                        "StepDown",
		"orphans confirm vm-1 --shard us-a":                    "ConfirmOrphans",
		"group scale workers 5 --shard us-a --dry-run --yes":   "",
		"group roll workers --shard us-a --dry-run":            "",
		"group scale workers 0 --all-shards --total --dry-run": "",
	} {
		t.Run(line, func(t *testing.T) {
			cli, a, b, _ := shards(t)
			called := func() bool {
				return slices.Contains(callsOf(a), call) || slices.Contains(callsOf(b), call)
			}
			args := strings.Fields(line)
			if call == "" {
				if _, stderr, code := cli.run(t, args...); code != exitOK || slices.ContainsFunc(callsOf(a), changes) {
					t.Errorf("exit code %d, calls %v\n%s", code, callsOf(a), stderr)
				}
				return
			}
			if _, stderr, code := cli.run(t, args...); code != exitUsage || !strings.Contains(stderr, "add --yes") ||
				called() {
				t.Errorf("without a terminal: exit code %d\n%s", code, stderr)
			}
			if stderr, code := cli.onTerminal(t, "no\n", args...); code != exitFailure || called() ||
				!strings.Contains(stderr, "This changes the cluster") || !strings.Contains(stderr, "not confirmed") {
				t.Errorf("refused on a terminal: exit code %d\n%s", code, stderr)
			}
			if stderr, code := cli.onTerminal(t, "yes\n", args...); code != exitOK || !called() {
				t.Errorf("confirmed on a terminal: exit code %d, calls %v\n%s", code, callsOf(a), stderr)
			}
			if stderr, code := cli.onTerminal(t, "", append(args, "--yes")...); code != exitOK ||
				strings.Contains(stderr, "Go on?") {
				t.Errorf("with --yes: exit code %d\n%s", code, stderr)
			}
		})
	}
	cli, _, _, _ := shards(t)
	larger := []string{"group", "scale", "workers", "5", "--shard", "us-a"}
	if stderr, code := cli.onTerminal(t, "", larger...); code != exitOK || strings.Contains(stderr, "Go on?") {
		t.Errorf("a larger size: exit code %d\n%s", code, stderr)
	}
}

// TestNullDeviceIsNoTerminal checks that /dev/null does not count as a terminal.
func TestNullDeviceIsNoTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if isTerminal(null) || !isTerminal(terminal(t, "")) {
		t.Error("want that only the pseudoterminal is a terminal")
	}
}

func changes(call string) bool {
	return !strings.HasPrefix(call, "List") && !strings.HasPrefix(call, "Get") && !strings.HasPrefix(call, "Explain")
}

// contents returns all keys with their tokens.
func (b *bucket) contents(t *testing.T) string {
	t.Helper()
	entries, err := b.store.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, entry := range entries {
		object, err := b.store.Get(t.Context(), entry.Key)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "%s %s\n", entry.Key, object.Token)
	}
	return text.String()
}

// TestBucketCommandsAsk checks that two kinds of commands ask for a confirmation on a terminal: rotations, and pushes
// of a configuration that deletes or replaces instances. The resealing of secrets and a configuration that replaces
// nothing need no --yes.
func TestBucketCommandsAsk(t *testing.T) {
	b := newBucket(t, "file")
	b.init(t)
	path := exampleConfig(t)
	if stderr, code := b.onTerminal(t, "", b.args("config", "push", path)...); code != exitOK ||
		strings.Contains(stderr, "Go on?") {
		t.Errorf("the first configuration: exit code %d\n%s", code, stderr)
	}
	rolls := exampleConfig(t, `"arch": "amd64"`, `"arch": "arm64"`)
	for line, effect := range map[string]string{
		"config push " + rolls: "are replaced, in waves of up to max_surge",
		"config push " + exampleConfig(t, `"size": 2`, `"size": 1`): "in the groups that get smaller",
		"cluster rotate-ca --no-wait":                               "CA and nonce key are replaced",
		"cluster rotate-workload-ca":                                "workload CA is replaced",
	} {
		args := b.args(strings.Fields(line)...)
		before := b.contents(t)
		b.fails(t, exitUsage, "add --yes", args...)
		if stderr, code := b.onTerminal(t, "no\n", args...); code != exitFailure ||
			!strings.Contains(stderr, effect) || !strings.Contains(stderr, "not confirmed") {
			t.Errorf("%s: refused on a terminal: exit code %d\n%s", line, code, stderr)
		}
		if out := b.must(t, append(args, "--dry-run")...); !strings.Contains(out, "Would do: ") {
			t.Errorf("%s --dry-run: %s", line, out)
		}
		if b.contents(t) != before {
			t.Errorf("%s: the bucket was changed", line)
		}
	}
	if stderr, code := b.onTerminal(t, "yes\n", b.args("config", "push", rolls)...); code != exitOK {
		t.Errorf("confirmed on a terminal: exit code %d\n%s", code, stderr)
	}
	if got := string(mustGet(t, b.store, keys.Config("dev-1"))); !strings.Contains(got, "arm64") {
		t.Error("the confirmed configuration is not in the bucket")
	}
	b.must(t, b.args("config", "push", exampleConfig(t, `"arch": "amd64"`, `"arch": "arm64"`, `"size": 2`,
		`"size": 4`))...)
	if _, err := b.store.Put(t.Context(), keys.Config("dev-1"), []byte("{}"), objstore.Always()); err != nil {
		t.Fatal(err)
	}
	b.fails(t, exitUsage, "add --yes", b.args("config", "push", path)...)
	reseal := b.args("cluster", "rotate-key")
	b.must(t, reseal...)
	if stderr, code := b.onTerminal(t, "no\n", reseal...); code != exitFailure ||
		!strings.Contains(stderr, "sealed with the current one") {
		t.Errorf("rotate-key: exit code %d\n%s", code, stderr)
	}
}
