package pool

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// specChanged ignores updates that change only the status. A controller must not use specChanged for objects whose
// status it writes. The controller computes each status from a cache that may be out of date. So it must run again when
// the cache shows the new status.
var specChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	was, is := e.ObjectOld, e.ObjectNew
	return was.GetGeneration() != is.GetGeneration() || !was.GetDeletionTimestamp().Equal(is.GetDeletionTimestamp()) ||
		!equality.Semantic.DeepEqual(was.GetLabels(), is.GetLabels()) ||
		!equality.Semantic.DeepEqual(was.GetAnnotations(), is.GetAnnotations()) ||
		!equality.Semantic.DeepEqual(was.GetFinalizers(), is.GetFinalizers()) ||
		!equality.Semantic.DeepEqual(was.GetOwnerReferences(), is.GetOwnerReferences())
}}

// onlyDeletions passes deletions only.
var onlyDeletions = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	UpdateFunc:  func(event.UpdateEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// groupRequests returns requests for all shard groups of the managed Cluster that have the labels.
func (p *pools) groupRequests(ctx context.Context, labels client.MatchingLabels) []reconcile.Request {
	return p.Requests(ctx, &v1beta1.NstanceShardGroupList{}, labels,
		client.MatchingLabels{clusterv1.ClusterNameLabel: p.ClusterName()})
}

// allGroups returns requests for all shard groups of the managed Cluster.
func (p *pools) allGroups(ctx context.Context) []reconcile.Request { return p.groupRequests(ctx, nil) }

// requestsForPool returns requests for a pool's shard groups.
func (p *pools) requestsForPool(ctx context.Context, object client.Object) []reconcile.Request {
	pool, ok := object.(*v1beta1.NstanceMachinePool)
	if !ok || pool.Namespace != p.Namespace {
		return nil
	}
	return p.groupRequests(ctx, client.MatchingLabels{v1beta1.GroupLabel: pool.Spec.Group})
}
