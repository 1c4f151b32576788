package acctest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/registration"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
)

var services = sync.OnceValues(func() (string, error) {
	dir, err := workspace()
	if err != nil {
		return "", err
	}
	const cmd = "github.com/nstance-kit/nstance/services/cmd/"
	out, err := exec.Command("go", "build", "-o", dir+"/", cmd+"nstance-server", cmd+"nstance-agent").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build server and agent: %w\n%s", err, out)
	}
	return dir, nil
})

// Server is a real server of the shard. Each of its VMs is a window of a private tmux server, with a real agent.
type Server struct {
	t   testing.TB
	b   Bucket
	cmd *exec.Cmd
	log *bytes.Buffer
	// Operator is the address of the operator API.
	Operator string
	ended    chan struct{}
}

// serverConfig is a shard with one template, `worker`, and the empty static group default/static.
const serverConfig = `{
  "cluster": {"id": %q, "secrets": {"encryption_key": {"provider": "env", "source": %q}}},
  "server": {
    "shard": %q,
    "provider": {"kind": "tmux", "region": "dev", "zone": "deva", "options": {"dir": %q, "socket": %q, "session": "acctest"}},
    "bind": {%s}, "advertise": {%[6]s},
    "subnet_pools": {"local": ["local"], "other": ["other"]},
    "default_drain_timeout": "2s", "health_check_interval": "5s"
  },
  "load_balancers": {},
  "defaults": {"vars": {"environment": "test"}, "userdata": {"content": %q}},
  "templates": {"worker": {"kind": "wrk", "arch": "amd64", "subnet_pool": "local", "size": 0, "instance_type": "small", "vars": {"role": "worker"}, "args": {"Deep": {"A": 1}},
    "dynamic": {"args": ["/Deep", "/Own"], "instance_types": ["*"], "subnet_pools": ["other"]}}},
  "groups": {"default": {"static": {"template": "worker", "size": 0}}}
}
`

// Serve writes the shard's configuration, starts a server, and waits until it leads. The server stops when the test
// ends.
func Serve(t testing.TB, b Bucket) *Server {
	t.Helper()
	dir, err := services()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.State(t).EnsureCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.State(t).EnsureNonceKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	userdata, err := os.ReadFile(filepath.Join(root(t), "examples/local/userdata.sh.tmpl"))
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, b: b, log: &bytes.Buffer{}, Operator: "127.0.0.1:" + freePort(t), ended: make(chan struct{})}
	health, work := "127.0.0.1:"+freePort(t), t.TempDir()
	socket := filepath.Join(work, "tmux.sock")
	addresses := fmt.Sprintf(
		`"health_addr": %q, "operator_addr": %q, "election_addr": "127.0.0.1:%s", "registration_addr": "127.0.0.1:%s", "agent_addr": "127.0.0.1:%s"`,
		health, s.Operator, freePort(t), freePort(t), freePort(t))
	s.write(fmt.Sprintf(serverConfig, Cluster, KeyVariable, Shard, filepath.Join(work, "agents"), socket, addresses,
		userdata))

	args := []string{"--id", "server-1", "--shard", Shard, "--storage", b.Location.Provider, "--bucket",
		b.Location.Bucket, "--cachedir", filepath.Join(work, "cache"),
		"--health-addr", health}
	if b.Location.Prefix != "" {
		args = append(args, "--prefix", b.Location.Prefix)
	}
	s.cmd = exec.Command(filepath.Join(dir, "nstance-server"), args...)
	s.cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "INVOCATION_ID=") || strings.HasPrefix(kv, "TMUX")
	})
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait() // the server's log explains a failure
		close(s.ended)
	}()
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			t.Logf("server:\n%s", s.log)
		}
		_ = exec.Command("tmux", "-S", socket, "kill-server").Run() // fails if no VM was ever started
	})
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	Eventually(ctx, t, "a server that leads", func() bool {
		lock, _, err := b.State(t).ReadLock(ctx, Shard)
		return err == nil && !lock.Released && lock.AppliedETag != ""
	})
	return s
}

// Stop terminates the server if it is running.
func (s *Server) Stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // the process may have exited already
	select {
	case <-s.ended:
	case <-time.After(15 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}

// Reconfigure edits the text of the shard's configuration with the Replacer, and waits until the leader has applied the
// new configuration.
func (s *Server) Reconfigure(change *strings.Replacer) {
	s.t.Helper()
	body, _, err := s.b.State(s.t).ReadConfig(context.Background(), Shard)
	if err != nil {
		s.t.Fatal(err)
	}
	token := s.write(change.Replace(string(body)))
	err = s.Client(s.t, "default").Call(context.Background(), Shard, func(ctx context.Context, c servers.Client) error {
		_, err := c.RefreshConfig(ctx, &nstancev1.RefreshConfigRequest{})
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	Eventually(ctx, s.t, "the new configuration applied", func() bool {
		lock, _, err := s.b.State(s.t).ReadLock(ctx, Shard)
		return err == nil && lock.AppliedETag == token
	})
}

func (s *Server) write(text string) string {
	s.t.Helper()
	if _, problems := config.Parse("config", []byte(text)); problems.Err() != nil {
		s.t.Fatal(problems)
	}
	ctx, state := context.Background(), s.b.State(s.t)
	_, token, _ := state.ReadConfig(ctx, Shard) // a missing configuration is no error
	token, err := state.WriteConfig(ctx, Shard, []byte(text), token)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(token)
}

// Client returns a connection to the server with the identity of a new operator of the tenant.
func (s *Server) Client(t testing.TB, tenant string) *servers.Connection {
	t.Helper()
	return servers.New(servers.Settings{Addresses: map[string][]string{Shard: {s.Operator}},
		IdentityDir: s.b.Operator(t, tenant)}, nil)
}

// Operator registers an operator of the tenant and returns a directory with its identity files.
func (b Bucket) Operator(t testing.TB, tenant string) string {
	t.Helper()
	state := b.State(t)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	operator, err := registration.Register(t.Context(), state, tenant, public, 0, "acctest")
	if err != nil {
		t.Fatal(err)
	}
	key, err := authority.EncodePrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		operatorclient.CAFile: authority.EncodeBundle(operator.Bundle...), operatorclient.KeyFile: key,
		operatorclient.CertificateFile: authority.EncodeCertificate(operator.Certificate),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
