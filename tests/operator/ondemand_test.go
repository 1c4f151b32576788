package operator

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/tests/kube"
)

// crowdSize is the number of pods that request machines at the same time.
var crowdSize = flag.Int("crowd", 20, "number of pods of TestOnDemandPods/many_pods")

// TestOnDemandPods checks that a machine belongs to the pod that it was created for. From the subtest "admission" on,
// the admission policy is in force.
func TestOnDemandPods(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole Kubernetes and two shards")
	}
	t.Parallel()
	l := newLab(t)
	l.settleServers(t)
	l.bootstrap(t)
	l.imported(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"two pods", l.testTwoPods},
		{"tolerant guest", l.testGuest},
		{"changed minds", l.testChangedMinds},
		{"new Node", l.testNewNode},
		{"admission", l.testOnDemandAdmission},
		{"limit", l.testOnDemandLimit},
		{"many pods", l.testCrowd},
	} {
		if !t.Run(part.name, part.run) {
			return // Later parts would fail for the same reason, or because of leftovers.
		}
	}
}

// requestingPod returns a pod that requests a machine of its own and selects the Nodes of the group.
func requestingPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: objectMeta(name), Spec: corev1.PodSpec{
		NodeSelector: map[string]string{v1beta1.OnDemandGroupNodeLabel: machines},
		Containers:   []corev1.Container{{Name: "main", Image: "none"}}}}
	pod.Annotations = map[string]string{v1beta1.OnDemandGroupAnnotation: machines}
	for _, fn := range change {
		fn(pod)
	}
	return pod
}

// anywhere removes the node selector, so that the pod can run on any Node.
func anywhere(pod *corev1.Pod) { pod.Spec.NodeSelector = nil }

// onShard selects the shard of the pod's machine.
func onShard(id string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations[v1beta1.OnDemandShardAnnotation] = id }
}

// runs returns an error unless the given pod still exists and runs. It stores the name of the pod's Node in "node".
func (l *lab) runs(ctx context.Context, pod *corev1.Pod, node *string) error {
	return has(ctx, l, &corev1.Pod{}, pod.Name, func(p *corev1.Pod) error {
		if p.UID != pod.UID || !p.DeletionTimestamp.IsZero() || p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("pod %s is %s, being deleted: %t, %+v", p.Name, p.Status.Phase,
				!p.DeletionTimestamp.IsZero(), p.Status.Conditions)
		}
		*node = p.Spec.NodeName
		return nil
	})
}

// belongs returns an error unless the Node with the given name has the label and the taint that reserve it for the pod.
func (l *lab) belongs(ctx context.Context, name string, pod *corev1.Pod) error {
	node := &corev1.Node{}
	if err := l.Client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return err
	}
	uid := string(pod.UID)
	if node.Labels[v1beta1.OnDemandPodNodeLabel] != uid || !slices.Contains(node.Spec.Taints,
		corev1.Taint{Key: v1beta1.OnDemandPodNodeLabel, Value: uid, Effect: corev1.TaintEffectNoSchedule}) {
		return fmt.Errorf("Node %s does not belong to pod %s: labels %v, taints %v", name, uid, node.Labels,
			node.Spec.Taints)
	}
	return nil
}

// settledOnDemand returns an error unless the group "machines" has exactly the instances and Machines with the given
// names.
func (l *lab) settledOnDemand(ctx context.Context, nodes ...string) error {
	var have []string
	for _, s := range l.shards() {
		instances, err := s.instances(ctx, machines)
		if err != nil {
			return err
		}
		for _, i := range instances {
			have = append(have, i.GetInstanceId())
		}
	}
	var list clusterv1.MachineList
	if err := l.Client.List(ctx, &list, client.InNamespace(namespace),
		client.HasLabels{v1beta1.PodUIDLabel}); err != nil {
		return err
	}
	slices.Sort(have)
	slices.Sort(nodes)
	if !slices.Equal(have, nodes) || len(list.Items) != len(nodes) {
		return fmt.Errorf("instances %v, want %v; %d Machines", have, nodes, len(list.Items))
	}
	return nil
}

// countEvents returns how many events of a kind the instances of the group "machines" have had.
func (l *lab) countEvents(kind nstancev1.InstanceEvent_Type) (n int) {
	for _, s := range l.shards() {
		s.mu.Lock()
		for _, event := range s.events {
			if event.GetType() == kind && event.GetInstance().GetGroup() == machines {
				n++
			}
		}
		s.mu.Unlock()
	}
	return n
}

