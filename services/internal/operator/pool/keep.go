package pool

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// adoptionRetry is the time until the operator tries again to adopt a machine that an earlier pool left behind.
const adoptionRetry = 2 * time.Second

// keepMachines keeps the Machines of static groups while their pool is being deleted, and those that the pool heir
// takes over, which may be nil. Without this, Kubernetes would remove the Machines together with the MachinePool.
// Cluster API would then drain and remove their Nodes, although the instances stay.
func (r *poolReconciler) keepMachines(ctx context.Context, in poolInput,
	heir *v1beta1.NstanceMachinePool) error {
	if in.pool.DeletionTimestamp.IsZero() || in.paused || in.ending || in.machinePool == nil {
		return nil
	}
	cluster := &clusterv1.Cluster{}
	if found, err := r.Read(ctx, r.ClusterName(), cluster); err != nil || !found {
		return err
	}
	list := &clusterv1.MachineList{}
	if err := r.Client.List(ctx, list, client.InNamespace(r.Namespace), client.MatchingLabels{
		clusterv1.MachinePoolNameLabel: labelValue(in.machinePool.Name)}); err != nil {
		return fmt.Errorf("list machines: %w", err)
	}
	for i := range list.Items {
		was := &list.Items[i]
		want := keptMachine(was, in.machinePool, cluster)
		if want == nil {
			continue
		}
		infra := &v1beta1.NstanceMachine{}
		if found, err := r.Read(ctx, was.Spec.InfrastructureRef.Name, infra); err != nil {
			return err
		} else if !found || !r.isStatic(infra) && (heir == nil || !slices.Contains(heir.Spec.Shards,
			infra.Spec.Shard)) {
			continue
		}
		if err := r.PatchLocked(ctx, was, want); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("write owner of machine %s: %w", was.Name, err)
		}
	}
	return nil
}

// isStatic reports whether the machine's instance belongs to a static group, which its shard's configuration defines.
func (p *pools) isStatic(m *v1beta1.NstanceMachine) bool {
	shard, ok := p.Shards.Shard(m.Spec.Shard)
	if !ok {
		return false
	}
	group, _ := shard.Group(m.Spec.GroupRef.Name)
	return group.GetIsStatic()
}

// adoptMachine makes a pool the owner of an NstanceMachine that an earlier pool for the same group has left behind. It
// returns true if the pool cannot adopt the NstanceMachine yet, so that the caller must try again later.
func (r *machineReconciler) adoptMachine(ctx context.Context, infra *v1beta1.NstanceMachine,
	pool *v1beta1.NstanceMachinePool, mp *clusterv1.MachinePool) (wait bool, err error) {
	machine, err := r.machineOf(ctx, infra.Name)
	if err != nil {
		return false, err
	}
	a := decideAdoption(infra, machine, pool, mp)
	if a.machine != nil {
		if err := r.Patch(ctx, machine, a.machine); client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("write label of machine %s: %w", machine.Name, err)
		}
	}
	if a.infra != nil {
		if err := r.PatchLocked(ctx, infra, a.infra); client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("write owner of machine %s: %w", infra.Name, err)
		}
	}
	return a.wait, nil
}

// machineOf returns the Machine that Cluster API creates for a pool's instance, nil if there is none. The name of the
// Machine is the instance's ID.
func (r *machineReconciler) machineOf(ctx context.Context, instance string) (*clusterv1.Machine, error) {
	machine := &clusterv1.Machine{}
	found, err := r.Read(ctx, instance, machine)
	if err != nil || !found {
		return nil, err
	}
	return machine, nil
}

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

// newMachinePool is how long the operator waits for Cluster API's finalizer on a new MachinePool before it creates
// instances. If a MachinePool is deleted before it has the finalizer, Cluster API does not delete the
// NstanceMachinePool. The instances would then stay. The wait is limited, because the finalizer never comes where
// Cluster API does not run (dev-k8s).
const newMachinePool = 5 * time.Second

// waitForFinalizer returns the time until the operator creates instances for a MachinePool, 0 if it may do so now. If
// the MachinePool seems to be created in the future, the clocks of the API server and the operator differ, and the
// operator does not wait.
func waitForFinalizer(mp *clusterv1.MachinePool, now time.Time) time.Duration {
	if mp == nil || controllerutil.ContainsFinalizer(mp, clusterv1.MachinePoolFinalizer) {
		return 0
	}
	age := now.Sub(mp.CreationTimestamp.Time)
	if age < 0 || age > newMachinePool {
		return 0
	}
	return newMachinePool - age
}
