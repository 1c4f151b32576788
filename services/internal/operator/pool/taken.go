package pool

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// requestsForGroup returns requests for all pools of the group that a shard group or a pool belongs to. A pool may wait
// for the shard groups of another one.
func (p *pools) requestsForGroup(ctx context.Context, object client.Object) (requests []reconcile.Request) {
	var group string
	switch one := object.(type) {
	case *v1beta1.NstanceShardGroup:
		group = one.Spec.Group
	case *v1beta1.NstanceMachinePool:
		group = one.Spec.Group
	}
	list := &v1beta1.NstanceMachinePoolList{}
	if err := p.Client.List(ctx, list, client.InNamespace(p.Namespace)); err != nil {
		p.Log.Error("failed to list pools", "error", err)
		return nil
	}
	for i := range list.Items {
		if list.Items[i].Spec.Group == group {
			requests = append(requests, p.Request(list.Items[i].Name))
		}
	}
	return requests
}

// findWaiting returns the pool that waits for the shard groups of a pool that is being deleted, nil if there is none. A
// waiting pool is of the same group and has a MachinePool. findWaiting reads from the API server, because the answer
// decides whether instances are deleted.
func (r *poolReconciler) findWaiting(ctx context.Context, in poolInput) (*v1beta1.NstanceMachinePool, error) {
	if in.pool.DeletionTimestamp.IsZero() || in.paused || in.ending {
		return nil, nil
	}
	list := &v1beta1.NstanceMachinePoolList{}
	if err := r.Reader.List(ctx, list, client.InNamespace(r.Namespace)); err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		if other.Spec.Group != in.pool.Spec.Group || other.UID == in.pool.UID || !other.DeletionTimestamp.IsZero() {
			continue
		}
		users, err := r.listUsers(ctx, r.Reader, other.Name)
		if err != nil {
			return nil, err
		}
		if len(livingUsers(users)) > 0 {
			return other, nil
		}
	}
	return nil, nil
}

// giveTo makes the pool heir the owner of the shard groups of the pool in.pool on the shards that heir lists. The shard
// groups on other shards stay in in.groups, and are deleted with their pool.
func (r *poolReconciler) giveTo(ctx context.Context, in *poolInput, heir *v1beta1.NstanceMachinePool) error {
	groups, err := r.listGroups(ctx, r.Reader, in.pool)
	if err != nil {
		return err
	}
	in.groups = nil
	for _, g := range groups {
		owner := metav1.GetControllerOf(g)
		if owner == nil || owner.UID != in.pool.UID || !g.DeletionTimestamp.IsZero() ||
			!slices.Contains(heir.Spec.Shards, g.Spec.Shard) {
			in.groups = append(in.groups, g)
			continue
		}
		want := g.DeepCopy()
		dropOwner(want, in.pool.UID)
		want.OwnerReferences = append(want.OwnerReferences, *metav1.NewControllerRef(heir,
			v1beta1.GroupVersion.WithKind(machinePoolKind)))
		if err := r.PatchLocked(ctx, g, want); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("write shard group %s: %w", g.Name, err)
		}
		r.Log.Info("handed a shard group over", "shard_group", g.Name, "from", in.pool.Name, "to", heir.Name)
		r.recordEvents(heir, normalEvent(v1beta1.TakenOverReason,
			"shard group %s with its instances was taken over from "+
				"NstanceMachinePool %s, which is being deleted", g.Name, in.pool.Name))
	}
	return nil
}
