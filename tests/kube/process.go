package kube

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Process is a program that runs until it is stopped, or until this one ends.
type Process struct {
	Name string
	PID  int
	Log  string // file with all that it writes

	ended chan struct{}
	state *os.ProcessState
}

// launcher starts all processes from one thread that never ends: Linux sends the signal of a parent's death when the
// thread ends that forked.
var launcher = sync.OnceValue(func() chan<- func() {
	jobs := make(chan func())
	go func() {
		runtime.LockOSThread()
		for job := range jobs {
			job()
		}
	}()
	return jobs
})

// Run starts a program and appends its output to {dir}/{name}.log. env nil: this process's environment.
func Run(dir, name, program string, env []string, args ...string) (*Process, error) {
	path := filepath.Join(dir, name+".log")
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer out.Close()
	cmd := exec.Command(program, args...) //nolint:noctx // it outlives whoever waits for its start
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = env, dir, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	dieWithParent(cmd.SysProcAttr)
	done := make(chan error)
	launcher() <- func() { done <- cmd.Start() }
	if err := <-done; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, PID: cmd.Process.Pid, Log: path, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // its state says it all
		p.state = cmd.ProcessState
		close(p.ended)
	}()
	return p, nil
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// ExitCode is that of an ended process; -1 when it was killed, or runs.
func (p *Process) ExitCode() int {
	select {
	case <-p.ended:
		return p.state.ExitCode()
	default:
		return -1
	}
}

// Signal sends a signal to a process that has not ended.
func (p *Process) Signal(signal syscall.Signal) error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended (%s)", p.Name, p.state)
	default:
		return syscall.Kill(p.PID, signal)
	}
}

// Stop sends SIGTERM, and SIGKILL to what has not ended after the patience, and waits for the end.
func (p *Process) Stop(patience time.Duration) error {
	if p.Signal(syscall.SIGTERM) != nil {
		return nil
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
	}
	_ = p.Signal(syscall.SIGCONT) // it may be stopped, or have ended
	_ = p.Signal(syscall.SIGKILL)
	<-p.ended
	return fmt.Errorf("%s did not end within %s of SIGTERM", p.Name, patience)
}

// Kill sends SIGKILL and waits for the end.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL) // it may have ended
	<-p.ended
}

// failed says why a process that was waited for will not do, with the end of its log.
func (p *Process) failed(why error) error {
	return fmt.Errorf("%s: %w; its log ends:\n%s", p.Name, why, Tail(p.Log, 15))
}

var errEnded = errors.New("it ended")

// Tail is the last lines of a file.
func Tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
