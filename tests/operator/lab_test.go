// Package operator tests nstance-operator against real components: two shards of nstance-server with agents, and a
// Kubernetes with scheduler and Cluster API. Simulated Nodes follow the instances.
package operator

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/tests/kube"
)

const (
	namespace = "nstance-system"
	// binVariable is the environment variable with the directory of the programs that were built before isolation.
	binVariable = "NSTANCE_TEST_BIN"
	// patience is the limit for steps that take seconds. Cluster API delays some steps by up to 40 s.
	patience = 100 * time.Second
)

func everything(dir, root string) kube.Options {
	return kube.Options{Dir: dir, ControllerManager: true, Scheduler: true, Kwok: true, CAPI: true, Audit: audited,
		CRDs: []string{filepath.Join(root, "config", "crd")}}
}

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		return
	}
	code, done, err := kube.Isolate(prepare)
	if !done && err == nil {
		os.Exit(checkRights(m.Run()))
	}
	if dir := os.Getenv(binVariable); dir != "" {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// prepare builds the programs that the test runs.
func prepare() error {
	ctx := context.Background()
	root, err := kube.Root()
	if err != nil {
		return err
	}
	if err := kube.Prepare(ctx, everything("", root)); err != nil {
		return err
	}
	bin, err := os.MkdirTemp("", "nstance-operator-bin-")
	if err != nil {
		return err
	}
	if err := os.Setenv(binVariable, bin); err != nil {
		return err
	}
	// scripts/old.sh fails if the repository has no history. The error can be ignored here, because only TestUpgrade
	// needs the script. TestUpgrade runs the script again and shows the error.
	_ = exec.CommandContext(ctx, filepath.Join(root, oldScript)).Run()
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin+"/", "./services/cmd/nstance-server",
		"./services/cmd/nstance-agent", "./services/cmd/nstance-operator", "./services/cmd/nstance-admin")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// firstPort is the first port of the next lab. It is below 20000, because all other listeners in this network namespace
// use ports from 20000 on.
var firstPort = func() *atomic.Int32 { n := &atomic.Int32{}; n.Store(11001); return n }()

// starts limits the labs that start at the same time. A lab that starts needs a whole core, and later about a third of
// one.
var starts = make(chan struct{}, 2)

// version has the directory of a version's programs, and the directory of the repository that they were built from.
type version struct{ bin, root string }

func thisVersion(t *testing.T) version {
	t.Helper()
	root, err := kube.Root()
	if err != nil {
		t.Fatal(err)
	}
	return version{os.Getenv(binVariable), root}
}

// lab holds all components of one test.
type lab struct {
	*kube.Cluster
	dir     string
	version // What is started next.
	first   version
	// restricted is set by a test that takes rights away from the operator.
	restricted bool
	east, west *shard
	metadata   *metadata
	operators  []*kube.Process
	flags      []string // Further flags of the operators.
	// If tainted is true, the kubelets of on-demand machines give their Nodes the taint that the documentation
	// recommends.
	tainted atomic.Bool
}

// newLab starts Kubernetes and both shards in parallel.
func newLab(t *testing.T) *lab {
	t.Helper()
	service, imds := serveMetadata(t)
	l := newLabOf(t, setup{change: func(c *config.Shard) {
		groups(c)
		env := map[string]any{"NSTANCE_PROVIDER": "aws", "NSTANCE_SPOT_POLL_INTERVAL": "500ms",
			"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds + "/{{ .Instance.ID }}"}
		c.Groups[tenant][guarded] = config.GroupSpec{Template: "worker", Size: number(1),
			DrainTimeout: duration(10 * time.Second)}
		c.Groups[tenant][spot] = config.GroupSpec{Template: "worker", Size: number(1),
			DrainTimeout: duration(time.Minute), Args: map[string]any{"env": env}}
	}}, setup{change: groups})
	l.metadata = service
	return l
}

// newLabOf is like newLab, with the given setups of the two shards.
func newLabOf(t *testing.T, east, west setup) *lab {
	t.Helper()
	return newLabFrom(t, thisVersion(t), east, west)
}

// newLabFrom is like newLabOf, with the programs and CRDs of a version. The directory of the lab has a short name,
// because the path of a Unix socket may have at most 107 characters.
func newLabFrom(t *testing.T, version version, east, west setup) *lab {
	t.Helper()
	starts <- struct{}{}
	defer func() { <-starts }()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "nst-op-") //nolint:usetesting // it is kept when the test has failed
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{dir: dir, version: version, first: version}
	t.Cleanup(func() { l.end(t) })
	store, err := newBucket(ctx, filepath.Join(dir, "bucket"), l.bin)
	if err != nil {
		t.Fatal(err)
	}
	port := firstPort.Add(100)
	var starting sync.WaitGroup
	failed := make([]error, 3)
	starting.Go(func() {
		l.Cluster, failed[0] = kube.Start(ctx, everything(filepath.Join(dir, "kube"), l.root))
	})
	starting.Go(func() {
		l.east, failed[1] = newShard(ctx, "east", filepath.Join(dir, "east"), l.bin, port, store, east)
	})
	starting.Go(func() {
		l.west, failed[2] = newShard(ctx, "west", filepath.Join(dir, "west"), l.bin, port+10, store, west)
	})
	starting.Wait()
	if err := errors.Join(failed...); err != nil {
		t.Fatal(err)
	}
	l.followEvents(t)
	ca, nonce, err := store.credentials(ctx)
	if err != nil {
		t.Fatal(err)
	}
	l.install(ctx, t, ca, nonce)
	return l
}

// fromWorker is the config of a pool whose instances are made from the template "worker".
var fromWorker = &apiextensionsv1.JSON{Raw: []byte(`{"template":"worker"}`)}

func number(n int) *int                         { return &n }
func duration(d time.Duration) *config.Duration { c := config.Duration(d); return &c }

// groups configures the groups that both shards have.
func groups(c *config.Shard) {
	c.Groups = map[string]map[string]config.GroupSpec{tenant: {
		workers:  {Template: "worker", Size: number(2), DrainTimeout: duration(time.Minute)},
		machines: {Template: "worker", Size: number(0), DrainTimeout: duration(20 * time.Second)},
	}}
}

func serveMetadata(t *testing.T) (service *metadata, url string) {
	t.Helper()
	service = &metadata{notices: map[string]time.Time{}, asked: map[string]bool{}}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: service, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }() // Serve returns when the server is closed.
	t.Cleanup(func() { _ = server.Close() })
	return service, "http://" + listener.Addr().String()
}

