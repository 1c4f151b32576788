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
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
	"github.com/nstance-kit/nstance/tests/kube"
)

const (
	namespace = "nstance-system"
	apps      = "apps"
	// patience is how long something may take that is to happen soon, on a machine with much else to do.
	patience = 40 * time.Second
)

// lab is a real API server with one shard's made-up servers. The kubelets of its Nodes do not exist: a pod without a
// grace period ends at once.
type lab struct {
	*testing.T
	kube    *kube.Cluster
	client  client.Client
	shards  *shardstest.Set
	shard   *shardstest.Shard
	metrics *instruments

	stop  func()
	calls []string
}

func (l *lab) must(errs ...error) {
	l.Helper()
	if err := errors.Join(errs...); err != nil {
		l.Fatal(err)
	}
}

func (l *lab) eventually(what string, is func() bool) {
	l.Helper()
	for end := time.Now().Add(patience); !is(); {
		if time.Now().After(end) {
			l.Fatalf("not within %s: %s", patience, what)
		}
		l.pause(50 * time.Millisecond)
	}
}

// pause waits while nothing is to happen.
func (l *lab) pause(d time.Duration) { <-time.After(d) }

// start begins an operator's part, as a process that was just started and elected.
func (l *lab) start() {
	l.Helper()
	scheme := runtime.NewScheme()
	l.must(clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme))
	c, err := cluster.New(l.kube.Config, func(o *cluster.Options) { o.Scheme = scheme })
	l.must(err)
	l.must(c.GetFieldIndexer().IndexField(l.Context(), &corev1.Node{}, nodeByProviderID,
		func(o client.Object) []string {
			return []string{o.(*corev1.Node).Spec.ProviderID}
		}))
	clientset, err := kubernetes.NewForConfig(c.GetConfig())
	l.must(err)
	o := Options{Client: c.GetClient(), Recorder: c.GetEventRecorder("test"), Namespace: namespace, Shards: l.shards,
		Workload: c, Parallel: 2,
		RetryEviction: 100 * time.Millisecond, Log: slog.New(slog.NewTextHandler(l.Output(), nil))}
	r := &runner{newCoordinator(o, clientset, c.GetClient(), c.GetEventRecorder("test"), l.metrics), c}
	ctx, cancel := context.WithCancel(l.Context())
	clusterEnded, ended := make(chan error, 1), make(chan error, 1)
	go func() { clusterEnded <- c.Start(ctx) }()
	go func() { ended <- r.Start(ctx) }()
	l.stop = func() {
		cancel()
		if err := errors.Join(<-ended, <-clusterEnded); err != nil {
			l.Error(err)
		}
		l.stop = func() {}
	}
}

// instance makes an instance and its Node, with the pods given.
func (l *lab) instance(pods ...func(node string) client.Object) (id, node string) {
	l.Helper()
	group, _ := l.shard.Group("workers")
	l.shard.SetGroup(&nstancev1.GroupStatus{Group: "workers", Template: "t", Size: group.GetSize() + 1})
	group, _ = l.shard.Group("workers")
	id = group.GetInstanceIds()[len(group.GetInstanceIds())-1]
	i, _ := l.shard.Instance(id)
	node = "node-" + id
	l.must(l.client.Create(l.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: corev1.NodeSpec{ProviderID: i.GetProviderId()}}))
	for _, pod := range pods {
		object := pod(node)
		l.must(l.client.Create(l.Context(), object))
		// A budget protects pods that run; one that is pending is evicted in any case.
		running := object.(*corev1.Pod)
		running.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		l.must(l.client.Status().Update(l.Context(), running))
	}
	return id, node
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

// guard protects a pod; nobody keeps its status but the test. allow says that the pod may go, as often as it is called.
func (l *lab) guard(name string) (allow func()) {
	l.Helper()
	one := intstr.FromInt32(1)
	pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: apps, Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"app": name}}}}
	l.must(l.client.Create(l.Context(), pdb))
	set := func(allowed int32) {
		l.Helper()
		// the API server writes it, too, when it evicts
		l.must(clientretry.RetryOnConflict(clientretry.DefaultRetry, func() error {
			if err := l.client.Get(l.Context(), client.ObjectKeyFromObject(pdb), pdb); err != nil {
				return err
			}
			pdb.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: pdb.Generation,
				DisruptionsAllowed: allowed, CurrentHealthy: 1 + allowed, DesiredHealthy: 1, ExpectedPods: 1}
			return l.client.Status().Update(l.Context(), pdb)
		}))
	}
	set(0)
	return func() { set(1) }
}

