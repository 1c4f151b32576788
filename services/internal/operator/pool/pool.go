// Package pool owns groups: it imports those of the servers as MachinePools, spreads the replicas of MachinePools over
// shards, pushes each share to its shard, and tells Kubernetes what the shards say of them.
//
// Invariant: once a group has a pool, Kubernetes is the source of its size, and the servers' drift is pushed back; what
// is equal is not pushed. No share depends on whether a shard can be reached, and no shard waits for another. A group
// is deleted only when its pool, or its shard in the pool, is: neither a lost object nor a lost connection deletes
// anything.
package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools,verbs=get;list;watch;create;update;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools/finalizers,verbs=update
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceshardgroups,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceshardgroups/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceshardgroups/finalizers,verbs=update
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=machinepools,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,namespace=nstance-system,resources=events,verbs=create;patch;update

// Options of Setup. Client, Reader and Recorder are the manager's when they are nil.
type Options struct {
	Client   client.Client // reads from a cache
	Reader   client.Reader // does not
	Recorder events.EventRecorder
	Shards   shards.Shards
	// Namespace of all objects; Cluster and Tenant name the only Cluster whose objects are looked at.
	Namespace, Cluster, Tenant string
	Now                        func() time.Time // time.Now when nil
	Log                        *slog.Logger
}

func (o *Options) defaults(mgr ctrl.Manager) error {
	if o.Shards == nil || o.Log == nil || o.Namespace == "" || o.Cluster == "" || o.Tenant == "" {
		return errors.New("pool: incomplete options")
	}
	if o.Client == nil {
		o.Client = mgr.GetClient()
	}
	if o.Reader == nil {
		o.Reader = mgr.GetAPIReader()
	}
	if o.Recorder == nil {
		o.Recorder = mgr.GetEventRecorder("nstance-pool")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

const (
	// parallelPools and parallelGroups are how many objects are worked on at a time. A shard group may wait for its
	// shard's answer, so there are many more of them than one shard may hold up (see [gate]).
	parallelPools  = 8
	parallelGroups = 64
	// What failed is tried again after firstRetry, then after twice as long each time, after lastRetry at the latest.
	firstRetry, lastRetry = 50 * time.Millisecond, 30 * time.Second
)

func limiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
}

// Setup registers the importer and the controllers of pools, shard groups and pool machines.
func Setup(mgr ctrl.Manager, o Options) error {
	if err := o.defaults(mgr); err != nil {
		return err
	}
	for _, c := range []struct {
		name  string
		setup func(*ctrl.Builder, controller.Options) error
	}{
		{"nstanceimport", newImporter(o).setup},
		{"nstancemachinepool", newPools(o).setup},
		{"nstanceshardgroup", newGroups(o).setup},
		{"nstancepoolmachine", newMachines(o).setup},
	} {
		if err := c.setup(ctrl.NewControllerManagedBy(mgr).Named(c.name),
			controller.Options{RateLimiter: limiter()}); err != nil {
			return fmt.Errorf("controller %s: %w", c.name, err)
		}
	}
	return nil
}

// clusterName is the name of the only Cluster that is looked at.
func (o *Options) clusterName() string { return v1beta1.ClusterName(o.Cluster, o.Tenant) }

// ours reports whether an object belongs to our Cluster by its label.
func (o *Options) ours(object client.Object) bool {
	return object.GetNamespace() == o.Namespace && object.GetLabels()[clusterv1.ClusterNameLabel] == o.clusterName()
}

// clusterPaused reports whether our Cluster is paused. One that is not there (yet) is not.
func (o *Options) clusterPaused(ctx context.Context) (bool, error) {
	cluster := &clusterv1.Cluster{}
	err := o.Client.Get(ctx, client.ObjectKey{Namespace: o.Namespace, Name: o.clusterName()}, cluster)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read cluster: %w", err)
	}
	return cluster.Spec.Paused != nil && *cluster.Spec.Paused, nil
}

// pausedByAnnotation reports whether an object is paused by itself.
func pausedByAnnotation(object client.Object) bool {
	_, paused := object.GetAnnotations()[clusterv1.PausedAnnotation]
	return paused
}

// poolOf is what a MachinePool refers to as its infrastructure, when that is a pool of ours.
func poolOf(mp *clusterv1.MachinePool) (name string, ok bool) {
	ref := mp.Spec.Template.Spec.InfrastructureRef
	return ref.Name, ref.Kind == machinePoolKind && ref.APIGroup == v1beta1.GroupVersion.Group
}

// Kinds, as references have them.
const (
	machinePoolKind = "NstanceMachinePool"
	shardGroupKind  = "NstanceShardGroup"
	machineKind     = "NstanceMachine"
)

// machinePoolOf finds the MachinePool of a pool: the one that controls it, else the one that refers to it, which
// Cluster API will make its controller, and nobody where Cluster API's core does not run. nil: there is none, or it
// belongs to another Cluster.
func (o *Options) machinePoolOf(ctx context.Context, pool *v1beta1.NstanceMachinePool) (*clusterv1.MachinePool, error) {
	// Most have the same name.
	names := []string{pool.Name}
	for _, owner := range pool.OwnerReferences {
		if owner.Controller != nil && *owner.Controller && owner.Kind == "MachinePool" {
			names = []string{owner.Name}
		}
	}
	refers := func(mp *clusterv1.MachinePool) bool {
		name, ok := poolOf(mp)
		return ok && name == pool.Name && mp.Spec.ClusterName == o.clusterName()
	}
	for _, name := range names {
		mp := &clusterv1.MachinePool{}
		err := o.Client.Get(ctx, client.ObjectKey{Namespace: pool.Namespace, Name: name}, mp)
		if err == nil && refers(mp) {
			return mp, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read machine pool: %w", err)
		}
	}
	list := &clusterv1.MachinePoolList{}
	if err := o.Client.List(ctx, list, client.InNamespace(pool.Namespace)); err != nil {
		return nil, fmt.Errorf("list machine pools: %w", err)
	}
	if i := slices.IndexFunc(list.Items, func(mp clusterv1.MachinePool) bool { return refers(&mp) }); i >= 0 {
		return &list.Items[i], nil
	}
	return nil, nil
}

// get reads an object from the cache; false when it is not there.
func (o *Options) get(ctx context.Context, name string, into client.Object) (bool, error) {
	err := o.Client.Get(ctx, client.ObjectKey{Namespace: o.Namespace, Name: name}, into)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %T %s: %w", into, name, err)
	}
	return true, nil
}
