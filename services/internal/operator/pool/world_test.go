package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
)

const (
	testNamespace = "nstance-system"
	testCluster   = "c--t"
)

// world is all reconcilers of the package, a Kubernetes in memory and shards in memory. Nothing happens but by pass and
// settle.
type world struct {
	t       testing.TB
	client  client.Client // not counted
	shards  *shardstest.Set
	now     time.Time
	random  *rand.Rand
	reports *recorder

	importer *importer
	pools    *pools
	groups   *groups
	machines *machines

	mu      sync.Mutex
	writes  []string
	calls   []string
	objects int
	// onWrite may make a write fail, before it happens.
	onWrite func(what string) error
}

func newScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, eventsv1.AddToScheme, clusterv1.AddToScheme,
		v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

func newWorld(t testing.TB, ids ...string) *world {
	t.Helper()
	w := &world{t: t, shards: shardstest.New(), now: shardstest.Start, random: rand.New(rand.NewPCG(1, 1)),
		reports: &recorder{}}
	inner := fake.NewClientBuilder().WithScheme(newScheme(t)).
		WithStatusSubresource(&v1beta1.NstanceMachinePool{}, &v1beta1.NstanceShardGroup{}, &v1beta1.NstanceMachine{},
			&clusterv1.MachinePool{}, &clusterv1.Cluster{}).Build()
	w.client = inner
	o := Options{Reader: inner, Recorder: w.reports, Shards: w.shards, Namespace: testNamespace, Cluster: "c",
		Tenant: "t", Now: func() time.Time {
			return w.now
		},
		Log: slog.New(slog.DiscardHandler)}
	o.Client = interceptor.NewClient(inner, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if err := w.wrote("create", obj); err != nil {
				return err
			}
			w.born(obj)
			return c.Create(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if err := w.wrote("delete", obj); err != nil {
				return err
			}
			return c.Delete(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch,
			opts ...client.PatchOption) error {
			if err := w.wrote("patch", obj); err != nil {
				return err
			}
			before := spec(t, inner, obj)
			if err := c.Patch(ctx, obj, patch, opts...); err != nil {
				return err
			}
			return bump(t, inner, obj, before)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch,
			opts ...client.SubResourcePatchOption) error {
			if err := w.wrote("status", obj); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
		},
	})
	w.importer, w.pools, w.groups, w.machines = newImporter(o), newPools(o), newGroups(o), newMachines(o)
	for _, id := range ids {
		w.addShard(id)
	}
	return w
}

// addShard adds a shard whose calls are counted, those that change nothing too.
func (w *world) addShard(id string) *shardstest.Shard {
	shard := w.shards.Add(id)
	shard.Fail(w.counted(id, nil))
	return shard
}

func (w *world) counted(id string, fail func(method string) error) func(string) error {
	return func(method string) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.calls = append(w.calls, method+" "+id)
		if fail != nil {
			return fail(method)
		}
		return nil
	}
}

func (w *world) wrote(verb string, obj client.Object) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	kind := strings.TrimPrefix(strings.TrimPrefix(fmt.Sprintf("%T", obj), "*v1beta1."), "*v1beta2.")
	what := verb + " " + kind + " " + obj.GetName()
	if w.onWrite != nil {
		if err := w.onWrite(what); err != nil {
			return err
		}
	}
	w.writes = append(w.writes, what)
	return nil
}

// done returns what was written and called since it was asked last.
func (w *world) done() (writes, calls []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	writes, calls, w.writes, w.calls = w.writes, w.calls, nil, nil
	return writes, calls
}

// born gives an object what the API server does and the fake client does not.
func (w *world) born(obj client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.objects++
	obj.SetGeneration(1)
	obj.SetUID(types.UID(fmt.Sprint("uid-", w.objects)))
}

// spec is an object's spec as it is stored.
func spec(t testing.TB, c client.Client, obj client.Object) string {
	stored := obj.DeepCopyObject().(client.Object)
	if err := c.Get(context.Background(), client.ObjectKeyFromObject(obj), stored); err != nil {
		return ""
	}
	return specOf(t, stored)
}

func specOf(t testing.TB, obj client.Object) string {
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		t.Fatal(err)
	}
	return string(parts["spec"])
}

// bump counts generations, as the API server does and the fake client does not.
func bump(t testing.TB, c client.Client, obj client.Object, before string) error {
	stored := obj.DeepCopyObject().(client.Object)
	if err := c.Get(context.Background(), client.ObjectKeyFromObject(obj), stored); err != nil {
		return client.IgnoreNotFound(err)
	}
	if specOf(t, stored) == before {
		return nil
	}
	stored.SetGeneration(stored.GetGeneration() + 1)
	if err := c.Update(context.Background(), stored); err != nil {
		return err
	}
	obj.SetGeneration(stored.GetGeneration())
	obj.SetResourceVersion(stored.GetResourceVersion())
	return nil
}

