package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
	"github.com/nstance-kit/nstance/tests/kube"
)

// liveOperator runs the package's controllers against a real API server, with shards in memory.
type liveOperator struct {
	t      *testing.T
	config *rest.Config
	client client.Client // an administrator's
	shards *shardstest.Set

	mu     sync.Mutex
	writes []string // requests of the manager: method and path
	calls  []string
	upsert chan time.Time
	// All calls to shard b wait until the channel "held" is closed. They do not wait if held is nil.
	held chan struct{}
	// refuse reports whether a write of the manager must fail before it is sent.
	refuse func(method, path string) bool
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// start starts the controllers. The returned function stops them and waits for them to end.
func (op *liveOperator) start() (stop func()) {
	op.t.Helper()
	counted := rest.CopyConfig(op.config)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodGet && !strings.HasSuffix(path.Dir(r.URL.Path), "events") &&
				path.Base(r.URL.Path) != "events" {
				op.mu.Lock()
				refused := op.refuse != nil && op.refuse(r.Method, r.URL.Path)
				if !refused {
					op.writes = append(op.writes, r.Method+" "+r.URL.Path)
				}
				op.mu.Unlock()
				if refused {
					return nil, errors.New("the operator was killed")
				}
			}
			return next.RoundTrip(r)
		})
	})
	mgr, err := ctrl.NewManager(counted, ctrl.Options{Scheme: newScheme(op.t), Logger: logr.Discard(),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{testNamespace: {}}},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)}})
	if err != nil {
		op.t.Fatal(err)
	}
	if err := Setup(mgr, scope.Scope{Shards: op.shards, Namespace: testNamespace, Cluster: "c", Tenant: "t",
		Log: slog.New(slog.DiscardHandler)}); err != nil {
		op.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			op.t.Error(err)
		}
	})
}

// addShard adds a shard and records its calls.
func (op *liveOperator) addShard(id string) {
	op.shards.Add(id).Fail(func(method string) error {
		op.mu.Lock()
		op.calls = append(op.calls, method+" "+id)
		held := op.held
		op.mu.Unlock()
		if held != nil && id == "b" {
			<-held
		}
		if method == "UpsertGroup" {
			select {
			case op.upsert <- time.Now():
			default:
			}
		}
		return nil
	})
}

// takeRecorded returns the writes and calls since the previous call of takeRecorded.
func (op *liveOperator) takeRecorded() (writes, calls []string) {
	op.mu.Lock()
	defer op.mu.Unlock()
	writes, calls, op.writes, op.calls = op.writes, op.calls, nil, nil
	return writes, calls
}

func (op *liveOperator) refuseWrites(fn func(method, path string) bool) {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.refuse = fn
}

func (op *liveOperator) get(name string, into client.Object) error {
	return op.client.Get(op.t.Context(), client.ObjectKey{Namespace: testNamespace, Name: name}, into)
}

// await repeats fn until it returns nil.
func (op *liveOperator) await(what string, fn func() error) {
	op.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		err := fn()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			op.t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-op.t.Context().Done():
			op.t.Fatal(what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// awaitReady waits until a pool has the wanted number of replicas and its Ready condition is true.
func (op *liveOperator) awaitReady(name string, replicas int32) {
	op.t.Helper()
	op.await(name+" is ready", func() error {
		pool := &v1beta1.NstanceMachinePool{}
		if err := op.get(name, pool); err != nil {
			return err
		}
		machines := &v1beta1.NstanceMachineList{}
		if err := op.client.List(op.t.Context(), machines, client.InNamespace(testNamespace),
			client.MatchingLabels{v1beta1.GroupLabel: pool.Spec.Group}); err != nil {
			return err
		}
		if condition(pool.Status.Conditions, "Ready") != "True Ready" ||
			ptr.Deref(pool.Status.Replicas, -1) != replicas || len(pool.Spec.ProviderIDList) != int(replicas) ||
			pool.Status.ObservedGeneration != pool.Generation || len(machines.Items) < int(replicas) {
			return fmt.Errorf("%d machines, generation %d, %d provider IDs, %+v", len(machines.Items), pool.Generation,
				len(pool.Spec.ProviderIDList), pool.Status)
		}
		return nil
	})
}

func (op *liveOperator) scale(name string, replicas int32) {
	op.t.Helper()
	mp := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: name}}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	if err := op.client.Patch(op.t.Context(), mp, patch); err != nil {
		op.t.Fatal(err)
	}
}

