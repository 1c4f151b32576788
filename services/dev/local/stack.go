// Package local runs a whole Nstance cluster on one machine from the binaries of a clone: an object store, the servers
// of one shard, and VMs that are tmux windows with an agent in each. nstance-dev and the system tests use it.
//
// Invariant: the command line of every program of a stack has a path below the stack's directory, and the program
// writes only there. So any number of stacks can run side by side. [Find] finds a stack's processes by that directory,
// and [Stack.Clean] removes everything.
package local

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
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

// The names of the cluster, shard, bucket and tenant in examples/ and in the documentation. The encryption key is
// published, so it protects nothing.
const (
	Cluster = "example-cluster"
	Shard   = "dev-1"
	Bucket  = "dev"
	Tenant  = "default"

	region        = "us-east-1"
	encryptionKey = "thisisatest32bytekey123456789012"
)

// Options are the options of [New].
type Options struct {
	Root  string // of the repository
	Bin   string // directory of the binaries; empty: {Root}/bin
	Dir   string // everything that the stack writes
	Ports Ports
	// Servers is the number of servers; 0 means 2.
	Servers int
	// MaxVMs is the number of VMs that the provider can hold; 0 means no limit.
	MaxVMs int
	// SharedTmux runs the agents in the tmux server of the user, where `tmux attach -t nstance-dev-agents` finds them.
	// Otherwise the stack has its own tmux server with a socket in Dir.
	SharedTmux bool
	// Network provides the machines of the programs. If it is nil, every program runs on this machine and listens on
	// the loopback address.
	Network Network
	// AccessKey is the access key ID that the object store accepts. If it is empty, the stack uses a random ID and
	// keeps it in Dir.
	AccessKey string
	// Environment returns additional variables for the program with the given name ([Store] or a [ServerName]). They
	// override the variables of the stack. Environment may be nil.
	Environment func(name string) []string
}

// Network is a set of machines for the programs of a stack.
type Network interface {
	// Host returns the address of the machine with the given name: [Store] or a [ServerName]. For [Leader], it returns
	// an address that moves to each new leader.
	Host(name string) string
	// Start starts a program on its machine.
	Start(name string, cmd *exec.Cmd) error
}

// Names of machines.
const (
	Store  = "dev-s3"
	Page   = "nstance-admin"
	Leader = "leader"
)

// address returns host:port for the program with the given name.
func (s *Stack) address(name string, port int) string {
	if s.Network == nil {
		return Address(port)
	}
	return net.JoinHostPort(s.Network.Host(name), strconv.Itoa(port))
}

// bind returns the address on which a program listens.
func (s *Stack) bind(port int) string {
	if s.Network == nil {
		return Address(port)
	}
	return net.JoinHostPort("0.0.0.0", strconv.Itoa(port))
}

// storeURL returns the endpoint of the object store.
func (s *Stack) storeURL() string { return "http://" + s.address(Store, s.Ports.Store) }

// operatorAddrs returns the addresses of the operator API. If the leader has a fixed address, that is the only
// one. Otherwise they are the addresses of all servers.
func (s *Stack) operatorAddrs() []string {
	if s.Network != nil {
		return []string{s.address(Leader, s.Ports.Operator)}
	}
	var addrs []string
	for n := 1; n <= s.Servers; n++ {
		addrs = append(addrs, Address(s.Ports.ofServer(n).Operator))
	}
	return addrs
}

// AdminServers returns the value of NSTANCE_ADMIN_SERVERS for nstance-admin.
func (s *Stack) AdminServers() string {
	var servers []string
	for _, addr := range s.operatorAddrs() {
		servers = append(servers, Shard+"="+addr)
	}
	return strings.Join(servers, ",")
}

// Session is the tmux session of the agents.
const Session = "nstance-dev-agents"

// Stack is one Nstance cluster with one shard. Its methods may be called concurrently.
type Stack struct {
	Options

	mu        sync.Mutex
	processes []*Process
}

// New prepares the directory of a stack. It starts no program. If the directory belongs to an earlier stack, New takes
// over that stack with its running programs.
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
	if o.Servers == 0 {
		o.Servers = 2
	}
	s := &Stack{Options: o}
	for _, dir := range []string{s.Dir, filepath.Join(s.Dir, "log"), s.StoreDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	if err := s.keepAccessKey(); err != nil {
		return nil, err
	}
	// Programs are started through the symbolic link bin. So their command lines contain the stack's directory.
	link := filepath.Join(s.Dir, "bin")
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := os.Symlink(o.Bin, link); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Stack) accessKeyFile() string { return filepath.Join(s.Dir, "access-key") }

// keepAccessKey writes the access key ID to its file. If AccessKey is empty, it uses the ID in the file, or else a new
// random ID.
func (s *Stack) keepAccessKey() error {
	if s.AccessKey == "" {
		content, err := os.ReadFile(s.accessKeyFile())
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		s.AccessKey = cmp.Or(string(content), "NSTANCE"+rand.Text())
	}
	return os.WriteFile(s.accessKeyFile(), []byte(s.AccessKey), 0o600)
}

// StoreDir returns the directory in which the object store keeps its objects.
func (s *Stack) StoreDir() string { return filepath.Join(s.Dir, "dev-s3") }

// AgentsDir returns the directory of the tmux provider: the disks and documents of the VMs.
func (s *Stack) AgentsDir() string { return filepath.Join(s.Dir, "agents") }

// CacheDir returns the cache directory of the n-th server, beginning with 1.
func (s *Stack) CacheDir(n int) string {
	if n == 1 {
		return filepath.Join(s.Dir, "cache")
	}
	return filepath.Join(s.Dir, "cache-"+strconv.Itoa(n))
}

