// Package supervise owns what runs on a machine once its file system stands: the boot script, as cloud-init would run
// it, and the services of the image's own unit files, as systemd would.
//
// Invariant: it is the machine's PID 1 and the only parent of what it starts; nothing is taken from the boot script but
// that it is executed.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/control"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/unit"
)

// Options of [Run].
type Options struct {
	// InstanceID names the directory of cloud-init.
	InstanceID string
	Userdata   []byte
	// Build runs Userdata in the environment of Environment and ends the machine with its exit code, instead of
	// booting.
	Build       bool
	Environment []string
	Log         io.Writer
	// Ready is closed when init listens.
	Ready io.Closer
	Host  unit.Host
}

// Manager is init.
type Manager struct {
	Options
	journal      *journal
	processes    *processes
	null         *os.File
	capabilities uint64

	mu       sync.Mutex
	services map[string]*service
	// state is what systemctl is-system-running says, target the unit that a shutdown starts.
	state, target string
	degraded      bool // the boot script failed
	down          chan string
}

// Run is PID 1. It returns the exit code of the machine's end.
func Run(o Options) (int, error) {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return 1, err
	}
	m := &Manager{Options: o, journal: &journal{out: o.Log}, processes: newProcesses(), null: null,
		services: map[string]*service{}, state: "starting",
		down: make(chan string, 1)}
	if m.capabilities, err = boundingSet(); err != nil {
		return 1, err
	}
	go m.processes.reap()
	if err := os.MkdirAll(filepath.Dir(control.Socket), 0o700); err != nil {
		return 1, err
	}
	listener, err := net.Listen("unix", control.Socket) //nolint:noctx // it ends with the machine
	if err != nil {
		return 1, err
	}
	go func() { _ = control.Serve(listener, m.handle) }() // ends with the machine
	m.listen()
	if err := o.Ready.Close(); err != nil {
		return 1, err
	}
	if o.Build {
		return m.build()
	}
	m.journal.say("Machine %s is up as %s.", o.InstanceID, o.Host.Hostname)
	first := true
	for {
		go m.boot(first)
		action := <-m.down
		m.shutdown(action)
		if !strings.HasPrefix(action, "reboot") {
			m.journal.say("Powering off.")
			return 0, nil
		}
		first = false
		if err := m.renew(); err != nil {
			return 1, err
		}
	}
}

// listen takes what programs write to the console and to syslog. Neither is needed by a machine.
func (m *Manager) listen() {
	console, err := os.OpenFile("/dev/console", os.O_RDWR, 0) // a pipe with a name
	if err != nil {
		m.journal.say("No console: %v", err)
	} else {
		go m.journal.follow("console", func() int { return 0 }, console)
	}
	syslog, err := openMailbox("/dev/log")
	if err != nil {
		m.journal.say("No syslog: %v", err)
		return
	}
	go func() {
		for d := range syslog.in {
			m.journal.write("syslog", d.pid, strings.TrimRight(d.text, "\n\x00"))
		}
	}()
}

// boundingSet reads which capabilities a process of this machine can have.
func boundingSet() (bits uint64, err error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "CapBnd:")
	_, err = fmt.Sscanf(rest, "%x", &bits)
	return bits, err
}

// environment is what each service begins with: $PATH and what the image sets for all.
func (m *Manager) environment() []unit.Variable {
	variables := []unit.Variable{{Name: "PATH", Value: searchPath}, {Name: "LANG", Value: "C.UTF-8"}}
	files, err := filepath.Glob("/etc/systemd/system.conf.d/*.conf")
	if err != nil {
		return variables // the pattern is right
	}
	for _, file := range slices.Concat([]string{"/etc/systemd/system.conf"}, files) {
		more, err := defaultEnvironment(file)
		if err != nil {
			m.journal.say("%v", err)
			continue
		}
		variables = append(variables, more...)
	}
	return variables
}

func defaultEnvironment(file string) (variables []unit.Variable, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	entries, err := unit.Parse(file, string(text))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Section != "Manager" || e.Key != "DefaultEnvironment" {
			continue // how a machine is run, which is not so here
		}
		if e.Value == "" {
			variables = nil
			continue
		}
		more, err := unit.Assignments(e.Value, func(s string) (string, error) { return s, nil })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Where, err)
		}
		variables = append(variables, more...)
	}
	return variables, nil
}

