package pool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// parallelWrites is the number of objects that one reconciliation writes at a time.
const parallelWrites = 16

// poolReconciler reconciles NstanceMachinePools. It divides the replicas of a pool among shard groups, and combines the
// statuses of these shard groups. It makes no call to a shard, so no shard can delay it.
type poolReconciler struct{ pools }

func (r *poolReconciler) setup(b *ctrl.Builder) error {
	// The reconciler also watches the objects that it writes itself. It computes each write from the cache, which may
	// be out of date. When the cache shows the write, the reconciler runs again and writes what is still missing.
	return r.WatchCluster(b, r.allPools).For(&v1beta1.NstanceMachinePool{}).
		Watches(&v1beta1.NstanceShardGroup{}, handler.EnqueueRequestsFromMapFunc(r.requestsForGroup)).
		Watches(&v1beta1.NstanceMachinePool{}, handler.EnqueueRequestsFromMapFunc(r.requestsForGroup),
			builder.WithPredicates(scope.DeletionChanged[client.Object]())).
		Watches(&clusterv1.MachinePool{}, handler.EnqueueRequestsFromMapFunc(r.requestsForMachinePool),
			builder.WithPredicates(specChanged)).
		WatchesRawSource(shards.Source(r.Shards, r.requestsForChange)).
		Complete(r.Supervise(r, &v1beta1.NstanceMachinePool{}))
}

// requestsForChange returns requests for all pools when a shard's state changes. By this change, a shard in a pool's
// list may have become known or unknown to the operator.
func (r *poolReconciler) requestsForChange(c shards.Change) []reconcile.Request {
	if c.Kind != shards.ShardState {
		return nil
	}
	return r.allPools(context.Background())
}

func (r *poolReconciler) allPools(ctx context.Context) []reconcile.Request {
	return r.Requests(ctx, &v1beta1.NstanceMachinePoolList{})
}

