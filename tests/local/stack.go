// Package local runs a whole Nstance on this machine from the repository's binaries: an object store, servers, and
// agents in windows of a tmux server of its own. `make up`, `make demo` and the kill -9 test are made of it.
//
// Invariant: everything that a stack starts is run by a path below the stack's directory, and everything that it writes
// is in there. So any number of stacks run side by side, what is left of one can be found by its directory alone, and
// Clean leaves nothing.
package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// What examples/ and the documents use. The key protects nothing.
const (
	Cluster = "example-cluster"
	Shard   = "dev-1"
	Bucket  = "dev"
	Tenant  = "default"

	accessKey     = "dev"
	region        = "us-east-1"
	encryptionKey = "thisisatest32bytekey123456789012"
)

// Options of New.
type Options struct {
	Root  string // of the repository
	Bin   string // directory of the binaries; empty: {Root}/bin
	Dir   string // everything that the stack writes
	Ports Ports
	// SharedTmux: agents run in the user's own tmux server, where `tmux attach -t nstance-dev-agents` finds them;
	// otherwise in one of the stack's own, whose socket is in Dir.
	SharedTmux bool
	// Network says where programs run; nil: here.
	Network Network
	// Environment, if set, is added to that of the program of a name ([Store], [ServerName]), and wins.
	Environment func(name string) []string
}

// Network is machines for the programs of a stack. Without one all of them run on this machine and listen on its
// loopback address.
type Network interface {
	// Host is the address of a program: [Store], [ServerName], or [Leader], an address that follows whoever leads.
	Host(name string) string
	// Start starts a program on its machine.
	Start(name string, cmd *exec.Cmd) error
}

// Names of machines.
const (
	Store  = "dev-s3"
	Leader = "leader"
)

// address is a port of a program.
func (s *Stack) address(name string, port int) string {
	if s.Network == nil {
		return Address(port)
	}
	return net.JoinHostPort(s.Network.Host(name), strconv.Itoa(port))
}

// bind is what a program listens on.
func (s *Stack) bind(port int) string {
	if s.Network == nil {
		return Address(port)
	}
	return net.JoinHostPort("0.0.0.0", strconv.Itoa(port))
}

// storeURL is the object store's endpoint.
func (s *Stack) storeURL() string { return "http://" + s.address(Store, s.Ports.Store) }

// Session is the tmux session of the agents.
const Session = "nstance-dev-agents"

// Stack is one Nstance on this machine. Its methods may be called concurrently.
type Stack struct {
	Options

	mu        sync.Mutex
	processes []*Process
}

// New prepares the stack's directory. It starts nothing, and takes over what an earlier one left there.
func New(o Options) (*Stack, error) {
	for _, path := range []*string{&o.Root, &o.Dir} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return nil, err
		}
		*path = abs
	}
	if o.Bin == "" {
		o.Bin = filepath.Join(o.Root, "bin")
	}
	s := &Stack{Options: o}
	for _, dir := range []string{s.Dir, filepath.Join(s.Dir, "log"), s.StoreDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	// Programs are run through this link: their command lines tell whose they are.
	link := filepath.Join(s.Dir, "bin")
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := os.Symlink(o.Bin, link); err != nil {
		return nil, err
	}
	return s, nil
}

// StoreDir holds the bucket's objects.
func (s *Stack) StoreDir() string { return filepath.Join(s.Dir, "dev-s3") }

// AgentsDir holds the VMs' disks and what the provider remembers.
func (s *Stack) AgentsDir() string { return filepath.Join(s.Dir, "agents") }

// CacheDir is that of a server, counted from 1.
func (s *Stack) CacheDir(n int) string {
	if n == 1 {
		return filepath.Join(s.Dir, "cache")
	}
	return filepath.Join(s.Dir, "cache-"+strconv.Itoa(n))
}

// LogFile is where a program's output goes.
func (s *Stack) LogFile(name string) string { return filepath.Join(s.Dir, "log", name+".log") }

func (s *Stack) program(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(s.Dir, "bin", name)
}

// ServerName is the --id of a server, counted from 1, and the name of its log.
func ServerName(n int) string { return "server-" + strconv.Itoa(n) }

// Env is the environment of the stack's programs: this process's, without what would lead them elsewhere.
func (s *Stack) Env() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasPrefix(name, "AWS_"), strings.HasPrefix(name, "NSTANCE_"), strings.HasPrefix(name, "TF_"),
			name == "TMUX", name == "TMUX_PANE",
			name == "INVOCATION_ID": // systemd's: nobody supervises these
		default:
			env = append(env, kv)
		}
	}
	return append(append(env, "AWS_EC2_METADATA_DISABLED=true"), s.Settings()...)
}

// Settings are the variables by which programs find the stack's bucket and open its secrets.
func (s *Stack) Settings() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + accessKey, "AWS_REGION=" + region,
		"AWS_ENDPOINT_URL=" + s.storeURL(), "AWS_S3_USE_PATH_STYLE=true", "NSTANCE_ENCRYPTION_KEY=" + encryptionKey}
}

// StartStore starts the object store and waits until it answers.
func (s *Stack) StartStore(ctx context.Context) (*Process, error) {
	p, err := s.start(Store, "dev-s3", "--addr", s.bind(s.Ports.Store), "--dir", s.StoreDir(), "--bucket", Bucket)
	if err != nil {
		return nil, err
	}
	return p, s.answers(ctx, p, s.storeURL()+"/"+Bucket, func(status int) bool { return status < 500 })
}

