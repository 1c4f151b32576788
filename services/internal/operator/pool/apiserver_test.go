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
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
	"github.com/nstance-kit/nstance/tests/kube"
)

// live is the package's controllers in a manager, on a real API server, with shards in memory.
type live struct {
	t      *testing.T
	config *rest.Config
	client client.Client // an administrator's
	shards *shardstest.Set

	mu     sync.Mutex
	writes []string // of the manager: method and path
	calls  []string
	upsert chan time.Time
	// held, while it is not nil and not closed, keeps calls of shard b from being answered.
	held chan struct{}
	// refuse makes a write of the manager fail before it is sent.
	refuse func(method, path string) bool
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// run runs the controllers until the returned function is called, which waits for their end.
func (l *live) run() (stop func()) {
	l.t.Helper()
	counted := rest.CopyConfig(l.config)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodGet && !strings.HasSuffix(path.Dir(r.URL.Path), "events") &&
				path.Base(r.URL.Path) != "events" {
				l.mu.Lock()
				refused := l.refuse != nil && l.refuse(r.Method, r.URL.Path)
				if !refused {
					l.writes = append(l.writes, r.Method+" "+r.URL.Path)
				}
				l.mu.Unlock()
				if refused {
					return nil, errors.New("the operator was killed")
				}
			}
			return next.RoundTrip(r)
		})
	})
	mgr, err := ctrl.NewManager(counted, ctrl.Options{Scheme: newScheme(l.t), Logger: logr.Discard(),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{testNamespace: {}}},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)}})
	if err != nil {
		l.t.Fatal(err)
	}
	if err := Setup(mgr, Options{Shards: l.shards, Namespace: testNamespace, Cluster: "c", Tenant: "t",
		Log: slog.New(slog.DiscardHandler)}); err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			l.t.Error(err)
		}
	})
}

// addShard adds a shard whose calls are counted.
func (l *live) addShard(id string) {
	l.shards.Add(id).Fail(func(method string) error {
		l.mu.Lock()
		l.calls = append(l.calls, method+" "+id)
		held := l.held
		l.mu.Unlock()
		if held != nil && id == "b" {
			<-held
		}
		if method == "UpsertGroup" {
			select {
			case l.upsert <- time.Now():
			default:
			}
		}
		return nil
	})
}

func (l *live) done() (writes, calls []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	writes, calls, l.writes, l.calls = l.writes, l.calls, nil, nil
	return writes, calls
}

