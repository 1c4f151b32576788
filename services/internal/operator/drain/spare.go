package drain

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// This file keeps pods off the Nodes of warm spares. The operator cordons such a Node, and uncordons it when the spare
// is a member. A cordon lets the pods of DaemonSets run, so that they need not start when the Node is uncordoned.
//
// Before the operator sees a new Node, only a taint can keep pods off it: the kubelet registers the Node with it. The
// operator removes the taint and cordons the Node in one update.

// spareChange is what has to be changed about a Node because its instance is, or was, a warm spare.
type spareChange string

const (
	noChange    spareChange = ""
	cordonSpare spareChange = "cordon"   // remove the taint, and cordon the Node unless it is cordoned
	admitMember spareChange = "uncordon" // remove the taint, and the cordon if the operator has made it
)

// decideSpare compares a Node with its instance. A Node whose instance is being deleted or is preserved does not
// change: the drain has cordoned it.
func decideSpare(node *corev1.Node, i *nstancev1.InstanceStatus) spareChange {
	_, ours := node.Annotations[v1beta1.SpareCordonAnnotation]
	tainted := slices.ContainsFunc(node.Spec.Taints, isSpareTaint)
	switch {
	case i.GetState() == "deleting", i.GetState() == "deleted", i.GetPreservedAt() != nil:
	case i.GetSpare() && (tainted || !node.Spec.Unschedulable):
		return cordonSpare
	case !i.GetSpare() && (tainted || ours):
		return admitMember
	}
	return noChange
}

func isSpareTaint(t corev1.Taint) bool { return t.Key == v1beta1.SpareTaint }

// apply makes the change. A Node that a person has cordoned stays cordoned.
func (c spareChange) apply(node *corev1.Node) {
	if c != noChange {
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, isSpareTaint)
	}
	switch c {
	case cordonSpare:
		if !node.Spec.Unschedulable {
			node.Spec.Unschedulable = true
			metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1beta1.SpareCordonAnnotation, "true")
		}
	case admitMember:
		if _, ours := node.Annotations[v1beta1.SpareCordonAnnotation]; ours {
			node.Spec.Unschedulable = false
			delete(node.Annotations, v1beta1.SpareCordonAnnotation)
		}
	}
}
