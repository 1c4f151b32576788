// Package ondemand manages the machines of pods that request one by annotation. Each such pod has one Machine with an
// NstanceMachine as long as the pod exists, unless the pod runs on another Node.
//
// Invariants:
//
//   - A pod never has two machines of a group, because the machine's name is derived from the group and the pod's UID.
//     The machine of a deleted pod is deleted, also after restarts.
//   - A machine belongs to its pod. One write gives the machine's Node a taint and the labels that pods select. Only
//     the machine's pod gets the toleration for the taint.
//   - A machine is not deleted while another pod that requests an instance of its group runs on it.
package ondemand

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=machines,verbs=list;watch;create;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters,verbs=list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines,verbs=list;watch;create
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools,verbs=list;watch

// Names of the cache indexes.
const (
	requestingPods  = "nstance.dev/pod.on-demand"
	podsByUID       = "nstance.dev/pod.uid"
	onDemandObjects = "nstance.dev/on-demand"
	indexed         = "yes"
)

func indexRequestingPod(o client.Object) []string {
	if _, ok := o.GetAnnotations()[v1beta1.OnDemandGroupAnnotation]; ok {
		return []string{indexed}
	}
	return nil
}

func indexPodUID(o client.Object) []string { return []string{string(o.GetUID())} }

func indexOnDemand(o client.Object) []string {
	if _, ok := o.GetLabels()[v1beta1.PodUIDLabel]; ok {
		return []string{indexed}
	}
	return nil
}

// reconciler compares all pods that request machines with all machines created for pods, in one sweep.
type reconciler struct {
	scope.Scope
	pods      client.Client // of the workload cluster; reads from the cache
	apiReader client.Reader // of the workload cluster; reads from the API server
	recorder  events.EventRecorder
	// warned maps each pod to the last warning recorded for it. Only the single worker uses it.
	warned map[types.UID]string
	// tolerant are the UIDs of the pods to which the operator has added a toleration. The cache may not show it yet.
	tolerant sync.Map
	// deleted are the UIDs of the Machines that the operator has deleted. The cache may not show that yet.
	deleted sync.Map
	// waiting is true while a pod waits for a machine that cannot be created yet. A change on a shard may make the
	// creation possible.
	waiting atomic.Bool
}

// Setup registers the controller and its indexes. workload is the cluster with the Pods and Nodes. It is mgr itself if
// the operator runs in the same cluster. The cache of workload must hold all Nodes. Of all Pods, it must hold the
// metadata, spec.nodeName, spec.tolerations and status.phase. It must have the index [scope.NodeByProviderID].
func Setup(mgr ctrl.Manager, s scope.Scope, workload cluster.Cluster) error {
	s = s.From(mgr, "nstance-ondemand")
	ctx, own, pods := context.Background(), mgr.GetFieldIndexer(), workload.GetFieldIndexer()
	if err := errors.Join(
		pods.IndexField(ctx, &corev1.Pod{}, requestingPods, indexRequestingPod),
		pods.IndexField(ctx, &corev1.Pod{}, podsByUID, indexPodUID),
		own.IndexField(ctx, &clusterv1.Machine{}, onDemandObjects, indexOnDemand),
		own.IndexField(ctx, &v1beta1.NstanceMachine{}, onDemandObjects, indexOnDemand),
	); err != nil {
		return fmt.Errorf("indexes: %w", err)
	}
	r := &reconciler{Scope: s, pods: workload.GetClient(), apiReader: workload.GetAPIReader(),
		recorder: workload.GetEventRecorder("nstance-ondemand"),
		warned:   map[types.UID]string{}}
	err := s.NewController(mgr, "ondemand", 1).
		WatchesRawSource(source.Kind(workload.GetCache(), &corev1.Pod{}, sweepOn[*corev1.Pod](), requestsMachine)).
		WatchesRawSource(source.Kind(workload.GetCache(), &corev1.Node{}, sweepOn[*corev1.Node](), newNode)).
		WatchesRawSource(source.Kind(mgr.GetCache(), &clusterv1.Machine{}, sweepOn[*clusterv1.Machine](),
			createdForPod[*clusterv1.Machine]())).
		WatchesRawSource(source.Kind(mgr.GetCache(), &v1beta1.NstanceMachine{}, sweepOn[*v1beta1.NstanceMachine](),
			createdForPod[*v1beta1.NstanceMachine]())).
		WatchesRawSource(source.Kind(mgr.GetCache(), &v1beta1.NstanceMachinePool{},
			sweepOn[*v1beta1.NstanceMachinePool](),
			scope.DeletionChanged[*v1beta1.NstanceMachinePool]())).
		WatchesRawSource(source.Kind(mgr.GetCache(), &clusterv1.Cluster{}, sweepOn[*clusterv1.Cluster]())).
		WatchesRawSource(shards.Source(s.Shards, r.requestsForChange)).
		Complete(s.Supervise(r, nil))
	if err != nil {
		return fmt.Errorf("controller of on-demand machines: %w", err)
	}
	return nil
}

// sweep is the only request.
var sweep = reconcile.Request{NamespacedName: types.NamespacedName{Name: "sweep"}}

func sweepOn[T client.Object]() handler.TypedEventHandler[T, reconcile.Request] {
	return handler.TypedEnqueueRequestsFromMapFunc(func(context.Context, T) []reconcile.Request {
		return []reconcile.Request{sweep}
	})
}

// requestsMachine accepts the events of pods that request machines. It also accepts the completion and the deletion of
// every other pod, because a pod that has a machine may have lost its annotation.
var requestsMachine = predicate.TypedFuncs[*corev1.Pod]{
	CreateFunc: func(e event.TypedCreateEvent[*corev1.Pod]) bool { return indexRequestingPod(e.Object) != nil },
	UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Pod]) bool {
		return indexRequestingPod(e.ObjectOld) != nil || indexRequestingPod(e.ObjectNew) != nil ||
			podFinished(e.ObjectOld) != podFinished(e.ObjectNew)
	},
}

// newNode accepts the events of new Nodes, of Nodes that get a provider ID, and of Nodes whose reservation has changed.
var newNode = predicate.TypedFuncs[*corev1.Node]{
	UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Node]) bool {
		return e.ObjectOld.Spec.ProviderID != e.ObjectNew.Spec.ProviderID ||
			e.ObjectNew.Labels[v1beta1.OnDemandPodNodeLabel] != "" &&
				!equality.Semantic.DeepEqual(e.ObjectOld.Spec.Taints, e.ObjectNew.Spec.Taints)
	},
}

// createdForPod accepts the events of objects that were created for pods.
func createdForPod[T client.Object]() predicate.TypedPredicate[T] {
	return predicate.NewTypedPredicateFuncs(func(o T) bool { return indexOnDemand(o) != nil })
}

func (r *reconciler) requestsForChange(c shards.Change) []reconcile.Request {
	if (c.Kind == shards.ShardState || c.Kind == shards.GroupChanged) && r.waiting.Load() {
		return []reconcile.Request{sweep}
	}
	return nil
}
