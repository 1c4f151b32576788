package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestShellHook(t *testing.T) {
	var lines bytes.Buffer
	log := slog.New(slog.NewTextHandler(&lines, nil))
	out := filepath.Join(t.TempDir(), "out")
	environ := func() []string { return []string{"NSTANCE_RECV_DIR=/recv"} }
	hook := shellHook(`echo "$NSTANCE_RECV_DIR: $NSTANCE_CHANGED_FILES" > `+out+`; echo said; echo complained >&2`,
		time.Minute, environ, log)
	if err := hook(t.Context(), []string{"a.env", "b.crt"}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(out); err != nil || string(got) != "/recv: a.env b.crt\n" {
		t.Errorf("%q, %v", got, err)
	}
	if got := lines.String(); !strings.Contains(got, `said\ncomplained`) {
		t.Errorf("log: %s", got)
	}

	lines.Reset()
	err := shellHook("yes 0123456789 | head -c 1000000; exit 3", time.Minute, environ, log)(t.Context(), nil)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("error: %v", err)
	}
	if lines.Len() < maxHookOutput || lines.Len() > 2*maxHookOutput {
		t.Errorf("%d bytes of a million in the log", lines.Len())
	}

	if err := shellHook("sleep 1000", 50*time.Millisecond, environ, log)(t.Context(), nil); err == nil ||
		!strings.Contains(err.Error(), "killed after 50ms") {
		t.Errorf("error: %v", err)
	}
}

// Killing a hook also kills its children.
func TestShellHookKillsChildren(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	hook := shellHook("sleep 1000 & echo $! > "+pipe+"; wait", time.Minute, func() []string {
		return nil
	}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- hook(ctx, nil) }()
	text, err := os.ReadFile(pipe)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	watch, err := unix.PidfdOpen(child, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	cancel()
	if err := <-done; err == nil {
		t.Error("the hook was killed without an error")
	}
	fds := []unix.PollFd{{Fd: int32(watch), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 10_000); n != 1 || err != nil {
		t.Errorf("the child lives on: %d, %v", n, err)
	}
}
