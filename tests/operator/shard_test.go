package operator

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
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
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore/file"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/tests/kube"
)

const (
	clusterID     = "lab"
	tenant        = "default"
	encryptionKey = "thisisatest32bytekey123456789012" // A test key that protects nothing.
)

// These groups are static: the configuration of the shards defines them.
const (
	workers  = "workers"  // On both shards, two instances each, drained within a minute.
	guarded  = "guarded"  // On east only, one instance, drained within ten seconds.
	machines = "machines" // On both shards, size 0. Individual machines belong to this group.
	spot     = "spot"     // On east only, one instance. It asks the test's metadata service for notices.
)

// bucket is a directory that all servers use as their bucket.
type bucket struct {
	dir, bin string // bin has the nstance-admin that works on the bucket.
	store    *file.Store
}

// state opens the bucket as nstance-admin does.
func (b *bucket) state(shard string) (*clusterstate.State, error) {
	key, err := keyring.Parse([]byte(encryptionKey))
	if err != nil {
		return nil, err
	}
	secrets := secretstore.NewObjects(secretstore.Options{Bucket: b.store, Cluster: clusterID,
		Ring: keyring.Ring{Current: key}, Rand: rand.Reader})
	return clusterstate.New(clusterstate.Options{Cluster: b.store, Shard: b.store, ClusterID: clusterID, ShardID: shard,
		Secrets: secrets}), nil
}

// newBucket makes a bucket with a CA and a nonce key. It runs nstance-admin from the directory "bin". The programs in
// "bin" may be of an earlier version.
func newBucket(ctx context.Context, dir, bin string) (*bucket, error) {
	b := &bucket{dir: dir, bin: bin}
	if _, err := b.admin(ctx, "init"); err != nil {
		return nil, err
	}
	var err error
	b.store, err = file.Open(dir)
	return b, err
}

// admin runs a command of nstance-admin cluster, and returns what it prints.
func (b *bucket) admin(ctx context.Context, command string, flags ...string) (string, error) {
	args := append([]string{"cluster", command, "--cluster-id", clusterID, "--storage-provider", "file",
		"--storage-bucket", b.dir}, flags...)
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "nstance-admin"), args...)
	cmd.Env = append(os.Environ(), "NSTANCE_ENCRYPTION_KEY="+encryptionKey)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("nstance-admin %s: %w: %s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out), nil
}

// credentials returns the CA's certificate and a nonce. A new operator gets nothing else.
func (b *bucket) credentials(ctx context.Context) (ca []byte, nonce string, err error) {
	if ca, err = os.ReadFile(filepath.Join(b.dir, "cluster", "ca.crt")); err != nil {
		return nil, "", err
	}
	nonce, err = b.admin(ctx, "nonce")
	return ca, nonce, err
}

// shard is a server, its VMs, and the test's own connection to the server. Each VM is a window of tmux in which a real
// agent runs.
type shard struct {
	nstancev1.OperatorServiceClient
	id, dir string
	env     []string // Additional variables of the server.
	bucket  *bucket
	ports   []int // Ports for health, election, registration, operator, agent.

	mu      sync.Mutex
	bin     string // The directory of the server that starts next.
	process *kube.Process
	starts  int
	events  []*nstancev1.InstanceEvent
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// setup tells how to set up one shard. It has the changes to the example's configuration, and additional environment
// variables of the server.
type setup struct {
	change func(*config.Shard)
	env    []string
}

// newShard writes the shard's configuration and starts its server. The server uses five consecutive ports from "first"
// on.
func newShard(ctx context.Context, id, dir, bin string, first int32, b *bucket, of setup) (*shard, error) {
	s := &shard{id: id, dir: dir, bin: bin, env: of.env, bucket: b}
	for i := range 5 {
		s.ports = append(s.ports, int(first)+i)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := s.configure(ctx, of.change); err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		return nil, err
	}
	return s, s.connect(ctx)
}

// configure writes the repository's example configuration with this shard's changes.
func (s *shard) configure(ctx context.Context, change func(*config.Shard)) error {
	root, err := kube.Root()
	if err != nil {
		return err
	}
	path := filepath.Join(root, "examples", "config-tmux.jsonc")
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	c, problems := config.Parse(path, src)
	if len(problems) > 0 {
		return problems
	}
	c.Cluster.ID = clusterID
	c.Server.Shard = s.id
	c.Server.Provider.Zone = "zone-" + s.id
	c.Server.Provider.Options = map[string]string{"dir": filepath.Join(s.dir, "vms"), "session": "vms",
		"socket": filepath.Join(s.dir, "tmux.sock"),
		"agent":  filepath.Join(s.bin, "nstance-agent")}
	c.Server.Bind = config.Addresses{Health: address(s.ports[0]), Election: address(s.ports[1]),
		Registration: address(s.ports[2]),
		Operator:     address(s.ports[3]), Agent: address(s.ports[4])}
	c.Server.Advertise = config.Addresses{}
	soon := config.Duration(100 * time.Millisecond)
	c.Server.ErrorExitJitter = config.ErrorExitJitter{MinDelay: &soon, MaxDelay: &soon}
	change(c)
	body := config.Encode(c)
	if _, problems := config.Parse("made from "+path, body); len(problems) > 0 {
		return problems
	}
	state, err := s.bucket.state(s.id)
	if err != nil {
		return err
	}
	_, err = state.WriteConfig(ctx, s.id, body, "")
	return err
}

func (s *shard) start() error {
	env := append(append(os.Environ(), "NSTANCE_ENCRYPTION_KEY="+encryptionKey), s.env...)
	s.mu.Lock()
	defer s.mu.Unlock()
	process, err := kube.Run(s.dir, "nstance-server", filepath.Join(s.bin, "nstance-server"), env, "--id", "server-"+
		s.id, "--shard", s.id, "--storage", "file",
		"--bucket", s.bucket.dir, "--cachedir", filepath.Join(s.dir, "cache"), "--health-addr", address(s.ports[0]))
	if err != nil {
		return err
	}
	s.process = process
	s.starts++
	return nil
}

// supervise restarts the server whenever it has ended, as systemd would.
func (s *shard) supervise(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.server().Ended():
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
		if err := s.start(); err != nil {
			return
		}
	}
}