func (l *live) setRefuse(fn func(method, path string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = fn
}

func (l *live) get(name string, into client.Object) error {
	return l.client.Get(l.t.Context(), client.ObjectKey{Namespace: testNamespace, Name: name}, into)
}

// await polls until fn has nothing to complain of.
func (l *live) await(what string, fn func() error) {
	l.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		err := fn()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-l.t.Context().Done():
			l.t.Fatal(what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ready waits until a pool is as its MachinePool wants it, and Kubernetes says so.
func (l *live) ready(name string, replicas int32) {
	l.t.Helper()
	l.await(name+" is ready", func() error {
		pool := &v1beta1.NstanceMachinePool{}
		if err := l.get(name, pool); err != nil {
			return err
		}
		machines := &v1beta1.NstanceMachineList{}
		if err := l.client.List(l.t.Context(), machines, client.InNamespace(testNamespace),
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

func (l *live) scale(name string, replicas int32) {
	l.t.Helper()
	mp := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: name}}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	if err := l.client.Patch(l.t.Context(), mp, patch); err != nil {
		l.t.Fatal(err)
	}
}

// The controllers on a real API server: what a schema refuses, what a cache delays, and what is sent when nothing has
// changed.
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
	l := &live{t: t, config: server.Config, client: admin, shards: shardstest.New(), upsert: make(chan time.Time, 1)}
	l.addShard("a")
	l.addShard("b")
	g := static("web", 3)
	// the API server writes it otherwise
	g.ArgsJson, g.Vars = `{"z":1.0,"a":{"deep":[1,2.5]}}`, map[string]string{"z": "1", "a": "2"}
	l.shards.Of("a").SetGroup(g)
	l.shards.Of("b").SetGroup(static("web", 2))
	stop := l.run()
	defer func() { stop() }()
	l.ready("web", 5)

	l.imported()
	l.restricted()
	l.quiet(func() {
		// All that says "look again" when nothing has changed.
		l.shards.Of("a").SetGroup(g)
		for _, id := range l.shards.IDs() {
			l.shards.Of(id).SetState(func(*shards.State) {})
			for _, i := range l.shards.Of(id).Instances("") {
				l.shards.Of(id).Change(i.GetInstanceId(), func(*nstancev1.InstanceStatus) {})
			}
		}
	})
	l.fast()
	l.independent()
	l.quiet(func() {
		stop()
		stop = l.run() // a new operator finds everything as it is
	})

	// The operator is killed between the two writes of an import.
	l.setRefuse(func(method, path string) bool {
		return method == http.MethodPost && strings.HasSuffix(path, "/machinepools")
	})
	l.shards.Of("b").SetGroup(static("job", 1))
	l.await("half an import", func() error { return l.get("job", &v1beta1.NstanceMachinePool{}) })
	stop()
	if err := l.get("job", &clusterv1.MachinePool{}); !apierrors.IsNotFound(err) {
		t.Fatalf("nothing was interrupted: %v", err)
	}
	l.setRefuse(nil)
	stop = l.run()
	l.ready("job", 1)

	// Deletion: the static group goes back to what its configuration says.
	l.scale("web", 9)
	l.ready("web", 9)
	for _, obj := range []client.Object{&clusterv1.MachinePool{}, &v1beta1.NstanceMachinePool{}} {
		obj.SetNamespace(testNamespace)
		obj.SetName("web")
		if err := admin.Delete(ctx, obj); err != nil {
			t.Fatal(err)
		}
	}
	// It is still a group, so it comes back as one.
	l.await("the group is restored and imported again", func() error {
		pool := &v1beta1.NstanceMachinePool{}
		if err := l.get("web", pool); err != nil || !pool.DeletionTimestamp.IsZero() {
			return fmt.Errorf("%w, deleted %v", err, pool.DeletionTimestamp)
		}
		mp := &clusterv1.MachinePool{}
		if err := l.get("web", mp); err != nil {
			return err
		}
		if *mp.Spec.Replicas != 5 {
			return fmt.Errorf("%d replicas", *mp.Spec.Replicas)
		}
		return nil
	})
	stop()
}

// imported: what import has made is what Cluster API wants, and was told of.
func (l *live) imported() {
	mp, pool := &clusterv1.MachinePool{}, &v1beta1.NstanceMachinePool{}
	if err := errors.Join(l.get("web", mp), l.get("web", pool)); err != nil {
		l.t.Fatal(err)
	}
	if *mp.Spec.Replicas != 5 || mp.Spec.Template.Spec.Bootstrap.DataSecretName == nil ||
		*mp.Spec.Template.Spec.Bootstrap.DataSecretName != "" {
		l.t.Errorf("%+v", mp.Spec)
	}
	if !pool.Status.Ready || !*pool.Status.Initialization.Provisioned ||
		pool.Status.InfrastructureMachineKind != "NstanceMachine" {
		l.t.Errorf("%+v", pool.Status)
	}
	l.await("event", func() error {
		list := &eventsv1.EventList{}
		if err := l.client.List(l.t.Context(), list, client.InNamespace(testNamespace)); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == v1beta1.ImportedReason && e.Regarding.Name == "web"
		}) {
			return fmt.Errorf("%d events, none of the import", len(list.Items))
		}
		return nil
	})
}

// restricted: of a static group, the API server itself refuses what cannot be changed.
func (l *live) restricted() {
	for _, change := range []struct {
		obj, patch string
	}{{"pool", `{"spec":{"template":"other"}}`}, {"pool", `{"spec":{"subnetPool":"other"}}`},
		{"group", `{"spec":{"template":"other"}}`}} {
		var obj client.Object = &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace,
			Name: "web"}}
		if change.obj == "group" {
			obj = &v1beta1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "web--a"}}
		}
		err := l.client.Patch(l.t.Context(), obj, client.RawPatch("application/merge-patch+json", []byte(change.patch)))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "static") {
			l.t.Errorf("%s %s: %v", change.obj, change.patch, err)
		}
	}
}

