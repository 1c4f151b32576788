package drain

import (
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// TestSpareNodes checks what the operator does to the Node of a spare, and of a member that was one. In a Node, "taint"
// is the kubelet's taint, "cordon" is a cordon, and "ours" says that the operator made it.
func TestSpareNodes(t *testing.T) {
	const taint, cordon, ours = 1, 2, 4
	spare, member := &nstancev1.InstanceStatus{State: "registered", Spare: true},
		&nstancev1.InstanceStatus{State: "registered"}
	leaving := []*nstancev1.InstanceStatus{{State: "deleting", Spare: true}, {State: "deleting"}, {State: "deleted"},
		{State: "registered", PreservedAt: timestamppb.Now()}}
	for _, c := range []struct {
		instance   *nstancev1.InstanceStatus
		have, want int
	}{
		{spare, 0, cordon | ours},
		{spare, taint, cordon | ours},
		{spare, cordon | ours, cordon | ours},
		{spare, cordon | ours | taint, cordon | ours},
		{spare, cordon, cordon},         // a person's
		{spare, cordon | taint, cordon}, // a person's
		{spare, ours, cordon | ours},    // a person has uncordoned it
		{member, 0, 0},
		{member, taint, 0}, // it became a member before it had a Node
		{member, cordon | ours, 0},
		{member, cordon | ours | taint, 0},
		{member, cordon, cordon},
		{member, cordon | taint, cordon},
		{member, ours, 0}, // a person has uncordoned it
	} {
		node := nodeOf("n", "p:live", "a/"+idA)
		other := corev1.Taint{Key: "other", Effect: corev1.TaintEffectNoExecute}
		node.Spec.Taints = []corev1.Taint{other}
		node.Spec.Unschedulable = c.have&cordon > 0
		if c.have&taint > 0 {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: v1beta1.SpareTaint,
				Effect: corev1.TaintEffectNoSchedule})
		}
		if c.have&ours > 0 {
			node.Annotations[v1beta1.SpareCordonAnnotation] = "true"
		}
		for _, i := range leaving {
			if change := decideSpare(node, i); change != noChange {
				t.Errorf("Node %b of %v: %s, want no change", c.have, i, change)
			}
		}
		decideSpare(node, c.instance).apply(node)
		got := 0
		if node.Spec.Unschedulable {
			got |= cordon
		}
		if len(node.Spec.Taints) != 1 {
			got |= taint
		}
		if _, is := node.Annotations[v1beta1.SpareCordonAnnotation]; is {
			got |= ours
		}
		if got != c.want || node.Spec.Taints[0] != other {
			t.Errorf("Node %b, spare %v: %b %v, want %b", c.have, c.instance.GetSpare(), got, node.Spec.Taints, c.want)
		}
		if again := decideSpare(node, c.instance); again != noChange {
			t.Errorf("Node %b, spare %v: %s again", c.have, c.instance.GetSpare(), again)
		}
	}
}
