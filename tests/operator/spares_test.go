package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// testSpares makes a pool with a warm spare, and kills its only member. A pod that waits must run on the Node of the
// spare, on which the pod of a DaemonSet runs before.
func (l *lab) testSpares(t *testing.T) {
	const warm = "warm"
	ctx := t.Context()
	l.create(ctx, t, &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(warm), Spec: v1beta1.NstanceMachinePoolSpec{
		Group: warm, Shards: []string{"east"}, Config: &apiextensionsv1.JSON{
			Raw: []byte(`{"template":"worker","spares":{"count":1,"max_age":"24h"}}`)}}})
	l.create(ctx, t, referringPool(warm, warm, 1))
	member, spare := l.awaitSpare(t, warm)
	l.daemonSet(t, "on-spares", spare)
	pod := &corev1.Pod{ObjectMeta: objectMeta("waits-for-spare"), Spec: corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelHostname: spare},
		Containers:   []corev1.Container{{Name: "main", Image: "none"}}}}
	l.create(ctx, t, pod)
	await(t, "the pod waits", patience, func(ctx context.Context) error {
		return has(ctx, l, &corev1.Pod{}, pod.Name, func(p *corev1.Pod) error {
			if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
			}) {
				return fmt.Errorf("the pod is %s: %v", p.Status.Phase, p.Status.Conditions)
			}
			return nil
		})
	})
	if err := l.east.kill(member); err != nil {
		t.Fatal(err)
	}
	await(t, "the pod runs on the spare's Node after the member's VM was killed", patience,
		func(ctx context.Context) error {
			return has(ctx, l, &corev1.Pod{}, pod.Name, func(p *corev1.Pod) error {
				if p.Status.Phase != corev1.PodRunning || p.Spec.NodeName != spare {
					return fmt.Errorf("the pod is %s on %q", p.Status.Phase, p.Spec.NodeName)
				}
				return nil
			})
		})
	l.logPromotion(t, spare)
	promoted, next := l.awaitSpare(t, warm)
	if promoted != spare || next == member {
		t.Errorf("the member is %s and the spare %s, want the member %s", promoted, next, spare)
	}
	await(t, "the lost member left nothing behind", patience, func(ctx context.Context) error {
		return l.left(ctx, l.east, member)
	})
	l.runSteps(t, sparesPage, "See them")
	l.runSteps(t, sparesPage, "What the operator changes", "NODE", next)
	l.deleteInstance(t, l.east, promoted)
	await(t, "the next member's Node stays cordoned", patience, func(ctx context.Context) error {
		return errors.Join(l.left(ctx, l.east, promoted), l.machineRuns(ctx, next, next),
			l.schedulable(ctx, next, false))
	})
	instances := l.ids(t, warm, l.east)
	if err := client.IgnoreNotFound(l.Client.Delete(ctx, pod)); err != nil {
		t.Fatal(err)
	}
	l.remove(t, "machinepool", warm)
	await(t, "the pool left nothing behind", patience, func(ctx context.Context) error {
		err := l.absent(ctx, &v1beta1.NstanceMachinePool{}, in(warm))
		for _, id := range instances {
			err = errors.Join(err, l.left(ctx, l.east, id))
		}
		return err
	})
}

// testSleepingSpares makes a pool whose spare sleeps. When its only member is killed, the spare wakes, and its Node
// becomes ready without a cordon.
func (l *lab) testSleepingSpares(t *testing.T) {
	const cold = "cold"
	ctx := t.Context()
	l.create(ctx, t, &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(cold), Spec: v1beta1.NstanceMachinePoolSpec{
		Group: cold, Shards: []string{"east"}, Config: &apiextensionsv1.JSON{
			Raw: []byte(`{"template":"worker","spares":{"count":1,"state":"suspended"}}`)}}})
	l.create(ctx, t, referringPool(cold, cold, 1))
	var member, spare string
	await(t, "a member, and a spare that sleeps", patience, func(ctx context.Context) error {
		instances, err := l.east.instances(ctx, cold)
		if err != nil || len(instances) != 2 || instances[0].GetSpare() == instances[1].GetSpare() {
			return fmt.Errorf("instances %v, error %w", instances, err)
		}
		if instances[0].GetSpare() {
			slices.Reverse(instances)
		}
		member, spare = instances[0].GetInstanceId(), instances[1].GetInstanceId()
		if ready, health := l.nodeReady(ctx, spare) == nil, instances[1].GetHealth(); ready || health != "asleep" {
			return fmt.Errorf("the spare is %s, and its Node is ready: %t", health, ready)
		}
		return errors.Join(l.schedulable(ctx, spare, false), l.poolRuns(ctx, cold, 1), l.nodeReady(ctx, member))
	})
	if err := l.east.kill(member); err != nil {
		t.Fatal(err)
	}
	await(t, "the spare has woken, and its Node is ready", patience, func(ctx context.Context) error {
		return errors.Join(l.schedulable(ctx, spare, true), l.nodeReady(ctx, spare))
	})
	await(t, "its NstanceMachine is ready", patience, func(ctx context.Context) error {
		return errors.Join(l.machineRuns(ctx, spare, spare),
			has(ctx, l, &v1beta1.NstanceMachine{}, spare, func(m *v1beta1.NstanceMachine) error {
				return condition(m.Status.Conditions, v1beta1.ReadyCondition, metav1.ConditionTrue)
			}))
	})
	instances := l.ids(t, cold, l.east)
	l.remove(t, "machinepool", cold)
	await(t, "the pool left nothing behind", patience, func(ctx context.Context) error {
		err := l.absent(ctx, &v1beta1.NstanceMachinePool{}, in(cold))
		for _, id := range instances {
			err = errors.Join(err, l.left(ctx, l.east, id))
		}
		return err
	})
}

