package ondemand

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
)

const namespace = "nstance-system"

type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%s: %s %s %s", regarding.(client.Object).GetName(), kind, reason,
		fmt.Sprintf(note, args...)))
}

func (r *recorder) take() []string {
	out := r.events
	r.events = nil
	return out
}

var errCrash = errors.New("crash")

// clusterOf contains a reconciler that can be restarted, and the pods, machines and fake servers for it.
type clusterOf struct {
	*testing.T
	client  client.Client
	shards  *shardstest.Set
	rec     *reconciler
	events  recorder
	mu      sync.Mutex // guards the fields below
	writes  int
	crashIn int
}

func newCluster(t *testing.T) *clusterOf {
	c := &clusterOf{T: t, shards: shardstest.New("a", "b")}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1beta1.AddToScheme(scheme),
		clusterv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c.client = fake.NewClientBuilder().WithScheme(scheme).
		WithIndex(&corev1.Pod{}, requestingPods, indexRequestingPod).WithIndex(&corev1.Pod{}, podsByUID, indexPodUID).
		WithIndex(&corev1.Node{}, scope.NodeByProviderID.Field, scope.NodeByProviderID.Values).
		WithIndex(&clusterv1.Machine{}, onDemandObjects, indexOnDemand).WithIndex(&v1beta1.NstanceMachine{},
		onDemandObjects,
		indexOnDemand).
		WithObjects(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: clusterName}}).
		WithObjects(&v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gpu",
			UID: "pool"}, Spec: v1beta1.NstanceMachinePoolSpec{Group: "gpu"}}).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, k client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				return c.write(func() error {
					o.SetUID(types.UID(fmt.Sprintf("uid-%s-%d", o.GetName(), c.writes)))
					return k.Create(ctx, o, opts...)
				})
			},
			Delete: func(ctx context.Context, k client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
				return c.write(func() error { return k.Delete(ctx, o, opts...) })
			},
			Patch: func(ctx context.Context, k client.WithWatch, o client.Object, p client.Patch,
				opts ...client.PatchOption) error {
				return c.write(func() error { return k.Patch(ctx, o, p, opts...) })
			},
		}).Build()
	c.shards.Of("a").SetGroup(&nstancev1.GroupStatus{Group: "gpu"})
	c.restart()
	return c
}

// write calls the function do. The call of write at which the operator must crash still calls do, but returns errCrash.
// All later calls return errCrash without calling do. Several goroutines call write.
func (c *clusterOf) write(do func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.crashIn < 0 {
		return errCrash
	}
	err := do()
	c.writes++
	if c.crashIn > 0 {
		if c.crashIn--; c.crashIn == 0 {
			c.crashIn = -1
			return errCrash
		}
	}
	return err
}

func (c *clusterOf) restart() {
	c.crashIn = 0
	o := scope.Scope{Client: c.client, Shards: c.shards, Namespace: namespace, Cluster: "prod", Tenant: "default",
		Log: slog.New(slog.DiscardHandler)}
	c.rec = &reconciler{Scope: o, pods: c.client, apiReader: c.client, recorder: &c.events,
		warned: map[types.UID]string{}}
}

func (c *clusterOf) sweep() {
	c.Helper()
	if _, err := c.rec.Reconcile(c.Context(), sweep); err != nil {
		if c.crashIn >= 0 {
			c.Fatal(err)
		}
		c.restart()
	}
}

// pod creates a pod. The test's own writes never cause a planned crash.
func (c *clusterOf) pod(name string, uid types.UID, group string) *corev1.Pod {
	c.Helper()
	was := c.crashIn
	c.crashIn = 0
	defer func() { c.crashIn = was }()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name,
		Annotations: map[string]string{v1beta1.OnDemandGroupAnnotation: group}},
		Status: corev1.PodStatus{Phase: corev1.PodPending}}
	if err := c.client.Create(c.Context(), pod); err != nil {
		c.Fatal(err)
	}
	// The interceptor of the fake client has set another UID. Restore the given one.
	pod.UID = uid
	if err := c.client.Update(c.Context(), pod); err != nil {
		c.Fatal(err)
	}
	return pod
}

func (c *clusterOf) drop(o client.Object) {
	c.Helper()
	was := c.crashIn
	c.crashIn = 0
	defer func() { c.crashIn = was }()
	if err := client.IgnoreNotFound(c.client.Delete(c.Context(), o)); err != nil {
		c.Fatal(err)
	}
}