// testTwoPods deletes one of two pods that requested machines. The other pod must continue to run on its own machine.
func (l *lab) testTwoPods(t *testing.T) {
	first, second := requestingPod("first"), requestingPod("second")
	l.create(t.Context(), t, first)
	l.create(t.Context(), t, second)
	var a, b string
	await(t, "both pods run", patience, func(ctx context.Context) error {
		return errors.Join(l.runs(ctx, first, &a), l.runs(ctx, second, &b))
	})
	if a == b {
		t.Fatalf("both pods run on %s", a)
	}
	if err := errors.Join(l.belongs(t.Context(), a, first), l.belongs(t.Context(), b, second)); err != nil {
		t.Error(err)
	}
	if err := l.Client.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	await(t, "one pod and its machine are gone", patience, func(ctx context.Context) error {
		return l.settledOnDemand(ctx, b)
	})
	steady(t, "the other pod stays", func(ctx context.Context) error {
		return errors.Join(l.runs(ctx, second, &b), l.settledOnDemand(ctx, b))
	})
	l.removePods(t, second)
}

// removePods deletes pods, and waits for the end of all on-demand machines.
func (l *lab) removePods(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		if err := client.IgnoreNotFound(l.Client.Delete(t.Context(), pod)); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "no machine is left", patience, func(ctx context.Context) error { return l.settledOnDemand(ctx) })
}

// awaitSteady waits until check succeeds continuously for five seconds. A single success may come too early, because
// the operator may not have seen the new pods yet. The operator may still make a machine for a new pod that runs on
// another Node already. It must then delete the machine again.
func awaitSteady(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	since := time.Now()
	await(t, what+" for five seconds", patience, func(ctx context.Context) error {
		err := check(ctx)
		if err != nil {
			since = time.Now()
		} else if rest := 5*time.Second - time.Since(since); rest > 0 {
			err = fmt.Errorf("for another %v", rest)
		}
		return err
	})
}

// testGuest runs a second pod, the guest, on the machine that another pod requested. The guest tolerates every taint.
// The machine must stay until the guest is gone, and the guest must not be evicted.
func (l *lab) testGuest(t *testing.T) {
	owner := requestingPod("owner")
	l.create(t.Context(), t, owner)
	var node, guestNode string
	await(t, "the owner runs", patience, func(ctx context.Context) error { return l.runs(ctx, owner, &node) })
	guest := requestingPod("guest", func(pod *corev1.Pod) {
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	})
	l.create(t.Context(), t, guest)
	awaitSteady(t, "the guest runs on the owner's machine, and its own is released",
		func(ctx context.Context) error {
			if err := l.runs(ctx, guest, &guestNode); err != nil {
				return err
			}
			return l.settledOnDemand(ctx, node)
		})
	if guestNode != node {
		t.Fatalf("the guest runs on %s, the owner on %s", guestNode, node)
	}
	if err := l.Client.Delete(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	await(t, "the owner is gone", patience, func(ctx context.Context) error {
		return l.absent(ctx, &corev1.Pod{}, in(owner.Name))
	})
	steady(t, "the guest stays", func(ctx context.Context) error {
		return errors.Join(l.runs(ctx, guest, &guestNode), l.settledOnDemand(ctx, node))
	})
	l.removePods(t, guest)
}

// testChangedMinds creates pods that request a machine but soon no longer need it. No machine may remain for such a
// pod.
func (l *lab) testChangedMinds(t *testing.T) {
	elsewhere, deleted, undecided := requestingPod("elsewhere", anywhere), requestingPod("gone"),
		requestingPod("undecided")
	for _, pod := range []*corev1.Pod{elsewhere, deleted, undecided} {
		l.create(t.Context(), t, pod)
	}
	if err := l.Client.Delete(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}
	// The operator may change the pod at the same time. A patch cannot conflict with the operator's change, but an
	// update can.
	if err := l.Client.Patch(t.Context(), undecided.DeepCopy(), client.RawPatch("application/merge-patch+json",
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, v1beta1.OnDemandGroupAnnotation))); err != nil {
		t.Fatal(err)
	}
	var node string
	converged := func(ctx context.Context) error {
		return errors.Join(l.runs(ctx, elsewhere, &node), l.settledOnDemand(ctx))
	}
	awaitSteady(t, "the machines are released", converged)
	steady(t, "no machine is created again", converged)
	node = ""
	if err := has(t.Context(), l, &corev1.Pod{}, undecided.Name, func(p *corev1.Pod) error {
		if p.Spec.NodeName != "" {
			return fmt.Errorf("pod %s runs on %s", p.Name, p.Spec.NodeName)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	l.removePods(t, elsewhere, undecided)
}

// testNewNode stops the operator while the Node of an on-demand machine registers. The kubelet gives the Node the taint
// that the documentation recommends. Only the pod that requested the machine may run on the Node.
func (l *lab) testNewNode(t *testing.T) {
	ctx := t.Context()
	l.tainted.Store(true)
	defer l.tainted.Store(false)
	known, before := l.ids(t, "", l.shards()...), map[*shard]int{}
	for _, s := range l.shards() {
		before[s] = len(s.creations(machines))
	}
	stray := &corev1.Pod{ObjectMeta: objectMeta("stray"), Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: "none"}},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: known}}}}}}}}}
	l.create(ctx, t, stray)
	owner := requestingPod("owner")
	l.create(ctx, t, owner)
	var id string
	await(t, "the machine is being created", patience, func(context.Context) error {
		for _, s := range l.shards() {
			for _, event := range s.creations(machines)[before[s]:] {
				id = event.GetInstance().GetInstanceId()
			}
		}
		if id == "" {
			return errors.New("no instance is created")
		}
		return nil
	})
	operator := l.operators[len(l.operators)-1]
	if err := operator.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = operator.Signal(syscall.SIGCONT) }() // The process may have ended.
	await(t, "the Node is ready", patience, func(ctx context.Context) error { return l.nodeReady(ctx, id) })
	waits := func(ctx context.Context) error {
		return has(ctx, l, &corev1.Pod{}, stray.Name, func(p *corev1.Pod) error {
			if p.Spec.NodeName != "" {
				return fmt.Errorf("it runs on %s", p.Spec.NodeName)
			}
			return nil
		})
	}
	steady(t, "the other pod waits", waits)
	if err := operator.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	var node string
	await(t, "the owner runs", patience, func(ctx context.Context) error { return l.runs(ctx, owner, &node) })
	if err := errors.Join(l.belongs(ctx, node, owner), waits(ctx)); err != nil || node != id {
		t.Errorf("the owner runs on %s, want %s: %v", node, id, err)
	}
	l.removePods(t, owner, stray)
}

