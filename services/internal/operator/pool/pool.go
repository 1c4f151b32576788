// Package pool reconciles groups of instances between Kubernetes and the shards. It imports the servers' groups as
// MachinePools, divides the replicas of each MachinePool among its shards, pushes each share to its shard, and reports
// the shards' answers in statuses and events.
//
// Invariants:
//
//   - Once a group has a pool, Kubernetes is the source of its size. Drift on a server is corrected, and a group that
//     already matches is not pushed.
//   - The share of a shard does not depend on which shards are reachable, and no shard waits for another.
//   - A group is deleted only when its pool is deleted or its shard is removed from the pool. A lost object or a lost
//     connection deletes nothing.
package pool

import (
	"context"
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools/finalizers,verbs=update
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceshardgroups,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceshardgroups/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=machinepools,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=machinepools/status,verbs=patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=machines,verbs=list;watch;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters,verbs=get;list;watch

const (
	// parallelPools and parallelGroups are the numbers of objects reconciled at a time. A reconciliation of a shard
	// group may wait for its shard. So parallelGroups is much larger than the number of workers that one shard can
	// occupy (see [callGate]).
	parallelPools  = 8
	parallelGroups = 64
)

// Setup registers the importer and the controllers of pools, shard groups and pool machines.
func Setup(mgr ctrl.Manager, s scope.Scope) error {
	p := pools{s.From(mgr, "nstance-pool")}
	for _, c := range []struct {
		name    string
		workers int
		setup   func(*ctrl.Builder) error
	}{
		{"nstanceimport", 1, newImporter(p).setup},
		{"nstancemachinepool", parallelPools, (&poolReconciler{p}).setup},
		{"nstanceshardgroup", parallelGroups, newGroupReconciler(p).setup},
		{"nstancepoolmachine", parallelPools, (&machineReconciler{p}).setup},
	} {
		if err := c.setup(p.NewController(mgr, c.name, c.workers)); err != nil {
			return fmt.Errorf("controller %s: %w", c.name, err)
		}
	}
	return nil
}

// pools is what the reconcilers of this package share.
type pools struct{ scope.Scope }

// referencedPool returns the name of the NstanceMachinePool that a MachinePool references. It returns false if the
// MachinePool references another kind.
func referencedPool(mp *clusterv1.MachinePool) (name string, ok bool) {
	ref := mp.Spec.Template.Spec.InfrastructureRef
	return ref.Name, ref.Kind == machinePoolKind && ref.APIGroup == v1beta1.GroupVersion.Group
}

// Kinds used in object references.
const (
	machinePoolKind = "NstanceMachinePool"
	machineKind     = "NstanceMachine"
)

// findMachinePool returns the MachinePool that [chooseUser] chooses for a pool. It returns nil if no MachinePool of the
// managed Cluster references the pool.
func (p *pools) findMachinePool(ctx context.Context, pool *v1beta1.NstanceMachinePool) (*clusterv1.MachinePool,
	error) {
	users, err := p.listUsers(ctx, p.Client, pool.Name)
	return chooseUser(pool, users), err
}