// state lists Machines and NstanceMachines by the UIDs of their pods. It fails if a pod has two Machines or two
// NstanceMachines.
func (c *clusterOf) state() (machines, infra map[string]bool) {
	c.Helper()
	machines, infra = map[string]bool{}, map[string]bool{}
	var ms clusterv1.MachineList
	var is v1beta1.NstanceMachineList
	if err := errors.Join(c.client.List(c.Context(), &ms), c.client.List(c.Context(), &is)); err != nil {
		c.Fatal(err)
	}
	uids := map[string]types.UID{}
	for _, m := range ms.Items {
		uid := m.Labels[v1beta1.PodUIDLabel]
		if machines[uid] {
			c.Fatalf("pod %s has two machines", uid)
		}
		machines[uid] = true
		uids[m.Name] = m.UID
	}
	for _, i := range is.Items {
		uid := i.Labels[v1beta1.PodUIDLabel]
		if infra[uid] {
			c.Fatalf("pod %s has two NstanceMachines", uid)
		}
		infra[uid] = true
		if ref := metav1.GetControllerOf(&i); ref == nil || uids[i.Name] != "" && ref.UID != uids[i.Name] {
			c.Fatalf("NstanceMachine %s belongs to %+v, not to Machine %s", i.Name, ref, uids[i.Name])
		}
	}
	return machines, infra
}

// collect does the work of the garbage collector and of package machine: it deletes each NstanceMachine whose Machine
// no longer exists.
func (c *clusterOf) collect() {
	c.Helper()
	machines, infra := c.state()
	for uid := range infra {
		if !machines[uid] {
			c.drop(&v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
				Name: machineName("gpu", types.UID(uid))}})
		}
	}
}

func TestPodGetsAMachine(t *testing.T) {
	c := newCluster(t)
	pod := c.pod("one", "1", "gpu")
	c.sweep()
	if m, i := c.state(); !m["1"] || !i["1"] {
		t.Fatalf("machines %v, %v", m, i)
	}
	if events := c.events.take(); !slices.Equal(events, []string{"one: Normal Created Machine " +
		machineName("gpu", "1") + " created for this pod"}) {
		t.Errorf("events %q", events)
	}
	writes := c.writes
	c.restart()
	c.sweep()
	c.sweep()
	if c.writes != writes {
		t.Errorf("%d writes in a converged cluster", c.writes-writes)
	}

	// A pod with the same name and another UID is another pod.
	c.drop(pod)
	c.pod("one", "2", "gpu")
	c.sweep()
	c.collect()
	if m, i := c.state(); m["1"] || !m["2"] || i["1"] || !i["2"] {
		t.Errorf("machines %v, %v", m, i)
	}
}

func TestFinishedPod(t *testing.T) {
	c := newCluster(t)
	pod := c.pod("one", "1", "gpu")
	c.sweep()
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		t.Fatal(err)
	}
	for phase, keeps := range map[corev1.PodPhase]bool{corev1.PodRunning: true, corev1.PodUnknown: true} {
		pod.Status.Phase = phase
		if err := c.client.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		c.sweep()
		if m, _ := c.state(); m["1"] != keeps {
			t.Errorf("%s: machine %v", phase, m)
		}
	}
	pod.Status.Phase = corev1.PodSucceeded
	if err := c.client.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	c.sweep()
	if m, _ := c.state(); m["1"] {
		t.Error("the machine of a finished pod stays")
	}
}