func (l *lab) hasPod(name string) bool {
	l.Helper()
	err := l.client.Get(l.Context(), client.ObjectKey{Namespace: apps, Name: name}, &corev1.Pod{})
	l.must(client.IgnoreNotFound(err))
	return err == nil
}

func (l *lab) node(name string) *corev1.Node {
	l.Helper()
	n := &corev1.Node{}
	err := l.client.Get(l.Context(), client.ObjectKey{Name: name}, n)
	if apierrors.IsNotFound(err) {
		return nil
	}
	l.must(err)
	return n
}

func (l *lab) cordoned(name string) func() bool {
	return func() bool { n := l.node(name); return n != nil && n.Spec.Unschedulable }
}

// acknowledged counts the calls for an instance so far.
func (l *lab) acknowledged(id string) (n int) {
	l.calls = append(l.calls, l.shard.Calls()...)
	for _, call := range l.calls {
		if call == "AcknowledgeDrained "+id {
			n++
		}
	}
	return n
}

func (l *lab) acked(id string) func() bool { return func() bool { return l.acknowledged(id) > 0 } }

// events lists the reasons of events on an object, and one of them whole.
func (l *lab) event(object, reason string) string {
	l.Helper()
	var list eventsv1.EventList
	l.must(l.client.List(l.Context(), &list))
	for _, e := range list.Items {
		if e.Regarding.Name == object && e.Reason == reason {
			return e.Type + " " + e.Note
		}
	}
	return ""
}

func (l *lab) told(object, reason, text string) {
	l.Helper()
	l.eventually("event "+reason+" on "+object+" with "+text, func() bool {
		return strings.Contains(l.event(object, reason), text)
	})
}

func (l *lab) counted(r result) float64 {
	l.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(l.metrics.duration)
	families, err := registry.Gather()
	l.must(err)
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
	base := &lab{T: t, kube: k, stop: func() {}}
	base.must(clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme))
	base.client, err = client.New(k.Config, client.Options{Scheme: scheme})
	base.must(err)
	for _, name := range []string{namespace, apps} {
		base.must(base.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	for i, c := range []struct {
		name string
		test func(*lab)
	}{
		{"budget that blocks, then yields", yields},
		{"budget that never yields", neverYields},
		{"nothing to drain", nothing},
		{"announced again", announcedAgain},
		{"restart in the middle", restart},
		{"deadline brought forward", broughtForward},
		{"deleted meanwhile", deletedMeanwhile},
		{"shard lost before the acknowledgement", shardLost},
		{"one slot for the most urgent", urgent},
		{"Nodes of instances that are gone", removes},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := *base
			l.T = t
			l.metrics, err = register(prometheus.NewRegistry())
			l.must(err)
			// Every case has a shard of its own, so that their Nodes are different.
			id := "s" + string(rune('a'+i))
			l.shards = shardstest.New(id)
			l.shard = l.shards.Of(id)
			l.start()
			defer func() { l.stop() }()
			c.test(&l)
			l.stop()
			if active := testutil.ToFloat64(l.metrics.active); active != 0 {
				t.Errorf("%v drains are still active", active)
			}
		})
	}
}

func yields(l *lab) {
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: apps, Name: "agents"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agents"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "agents"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}}}}}
	l.must(l.client.Create(l.Context(), set))
	ofSet := func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set,
			appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	}
	allow := l.guard("yields-web")
	id, node := l.instance(podOn("yields-web"), podOn("yields-alone"), podOn("agents", ofSet))
	m := &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "yields"},
		Spec: v1beta1.NstanceMachineSpec{
			GroupRef: v1beta1.GroupReference{Name: "workers"}, Shard: l.shard.ID(), InstanceID: id}}
	l.must(l.client.Create(l.Context(), m))

	l.shard.Drain(id, "expired", time.Now().Add(10*time.Minute))
	l.eventually("the Node is cordoned", l.cordoned(node))
	l.eventually("the pod without a budget goes", func() bool { return !l.hasPod("yields-alone") })
	l.pause(500 * time.Millisecond)
	if !l.hasPod("yields-web") || l.acknowledged(id) > 0 {
		l.Fatal("the budget is not honoured")
	}
	if active := testutil.ToFloat64(l.metrics.active); active != 1 {
		l.Errorf("%v drains are active", active)
	}
	allow()
	l.eventually("acknowledged", l.acked(id))
	if l.hasPod("yields-web") || !l.hasPod("agents") {
		l.Error("the wrong pods are gone")
	}
	for _, object := range []string{node, m.Name} {
		l.told(object, v1beta1.DrainStartedReason, "Normal draining: instance "+id+" is to be deleted (expired)")
		l.told(object, v1beta1.DrainedReason, "Normal")
	}
	l.eventually("counted", func() bool { return l.counted(drained) == 1 })
	l.eventually("the Node of what is deleted now is removed", func() bool { return l.node(node) == nil })
}

