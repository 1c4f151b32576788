package tmux

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// process identifies an operating system process by its PID and start time. This identity is never reused.
type process struct {
	PID int
	// Start is opaque. Two processes with the same PID never have the same Start, even across reboots of the machine.
	Start string
}

// identify returns the process that has the PID now. ok is false if there is no such process, or only a zombie.
func identify(pid int) (p process, ok bool) {
	if pid <= 0 {
		return process{}, false
	}
	start, ok := startOf(pid)
	return process{pid, start}, ok
}

// alive reports whether the process still runs. A suspended process is alive.
func (p process) alive() bool {
	now, ok := identify(p.PID)
	return ok && now.Start == p.Start
}

// awaitExit waits until the process has ended, but no longer than patience. It reports whether the process has ended.
func (p process) awaitExit(ctx context.Context, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for p.alive() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// MachineID returns the machine ID of a server that runs in this process: "{host}/{pid}:{start}". The ID is never
// reused.
func MachineID() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("machine id: %w", err)
	}
	self, ok := identify(os.Getpid())
	if !ok {
		return "", fmt.Errorf("machine id: the start of process %d cannot be read", os.Getpid())
	}
	return fmt.Sprintf("%s/%d:%s", host, self.PID, self.Start), nil
}

// MachineState implements infra.MachineEvidence for IDs from MachineID. On a development machine, a server's process
// counts as the server's machine. So the state is infra.Deleted if the process has ended. For an ID from another host,
// MachineState fails with infra.NotFound, which proves nothing about that machine.
func (p *Provider) MachineState(ctx context.Context, machineID string) (infra.State, error) {
	what := "describe machine " + machineID
	if err := ctx.Err(); err != nil {
		return "", infra.Wrap(infra.Indeterminate, what, err)
	}
	host, rest, _ := strings.Cut(machineID, "/")
	pid, start, _ := strings.Cut(rest, ":")
	n, err := strconv.Atoi(pid)
	if host == "" || start == "" || err != nil || n <= 0 {
		return "", infra.Errorf(infra.Invalid, what, "want {host}/{pid}:{start}")
	}
	here, err := os.Hostname()
	if err != nil {
		return "", infra.Wrap(infra.Indeterminate, what, err)
	}
	if host != here {
		return "", infra.Errorf(infra.NotFound, what, "this is host %s", here)
	}
	if (process{n, start}).alive() {
		return infra.Running, nil
	}
	return infra.Deleted, nil
}