// TestMachineBelongsToItsPod checks the labels and the taint of a machine's Node, and the toleration of its pod. It
// then binds the pod to a Node and checks whether the machine stays.
func TestMachineBelongsToItsPod(t *testing.T) {
	for _, boundTo := range []string{"own", "other", "unnamed"} {
		c := newCluster(t)
		pod := c.pod("one", "1", "gpu")
		c.sweep()
		key := client.ObjectKey{Namespace: namespace, Name: machineName("gpu", "1")}
		infra := &v1beta1.NstanceMachine{}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(c.client.Get(t.Context(), key, infra))
		infra.Spec.ProviderID = "test:///own"
		must(c.client.Update(t.Context(), infra))
		c.rec.apiReader = c.client
		for _, node := range []string{"own", "other", "unnamed"} {
			id := "test:///" + node
			if node == "unnamed" {
				id = ""
			}
			must(c.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node,
				Labels: map[string]string{"a": "b"}},
				Spec: corev1.NodeSpec{ProviderID: id, Taints: []corev1.Taint{{Key: "k", Effect: "NoSchedule"}}}}))
		}
		c.sweep()
		writes := c.writes
		c.sweep()
		if c.writes != writes {
			t.Errorf("%d writes in a converged cluster", c.writes-writes)
		}
		own, other := &corev1.Node{}, &corev1.Node{}
		must(c.client.Get(t.Context(), client.ObjectKey{Name: "own"}, own))
		must(c.client.Get(t.Context(), client.ObjectKey{Name: "other"}, other))
		if own.Labels[v1beta1.OnDemandGroupNodeLabel] != "gpu" || own.Labels[v1beta1.OnDemandPodNodeLabel] != "1" ||
			own.Labels["a"] != "b" || len(own.Spec.Taints) != 2 || own.Spec.Taints[0].Key != "k" ||
			own.Spec.Taints[1] != (corev1.Taint{Key: v1beta1.OnDemandPodNodeLabel, Value: "1", Effect: "NoSchedule"}) {
			t.Errorf("the machine's Node: labels %v, taints %v", own.Labels, own.Spec.Taints)
		}
		if len(other.Labels) != 1 || len(other.Spec.Taints) != 1 {
			t.Errorf("another Node: labels %v, taints %v", other.Labels, other.Spec.Taints)
		}
		must(c.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
		if len(pod.Spec.Tolerations) != 1 || pod.Spec.Tolerations[0] != toleration("1") {
			t.Errorf("tolerations %v", pod.Spec.Tolerations)
		}
		pod.Spec.NodeName = boundTo
		must(c.client.Update(t.Context(), pod))
		c.sweep()
		// Only a pod on the Node "other" does not need its machine any more. The Node "unnamed" has no provider ID, so
		// it may belong to the machine.
		if m, _ := c.state(); m["1"] != (boundTo != "other") {
			t.Errorf("the pod runs on %s, its machine exists: %t", boundTo, m["1"])
		}
	}
}

func TestWarnsOnce(t *testing.T) {
	c := newCluster(t)
	c.pod("one", "1", "cpu")
	for range 3 {
		c.sweep()
	}
	if events := c.events.take(); len(events) != 1 || !strings.Contains(events[0],
		"one: Warning Refused no machine created for this pod: no shard has a group cpu") {
		t.Errorf("events %q", events)
	}
	if n := len(c.rec.requestsForChange(shards.Change{Kind: shards.GroupChanged})); n != 1 {
		t.Errorf("%d requests when a group changes", n)
	}
}

// TestPodMissingFromTheCacheKeepsItsMachine checks that a pod that is missing only from the cache keeps its machine.
func TestPodMissingFromTheCacheKeepsItsMachine(t *testing.T) {
	c := newCluster(t)
	pod := c.pod("one", "1", "gpu")
	c.sweep()
	empty := newCluster(t)
	c.rec.pods = empty.client
	c.sweep()
	if m, _ := c.state(); !m["1"] {
		t.Fatal("deleted")
	}
	c.drop(pod)
	c.sweep()
	if m, _ := c.state(); m["1"] {
		t.Error("not deleted")
	}
}

// strict rejects invalid object keys, as a real client does before it sends a request.
type strict struct{ client.Reader }

func (s strict) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if key.Name == "" || strings.Contains(key.Namespace+key.Name, "/") {
		return fmt.Errorf("invalid resource name %q", key.Name)
	}
	return s.Reader.Get(ctx, key, o, opts...)
}

// TestDamagedAnnotation checks that a machine with a damaged annotation is deleted when its pod is deleted.
func TestDamagedAnnotation(t *testing.T) {
	for _, text := range []string{"apps/", "apps/a/b", "/one", ""} {
		c := newCluster(t)
		c.rec.apiReader = strict{c.client}
		pod := c.pod("one", "1", "gpu")
		c.sweep()
		m := &clusterv1.Machine{}
		if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: machineName("gpu", "1")},
			m); err != nil {
			t.Fatal(err)
		}
		m.Annotations[v1beta1.PodAnnotation] = text
		if err := c.client.Update(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		c.drop(pod)
		c.sweep()
		if m, _ := c.state(); m["1"] {
			t.Errorf("annotation %q: the machine stays", text)
		}
	}
}

func TestPausedCluster(t *testing.T) {
	c := newCluster(t)
	yes := true
	cluster := &clusterv1.Cluster{}
	if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: clusterName},
		cluster); err != nil {
		t.Fatal(err)
	}
	cluster.Spec.Paused = &yes
	if err := c.client.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	c.pod("one", "1", "gpu")
	c.sweep()
	if m, _ := c.state(); m["1"] {
		t.Error("a machine is made while the Cluster is paused")
	}
}

