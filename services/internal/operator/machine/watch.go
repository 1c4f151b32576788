package machine

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// Names of the indexes in the cache.
const (
	machineByInfrastructure = "nstance.dev/machine.infrastructure"
	byShard                 = "nstance.dev/machine.shard"
	byInstance              = "nstance.dev/machine.instance"
	byWaitingGroup          = "nstance.dev/machine.waiting-group"
	byPool                  = "nstance.dev/machine.pool"
)

type index struct {
	object client.Object
	field  string
	values client.IndexerFunc
}

// indexes are the indexes that Setup adds.
var indexes = []index{
	{&clusterv1.Machine{}, machineByInfrastructure, func(o client.Object) []string {
		ref := o.(*clusterv1.Machine).Spec.InfrastructureRef
		if ref.APIGroup != v1beta1.GroupVersion.Group || ref.Kind != "NstanceMachine" {
			return nil
		}
		return []string{ref.Name}
	}},
	// A machine without a shard is indexed under the empty name.
	{&v1beta1.NstanceMachine{}, byShard, func(o client.Object) []string {
		return []string{o.(*v1beta1.NstanceMachine).Spec.Shard}
	}},
	{&v1beta1.NstanceMachine{}, byInstance, func(o client.Object) []string {
		if id := o.(*v1beta1.NstanceMachine).Spec.InstanceID; id != "" {
			return []string{id}
		}
		return nil
	}},
	// Only machines without an instance depend on their group.
	{&v1beta1.NstanceMachine{}, byWaitingGroup, func(o client.Object) []string {
		if m := o.(*v1beta1.NstanceMachine); m.Status.InstanceID == "" && !isPoolMachine(m) {
			return []string{m.Spec.GroupRef.Name}
		}
		return nil
	}},
	{&v1beta1.NstanceMachine{}, byPool, func(o client.Object) (names []string) {
		for _, ref := range o.GetOwnerReferences() {
			if ref.Kind == "NstanceMachinePool" {
				names = append(names, ref.Name)
			}
		}
		return names
	}},
}

func isClusterAPIVersion(apiVersion string) bool {
	return strings.HasPrefix(apiVersion, clusterv1.GroupVersion.Group+"/")
}

// requestsFor returns requests for the machines that match.
func (r *Reconciler) requestsFor(ctx context.Context, opts ...client.ListOption) (requests []reconcile.Request) {
	var machines v1beta1.NstanceMachineList
	opts = append(opts, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy)
	if err := r.Client.List(ctx, &machines, opts...); err != nil {
		r.Log.Warn("failed to list machines", "error", err)
		return nil
	}
	for i := range machines.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&machines.Items[i])})
	}
	return requests
}

// requestsForChange returns requests for the machines that a change on a shard concerns.
func (r *Reconciler) requestsForChange(c shards.Change) []reconcile.Request {
	ctx := context.Background() // only the cache is read
	switch c.Kind {
	case shards.ShardState:
		return append(r.requestsFor(ctx, client.MatchingFields{byShard: c.Shard}),
			r.requestsFor(ctx, client.MatchingFields{byShard: ""})...)
	case shards.InstanceChanged, shards.DrainPending:
		return r.requestsFor(ctx, client.MatchingFields{byInstance: c.Instance})
	case shards.GroupChanged:
		return r.requestsFor(ctx, client.MatchingFields{byWaitingGroup: c.Group})
	}
	return nil
}

// requestsForMachine returns a request for the NstanceMachine that a Machine references.
func (r *Reconciler) requestsForMachine(_ context.Context, o client.Object) []reconcile.Request {
	ref := o.(*clusterv1.Machine).Spec.InfrastructureRef
	if ref.APIGroup != v1beta1.GroupVersion.Group || ref.Kind != "NstanceMachine" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: ref.Name}}}
}

// requestsForCluster returns requests for all machines if the object is the managed Cluster.
func (r *Reconciler) requestsForCluster(ctx context.Context, o client.Object) []reconcile.Request {
	if o.GetNamespace() != r.Namespace || o.GetName() != v1beta1.ClusterName(r.Cluster, r.Tenant) {
		return nil
	}
	return r.requestsFor(ctx)
}

// requestsForPool returns requests for the machines of a pool.
func (r *Reconciler) requestsForPool(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requestsFor(ctx, client.MatchingFields{byPool: o.GetName()})
}

// pauseChanged passes updates that pause or resume a Cluster.
var pauseChanged = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*clusterv1.Cluster).Spec.Paused, e.ObjectNew.(*clusterv1.Cluster).Spec.Paused
		return (before != nil && *before) != (after != nil && *after)
	},
}

// deletionChanged passes the start and the end of deletions.
var deletionChanged = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
	},
}