// followEvents starts what runs in the background until the test ends: simulated kubelets, supervisors of the servers,
// and watches of instance events.
func (l *lab) followEvents(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	nodes := &kube.Nodes{Client: l.Client, Taints: l.kubeletTaints}
	all.Go(func() { nodes.Follow(ctx, l.east, l.west) })
	for _, s := range []*shard{l.east, l.west} {
		all.Go(func() { s.supervise(ctx) })
		all.Go(func() { s.watch(ctx) })
	}
	t.Cleanup(func() { cancel(); all.Wait() })
}

// kubeletTaints returns the taints with which the boot script of an instance starts the kubelet.
func (l *lab) kubeletTaints(instance *nstancev1.InstanceStatus) []corev1.Taint {
	if instance.GetSpare() {
		return []corev1.Taint{{Key: v1beta1.SpareTaint, Effect: corev1.TaintEffectNoSchedule}}
	}
	if !instance.GetOnDemand() || !l.tainted.Load() {
		return nil
	}
	return []corev1.Taint{{Key: v1beta1.OnDemandPodNodeLabel, Value: "waiting", Effect: corev1.TaintEffectNoSchedule}}
}

// install does the manual steps before the operator starts: namespace, permissions, CA and nonce. The CRDs are
// installed already.
func (l *lab) install(ctx context.Context, t *testing.T, ca []byte, nonce string) {
	t.Helper()
	l.create(ctx, t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	l.permit(t)
	l.create(ctx, t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nstance-cluster-ca"},
		Data: map[string]string{"ca.crt": l.copied(t, string(ca))}})
	l.create(ctx, t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nstance-operator-nonce"},
		StringData: map[string]string{"nonce.jwt": nonce}})
	l.configure(ctx, t, l.URL, func(_ *shard, addr string) string { return addr })
}

// copied returns a text as after a copy through an editor on Windows and $(cat). An earlier version of the operator
// cannot read it, so it gets the text unchanged.
func (l *lab) copied(t *testing.T, text string) string {
	t.Helper()
	if l.version != thisVersion(t) {
		return text
	}
	return strings.TrimSpace(strings.ReplaceAll(text, "\n", "\r\n"))
}

// permit gives the operator its permissions.
func (l *lab) permit(t *testing.T) {
	t.Helper()
	l.kubectl(t, "apply", "-n", namespace, "-k", filepath.Join(l.root, "services", "operator", "kustomize", "rbac"))
}

