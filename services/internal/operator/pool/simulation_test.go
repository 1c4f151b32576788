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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
)

const (
	testNamespace = "nstance-system"
	testCluster   = "c--t"
)

// simulatedOperator contains the package's reconcilers, a Kubernetes API and shards, all in memory. The reconcilers run
// only during calls of reconcileAll and settle.
type simulatedOperator struct {
	t      testing.TB
	client client.Client // its writes are not recorded
	shards *shardstest.Set
	now    time.Time
	random *rand.Rand
	events *eventRecorder

	importer *importer
	pools    *poolReconciler
	groups   *groupReconciler
	machines *machineReconciler

	mu      sync.Mutex
	writes  []string
	calls   []string
	objects int
	marks   int
	// onWrite is called before each write. If it returns an error, the write fails.
	onWrite func(what string) error
	// definitionEnds: the definition of shard groups is being deleted, so that the API server creates none.
	definitionEnds bool
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

func newSimulatedOperator(t testing.TB, ids ...string) *simulatedOperator {
	t.Helper()
	op := &simulatedOperator{t: t, shards: shardstest.New(), now: shardstest.Start, random: rand.New(rand.NewPCG(1, 1)),
		events: &eventRecorder{}}
	inner := fake.NewClientBuilder().WithScheme(newScheme(t)).
		WithStatusSubresource(&v1beta1.NstanceMachinePool{}, &v1beta1.NstanceShardGroup{}, &v1beta1.NstanceMachine{},
			&clusterv1.MachinePool{}, &clusterv1.Cluster{}).
		WithObjects(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace,
			Name: testCluster}}).Build()
	op.client = inner
	o := scope.Scope{Reader: inner, Recorder: op.events, Shards: op.shards, Namespace: testNamespace, Cluster: "c",
		Tenant: "t", Now: func() time.Time {
			return op.now
		},
		Log: slog.New(slog.DiscardHandler)}
	o.Client = interceptor.NewClient(inner, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if _, ok := obj.(*v1beta1.NstanceShardGroup); ok && op.definitionEnds {
				return apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "nstanceshardgroups"}, "create")
			}
			if len((&client.CreateOptions{}).ApplyOptions(opts).DryRun) > 0 {
				return c.Create(ctx, obj, opts...)
			}
			if err := op.recordWrite("create", obj); err != nil {
				return err
			}
			op.initializeObject(obj)
			return c.Create(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if err := op.recordWrite("delete", obj); err != nil {
				return err
			}
			return c.Delete(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch,
			opts ...client.PatchOption) error {
			if err := op.recordWrite("patch", obj); err != nil {
				return err
			}
			before := storedSpec(t, inner, obj)
			if err := c.Patch(ctx, obj, patch, opts...); err != nil {
				return err
			}
			return updateGeneration(t, inner, obj, before)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch,
			opts ...client.SubResourcePatchOption) error {
			if err := op.recordWrite("status", obj); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
		},
	})
	op.importer, op.pools, op.groups, op.machines = newImporter(pools{o}), &poolReconciler{pools{o}},
		newGroupReconciler(pools{o}),
		&machineReconciler{pools{o}}
	for _, id := range ids {
		op.addShard(id)
	}
	return op
}

func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// addShard adds a shard and records its calls.
func (op *simulatedOperator) addShard(id string) *shardstest.Shard {
	shard := op.shards.Add(id)
	shard.Fail(op.recordCalls(id, nil))
	return shard
}

// recordCalls returns a hook that records each call to a shard. If fail returns an error, the call fails.
func (op *simulatedOperator) recordCalls(id string, fail func(method string) error) func(string) error {
	return func(method string) error {
		op.mu.Lock()
		defer op.mu.Unlock()
		op.calls = append(op.calls, method+" "+id)
		if fail != nil {
			return fail(method)
		}
		return nil
	}
}

func (op *simulatedOperator) recordWrite(verb string, obj client.Object) error {
	op.mu.Lock()
	defer op.mu.Unlock()
	kind := strings.TrimPrefix(strings.TrimPrefix(fmt.Sprintf("%T", obj), "*v1beta1."), "*v1beta2.")
	what := verb + " " + kind + " " + obj.GetName()
	if op.onWrite != nil {
		if err := op.onWrite(what); err != nil {
			return err
		}
	}
	op.writes = append(op.writes, what)
	return nil
}

