// Package libvirtd starts a real libvirtd for tests. It uses the package services/dev/libvirtd. The daemon ends with
// the test.
package libvirtd

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/nstance-kit/nstance/services/dev/libvirtd"
)

// Daemon is a running libvirtd with an empty storage pool "default" and the networks "a" and "b". Its methods end the
// test on failure.
type Daemon struct {
	*libvirtd.Daemon
	dir string
}

// Start starts a daemon, which ends with the test.
func Start(t testing.TB) *Daemon {
	t.Helper()
	return start(t, true)
}

// StartInNetwork starts a daemon in the network namespace of this process, so that programs outside of the VMs reach
// the VMs.
func StartInNetwork(t testing.TB) *Daemon {
	t.Helper()
	return start(t, false)
}

func start(t testing.TB, ownNetwork bool) *Daemon {
	t.Helper()
	// The path of the socket must be short.
	dir, err := os.MkdirTemp("", "libvirt") //nolint:usetesting // t.TempDir is longer
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	daemon, err := libvirtd.Start(t.Context(), libvirtd.Options{Dir: dir, OwnNetwork: ownNetwork})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := daemon.Stop(); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"namespaces.log", "libvirtd.log"} {
			if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil && t.Failed() {
				t.Logf("%s: %s", name, text)
			}
		}
	})
	return &Daemon{daemon, dir}
}

// Dir returns the directory of the daemon.
func (d *Daemon) Dir() string { return d.dir }

// URI returns the address of the daemon for a client on this machine.
func (d *Daemon) URI() string { return libvirtd.URI(d.dir) }

// run runs a shell script with arguments in the daemon's namespaces.
func (d *Daemon) run(t testing.TB, script string, args ...string) {
	t.Helper()
	out, err := d.Enter(t.Context(), append([]string{"sh", "-c", script, "sh"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// signal sends a signal, such as KILL, to libvirtd. VMs keep running. After KILL, signal waits until all threads of
// libvirtd have ended. Until then, the lock of the PID file prevents the start of a new libvirtd: even if the main
// thread is a zombie, other threads may keep the PID file open.
func (d *Daemon) signal(t testing.TB, signal string) {
	t.Helper()
	d.run(t, `set -e
		pid=$(cat "$1/libvirtd.pid")
		kill -"$2" "$pid"
		[ "$2" = KILL ] || exit 0
		while grep -q "^State:.[^ZX]" "/proc/$pid/status" 2>/dev/null ||
			[ "$(ls "/proc/$pid/task" 2>/dev/null | wc -l)" -gt 1 ]; do sleep 0.01; done`, d.dir, signal)
}

// Virsh runs a command of virsh and returns its output.
func (d *Daemon) Virsh(t testing.TB, args ...string) string {
	t.Helper()
	out, err := d.Daemon.Virsh(t.Context(), args...)
	check(t, err)
	return out
}

// StartDaemon starts libvirtd, also after [Daemon.KillDaemon].
func (d *Daemon) StartDaemon(t testing.TB) { t.Helper(); check(t, d.Daemon.StartDaemon(t.Context())) }

// KillDaemon kills libvirtd. VMs keep running.
func (d *Daemon) KillDaemon(t testing.TB) { t.Helper(); d.signal(t, "KILL") }

// StopDaemon pauses libvirtd, which then answers no call until [Daemon.ContinueDaemon] is called.
func (d *Daemon) StopDaemon(t testing.TB) { t.Helper(); d.signal(t, "STOP") }

// ContinueDaemon ends what [Daemon.StopDaemon] began.
func (d *Daemon) ContinueDaemon(t testing.TB) {
	t.Helper()
	d.signal(t, "CONT")
}

// KillVM kills the QEMU process of a domain, and returns when it has ended.
func (d *Daemon) KillVM(t testing.TB, name string) {
	t.Helper()
	d.run(t, `set -e
		pid=$(cat "/run/libvirt/qemu/$1.pid")
		kill -9 "$pid"
		while kill -0 "$pid" 2>/dev/null; do sleep 0.01; done`, name)
}

// KillVMUntilEvent kills the QEMU process of a domain. A client of libvirt waits for the event that the domain has
// ended. KillVMUntilEvent returns the time at which the client got that event.
func (d *Daemon) KillVMUntilEvent(t testing.TB, name string) time.Time {
	t.Helper()
	uri, err := url.Parse(d.URI())
	check(t, err)
	client, err := libvirt.ConnectToURI(uri)
	check(t, err)
	defer func() { check(t, client.Disconnect()) }()
	events, err := client.LifecycleEvents(t.Context())
	check(t, err)
	ended := make(chan time.Time, 1)
	go func() {
		defer close(ended)
		for event := range events { // until the connection ends
			if event.Dom.Name == name && event.Event == int32(libvirt.DomainEventStopped) {
				select {
				case ended <- time.Now():
				default:
				}
			}
		}
	}()
	d.KillVM(t, name)
	var at time.Time
	select {
	case at = <-ended:
	case <-time.After(time.Minute):
	}
	if at.IsZero() {
		t.Fatalf("no event that domain %s has ended", name)
	}
	return at
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
