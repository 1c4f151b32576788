// Package lab provides a cloud on this host for tests of whole stacks. It consists of fakeaws with real machines,
// images made by the real provisioning script, and a real S3 server behind the buckets. The real CLIs apply this
// repository's examples to the cloud.
//
// Invariant: the programs and modules under test are those that users get. Only the cloud is fake.
package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Root returns the root directory of the repository: the nearest parent of the working directory that has a go.mod.
// It panics if there is none.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	panic("lab: the working directory is outside the repository")
}

// Tofu returns the path of tofu, which scripts/tool.sh builds if it is not on PATH.
func Tofu(ctx context.Context) (path string, err error) { return Run(ctx, "scripts/tool.sh", "tofu") }

// Run runs a command in the repository and returns its output without the last line break.
func Run(ctx context.Context, name string, args ...string) (string, error) {
	if strings.ContainsRune(name, '/') && !filepath.IsAbs(name) {
		name = filepath.Join(Root(), name)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = Root()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// Waiter is a T that wants to know what Eventually waits for, and what is still wrong.
type Waiter interface{ Waiting(what, wrong string) }

// Eventually calls "look" until it returns "". It returns how long that took. At the time limit it fails the test with
// the last result of "look".
func Eventually(t T, within time.Duration, what string, look func() string) time.Duration {
	t.Helper()
	began, ticker := time.Now(), time.NewTicker(100*time.Millisecond)
	defer ticker.Stop()
	for {
		wrong := look()
		if wrong == "" {
			took := time.Since(began)
			t.Logf("%s: after %.1f s", what, took.Seconds())
			return took
		}
		if waiter, ok := t.(Waiter); ok {
			waiter.Waiting(what, wrong)
		}
		if time.Since(began) > within {
			t.Fatalf("%s: not within %s: %s", what, within, wrong)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(fmt.Errorf("%s: %w: %s", what, context.Cause(t.Context()), wrong))
		case <-ticker.C:
		}
	}
}