// testOnDemandAdmission installs the admission policy. With the policy, a pod that has no node selector runs only on
// the machine that it requested.
func (l *lab) testOnDemandAdmission(t *testing.T) {
	root, err := kube.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Cluster.Create(t.Context(), filepath.Join(root, "services", "operator", "kustomize",
		"components", "on-demand-admission", "on-demand.yaml")); err != nil {
		t.Fatal(err)
	}
	await(t, "the policy is in force", patience, func(ctx context.Context) error {
		pod := requestingPod("dry", anywhere)
		if err := l.Client.Create(ctx, pod, client.DryRunAll); err != nil {
			return err
		}
		if pod.Spec.NodeSelector[v1beta1.OnDemandGroupNodeLabel] != machines {
			return errors.New("the pod has no selector")
		}
		return nil
	})
	pod := requestingPod("admitted", anywhere)
	l.create(t.Context(), t, pod)
	var node string
	await(t, "the pod runs", patience, func(ctx context.Context) error { return l.runs(ctx, pod, &node) })
	if err := errors.Join(l.belongs(t.Context(), node, pod), l.settledOnDemand(t.Context(), node)); err != nil {
		t.Error(err)
	}
	l.removePods(t, pod)
}

// testOnDemandLimit requests more machines than the quota of a shard allows. The pods beyond the quota get an event,
// and get their machines when the quota is raised.
func (l *lab) testOnDemandLimit(t *testing.T) {
	const room, wanted = 3, 5
	l.limit(t, l.west, number(2+room)) // with the two workers
	var pods []*corev1.Pod
	for i := range wanted {
		pods = append(pods, requestingPod(fmt.Sprint("limited-", i), onShard("west")))
		l.create(t.Context(), t, pods[i])
	}
	await(t, "as many pods run as the limit allows, others are told", patience, func(ctx context.Context) error {
		running, told := 0, 0
		var list eventsv1.EventList
		if err := l.Client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, pod := range pods {
			var node string
			if l.runs(ctx, pod, &node) == nil {
				running++
			} else if slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
				return e.Regarding.UID == pod.UID && e.Type == corev1.EventTypeWarning &&
					strings.Contains(e.Note, "waiting for machine")
			}) {
				told++
			}
		}
		if running != room || told != wanted-room {
			return fmt.Errorf("%d pods run, %d were told", running, told)
		}
		return nil
	})
	if ids := l.ids(t, machines, l.west); len(ids) != room {
		t.Errorf("%d instances, want %d", len(ids), room)
	}
	l.limit(t, l.west, nil)
	await(t, "the other pods run", patience, func(ctx context.Context) error {
		var node string
		for _, pod := range pods {
			if err := l.runs(ctx, pod, &node); err != nil {
				return err
			}
		}
		return nil
	})
	l.removePods(t, pods...)
}