// quiet: fn changes nothing, so nothing is written and no shard is called, but for another pool that is made
// afterwards, by which we know that the controllers have seen it.
func (l *live) quiet(fn func()) {
	l.t.Helper()
	l.done()
	fn()
	probe := fmt.Sprintf("probe-%d", time.Now().UnixNano()%1_000_000)
	pool := &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: probe},
		Spec: v1beta1.NstanceMachinePoolSpec{Group: probe, Shards: []string{"a", "b"}, Template: "worker"}}
	mp := importedMachinePool(importInput{namespace: testNamespace, cluster: testCluster}, pool, nil)
	mp.Spec.Replicas = ptr.To(int32(2))
	for _, obj := range []client.Object{pool, mp} {
		if err := l.client.Create(l.t.Context(), obj); err != nil {
			l.t.Fatal(err)
		}
	}
	l.ready(probe, 2)
	writes, calls := l.done()
	ids := map[string]bool{}
	for _, id := range l.shards.IDs() {
		for _, i := range l.shards.Of(id).Instances(probe) {
			ids[i.GetInstanceId()] = true
		}
	}
	writes = slices.DeleteFunc(writes, func(w string) bool {
		return strings.Contains(w, "/"+probe) || strings.HasSuffix(w, "/nstanceshardgroups") ||
			strings.HasSuffix(w, "/nstancemachines")
	})
	if len(writes) > 0 || len(calls) != 2 {
		l.t.Errorf("nothing has changed, but %v and %v", writes, calls)
	}
	// It is not to be in the way of the next one.
	for _, obj := range []client.Object{mp, pool} {
		if err := l.client.Delete(l.t.Context(), obj); err != nil {
			l.t.Fatal(err)
		}
	}
	l.await("the other pool is gone", func() error {
		if err := l.get(probe, &v1beta1.NstanceMachinePool{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
}

// fast: from kubectl scale to the call of a shard there are two steps and no waiting.
func (l *live) fast() {
	l.t.Helper()
	var took []time.Duration
	for i := range int32(15) {
		select {
		case <-l.upsert:
		default:
		}
		began := time.Now()
		l.scale("web", 10+i%3)
		select {
		case at := <-l.upsert:
			took = append(took, at.Sub(began))
		case <-time.After(30 * time.Second):
			l.t.Fatal("no call")
		}
		l.ready("web", 10+i%3)
	}
	slices.Sort(took)
	l.t.Logf("from scale to call: p50 %s, p90 %s, most %s", took[len(took)/2], took[len(took)*9/10], took[len(took)-1])
	// A machine that has other things to do takes longer; a queue that waits takes seconds.
	if took[len(took)/2] > 2*time.Second {
		l.t.Errorf("p50 %s", took[len(took)/2])
	}
	l.scale("web", 5)
	l.ready("web", 5)
}

// independent: a shard that does not answer, and does not say so, keeps no other from its share.
func (l *live) independent() {
	l.t.Helper()
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	defer release()
	l.mu.Lock()
	l.held = held
	l.mu.Unlock()
	l.scale("web", 8)
	l.await("the share of the other shard", func() error {
		if g, _ := l.shards.Of("a").Group("web"); g.GetSize() != 4 {
			return fmt.Errorf("%d", g.GetSize())
		}
		return nil
	})
	release()
	l.ready("web", 8)
	l.scale("web", 5)
	l.ready("web", 5)
}
