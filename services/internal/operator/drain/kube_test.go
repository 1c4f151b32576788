package drain

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clientretry "k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
	"github.com/nstance-kit/nstance/tests/kube"
)

const (
	namespace = "nstance-system"
	apps      = "apps"
	// patience is the longest wait for an event, generous enough for a busy machine.
	patience = 40 * time.Second
)

// testKubernetes is a real API server with a fake shard. Its Nodes have no kubelets, so only a pod without a grace
// period ends, and it ends immediately.
type testKubernetes struct {
	*testing.T
	kube    *kube.Cluster
	client  client.Client
	cached  client.Client // reads what the operator has seen
	shards  *shardstest.Set
	shard   *shardstest.Shard
	metrics *Metrics

	stop  func()
	calls []string
}

func (kube *testKubernetes) mustSucceed(errs ...error) {
	kube.Helper()
	if err := errors.Join(errs...); err != nil {
		kube.Fatal(err)
	}
}

func (kube *testKubernetes) eventually(what string, is func() bool) {
	kube.Helper()
	for end := time.Now().Add(patience); !is(); {
		if time.Now().After(end) {
			kube.Fatalf("waited %s for: %s", patience, what)
		}
		kube.pause(50 * time.Millisecond)
	}
}

// pause waits for a time in which nothing should happen.
func (kube *testKubernetes) pause(d time.Duration) { <-time.After(d) }

// start starts a new coordinator, like a process that has just become the leader.
func (kube *testKubernetes) start() {
	kube.Helper()
	scheme := runtime.NewScheme()
	kube.mustSucceed(clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme))
	c, err := cluster.New(kube.kube.Config, func(o *cluster.Options) { o.Scheme = scheme })
	kube.mustSucceed(err)
	kube.mustSucceed(scope.NodeByProviderID.Add(c.GetFieldIndexer()))
	kube.mustSucceed(scope.MachineByInstance.Add(c.GetFieldIndexer()))
	kube.cached = c.GetClient()
	clientset, err := kubernetes.NewForConfig(c.GetConfig())
	kube.mustSucceed(err)
	s := scope.Scope{Client: c.GetClient(), Recorder: c.GetEventRecorder("test"), Namespace: namespace,
		Shards: kube.shards, Log: slog.New(slog.NewTextHandler(kube.Output(), nil))}
	r := newCoordinator(s, clientset, c, kube.metrics)
	r.slots.free, r.retryEviction = 2, 100*time.Millisecond
	ctx, cancel := context.WithCancel(kube.Context())
	clusterEnded, ended := make(chan error, 1), make(chan error, 1)
	go func() { clusterEnded <- c.Start(ctx) }()
	go func() { ended <- r.Start(ctx) }()
	kube.stop = func() {
		cancel()
		if err := errors.Join(<-ended, <-clusterEnded); err != nil {
			kube.Error(err)
		}
		kube.stop = func() {}
	}
}

// instance creates an instance and its Node with the given pods.
func (kube *testKubernetes) instance(pods ...func(node string) client.Object) (id, node string) {
	kube.Helper()
	group, _ := kube.shard.Group("workers")
	kube.shard.SetGroup(&nstancev1.GroupStatus{Group: "workers", Size: group.GetSize() + 1})
	group, _ = kube.shard.Group("workers")
	id = group.GetInstanceIds()[len(group.GetInstanceIds())-1]
	i, _ := kube.shard.Instance(id)
	node = "node-" + id
	kube.mustSucceed(kube.client.Create(kube.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: corev1.NodeSpec{ProviderID: i.GetProviderId()}}))
	for _, pod := range pods {
		kube.run(pod(node))
	}
	return id, node
}

// run creates a pod that runs. A PodDisruptionBudget protects only running pods.
func (kube *testKubernetes) run(pod client.Object) {
	kube.Helper()
	kube.mustSucceed(kube.client.Create(kube.Context(), pod))
	running := pod.(*corev1.Pod)
	running.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	kube.mustSucceed(kube.client.Status().Update(kube.Context(), running))
}

