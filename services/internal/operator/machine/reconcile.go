package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Reconciler reconciles NstanceMachines.
type Reconciler struct {
	Options
	refused refusals
}

func newReconciler(o Options) *Reconciler { return &Reconciler{Options: o} }

// maxSteps bounds one pass; a machine needs five at the most: finalizer, ID, instance, provider ID, and what the status
// then allows.
const maxSteps = 8

// soon is when to look again at what the cache did not know of yet.
const soon = 100 * time.Millisecond

// Reconcile looks at one machine and does what is to be done for it.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	m := &v1beta1.NstanceMachine{}
	if err := r.Client.Get(ctx, request.NamespacedName, m); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	result, err := r.reconcile(ctx, m.DeepCopy())
	if apierrors.IsConflict(err) {
		// The cache is behind: the machine is not what it was.
		return ctrl.Result{RequeueAfter: soon}, nil
	}
	return result, err
}

func (r *Reconciler) reconcile(ctx context.Context, m *v1beta1.NstanceMachine) (ctrl.Result, error) {
	v, ours, err := r.look(ctx, m)
	if err != nil || !ours {
		return ctrl.Result{}, err
	}
	for range maxSteps {
		d := decide(v)
		switch d.step {
		case choose, keep:
			err = r.store(ctx, &v, d)
		case create, ask, destroy:
			r.call(ctx, &v, d.step)
		default:
			return r.finish(ctx, v, d)
		}
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{}, fmt.Errorf("machine %s does not settle", m.Name)
}

// look fetches all that a decision rests on. A machine of another cluster is not ours, one of which nothing says whose
// it is not yet.
func (r *Reconciler) look(ctx context.Context, m *v1beta1.NstanceMachine) (v view, ours bool, err error) {
	v = view{machine: m, now: metav1.NewTime(r.Now().UTC().Truncate(time.Second))}
	if v.owner, v.ownerGone, err = r.owner(ctx, m); err != nil {
		return v, false, err
	}
	cluster := m.Labels[clusterv1.ClusterNameLabel]
	if v.owner != nil {
		cluster = v.owner.Spec.ClusterName
	}
	name := v1beta1.ClusterName(r.Cluster, r.Tenant)
	if cluster != "" && cluster != name {
		return v, false, nil
	}
	if v.paused, err = r.paused(ctx, m, name); err != nil || v.paused {
		return v, true, err
	}
	if isPoolMachine(m) && !m.DeletionTimestamp.IsZero() {
		if v.poolGone, err = r.poolGone(ctx, m); err != nil {
			return v, false, err
		}
	}
	for _, id := range r.Shards.IDs() {
		s, ok := r.Shards.Shard(id)
		if !ok {
			continue
		}
		state := s.State()
		look := shardView{id: id, reachable: state.Reachable, synced: state.Synced}
		look.group, _ = s.Group(m.Spec.GroupRef.Name)
		if id == m.Spec.Shard && m.Spec.InstanceID != "" {
			look.instance, _ = s.Instance(m.Spec.InstanceID)
		}
		v.shards = append(v.shards, look)
	}
	return v, true, nil
}

// owner finds the Machine: the one that controls this object, else one that refers to it. gone: the one that did is not
// there (any more).
func (r *Reconciler) owner(ctx context.Context, m *v1beta1.NstanceMachine) (owner *clusterv1.Machine, gone bool,
	err error) {
	if ref := metav1.GetControllerOf(m); ref != nil && ref.Kind == "Machine" && isCore(ref.APIVersion) {
		there, err := r.there(ctx, &clusterv1.Machine{}, client.ObjectKey{Namespace: m.Namespace, Name: ref.Name}, ref)
		if err != nil || there == nil {
			return nil, err == nil, err
		}
		return there.(*clusterv1.Machine), false, nil
	}
	var machines clusterv1.MachineList
	if err := r.Client.List(ctx, &machines, client.InNamespace(m.Namespace),
		client.MatchingFields{machineByInfrastructure: m.Name}); err != nil {
		return nil, false, fmt.Errorf("find the Machine: %w", err)
	}
	for i := range machines.Items {
		if machine := &machines.Items[i]; owner == nil || !owner.DeletionTimestamp.IsZero() {
			owner = machine
		}
	}
	return owner, false, nil
}

// there fetches what a reference names, nil when it is gone. A cache may not know it yet, so it is not believed in
// this.
func (r *Reconciler) there(ctx context.Context, obj client.Object, key client.ObjectKey,
	ref *metav1.OwnerReference) (client.Object, error) {
	for _, reader := range []client.Reader{r.Client, r.Reader} {
		err := reader.Get(ctx, key, obj)
		switch {
		case err == nil && obj.GetUID() == ref.UID:
			return obj, nil
		case err != nil && !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read the owner %s %s: %w", ref.Kind, ref.Name, err)
		}
	}
	return nil, nil
}

func (r *Reconciler) poolGone(ctx context.Context, m *v1beta1.NstanceMachine) (bool, error) {
	for _, ref := range m.OwnerReferences {
		if ref.Kind == "NstanceMachinePool" && ref.APIVersion == v1beta1.GroupVersion.String() {
			pool, err := r.there(ctx, &v1beta1.NstanceMachinePool{}, client.ObjectKey{Namespace: m.Namespace,
				Name: ref.Name}, &ref)
			return pool == nil || !pool.GetDeletionTimestamp().IsZero(), err
		}
	}
	return false, nil
}

// paused follows the contract: the annotation on the object, or the Cluster's spec.
func (r *Reconciler) paused(ctx context.Context, obj client.Object, cluster string) (bool, error) {
	if _, ok := obj.GetAnnotations()[clusterv1.PausedAnnotation]; ok {
		return true, nil
	}
	var c clusterv1.Cluster
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: obj.GetNamespace(), Name: cluster}, &c); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("read the Cluster: %w", err)
	}
	return c.Spec.Paused != nil && *c.Spec.Paused, nil
}

