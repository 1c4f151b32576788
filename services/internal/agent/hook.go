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
	maxHookOutput = 8 << 10         // bytes that are logged
	hookPipes     = 2 * time.Second // wait for output pipes that children of a killed hook keep open
)

// shellHook returns a hook that runs a shell command. The variable NSTANCE_CHANGED_FILES contains the names of the
// changed files, separated by spaces. When the timeout ends, the hook kills the command and all children of the
// command. The hook logs the command's output.
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

// head keeps the beginning of the written bytes, up to limit. It does not embed bytes.Buffer, because some methods of
// bytes.Buffer would bypass the limit.
type head struct {
	text  bytes.Buffer
	limit int
}

func (h *head) Write(p []byte) (int, error) {
	h.text.Write(p[:min(len(p), h.limit-h.text.Len())])
	return len(p), nil
}
