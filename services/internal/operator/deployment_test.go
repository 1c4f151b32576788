package operator_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/operator"
	"github.com/nstance-kit/nstance/services/internal/operator/settings"
	"github.com/nstance-kit/nstance/services/internal/server"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/tests/kube"
)

const (
	clusterID = "demo"
	tenant    = "default"
	sealKey   = "thisisatest32bytekey123456789012" // for tests only
	patience  = 60 * time.Second
)

// start starts the API server that all tests share.
var start = sync.OnceValues(func() (*kube.Cluster, error) {
	root, err := kube.Root()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "nstance-operator-kube-")
	if err != nil {
		return nil, err
	}
	started = append(started, func() error { return os.RemoveAll(dir) })
	k, err := kube.Start(context.Background(), kube.Options{Dir: dir, CoreCRDs: true,
		CRDs: []string{filepath.Join(root, "config", "crd")}})
	if err == nil {
		started = append(started, func() error { k.Stop(); return nil })
	}
	return k, err
})

// started holds the functions that undo what start did. They run in reverse order.
var started []func() error

func TestMain(m *testing.M) {
	code := m.Run()
	for _, end := range slices.Backward(started) {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// kubernetes returns an API server with all CRDs. Each test uses its own namespace.
func kubernetes(t *testing.T) *kube.Cluster {
	t.Helper()
	k, err := start()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// testDeployment is a namespace with the objects that an administrator provides, and two real servers, one for each
// shard, with fake VMs.
type testDeployment struct {
	t         *testing.T
	kube      client.Client
	config    *rest.Config
	namespace string
	bucket    objstore.Store
	state     *clusterstate.State
	cloud     *mock.Provider
	shards    map[string]settings.Endpoints
	file      string
	log       *buffer

	mu sync.Mutex
	// made maps instances to their groups. It has every instance for which a VM was requested.
	made map[string]string
}

// buffer is a log that is printed if the test fails.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newTestDeployment returns a deployment. groups contains, for each shard, the names and sizes of its groups.
func newTestDeployment(t *testing.T, k *kube.Cluster, namespace string,
	groups map[string]map[string]int) *testDeployment {
	t.Helper()
	key, err := keyring.Parse([]byte(sealKey))
	if err != nil {
		t.Fatal(err)
	}
	deployment := &testDeployment{t: t, kube: k.Client, config: k.Config, namespace: namespace,
		bucket: mem.New(mem.Options{}),
		shards: map[string]settings.Endpoints{}, log: new(buffer), made: map[string]string{}}
	deployment.state = clusterstate.New(clusterstate.Options{Cluster: deployment.bucket, Shard: deployment.bucket,
		ClusterID: clusterID,
		ShardID:   "a",
		Secrets: secretstore.NewObjects(secretstore.Options{Bucket: deployment.bucket, Cluster: clusterID,
			Ring: keyring.Ring{Current: key}, Rand: rand.Reader})})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: the end of the log:\n%s", namespace, tail(deployment.log.String(), 60))
		}
	})
	ca, _, err := deployment.state.EnsureCA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nonces, _, err := deployment.state.EnsureNonceKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nonce, _, err := authority.MintNonce(nonces, authority.NonceSpec{Role: authority.RoleOperator, Cluster: clusterID,
		Tenant: tenant, TTL: time.Hour}, rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	// Both shards share one cloud, so that provider IDs are unique.
	deployment.cloud = mock.New(mock.Config{Now: time.Now, Script: mock.OnCreate(func(c mock.Call) {
		deployment.mu.Lock()
		defer deployment.mu.Unlock()
		deployment.made[c.Instance.String()] = c.Request.Tags.Group
	})})
	for id, of := range groups {
		deployment.startServer(id, of)
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ServiceAccount{ObjectMeta: meta("nstance-capi-workload")},
		&corev1.ConfigMap{ObjectMeta: meta("nstance-cluster-ca"), Data: map[string]string{
			"ca.crt": string(authority.EncodeBundle(ca.Certificate()))}},
		&corev1.Secret{ObjectMeta: meta("nstance-operator-nonce"), Data: map[string][]byte{
			"nonce.jwt": []byte(nonce.Reveal())}},
	} {
		if err := deployment.kube.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	deployment.file = filepath.Join(t.TempDir(), "config.yaml")
	deployment.writeConfig()
	return deployment
}

func tail(text string, lines int) string {
	all := strings.Split(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// writeConfig writes the operator's configuration file.
func (deployment *testDeployment) writeConfig() {
	deployment.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "cluster_id: %s\ntenant: %s\nshards:\n", clusterID, tenant)
	for id, at := range deployment.shards {
		fmt.Fprintf(&b, "  %s:\n    registration_addr: %q\n    operator_addr: %q\n", id, at.Registration, at.Operator)
	}
	if err := os.WriteFile(deployment.file, []byte(b.String()), 0o600); err != nil {
		deployment.t.Fatal(err)
	}
}

// freePorts returns addresses that are currently free, below the range for outgoing connections.
func freePorts(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for len(addrs) < n {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 15000+mathrand.IntN(15000)))
		if err != nil {
			continue // taken
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// startServer starts the server of a shard. The server stops at the end of the test.
func (deployment *testDeployment) startServer(id string, groups map[string]int) {
	deployment.t.Helper()
	ports := freePorts(deployment.t, 5)
	specs := map[string]any{}
	for name, size := range groups {
		specs[name] = map[string]any{"template": "worker", "size": size, "drain_timeout": "1m"}
	}
	text, err := json.Marshal(map[string]any{
		"cluster": map[string]any{"id": clusterID, "secrets": map[string]any{
			"encryption_key": map[string]any{"provider": "env"}}},
		"server": map[string]any{
			"shard": id, "provider": map[string]any{"kind": "mock", "zone": "zone-" + id, "region": "region"},
			"subnet_pools": map[string]any{"p": []string{"s"}},
			"bind": map[string]any{"health_addr": ports[0], "election_addr": ports[1], "registration_addr": ports[2],
				"operator_addr": ports[3], "agent_addr": ports[4]},
		},
		"defaults":  map[string]any{"userdata": map[string]any{"content": "{{ .Nonce }}"}},
		"templates": map[string]any{"worker": map[string]any{"kind": "wrk", "arch": "amd64", "subnet_pool": "p"}},
		"groups":    map[string]any{tenant: specs},
	})
	if err != nil {
		deployment.t.Fatal(err)
	}
	if _, err := deployment.bucket.Put(deployment.t.Context(), keys.Config(id), text, objstore.Always()); err != nil {
		deployment.t.Fatal(err)
	}
	deployment.shards[id] = settings.Endpoints{Registration: ports[2], Operator: ports[3]}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	dir := deployment.t.TempDir() // before the server starts, so that it is removed after the server's end
	go func() {
		done <- server.Run(ctx, server.Config{
			Options: server.Options{ID: "server-" + id, Shard: id, CacheDir: dir,
				HealthAddr: ports[0],
				Location:   objstore.Location{Provider: "mem"}},
			Log: slog.New(slog.DiscardHandler), Bucket: deployment.bucket,
			KeySources: []keyring.Source{{Name: config.EnvKeySource,
				Read: func(context.Context, config.KeySource) ([]byte, error) { return []byte(sealKey), nil }}},
			Clouds: []infra.Cloud{mock.Cloud(deployment.cloud, "machine-"+id)},
		})
	}()
	deployment.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			deployment.t.Errorf("server of shard %s: %v", id, err)
		}
	})
}

// process is a running operator.
type process struct {
	owner *testDeployment
	kill  context.CancelFunc
	done  chan struct{}
	err   error // valid once done is closed
}

// start starts an operator. If change is not nil, it may modify the operator's configuration.
func (deployment *testDeployment) start(change func(*operator.Config)) *process {
	deployment.t.Helper()
	file, err := settings.Load(deployment.file)
	if err != nil {
		deployment.t.Fatal(err)
	}
	environment, err := settings.ParseEnvironment(func(name string) string {
		return map[string]string{"NSTANCE_NAMESPACE": deployment.namespace}[name]
	}, "")
	if err != nil {
		deployment.t.Fatal(err)
	}
	c := operator.Config{Options: operator.Options{ConfigFile: deployment.file, HealthAddr: "0", MetricsAddr: "0",
		OnDemandPods: true},
		Environment: environment, Settings: file,
		Rest: rest.CopyConfig(deployment.config), Version: "test", Log: logr.FromSlogHandler(
			slog.NewTextHandler(deployment.log, nil))}
	if change != nil {
		change(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{owner: deployment, kill: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = operator.Run(ctx, c)
	}()
	deployment.t.Cleanup(func() { _ = p.stop() })
	return p
}

// stop stops the operator and returns the error of Run.
func (p *process) stop() error {
	p.kill()
	<-p.done
	return p.err
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// await calls the function done repeatedly until done returns nil.
func (deployment *testDeployment) await(what string, done func() error) {
	deployment.t.Helper()
	var last error
	began := time.Now()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(50 * time.Millisecond) {
		if last = done(); last == nil {
			deployment.t.Logf("%s after %s", what, time.Since(began).Round(time.Millisecond))
			return
		}
	}
	deployment.t.Fatalf("%s: waited too long for %s: %v", deployment.namespace, what, last)
}

// runningVMs returns the number of running VMs of a group on a shard.
func (deployment *testDeployment) runningVMs(shard, group string) (n int) {
	for _, vm := range deployment.cloud.VMs() {
		if vm.State.Alive() && vm.Tags.Shard == shard && vm.Tags.Group == group {
			n++
		}
	}
	return n
}

// requestedVMs returns the number of instances of a group for which a VM was ever requested.
func (deployment *testDeployment) requestedVMs(group string) (n int) {
	deployment.mu.Lock()
	defer deployment.mu.Unlock()
	for _, of := range deployment.made {
		if of == group {
			n++
		}
	}
	return n
}

func equal[T comparable](what string, got, want T) error {
	if got != want {
		return fmt.Errorf("%s: %v, want %v", what, got, want)
	}
	return nil
}

func all(errs ...error) error { return errors.Join(errs...) }
