package agent

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	maxHookOutput = 8 << 10         // bytes that go to the log
	hookPipes     = 2 * time.Second // for what a killed hook's children still hold open
)

// shellHook returns a hook that runs a shell command with the names of changed files in NSTANCE_CHANGED_FILES,
// separated by spaces. A command that takes too long is killed with all its children. Its output goes to the log.
func shellHook(command string, timeout time.Duration, environ func() []string, log *slog.Logger) func(context.Context,
	[]string) error {
	return func(ctx context.Context, changed []string) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		output := &head{limit: maxHookOutput}
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
		cmd.Env = append(append(os.Environ(), environ()...), Prefix+"CHANGED_FILES="+strings.Join(changed, " "))
		cmd.Stdout, cmd.Stderr = output, output
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = hookPipes
		err := cmd.Run()
		if text := strings.TrimSpace(output.text.String()); text != "" {
			log.Info("Output of the hook", "output", text)
		}
		if ctx.Err() == context.DeadlineExceeded {
			return fmt.Errorf("killed after %s", timeout)
		}
		return err
	}
}

// head keeps the beginning of what is written. It has no other method of bytes.Buffer, some of which would go around
// the limit.
type head struct {
	text  bytes.Buffer
	limit int
}

func (h *head) Write(p []byte) (int, error) {
	h.text.Write(p[:min(len(p), h.limit-h.text.Len())])
	return len(p), nil
}
