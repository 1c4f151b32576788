package pool

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// specChanged drops updates that change only the status. A controller that writes a status must not use it: it has to
// see its own status writes, because each was computed from a cache that may have been out of date.
var specChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	was, is := e.ObjectOld, e.ObjectNew
	return was.GetGeneration() != is.GetGeneration() || !was.GetDeletionTimestamp().Equal(is.GetDeletionTimestamp()) ||
		!equality.Semantic.DeepEqual(was.GetLabels(), is.GetLabels()) ||
		!equality.Semantic.DeepEqual(was.GetAnnotations(), is.GetAnnotations()) ||
		!equality.Semantic.DeepEqual(was.GetFinalizers(), is.GetFinalizers()) ||
		!equality.Semantic.DeepEqual(was.GetOwnerReferences(), is.GetOwnerReferences())
}}

// pauseChanged passes updates that pause or resume a Cluster, and new Clusters, which may be paused.
var pauseChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		was, ok := e.ObjectOld.(*clusterv1.Cluster)
		is, fine := e.ObjectNew.(*clusterv1.Cluster)
		return ok && fine && ptr.Deref(was.Spec.Paused, false) != ptr.Deref(is.Spec.Paused, false)
	},
	DeleteFunc: func(event.DeleteEvent) bool { return false },
}

// onlyDeletions passes deletions only.
var onlyDeletions = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	UpdateFunc:  func(event.UpdateEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

func (o *Options) requestFor(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Namespace: o.Namespace, Name: name}}
}

// isCluster reports whether the object is the managed Cluster.
func (o *Options) isCluster(object client.Object) bool {
	return object.GetNamespace() == o.Namespace && object.GetName() == o.clusterName()
}

// groupRequests returns requests for all shard groups of the managed Cluster that have the labels.
func (o *Options) groupRequests(ctx context.Context, labels client.MatchingLabels) (requests []reconcile.Request) {
	matching := client.MatchingLabels{clusterv1.ClusterNameLabel: o.clusterName()}
	for name, value := range labels {
		matching[name] = value
	}
	list := &v1beta1.NstanceShardGroupList{}
	// The list is read only for names, so sharing it with the cache is safe.
	if err := o.Client.List(ctx, list, client.InNamespace(o.Namespace), matching,
		client.UnsafeDisableDeepCopy); err != nil {
		o.Log.Error("failed to list shard groups", "error", err)
		return nil
	}
	for i := range list.Items {
		requests = append(requests, o.requestFor(list.Items[i].Name))
	}
	return requests
}

// requestsForCluster returns requests for all shard groups if the object is the managed Cluster.
func (o *Options) requestsForCluster(ctx context.Context, cluster client.Object) []reconcile.Request {
	if !o.isCluster(cluster) {
		return nil
	}
	return o.groupRequests(ctx, nil)
}

// requestsForPool returns requests for a pool's shard groups.
func (o *Options) requestsForPool(ctx context.Context, object client.Object) []reconcile.Request {
	pool, ok := object.(*v1beta1.NstanceMachinePool)
	if !ok || pool.Namespace != o.Namespace {
		return nil
	}
	return o.groupRequests(ctx, client.MatchingLabels{v1beta1.GroupLabel: pool.Spec.Group})
}
