package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/godbus/dbus/v5"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// holdUp is the maximum time for which the agent delays a shutdown. logind itself waits at most 5 s by default
// (InhibitDelayMaxSec=, logind.conf(5)).
const holdUp = 4 * time.Second

// Shutdown is a logind signal that the machine is about to shut down, or that a shutdown was canceled.
type Shutdown struct {
	Active bool
	// Action is "poweroff", "reboot", "halt", "kexec" or "soft-reboot", or empty if logind did not report it.
	Action string
}

// Logind is the part of org.freedesktop.login1 that the agent uses. See org.freedesktop.login1(5) and
// https://systemd.io/INHIBITOR_LOCKS/.
type Logind interface {
	// Inhibit takes a lock that delays a shutdown until the lock is closed.
	Inhibit(ctx context.Context) (io.Closer, error)
	// Next waits for the next shutdown signal.
	Next(ctx context.Context) (Shutdown, error)
	Close() error
}

// WatchShutdown announces why the machine shuts down, before any service is stopped and while the network still works.
// If the shutdown is canceled, it withdraws the announcement. If logind does not report the kind of shutdown, it
// announces nothing. The agent then finds out the reason when it receives SIGTERM. WatchShutdown returns when ctx ends
// or the connection to logind is lost.
func WatchShutdown(ctx context.Context, logind Logind, announce func(context.Context, nstancev1.StoppingReason) error,
	log *slog.Logger) error {
	lock, err := logind.Inhibit(ctx)
	if err != nil {
		return fmt.Errorf("take inhibitor lock: %w", err)
	}
	defer func() { release(lock) }()
	announced := false
	for {
		shutdown, err := logind.Next(ctx)
		if err != nil {
			return err
		}
		switch reason := reasonOf(shutdown.Action); {
		case !shutdown.Active:
			if lock == nil {
				if lock, err = logind.Inhibit(ctx); err != nil {
					return fmt.Errorf("take inhibitor lock: %w", err)
				}
			}
			if announced {
				log.Info("The shutdown was called off")
				announceShutdown(ctx, announce, unspecified, log)
				announced = false
			}
		case announced:
		case reason == unspecified:
			log.Info("The machine goes down; SIGTERM will tell why")
			release(lock)
			lock = nil
		default:
			log.Info("The machine goes down", "reason", shutdown.Action)
			announceShutdown(ctx, announce, reason, log)
			announced = true
			release(lock)
			lock = nil
		}
	}
}

func announceShutdown(ctx context.Context, announce func(context.Context, nstancev1.StoppingReason) error,
	reason nstancev1.StoppingReason, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, holdUp)
	defer cancel()
	if err := announce(ctx, reason); err != nil {
		log.Warn("The server has not confirmed the announcement", "reason", reason.String(), "error", err)
	}
}

func release(lock io.Closer) {
	if lock != nil {
		_ = lock.Close() // a file descriptor that is only ever closed
	}
}

const (
	login1        = "org.freedesktop.login1"
	login1Path    = "/org/freedesktop/login1"
	login1Manager = "org.freedesktop.login1.Manager"
)

// SystemLogind is logind on the system bus.
type SystemLogind struct {
	conn    *dbus.Conn
	signals chan *dbus.Signal
}

// ConnectLogind connects to logind over the message bus that connect opens. Usually, connect is dbus.ConnectSystemBus.
func ConnectLogind(ctx context.Context, connect func(...dbus.ConnOption) (*dbus.Conn, error)) (*SystemLogind, error) {
	conn, err := connect(dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("connect to the message bus: %w", err)
	}
	l := &SystemLogind{conn: conn, signals: make(chan *dbus.Signal, 16)}
	conn.Signal(l.signals)
	for _, member := range []string{"PrepareForShutdown", "PrepareForShutdownWithMetadata"} {
		err := conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(login1), dbus.WithMatchObjectPath(login1Path),
			dbus.WithMatchInterface(login1Manager), dbus.WithMatchMember(member))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("subscribe to %s: %w", member, err), conn.Close())
		}
	}
	return l, nil
}

// Close closes the connection to the bus.
func (l *SystemLogind) Close() error { return l.conn.Close() }

// Inhibit implements [Logind].
func (l *SystemLogind) Inhibit(ctx context.Context) (io.Closer, error) {
	var fd dbus.UnixFD
	err := l.conn.Object(login1, login1Path).CallWithContext(ctx, login1Manager+".Inhibit", 0,
		"shutdown", "nstance-agent", "Tell the Nstance server before the network goes", "delay").Store(&fd)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "inhibitor"), nil
}

// Next implements [Logind]. Since version 255, systemd sends two signals for a shutdown:
// PrepareForShutdownWithMetadata, which contains the kind, and then PrepareForShutdown. Older versions send only
// PrepareForShutdown. The agent then knows the kind only of a scheduled shutdown.
func (l *SystemLogind) Next(ctx context.Context) (Shutdown, error) {
	for {
		select {
		case <-ctx.Done():
			return Shutdown{}, ctx.Err()
		case signal, ok := <-l.signals:
			if !ok {
				return Shutdown{}, errors.New("the connection to the message bus is lost")
			}
			shutdown, ok := parseShutdown(signal)
			// Any client on the bus can send a signal directly to this process. The bus delivers it even without a
			// subscription.
			if !ok || signal.Sender != l.owner(ctx) {
				continue
			}
			if shutdown.Active && shutdown.Action == "" {
				shutdown.Action = l.scheduled()
			}
			return shutdown, nil
		}
	}
}

// owner returns logind's unique name on the bus, which changes when logind restarts.
func (l *SystemLogind) owner(ctx context.Context) (name string) {
	if err := l.conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetNameOwner", 0,
		login1).Store(&name); err != nil {
		return "nobody"
	}
	return name
}

// parseShutdown parses a signal. ok is false for signals other than the two shutdown signals.
func parseShutdown(signal *dbus.Signal) (shutdown Shutdown, ok bool) {
	switch signal.Name {
	case login1Manager + ".PrepareForShutdown":
		return shutdown, dbus.Store(signal.Body, &shutdown.Active) == nil
	case login1Manager + ".PrepareForShutdownWithMetadata":
		var metadata map[string]dbus.Variant
		if dbus.Store(signal.Body, &shutdown.Active, &metadata) != nil {
			return Shutdown{}, false
		}
		shutdown.Action, _ = metadata["type"].Value().(string)
		return shutdown, true
	}
	return Shutdown{}, false
}

// scheduled returns the kind of a scheduled shutdown, or "" if there is none.
func (l *SystemLogind) scheduled() string {
	value, err := l.conn.Object(login1, login1Path).GetProperty(login1Manager + ".ScheduledShutdown")
	if err != nil {
		return "" // the reason is determined on SIGTERM
	}
	fields, ok := value.Value().([]any) // (st)
	if !ok || len(fields) != 2 {
		return ""
	}
	action, _ := fields[0].(string)
	return action
}