// change edits an object as a user does.
func (w *world) change(obj client.Object, edit func()) {
	w.t.Helper()
	before := specOf(w.t, obj)
	edit()
	if specOf(w.t, obj) != before {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
	if err := w.client.Update(w.t.Context(), obj); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) pool(name string) *v1beta1.NstanceMachinePool {
	w.t.Helper()
	pool := &v1beta1.NstanceMachinePool{}
	w.must(name, pool)
	return pool
}

func (w *world) group(name string) *v1beta1.NstanceShardGroup {
	w.t.Helper()
	group := &v1beta1.NstanceShardGroup{}
	w.must(name, group)
	return group
}

func (w *world) machinePool(name string) *clusterv1.MachinePool {
	w.t.Helper()
	mp := &clusterv1.MachinePool{}
	w.must(name, mp)
	return mp
}

func (w *world) must(name string, obj client.Object) {
	w.t.Helper()
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: testNamespace, Name: name}, obj); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exists(name string, obj client.Object) bool {
	w.t.Helper()
	err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: testNamespace, Name: name}, obj)
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	return err == nil
}

func (w *world) create(obj client.Object) {
	w.t.Helper()
	obj.SetNamespace(testNamespace)
	w.born(obj)
	if err := w.client.Create(w.t.Context(), obj); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) scale(name string, replicas int32) {
	w.t.Helper()
	mp := w.machinePool(name)
	w.change(mp, func() { mp.Spec.Replicas = ptr.To(replicas) })
}

// newPool makes a pool with its MachinePool, as a user does.
func (w *world) newPool(name string, replicas int32, spec v1beta1.NstanceMachinePoolSpec) {
	w.t.Helper()
	if spec.Template == "" {
		spec.Template = "worker"
	}
	w.create(&v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
	w.newMachinePool(name, replicas)
}

func (w *world) newMachinePool(name string, replicas int32) {
	w.t.Helper()
	mp := importedMachinePool(importInput{namespace: testNamespace, cluster: testCluster},
		&v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil)
	mp.Labels, mp.Spec.Replicas = nil, ptr.To(replicas)
	w.create(mp)
}

// deletePool deletes a MachinePool as Cluster API does: first its infrastructure.
func (w *world) deletePool(name string) {
	w.t.Helper()
	for _, obj := range []client.Object{w.pool(name), w.machinePool(name)} {
		if err := w.client.Delete(w.t.Context(), obj); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) allPools() []v1beta1.NstanceMachinePool {
	w.t.Helper()
	list := &v1beta1.NstanceMachinePoolList{}
	if err := w.client.List(w.t.Context(), list); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

func (w *world) allGroups() []v1beta1.NstanceShardGroup {
	w.t.Helper()
	list := &v1beta1.NstanceShardGroupList{}
	if err := w.client.List(w.t.Context(), list); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

func (w *world) allMachines() []v1beta1.NstanceMachine {
	w.t.Helper()
	list := &v1beta1.NstanceMachineList{}
	if err := w.client.List(w.t.Context(), list); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// pass reconciles everything once, in any order, and returns errors.
func (w *world) pass() (errs []error) {
	w.t.Helper()
	type step struct {
		by   reconcile.Reconciler
		name string
	}
	steps := []step{{w.importer, "import"}}
	for _, p := range w.allPools() {
		steps = append(steps, step{w.pools, p.Name})
	}
	for _, g := range w.allGroups() {
		steps = append(steps, step{w.groups, g.Name}, step{w.machines, g.Name})
	}
	w.random.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, s := range steps {
		if _, err := s.by.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{
			Namespace: testNamespace, Name: s.name}}); err != nil {
			if !apierrors.IsConflict(err) {
				errs = append(errs, fmt.Errorf("%T %s: %w", s.by, s.name, err))
			}
		}
	}
	return errs
}

// settle passes until nothing happens any more: no write, no call. It returns the writes and calls there were.
func (w *world) settle() (writes, calls []string) {
	w.t.Helper()
	w.done()
	for range 40 {
		w.now = w.now.Add(3 * time.Second)
		errs := w.pass()
		now, called := w.done()
		if len(now) == 0 && len(called) == 0 {
			if len(errs) > 0 {
				w.t.Fatal(errs)
			}
			return writes, calls
		}
		writes, calls = append(writes, now...), append(calls, called...)
	}
	w.t.Fatalf("it does not come to rest: %v %v", writes[max(0, len(writes)-20):], calls[max(0, len(calls)-20):])
	return nil, nil
}

// sizes are what the shards' servers want of a group.
func (w *world) sizes(group string) map[string]uint32 {
	sizes := map[string]uint32{}
	for _, id := range w.shards.IDs() {
		if g, ok := w.shards.Of(id).Group(group); ok {
			sizes[id] = g.GetSize()
		}
	}
	return sizes
}

func condition(conditions []metav1.Condition, kind string) string {
	for _, c := range conditions {
		if c.Type == kind {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

// recorder keeps events.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Eventf(about, _ runtime.Object, kind, reason, _, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := about.(client.Object).GetName()
	r.events = append(r.events, strings.Join([]string{name, kind, reason, fmt.Sprintf(note, args...)}, " "))
}

// take returns the events since it was asked last.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

func has(list []string, words ...string) bool {
	return slices.ContainsFunc(list, func(text string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
	})
}

func static(name string, size uint32) *nstancev1.GroupStatus {
	return &nstancev1.GroupStatus{Group: name, IsStatic: true, Template: "worker", Size: size, InstanceType: "m5.large"}
}