// LogFile returns the log file of a program.
func (s *Stack) LogFile(name string) string { return filepath.Join(s.Dir, "log", name+".log") }

func (s *Stack) program(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(s.Dir, "bin", name)
}

// ServerName returns the ID of the n-th server, beginning with 1.
func ServerName(n int) string { return "server-" + strconv.Itoa(n) }

// Env returns the environment of the stack's programs: the environment of this process without variables that point to
// other clusters or clouds.
func (s *Stack) Env() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasPrefix(name, "AWS_"), strings.HasPrefix(name, "NSTANCE_"), strings.HasPrefix(name, "TF_"),
			name == "TMUX", name == "TMUX_PANE",
			name == "INVOCATION_ID": // set by systemd for supervised processes
		default:
			env = append(env, kv)
		}
	}
	return append(append(env, "AWS_EC2_METADATA_DISABLED=true"), s.Settings()...)
}

// Settings returns the variables that programs need to reach the bucket of the stack and to open its secrets.
func (s *Stack) Settings() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + s.AccessKey, "AWS_SECRET_ACCESS_KEY=" + s.AccessKey, "AWS_REGION=" + region,
		"AWS_ENDPOINT_URL=" + s.storeURL(), "AWS_S3_USE_PATH_STYLE=true", "NSTANCE_ENCRYPTION_KEY=" + encryptionKey}
}

// StartStore starts the object store and waits until it answers.
func (s *Stack) StartStore(ctx context.Context) (*Process, error) {
	p, err := s.Start(Store, Store, "--addr", s.bind(s.Ports.Store), "--dir", s.StoreDir(), "--bucket", Bucket,
		"--access-key-file", s.accessKeyFile())
	if err != nil {
		return nil, err
	}
	return p, s.awaitHTTP(ctx, p, s.storeURL()+"/"+Bucket, func(status int) bool { return status < 500 })
}

// StartServer starts the n-th server, beginning with 1. It waits until the server's health endpoint answers with any
// status.
func (s *Stack) StartServer(ctx context.Context, n int) (*Process, error) {
	args := []string{"--id", ServerName(n), "--shard", Shard, "--storage", "s3", "--bucket", Bucket, "--cachedir",
		s.CacheDir(n)}
	if s.Network == nil {
		args = append(args, "--health-addr", s.healthAddr(n), "--instance", strconv.Itoa(n))
	} else {
		args = append(args, "--health-addr", s.bind(s.Ports.Health), "--advertise-host", s.Network.Host(ServerName(n)))
	}
	p, err := s.Start(ServerName(n), "nstance-server", args...)
	if err != nil {
		return nil, err
	}
	return p, s.awaitHTTP(ctx, p, s.URL(n, "/health"), func(int) bool { return true })
}

// StartPage starts nstance-admin serve with an identity directory from [Stack.ConnectAs], and waits until the page
// answers. The page is on the loopback address and needs no login.
func (s *Stack) StartPage(ctx context.Context, identity string) (*Process, error) {
	p, err := s.Start(Page, Page, "serve", "--bind", Address(s.Ports.Page), "--servers", s.AdminServers(),
		"--identity-dir", identity, "--storage-provider", "s3", "--storage-bucket", Bucket)
	if err != nil {
		return nil, err
	}
	return p, s.awaitHTTP(ctx, p, s.PageURL(), func(status int) bool { return status == http.StatusOK })
}

// PageURL returns the address of the page that StartPage serves.
func (s *Stack) PageURL() string { return "http://" + Address(s.Ports.Page) + "/ui/" }

// AwaitReady waits until the health endpoint of a server says that the server is ready to lead.
func (s *Stack) AwaitReady(ctx context.Context, p *Process, n int) error {
	return s.awaitHTTP(ctx, p, s.URL(n, "/health"), func(status int) bool { return status == http.StatusOK })
}

func (s *Stack) healthAddr(n int) string {
	if s.Network != nil {
		return s.address(ServerName(n), s.Ports.Health)
	}
	return Address(s.Ports.ofServer(n).Health)
}

// URL returns the URL of a page on the health port of the n-th server, beginning with 1.
func (s *Stack) URL(n int, path string) string { return "http://" + s.healthAddr(n) + path }

// awaitHTTP waits until a GET of the URL returns an accepted status. It fails if the process ends first.
func (s *Stack) awaitHTTP(ctx context.Context, p *Process, url string, accept func(status int) bool) error {
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
			return fmt.Errorf("%s ended before it was ready (%s); its log is %s", p.Name, p.state, p.Log)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// socket returns the socket of the stack's tmux server.
func (s *Stack) socket() string { return filepath.Join(s.Dir, "tmux.sock") }

// Tmux runs a tmux command on the tmux server of the agents. It returns an empty text if that server does not run.
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

// KillAll sends SIGKILL to every process of the stack, as in a power cut: to the object store, the servers, the agents
// and the stack's own tmux server. It spares the user's tmux server.
func (s *Stack) KillAll(ctx context.Context) error {
	// A process may start another one before it is killed, so there are several rounds.
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
		if err := Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	found, err := s.Processes(ctx)
	return errors.Join(err, fmt.Errorf("processes do not end after SIGKILL: %v", found))
}

// Processes lists the processes of the stack, without the tmux server of the user.
func (s *Stack) Processes(ctx context.Context) ([]Found, error) {
	found, err := Find(ctx, s.Dir)
	return slices.DeleteFunc(found, func(f Found) bool { return s.SharedTmux && f.Program() == "tmux" }), err
}

// reap waits until all processes that this process started have ended.
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

// Clean kills every process of the stack and removes its directory.
func (s *Stack) Clean(ctx context.Context) error {
	if err := s.KillAll(ctx); err != nil {
		return err
	}
	return os.RemoveAll(s.Dir)
}

// Tails writes the last lines of every log.
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