// launch starts a process with its output in the journal and in another writer, when there is one. ended is closed when
// all output was read.
func (m *Manager) launch(source string, s spec, nullOut, nullErr bool, also io.Writer) (p *process,
	ended <-chan struct{}, err error) {
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
	files := [2]*os.File{w, w}
	if nullOut {
		files[0] = m.null
	}
	if nullErr {
		files[1] = m.null
	}
	p, err = m.processes.start(s, m.null, files[0], files[1])
	close(known)
	_ = w.Close() // the process has its own
	return p, ended, err
}

// unitPath is where unit files are looked for, the first wins.
var unitPath = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
	"/usr/lib/systemd/system"}

var errNotFound = errors.New("not found")

// find returns the file of a unit.
func find(name string) (string, error) {
	names := []string{name}
	if prefix, rest, ok := strings.Cut(name, "@"); ok {
		names = append(names, prefix+"@"+filepath.Ext(rest))
	}
	for _, n := range names {
		for _, dir := range unitPath {
			file := filepath.Join(dir, n)
			if _, err := os.Stat(file); err == nil {
				return file, nil
			}
		}
	}
	return "", fmt.Errorf("unit %s %w", name, errNotFound)
}

// load reads a unit with its drop-ins.
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
	s, err := unit.Load(name, m.Host, entries)
	if err != nil {
		return nil, err
	}
	s.File = file
	return s, nil
}

// definition is the unit as it was last read; a change is seen after daemon-reload.
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

// start begins to start a service and returns its run, on which to wait.
func (m *Manager) start(ctx context.Context, name string) (*run, error) {
	for {
		m.mu.Lock()
		s := m.service(name)
		m.mu.Unlock()
		if _, err := m.definition(s); err != nil {
			m.journal.say("%v", err)
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
			m.journal.say("Starting %s...", name)
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

// finish lets a service be started again.
func (m *Manager) finish(s *service, r *run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.run == r {
		s.run = nil
	}
}

// stop asks a service to stop; the channel is closed when it has.
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

// act does to the machine what a unit asks for.
func (m *Manager) act(action, why string) {
	if action == "" || action == "none" {
		return
	}
	m.journal.say("%s: %s", action, why)
	m.goDown(action)
}

// goDown begins to power off or to reboot, once.
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

// grace is how long what is no service may take to end when the machine goes down.
const grace = 2 * time.Second

// shutdown ends all services as their units say, and then everything else.
func (m *Manager) shutdown(action string) {
	m.journal.say("The system will %s now!", action)
	if !strings.HasSuffix(action, "-immediate") && !strings.HasSuffix(action, "-force") {
		m.mu.Lock()
		names := slices.Collect(maps.Keys(m.services))
		m.mu.Unlock()
		for _, name := range names {
			m.stop(name)
		}
		for _, name := range names {
			<-m.stop(name)
		}
		_ = syscall.Kill(-1, syscall.SIGTERM) // there may be nobody
		end := time.Now().Add(grace)
		for others() && time.Now().Before(end) {
			time.Sleep(10 * time.Millisecond)
		}
	}
	for others() {
		_ = syscall.Kill(-1, syscall.SIGKILL) // there may be nobody any more
		time.Sleep(5 * time.Millisecond)
	}
}

// others reports whether any process but init is alive.
func others() bool { return len(alive(func(int, int) bool { return true })) > 0 }

// renew makes a machine as it is when it boots again.
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
	m.mu.Lock()
	defer m.mu.Unlock()
	m.services, m.state, m.target, m.degraded = map[string]*service{}, "starting", "", false
	return nil
}

// boot starts what is enabled and then, the first time, the boot script.
func (m *Manager) boot(first bool) {
	links, err := filepath.Glob("/etc/systemd/system/multi-user.target.wants/*.service")
	if err != nil {
		m.journal.say("%v", err)
	}
	for _, link := range links {
		_, _ = m.start(context.Background(), filepath.Base(link)) // it is in the journal
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