// TestRandomHistories runs random histories: pods are created, deleted and re-created under the same name, machines are
// deleted, and the operator crashes after random writes. At the end each live pod has one machine, and no other machine
// exists. No pod ever has two machines.
func TestRandomHistories(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		c := newCluster(t)
		r := rand.New(rand.NewPCG(seed, 2))
		live := map[string]*corev1.Pod{}
		for n := range 60 {
			name := fmt.Sprintf("pod-%d", r.IntN(6))
			switch pod := live[name]; {
			case pod == nil:
				live[name] = c.pod(name, types.UID(fmt.Sprintf("%d-%d", seed, n)), "gpu")
			case r.IntN(3) == 0:
				c.drop(pod)
				delete(live, name)
			case r.IntN(3) == 0:
				m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
					Name: machineName("gpu", pod.UID)}}
				c.drop(m)
			}
			if r.IntN(3) == 0 {
				c.crashIn = 1 + r.IntN(3)
			}
			c.sweep()
			c.state()
			if r.IntN(2) == 0 {
				c.collect()
			}
		}
		c.restart()
		for range 3 {
			c.collect()
			c.sweep()
		}
		want := map[string]bool{}
		for _, pod := range live {
			want[string(pod.UID)] = true
		}
		machines, infra := c.state()
		for _, got := range []map[string]bool{machines, infra} {
			if len(got) != len(want) {
				t.Fatalf("seed %d: machines of pods %v, want %v", seed, got, want)
			}
			for uid := range want {
				if !got[uid] {
					t.Fatalf("seed %d: pod %s has no machine", seed, uid)
				}
			}
		}
	}
}

// TestGone checks that the fake client deletes objects immediately.
func TestGone(t *testing.T) {
	c := newCluster(t)
	pod := c.pod("one", "1", "gpu")
	c.drop(pod)
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); !apierrors.IsNotFound(err) {
		t.Errorf("error %v", err)
	}
}

// TestDeletesAMachineOnce checks that the operator deletes a machine only once, even if its cache does not show the
// deletion yet.
func TestDeletesAMachineOnce(t *testing.T) {
	c := newCluster(t)
	pod := c.pod("p", "1", "gpu")
	c.sweep()
	var before clusterv1.MachineList
	if err := errors.Join(c.client.List(t.Context(), &before), c.client.Delete(t.Context(), pod)); err != nil ||
		len(before.Items) != 1 {
		t.Fatalf("%d machines, error %v", len(before.Items), err)
	}
	c.rec.Client = interceptor.NewClient(c.client.(client.WithWatch), interceptor.Funcs{List: func(ctx context.Context,
		k client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if machines, ok := list.(*clusterv1.MachineList); ok {
			before.DeepCopyInto(machines)
			return nil
		}
		return k.List(ctx, list, opts...)
	}})
	writes := c.writes
	for range 3 {
		c.sweep()
	}
	if n := c.writes - writes; n != 1 {
		t.Errorf("%d writes, want one deletion", n)
	}
}

// TestFailedPreparationIsReported checks that a pod gets an event if its machine cannot be prepared, for example because
// the operator lacks a right, and that the event names the cause.
func TestFailedPreparationIsReported(t *testing.T) {
	c := newCluster(t)
	c.pod("one", "1", "gpu")
	c.crashIn = -1 // every write fails
	for range 3 {
		if _, err := c.rec.Reconcile(t.Context(), sweep); err == nil {
			t.Fatal("the reconciliation did not fail")
		}
	}
	if events := c.events.take(); len(events) != 1 || !strings.HasPrefix(events[0], "one: Warning CreateFailed ") ||
		!strings.Contains(events[0], errCrash.Error()) {
		t.Errorf("events %q", events)
	}
}

// TestWaitForPoolNamesTheShard checks that a pod of a group without a pool gets an event with the shards that the import
// of the group waits for.
func TestWaitForPoolNamesTheShard(t *testing.T) {
	pod := podOf("1")
	w := snapshotOf(pod)
	clear(w.pools)
	w.shards = append(w.shards, shardView{id: "remote"})
	d := decideSweep(w)
	if len(d.warn) != 1 || d.warn[0].reason != v1beta1.WaitingForShardReason ||
		!strings.Contains(d.warn[0].text, "remote") {
		t.Errorf("warnings %v", d.warn)
	}
}
