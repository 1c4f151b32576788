package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shirou/gopsutil/v4/process"
)

// Process is a program that this process started. It has its own session, so a Ctrl-C at the terminal does not reach
// it. Its output goes to a log file.
type Process struct {
	Name string
	PID  int
	Log  string

	ended chan struct{}
	state *os.ProcessState
}

// Start runs a program of the stack, or another one if `program` is a path. It appends the output to a log file.
func (s *Stack) Start(name, program string, args ...string) (*Process, error) {
	log := s.LogFile(name)
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer out.Close()
	// The process outlives the context of the call that starts it.
	cmd := exec.CommandContext(context.Background(), s.program(program), args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = s.Env(), s.Dir, out, out
	if s.Environment != nil {
		cmd.Env = append(cmd.Env, s.Environment(name)...)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	start := cmd.Start
	if s.Network != nil {
		start = func() error { return s.Network.Start(name, cmd) }
	}
	if err := start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, PID: cmd.Process.Pid, Log: log, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // ProcessState has the exit status
		p.state = cmd.ProcessState
		close(p.ended)
	}()
	s.mu.Lock()
	s.processes = append(s.processes, p)
	s.mu.Unlock()
	return p, nil
}

// Ended returns a channel that is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Running reports whether the process has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Kill sends SIGKILL and waits until the process has ended.
func (p *Process) Kill() error {
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && p.Running() {
		return fmt.Errorf("kill %s: %w", p.Name, err)
	}
	<-p.ended
	return nil
}

// Stop sends SIGTERM, and SIGKILL if the process has not ended within timeout. An exit status other than 0 is an error.
func (p *Process) Stop(timeout time.Duration) error {
	if p.Running() {
		_ = syscall.Kill(p.PID, syscall.SIGTERM) // it may have ended
	}
	select {
	case <-p.ended:
	case <-time.After(timeout):
		return errors.Join(fmt.Errorf("%s did not end within %s of SIGTERM", p.Name, timeout), p.Kill())
	}
	if !p.state.Success() {
		return fmt.Errorf("%s ended: %s", p.Name, p.state)
	}
	return nil
}

// Found describes a process on this machine.
type Found struct {
	PID  int
	Args []string
}

// Program returns the base name of the program.
func (f Found) Program() string {
	if len(f.Args) == 0 {
		return ""
	}
	return filepath.Base(f.Args[0])
}

// String returns the PID and the command line.
func (f Found) String() string { return fmt.Sprintf("%d %s", f.PID, strings.Join(f.Args, " ")) }

// Find lists the processes on this machine whose command line contains a path below dir. Every program of a stack has
// such a path. So Find also returns agents, which are children of tmux, and programs that another process has started.
func Find(ctx context.Context, dir string) ([]Found, error) {
	all, err := process.ProcessesWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	prefix := filepath.Clean(dir) + string(filepath.Separator)
	var found []Found
	for _, p := range all {
		if int(p.Pid) == os.Getpid() {
			continue
		}
		args, err := p.CmdlineSliceWithContext(ctx)
		if err != nil {
			continue // it has ended, or belongs to another user
		}
		for _, arg := range args {
			if strings.HasPrefix(arg, prefix) {
				found = append(found, Found{int(p.Pid), args})
				break
			}
		}
	}
	return found, nil
}

// Running maps the names of the running object store, servers and web page to their PIDs. It includes programs that
// another process has started.
func (s *Stack) Running(ctx context.Context) (map[string]int, error) {
	found, err := s.Processes(ctx)
	running := map[string]int{}
	for _, f := range found {
		switch i := slices.Index(f.Args, "--id"); {
		case f.Program() == Store:
			running[Store] = f.PID
		case f.Program() == Page && slices.Contains(f.Args, "serve"):
			running[Page] = f.PID
		case f.Program() == "nstance-server" && i >= 0 && i+1 < len(f.Args):
			running[f.Args[i+1]] = f.PID
		}
	}
	return running, err
}

const (
	loopback = "127.0.0.1"
	// portStep is the difference between a port of one server and the same port of the next server. The option
	// --instance of nstance-server uses the same difference.
	portStep = 10
)

// Ports are the ports of a stack: those of the object store, of the web page, and of the first server. Each further
// server's ports are ten higher than those of the server before it.
type Ports struct {
	Store, Health, Election, Registration, Operator, Agent, Page int
}

// DefaultPorts returns the ports of the development environment.
func DefaultPorts() Ports { return portsFrom(8989) }

func portsFrom(base int) Ports {
	return Ports{Store: base, Health: base + 1, Election: base + 2, Registration: base + 3, Operator: base + 4,
		Agent: base + 5, Page: base + 6}
}

// ofServer returns the ports of the n-th server, beginning with 1.
func (p Ports) ofServer(n int) Ports {
	by := portStep * (n - 1)
	return Ports{Store: p.Store, Health: p.Health + by, Election: p.Election + by, Registration: p.Registration + by,
		Operator: p.Operator + by, Agent: p.Agent + by, Page: p.Page}
}

// Busy returns those ports of the stack that are already in use. servers is the stack's number of servers.
func (p Ports) Busy(ctx context.Context, servers int) (busy []int) {
	ports := []int{p.Store, p.Page}
	for n := 1; n <= servers; n++ {
		s := p.ofServer(n)
		ports = append(ports, s.Health, s.Election, s.Registration, s.Operator, s.Agent)
	}
	for _, port := range ports {
		listener, err := listen(ctx, port)
		if err != nil {
			busy = append(busy, port)
			continue
		}
		_ = listener.Close() // nothing was written
	}
	return busy
}

func listen(ctx context.Context, port int) (net.Listener, error) {
	var c net.ListenConfig
	return c.Listen(ctx, "tcp", Address(port))
}

// ReservePorts finds free ports for a stack with the given number of servers. It also listens on the port just below
// the first one. So no other caller on this machine gets the same ports until `release` is called. The ports are below
// the range of ephemeral ports.
func ReservePorts(ctx context.Context, servers int) (ports Ports, release func(), err error) {
	const first, last = 10000, 30000
	size := portStep * (servers + 1)
	for range 200 {
		base := first + rand.IntN((last-first)/size)*size
		guard, err := listen(ctx, base)
		if err != nil {
			continue
		}
		ports = portsFrom(base + 1)
		if len(ports.Busy(ctx, servers)) == 0 {
			return ports, func() { _ = guard.Close() }, nil
		}
		_ = guard.Close()
	}
	return Ports{}, nil, errors.New("found no free block of ports")
}

// Address returns a port of the loopback address as host:port.
func Address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// Line is a line of a server's log, with the attributes that the tests read.
type Line struct {
	Time   time.Time `json:"time"`
	Msg    string    `json:"msg"`
	Term   uint64    `json:"term"`
	Server string    `json:"server"`
	Heir   string    `json:"heir"`
}

// Lines reads the log of a server. It skips incomplete lines and lines that are not JSON, such as the output of a
// crash.
func (s *Stack) Lines(server string) ([]Line, error) {
	raw, err := os.ReadFile(s.LogFile(server))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var lines []Line
	for text := range bytes.Lines(raw) {
		var line Line
		if bytes.HasSuffix(text, []byte("\n")) && json.Unmarshal(text, &line) == nil {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

// AwaitLine waits until any server has logged the message msg in a term greater than `above`, and returns that log
// line.
func (s *Stack) AwaitLine(ctx context.Context, msg string, above uint64) (Line, error) {
	for {
		for n := 1; n <= s.Servers; n++ {
			lines, err := s.Lines(ServerName(n))
			if err != nil {
				return Line{}, err
			}
			for _, line := range lines {
				if line.Msg == msg && line.Term > above {
					return line, nil
				}
			}
		}
		if err := Pause(ctx, 20*time.Millisecond); err != nil {
			return Line{}, fmt.Errorf("no server logged %q in a term above %d: %w", msg, above, err)
		}
	}
}