// StartServer starts a server of the shard, counted from 1, and waits until its probe answers, whatever it says.
func (s *Stack) StartServer(ctx context.Context, n int) (*Process, error) {
	args := []string{"--id", ServerName(n), "--shard", Shard, "--storage", "s3", "--bucket", Bucket, "--cachedir",
		s.CacheDir(n)}
	if s.Network == nil {
		args = append(args, "--health-addr", s.healthAddr(n), "--instance", strconv.Itoa(n))
	} else {
		args = append(args, "--health-addr", s.bind(s.Ports.Health), "--advertise-host", s.Network.Host(ServerName(n)))
	}
	p, err := s.start(ServerName(n), "nstance-server", args...)
	if err != nil {
		return nil, err
	}
	return p, s.answers(ctx, p, s.healthURL(n), func(int) bool { return true })
}

// AwaitReady waits until a server's probe says that it is ready to lead.
func (s *Stack) AwaitReady(ctx context.Context, p *Process, n int) error {
	return s.answers(ctx, p, s.healthURL(n), func(status int) bool { return status == http.StatusOK })
}

func (s *Stack) healthAddr(n int) string {
	if s.Network != nil {
		return s.address(ServerName(n), s.Ports.Health)
	}
	return Address(s.Ports.Health + 10*(n-1))
}
func (s *Stack) healthURL(n int) string { return "http://" + s.healthAddr(n) + "/health" }

// answers waits until a GET of the URL has an accepted status, or the process has ended.
func (s *Stack) answers(ctx context.Context, p *Process, url string, accept func(status int) bool) error {
	last := errors.New("no answer")
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			body, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
			resp.Body.Close()
			if accept(resp.StatusCode) {
				return nil
			}
			last = fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(body))
		} else if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", p.Name, context.Cause(ctx), last)
		case <-p.Ended():
			return fmt.Errorf("%s ended while it was waited for (%s); its log is %s", p.Name, p.state, p.Log)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// socket is that of the stack's own tmux server.
func (s *Stack) socket() string { return filepath.Join(s.Dir, "tmux.sock") }

// Tmux runs a command of tmux on the server where the agents are. Without such a server it does nothing.
func (s *Stack) Tmux(ctx context.Context, args ...string) (string, error) {
	if !s.SharedTmux {
		if _, err := os.Lstat(s.socket()); errors.Is(err, os.ErrNotExist) {
			return "", nil
		}
		args = append([]string{"-f", os.DevNull, "-S", s.socket()}, args...)
	}
	cmd := exec.CommandContext(ctx, "tmux", args...)
	cmd.Env = s.Env()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	text := stderr.String()
	if err != nil && (strings.HasPrefix(text, "no server running") || strings.HasPrefix(text, "error connecting") ||
		strings.Contains(text, "server exited")) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("tmux %s: %w: %s", args, err, strings.TrimSpace(text))
	}
	return string(out), nil
}

// KillAll kills every process of the stack at once, as a power cut would: object store, servers, agents, the tmux
// server.
func (s *Stack) KillAll(ctx context.Context) error {
	// A process that was about to start another may have done so in between, hence more than one round.
	for range 50 {
		found, err := s.Processes(ctx)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return s.reap(ctx)
		}
		for _, f := range found {
			_ = syscall.Kill(f.PID, syscall.SIGKILL) // it may have ended
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	found, err := s.Processes(ctx)
	return errors.Join(err, fmt.Errorf("processes do not end: %v", found))
}

// Processes lists the stack's processes. The user's tmux server is none of them, whoever started it.
func (s *Stack) Processes(ctx context.Context) ([]Found, error) {
	found, err := Find(ctx, s.Dir)
	return slices.DeleteFunc(found, func(f Found) bool { return s.SharedTmux && f.Program() == "tmux" }), err
}

// reap waits until those who were killed have been waited for.
func (s *Stack) reap(ctx context.Context) error {
	s.mu.Lock()
	processes := s.processes
	s.processes = nil
	s.mu.Unlock()
	for _, p := range processes {
		select {
		case <-p.Ended():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Clean ends everything and removes the stack's directory.
func (s *Stack) Clean(ctx context.Context) error {
	if err := s.KillAll(ctx); err != nil {
		return err
	}
	return os.RemoveAll(s.Dir)
}

// Tails writes the last lines of every log, for who wants to know why something failed.
func (s *Stack) Tails(w io.Writer, lines int) {
	logs, _ := filepath.Glob(filepath.Join(s.Dir, "log", "*.log"))
	consoles, _ := filepath.Glob(filepath.Join(s.AgentsDir(), "*", "console.log"))
	for _, path := range append(logs, consoles...) {
		raw, err := os.ReadFile(path)
		if err != nil || len(bytes.TrimSpace(raw)) == 0 {
			continue
		}
		all := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
		name, err := filepath.Rel(s.Dir, path)
		if err != nil {
			name = path
		}
		fmt.Fprintf(w, "\n--- %s, last %d of %d lines\n%s\n", name, min(lines, len(all)), len(all),
			bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
	}
}

// StartTmux starts a tmux server without sessions on a machine, where all VMs then are, until it is killed.
func (s *Stack) StartTmux(ctx context.Context, machine string) (*Process, error) {
	program, err := exec.LookPath("tmux")
	if err != nil {
		return nil, err
	}
	// In the foreground a server does not end when it has no sessions (tmux(1), -D).
	p, err := s.start(machine, program, "-D", "-f", os.DevNull, "-S", s.socket())
	if err != nil {
		return nil, err
	}
	for {
		if conn, err := new(net.Dialer).DialContext(ctx, "unix", s.socket()); err == nil {
			return p, conn.Close()
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for tmux: %w", context.Cause(ctx))
		case <-p.Ended():
			return nil, fmt.Errorf("tmux ended (%s); its log is %s", p.state, p.Log)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
