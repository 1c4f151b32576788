// Package systemd reports a daemon's state to the service manager with the protocol of sd_notify(3). It does nothing if
// NOTIFY_SOCKET is not set.
//
// Invariant: the watchdog is notified only after the daemon has just shown progress. systemd restarts a daemon that
// hangs.
package systemd

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// readyInterval is the time between two calls of Ready.
const readyInterval = 200 * time.Millisecond

// Daemon is a daemon whose state Run reports to systemd.
type Daemon struct {
	// Ready reports whether the daemon is ready. It is called until it first returns true.
	Ready func() bool
	// Alive reports whether the daemon still makes progress. If the daemon hangs, Alive returns false or does not
	// return. Before Run notifies the watchdog, it calls Alive. Calls never overlap.
	Alive func() bool
	Log   *slog.Logger
}

// Run reports to systemd whether d is ready and alive. When ctx ends, it reports that d stops. The reports are for the
// settings Restart=, WatchdogSec=, and Type=notify of the unit.
func Run(ctx context.Context, d Daemon) error {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("read WATCHDOG_USEC: %w", err)
	}
	// Notify the watchdog after half of its interval, as sd_watchdog_enabled(3) recommends.
	feed := never()
	if interval > 0 {
		ticker := time.NewTicker(interval / 2)
		defer ticker.Stop()
		feed = ticker.C
	}
	asking := time.NewTicker(readyInterval)
	defer asking.Stop()
	for {
		select {
		case <-ctx.Done():
			d.notify(daemon.SdNotifyStopping)
			return nil
		case <-feed:
			if d.Alive() {
				d.notify(daemon.SdNotifyWatchdog)
			} else {
				d.Log.Error("watchdog not fed", "reason", "the daemon does not answer its health check")
			}
		case <-asking.C:
			if d.Ready() {
				asking.Stop()
				d.notify(daemon.SdNotifyReady)
			}
		}
	}
}

func (d Daemon) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		d.Log.Warn("service manager not notified", "state", state, "error", err)
	}
}

func never() <-chan time.Time { return nil }
