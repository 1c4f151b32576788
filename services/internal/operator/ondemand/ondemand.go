// Package ondemand owns the machines of pods that ask for one of their own by annotation: one Machine with its
// NstanceMachine a pod, for as long as the pod lives.
//
// Invariant: a pod, by its UID, never has two machines: their name is made of the UID. A machine whose pod is gone is
// deleted, whoever made it and however often this process was started since.
package ondemand

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=machines,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools,verbs=get;list;watch

// Options of Setup. Client is the manager's when it is nil.
type Options struct {
	Client client.Client // of the cluster with the Machines; reads from a cache
	Shards shards.Shards
	// Namespace of the Machines; Cluster and Tenant name the Cluster that they belong to.
	Namespace, Cluster, Tenant string
	// Workload is the cluster with the Pods, the manager itself if it is the same. Its cache must hold Pods of all
	// namespaces with their metadata and their status.phase; nothing else of them is read.
	Workload cluster.Cluster
	Log      *slog.Logger
}

// Names of the indexes in the caches.
const (
	podAsking    = "nstance.dev/pod.on-demand"
	podUID       = "nstance.dev/pod.uid"
	madeOnDemand = "nstance.dev/on-demand"
	yes          = "yes"
)

func indexPodAsking(o client.Object) []string {
	if _, ok := o.GetAnnotations()[v1beta1.OnDemandGroupAnnotation]; ok {
		return []string{yes}
	}
	return nil
}

func indexPodUID(o client.Object) []string { return []string{string(o.GetUID())} }

func indexOnDemand(o client.Object) []string {
	if _, ok := o.GetLabels()[v1beta1.PodUIDLabel]; ok {
		return []string{yes}
	}
	return nil
}

// reconciler sweeps: each time it looks at all pods that ask, and all machines that were made for pods.
type reconciler struct {
	Options
	pods     client.Client // of the workload cluster; reads from a cache
	fresh    client.Reader // the same, without one
	recorder events.EventRecorder
	// warned is what each pod was told last, so that it is told once. Only the one worker uses it.
	warned map[types.UID]string
	// waiting: some pods have no machine because of what the shards say.
	waiting atomic.Bool
}

// Setup registers the controller and its indexes.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Shards == nil || o.Workload == nil || o.Log == nil || o.Namespace == "" || o.Cluster == "" || o.Tenant == "" {
		return errors.New("ondemand: incomplete options")
	}
	if o.Client == nil {
		o.Client = mgr.GetClient()
	}
	ctx, own, workload := context.Background(), mgr.GetFieldIndexer(), o.Workload.GetFieldIndexer()
	if err := errors.Join(
		workload.IndexField(ctx, &corev1.Pod{}, podAsking, indexPodAsking),
		workload.IndexField(ctx, &corev1.Pod{}, podUID, indexPodUID),
		own.IndexField(ctx, &clusterv1.Machine{}, madeOnDemand, indexOnDemand),
		own.IndexField(ctx, &v1beta1.NstanceMachine{}, madeOnDemand, indexOnDemand),
	); err != nil {
		return fmt.Errorf("indexes: %w", err)
	}
	r := &reconciler{Options: o, pods: o.Workload.GetClient(), fresh: o.Workload.GetAPIReader(),
		recorder: o.Workload.GetEventRecorder("nstance-ondemand"),
		warned:   map[types.UID]string{}}
	err := ctrl.NewControllerManagedBy(mgr).Named("ondemand").
		WatchesRawSource(source.Kind(o.Workload.GetCache(), &corev1.Pod{}, sweepOn[*corev1.Pod](), asks)).
		WatchesRawSource(source.Kind(mgr.GetCache(), &clusterv1.Machine{}, sweepOn[*clusterv1.Machine](),
			made[*clusterv1.Machine]())).
		WatchesRawSource(source.Kind(mgr.GetCache(), &v1beta1.NstanceMachine{}, sweepOn[*v1beta1.NstanceMachine](),
			made[*v1beta1.NstanceMachine]())).
		WatchesRawSource(source.Kind(mgr.GetCache(), &v1beta1.NstanceMachinePool{},
			sweepOn[*v1beta1.NstanceMachinePool](), comesOrGoes)).
		WatchesRawSource(source.Kind(mgr.GetCache(), &clusterv1.Cluster{}, sweepOn[*clusterv1.Cluster]())).
		WatchesRawSource(shards.Source(o.Shards, r.ofShards)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("controller of on-demand machines: %w", err)
	}
	return nil
}

// sweep is the one request there is.
var sweep = reconcile.Request{NamespacedName: types.NamespacedName{Name: "sweep"}}

func sweepOn[T client.Object]() handler.TypedEventHandler[T, reconcile.Request] {
	return handler.TypedEnqueueRequestsFromMapFunc(func(context.Context, T) []reconcile.Request {
		return []reconcile.Request{sweep}
	})
}

// asks lets through what happens to pods that ask for machines, and the end of any: the annotation may have been taken
// off since.
var asks = predicate.TypedFuncs[*corev1.Pod]{
	CreateFunc: func(e event.TypedCreateEvent[*corev1.Pod]) bool { return indexPodAsking(e.Object) != nil },
	UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Pod]) bool {
		return indexPodAsking(e.ObjectOld) != nil || indexPodAsking(e.ObjectNew) != nil ||
			finished(e.ObjectOld) != finished(e.ObjectNew)
	},
}

func made[T client.Object]() predicate.TypedPredicate[T] {
	return predicate.NewTypedPredicateFuncs(func(o T) bool { return indexOnDemand(o) != nil })
}

var comesOrGoes = predicate.TypedFuncs[*v1beta1.NstanceMachinePool]{
	UpdateFunc: func(e event.TypedUpdateEvent[*v1beta1.NstanceMachinePool]) bool {
		return e.ObjectOld.DeletionTimestamp.IsZero() != e.ObjectNew.DeletionTimestamp.IsZero()
	},
}

func (r *reconciler) ofShards(c shards.Change) []reconcile.Request {
	if (c.Kind == shards.ShardState || c.Kind == shards.GroupChanged) && r.waiting.Load() {
		return []reconcile.Request{sweep}
	}
	return nil
}
