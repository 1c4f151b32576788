// Package systemd tells the service manager how a daemon does, by the protocol of sd_notify(3). Without one
// (NOTIFY_SOCKET is not set) it does nothing.
//
// Invariant: the watchdog is fed only by a daemon that has just shown that it lives; what hangs is restarted by
// systemd.
package systemd

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// readyInterval is how often a daemon that is not ready yet is asked again.
const readyInterval = 200 * time.Millisecond

// Daemon is what the service manager is told of.
type Daemon struct {
	// Ready reports whether the daemon does its work. It is asked until it says so once.
	Ready func() bool
	// Alive returns once the daemon has shown that it makes progress; a hanging one does not return, or returns false.
	// Called by one goroutine, for every feeding of the watchdog.
	Alive func() bool
	Log   *slog.Logger
}

// Run tells of d until ctx ends, and then that it stops. Restart=, WatchdogSec= and Type=notify of the unit make use of
// it.
func Run(ctx context.Context, d Daemon) error {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("read WATCHDOG_USEC: %w", err)
	}
	// sd_watchdog_enabled(3) recommends half of the time that systemd waits.
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
			d.tell(daemon.SdNotifyStopping)
			return nil
		case <-feed:
			if d.Alive() {
				d.tell(daemon.SdNotifyWatchdog)
			} else {
				d.Log.Error("watchdog not fed", "reason", "the daemon does not answer itself")
			}
		case <-asking.C:
			if d.Ready() {
				asking.Stop()
				d.tell(daemon.SdNotifyReady)
			}
		}
	}
}

func (d Daemon) tell(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		d.Log.Warn("service manager not told", "state", state, "error", err)
	}
}

func never() <-chan time.Time { return nil }