// limit sets the quota of instances on a shard.
func (l *lab) limit(t *testing.T, s *shard, instances *int) {
	t.Helper()
	state, err := s.bucket.state(s.id)
	if err != nil {
		t.Fatal(err)
	}
	body, token, err := state.ReadConfig(t.Context(), s.id)
	if err != nil {
		t.Fatal(err)
	}
	c, problems := config.Parse(s.id, body)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	c.Tenants = map[string]config.Tenant{tenant: {MaxInstances: instances}}
	if _, err := state.WriteConfig(t.Context(), s.id, config.Encode(c), token); err != nil {
		t.Fatal(err)
	}
	answer, err := s.RefreshConfig(t.Context(), &nstancev1.RefreshConfigRequest{})
	if err != nil || answer.GetResult() != nstancev1.RefreshResult_REFRESH_RESULT_UPDATED {
		t.Fatalf("refreshed: %v, error %v", answer, err)
	}
}

// testCrowd creates many pods at the same time and deletes them again.
func (l *lab) testCrowd(t *testing.T) {
	const within = 10 * time.Minute
	crowd := *crowdSize
	created, removed := l.countEvents(nstancev1.InstanceEvent_TYPE_CREATING),
		l.countEvents(nstancev1.InstanceEvent_TYPE_DELETED)
	var pods []*corev1.Pod
	began, waiting := map[string]time.Time{}, map[string]bool{}
	for i := range crowd {
		pod := requestingPod(fmt.Sprint("crowd-", i))
		pods = append(pods, pod)
		began[pod.Name], waiting[pod.Name] = time.Now(), true
		l.create(t.Context(), t, pod)
	}
	var took []time.Duration
	nodes := map[string]string{}
	await(t, fmt.Sprint(crowd, " pods run"), within, func(ctx context.Context) error {
		var list corev1.PodList
		if err := l.Client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, pod := range list.Items {
			if waiting[pod.Name] && pod.Status.Phase == corev1.PodRunning {
				delete(waiting, pod.Name)
				took = append(took, time.Since(began[pod.Name]))
				nodes[pod.Name] = pod.Spec.NodeName
			}
		}
		if len(waiting) > 0 {
			return fmt.Errorf("%d pods wait", len(waiting))
		}
		return nil
	})
	own := slices.Sorted(maps.Values(nodes))
	if n := len(slices.Compact(slices.Clone(own))); n != crowd {
		t.Errorf("%d pods run on %d Nodes", crowd, n)
	}
	for _, pod := range pods {
		if err := l.belongs(t.Context(), nodes[pod.Name], pod); err != nil {
			t.Error(err)
		}
	}
	if err := l.settledOnDemand(t.Context(), own...); err != nil {
		t.Error(err)
	}
	began["deletion"] = time.Now()
	for _, pod := range pods {
		if err := l.Client.Delete(t.Context(), pod); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	await(t, "no machine is left", within, func(ctx context.Context) error { return l.settledOnDemand(ctx) })
	created, removed = l.countEvents(nstancev1.InstanceEvent_TYPE_CREATING)-created,
		l.countEvents(nstancev1.InstanceEvent_TYPE_DELETED)-removed
	slices.Sort(took)
	t.Logf("from pod to running: p50 %.1f s, p90 %.1f s, most %.1f s; all removed in %.1f s; %d machines made, "+
		"%d removed", took[crowd/2].Seconds(), took[crowd*9/10].Seconds(), took[crowd-1].Seconds(),
		time.Since(began["deletion"]).Seconds(), created, removed)
	if created != crowd {
		t.Errorf("%d machines made for %d pods", created, crowd)
	}
}
