package pool

import (
	"context"
	"fmt"
	"slices"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