// takeRecorded returns the writes and calls since the previous call of takeRecorded.
func (op *simulatedOperator) takeRecorded() (writes, calls []string) {
	op.mu.Lock()
	defer op.mu.Unlock()
	writes, calls, op.writes, op.calls = op.writes, op.calls, nil, nil
	return writes, calls
}

// initializeObject sets the generation and UID of a new object, because the fake client does not set them.
func (op *simulatedOperator) initializeObject(obj client.Object) {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.objects++
	obj.SetGeneration(1)
	obj.SetUID(types.UID(fmt.Sprint("uid-", op.objects)))
}

// storedSpec returns the stored spec of an object as JSON.
func storedSpec(t testing.TB, c client.Client, obj client.Object) string {
	stored := obj.DeepCopyObject().(client.Object)
	if err := c.Get(context.Background(), client.ObjectKeyFromObject(obj), stored); err != nil {
		return ""
	}
	return specJSON(t, stored)
}

func specJSON(t testing.TB, obj client.Object) string {
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

// updateGeneration increases the generation of an object if its spec has changed, because the fake client does not do
// so.
func updateGeneration(t testing.TB, c client.Client, obj client.Object, before string) error {
	stored := obj.DeepCopyObject().(client.Object)
	if err := c.Get(context.Background(), client.ObjectKeyFromObject(obj), stored); err != nil {
		return client.IgnoreNotFound(err)
	}
	if specJSON(t, stored) == before {
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

// change edits an object as a user would.
func (op *simulatedOperator) change(obj client.Object, edit func()) {
	op.t.Helper()
	before := specJSON(op.t, obj)
	edit()
	if specJSON(op.t, obj) != before {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
	if err := op.client.Update(op.t.Context(), obj); err != nil {
		op.t.Fatal(err)
	}
}

func (op *simulatedOperator) pool(name string) *v1beta1.NstanceMachinePool {
	op.t.Helper()
	pool := &v1beta1.NstanceMachinePool{}
	op.mustGet(name, pool)
	return pool
}

func (op *simulatedOperator) group(name string) *v1beta1.NstanceShardGroup {
	op.t.Helper()
	group := &v1beta1.NstanceShardGroup{}
	op.mustGet(name, group)
	return group
}

func (op *simulatedOperator) machinePool(name string) *clusterv1.MachinePool {
	op.t.Helper()
	mp := &clusterv1.MachinePool{}
	op.mustGet(name, mp)
	return mp
}

func (op *simulatedOperator) mustGet(name string, obj client.Object) {
	op.t.Helper()
	if err := op.client.Get(op.t.Context(), client.ObjectKey{Namespace: testNamespace, Name: name}, obj); err != nil {
		op.t.Fatal(err)
	}
}

func (op *simulatedOperator) exists(name string, obj client.Object) bool {
	op.t.Helper()
	err := op.client.Get(op.t.Context(), client.ObjectKey{Namespace: testNamespace, Name: name}, obj)
	if client.IgnoreNotFound(err) != nil {
		op.t.Fatal(err)
	}
	return err == nil
}

func (op *simulatedOperator) create(obj client.Object) {
	op.t.Helper()
	obj.SetNamespace(testNamespace)
	op.initializeObject(obj)
	if err := op.client.Create(op.t.Context(), obj); err != nil {
		op.t.Fatal(err)
	}
}

func (op *simulatedOperator) scale(name string, replicas int32) {
	op.t.Helper()
	mp := op.machinePool(name)
	op.change(mp, func() { mp.Spec.Replicas = ptr.To(replicas) })
}

// newPool creates a pool and its MachinePool as a user would.
func (op *simulatedOperator) newPool(name string, replicas int32, spec v1beta1.NstanceMachinePoolSpec) {
	op.t.Helper()
	if spec.Config == nil {
		spec.Config = fromWorker()
	}
	op.create(&v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
	op.newMachinePool(name, replicas)
}

func (op *simulatedOperator) newMachinePool(name string, replicas int32) {
	op.t.Helper()
	mp := importedMachinePool(importInput{namespace: testNamespace, cluster: testCluster},
		&v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil)
	mp.Labels, mp.Spec.Replicas = nil, ptr.To(replicas)
	op.create(mp)
}

// deletePool deletes a MachinePool in the same order as Cluster API: first the NstanceMachinePool, then the
// MachinePool.
func (op *simulatedOperator) deletePool(name string) {
	op.t.Helper()
	for _, obj := range []client.Object{op.pool(name), op.machinePool(name)} {
		if err := op.client.Delete(op.t.Context(), obj); err != nil {
			op.t.Fatal(err)
		}
	}
}

func (op *simulatedOperator) allPools() []v1beta1.NstanceMachinePool {
	op.t.Helper()
	list := &v1beta1.NstanceMachinePoolList{}
	if err := op.client.List(op.t.Context(), list); err != nil {
		op.t.Fatal(err)
	}
	return list.Items
}

func (op *simulatedOperator) allGroups() []v1beta1.NstanceShardGroup {
	op.t.Helper()
	list := &v1beta1.NstanceShardGroupList{}
	if err := op.client.List(op.t.Context(), list); err != nil {
		op.t.Fatal(err)
	}
	return list.Items
}

func (op *simulatedOperator) allMachines() []v1beta1.NstanceMachine {
	op.t.Helper()
	list := &v1beta1.NstanceMachineList{}
	if err := op.client.List(op.t.Context(), list); err != nil {
		op.t.Fatal(err)
	}
	return list.Items
}

// reconcileAll reconciles everything once, in random order. It returns the errors except conflicts.
func (op *simulatedOperator) reconcileAll() (errs []error) {
	op.t.Helper()
	type step struct {
		by   reconcile.Reconciler
		name string
	}
	steps := []step{{op.importer, "import"}}
	for _, p := range op.allPools() {
		steps = append(steps, step{op.pools, p.Name})
	}
	for _, g := range op.allGroups() {
		steps = append(steps, step{op.groups, g.Name}, step{op.machines, g.Name})
	}
	op.random.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, s := range steps {
		if _, err := s.by.Reconcile(op.t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{
			Namespace: testNamespace, Name: s.name}}); err != nil {
			if !apierrors.IsConflict(err) {
				errs = append(errs, fmt.Errorf("%T %s: %w", s.by, s.name, err))
			}
		}
	}
	return errs
}

// settle calls reconcileAll until there is no write and no call. It returns all writes and calls.
func (op *simulatedOperator) settle() (writes, calls []string) {
	op.t.Helper()
	op.takeRecorded()
	for range 40 {
		op.now = op.now.Add(3 * time.Second)
		errs := op.reconcileAll()
		now, called := op.takeRecorded()
		if len(now) == 0 && len(called) == 0 {
			if len(errs) > 0 {
				op.t.Fatal(errs)
			}
			return writes, calls
		}
		writes, calls = append(writes, now...), append(calls, called...)
	}
	op.t.Fatalf("the reconcilers do not converge; the last writes and calls: %v %v", writes[max(0, len(writes)-20):],
		calls[max(0, len(calls)-20):])
	return nil, nil
}

// sizes returns the wanted size of a group on each shard.
func (op *simulatedOperator) sizes(group string) map[string]uint32 {
	sizes := map[string]uint32{}
	for _, one := range op.shards.All() {
		id := one.ID()
		if g, ok := op.shards.Of(id).Group(group); ok {
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

// eventRecorder records events in memory.
type eventRecorder struct {
	mu     sync.Mutex
	events []string
}

func (r *eventRecorder) Eventf(about, _ runtime.Object, kind, reason, _, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := about.(client.Object).GetName()
	r.events = append(r.events, strings.Join([]string{name, kind, reason, fmt.Sprintf(note, args...)}, " "))
}

// take returns the events since the previous call of take.
func (r *eventRecorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// containsAll reports whether at least one text of the list contains all the words.
func containsAll(list []string, parts ...string) bool {
	return slices.ContainsFunc(list, func(text string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
	})
}

// staticGroup returns a static group with all its instances.
func staticGroup(name string, size uint32) *nstancev1.GroupStatus {
	return &nstancev1.GroupStatus{Group: name, IsStatic: true, Size: size,
		MergedJson: `{"template":"worker","instance_type":"m5.large"}`}
}
