package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

func objectMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func budget(name string) *policyv1.PodDisruptionBudget {
	one := intstr.FromInt32(1)
	return &policyv1.PodDisruptionBudget{ObjectMeta: objectMeta(name),
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}}}
}

// pod creates a pod on a Node and waits until it runs. If "guarded" is true, a PodDisruptionBudget forbids evicting the
// pod.
func (l *lab) pod(ctx context.Context, t *testing.T, name, node string, guarded bool) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: objectMeta(name), Spec: corev1.PodSpec{NodeSelector: map[string]string{
		corev1.LabelHostname: node},
		Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
	pod.Labels = map[string]string{"app": name}
	l.create(ctx, t, pod)
	if guarded {
		l.create(ctx, t, budget(name))
	}
	await(t, "pod "+name+" runs", patience, func(ctx context.Context) error {
		if err := has(ctx, l, &corev1.Pod{}, name, func(p *corev1.Pod) error {
			if p.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("pod %s is %s on %q", name, p.Status.Phase, p.Spec.NodeName)
			}
			return nil
		}); err != nil || !guarded {
			return err
		}
		return has(ctx, l, &policyv1.PodDisruptionBudget{}, name, func(b *policyv1.PodDisruptionBudget) error {
			if b.Status.CurrentHealthy != 1 || b.Status.DisruptionsAllowed != 0 {
				return fmt.Errorf("the budget counts %+v", b.Status)
			}
			return nil
		})
	})
}

// deleteInstance makes a shard delete an instance through a client that is not the operator.
func (l *lab) deleteInstance(t *testing.T, s *shard, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := s.DeleteInstance(ctx, &nstancev1.DeleteInstanceRequest{InstanceId: id, Reason: "test"}); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) cordoned(ctx context.Context, name string) error {
	var node corev1.Node
	if err := l.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return err
	}
	if !node.Spec.Unschedulable {
		return fmt.Errorf("node %s is not cordoned", name)
	}
	return nil
}

// daemonSet creates a DaemonSet and waits until its pod runs on a Node. It deletes the DaemonSet when the test ends.
func (l *lab) daemonSet(t *testing.T, name, node string) {
	t.Helper()
	labels := map[string]string{"app": name}
	set := &appsv1.DaemonSet{ObjectMeta: objectMeta(name), Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}}}}}
	l.create(t.Context(), t, set)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.Client.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			t.Error(err)
		}
	})
	await(t, "the DaemonSet has a pod on the Node", patience, func(ctx context.Context) error {
		var list corev1.PodList
		if err := l.Client.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels(labels)); err != nil {
			return err
		}
		for _, pod := range list.Items {
			if pod.Spec.NodeName == node && pod.Status.Phase == corev1.PodRunning {
				return nil
			}
		}
		return fmt.Errorf("none of %d pods", len(list.Items))
	})
}

// testDrain checks that a pod that may not be evicted delays the deletion of its instance until eviction is allowed.
// The pod of a DaemonSet does not delay it.
func (l *lab) testDrain(t *testing.T) {
	ctx := t.Context()
	id := l.one(t, workers, l.west)
	l.daemonSet(t, "daemon", id)
	l.pod(ctx, t, "blocked", id, true)
	l.deleteInstance(t, l.west, id)
	began := time.Now()
	await(t, "cordoned", patience, func(ctx context.Context) error { return l.cordoned(ctx, id) })
	for time.Since(began) < 8*time.Second {
		if err := has(ctx, l, &corev1.Pod{}, "blocked", func(p *corev1.Pod) error {
			if p.DeletionTimestamp != nil {
				return errors.New("the pod was deleted against its budget")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		answer, err := l.west.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id})
		if err != nil || answer.GetInstance().GetState() != "deleting" ||
			!slices.Contains([]string{"running", "pending"}, answer.GetInstance().GetProviderState()) {
			t.Fatalf("the instance is %v, error %v", answer.GetInstance(), err)
		}
		<-time.After(500 * time.Millisecond)
	}
	if err := l.Client.Delete(ctx, budget("blocked")); err != nil {
		t.Fatal(err)
	}
	await(t, "evicted", 30*time.Second, func(ctx context.Context) error {
		return l.absent(ctx, &corev1.Pod{}, in("blocked"))
	})
	await(t, "instance deleted, before its deadline", 50*time.Second-time.Since(began),
		func(ctx context.Context) error {
			return l.left(ctx, l.west, id)
		})
	l.restored(t, workers, l.both(2, 2))
}

// testDeadline checks a drain that cannot finish. The drain must end at its timeout, and events must report the
// timeout.
func (l *lab) testDeadline(t *testing.T) {
	ctx := t.Context()
	id := l.one(t, guarded, l.east)
	l.pod(ctx, t, "stubborn", id, true)
	l.deleteInstance(t, l.east, id)
	took := await(t, "instance deleted at its deadline", patience, func(ctx context.Context) error {
		return l.left(ctx, l.east, id)
	})
	if took < 9*time.Second || took > 40*time.Second {
		t.Errorf("took %s with a deadline of 10 s", took)
	}
	await(t, "an event reports it", patience, func(ctx context.Context) error {
		var events corev1.EventList
		if err := l.Client.List(ctx, &events); err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Type == corev1.EventTypeWarning && (event.Reason == v1beta1.DrainFailedReason ||
				event.Reason == v1beta1.DrainDeadlineReason) &&
				strings.Contains(event.InvolvedObject.Name+event.Message, id) {
				return nil
			}
		}
		return fmt.Errorf("no event among %d", len(events.Items))
	})
	if err := client.IgnoreNotFound(l.Client.Delete(ctx, budget("stubborn"))); err != nil {
		t.Fatal(err)
	}
	// The VM's kubelet is gone, so the pod disappears only if it is deleted without a grace period.
	pod := &corev1.Pod{ObjectMeta: objectMeta("stubborn")}
	if err := client.IgnoreNotFound(l.Client.Delete(ctx, pod, client.GracePeriodSeconds(0))); err != nil {
		t.Fatal(err)
	}
	l.restored(t, guarded, map[*shard]int{l.east: 1})
}

