package pool

import (
	"context"
	"encoding/base64"
	"fmt"
	"hash/fnv"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// machines makes an NstanceMachine for every instance of a pool (Cluster API contract, MachinePool Machines). What
// becomes of it afterwards is not decided here.
type machines struct{ Options }

func newMachines(o Options) *machines { return &machines{o} }

// setup: requests are for shard groups.
func (r *machines) setup(b *ctrl.Builder, o controller.Options) error {
	o.MaxConcurrentReconciles = parallelPools
	return b.For(&v1beta1.NstanceShardGroup{}, builder.WithPredicates(said)).
		Watches(&v1beta1.NstanceMachine{}, handler.EnqueueRequestsFromMapFunc(r.ofMachine),
			builder.WithPredicates(onlyDeletions)).
		Watches(&v1beta1.NstanceMachinePool{}, handler.EnqueueRequestsFromMapFunc(r.groupsOfPool),
			builder.WithPredicates(said)).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.groupsOfCluster),
			builder.WithPredicates(pauseChanged)).
		WatchesRawSource(shards.Source(r.Shards, r.ofShards)).
		WithOptions(o).Complete(r)
}

// ofMachine: a machine that went before its instance did is made again.
func (r *machines) ofMachine(_ context.Context, machine client.Object) []reconcile.Request {
	labels := machine.GetLabels()
	group, shard := labels[v1beta1.GroupLabel], labels[v1beta1.ShardLabel]
	if !r.ours(machine) || labels[clusterv1.MachinePoolNameLabel] == "" || group == "" || shard == "" {
		return nil
	}
	return []reconcile.Request{r.request(v1beta1.ShardGroupName(group, shard))}
}

func (r *machines) ofShards(c shards.Change) []reconcile.Request {
	switch {
	case c.Kind == shards.InstanceChanged && c.Group != "":
		return []reconcile.Request{r.request(v1beta1.ShardGroupName(c.Group, c.Shard))}
	case c.Kind == shards.ShardState:
		return r.groupsOf(context.Background(), client.MatchingLabels{v1beta1.ShardLabel: c.Shard})
	}
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (r *machines) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	group := &v1beta1.NstanceShardGroup{}
	if found, err := r.get(ctx, request.Name, group); err != nil || !found || !r.ours(group) ||
		!group.DeletionTimestamp.IsZero() || pausedByAnnotation(group) {
		return reconcile.Result{}, err
	}
	shard, ok := r.Shards.Shard(group.Spec.Shard)
	owner := metav1.GetControllerOf(group)
	if !ok || !shard.State().Synced || owner == nil {
		return reconcile.Result{}, nil
	}
	pool := &v1beta1.NstanceMachinePool{}
	if found, err := r.get(ctx, owner.Name, pool); err != nil || !found || pool.UID != owner.UID ||
		!pool.DeletionTimestamp.IsZero() || pausedByAnnotation(pool) {
		return reconcile.Result{}, err
	}
	if paused, err := r.clusterPaused(ctx); err != nil || paused {
		return reconcile.Result{}, err
	}
	there := map[string]bool{}
	list := &v1beta1.NstanceMachineList{}
	// Only their names are looked at.
	if err := r.Client.List(ctx, list, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy,
		client.MatchingLabels{v1beta1.GroupLabel: group.Spec.Group, v1beta1.ShardLabel: group.Spec.Shard}); err != nil {
		return reconcile.Result{}, fmt.Errorf("list machines: %w", err)
	}
	for i := range list.Items {
		there[list.Items[i].Name] = true
	}
	missing := missingMachines(shard.Instances(group.Spec.Group), there)
	if len(missing) == 0 {
		return reconcile.Result{}, nil
	}
	mp, err := r.machinePoolOf(ctx, pool)
	if err != nil || mp == nil {
		return reconcile.Result{}, err
	}
	var writes errgroup.Group
	writes.SetLimit(parallelWrites)
	for _, instance := range missing {
		machine := poolMachine(r.clusterName(), group, pool, mp.Name, instance)
		writes.Go(func() error {
			if err := r.Client.Create(ctx, machine); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("create machine %s: %w", machine.Name, err)
			}
			return nil
		})
	}
	return reconcile.Result{}, writes.Wait()
}

// missingMachines are the instances of a group that have no machine. Individual machines are made before their
// instances.
func missingMachines(instances []*nstancev1.InstanceStatus, there map[string]bool) (
	missing []*nstancev1.InstanceStatus) {
	for _, i := range instances {
		if !i.GetOnDemand() && i.GetState() != "deleted" && !there[i.GetInstanceId()] {
			missing = append(missing, i)
		}
	}
	return missing
}

// poolMachine stands for an instance. Cluster API's core finds it by its labels, and makes a Machine its controller; so
// the pool is an owner, but not that. It has its finalizer from the first, so that deleting it is always heard of.
func poolMachine(cluster string, group *v1beta1.NstanceShardGroup, pool *v1beta1.NstanceMachinePool, machinePool string,
	i *nstancev1.InstanceStatus) *v1beta1.NstanceMachine {
	return &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: group.Namespace, Name: i.GetInstanceId(),
			Labels: map[string]string{
				clusterv1.MachinePoolNameLabel: labelValue(machinePool), clusterv1.ClusterNameLabel: cluster,
				v1beta1.GroupLabel: group.Spec.Group, v1beta1.ShardLabel: group.Spec.Shard,
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1beta1.GroupVersion.String(), Kind: machinePoolKind,
				Name: pool.Name, UID: pool.UID}},
			Finalizers: []string{v1beta1.MachineFinalizer},
		},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: group.Spec.Group},
			Shard: group.Spec.Shard, InstanceID: i.GetInstanceId(),
			ProviderID: i.GetProviderId()},
	}
}

// labelValue is a name as Cluster API writes it into labels: itself if it can be a label's value, else a hash of it
// (its util/labels/format, which every provider has to agree with).
func labelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name)) // never fails
	return "hash_" + base64.RawURLEncoding.EncodeToString(hash.Sum(nil)) + "_z"
}
