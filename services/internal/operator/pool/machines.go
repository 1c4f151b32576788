package pool

import (
	"context"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// machineReconciler creates an NstanceMachine for every instance of a pool, as the Cluster API contract for MachinePool
// Machines requires. Package machine reconciles the NstanceMachines.
type machineReconciler struct{ pools }

// setup registers a controller that reconciles the machines of one shard group at a time.
func (r *machineReconciler) setup(b *ctrl.Builder) error {
	return r.WatchCluster(b, r.allGroups).For(&v1beta1.NstanceShardGroup{}, builder.WithPredicates(specChanged)).
		Watches(&v1beta1.NstanceMachine{}, handler.EnqueueRequestsFromMapFunc(r.requestsForMachine),
			builder.WithPredicates(onlyDeletions)).
		Watches(&v1beta1.NstanceMachinePool{}, handler.EnqueueRequestsFromMapFunc(r.requestsForPool),
			builder.WithPredicates(specChanged)).
		WatchesRawSource(shards.Source(r.Shards, r.requestsForChange)).
		Complete(r.Supervise(r, &v1beta1.NstanceShardGroup{}))
}

// requestsForMachine returns a request to reconcile the shard group of an NstanceMachine. If the NstanceMachine is
// deleted but its instance still exists, the reconciliation creates the NstanceMachine again.
func (r *machineReconciler) requestsForMachine(_ context.Context, machine client.Object) []reconcile.Request {
	labels := machine.GetLabels()
	group, shard := labels[v1beta1.GroupLabel], labels[v1beta1.ShardLabel]
	if !r.InCluster(machine) || labels[clusterv1.MachinePoolNameLabel] == "" || group == "" || shard == "" {
		return nil
	}
	return []reconcile.Request{r.Request(v1beta1.ShardGroupName(group, shard))}
}

func (r *machineReconciler) requestsForChange(c shards.Change) []reconcile.Request {
	switch {
	case c.Kind == shards.InstanceChanged && c.Group != "":
		return []reconcile.Request{r.Request(v1beta1.ShardGroupName(c.Group, c.Shard))}
	case c.Kind == shards.ShardState:
		return r.groupRequests(context.Background(), client.MatchingLabels{v1beta1.ShardLabel: c.Shard})
	}
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (r *machineReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	group := &v1beta1.NstanceShardGroup{}
	if found, err := r.Read(ctx, request.Name, group); err != nil || !found || !r.InCluster(group) ||
		!group.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, err
	}
	shard, ok := r.Shards.Shard(group.Spec.Shard)
	owner := metav1.GetControllerOf(group)
	if !ok || !shard.State().Synced || owner == nil {
		return reconcile.Result{}, nil
	}
	pool := &v1beta1.NstanceMachinePool{}
	if found, err := r.Read(ctx, owner.Name, pool); err != nil || !found || pool.UID != owner.UID ||
		!pool.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, err
	}
	if p, err := r.Permission(ctx, r.Client, group, pool); err != nil || p.Paused || p.Ending {
		return reconcile.Result{}, err
	}
	there, strays, own := map[string]bool{}, []*v1beta1.NstanceMachine(nil), []*v1beta1.NstanceMachine(nil)
	list := &v1beta1.NstanceMachineList{}
	// The list is only read, so sharing it with the cache is safe.
	if err := r.Client.List(ctx, list, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy,
		client.MatchingLabels{v1beta1.GroupLabel: group.Spec.Group, v1beta1.ShardLabel: group.Spec.Shard}); err != nil {
		return reconcile.Result{}, fmt.Errorf("list machines: %w", err)
	}
	for i := range list.Items {
		infra := &list.Items[i]
		if infra.Spec.GroupRef.Name != group.Spec.Group || infra.Spec.Shard != group.Spec.Shard {
			continue // its labels are wrong
		}
		there[infra.Name] = true
		if ownedBy(infra, pool.UID) {
			own = append(own, infra)
		} else if infra.Labels[clusterv1.MachinePoolNameLabel] != "" {
			strays = append(strays, infra)
		}
	}
	missing := missingMachines(shard.Instances(group.Spec.Group), there)
	mp, err := r.findMachinePool(ctx, pool)
	if err != nil || mp == nil {
		return reconcile.Result{}, err
	}
	for _, infra := range own {
		if err := r.restoreLabels(ctx, infra, group, mp.Name); err != nil {
			return scope.RetryConflict(err)
		}
	}
	var again time.Duration
	for _, infra := range strays {
		if wait, err := r.adoptMachine(ctx, infra, pool, mp); err != nil {
			return scope.RetryConflict(err)
		} else if wait {
			again = adoptionRetry
		}
	}
	var writes errgroup.Group
	writes.SetLimit(parallelWrites)
	for _, instance := range missing {
		infra := &v1beta1.NstanceMachine{}
		if found, err := r.Read(ctx, instance.GetInstanceId(), infra); err != nil {
			return reconcile.Result{}, err
		} else if found && ownedBy(infra, pool.UID) { // it lacks a label
			if err := r.restoreLabels(ctx, infra, group, mp.Name); err != nil {
				return scope.RetryConflict(err)
			}
			continue
		}
		// If the instance's Machine is being deleted, do not create the NstanceMachine yet: Cluster API would delete
		// the NstanceMachine, and the instance with it.
		if old, err := r.machineOf(ctx, instance.GetInstanceId()); err != nil {
			return reconcile.Result{}, err
		} else if old != nil && !old.DeletionTimestamp.IsZero() {
			again = adoptionRetry
			continue
		}
		machine := poolMachine(r.ClusterName(), group, pool, mp.Name, instance)
		writes.Go(func() error {
			if err := r.Client.Create(ctx, machine); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("create machine %s: %w", machine.Name, err)
			}
			return nil
		})
	}
	return reconcile.Result{RequeueAfter: again}, writes.Wait()
}

