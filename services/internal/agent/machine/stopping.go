package machine

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

const (
	powerOff    = nstancev1.StoppingReason_STOPPING_REASON_POWER_OFF
	reboot      = nstancev1.StoppingReason_STOPPING_REASON_REBOOT
	restart     = nstancev1.StoppingReason_STOPPING_REASON_RESTART
	upgrade     = nstancev1.StoppingReason_STOPPING_REASON_UPGRADE
	unspecified = nstancev1.StoppingReason_STOPPING_REASON_UNSPECIFIED
)

// reasonOf translates systemd's names for kinds of shutdown. It returns unspecified for unknown names.
func reasonOf(action string) nstancev1.StoppingReason {
	switch action {
	case "poweroff", "halt":
		return powerOff
	case "reboot", "kexec", "soft-reboot":
		return reboot
	}
	return unspecified
}

// System gives a process that is being stopped access to the service manager and the machine.
type System struct {
	// Command runs a command and returns its standard output, even if the command fails.
	Command func(ctx context.Context, name string, args ...string) string
	// Files is the root of the file system.
	Files fs.FS
	// Executable returns the target of /proc/self/exe, or "".
	Executable func() string
}

// ThisSystem returns the service manager of this machine.
func ThisSystem() System {
	return System{
		Command: func(ctx context.Context, name string, args ...string) string {
			out, _ := exec.CommandContext(ctx, name, args...).Output() // the exit code adds nothing to the output
			return string(out)
		},
		Files: os.DirFS("/"),
		Executable: func() string {
			path, err := os.Readlink("/proc/self/exe")
			if err != nil {
				return "" // not Linux
			}
			return path
		},
	}
}

// StoppingReason returns the reason why the process was sent SIGTERM. If the machine shuts down for an unknown reason,
// the result is a reboot. If that is wrong, the server only loses a moment, in which it asks the provider. After a
// wrong "power-off", the server would give up a VM that still exists.
func (s System) StoppingReason(ctx context.Context) nstancev1.StoppingReason {
	// According to systemctl(1), is-system-running prints "stopping" while systemd shuts down the machine.
	if strings.TrimSpace(s.Command(ctx, "systemctl", "is-system-running")) != "stopping" {
		// If a running program's file was replaced or removed, Linux appends " (deleted)" to its path.
		if strings.HasSuffix(s.Executable(), " (deleted)") {
			return upgrade
		}
		return restart
	}
	for line := range strings.Lines(s.Command(ctx, "systemctl", "list-jobs", "--no-legend", "--no-pager", "--plain",
		"--full")) {
		// The columns are JOB UNIT TYPE STATE.
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[2] != "start" {
			continue
		}
		if target, ok := strings.CutSuffix(fields[1], ".target"); ok && reasonOf(target) != unspecified {
			return reasonOf(target)
		}
	}
	// logind writes this file for scheduled shutdowns such as `shutdown +5`.
	scheduled, err := fs.ReadFile(s.Files, "run/systemd/shutdown/scheduled")
	if err != nil {
		return reboot
	}
	for line := range strings.Lines(string(scheduled)) {
		if mode, ok := strings.CutPrefix(strings.TrimSpace(line), "MODE="); ok && reasonOf(mode) != unspecified {
			return reasonOf(mode)
		}
	}
	return reboot
}
