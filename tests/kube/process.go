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

// Process is a program that runs until it is stopped or until this process ends.
type Process struct {
	Name string
	PID  int
	Log  string // Path of the file with its output.

	ended chan struct{}
	state *os.ProcessState
}

// launcher starts all processes from one OS thread that never ends. Linux sends a child the parent-death signal when
// the thread that started the child ends, even if other threads of the parent go on.
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

// Run starts a program and appends its output to {dir}/{name}.log. If env is nil, the program gets this process's
// environment.
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
		_ = cmd.Wait() // The process state holds the result.
		p.state = cmd.ProcessState
		close(p.ended)
	}()
	return p, nil
}

// Ended returns a channel that is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// ExitCode returns the exit code of an ended process. It returns -1 if the process was killed or is running.
func (p *Process) ExitCode() int {
	select {
	case <-p.ended:
		return p.state.ExitCode()
	default:
		return -1
	}
}

// Signal sends a signal to the process. It fails if the process has ended.
func (p *Process) Signal(signal syscall.Signal) error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended (%s)", p.Name, p.state)
	default:
		return syscall.Kill(p.PID, signal)
	}
}

// Stop sends SIGTERM and waits for the process to end. If the process still runs after the time "patience", Stop sends
// SIGKILL, waits again, and returns an error.
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
	_ = p.Signal(syscall.SIGCONT) // The process may be stopped (SIGSTOP), or have ended.
	_ = p.Signal(syscall.SIGKILL)
	<-p.ended
	return fmt.Errorf("%s did not end within %s of SIGTERM", p.Name, patience)
}

// Kill sends SIGKILL and waits until the process has ended.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL) // The process may have ended.
	<-p.ended
}

// failed adds the process's name and the last lines of its log to an error.
func (p *Process) failed(why error) error {
	return fmt.Errorf("%s: %w; its log ends:\n%s", p.Name, why, Tail(p.Log, 15))
}

var errEnded = errors.New("it ended")

// Tail returns the last lines of a file, or the error text if the file cannot be read.
func Tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