// store writes what must be known before the next step. The resource version is compared: a stale view must not choose
// a second ID.
func (r *Reconciler) store(ctx context.Context, v *view, d decision) error {
	m := v.machine.DeepCopy()
	controllerutil.AddFinalizer(m, v1beta1.MachineFinalizer)
	if d.step == choose {
		if m.Labels[clusterv1.ClusterNameLabel] == "" {
			// Its Machine says so. When that is gone one day, another cluster's operator must not take this for its
			// own.
			if m.Labels == nil {
				m.Labels = map[string]string{}
			}
			m.Labels[clusterv1.ClusterNameLabel] = v1beta1.ClusterName(r.Cluster, r.Tenant)
		}
		m.Spec.Shard = d.shard
		if m.Spec.InstanceID == "" {
			id, err := ident.NewID(d.kind, r.Now(), r.Rand)
			if err != nil {
				return fmt.Errorf("make an instance ID: %w", err)
			}
			m.Spec.InstanceID = id.String()
		}
	}
	if d.providerID != "" {
		m.Spec.ProviderID = d.providerID
	}
	if err := r.Client.Patch(ctx, m, client.MergeFromWithOptions(v.machine,
		client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("store the machine: %w", err)
	}
	v.machine = m
	return nil
}

// finish stores the status, tells of what is new in it, and does what it then allows.
func (r *Reconciler) finish(ctx context.Context, v view, d decision) (ctrl.Result, error) {
	m := v.machine
	if d.step == release {
		if d.warning != "" {
			r.Recorder.Eventf(m, nil, corev1.EventTypeWarning, d.warning, "Delete", "%s", d.text)
		}
		return ctrl.Result{}, r.release(ctx, m)
	}
	if !equality.Semantic.DeepEqual(m.Status, d.status) {
		next := m.DeepCopy()
		next.Status = d.status
		if err := r.Client.Status().Patch(ctx, next, client.MergeFrom(m)); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		r.tell(m, next)
		v.machine = next
	}
	if err := r.discard(ctx, v, d.step); err != nil {
		return ctrl.Result{}, err
	}
	if v.fault != nil {
		return ctrl.Result{RequeueAfter: v.fault.after}, nil
	}
	return ctrl.Result{}, nil
}

func (r *Reconciler) release(ctx context.Context, m *v1beta1.NstanceMachine) error {
	next := m.DeepCopy()
	if !controllerutil.RemoveFinalizer(next, v1beta1.MachineFinalizer) {
		return nil
	}
	r.refused.forget(m.UID)
	// Finalizers are a list without keys: another's must not be lost with ours.
	if err := r.Client.Patch(ctx, next, client.MergeFromWithOptions(m,
		client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.Log.Info("machine is done with", "machine", m.Name, "shard", m.Spec.Shard, "instance", m.Spec.InstanceID)
	return nil
}

// discard deletes the Machine of an instance that is gone, or this object when it has none.
func (r *Reconciler) discard(ctx context.Context, v view, s step) error {
	var obj client.Object = v.machine
	switch s {
	case deleteOwner:
		if err := r.skipDrain(ctx, v.owner); err != nil {
			return err
		}
		obj = v.owner
	case deleteSelf:
	default:
		return nil
	}
	uid := obj.GetUID()
	r.Log.Info("deleting the machine of an instance that is gone", "machine", v.machine.Name, "shard",
		v.machine.Spec.Shard, "instance", v.machine.Spec.InstanceID)
	if err := r.Client.Delete(ctx, obj, client.Preconditions{UID: &uid}); err != nil {
		return client.IgnoreNotFound(err)
	}
	return nil
}

// skipDrain tells Cluster API that there is nothing to drain or detach any more: pods that cannot be evicted would hold
// the Machine for ever.
func (r *Reconciler) skipDrain(ctx context.Context, owner *clusterv1.Machine) error {
	next := owner.DeepCopy()
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	for _, a := range []string{clusterv1.ExcludeNodeDrainingAnnotation,
		clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation} {
		if _, ok := next.Annotations[a]; !ok {
			next.Annotations[a] = "true"
		}
	}
	if equality.Semantic.DeepEqual(owner.Annotations, next.Annotations) {
		return nil
	}
	if err := r.Client.Patch(ctx, next, client.MergeFrom(owner)); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotate the Machine: %w", err)
	}
	return nil
}

// tell makes events of conditions that have changed.
func (r *Reconciler) tell(before, after *v1beta1.NstanceMachine) {
	for _, e := range []struct{ condition, reason, action, kind string }{
		{v1beta1.InstanceCreatedCondition, v1beta1.CreatedReason, "Create", corev1.EventTypeNormal},
		{v1beta1.InstanceCreatedCondition, v1beta1.CreateFailedReason, "Create", corev1.EventTypeWarning},
		{v1beta1.InstanceCreatedCondition, v1beta1.RefusedReason, "Create", corev1.EventTypeWarning},
		{v1beta1.InstanceCreatedCondition, v1beta1.UnknownShardReason, "Create", corev1.EventTypeWarning},
		{v1beta1.ServerDeletedCondition, v1beta1.InstanceGoneReason, "Delete", corev1.EventTypeNormal},
	} {
		old, now := meta.FindStatusCondition(before.Status.Conditions, e.condition),
			meta.FindStatusCondition(after.Status.Conditions, e.condition)
		if now == nil || now.Reason != e.reason || old != nil && old.Reason == now.Reason &&
			old.Message == now.Message {
			continue
		}
		text := now.Message
		if text == "" {
			text = "instance " + after.Spec.InstanceID + " on shard " + after.Spec.Shard
		}
		r.Recorder.Eventf(after, nil, e.kind, e.reason, e.action, "%s", text)
	}
}
