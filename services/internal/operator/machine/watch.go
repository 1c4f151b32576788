package machine

import (
	"context"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// Names of the indexes in the cache.
const (
	machineByInfrastructure = "nstance.dev/machine.infrastructure"
	byShard                 = "nstance.dev/machine.shard"
	byWaitingGroup          = "nstance.dev/machine.waiting-group"
	byPool                  = "nstance.dev/machine.pool"
)

// indexes are the cache indexes that Setup adds.
var indexes = []scope.Index{
	scope.MachineByInstance,
	{Object: &clusterv1.Machine{}, Field: machineByInfrastructure, Values: func(o client.Object) []string {
		ref := o.(*clusterv1.Machine).Spec.InfrastructureRef
		if ref.APIGroup != v1beta1.GroupVersion.Group || ref.Kind != "NstanceMachine" {
			return nil
		}
		return []string{ref.Name}
	}},
	// A machine without a shard is indexed under the empty name.
	{Object: &v1beta1.NstanceMachine{}, Field: byShard, Values: func(o client.Object) []string {
		return []string{o.(*v1beta1.NstanceMachine).Spec.Shard}
	}},
	// Index only machines without an instance, because only they depend on the state of their group.
	{Object: &v1beta1.NstanceMachine{}, Field: byWaitingGroup, Values: func(o client.Object) []string {
		if m := o.(*v1beta1.NstanceMachine); m.Status.InstanceID == "" && !isPoolMachine(m) {
			return []string{m.Spec.GroupRef.Name}
		}
		return nil
	}},
	{Object: &v1beta1.NstanceMachine{}, Field: byPool, Values: func(o client.Object) (names []string) {
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

// requestsFor returns requests for the machines that the options select.
func (r *Reconciler) requestsFor(ctx context.Context, opts ...client.ListOption) []reconcile.Request {
	return r.Requests(ctx, &v1beta1.NstanceMachineList{}, opts...)
}

// requestsForChange returns requests for the machines that a change on a shard may affect.
func (r *Reconciler) requestsForChange(c shards.Change) []reconcile.Request {
	ctx := context.Background() // only the cache is read
	switch c.Kind {
	case shards.ShardState:
		return append(r.requestsFor(ctx, client.MatchingFields{byShard: c.Shard}),
			r.requestsFor(ctx, client.MatchingFields{byShard: ""})...)
	case shards.InstanceChanged, shards.DrainPending:
		return r.requestsFor(ctx, client.MatchingFields{scope.MachineByInstance.Field: c.Instance})
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
	return []reconcile.Request{r.Request(ref.Name)}
}

// requestsForPool returns requests for the machines of a pool.
func (r *Reconciler) requestsForPool(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requestsFor(ctx, client.MatchingFields{byPool: o.GetName()})
}
