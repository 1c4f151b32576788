package pool

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// listUsers returns the MachinePools of the managed Cluster that reference a pool, sorted by name.
func (p *pools) listUsers(ctx context.Context, from client.Reader, pool string) (users []*clusterv1.MachinePool,
	err error) {
	list := &clusterv1.MachinePoolList{}
	if err := from.List(ctx, list, client.InNamespace(p.Namespace)); err != nil {
		return nil, fmt.Errorf("list machine pools: %w", err)
	}
	for i := range list.Items {
		mp := &list.Items[i]
		if name, ok := referencedPool(mp); ok && name == pool && mp.Spec.ClusterName == p.ClusterName() {
			users = append(users, mp)
		}
	}
	slices.SortFunc(users, func(a, b *clusterv1.MachinePool) int { return strings.Compare(a.Name, b.Name) })
	return users, nil
}

// reportShared sets the conditions of MachinePools that share a pool, and records an event for each change.
func (r *poolReconciler) reportShared(ctx context.Context, pool *v1beta1.NstanceMachinePool) error {
	users, err := r.listUsers(ctx, r.Client, pool.Name)
	if err != nil {
		return err
	}
	living := livingUsers(users)
	first := chooseUser(pool, living)
	for _, mp := range living {
		condition := sharedCondition(pool.Name, first, mp, living)
		if condition == nil {
			continue
		}
		condition.LastTransitionTime = metav1.NewTime(r.Now().Truncate(time.Second))
		next := mp.DeepCopy()
		if !meta.SetStatusCondition(&next.Status.Conditions, *condition) {
			continue
		}
		// This patch replaces all conditions, so it must fail if another client has changed a condition.
		err := r.Client.Status().Patch(ctx, next, client.MergeFromWithOptions(mp, client.MergeFromWithOptimisticLock{}))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("write status of machine pool %s: %w", mp.Name, err)
		}
		if condition.Status == metav1.ConditionTrue {
			r.Log.Warn("several MachinePools reference one NstanceMachinePool", "pool", pool.Name, "used", first.Name)
			r.recordEvents(mp, warningEvent(v1beta1.PoolSharedReason, "%s", condition.Message))
		}
	}
	return nil
}

// findHeir returns the MachinePool that takes over a pool that is being deleted. It returns nil if the pool must really
// be deleted. It reads the MachinePools from the API server, because the answer decides whether instances are deleted.
func (r *poolReconciler) findHeir(ctx context.Context, in poolInput) (*clusterv1.MachinePool, error) {
	if in.pool.DeletionTimestamp.IsZero() || in.paused || in.ending {
		return nil, nil
	}
	users, err := r.listUsers(ctx, r.Reader, in.pool.Name)
	return decideHeir(in.pool, users), err
}

// handOver lets a pool's deletion finish but keeps the pool's groups. It stores the pool's definition in an annotation
// of heir, and makes heir the owner of the shard groups until restorePool has created the pool again.
func (r *poolReconciler) handOver(ctx context.Context, pool *v1beta1.NstanceMachinePool,
	heir *clusterv1.MachinePool) error {
	next := heir.DeepCopy()
	if err := storePool(next, pool); err != nil {
		return err
	}
	if err := r.Patch(ctx, heir, next); err != nil {
		return fmt.Errorf("annotate machine pool %s: %w", heir.Name, err)
	}
	groups, err := r.listGroups(ctx, r.Reader, pool)
	if err != nil {
		return err
	}
	for _, g := range groups {
		if owner := metav1.GetControllerOf(g); owner == nil || owner.UID != pool.UID {
			continue
		}
		want := g.DeepCopy()
		dropOwner(want, pool.UID)
		want.OwnerReferences = append(want.OwnerReferences, metav1.OwnerReference{
			APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool", Name: heir.Name, UID: heir.UID,
			Controller: ptr.To(true)})
		if err := r.PatchLocked(ctx, g, want); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("write shard group %s: %w", g.Name, err)
		}
	}
	released := pool.DeepCopy()
	controllerutil.RemoveFinalizer(released, v1beta1.MachinePoolFinalizer)
	if err := r.Patch(ctx, pool, released); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.recordEvents(heir, warningEvent(v1beta1.PoolSharedReason, "another MachinePool that references "+
		"NstanceMachinePool %s was deleted; its instances stay, and it is created again", pool.Name))
	return nil
}

// restorePool creates a deleted pool again from the copy that handOver has stored. It waits until none of the pool's
// MachinePools is being deleted, because Cluster API would delete the new pool too.
func (r *poolReconciler) restorePool(ctx context.Context, name string) error {
	users, err := r.listUsers(ctx, r.Client, name)
	if err != nil || !slices.ContainsFunc(users, func(mp *clusterv1.MachinePool) bool {
		return readStoredPool(mp) != nil
	}) {
		return err
	}
	if users, err = r.listUsers(ctx, r.Reader, name); err != nil || len(livingUsers(users)) < len(users) {
		return err
	}
	for _, mp := range users {
		pool := readStoredPool(mp)
		if pool == nil {
			continue
		}
		if p, err := r.Permission(ctx, r.Reader, mp); err != nil || p.Paused || p.Ending {
			return err
		}
		// Keep the annotation that contains the stored pool. When the cache shows the new pool, another reconciliation
		// removes the annotation.
		if err := r.Client.Create(ctx, pool); err != nil {
			return fmt.Errorf("create pool %s again: %w", name, err)
		}
		r.Log.Info("created pool again after the deletion of another MachinePool", "pool", name, "user", mp.Name)
		return nil
	}
	return nil
}
