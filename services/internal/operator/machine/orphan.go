package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// orphanReconciler deletes Machines of pools that have neither an NstanceMachine nor an instance. Such a Machine
// appears if its NstanceMachine is deleted while Cluster API creates the Machine.
type orphanReconciler struct {
	*Reconciler
	// since maps the name of each Machine that has neither an NstanceMachine nor an instance to what the operator saw
	// first. Only the single worker uses the map.
	since map[string]firstSeen
}

// firstSeen is when the operator first saw the Machine with the UID without NstanceMachine and instance.
type firstSeen struct {
	uid types.UID
	at  time.Time
}

func newOrphanReconciler(r *Reconciler) *orphanReconciler {
	return &orphanReconciler{Reconciler: r, since: map[string]firstSeen{}}
}

func (r *orphanReconciler) setup(mgr ctrl.Manager) error {
	err := r.NewController(mgr, "nstanceorphan", 1).
		For(&clusterv1.Machine{}).
		Watches(&v1beta1.NstanceMachine{}, handler.EnqueueRequestsFromMapFunc(r.requestsForInfrastructure),
			builder.WithPredicates(predicate.Funcs{
				CreateFunc: func(event.CreateEvent) bool { return false },
				UpdateFunc: func(event.UpdateEvent) bool { return false },
			})).
		Complete(r.Supervise(r, &clusterv1.Machine{}))
	if err != nil {
		return fmt.Errorf("controller of Machines without instance: %w", err)
	}
	return nil
}

// requestsForInfrastructure returns requests for the Machines that reference an NstanceMachine.
func (r *orphanReconciler) requestsForInfrastructure(ctx context.Context, o client.Object) []reconcile.Request {
	return r.Requests(ctx, &clusterv1.MachineList{}, client.MatchingFields{machineByInfrastructure: o.GetName()})
}

// Reconcile implements reconcile.Reconciler.
func (r *orphanReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	m := &clusterv1.Machine{}
	found, err := r.Scope.Read(ctx, request.Name, m)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !found || !r.isOwnPoolMachine(m) {
		delete(r.since, request.Name)
		return ctrl.Result{}, nil
	}
	permission, err := r.Permission(ctx, r.Client, m)
	if err != nil || permission.Paused {
		return ctrl.Result{}, err
	}
	in := orphanInput{now: r.Now()}
	name := m.Spec.InfrastructureRef.Name
	if in.infrastructure, err = r.Scope.Read(ctx, name, &v1beta1.NstanceMachine{}); err != nil {
		return ctrl.Result{}, err
	}
	for _, s := range r.Shards.All() {
		state := s.State()
		instance, _ := s.Instance(name)
		in.shards = append(in.shards, shardView{id: s.ID(), reachable: state.Reachable, synced: state.Synced,
			instance: instance})
	}
	if seen := r.since[m.Name]; seen.uid == m.UID { // else it was another Machine of this name
		in.since = seen.at
	}
	reap, again := decideOrphan(&in)
	if in.since.IsZero() {
		delete(r.since, m.Name)
	} else {
		r.since[m.Name] = firstSeen{m.UID, in.since}
	}
	if !reap {
		return ctrl.Result{RequeueAfter: again}, nil
	}
	return ctrl.Result{}, r.reap(ctx, m)
}

// isOwnPoolMachine reports whether the Machine belongs to a pool of the managed Cluster, uses an NstanceMachine, and is
// not being deleted.
func (r *orphanReconciler) isOwnPoolMachine(m *clusterv1.Machine) bool {
	ref := m.Spec.InfrastructureRef
	return m.DeletionTimestamp.IsZero() && m.Spec.ClusterName == r.ClusterName() &&
		m.Labels[clusterv1.MachinePoolNameLabel] != "" && ref.APIGroup == v1beta1.GroupVersion.Group &&
		ref.Kind == "NstanceMachine"
}

// reap deletes the Machine. It first asks the API server whether the NstanceMachine exists, because the cache may be
// out of date.
func (r *orphanReconciler) reap(ctx context.Context, m *clusterv1.Machine) error {
	err := r.Reader.Get(ctx, r.Key(m.Spec.InfrastructureRef.Name), &v1beta1.NstanceMachine{})
	if !apierrors.IsNotFound(err) {
		return client.IgnoreNotFound(err)
	}
	if err := r.skipDrain(ctx, m); err != nil {
		return err
	}
	uid := m.UID
	if err := r.Client.Delete(ctx, m, client.Preconditions{UID: &uid}); err != nil {
		return client.IgnoreNotFound(err)
	}
	text := fmt.Sprintf("the Machine has had no NstanceMachine and no instance for %s", orphanGrace)
	r.Log.Info("deleted Machine without instance", "machine", m.Name)
	r.Recorder.Eventf(m, nil, corev1.EventTypeWarning, v1beta1.InstanceGoneReason, "Delete", "%s", text)
	return nil
}

const (
	// orphanGrace is how long a pool's Machine may be without NstanceMachine and instance.
	orphanGrace = time.Minute
	// orphanRecheck is the time until the next decision about a Machine, while one of the shards does not answer.
	orphanRecheck = 10 * time.Second
)

// orphanInput is everything that decideOrphan depends on.
type orphanInput struct {
	// infrastructure: the NstanceMachine exists.
	infrastructure bool
	// shards has an entry for each shard. The instance in an entry is the shard's instance with the same name as the
	// Machine, nil if there is none.
	shards []shardView
	// since is the time when the Machine was first seen without NstanceMachine and instance. decideOrphan updates it.
	since, now time.Time
}

// decideOrphan reports whether the Machine must be deleted (reap). If not, the result "again" is the time until the
// next call. If this time is zero, the next call comes only after a change. The instance may be in any shard, so every
// shard must answer.
func decideOrphan(in *orphanInput) (reap bool, again time.Duration) {
	if in.infrastructure {
		in.since = time.Time{}
		return false, 0
	}
	for _, s := range in.shards {
		exists := s.instance != nil && s.instance.GetState() != stateDeleted
		if exists || !s.reachable || !s.synced {
			in.since = time.Time{}
			return false, orphanRecheck
		}
	}
	if in.since.IsZero() {
		in.since = in.now
	}
	if left := in.since.Add(orphanGrace).Sub(in.now); left > 0 {
		return false, left
	}
	return true, 0
}