// restoreLabels writes the labels of an NstanceMachine of a pool again, if another client has changed them.
func (r *machineReconciler) restoreLabels(ctx context.Context, infra *v1beta1.NstanceMachine,
	group *v1beta1.NstanceShardGroup, machinePool string) error {
	labels := maps.Clone(infra.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, machineLabels(r.ClusterName(), group, machinePool))
	if maps.Equal(labels, infra.Labels) {
		return nil
	}
	want := infra.DeepCopy()
	want.Labels = labels
	if err := r.Patch(ctx, infra, want); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write labels of machine %s: %w", infra.Name, err)
	}
	return nil
}

// machineLabels returns the labels of the NstanceMachines of a pool on one shard.
func machineLabels(cluster string, group *v1beta1.NstanceShardGroup, machinePool string) map[string]string {
	return map[string]string{clusterv1.MachinePoolNameLabel: labelValue(machinePool),
		clusterv1.ClusterNameLabel: cluster, v1beta1.GroupLabel: group.Spec.Group, v1beta1.ShardLabel: group.Spec.Shard}
}

// missingMachines returns the instances of a group that have no machine. It leaves out on-demand instances, because
// each of them is created for an existing machine. It also leaves out spares: Cluster API and the cluster autoscaler
// would count their Machines as replicas.
func missingMachines(instances []*nstancev1.InstanceStatus, there map[string]bool) (
	missing []*nstancev1.InstanceStatus) {
	for _, i := range instances {
		if !i.GetOnDemand() && !i.GetSpare() && i.GetState() != "deleted" && !there[i.GetInstanceId()] {
			missing = append(missing, i)
		}
	}
	return missing
}

// poolMachine returns the NstanceMachine of an instance. Cluster API's core finds it by its labels, and makes a Machine
// its controller. So the pool is an owner of the NstanceMachine, but not its controller. The NstanceMachine is created
// with the finalizer, so that every deletion is handled.
func poolMachine(cluster string, group *v1beta1.NstanceShardGroup, pool *v1beta1.NstanceMachinePool, machinePool string,
	i *nstancev1.InstanceStatus) *v1beta1.NstanceMachine {
	return &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: group.Namespace, Name: i.GetInstanceId(),
			Labels:          machineLabels(cluster, group, machinePool),
			OwnerReferences: []metav1.OwnerReference{poolReference(pool)},
			Finalizers:      []string{v1beta1.MachineFinalizer},
		},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: group.Spec.Group},
			Shard: group.Spec.Shard, InstanceID: i.GetInstanceId(),
			ProviderID: i.GetProviderId()},
	}
}

// labelValue returns a name as Cluster API writes it into labels: unchanged if it is a valid label value, else a hash.
// It must return the same value as util/labels/format of Cluster API.
func labelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name)) // a hash never returns an error
	return "hash_" + base64.RawURLEncoding.EncodeToString(hash.Sum(nil)) + "_z"
}
