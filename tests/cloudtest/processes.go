package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ending is how long a process that outlived its run may take to end when it is interrupted.
const ending = 2 * time.Minute

// endProcesses ends the processes of a run that was killed: they would go on creating resources. Those are Packer,
// whose numbers are in the record, and the CLI, which holds a lock of the stack's state.
func (p *program) endProcesses(r *record) error {
	for _, step := range r.Steps {
		for _, pid := range step.Processes {
			if err := p.end(pid, func() bool { return isOf(pid, r.Name) }); err != nil {
				return err
			}
		}
	}
	states, err := filepath.Glob(filepath.Join(r.dir, "programs", "*", "examples", "*", "*", "terraform.tfstate"))
	if err != nil {
		return err
	}
	for _, state := range states {
		pid, err := holder(state)
		if err != nil {
			return err
		}
		if err := p.end(pid, func() bool { now, err := holder(state); return err == nil && now == pid }); err != nil {
			return err
		}
	}
	return nil
}

// end interrupts a process, waits until it runs no more, and kills it at the time limit.
func (p *program) end(pid int, runs func() bool) error {
	if pid <= 0 || !runs() {
		return nil
	}
	p.say("the process %d of the run is still at work: interrupting it", pid)
	for began, sent := time.Now(), false; runs(); time.Sleep(200 * time.Millisecond) {
		switch {
		case !sent:
			sent = true
			if err := syscall.Kill(pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("interrupt the process %d, which the run started: %w", pid, err)
			}
		case time.Since(began) > ending:
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("kill the process %d, which the run started: %w", pid, err)
			}
		}
	}
	return nil
}

// isOf reports whether a process has the name of a run among its arguments. The number of an ended process may have
// been given to another one.
func isOf(pid int, name string) bool {
	out, err := exec.Command("ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), name)
}

// holder returns the process that holds the CLI's lock of a state file, or 0.
func holder(state string) (pid int, err error) {
	file, err := os.OpenFile(state, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	lock := syscall.Flock_t{Type: syscall.F_WRLCK}
	if err := syscall.FcntlFlock(file.Fd(), syscall.F_GETLK, &lock); err != nil {
		return 0, fmt.Errorf("find out who uses %s: %w", state, err)
	}
	if lock.Type == syscall.F_UNLCK {
		return 0, nil
	}
	return int(lock.Pid), nil
}
