package systemd_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/daemon/systemd"
)

// manager listens like systemd and sets the watchdog's interval in the environment.
func manager(t *testing.T, watchdog time.Duration) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "")
	if watchdog > 0 {
		t.Setenv("WATCHDOG_USEC", strconv.FormatInt(watchdog.Microseconds(), 10))
	}
	return conn
}

func next(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 256)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatalf("no message was sent: %v", err)
	}
	return string(buf[:n])
}

func start(t *testing.T, ready, alive *atomic.Bool) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- systemd.Run(ctx, systemd.Daemon{Ready: ready.Load, Alive: alive.Load,
			Log: slog.New(slog.DiscardHandler)})
	}()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestReadyThenStopping(t *testing.T) {
	conn := manager(t, 0)
	var ready, alive atomic.Bool
	stop := start(t, &ready, &alive)
	ready.Store(true)
	if got := next(t, conn); got != "READY=1" {
		t.Errorf("first message %q, want READY=1", got)
	}
	stop()
	if got := next(t, conn); got != "STOPPING=1" {
		t.Errorf("last message %q, want STOPPING=1", got)
	}
}

func TestNeverReady(t *testing.T) {
	conn := manager(t, 0)
	var ready, alive atomic.Bool
	start(t, &ready, &alive)()
	if got := next(t, conn); got != "STOPPING=1" {
		t.Errorf("a daemon that was never ready sent %q", got)
	}
}

func TestWatchdog(t *testing.T) {
	conn := manager(t, 20*time.Millisecond)
	var ready, alive atomic.Bool
	alive.Store(true)
	stop := start(t, &ready, &alive)
	for range 3 {
		if got := next(t, conn); got != "WATCHDOG=1" {
			t.Errorf("message %q, want WATCHDOG=1", got)
		}
	}
	alive.Store(false)
	// Read the messages that were sent before the daemon hung. The test ends when no message arrives for 200 ms, which
	// is many intervals of the watchdog.
	deadline := time.Now().Add(20 * time.Second)
	for silent := false; !silent; {
		if time.Now().After(deadline) {
			t.Fatal("the watchdog of a daemon that hangs is fed on and on")
		}
		if err := conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, err := conn.Read(make([]byte, 256))
		var timeout net.Error
		silent = errors.As(err, &timeout) && timeout.Timeout()
	}
	stop()
}

func TestWithoutManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	var ready, alive atomic.Bool
	ready.Store(true)
	start(t, &ready, &alive)()
}
