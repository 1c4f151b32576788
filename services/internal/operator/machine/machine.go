// Package machine reconciles NstanceMachines. It asks the servers to create the instances of individual machines and to
// delete the instances of deleted machines. It reports the states of all instances, including those of pools, to
// Cluster API.
//
// Invariants:
//
//   - An individual machine has at most one instance. The operator stores the instance's ID in the machine before it
//     asks the server to create the instance. A repeated request with the same ID creates no second instance.
//   - An instance counts as gone only when a leader says so. An unreachable shard never causes a Machine to be deleted.
package machine

import (
	"context"
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinetemplates,verbs=list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinetemplates/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=machines,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters,verbs=list;watch

// parallel is the number of machines reconciled at a time. It is high because a reconciliation may wait for a server.
const parallel = 16

// Setup registers the controllers of NstanceMachine and NstanceMachineTemplate, and their indexes, among
// them [scope.MachineByInstance].
func Setup(mgr ctrl.Manager, s scope.Scope) error {
	s = s.From(mgr, "nstance-machine")
	for _, i := range indexes {
		if err := i.Add(mgr.GetFieldIndexer()); err != nil {
			return err
		}
	}
	r := &Reconciler{Scope: s}
	all := func(ctx context.Context) []reconcile.Request { return r.requestsFor(ctx) }
	err := s.WatchCluster(s.NewController(mgr, "nstancemachine", parallel), all).
		For(&v1beta1.NstanceMachine{}).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(r.requestsForMachine)).
		Watches(&v1beta1.NstanceMachinePool{}, handler.EnqueueRequestsFromMapFunc(r.requestsForPool),
			builder.WithPredicates(scope.DeletionChanged[client.Object]())).
		WatchesRawSource(shards.Source(s.Shards, r.requestsForChange)).
		Complete(s.Supervise(r, &v1beta1.NstanceMachine{}))
	if err != nil {
		return fmt.Errorf("controller of NstanceMachine: %w", err)
	}
	if err := newOrphanReconciler(r).setup(mgr); err != nil {
		return err
	}
	t := &templateReconciler{Scope: s, types: shards.Types{Now: s.Now}}
	err = s.NewController(mgr, "nstancemachinetemplate", 1).
		For(&v1beta1.NstanceMachineTemplate{}).
		WatchesRawSource(shards.Source(s.Shards, t.requestsForChange)).
		Complete(s.Supervise(t, &v1beta1.NstanceMachineTemplate{}))
	if err != nil {
		return fmt.Errorf("controller of NstanceMachineTemplate: %w", err)
	}
	return nil
}