// TestAPIServer runs the controllers against a real API server. It covers what the in-memory client cannot: schema
// validation, a cache that lags, and the writes that are sent when nothing has changed.
func TestAPIServer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	server, err := kube.Start(ctx, kube.Options{Dir: t.TempDir(), CRDs: []string{filepath.Join("..", "..", "..", "..",
		"config", "crd")}, CoreCRDs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	admin, err := client.New(server.Config, client.Options{Scheme: newScheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: testNamespace}}); err != nil {
		t.Fatal(err)
	}
	if err := admin.Create(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace,
		Name: testCluster}, Spec: clusterv1.ClusterSpec{
		ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "api", Port: 443}}}); err != nil {
		t.Fatal(err)
	}
	op := &liveOperator{t: t, config: server.Config, client: admin, shards: shardstest.New(),
		upsert: make(chan time.Time, 1)}
	op.addShard("a")
	op.addShard("b")
	g := staticGroup("web", 3)
	// The API server stores this JSON in another order and spelling.
	g.MergedJson = `{"template":"worker","vars":{"z":"1","a":"2"},"args":{"z":1.0,"a":{"deep":[1,2.5]}}}`
	op.shards.Of("a").SetGroup(g)
	op.shards.Of("b").SetGroup(staticGroup("web", 2))
	stop := op.start()
	defer func() { stop() }()
	op.awaitReady("web", 5)

	op.checkImport()
	op.checkRefused()
	op.checkQuiet(func() {
		// Report a change of every group, shard and instance, although nothing changes. This triggers every
		// reconciliation.
		op.shards.Of("a").SetGroup(g)
		for _, one := range op.shards.All() {
			id := one.ID()
			op.shards.Of(id).SetState(func(*shards.State) {})
			for _, i := range op.shards.Of(id).Instances("") {
				op.shards.Of(id).Change(i.GetInstanceId(), func(*nstancev1.InstanceStatus) {})
			}
		}
	})
	op.checkLatency()
	op.checkIndependence()
	op.checkQuiet(func() {
		stop()
		stop = op.start() // a new operator has nothing to change
	})

	// Kill the operator between the two writes of an import.
	op.refuseWrites(func(method, path string) bool {
		return method == http.MethodPost && strings.HasSuffix(path, "/machinepools")
	})
	op.shards.Of("b").SetGroup(staticGroup("job", 1))
	op.await("half an import", func() error { return op.get("job", &v1beta1.NstanceMachinePool{}) })
	stop()
	if err := op.get("job", &clusterv1.MachinePool{}); !apierrors.IsNotFound(err) {
		t.Fatalf("the import was not interrupted: %v", err)
	}
	op.refuseWrites(nil)
	stop = op.start()
	op.awaitReady("job", 1)

	// Scale the static group and delete its pool. The group must then have the size in the shard's configuration again.
	op.scale("web", 9)
	op.awaitReady("web", 9)
	for _, obj := range []client.Object{&clusterv1.MachinePool{}, &v1beta1.NstanceMachinePool{}} {
		obj.SetNamespace(testNamespace)
		obj.SetName("web")
		if err := admin.Delete(ctx, obj); err != nil {
			t.Fatal(err)
		}
	}
	// The shard still has the group, so it is imported again.
	op.await("the group is restored and imported again", func() error {
		pool := &v1beta1.NstanceMachinePool{}
		if err := op.get("web", pool); err != nil || !pool.DeletionTimestamp.IsZero() {
			return fmt.Errorf("%w, deleted %v", err, pool.DeletionTimestamp)
		}
		mp := &clusterv1.MachinePool{}
		if err := op.get("web", mp); err != nil {
			return err
		}
		if *mp.Spec.Replicas != 5 {
			return fmt.Errorf("%d replicas", *mp.Spec.Replicas)
		}
		return nil
	})
	stop()
	op.checkUnknownShards(server)
}