func podOn(name string, change ...func(*corev1.Pod)) func(string) client.Object {
	return func(node string) client.Object {
		now := int64(0)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: apps, Name: name,
			Labels: map[string]string{"app": name}},
			Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &now,
				Containers: []corev1.Container{{Name: "c", Image: "none"}},
				Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
					EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}}
		for _, fn := range change {
			fn(pod)
		}
		return pod
	}
}

// addBudget protects a pod with a PodDisruptionBudget. The test writes the budget's status, because no controller runs
// here. The function allow permits one eviction.
func (kube *testKubernetes) addBudget(name string) (allow func()) {
	kube.Helper()
	one := intstr.FromInt32(1)
	pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: apps, Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"app": name}}}}
	kube.mustSucceed(kube.client.Create(kube.Context(), pdb))
	set := func(allowed int32) {
		kube.Helper()
		// The API server writes the budget's status too, when it handles an eviction. So this update may conflict.
		kube.mustSucceed(clientretry.RetryOnConflict(clientretry.DefaultRetry, func() error {
			if err := kube.client.Get(kube.Context(), client.ObjectKeyFromObject(pdb), pdb); err != nil {
				return err
			}
			pdb.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: pdb.Generation,
				DisruptionsAllowed: allowed, CurrentHealthy: 1 + allowed, DesiredHealthy: 1, ExpectedPods: 1}
			return kube.client.Status().Update(kube.Context(), pdb)
		}))
	}
	set(0)
	return func() { set(1) }
}

func (kube *testKubernetes) hasPod(name string) bool {
	kube.Helper()
	err := kube.client.Get(kube.Context(), client.ObjectKey{Namespace: apps, Name: name}, &corev1.Pod{})
	kube.mustSucceed(client.IgnoreNotFound(err))
	return err == nil
}

func (kube *testKubernetes) node(name string) *corev1.Node {
	kube.Helper()
	n := &corev1.Node{}
	err := kube.client.Get(kube.Context(), client.ObjectKey{Name: name}, n)
	if apierrors.IsNotFound(err) {
		return nil
	}
	kube.mustSucceed(err)
	return n
}

func (kube *testKubernetes) cordoned(name string) func() bool {
	return func() bool { n := kube.node(name); return n != nil && n.Spec.Unschedulable }
}

// acknowledged returns the number of AcknowledgeDrained calls for an instance.
func (kube *testKubernetes) acknowledged(id string) (n int) {
	kube.calls = append(kube.calls, kube.shard.Calls()...)
	for _, call := range kube.calls {
		if call == "AcknowledgeDrained "+id {
			n++
		}
	}
	return n
}

func (kube *testKubernetes) hasAcknowledged(id string) func() bool {
	return func() bool { return kube.acknowledged(id) > 0 }
}

// event returns an event about an object.
func (kube *testKubernetes) event(object, reason string) string {
	kube.Helper()
	var list eventsv1.EventList
	kube.mustSucceed(kube.client.List(kube.Context(), &list))
	for _, e := range list.Items {
		if e.Regarding.Name == object && e.Reason == reason {
			return e.Type + " " + e.Note
		}
	}
	return ""
}

func (kube *testKubernetes) awaitEvent(object, reason, text string) {
	kube.Helper()
	kube.eventually("event "+reason+" on "+object+" with "+text, func() bool {
		return strings.Contains(kube.event(object, reason), text)
	})
}

