package supervise

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/nstance-kit/nstance/tests/cloud/machine/control"
)

// exec runs a command for a client and returns its result. When the command or ctx ends, exec kills all remaining
// processes of the command.
func (m *Manager) exec(ctx context.Context, args []string) control.Response {
	if len(args) == 0 {
		return control.Response{Code: 1, Errors: []byte("no command\n")}
	}
	environment := m.environment()
	environment["HOME"], environment["USER"] = "/root", "root"
	s := spec{Path: lookPath(args[0]), Argv: args, Environment: list(environment), Directory: "/", UMask: 0o022}
	var out, errs bytes.Buffer
	p, wait, err := m.capture(s, &out, &errs)
	if p == nil {
		return control.Response{Code: 1, Errors: []byte(err.Error())}
	}
	select {
	case <-p.done:
	case <-ctx.Done():
	}
	// Kill processes that the command left behind, because they hold the command's output open.
	for _, pid := range alive(func(_, session int) bool { return session == p.pid }) {
		signalProcess(pid, syscall.SIGKILL)
	}
	<-p.done
	wait()
	if err != nil {
		fmt.Fprintln(&errs, err)
	}
	code := p.status.ExitStatus()
	if p.status.Signaled() {
		code = 128 + int(p.status.Signal())
	}
	return control.Response{Code: code, Output: out.Bytes(), Errors: errs.Bytes()}
}

// capture starts a process and copies its output to stdout and stderr. wait returns when both copies are complete.
func (m *Manager) capture(s spec, stdout, stderr io.Writer) (p *process, wait func(), err error) {
	var wg sync.WaitGroup
	var ends []*os.File
	for _, to := range []io.Writer{stdout, stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		ends = append(ends, w)
		wg.Go(func() {
			defer r.Close()
			_, _ = io.Copy(to, r) // Ends with the process.
		})
	}
	p, err = m.processes.start(s, m.null, ends[0], ends[1])
	for _, w := range ends {
		_ = w.Close() // The process holds its own copy.
	}
	return p, wg.Wait, err
}