// checkImport checks the imported objects against the Cluster API contract. It also checks the event about the import.
func (op *liveOperator) checkImport() {
	mp, pool := &clusterv1.MachinePool{}, &v1beta1.NstanceMachinePool{}
	if err := errors.Join(op.get("web", mp), op.get("web", pool)); err != nil {
		op.t.Fatal(err)
	}
	if *mp.Spec.Replicas != 5 || mp.Spec.Template.Spec.Bootstrap.DataSecretName == nil ||
		*mp.Spec.Template.Spec.Bootstrap.DataSecretName != "" {
		op.t.Errorf("%+v", mp.Spec)
	}
	if !pool.Status.Ready || !*pool.Status.Initialization.Provisioned ||
		pool.Status.InfrastructureMachineKind != "NstanceMachine" {
		op.t.Errorf("%+v", pool.Status)
	}
	op.await("event", func() error {
		list := &eventsv1.EventList{}
		if err := op.client.List(op.t.Context(), list, client.InNamespace(testNamespace)); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == v1beta1.ImportedReason && e.Regarding.Name == "web"
		}) {
			return fmt.Errorf("%d events, none about the import", len(list.Items))
		}
		return nil
	})
}

// checkRefused checks that a setting that the shards refuse becomes a condition, and that a correction ends it.
func (op *liveOperator) checkRefused() {
	op.t.Helper()
	for _, step := range []struct{ config, valid, message string }{
		{`{"template":"other"}`, "False", "template:"},
		{`{"template":null,"max_unhealth":"3"}`, "False",
			`max_unhealth: there is no such field (did you mean "max_unhealthy"?)`},
		{`{"max_unhealth":null,"vars":{"a":"2"}}`, "True", ""},
		{`null`, "True", ""},
	} {
		pool := &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "web"}}
		if err := op.client.Patch(op.t.Context(), pool, client.RawPatch("application/merge-patch+json",
			[]byte(`{"spec":{"config":`+step.config+`}}`))); err != nil {
			op.t.Fatal(err)
		}
		op.await("ConfigValid after "+step.config, func() error {
			g := &v1beta1.NstanceShardGroup{}
			if err := op.get("web--b", g); err != nil {
				return err
			}
			valid := meta.FindStatusCondition(g.Status.Conditions, v1beta1.ConfigValidCondition)
			if valid == nil || string(valid.Status) != step.valid || !strings.Contains(valid.Message, step.message) ||
				valid.ObservedGeneration != g.Generation || !equalJSON(g.Spec.Config, pool.Spec.Config) {
				return fmt.Errorf("%+v, config %v", valid, g.Spec.Config)
			}
			return nil
		})
	}
	op.awaitReady("web", 5)
}

// checkQuiet runs fn and checks that the operator then makes no write and no call. After fn, it creates another pool,
// to know when the controllers have processed everything. It ignores the writes and calls for that pool.
func (op *liveOperator) checkQuiet(fn func()) {
	op.t.Helper()
	op.takeRecorded()
	fn()
	probe := fmt.Sprintf("probe-%d", time.Now().UnixNano()%1_000_000)
	pool := &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: probe},
		Spec: v1beta1.NstanceMachinePoolSpec{Group: probe, Shards: []string{"a", "b"}, Config: fromWorker()}}
	mp := importedMachinePool(importInput{namespace: testNamespace, cluster: testCluster}, pool, nil)
	mp.Spec.Replicas = ptr.To(int32(2))
	for _, obj := range []client.Object{pool, mp} {
		if err := op.client.Create(op.t.Context(), obj); err != nil {
			op.t.Fatal(err)
		}
	}
	op.awaitReady(probe, 2)
	writes, calls := op.takeRecorded()
	ids := map[string]bool{}
	for _, one := range op.shards.All() {
		id := one.ID()
		for _, i := range op.shards.Of(id).Instances(probe) {
			ids[i.GetInstanceId()] = true
		}
	}
	writes = slices.DeleteFunc(writes, func(w string) bool {
		return strings.Contains(w, "/"+probe) || strings.HasSuffix(w, "/nstanceshardgroups") ||
			strings.HasSuffix(w, "/nstancemachines")
	})
	if len(writes) > 0 || len(calls) != 2 {
		op.t.Errorf("writes %v and calls %v although nothing has changed", writes, calls)
	}
	// Delete the extra pool before the next check.
	for _, obj := range []client.Object{mp, pool} {
		if err := op.client.Delete(op.t.Context(), obj); err != nil {
			op.t.Fatal(err)
		}
	}
	op.await("the other pool is gone", func() error {
		if err := op.get(probe, &v1beta1.NstanceMachinePool{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the pool still exists: %w", err)
		}
		return nil
	})
}

