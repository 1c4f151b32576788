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

// said leaves out updates that change nothing but the status, of objects whose status is of no interest. Who writes a
// status must see its own writes: the cache that they are made from is late, and what it did not show yet is not in
// them.
var said = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	was, is := e.ObjectOld, e.ObjectNew
	return was.GetGeneration() != is.GetGeneration() || !was.GetDeletionTimestamp().Equal(is.GetDeletionTimestamp()) ||
		!equality.Semantic.DeepEqual(was.GetLabels(), is.GetLabels()) ||
		!equality.Semantic.DeepEqual(was.GetAnnotations(), is.GetAnnotations()) ||
		!equality.Semantic.DeepEqual(was.GetFinalizers(), is.GetFinalizers()) ||
		!equality.Semantic.DeepEqual(was.GetOwnerReferences(), is.GetOwnerReferences())
}}

// pauseChanged lets through what pauses a Cluster and ends the pause. A new one may be paused.
var pauseChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		was, ok := e.ObjectOld.(*clusterv1.Cluster)
		is, fine := e.ObjectNew.(*clusterv1.Cluster)
		return ok && fine && ptr.Deref(was.Spec.Paused, false) != ptr.Deref(is.Spec.Paused, false)
	},
	DeleteFunc: func(event.DeleteEvent) bool { return false },
}

// onlyDeletions lets through what is no longer there.
var onlyDeletions = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	UpdateFunc:  func(event.UpdateEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

func (o *Options) request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Namespace: o.Namespace, Name: name}}
}

// isCluster reports whether an object is the Cluster that is looked at.
func (o *Options) isCluster(object client.Object) bool {
	return object.GetNamespace() == o.Namespace && object.GetName() == o.clusterName()
}

// groupsOf are the requests for all shard groups with some labels, and our Cluster's.
func (o *Options) groupsOf(ctx context.Context, labels client.MatchingLabels) (requests []reconcile.Request) {
	matching := client.MatchingLabels{clusterv1.ClusterNameLabel: o.clusterName()}
	for name, value := range labels {
		matching[name] = value
	}
	list := &v1beta1.NstanceShardGroupList{}
	// Reads the cache, and only names of what it finds.
	if err := o.Client.List(ctx, list, client.InNamespace(o.Namespace), matching,
		client.UnsafeDisableDeepCopy); err != nil {
		o.Log.Error("shard groups not listed", "error", err)
		return nil
	}
	for i := range list.Items {
		requests = append(requests, o.request(list.Items[i].Name))
	}
	return requests
}

// groupsOfCluster are all shard groups, when the Cluster is ours.
func (o *Options) groupsOfCluster(ctx context.Context, cluster client.Object) []reconcile.Request {
	if !o.isCluster(cluster) {
		return nil
	}
	return o.groupsOf(ctx, nil)
}

// groupsOfPool are a pool's shard groups.
func (o *Options) groupsOfPool(ctx context.Context, object client.Object) []reconcile.Request {
	pool, ok := object.(*v1beta1.NstanceMachinePool)
	if !ok || pool.Namespace != o.Namespace {
		return nil
	}
	return o.groupsOf(ctx, client.MatchingLabels{v1beta1.GroupLabel: pool.Spec.Group})
}
