// Package pool reconciles groups of instances between Kubernetes and the shards. It imports the servers' groups as
// MachinePools, divides the replicas of each MachinePool among its shards, pushes each share to its shard, and reports
// the shards' answers in statuses and events.
//
// Invariants:
//
//   - Once a group has a pool, Kubernetes is the source of its size. Drift on a server is corrected, and a group that
//     already matches is not pushed.
//   - The share of a shard does not depend on which shards are reachable, and no shard waits for another.
//   - A group is deleted only when its pool is deleted or its shard is removed from the pool. A lost object or a lost
//     connection deletes nothing.
package pool

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools/finalizers,verbs=update
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceshardgroups,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceshardgroups/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=machinepools,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=machinepools/status,verbs=patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=machines,verbs=list;watch;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters,verbs=get;list;watch

const (
	// parallelPools and parallelGroups are the numbers of objects reconciled at a time. A reconciliation of a shard
	// group may wait for its shard. So parallelGroups is much larger than the number of workers that one shard can
	// occupy (see [callGate]).
	parallelPools  = 8
	parallelGroups = 64
)

// Setup registers the importer and the controllers of pools, shard groups and pool machines.
func Setup(mgr ctrl.Manager, s scope.Scope) error {
	p := pools{s.From(mgr, "nstance-pool")}
	for _, c := range []struct {
		name    string
		workers int
		setup   func(*ctrl.Builder) error
	}{
		{"nstanceimport", 1, newImporter(p).setup},
		{"nstancemachinepool", parallelPools, (&poolReconciler{p}).setup},
		{"nstanceshardgroup", parallelGroups, newGroupReconciler(p).setup},
		{"nstancepoolmachine", parallelPools, (&machineReconciler{p}).setup},
	} {
		if err := c.setup(p.NewController(mgr, c.name, c.workers)); err != nil {
			return fmt.Errorf("controller %s: %w", c.name, err)
		}
	}
	return nil
}

// pools is what the reconcilers of this package share.
type pools struct{ scope.Scope }

// referencedPool returns the name of the NstanceMachinePool that a MachinePool references. It returns false if the
// MachinePool references another kind.
func referencedPool(mp *clusterv1.MachinePool) (name string, ok bool) {
	ref := mp.Spec.Template.Spec.InfrastructureRef
	return ref.Name, ref.Kind == machinePoolKind && ref.APIGroup == v1beta1.GroupVersion.Group
}

// Kinds used in object references.
const (
	machinePoolKind = "NstanceMachinePool"
	machineKind     = "NstanceMachine"
)

// findMachinePool returns the MachinePool that [chooseUser] chooses for a pool. It returns nil if no MachinePool of the
// managed Cluster references the pool.
func (p *pools) findMachinePool(ctx context.Context, pool *v1beta1.NstanceMachinePool) (*clusterv1.MachinePool,
	error) {
	users, err := p.listUsers(ctx, p.Client, pool.Name)
	return chooseUser(pool, users), err
}

// specChanged ignores updates that change only the status. A controller must not use specChanged for objects whose
// status it writes. The controller computes each status from a cache that may be out of date. So it must run again when
// the cache shows the new status.
var specChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	was, is := e.ObjectOld, e.ObjectNew
	return was.GetGeneration() != is.GetGeneration() || !was.GetDeletionTimestamp().Equal(is.GetDeletionTimestamp()) ||
		!equality.Semantic.DeepEqual(was.GetLabels(), is.GetLabels()) ||
		!equality.Semantic.DeepEqual(was.GetAnnotations(), is.GetAnnotations()) ||
		!equality.Semantic.DeepEqual(was.GetFinalizers(), is.GetFinalizers()) ||
		!equality.Semantic.DeepEqual(was.GetOwnerReferences(), is.GetOwnerReferences())
}}

// onlyDeletions passes deletions only.
var onlyDeletions = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	UpdateFunc:  func(event.UpdateEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// groupRequests returns requests for all shard groups of the managed Cluster that have the labels.
func (p *pools) groupRequests(ctx context.Context, labels client.MatchingLabels) []reconcile.Request {
	return p.Requests(ctx, &v1beta1.NstanceShardGroupList{}, labels,
		client.MatchingLabels{clusterv1.ClusterNameLabel: p.ClusterName()})
}

// allGroups returns requests for all shard groups of the managed Cluster.
func (p *pools) allGroups(ctx context.Context) []reconcile.Request { return p.groupRequests(ctx, nil) }

// requestsForPool returns requests for a pool's shard groups.
func (p *pools) requestsForPool(ctx context.Context, object client.Object) []reconcile.Request {
	pool, ok := object.(*v1beta1.NstanceMachinePool)
	if !ok || pool.Namespace != p.Namespace {
		return nil
	}
	return p.groupRequests(ctx, client.MatchingLabels{v1beta1.GroupLabel: pool.Spec.Group})
}

// conditions are the conditions that a decision sets. mergeInto adds the generation and the time to each condition.
type conditions []metav1.Condition

func (c *conditions) set(kind string, ok bool, reason, format string, args ...any) {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}
	*c = append(*c, metav1.Condition{Type: kind, Status: status, Reason: reason,
		Message: scope.ConditionMessage(fmt.Sprintf(format, args...))})
}

// mergeInto merges c into the conditions that an object has. If a condition keeps its status, it also keeps its
// transition time.
func (c conditions) mergeInto(have []metav1.Condition, generation int64, now time.Time) []metav1.Condition {
	out := append([]metav1.Condition(nil), have...)
	for _, condition := range c {
		condition.ObservedGeneration, condition.LastTransitionTime = generation,
			metav1.NewTime(now.Truncate(time.Second))
		meta.SetStatusCondition(&out, condition)
	}
	return out
}

// setPaused sets the Paused condition of the Cluster API contract.
func (c *conditions) setPaused(paused bool) {
	if paused {
		c.set(v1beta1.PausedCondition, true, v1beta1.PausedReason, "the object, its pool or its Cluster is paused")
		return
	}
	c.set(v1beta1.PausedCondition, false, v1beta1.NotPausedReason, "")
}

// notice is a Kubernetes event to record.
type notice struct {
	warning      bool
	reason, note string
}

func normalEvent(reason, format string, args ...any) notice {
	return notice{reason: reason, note: fmt.Sprintf(format, args...)}
}

func warningEvent(reason, format string, args ...any) notice {
	return notice{true, reason, fmt.Sprintf(format, args...)}
}

// recordEvents records events. The reason also serves as the event's action.
func (p *pools) recordEvents(about runtime.Object, events ...notice) {
	for _, e := range events {
		kind := corev1.EventTypeNormal
		if e.warning {
			kind = corev1.EventTypeWarning
		}
		p.Recorder.Eventf(about, nil, kind, e.reason, e.reason, "%s", scope.EventNote(e.note))
	}
}
