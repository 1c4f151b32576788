package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

const (
	// searchPath is the whole environment of a check's command.
	searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// maxOutput is the number of bytes that are kept from the end of a command's output.
	maxOutput = 4 << 10
	// openPipes limits the wait for the children of a command that has ended. The children may still hold its output
	// open.
	openPipes = time.Second
	// maxAnswer is the maximum number of bytes that a check reads from an HTTP answer.
	maxAnswer = 64 << 10
)

// Local runs a check on this machine.
func Local(ctx context.Context, check *nstancev1.HealthCheck) (failure string) {
	switch probe := check.GetProbe().(type) {
	case *nstancev1.HealthCheck_Exec:
		failure, _ = runCommand(ctx, probe.Exec.GetCommand())
		return failure
	case *nstancev1.HealthCheck_Http:
		return request(ctx, probe.Http)
	}
	return "this agent does not know the kind of the check"
}

// Hook runs a command like a check's, with the given variables in addition to PATH. It returns the reason of a failure
// as one line, or "" for a success. A command has also failed if it leaves children that have its output open, because
// they may still do its work.
func Hook(ctx context.Context, argv []string, environ ...string) (failure string) {
	failure, left := runCommand(ctx, argv, environ...)
	if failure == "" && left {
		failure = "it left children that still run"
	}
	return Line(failure)
}

// runCommand runs a command in its own process group. At the end of ctx the whole group is killed. The reason of a
// failure includes the last line of the output. left means that the command succeeded, but that children of it still
// hold its output open.
func runCommand(ctx context.Context, argv []string, environ ...string) (failure string, left bool) {
	if len(argv) == 0 {
		return "there is no command", false
	}
	output := &tail{}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = append([]string{searchPath}, environ...), "/"
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = openPipes
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return "", err != nil // it succeeded, though a child may have kept its output open
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return withLine("killed at its timeout", output.lastLine()), false
	case errors.As(err, &exit):
		return withLine(exit.String(), output.lastLine()), false
	}
	return err.Error(), false
}

func withLine(reason, line string) string {
	if line == "" {
		return reason
	}
	return reason + ": " + line
}

// client sends the HTTP requests of checks. It uses no proxy, follows no redirects, and opens a connection for each
// request.
var client = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialLoopback, MaxResponseHeaderBytes: maxAnswer},
	CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	},
}

// dialLoopback connects to this machine, at the port in addr. It tries IPv4 first, and then IPv6.
func dialLoopback(ctx context.Context, _, addr string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	if conn, err6 := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("::1", port)); err6 == nil {
		return conn, nil
	}
	return nil, err
}

func request(ctx context.Context, probe *nstancev1.HttpProbe) (failure string) {
	host := net.JoinHostPort("localhost", strconv.FormatUint(uint64(probe.GetPort()), 10))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+probe.GetPath(), http.NoBody)
	if err != nil {
		return err.Error()
	}
	req.Header.Set("User-Agent", "nstance-agent")
	answer, err := client.Do(req)
	switch {
	case ctx.Err() != nil:
		return "no answer within its timeout"
	case err != nil:
		return err.Error()
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer)) // so that the program sees a complete request
	if want := int(probe.GetStatus()); answer.StatusCode != want {
		return fmt.Sprintf("status %d, want %d", answer.StatusCode, want)
	}
	return ""
}

// tail keeps the end of what is written to it.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p[max(0, len(p)-maxOutput):]...)
	t.text = t.text[max(0, len(t.text)-maxOutput):]
	return len(p), nil
}

// lastLine returns the last line with any text.
func (t *tail) lastLine() string {
	text := strings.TrimSpace(string(t.text))
	return strings.TrimSpace(text[strings.LastIndexAny(text, "\r\n")+1:])
}

// Line returns a text as one line of printable UTF-8 of at most maxReason bytes.
func Line(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "�"))
	return strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
}
