package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// start runs a program of the stack and appends the program's output to a log file.
func (s *Stack) start(name, program string, args ...string) (*Process, error) {
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