func neverYields(l *lab) {
	l.guard("never-web")
	id, node := l.instance(podOn("never-web"))
	began := time.Now()
	l.shard.Drain(id, "spot", began.Add(5*time.Second))
	l.eventually("acknowledged", l.acked(id))
	if took := time.Since(began); took < 4*time.Second || took > 10*time.Second {
		l.Errorf("acknowledged after %s, the deadline was at 5s", took)
	}
	if !l.hasPod("never-web") {
		l.Error("the budget is not honoured")
	}
	l.told(node, v1beta1.DrainDeadlineReason, "Warning not drained by the deadline, instance "+id+
		" is deleted anyway; pods left: apps/never-web")
	l.eventually("counted", func() bool { return l.counted(deadline) == 1 })
}

func nothing(l *lab) {
	l.guard("nothing-web")
	withNode, node := l.instance(podOn("nothing-web"))
	l.shard.Change(withNode, func(i *nstancev1.InstanceStatus) { i.ProviderState = "stopped" })
	without, other := l.instance()
	l.must(l.client.Delete(l.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: other}}))
	never, _ := l.instance()
	l.shard.Change(never, func(i *nstancev1.InstanceStatus) { i.ProviderId = "" })
	l.pause(200 * time.Millisecond) // the cache learns that the Node is gone
	for _, id := range []string{withNode, without, never} {
		l.shard.Drain(id, "x", time.Now().Add(time.Hour))
		l.eventually("acknowledged", l.acked(id))
	}
	if n := l.node(node); n != nil && n.Spec.Unschedulable || !l.hasPod("nothing-web") {
		l.Error("a machine that is gone was drained")
	}
	l.eventually("counted", func() bool { return l.counted(noNode) == 3 })
}

func announcedAgain(l *lab) {
	allow := l.guard("again-web")
	id, node := l.instance(podOn("again-web"))
	at := time.Now().Add(time.Hour)
	for range 5 {
		l.shard.Drain(id, "expired", at)
	}
	l.eventually("the Node is cordoned", l.cordoned(node))
	l.shard.Drain(id, "expired", at)
	if active := testutil.ToFloat64(l.metrics.active); active != 1 {
		l.Errorf("%v drains of one instance", active)
	}
	allow()
	l.eventually("acknowledged", l.acked(id))
	l.pause(300 * time.Millisecond)
	if n := l.acknowledged(id); n != 1 {
		l.Errorf("acknowledged %d times", n)
	}
}

func restart(l *lab) {
	allow := l.guard("restart-web")
	id, node := l.instance(podOn("restart-web"), podOn("restart-alone"))
	l.shard.Drain(id, "expired", time.Now().Add(time.Hour))
	l.eventually("the pod without a budget goes", func() bool { return !l.hasPod("restart-alone") })
	l.stop()
	if l.acknowledged(id) > 0 || !l.cordoned(node)() {
		l.Fatal("a stopped operator acknowledges")
	}
	allow()
	l.pause(300 * time.Millisecond)
	if !l.hasPod("restart-web") {
		l.Fatal("a stopped operator drains")
	}
	l.start()
	l.eventually("acknowledged", func() bool {
		// An eviction that was under way when the operator was stopped may have used the budget up, and then been
		// cancelled before the pod was deleted. The disruption controller, which is not here, finds that out and counts
		// anew.
		if l.hasPod("restart-web") {
			allow()
		}
		return l.acknowledged(id) > 0
	})
	if l.hasPod("restart-web") {
		l.Error("acknowledged too early")
	}
}