func (r *poolReconciler) requestsForMachinePool(_ context.Context, object client.Object) []reconcile.Request {
	mp, ok := object.(*clusterv1.MachinePool)
	if !ok || mp.Namespace != r.Namespace {
		return nil
	}
	if name, ok := referencedPool(mp); ok {
		return []reconcile.Request{r.Request(name)}
	}
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (r *poolReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	pool := &v1beta1.NstanceMachinePool{}
	if found, err := r.Read(ctx, request.Name, pool); err != nil {
		return reconcile.Result{}, err
	} else if !found {
		return scope.RetryConflict(r.restorePool(ctx, request.Name))
	}
	in := poolInput{pool: pool, cluster: r.ClusterName(), configured: map[string]bool{}}
	for _, shard := range r.Shards.All() {
		in.configured[shard.ID()] = true
	}
	var err error
	if in.machinePool, err = r.findMachinePool(ctx, pool); err != nil {
		return reconcile.Result{}, err
	}
	in.wait = waitForFinalizer(in.machinePool, r.Now())
	// Without a MachinePool, only a label of the pool tells to which Cluster the pool belongs. A pool without the label
	// is not skipped: it gets a condition that says that it waits for a MachinePool.
	if in.machinePool == nil && pool.Labels[clusterv1.ClusterNameLabel] != "" && !r.InCluster(pool) {
		return reconcile.Result{}, nil
	}
	if !pool.DeletionTimestamp.IsZero() && (!controllerutil.ContainsFinalizer(pool, v1beta1.MachinePoolFinalizer) ||
		!r.InCluster(pool)) {
		return reconcile.Result{}, nil
	}
	permission, err := r.Permission(ctx, r.Client, pool)
	if err != nil {
		return reconcile.Result{}, err
	}
	in.paused, in.ending = permission.Paused, permission.Ending
	if in.groups, err = r.listGroups(ctx, r.Client, pool); err != nil {
		return reconcile.Result{}, err
	}
	if heir, err := r.findHeir(ctx, in); err != nil {
		return reconcile.Result{}, err
	} else if heir != nil {
		return scope.RetryConflict(r.handOver(ctx, pool, heir))
	}
	waiting, err := r.findWaiting(ctx, in)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := r.keepMachines(ctx, in, waiting); err != nil {
		return scope.RetryConflict(err)
	}
	if waiting != nil {
		if err := r.giveTo(ctx, &in, waiting); err != nil {
			return scope.RetryConflict(err)
		}
	}
	if err := r.readVictims(ctx, &in); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.apply(ctx, in, decidePool(in)); err != nil {
		return scope.RetryConflict(err)
	}
	if result, err := scope.RetryConflict(r.reportShared(ctx, pool)); err != nil || !result.IsZero() {
		return result, err
	}
	return reconcile.Result{RequeueAfter: in.wait}, nil
}

// readVictims finds the instances that are deleted first when a pool shrinks: those whose Machines are being deleted or
// have Cluster API's delete-machine annotation. The cluster autoscaler drains a node, annotates its Machine, and lowers
// the replicas. The cache may show the replicas before the annotation, so readVictims reads the Machines from the API
// server.
func (r *poolReconciler) readVictims(ctx context.Context, in *poolInput) error {
	chosen, sum := map[string]bool{}, int64(0)
	in.removed = map[string]bool{}
	for _, g := range in.groups {
		sum += int64(ptr.Deref(g.Spec.Size, 0))
		for _, id := range chosenInstances(g) {
			found, err := r.Read(ctx, id, &v1beta1.NstanceMachine{})
			if err != nil {
				return err
			}
			chosen[id], in.removed[id] = true, !found
		}
	}
	if in.paused || in.ending || in.machinePool == nil || !in.pool.DeletionTimestamp.IsZero() ||
		sum <= int64(ptr.Deref(in.machinePool.Spec.Replicas, 1)) {
		return nil
	}
	list := &clusterv1.MachineList{}
	if err := r.Reader.List(ctx, list, client.InNamespace(r.Namespace),
		client.MatchingLabels{clusterv1.MachinePoolNameLabel: labelValue(in.machinePool.Name)}); err != nil {
		return fmt.Errorf("list Machines: %w", err)
	}
	marked := slices.DeleteFunc(list.Items, func(m clusterv1.Machine) bool {
		_, annotated := m.Annotations[clusterv1.DeleteMachineAnnotation]
		return !annotated && m.DeletionTimestamp.IsZero()
	})
	slices.SortFunc(marked, func(a, b clusterv1.Machine) int {
		// The value of the annotation is the time at which the Machine was marked. A Machine without the annotation
		// comes first, because it is already being deleted.
		return cmp.Or(strings.Compare(a.Annotations[clusterv1.DeleteMachineAnnotation],
			b.Annotations[clusterv1.DeleteMachineAnnotation]), strings.Compare(a.Name, b.Name))
	})
	for i := range marked {
		machine := &v1beta1.NstanceMachine{}
		found, err := r.Read(ctx, marked[i].Spec.InfrastructureRef.Name, machine)
		if err != nil {
			return err
		}
		if id := machine.Spec.InstanceID; found && id != "" && machine.Status.State != "deleted" && !chosen[id] {
			in.victims = append(in.victims, victim{machine.Spec.Shard, id})
		}
	}
	return nil
}

// listGroups returns all shard groups for the group of a pool, sorted by name. The cache lists them in a random order.
func (r *poolReconciler) listGroups(ctx context.Context, from client.Reader, pool *v1beta1.NstanceMachinePool) (
	[]*v1beta1.NstanceShardGroup, error) {
	list := &v1beta1.NstanceShardGroupList{}
	err := from.List(ctx, list, client.InNamespace(pool.Namespace),
		client.MatchingLabels{v1beta1.GroupLabel: pool.Spec.Group})
	// The API server answers NotFound if the definition of shard groups was deleted. It deletes the definition after
	// the last shard group.
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("list shard groups: %w", err)
	}
	out := make([]*v1beta1.NstanceShardGroup, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	slices.SortFunc(out, func(a, b *v1beta1.NstanceShardGroup) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// apply writes the plan. It adds the pool's finalizer before it creates the first shard group. It removes the finalizer
// after the last shard group is gone.
func (r *poolReconciler) apply(ctx context.Context, in poolInput, plan poolPlan) error {
	was := in.pool
	first := !controllerutil.ContainsFinalizer(was, v1beta1.MachinePoolFinalizer)
	object := was.DeepCopy()
	object.ObjectMeta, object.Spec.ProviderIDList = plan.pool.ObjectMeta, plan.pool.Spec.ProviderIDList
	if plan.finished {
		// A shard group that was just created may not be in the cache yet, so ask the API server.
		left, err := r.listGroups(ctx, r.Reader, was)
		if err != nil {
			return err
		}
		in.groups = left
		if plan = decidePool(in); !plan.finished {
			return r.apply(ctx, in, plan)
		}
		controllerutil.RemoveFinalizer(object, v1beta1.MachinePoolFinalizer)
		return client.IgnoreNotFound(r.Patch(ctx, was, object))
	}
	if first && controllerutil.ContainsFinalizer(object, v1beta1.MachinePoolFinalizer) {
		if err := r.Patch(ctx, was, object); err != nil {
			return fmt.Errorf("write pool: %w", err)
		}
	}
	if err := r.writeGroups(ctx, in, plan); err != nil {
		return err
	}
	r.recordEvents(was, plan.events...)
	if err := r.tellFormerUser(ctx, was, plan.events); err != nil {
		return err
	}
	if !first {
		if err := r.Patch(ctx, was, object); err != nil {
			return fmt.Errorf("write pool: %w", err)
		}
	}
	before := object.DeepCopy()
	object.Status = plan.finishStatus(was, object.Generation, r.Now())
	if err := r.PatchStatus(ctx, before, object); err != nil {
		return fmt.Errorf("write status of pool: %w", err)
	}
	if plan.machinePool == nil {
		return nil
	}
	if err := r.Patch(ctx, in.machinePool, plan.machinePool); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("annotate machine pool: %w", err)
	}
	return nil
}

// tellFormerUser repeats the event that no MachinePool references the pool. The event is about the MachinePool that
// controls the pool, if that still exists: its infrastructureRef has changed.
func (r *poolReconciler) tellFormerUser(ctx context.Context, pool *v1beta1.NstanceMachinePool, events []notice) error {
	owner := metav1.GetControllerOf(pool)
	for _, e := range events {
		if e.reason != v1beta1.UnreferencedReason || owner == nil || owner.Kind != "MachinePool" {
			continue
		}
		former := &clusterv1.MachinePool{}
		if found, err := r.Read(ctx, owner.Name, former); err != nil {
			return err
		} else if found && former.UID == owner.UID {
			r.recordEvents(former, e)
		}
	}
	return nil
}

// writeGroups writes all shard groups of a pool in parallel. Each write makes the groupReconciler push the shard group
// to the leader of its shard.
func (r *poolReconciler) writeGroups(ctx context.Context, in poolInput, plan poolPlan) error {
	had := map[string]*v1beta1.NstanceShardGroup{}
	for _, g := range in.groups {
		had[g.Name] = g
	}
	var writes errgroup.Group
	writes.SetLimit(parallelWrites)
	for _, g := range plan.update {
		writes.Go(func() error {
			write := r.Patch
			if g.Annotations[v1beta1.RemoveAnnotation] != had[g.Name].Annotations[v1beta1.RemoveAnnotation] {
				write = r.PatchLocked // an outdated choice would remove one instance more
			}
			if err := write(ctx, had[g.Name], g); err != nil {
				return fmt.Errorf("write shard group %s: %w", g.Name, err)
			}
			return nil
		})
	}
	for _, g := range plan.create {
		writes.Go(func() error {
			// The shard group exists already, but it is not in the cache yet. When it appears there, another
			// reconciliation starts.
			if err := r.Client.Create(ctx, g); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("create shard group %s: %w", g.Name, err)
			}
			return nil
		})
	}
	for _, g := range plan.remove {
		writes.Go(func() error {
			if err := r.Client.Delete(ctx, g); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("delete shard group %s: %w", g.Name, err)
			}
			return nil
		})
	}
	return writes.Wait()
}
