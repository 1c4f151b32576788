package pool

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// dropOwner removes the owner references with the given UID.
func dropOwner(object metav1.Object, uid types.UID) {
	var kept []metav1.OwnerReference
	for _, ref := range object.GetOwnerReferences() {
		if ref.UID != uid {
			kept = append(kept, ref)
		}
	}
	object.SetOwnerReferences(kept)
}

func ownedBy(object metav1.Object, uid types.UID) bool {
	return slices.ContainsFunc(object.GetOwnerReferences(), func(ref metav1.OwnerReference) bool {
		return ref.UID == uid
	})
}

// keptMachine returns the new version of a Machine that must stay when its pool is deleted, or nil if nothing must
// change. In the new version, the Cluster owns the Machine instead of the MachinePool. So Kubernetes does not remove
// the Machine with the MachinePool, and Cluster API removes it with the Cluster.
func keptMachine(m *clusterv1.Machine, mp *clusterv1.MachinePool, cluster *clusterv1.Cluster) *clusterv1.Machine {
	if owner := metav1.GetControllerOf(m); owner == nil || owner.UID != mp.UID || !m.DeletionTimestamp.IsZero() {
		return nil
	}
	want := m.DeepCopy()
	dropOwner(want, mp.UID)
	dropOwner(want, cluster.UID)
	want.OwnerReferences = append(want.OwnerReferences, metav1.OwnerReference{
		APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID})
	return want
}

// adoption contains the changes that make a pool the owner of an NstanceMachine of an earlier pool for the same group.
type adoption struct {
	// infra and machine are the new versions of the NstanceMachine and its Machine, nil if nothing must change.
	infra   *v1beta1.NstanceMachine
	machine *clusterv1.Machine
	// wait is true if the Machine is being deleted or still has another controller. Then the adoption must be tried
	// again later.
	wait bool
}

// decideAdoption returns the changes that make a pool the owner of an existing NstanceMachine. machine is the Machine
// of the NstanceMachine, nil if there is none. If this Machine is being deleted, the pool does not adopt the
// NstanceMachine, because Cluster API deletes it and the instance together with the Machine.
func decideAdoption(infra *v1beta1.NstanceMachine, machine *clusterv1.Machine, pool *v1beta1.NstanceMachinePool,
	mp *clusterv1.MachinePool) (a adoption) {
	label := labelValue(mp.Name)
	if !infra.DeletionTimestamp.IsZero() || ownedBy(infra, pool.UID) {
		return a
	}
	if machine != nil {
		owner := metav1.GetControllerOf(machine)
		if !machine.DeletionTimestamp.IsZero() || owner != nil && owner.UID != mp.UID {
			return adoption{wait: true}
		}
		if machine.Labels[clusterv1.MachinePoolNameLabel] != label {
			a.machine = machine.DeepCopy()
			metav1.SetMetaDataLabel(&a.machine.ObjectMeta, clusterv1.MachinePoolNameLabel, label)
		}
	}
	a.infra = infra.DeepCopy()
	a.infra.OwnerReferences = nil
	for _, ref := range infra.OwnerReferences {
		if ref.Kind != machinePoolKind {
			a.infra.OwnerReferences = append(a.infra.OwnerReferences, ref)
		}
	}
	a.infra.OwnerReferences = append(a.infra.OwnerReferences, poolReference(pool))
	metav1.SetMetaDataLabel(&a.infra.ObjectMeta, clusterv1.MachinePoolNameLabel, label)
	return a
}

// poolReference returns the owner reference of a pool's NstanceMachines. The pool is not their controller, because
// Cluster API makes the Machine the controller.
func poolReference(pool *v1beta1.NstanceMachinePool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: v1beta1.GroupVersion.String(), Kind: machinePoolKind, Name: pool.Name,
		UID: pool.UID}
}