// testDrainLimit deletes a Machine with kubectl while a budget forbids the eviction of a pod on its Node. Cluster API's
// drain must end at the drain timeout of the group, and the instance must be replaced.
func (l *lab) testDrainLimit(t *testing.T) {
	ctx := t.Context()
	id := l.one(t, guarded, l.east)
	machine := l.machineOf(t, id)
	await(t, "the drain is limited", 20*time.Second, func(ctx context.Context) error {
		return has(ctx, l, &clusterv1.Machine{}, machine, func(m *clusterv1.Machine) error {
			if limit := value(m.Spec.Deletion.NodeDrainTimeoutSeconds); limit != 10 {
				return fmt.Errorf("the limit is %d s, want the drain_timeout of 10 s", limit)
			}
			return nil
		})
	})
	l.pod(ctx, t, "stubborn-too", id, true)
	l.kubectl(t, "-n", namespace, "delete", "machine.cluster.x-k8s.io", machine, "--wait=false")
	await(t, "instance deleted although the budget forbids the eviction", patience, func(ctx context.Context) error {
		return l.left(ctx, l.east, id)
	})
	pod := &corev1.Pod{ObjectMeta: objectMeta("stubborn-too")}
	if err := errors.Join(client.IgnoreNotFound(l.Client.Delete(ctx, budget("stubborn-too"))),
		client.IgnoreNotFound(l.Client.Delete(ctx, pod, client.GracePeriodSeconds(0)))); err != nil {
		t.Fatal(err)
	}
	l.restored(t, guarded, map[*shard]int{l.east: 1})
}

// machineOf returns the name of the Machine of an instance of a pool.
func (l *lab) machineOf(t *testing.T, id string) string {
	t.Helper()
	var list clusterv1.MachineList
	if err := l.Client.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Items {
		if m.Spec.InfrastructureRef.Name == id {
			return m.Name
		}
	}
	t.Fatalf("instance %s has no Machine", id)
	return ""
}

// testSpot checks that a spot termination notice drains the Node and replaces the instance.
func (l *lab) testSpot(t *testing.T) {
	ctx := t.Context()
	id := l.one(t, spot, l.east)
	await(t, "its agent asks for notices", patience, func(context.Context) error {
		if !l.metadata.watched(id) {
			return errors.New("it has not asked")
		}
		return nil
	})
	l.pod(ctx, t, "passenger", id, false)
	l.metadata.notify(id, time.Now().Add(2*time.Minute))
	await(t, "evicted", patience, func(ctx context.Context) error {
		return l.absent(ctx, &corev1.Pod{}, in("passenger"))
	})
	await(t, "replaced", patience, func(ctx context.Context) error { return l.left(ctx, l.east, id) })
	l.restored(t, spot, map[*shard]int{l.east: 1})
}

// machine creates an individual machine on a shard.
func (l *lab) machine(t *testing.T, name, shard string) {
	t.Helper()
	l.create(t.Context(), t, &v1beta1.NstanceMachine{ObjectMeta: objectMeta(name),
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: machines}, Shard: shard}})
	none := ""
	l.create(t.Context(), t, &clusterv1.Machine{ObjectMeta: objectMeta(name),
		Spec: clusterv1.MachineSpec{ClusterName: clusterName,
			Bootstrap: clusterv1.Bootstrap{DataSecretName: &none},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
				Kind: "NstanceMachine", Name: name}}})
}