// awaitSpare waits until a pool of one replica on east has one member and one spare, and returns their IDs. The Node of
// the spare must be ready and cordoned, and the spare must be no replica.
func (l *lab) awaitSpare(t *testing.T, group string) (member, spare string) {
	t.Helper()
	await(t, "a member and a spare", patience, func(ctx context.Context) error {
		instances, err := l.east.instances(ctx, group)
		if err != nil || len(instances) != 2 || instances[0].GetSpare() == instances[1].GetSpare() {
			return fmt.Errorf("instances %v, error %w", instances, err)
		}
		if instances[0].GetSpare() {
			slices.Reverse(instances)
		}
		member, spare = instances[0].GetInstanceId(), instances[1].GetInstanceId()
		return errors.Join(l.schedulable(ctx, member, true), l.schedulable(ctx, spare, false),
			l.nodeReady(ctx, spare), l.noMachine(ctx, spare), l.machineRuns(ctx, member, member),
			l.poolRuns(ctx, group, 1),
			has(ctx, l, &v1beta1.NstanceMachinePool{}, group, func(p *v1beta1.NstanceMachinePool) error {
				if s := p.Status.Spares; value(p.Status.Replicas) != 1 || value(p.Status.ReadyReplicas) != 1 ||
					!slices.Equal(p.Spec.ProviderIDList, []string{instances[0].GetProviderId()}) ||
					s == nil || value(s.Count) != 1 || value(s.Actual) != 1 || value(s.Ready) != 1 {
					return fmt.Errorf("the pool is %+v with %v", p.Status, p.Spec.ProviderIDList)
				}
				return condition(p.Status.Conditions, v1beta1.ReadyCondition, metav1.ConditionTrue)
			}))
	})
	return member, spare
}

// schedulable returns an error unless the Node has neither a cordon nor the taint of spares, or has only the cordon.
// Kubernetes gives a cordoned Node another taint.
func (l *lab) schedulable(ctx context.Context, name string, want bool) error {
	node := &corev1.Node{}
	if err := l.Client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return err
	}
	has := func(key string) bool {
		return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
	}
	if node.Spec.Unschedulable == want || has(v1beta1.SpareTaint) || has(corev1.TaintNodeUnschedulable) == want {
		return fmt.Errorf("node %s: unschedulable %t, taints %v", name, node.Spec.Unschedulable, node.Spec.Taints)
	}
	return nil
}

// logPromotion logs the time from the decision that a spare becomes a member to the event that its Node was uncordoned.
func (l *lab) logPromotion(t *testing.T, spare string) {
	t.Helper()
	answer, err := l.east.GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: spare})
	if err != nil || answer.GetInstance().GetSpare() || answer.GetInstance().GetPromotedAt() == nil {
		t.Fatalf("the spare is %v, error %v", answer.GetInstance(), err)
	}
	at := answer.GetInstance().GetPromotedAt().AsTime()
	await(t, "an event of the Node", patience, func(ctx context.Context) error {
		var events corev1.EventList
		if err := l.Client.List(ctx, &events); err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Reason == v1beta1.SparePromotedReason && event.InvolvedObject.Name == spare {
				t.Logf("promoted at %s, uncordoned %s later", at.Format(time.RFC3339Nano),
					event.EventTime.Sub(at).Round(time.Millisecond))
				return nil
			}
		}
		return fmt.Errorf("no event among %d", len(events.Items))
	})
}