// configure writes the operator's configuration with the addresses of the API server and the shards. For each address
// of a shard, "at" returns the address that the operator uses.
func (l *lab) configure(ctx context.Context, t *testing.T, url string, at func(s *shard, addr string) string) {
	t.Helper()
	config := fmt.Sprintf("cluster_id: %s\ntenant: %s\nshards:\n", clusterID, tenant)
	for _, s := range l.shards() {
		config += fmt.Sprintf("  %s:\n    registration_addr: %q\n    operator_addr: %q\n", s.id,
			at(s, address(s.ports[2])), at(s, address(s.ports[3])))
	}
	if err := os.WriteFile(l.configFile(), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	account, err := l.ForServiceAccount(ctx, namespace, "nstance-operator")
	if err != nil {
		t.Fatal(err)
	}
	account.Host = url
	if err := kube.WriteKubeconfig(l.operatorKubeconfig(), account); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) configFile() string         { return filepath.Join(l.dir, "operator.yaml") }
func (l *lab) operatorKubeconfig() string { return filepath.Join(l.dir, "operator.kubeconfig") }

// operator starts an nstance-operator with the permissions of a real installation. Its log file is named after the
// number of operators that the test has started.
func (l *lab) operator(t *testing.T, flags ...string) *kube.Process {
	t.Helper()
	env := append(os.Environ(), "KUBECONFIG="+l.operatorKubeconfig(), "NSTANCE_NAMESPACE="+namespace)
	args := append([]string{"--config=" + l.configFile(), "--health-probe-bind-address=0", "--metrics-bind-address=0"},
		slices.Concat(l.flags, flags)...)
	process, err := kube.Run(l.dir, fmt.Sprintf("operator-%d", len(l.operators)+1),
		filepath.Join(l.bin, "nstance-operator"), env, args...)
	if err != nil {
		t.Fatal(err)
	}
	l.operators = append(l.operators, process)
	return process
}

// end stops everything. If the test failed, it prints the ends of all logs and keeps the directory.
func (l *lab) end(t *testing.T) {
	t.Helper()
	for _, process := range l.operators {
		process.Kill()
	}
	for _, s := range []*shard{l.east, l.west} {
		if s != nil && s.process != nil {
			s.server().Kill()
			stop := exec.CommandContext(context.Background(), "tmux", "-S", filepath.Join(s.dir, "tmux.sock"),
				"kill-server")
			_ = stop.Run() // There may be no tmux server.
		}
	}
	if t.Failed() {
		for _, process := range l.operators {
			t.Logf("--- %s (exit code %d)\n%s", process.Name, process.ExitCode(), kube.Tail(process.Log, 60))
		}
		for _, s := range []*shard{l.east, l.west} {
			if s != nil {
				s.tails(t)
			}
		}
		t.Logf("--- cluster API\n%s", kube.Tail(filepath.Join(l.dir, "kube", "capi-core.log"), 30))
		t.Logf("logs are kept in %s", l.dir)
	}
	if l.Cluster != nil {
		l.Stop()
		l.recordRequests(t)
	}
	if !t.Failed() {
		if err := os.RemoveAll(l.dir); err != nil {
			t.Error(err)
		}
	}
}

func (l *lab) create(ctx context.Context, t *testing.T, object client.Object) {
	t.Helper()
	if err := l.Client.Create(ctx, object); err != nil {
		t.Fatal(err)
	}
}

// kubectl runs the real kubectl as an administrator. kubectl keeps its cache in HOME.
func (l *lab) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := l.tryKubectl(t.Context(), args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// tryKubectl does the same as kubectl, but returns the error of the command.
func (l *lab) tryKubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "kubectl", append([]string{"--kubeconfig", l.Kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+l.dir) // the program's cache is below HOME
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// await calls "try" until it returns no error, and returns how long this took. At the time limit it fails the test.
func await(t *testing.T, what string, within time.Duration, try func(context.Context) error) time.Duration {
	t.Helper()
	took, err := poll(t.Context(), within, try)
	if err != nil {
		t.Fatalf("%s: not within %s: %v", what, within, err)
	}
	t.Logf("%s: %.1f s", what, took.Seconds())
	return took
}

// poll calls "try" until it returns no error, and returns how long this took. At the time limit it returns the last
// error. The pauses between the calls grow from 50 ms to half a second: a twentieth of the time so far. So a long wait
// needs little processor time, which other labs can use.
func poll(ctx context.Context, within time.Duration, try func(context.Context) error) (time.Duration, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return time.Since(began), nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // Later errors only say that the time is over.
		}
		select {
		case <-ctx.Done():
			return time.Since(began), last
		case <-time.After(min(max(time.Since(began)/20, 50*time.Millisecond), 500*time.Millisecond)):
		}
	}
}
