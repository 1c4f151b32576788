package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Suspend stops all processes of the machine, or lets them continue. It waits until the machine has booted. A machine
// that has ended cannot be suspended. The network still answers for a suspended machine as far as its kernel does.
func (i *Instance) Suspend(suspended bool) error {
	i.mu.Lock()
	is := i.suspended
	i.mu.Unlock()
	if is == suspended {
		return nil
	}
	<-i.booted
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.suspended == suspended || i.Ended() || i.cmd == nil || i.cmd.Process == nil {
		return nil
	}
	signal := syscall.SIGCONT
	if suspended {
		signal = syscall.SIGSTOP
	}
	// A process may start another one before it is stopped. So the search ends when it finds no further process.
	seen := map[int]bool{}
	for {
		found, err := i.processes()
		if err != nil {
			return fmt.Errorf("find the processes of machine %s: %w", i.spec.ID, err)
		}
		further := false
		for _, pid := range found {
			if seen[pid] {
				continue
			}
			seen[pid], further = true, true
			if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("signal %d of machine %s: %w", pid, i.spec.ID, err)
			}
		}
		if !further {
			i.suspended = suspended
			return nil
		}
	}
}

// processes returns the processes in the process namespace of the machine's init.
func (i *Instance) processes() (found []int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	namespace := func(pid int) string {
		link, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns", "pid"))
		if err != nil {
			return "" // it has ended
		}
		return link
	}
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return nil, err
	}
	machine := namespace(i.cmd.Process.Pid)
	if machine == "" || machine == own || !strings.HasPrefix(machine, "pid:") {
		return nil, fmt.Errorf("process %d is in the namespace %q", i.cmd.Process.Pid, machine)
	}
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && namespace(pid) == machine {
			found = append(found, pid)
		}
	}
	return found, nil
}
