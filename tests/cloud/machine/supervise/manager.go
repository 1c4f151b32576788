// Package supervise owns the processes of a machine with a complete file system. It runs the boot script like
// cloud-init, and the services in the image's own unit files like systemd.
//
// Invariant: the package runs as the machine's PID 1 and is the parent of everything that it starts. It executes the
// boot script unmodified and never interprets it.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/machine/control"
	"github.com/nstance-kit/nstance/tests/cloud/machine/networkd"
	"github.com/nstance-kit/nstance/tests/cloud/machine/unit"
)

// Options configure [Run].
type Options struct {
	// InstanceID is the instance's ID. cloud-init's directory for the instance has this name.
	InstanceID string
	Userdata   []byte
	// If Build is set, Run does not boot. It executes Userdata and returns the exit code.
	Build bool
	// Environment is added to the environment of the boot script, the services and the commands of tests.
	Environment map[string]string
	Log         io.Writer
	// Ready is closed when init listens.
	Ready    io.Closer
	Hostname string
	// Links are the network interfaces with which the machine starts.
	Links []networkd.Link
}

// Manager is the machine's init. mu guards the fields below it.
type Manager struct {
	Options
	journal   *journal
	processes *processes
	null      *os.File
	network   *network

	mu       sync.Mutex
	services map[string]*service
	// state is what systemctl is-system-running prints. target is the unit that a shutdown starts, such as
	// poweroff.target.
	state, target string
	degraded      bool // The boot script failed.
	down          chan string
	sleep         sleep
}

// Run runs init as PID 1 until the machine ends. It returns the exit code of the machine.
func Run(o Options) (int, error) {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return 1, err
	}
	m := &Manager{Options: o, journal: &journal{out: o.Log}, processes: newProcesses(), null: null,
		services: map[string]*service{}, state: "starting",
		down: make(chan string, 1), sleep: sleep{wake: make(chan struct{}, 1)}}
	go m.processes.reap()
	m.network = &network{m: m}
	if err := os.MkdirAll(filepath.Dir(control.Socket), 0o755); err != nil {
		return 1, err
	}
	if err := m.serveJournal(); err != nil {
		return 1, err
	}
	listener, err := net.Listen("unix", control.Socket) //nolint:noctx // it ends with the machine
	if err != nil {
		return 1, err
	}
	go func() { _ = control.Serve(listener, m.handle) }() // Ends with the machine.
	m.listen()
	if err := m.network.start(o.Links); err != nil {
		m.journal.write("systemd-networkd", 0, err.Error())
	}
	if err := o.Ready.Close(); err != nil {
		return 1, err
	}
	if o.Build {
		return m.build()
	}
	m.journal.logf("Machine %s is up as %s.", o.InstanceID, o.Hostname)
	first := true
	for {
		go m.boot(first)
		action := <-m.down
		m.shutdown(action)
		if action == sleepAction {
			m.rest()
		} else if !strings.HasPrefix(action, "reboot") {
			m.journal.logf("Powering off.")
			return 0, nil
		}
		first = false
		if err := m.renew(); err != nil {
			return 1, err
		}
	}
}

// serveJournal answers journalctl for members of the group systemd-journal.
func (m *Manager) serveJournal() error {
	group, err := user.LookupGroup("systemd-journal")
	if err != nil {
		return fmt.Errorf("the machine's image: %w", err)
	}
	gid, err := strconv.Atoi(group.Gid)
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", control.JournalSocket) //nolint:noctx // it ends with the machine
	if err != nil {
		return err
	}
	if err := errors.Join(os.Chown(control.JournalSocket, 0, gid), os.Chmod(control.JournalSocket, 0o660)); err != nil {
		return err
	}
	go func() {
		_ = control.Serve(listener, func(ctx context.Context, r control.Request) control.Response {
			r.Program = "journalctl"
			return m.handle(ctx, r)
		})
	}() // Ends with the machine.
	return nil
}

// listen starts to log what programs write to the console and to syslog. A machine works without them, so listen only
// logs errors.
func (m *Manager) listen() {
	console, err := os.OpenFile("/dev/console", os.O_RDWR, 0) // A named pipe.
	if err != nil {
		m.journal.logf("No console: %v", err)
	} else {
		go m.journal.logLines("console", func() int { return 0 }, console)
	}
	syslog, err := openMailbox("/dev/log")
	if err != nil {
		m.journal.logf("No syslog: %v", err)
		return
	}
	go func() {
		for d := range syslog.in {
			m.journal.write("syslog", d.pid, strings.TrimRight(d.text, "\n\x00"))
		}
	}()
}

// environment returns a copy of the variables with which every service starts.
func (m *Manager) environment() map[string]string {
	environment := map[string]string{"PATH": searchPath, "LANG": "C.UTF-8"}
	maps.Copy(environment, m.Environment)
	return environment
}

// list returns an environment in the form NAME=value, sorted.
func list(environment map[string]string) (assignments []string) {
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		assignments = append(assignments, name+"="+environment[name])
	}
	return assignments
}

// launch starts a process. The process's output goes to the journal. It also goes to the writer "also", unless that is
// nil. The channel "ended" is closed when all output was read.
func (m *Manager) launch(source string, s spec, also io.Writer) (p *process, ended <-chan struct{}, err error) {
	known := make(chan struct{})
	w, ended, err := m.journal.pipe(source, func() int {
		if <-known; p == nil {
			return 0
		}
		return p.pid
	}, also)
	if err != nil {
		return nil, nil, err
	}
	p, err = m.processes.start(s, m.null, w, w)
	close(known)
	_ = w.Close() // The process holds its own copy.
	return p, ended, err
}