// testMachine creates two individual Machines. A user deletes the first Machine in Kubernetes. A client deletes the
// instance of the second Machine on the shard. Afterwards it creates an NstanceMachine of a pool for an instance that is
// gone: it never gets a Machine, so the operator deletes it.
func (l *lab) testMachine(t *testing.T) {
	ctx := t.Context()
	var deleted string
	for _, deletedBy := range []string{"kubernetes", "server"} {
		name := "single-" + deletedBy
		l.machine(t, name, "west")
		var id string
		await(t, "Machine Running", patience, func(ctx context.Context) error {
			infra := &v1beta1.NstanceMachine{}
			if err := l.Client.Get(ctx, in(name), infra); err != nil {
				return err
			}
			id = infra.Status.InstanceID
			if infra.Spec.ProviderID == "" || !infra.Status.Ready || len(infra.Status.Addresses) == 0 ||
				infra.Status.FailureDomain != "west" {
				return fmt.Errorf("NstanceMachine: %+v %+v", infra.Spec, infra.Status)
			}
			return l.machineRuns(ctx, name, id)
		})
		answer, err := l.west.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id})
		if err != nil || !answer.GetInstance().GetOnDemand() || answer.GetInstance().GetGroup() != machines {
			t.Fatalf("instance %v, error %v", answer.GetInstance(), err)
		}
		if deletedBy == "server" {
			l.deleteInstance(t, l.west, id)
		} else {
			l.kubectl(t, "-n", namespace, "delete", "machine.cluster.x-k8s.io", name, "--wait=false")
		}
		deleted = id
		await(t, "gone, deleted by "+deletedBy, patience, func(ctx context.Context) error {
			return errors.Join(l.left(ctx, l.west, id), l.absent(ctx, &clusterv1.Machine{}, in(name)),
				l.absent(ctx, &v1beta1.NstanceMachine{}, in(name)))
		})
	}
	late := &v1beta1.NstanceMachine{ObjectMeta: objectMeta("late"), Spec: v1beta1.NstanceMachineSpec{
		GroupRef: v1beta1.GroupReference{Name: machines}, Shard: "west", InstanceID: deleted}}
	late.Labels = map[string]string{clusterv1.ClusterNameLabel: clusterName, clusterv1.MachinePoolNameLabel: "none"}
	l.create(ctx, t, late)
	await(t, "gone without a Machine", patience, func(ctx context.Context) error {
		return l.absent(ctx, &v1beta1.NstanceMachine{}, in("late"))
	})
	if err := l.poolRuns(ctx, machines, 0); err != nil {
		t.Errorf("the group's pool has changed: %v", err)
	}
}

// testOnDemand checks that a pod that requests an instance gets one and runs on it. The instance is deleted with the
// pod.
func (l *lab) testOnDemand(t *testing.T) {
	ctx := t.Context()
	pod := &corev1.Pod{ObjectMeta: objectMeta("job"), Spec: corev1.PodSpec{NodeSelector: map[string]string{
		v1beta1.OnDemandGroupNodeLabel: machines},
		Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
	pod.Annotations = map[string]string{v1beta1.OnDemandGroupAnnotation: machines,
		v1beta1.OnDemandShardAnnotation: "east"}
	l.create(ctx, t, pod)
	var id string
	await(t, "the pod runs on a separate instance", patience, func(ctx context.Context) error {
		return has(ctx, l, &corev1.Pod{}, "job", func(p *corev1.Pod) error {
			id = p.Spec.NodeName
			if p.Status.Phase != corev1.PodRunning || id == "" {
				return fmt.Errorf("the pod is %s: %v", p.Status.Phase, p.Status.Conditions)
			}
			return nil
		})
	})
	answer, err := l.east.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id})
	if err != nil || !answer.GetInstance().GetOnDemand() || answer.GetInstance().GetGroup() != machines {
		t.Fatalf("it runs on %v, error %v", answer.GetInstance(), err)
	}
	if err := l.Client.Delete(ctx, pod); err != nil {
		t.Fatal(err)
	}
	await(t, "the instance went with it", patience, func(ctx context.Context) error { return l.left(ctx, l.east, id) })
}

// quiet is like await, but does not log how long it took.
func quiet(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	if _, err := poll(t.Context(), patience, try); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func tail(path string) []byte {
	raw, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	return raw
}
