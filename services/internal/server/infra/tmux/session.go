package tmux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

const (
	commandTimeout = 10 * time.Second
	windowPrefix   = "nstance-agent-"
	// The two names come last, because the names of other programs' sessions and windows may contain spaces.
	paneFormat = "#{window_id} #{pane_pid} #{pane_dead} #{session_name} #{window_name}"
)

// session controls one tmux session through the tmux program.
type session struct {
	name, socket string
	env          []string // environment of tmux, and of a tmux server that it starts
}

// pane is one pane of the session.
type pane struct {
	window string // tmux's own ID of the window, "@3"
	name   string // name of the window
	pid    int
	dead   bool
}

// errGone means that the tmux server, the session or the window does not exist.
var errGone = errors.New("no such tmux session")

// environment returns the variables of this process that tmux and the VMs inherit. It leaves out TMUX, so that a server
// that itself runs under tmux (as with Overmind) uses the configured socket. It also leaves out this server's
// credentials and keys.
func environment() []string {
	var env []string
	for _, name := range []string{
		"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_CTYPE", "TZ", "TMPDIR", "TMUX_TMPDIR",
		"GOPATH", "GOROOT", "GOCACHE", "GOMODCACHE", "GOFLAGS", "GOPROXY", "GOTOOLCHAIN", // for air
	} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// run runs one tmux command, or several commands separated by ";".
func (s *session) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	full := []string{"-u"} // UTF-8 in every locale
	switch {
	case strings.Contains(s.socket, "/"):
		full = append(full, "-f", os.DevNull, "-S", s.socket)
	case s.socket != "":
		full = append(full, "-f", os.DevNull, "-L", s.socket) // a separate tmux server without the user's settings
	}
	cmd := exec.CommandContext(ctx, "tmux", append(full, args...)...)
	cmd.Env = append([]string{"LC_MESSAGES=C"}, s.env...)
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err == nil {
		return stdout.String(), nil
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("tmux %s: %w", args[0], ctx.Err())
	}
	text := strings.TrimSpace(stderr.String())
	switch {
	case strings.HasPrefix(text, "no server running"), strings.Contains(text, "server exited"),
		strings.Contains(text, "lost server"), strings.Contains(text, "No such file or directory"),
		strings.HasPrefix(text, "no current "), // a tmux server without sessions, which is about to exit
		strings.HasPrefix(text, "can't find session"), strings.HasPrefix(text, "can't find window"),
		strings.HasPrefix(text, "can't find pane"):
		return "", errGone
	case text != "":
		return "", fmt.Errorf("tmux %s: %w: %s", args[0], err, text)
	default:
		return "", fmt.Errorf("tmux %s: %w", args[0], err)
	}
}

// panes lists the session's panes. A session that does not exist has no panes.
func (s *session) panes(ctx context.Context) ([]pane, error) {
	// List the panes of all sessions: this does not fail if the VMs' session does not exist.
	out, err := s.run(ctx, "list-panes", "-a", "-F", paneFormat)
	if errors.Is(err, errGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parsePanes(out, s.name)
}

func parsePanes(out, session string) (panes []pane, err error) {
	for line := range strings.Lines(out) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 5)
		if len(fields) != 5 {
			return nil, fmt.Errorf("tmux list-panes: unexpected line %q", line)
		}
		if fields[3] != session {
			continue
		}
		pid, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, fmt.Errorf("tmux list-panes: unexpected line %q", line)
		}
		panes = append(panes, pane{window: fields[0], name: fields[4], pid: pid, dead: fields[2] != "0"})
	}
	return panes, nil
}

// open opens a window that runs the command argv. The window's output is appended to the file `log`. open returns the
// PID of the window's process. It starts the session and the tmux server if necessary.
func (s *session) open(ctx context.Context, window, log string, argv []string) (pid int, err error) {
	// tmux expands formats (#) and strftime sequences (%) in the command.
	copyOutput := "exec cat >> " + strings.NewReplacer("#", "##", "%", "%%").Replace(quote(log))
	command := append([]string{"-n", window, "-P", "-F", "#{pane_pid}", "--"}, argv...)
	command = append(command, ";", "pipe-pane", "-t", "="+s.name+":="+window, copyOutput)
	// Try several times. The session ends with its last window, so another process can end or begin the session between
	// new-window and new-session.
	for range 3 {
		var out string
		out, err = s.run(ctx, append([]string{"new-window", "-d", "-t", "=" + s.name + ":"}, command...)...)
		if errors.Is(err, errGone) {
			out, err = s.run(ctx, append([]string{"new-session", "-d", "-s", s.name, "-x", "200", "-y", "50"},
				command...)...)
		}
		if err == nil {
			if pid, err = strconv.Atoi(strings.TrimSpace(out)); err != nil {
				return 0, fmt.Errorf("tmux new-window: unexpected answer %q", out)
			}
			return pid, nil
		}
		if !errors.Is(err, errGone) && !strings.Contains(err.Error(), "duplicate session") {
			break
		}
	}
	return 0, err
}

// close closes the window with the given ID of tmux. The window's processes get SIGHUP. A missing window is not an
// error.
func (s *session) close(ctx context.Context, window string) error {
	_, err := s.run(ctx, "kill-window", "-t", window)
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// quote quotes s as one word for sh.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