// checkLatency measures the time from the scaling of a MachinePool until a shard is called.
func (op *liveOperator) checkLatency() {
	op.t.Helper()
	var took []time.Duration
	for i := range int32(15) {
		select {
		case <-op.upsert:
		default:
		}
		began := time.Now()
		op.scale("web", 10+i%3)
		select {
		case at := <-op.upsert:
			took = append(took, at.Sub(began))
		case <-time.After(30 * time.Second):
			op.t.Fatal("scaling caused no call within 30 s")
		}
		op.awaitReady("web", 10+i%3)
	}
	slices.Sort(took)
	op.t.Logf("from scale to call: p50 %s, p90 %s, most %s", took[len(took)/2], took[len(took)*9/10], took[len(took)-1])
	// The median stays below this limit even on a busy machine. If the queue delayed each reconciliation by a timer,
	// the median would exceed the limit.
	if took[len(took)/2] > 2*time.Second {
		op.t.Errorf("the median from scale to call is %s, want at most 2 s", took[len(took)/2])
	}
	op.scale("web", 5)
	op.awaitReady("web", 5)
}

// checkIndependence checks that a shard that does not answer does not delay the pushes to other shards.
func (op *liveOperator) checkIndependence() {
	op.t.Helper()
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	defer release()
	op.mu.Lock()
	op.held = held
	op.mu.Unlock()
	op.scale("web", 8)
	op.await("the share of the other shard", func() error {
		if g, _ := op.shards.Of("a").Group("web"); g.GetSize() != 4 {
			return fmt.Errorf("%d", g.GetSize())
		}
		return nil
	})
	release()
	op.awaitReady("web", 8)
	op.scale("web", 5)
	op.awaitReady("web", 5)
}

// checkUnknownShards checks that the admission policy of pools refuses shards that the operator does not know.
func (op *liveOperator) checkUnknownShards(server *kube.Cluster) {
	op.t.Helper()
	must := func(err error) {
		op.t.Helper()
		if err != nil {
			op.t.Fatal(err)
		}
	}
	ctx := op.t.Context()
	newPool := func(name string, shards ...string) error {
		return op.client.Create(ctx, &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace,
			Name: name}, Spec: v1beta1.NstanceMachinePoolSpec{Group: name, Shards: shards, Config: fromWorker()}})
	}
	must(newPool("early", "a", "x"))
	must(server.Create(ctx, filepath.Join("..", "..", "..", "operator", "kustomize", "base",
		"admission.yaml")))
	must(newPool("without-cluster", "a", "x"))
	cluster := &v1beta1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: testCluster},
		Spec: v1beta1.NstanceClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "api", Port: 443}}}
	must(op.client.Create(ctx, cluster))
	must(newPool("shards-unknown", "a", "x"))
	cluster.Status.FailureDomains = []clusterv1.FailureDomain{{Name: "a"}, {Name: "b"}}
	must(op.client.Status().Update(ctx, cluster))
	n := 0
	op.await("the policy is in force", func() error {
		n++
		err := newPool(fmt.Sprint("late-", n), "a", "x", "y")
		if err == nil || !strings.Contains(err.Error(),
			"spec.shards: not in the operator's configuration: x, y; it has a, b") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	must(newPool("right", "a", "b"))
	change := func(name string, shards ...string) error {
		pool := &v1beta1.NstanceMachinePool{}
		must(op.client.Get(ctx, client.ObjectKey{Namespace: testNamespace, Name: name}, pool))
		before := pool.DeepCopy()
		pool.Spec.Shards = shards
		return op.client.Patch(ctx, pool, client.MergeFrom(before))
	}
	if err := change("right", "a", "bb"); err == nil {
		op.t.Error("a typing error was accepted")
	}
	// The list of shards of the pool "early" already contains the shard "x". The policy must accept this shard, because
	// it may have been removed from the configuration.
	must(change("early", "x", "b"))
	other := &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "other",
		Labels: map[string]string{clusterv1.ClusterNameLabel: "other"}},
		Spec: v1beta1.NstanceMachinePoolSpec{Group: "other", Shards: []string{"x"}, Config: fromWorker()}}
	must(op.client.Create(ctx, other))
}