// unitPath lists the directories in which init looks for a unit file, in this order.
var unitPath = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
	"/usr/lib/systemd/system"}

// find returns the path of a service's file.
func find(name string) (string, error) {
	if !unit.ValidName(name) {
		return "", fmt.Errorf("%q is no name of a service", name)
	}
	for _, dir := range unitPath {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("there is no unit %s", name)
}

// load reads a unit and its drop-ins.
func (m *Manager) load(name string) (*unit.Service, error) {
	file, err := find(name)
	if err != nil {
		return nil, err
	}
	dropIns := map[string]string{}
	for _, dir := range slices.Backward(unitPath) {
		found, err := filepath.Glob(filepath.Join(dir, name+".d", "*.conf"))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			dropIns[filepath.Base(f)] = f
		}
	}
	files := []string{file}
	for _, base := range slices.Sorted(maps.Keys(dropIns)) {
		files = append(files, dropIns[base])
	}
	var entries []unit.Entry
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		more, err := unit.Parse(f, string(text))
		if err != nil {
			return nil, err
		}
		entries = append(entries, more...)
	}
	s, err := unit.Load(name, entries)
	if err != nil {
		return nil, err
	}
	s.File = file
	return s, nil
}

// definition returns the unit with the content that it had when it was last read. A changed file takes effect after
// daemon-reload.
func (m *Manager) definition(s *service) (*unit.Service, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.definition == nil {
		def, err := m.load(s.name)
		if err != nil {
			return nil, err
		}
		s.definition = def
	}
	return s.definition, nil
}

func (m *Manager) service(name string) *service {
	s := m.services[name]
	if s == nil {
		s = &service{m: m, name: name, state: inactive, sub: "dead", result: success}
		m.services[name] = s
	}
	return s
}

// start starts a service unless it runs already. It does not wait until the start has succeeded. The caller can do that
// with the returned run.
func (m *Manager) start(ctx context.Context, name string) (*run, error) {
	for {
		m.mu.Lock()
		s := m.service(name)
		m.mu.Unlock()
		if _, err := m.definition(s); err != nil {
			m.journal.logf("%v", err)
			return nil, err
		}
		m.mu.Lock()
		if m.state == "stopping" {
			m.mu.Unlock()
			return nil, errors.New("the machine goes down")
		}
		r := s.run
		if r == nil {
			r = newRun()
			s.run, s.state, s.sub, s.restarts = r, activating, "start", 0
			m.mu.Unlock()
			m.journal.logf("Starting %s...", name)
			go s.loop(r)
			return r, nil
		}
		m.mu.Unlock()
		if !r.stopping() {
			return r, nil
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// finish records that a run of a service has ended, so that the service can start again.
func (m *Manager) finish(s *service, r *run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.run == r {
		s.run = nil
	}
}

// stop asks a service to stop. The returned channel is closed when the service has stopped.
func (m *Manager) stop(name string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.service(name).run; r != nil {
		r.stopOnce()
		return r.done
	}
	done := make(chan struct{})
	close(done)
	return done
}

// goDown makes the machine power off or reboot, and does not wait for that. Only the first call has an effect.
func (m *Manager) goDown(action string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == "stopping" {
		return
	}
	kind, _, _ := strings.Cut(action, "-")
	m.state, m.target = "stopping", kind+".target"
	m.down <- action
}

// grace limits the wait at shutdown for processes that belong to no service. If they still run this long after SIGTERM,
// they get SIGKILL.
const grace = 2 * time.Second

// shutdown ends all services as their units define, and then all other processes.
func (m *Manager) shutdown(action string) {
	m.journal.logf("The system will %s now!", action)
	if !strings.HasSuffix(action, "-force") {
		m.mu.Lock()
		names := slices.Collect(maps.Keys(m.services))
		m.mu.Unlock()
		for _, name := range names {
			m.stop(name)
		}
		for _, name := range names {
			<-m.stop(name)
		}
		_ = syscall.Kill(-1, syscall.SIGTERM) // There may be no process left.
		end := time.Now().Add(grace)
		for others() && time.Now().Before(end) {
			time.Sleep(10 * time.Millisecond)
		}
	}
	for others() {
		_ = syscall.Kill(-1, syscall.SIGKILL) // There may be no process left.
		time.Sleep(5 * time.Millisecond)
	}
}

// others reports whether any process besides init is alive.
func others() bool { return len(alive(func(int, int) bool { return true })) > 0 }

// renew prepares the machine for its next boot. It empties /run and /tmp, and forgets the services.
func (m *Manager) renew() error {
	for _, dir := range []string{"/run", "/tmp"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if path := filepath.Join(dir, e.Name()); path != filepath.Dir(control.Socket) {
				if err := os.RemoveAll(path); err != nil {
					return err
				}
			}
		}
	}
	if err := m.network.restart(); err != nil {
		m.journal.write("systemd-networkd", 0, err.Error())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.services, m.state, m.target, m.degraded = map[string]*service{}, "starting", "", false
	return nil
}

// boot starts the enabled services and then, at the first boot, the boot script.
func (m *Manager) boot(first bool) {
	links, err := filepath.Glob("/etc/systemd/system/multi-user.target.wants/*.service")
	if err != nil {
		m.journal.logf("%v", err)
	}
	for _, link := range links {
		_, _ = m.start(context.Background(), filepath.Base(link)) // Errors are in the journal.
	}
	ok := true
	if first {
		if ok, err = m.cloudInit(); err != nil {
			m.journal.write("cloud-init", 1, "ERROR: "+err.Error())
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.degraded = !ok
	if m.state == "starting" {
		m.state = "running"
	}
}