func broughtForward(l *lab) {
	l.guard("forward-web")
	id, node := l.instance(podOn("forward-web"))
	l.shard.Drain(id, "expired", time.Now().Add(time.Hour))
	l.eventually("the Node is cordoned", l.cordoned(node))
	l.shard.Drain(id, "spot", time.Now().Add(2*time.Second))
	l.eventually("acknowledged", l.acked(id))
}

func deletedMeanwhile(l *lab) {
	l.guard("deleted-web")
	id, node := l.instance(podOn("deleted-web"))
	l.shard.Drain(id, "expired", time.Now().Add(time.Hour))
	l.eventually("the Node is cordoned", l.cordoned(node))
	l.shard.Kill(id)
	l.shard.Forget(id)
	l.eventually("the drain ends", func() bool { return testutil.ToFloat64(l.metrics.active) == 0 })
	if l.acknowledged(id) > 0 {
		l.Error("acknowledged what nobody waits for")
	}
	l.eventually("the Node is removed", func() bool { return l.node(node) == nil })
}

func shardLost(l *lab) {
	id, node := l.instance(podOn("lost-web"))
	l.shard.SetState(func(s *shards.State) { s.Reachable = false })
	l.shard.Drain(id, "expired", time.Now().Add(time.Hour))
	l.eventually("the pod goes", func() bool { return !l.hasPod("lost-web") })
	l.told(node, v1beta1.DrainedReason, "Normal")
	if l.acknowledged(id) > 0 {
		l.Fatal("acknowledged to nobody")
	}
	l.shard.SetState(func(s *shards.State) { s.Reachable = true })
	l.eventually("acknowledged", l.acked(id))
}

// urgent: two drains hold both slots; of two more the one with the nearer deadline is next, though it came later.
func urgent(l *lab) {
	allow := l.guard("urgent-0")
	l.guard("urgent-1")
	far, near := time.Now().Add(2*time.Hour), time.Now().Add(time.Hour)
	var ids, nodes []string
	for _, pod := range []string{"urgent-0", "urgent-1", "urgent-2", "urgent-3"} {
		id, node := l.instance(podOn(pod))
		ids, nodes = append(ids, id), append(nodes, node)
	}
	for i, at := range []time.Time{far, far, far, near} {
		l.shard.Drain(ids[i], "expired", at)
		l.eventually("cordoned at once", l.cordoned(nodes[i]))
		l.pause(200 * time.Millisecond)
	}
	if !l.hasPod("urgent-2") || !l.hasPod("urgent-3") {
		l.Fatal("more are drained at a time than may be")
	}
	allow()
	l.eventually("acknowledged", l.acked(ids[2]))
	var order []string
	for _, call := range l.calls {
		order = append(order, strings.TrimPrefix(call, "AcknowledgeDrained "))
	}
	if want := []string{ids[0], ids[3], ids[2]}; !slices.Equal(order, want) {
		l.Errorf("order %q, want %q", order, want)
	}
}

func removes(l *lab) {
	dies, node := l.instance()
	lives, liveNode := l.instance()
	foreign := []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "foreign"},
		Spec: corev1.NodeSpec{ProviderID: "test:///else/1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "bare"}}}
	for _, n := range foreign {
		l.must(l.client.Create(l.Context(), n))
	}
	for id, name := range map[string]string{dies: node, lives: liveNode} {
		l.eventually("the Node is marked", func() bool {
			return l.node(name).Annotations[v1beta1.InstanceAnnotation] == l.shard.ID()+"/"+id
		})
	}
	// While nobody looks, the instance is deleted and forgotten; what the shard has was not read yet.
	l.stop()
	l.shard.Kill(dies)
	l.shard.Forget(dies)
	l.shard.SetState(func(s *shards.State) { s.Synced = false })
	l.start()
	l.pause(time.Second)
	if l.node(node) == nil {
		l.Fatal("removed before the shard's instances were read")
	}
	l.shard.SetState(func(s *shards.State) { s.Reachable, s.Synced = true, true })
	l.eventually("the Node is removed", func() bool { return l.node(node) == nil })
	for _, name := range []string{liveNode, "foreign", "bare"} {
		if l.node(name) == nil {
			l.Errorf("Node %s is removed", name)
		}
	}
}