func (kube *testKubernetes) drainCount(r result) float64 {
	kube.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(kube.metrics.duration)
	families, err := registry.Gather()
	kube.mustSucceed(err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == string(r) {
				return float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

func TestDrains(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	k, err := kube.Start(ctx, kube.Options{Dir: t.TempDir(), CRDs: []string{"../../../../config/crd"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	scheme := runtime.NewScheme()
	base := &testKubernetes{T: t, kube: k, stop: func() {}}
	base.mustSucceed(clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme))
	base.client, err = client.New(k.Config, client.Options{Scheme: scheme})
	base.mustSucceed(err)
	for _, name := range []string{namespace, apps} {
		base.mustSucceed(base.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	for i, c := range []struct {
		name string
		test func(*testKubernetes)
	}{
		{"budget that blocks, then yields", testBudget},
		{"budget that never yields", testDeadline},
		{"nothing to drain", testNothingToDrain},
		{"announced again", testRepeatedAnnouncement},
		{"restart in the middle", testRestart},
		{"deadline brought forward", testEarlierDeadline},
		{"deleted meanwhile", testDeletedMeanwhile},
		{"shard lost before the acknowledgement", testLostShard},
		{"one slot for the most urgent", testUrgency},
		{"Nodes of instances that are gone", testNodeRemoval},
		{"Nodes of spares", testSpares},
	} {
		t.Run(c.name, func(t *testing.T) {
			kube := *base
			kube.T = t
			kube.metrics = NewMetrics()
			// Every case has its own shard, so the instance IDs and Nodes of two cases differ.
			id := "s" + string(rune('a'+i))
			kube.shards = shardstest.New(id)
			kube.shard = kube.shards.Of(id)
			kube.start()
			defer func() { kube.stop() }()
			c.test(&kube)
			kube.stop()
			if active := testutil.ToFloat64(kube.metrics.active); active != 0 {
				t.Errorf("%v drains are still active", active)
			}
		})
	}
}

func testBudget(kube *testKubernetes) {
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: apps, Name: "agents"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agents"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "agents"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}}}}}
	kube.mustSucceed(kube.client.Create(kube.Context(), set))
	ofSet := func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set,
			appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	}
	allow := kube.addBudget("yields-web")
	id, node := kube.instance(podOn("yields-web"), podOn("yields-alone"), podOn("agents", ofSet))
	m := &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "yields"},
		Spec: v1beta1.NstanceMachineSpec{
			GroupRef: v1beta1.GroupReference{Name: "workers"}, Shard: kube.shard.ID(), InstanceID: id}}
	kube.mustSucceed(kube.client.Create(kube.Context(), m))
	kube.eventually("the operator has seen the Machine", func() bool {
		return kube.cached.Get(kube.Context(), client.ObjectKeyFromObject(m), &v1beta1.NstanceMachine{}) == nil
	})

	kube.shard.Drain(id, "expired", time.Now().Add(10*time.Minute))
	kube.eventually("the Node is cordoned", kube.cordoned(node))
	kube.eventually("the pod without a budget is evicted", func() bool { return !kube.hasPod("yields-alone") })
	kube.pause(500 * time.Millisecond)
	if !kube.hasPod("yields-web") || kube.acknowledged(id) > 0 {
		kube.Fatal("a pod was evicted against its budget")
	}
	if active := testutil.ToFloat64(kube.metrics.active); active != 1 {
		kube.Errorf("%v drains are active", active)
	}
	allow()
	kube.eventually("acknowledged", kube.hasAcknowledged(id))
	if kube.hasPod("yields-web") || !kube.hasPod("agents") {
		kube.Error("the wrong pods were evicted")
	}
	for _, object := range []string{node, m.Name} {
		kube.awaitEvent(object, v1beta1.DrainStartedReason, "Normal draining before the deletion of instance "+id+
			" (expired)")
		kube.awaitEvent(object, v1beta1.DrainedReason, "Normal")
	}
	kube.eventually("counted", func() bool { return kube.drainCount(drained) == 1 })
	kube.eventually("the Node of the deleted instance is removed", func() bool { return kube.node(node) == nil })
}

func testDeadline(kube *testKubernetes) {
	kube.addBudget("never-web")
	id, node := kube.instance(podOn("never-web"))
	began := time.Now()
	kube.shard.Drain(id, "spot", began.Add(5*time.Second))
	kube.eventually("acknowledged", kube.hasAcknowledged(id))
	if took := time.Since(began); took < 4*time.Second || took > 10*time.Second {
		kube.Errorf("acknowledged after %s, the deadline was at 5s", took)
	}
	if !kube.hasPod("never-web") {
		kube.Error("a pod was evicted against its budget")
	}
	kube.awaitEvent(node, v1beta1.DrainDeadlineReason, "Warning drain incomplete at the deadline; instance "+id+
		" will be deleted; remaining pods: apps/never-web")
	kube.eventually("counted", func() bool { return kube.drainCount(deadline) == 1 })
}

func testNothingToDrain(kube *testKubernetes) {
	kube.addBudget("nothing-web")
	withNode, node := kube.instance(podOn("nothing-web"))
	kube.shard.Change(withNode, func(i *nstancev1.InstanceStatus) { i.ProviderState = "stopped" })
	without, other := kube.instance()
	kube.mustSucceed(kube.client.Delete(kube.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: other}}))
	never, _ := kube.instance()
	kube.shard.Change(never, func(i *nstancev1.InstanceStatus) { i.ProviderId = "" })
	kube.pause(200 * time.Millisecond) // until the cache shows that the Node was deleted
	for _, id := range []string{withNode, without, never} {
		kube.shard.Drain(id, "x", time.Now().Add(time.Hour))
		kube.eventually("acknowledged", kube.hasAcknowledged(id))
	}
	if n := kube.node(node); n != nil && n.Spec.Unschedulable || !kube.hasPod("nothing-web") {
		kube.Error("the Node of a VM that is gone was drained")
	}
	kube.eventually("counted", func() bool { return kube.drainCount(noNode) == 3 })
}

func testRepeatedAnnouncement(kube *testKubernetes) {
	allow := kube.addBudget("again-web")
	id, node := kube.instance(podOn("again-web"))
	at := time.Now().Add(time.Hour)
	for range 5 {
		kube.shard.Drain(id, "expired", at)
	}
	kube.eventually("the Node is cordoned", kube.cordoned(node))
	kube.shard.Drain(id, "expired", at)
	if active := testutil.ToFloat64(kube.metrics.active); active != 1 {
		kube.Errorf("%v drains of one instance", active)
	}
	allow()
	kube.eventually("acknowledged", kube.hasAcknowledged(id))
	kube.pause(300 * time.Millisecond)
	if n := kube.acknowledged(id); n != 1 {
		kube.Errorf("acknowledged %d times, want once", n)
	}
}

func testRestart(kube *testKubernetes) {
	allow := kube.addBudget("restart-web")
	id, node := kube.instance(podOn("restart-web"), podOn("restart-alone"))
	kube.shard.Drain(id, "expired", time.Now().Add(time.Hour))
	kube.eventually("the pod without a budget is evicted", func() bool { return !kube.hasPod("restart-alone") })
	kube.stop()
	if kube.acknowledged(id) > 0 || !kube.cordoned(node)() {
		kube.Fatal("a stopped operator acknowledged the drain")
	}
	allow()
	kube.pause(300 * time.Millisecond)
	if !kube.hasPod("restart-web") {
		kube.Fatal("a stopped operator evicted a pod")
	}
	kube.start()
	kube.eventually("acknowledged", func() bool {
		// If the operator was stopped during an eviction, that eviction may have used up the budget although the pod
		// still exists. A disruption controller would correct the budget, but this API server has none.
		if kube.hasPod("restart-web") {
			allow()
		}
		return kube.acknowledged(id) > 0
	})
	if kube.hasPod("restart-web") {
		kube.Error("the drain was acknowledged before the pods were evicted")
	}
}

func testEarlierDeadline(kube *testKubernetes) {
	kube.addBudget("forward-web")
	id, node := kube.instance(podOn("forward-web"))
	kube.shard.Drain(id, "expired", time.Now().Add(time.Hour))
	kube.eventually("the Node is cordoned", kube.cordoned(node))
	kube.shard.Drain(id, "spot", time.Now().Add(2*time.Second))
	kube.eventually("acknowledged", kube.hasAcknowledged(id))
}

func testDeletedMeanwhile(kube *testKubernetes) {
	kube.addBudget("deleted-web")
	id, node := kube.instance(podOn("deleted-web"))
	kube.shard.Drain(id, "expired", time.Now().Add(time.Hour))
	kube.eventually("the Node is cordoned", kube.cordoned(node))
	kube.shard.Kill(id)
	kube.shard.Forget(id)
	kube.eventually("the drain ends", func() bool { return testutil.ToFloat64(kube.metrics.active) == 0 })
	if kube.acknowledged(id) > 0 {
		kube.Error("a drain that is no longer pending was acknowledged")
	}
	kube.eventually("the Node is removed", func() bool { return kube.node(node) == nil })
}

func testLostShard(kube *testKubernetes) {
	id, node := kube.instance(podOn("lost-web"))
	kube.shard.SetState(func(s *shards.State) { s.Reachable = false })
	kube.shard.Drain(id, "expired", time.Now().Add(time.Hour))
	kube.eventually("the pod is evicted", func() bool { return !kube.hasPod("lost-web") })
	kube.awaitEvent(node, v1beta1.DrainedReason, "Normal")
	if kube.acknowledged(id) > 0 {
		kube.Fatal("a drain of an unreachable shard was acknowledged")
	}
	kube.shard.SetState(func(s *shards.State) { s.Reachable = true })
	kube.eventually("acknowledged", kube.hasAcknowledged(id))
}

// testUrgency checks the order of drains. Two drains use both slots while two other drains wait. The waiting drain with
// the earlier deadline must get the next slot.
func testUrgency(kube *testKubernetes) {
	allow := kube.addBudget("urgent-0")
	kube.addBudget("urgent-1")
	far, near := time.Now().Add(2*time.Hour), time.Now().Add(time.Hour)
	var ids, nodes []string
	for _, pod := range []string{"urgent-0", "urgent-1", "urgent-2", "urgent-3"} {
		id, node := kube.instance(podOn(pod))
		ids, nodes = append(ids, id), append(nodes, node)
	}
	for i, at := range []time.Time{far, far, far, near} {
		kube.shard.Drain(ids[i], "expired", at)
		kube.eventually("the Node is cordoned while it waits for a slot", kube.cordoned(nodes[i]))
		kube.pause(200 * time.Millisecond)
	}
	if !kube.hasPod("urgent-2") || !kube.hasPod("urgent-3") {
		kube.Fatal("more drains than slots evict pods at a time")
	}
	allow()
	kube.eventually("acknowledged", kube.hasAcknowledged(ids[2]))
	var order []string
	for _, call := range kube.calls {
		order = append(order, strings.TrimPrefix(call, "AcknowledgeDrained "))
	}
	if want := []string{ids[0], ids[3], ids[2]}; !slices.Equal(order, want) {
		kube.Errorf("drains in the order %q, want %q", order, want)
	}
}

func testNodeRemoval(kube *testKubernetes) {
	dies, node := kube.instance()
	lives, liveNode := kube.instance()
	foreign := []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "foreign"},
		Spec: corev1.NodeSpec{ProviderID: "test:///else/1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "bare"}}}
	for _, n := range foreign {
		kube.mustSucceed(kube.client.Create(kube.Context(), n))
	}
	for id, name := range map[string]string{dies: node, lives: liveNode} {
		kube.eventually("the Node is marked", func() bool {
			return kube.node(name).Annotations[v1beta1.InstanceAnnotation] == kube.shard.ID()+"/"+id
		})
	}
	// While no operator runs, an instance is deleted, in the shard and in the mirror (the operator's copy of the
	// instances). When the operator starts, the mirror is not synced yet.
	kube.stop()
	kube.shard.Kill(dies)
	kube.shard.Forget(dies)
	kube.shard.SetState(func(s *shards.State) { s.Synced = false })
	kube.start()
	kube.pause(time.Second)
	if kube.node(node) == nil {
		kube.Fatal("the Node was removed before the mirror was synced")
	}
	kube.shard.SetState(func(s *shards.State) { s.Reachable, s.Synced = true, true })
	kube.eventually("the Node is removed", func() bool { return kube.node(node) == nil })
	for _, name := range []string{liveNode, "foreign", "bare"} {
		if kube.node(name) == nil {
			kube.Errorf("Node %s was removed, want it kept", name)
		}
	}
}

// testSpares registers Nodes of spares as their kubelets do, and makes the spares members.
func testSpares(kube *testKubernetes) {
	taints := []corev1.Taint{{Key: v1beta1.SpareTaint, Effect: corev1.TaintEffectNoSchedule}}
	member, _ := kube.instance()
	join := func(id string, cordoned bool) string {
		kube.Helper()
		i, _ := kube.shard.Instance(id)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + id},
			Spec: corev1.NodeSpec{ProviderID: i.GetProviderId(), Taints: taints, Unschedulable: cordoned}}
		kube.mustSucceed(kube.client.Create(kube.Context(), node))
		return node.Name
	}
	is := func(node string, cordoned bool) func() bool {
		return func() bool {
			n := kube.node(node)
			return n != nil && n.Spec.Unschedulable == cordoned && !slices.ContainsFunc(n.Spec.Taints, isSpareTaint) &&
				n.Annotations[v1beta1.InstanceAnnotation] != ""
		}
	}
	promote := func(spare string) {
		kube.Helper()
		kube.shard.Promote(spare, member)
		member = spare
	}
	first := kube.shard.AddSpare("workers")
	node := join(first, false)
	kube.eventually("the Node of the spare is cordoned without a taint", is(node, true))
	kube.mustSucceed(kube.client.Patch(kube.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"unschedulable":null}}`))))
	kube.eventually("it is cordoned again", is(node, true))
	promote(first)
	kube.eventually("the Node of the member is uncordoned", is(node, false))
	kube.awaitEvent(node, v1beta1.SparePromotedReason, "Normal instance "+first+" was a spare")

	byPerson := kube.shard.AddSpare("workers")
	node = join(byPerson, true)
	kube.eventually("a Node that a person has cordoned loses its taint", is(node, true))
	promote(byPerson)
	missed, late := kube.shard.AddSpare("workers"), kube.shard.AddSpare("workers")
	missedNode := join(missed, false)
	kube.eventually("cordoned", is(missedNode, true))
	if !is(node, true)() {
		kube.Error("the operator removed the cordon of a person")
	}

	// While no operator runs, a spare becomes a member. Another one becomes a member before it has a Node.
	kube.stop()
	promote(missed)
	member, _ = kube.instance()
	promote(late)
	lateNode := join(late, false)
	if !is(missedNode, true)() {
		kube.Error("a stopped operator changed a Node")
	}
	kube.start()
	kube.eventually("the Node of a spare whose promotion the operator missed", is(missedNode, false))
	kube.eventually("a Node that is late", is(lateNode, false))

	// A spare becomes a member, and is to be deleted at the same time.
	short := kube.shard.AddSpare("workers")
	node = join(short, false)
	kube.eventually("cordoned", is(node, true))
	kube.addBudget("short-web")
	kube.run(podOn("short-web")(node))
	kube.shard.HoldDrains()
	promote(short)
	kube.shard.Drain(short, "spot", time.Now().Add(time.Hour))
	kube.eventually("the drain takes over the cordon", func() bool {
		_, ours := kube.node(node).Annotations[v1beta1.SpareCordonAnnotation]
		return !ours
	})
	kube.eventually("cordoned by the drain", is(node, true))

	gone := kube.shard.AddSpare("workers")
	node = join(gone, false)
	kube.eventually("cordoned", is(node, true))
	kube.shard.Drain(gone, "too many spares", time.Now().Add(time.Hour))
	kube.eventually("acknowledged", kube.hasAcknowledged(gone))
	kube.eventually("the Node of a deleted spare is removed", func() bool { return kube.node(node) == nil })
}