func (s *shard) server() *kube.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// connect registers the test's own operator client.
func (s *shard) connect(ctx context.Context) error {
	identity := filepath.Join(s.dir, "identity")
	if _, err := s.bucket.admin(ctx, "register-operator", "--output-dir", identity); err != nil {
		return err
	}
	certificate, err := tls.LoadX509KeyPair(filepath.Join(identity, "identity.crt"),
		filepath.Join(identity, "identity.key"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(tail(filepath.Join(identity, "ca.crt")))
	creds := credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate},
		RootCAs: roots, ServerName: "127.0.0.1"})
	conn, err := grpc.NewClient(address(s.ports[3]), grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5,
				MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second}))
	if err != nil {
		return err
	}
	s.OperatorServiceClient = nstancev1.NewOperatorServiceClient(conn)
	return nil
}

// watch records the events of instances.
func (s *shard) watch(ctx context.Context) {
	for ctx.Err() == nil {
		_ = s.watchOnce(ctx) // The stream ends when its leader does; the loop opens another.
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *shard) watchOnce(ctx context.Context) error {
	stream, err := s.WatchInstances(ctx, &nstancev1.WatchInstancesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.events = append(s.events, answer.GetEvent())
		s.mu.Unlock()
	}
}

// creations returns the create calls of a group, the oldest first.
func (s *shard) creations(group string) (events []*nstancev1.InstanceEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, event := range s.events {
		if event.GetType() == nstancev1.InstanceEvent_TYPE_CREATING && event.GetInstance().GetGroup() == group {
			events = append(events, event)
		}
	}
	return events
}

// group returns the server's status of a group.
func (s *shard) group(ctx context.Context, name string) (*nstancev1.GroupStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	list, err := s.ListGroups(ctx, &nstancev1.ListGroupsRequest{})
	if err != nil {
		return nil, err
	}
	for _, group := range list.GetGroups() {
		if group.GetGroup() == name {
			return group, nil
		}
	}
	return nil, fmt.Errorf("shard %s has no group %s", s.id, name)
}

// instances returns the instances of a group, or of all groups if the name is "", sorted by ID. It leaves out those
// that are deleted or being deleted.
func (s *shard) instances(ctx context.Context, of string) ([]*nstancev1.InstanceStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	list, err := s.ListInstances(ctx, &nstancev1.ListInstancesRequest{Group: of})
	live := slices.DeleteFunc(list.GetInstances(), func(i *nstancev1.InstanceStatus) bool {
		return i.GetState() == "deleted" || i.GetState() == "deleting"
	})
	return live, err
}

// settled returns an error unless the group has the given size and as many instances, all of them healthy.
func (s *shard) settled(ctx context.Context, group string, size int) error {
	status, err := s.group(ctx, group)
	if err != nil {
		return err
	}
	instances, err := s.instances(ctx, group)
	if err != nil {
		return err
	}
	if int(status.GetSize()) != size || len(instances) != size || int(status.GetHealthy()) != size {
		return fmt.Errorf("%s on %s has size %d, %d instances, %d healthy; want %d (%s)", group, s.id, status.GetSize(),
			len(instances), status.GetHealthy(), size,
			status.GetBlockedReason())
	}
	return nil
}

// kill ends a VM immediately, as a power failure would.
func (s *shard) kill(id string) error {
	raw, err := os.ReadFile(filepath.Join(s.dir, "vms", id, "vm.json"))
	if err != nil {
		return err
	}
	var vm struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(raw, &vm); err != nil {
		return err
	}
	if vm.PID <= 1 {
		return errors.New("the VM has no process")
	}
	return syscall.Kill(vm.PID, syscall.SIGKILL)
}

// tails logs the ends of a shard's logs.
func (s *shard) tails(t *testing.T) {
	t.Helper()
	t.Logf("--- server of %s (started %d times)\n%s", s.id, s.starts, kube.Tail(filepath.Join(s.dir,
		"nstance-server.log"), 20))
}

// metadata simulates the EC2 metadata service. The instances of the group "spot" get its address in the variable
// AWS_EC2_METADATA_SERVICE_ENDPOINT. The path in a request begins with the ID of the instance that asks.
type metadata struct {
	mu      sync.Mutex
	notices map[string]time.Time
	asked   map[string]bool
}

// notify announces the termination of an instance.
func (m *metadata) notify(instance string, end time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notices[instance] = end
}

// watched reports whether an instance has asked the metadata service for a termination notice at least once.
func (m *metadata) watched(instance string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked[instance]
}

// ServeHTTP answers requests for spot termination notices. See
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html.
func (m *metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	instance, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	m.mu.Lock()
	end, noticed := m.notices[instance]
	m.asked[instance] = true
	m.mu.Unlock()
	switch {
	case r.Method == http.MethodPut && path == "latest/api/token":
		fmt.Fprint(w, "token")
	case path == "latest/meta-data/spot/instance-action" && noticed:
		fmt.Fprintf(w, `{"action":"terminate","time":%q}`, end.UTC().Format(time.RFC3339))
	default:
		http.NotFound(w, r)
	}
}
