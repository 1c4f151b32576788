package machine

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// Reconciler reconciles NstanceMachines.
type Reconciler struct {
	scope.Scope
	refused refusals
}

// maxSteps is the largest number of steps in one reconciliation. A machine needs at most five: one each to get its
// finalizer, its instance ID, its instance and its provider ID, and one after the status was stored.
const maxSteps = 8

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	m := &v1beta1.NstanceMachine{}
	if found, err := r.Read(ctx, request.Name, m); err != nil || !found {
		return ctrl.Result{}, err
	}
	result, err := r.reconcile(ctx, m.DeepCopy())
	if err != nil {
		return scope.RetryConflict(err)
	}
	return result, nil
}

func (r *Reconciler) reconcile(ctx context.Context, m *v1beta1.NstanceMachine) (ctrl.Result, error) {
	v, ours, err := r.readView(ctx, m)
	if err != nil || !ours {
		return ctrl.Result{}, err
	}
	for range maxSteps {
		d := decide(v)
		switch d.step {
		case stepChoose, stepKeep:
			err = r.storeChoice(ctx, &v, d)
		case stepCreate, stepAsk, stepDestroy:
			r.performCall(ctx, &v, d.step)
		default:
			return r.storeStatus(ctx, v, d)
		}
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{}, fmt.Errorf("machine %s needs more than %d steps", m.Name, maxSteps)
}

// readView reads everything that a decision depends on. It returns false if the machine belongs to another cluster.
func (r *Reconciler) readView(ctx context.Context, m *v1beta1.NstanceMachine) (v view, ours bool, err error) {
	v = view{machine: m, now: metav1.NewTime(r.Now().UTC().Truncate(time.Second))}
	if v.owner, v.ownerGone, err = r.findOwner(ctx, m); err != nil {
		return v, false, err
	}
	cluster := m.Labels[clusterv1.ClusterNameLabel]
	if v.owner != nil {
		cluster = v.owner.Spec.ClusterName
	}
	if cluster != "" && cluster != r.ClusterName() {
		return v, false, nil
	}
	annotated := []client.Object{m}
	if v.owner != nil {
		annotated = append(annotated, v.owner)
	}
	permission, err := r.Permission(ctx, r.Client, annotated...)
	v.paused, v.ending, v.skip = permission.Paused, permission.Ending, permission.Skip[m.Spec.Shard]
	if err != nil || v.paused {
		return v, true, err
	}
	if isPoolMachine(m) && !m.DeletionTimestamp.IsZero() {
		if v.poolGone, err = r.poolGone(ctx, m); err != nil {
			return v, false, err
		}
		if v.owner, err = r.readCurrentOwner(ctx, v.owner); err != nil {
			return v, false, err
		}
	}
	waiting := &v1beta1.NstanceMachineList{}
	if m.Spec.Shard == "" {
		if err := r.Client.List(ctx, waiting, client.InNamespace(m.Namespace), client.UnsafeDisableDeepCopy,
			client.MatchingFields{byWaitingGroup: m.Spec.GroupRef.Name}); err != nil {
			return v, false, fmt.Errorf("list machines without an instance: %w", err)
		}
	}
	for _, s := range r.Shards.All() {
		state, id := s.State(), s.ID()
		view := shardView{id: id, reachable: state.Reachable, synced: state.Synced}
		if m.Spec.Shard == "" {
			view.load = countLoad(s, m.Spec.GroupRef.Name, waiting)
		}
		view.group, _ = s.Group(m.Spec.GroupRef.Name)
		if id == m.Spec.Shard && m.Spec.InstanceID != "" {
			view.instance, _ = s.Instance(m.Spec.InstanceID)
		}
		v.shards = append(v.shards, view)
	}
	return v, true, nil
}

// countLoad counts a group's instances in a shard. It also counts the machines that are assigned to this shard and
// whose instances do not exist yet.
func countLoad(s shards.Shard, group string, waiting *v1beta1.NstanceMachineList) int {
	n := len(s.Instances(group))
	for i := range waiting.Items {
		spec := &waiting.Items[i].Spec
		if _, exists := s.Instance(spec.InstanceID); spec.Shard == s.ID() && !exists {
			n++
		}
	}
	return n
}

// findOwner finds the Machine of an NstanceMachine through the NstanceMachine's controller reference. Without such a
// reference, it finds a Machine that references the NstanceMachine. notFound means that the Machine in the controller
// reference no longer exists.
func (r *Reconciler) findOwner(ctx context.Context, m *v1beta1.NstanceMachine) (owner *clusterv1.Machine, notFound bool,
	err error) {
	if ref := metav1.GetControllerOf(m); ref != nil && ref.Kind == "Machine" && isClusterAPIVersion(ref.APIVersion) {
		owner = &clusterv1.Machine{}
		if found, err := r.readReferenced(ctx, owner, ref); err != nil || !found {
			return nil, err == nil, err
		}
		return owner, false, nil
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

// readCurrentOwner reads a Machine from the API server, unless the cache shows already that it is being deleted. It
// returns nil if the Machine does not exist.
func (r *Reconciler) readCurrentOwner(ctx context.Context, owner *clusterv1.Machine) (*clusterv1.Machine, error) {
	if owner == nil || !owner.DeletionTimestamp.IsZero() {
		return owner, nil
	}
	current := &clusterv1.Machine{}
	err := r.Reader.Get(ctx, client.ObjectKeyFromObject(owner), current)
	switch {
	case apierrors.IsNotFound(err), err == nil && current.UID != owner.UID:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the Machine %s: %w", owner.Name, err)
	}
	return current, nil
}

// readReferenced reads the object in an owner reference from the cache. If the cache does not have the object,
// readReferenced asks the API server. It returns false if the object does not exist.
func (r *Reconciler) readReferenced(ctx context.Context, into client.Object, ref *metav1.OwnerReference) (bool, error) {
	for _, reader := range []client.Reader{r.Client, r.Reader} {
		err := reader.Get(ctx, r.Key(ref.Name), into)
		switch {
		case err == nil && into.GetUID() == ref.UID:
			return true, nil
		case client.IgnoreNotFound(err) != nil:
			return false, fmt.Errorf("read the owner %s %s: %w", ref.Kind, ref.Name, err)
		}
	}
	return false, nil
}

// poolGone reports whether the pool of a pool machine is being deleted or does not exist. Kubernetes removes the
// machine's reference to a pool that does not exist. So without a reference, poolGone returns true.
func (r *Reconciler) poolGone(ctx context.Context, m *v1beta1.NstanceMachine) (bool, error) {
	for _, ref := range m.OwnerReferences {
		if ref.Kind == "NstanceMachinePool" && ref.APIVersion == v1beta1.GroupVersion.String() {
			pool := &v1beta1.NstanceMachinePool{}
			found, err := r.readReferenced(ctx, pool, &ref)
			return !found || !pool.DeletionTimestamp.IsZero(), err
		}
	}
	return true, nil
}

// storeChoice stores the finalizer and the chosen shard, instance ID and provider ID. It fails if another client has
// changed the machine, so that two reconciliations cannot store two instance IDs.
func (r *Reconciler) storeChoice(ctx context.Context, v *view, d decision) error {
	m := v.machine.DeepCopy()
	controllerutil.AddFinalizer(m, v1beta1.MachineFinalizer)
	if v.owner != nil && !isPoolMachine(m) && metav1.GetControllerOf(m) == nil {
		// With this owner reference, Kubernetes deletes the NstanceMachine together with its Machine. Cluster API adds
		// the same reference, but perhaps too late: a Machine without a finalizer disappears as soon as it is deleted.
		// Without the reference, its NstanceMachine and its instance would stay.
		m.OwnerReferences = append(m.OwnerReferences, scope.MachineReference(v.owner))
	}
	if d.step == stepChoose {
		if m.Labels[clusterv1.ClusterNameLabel] == "" {
			// Store the name of the cluster in a label. The Machine contains the name too, but the Machine may be
			// deleted before the NstanceMachine.
			metav1.SetMetaDataLabel(&m.ObjectMeta, clusterv1.ClusterNameLabel, r.ClusterName())
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
	if err := r.PatchLocked(ctx, v.machine, m); err != nil {
		return fmt.Errorf("store the machine: %w", err)
	}
	v.machine = m
	return nil
}

// storeStatus stores the status and records events for its changes. It then deletes the Machine or the NstanceMachine
// if the decision says so. For stepRelease, it only removes the finalizer.
func (r *Reconciler) storeStatus(ctx context.Context, v view, d decision) (ctrl.Result, error) {
	m := v.machine
	if d.step == stepRelease {
		if d.warning != "" {
			r.Recorder.Eventf(m, nil, corev1.EventTypeWarning, d.warning, "Delete", "%s", d.text)
		}
		return ctrl.Result{}, r.removeFinalizer(ctx, m)
	}
	if !equality.Semantic.DeepEqual(m.Status, d.status) {
		next := m.DeepCopy()
		next.Status = d.status
		if err := r.PatchStatus(ctx, m, next); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		r.recordEvents(m, next)
		v.machine = next
	}
	if err := r.limitDrain(ctx, &v); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.deleteDiscarded(ctx, v, d.step); err != nil {
		return ctrl.Result{}, err
	}
	if v.fault != nil {
		return ctrl.Result{RequeueAfter: v.fault.after}, nil
	}
	return ctrl.Result{}, nil
}

func (r *Reconciler) removeFinalizer(ctx context.Context, m *v1beta1.NstanceMachine) error {
	next := m.DeepCopy()
	if !controllerutil.RemoveFinalizer(next, v1beta1.MachineFinalizer) {
		return nil
	}
	r.refused.forget(m.UID)
	if err := r.Patch(ctx, m, next); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.Log.Info("released machine", "machine", m.Name, "shard", m.Spec.Shard, "instance", m.Spec.InstanceID)
	return nil
}

// deleteDiscarded deletes the Machine of an instance that is gone, or the NstanceMachine if it has no Machine.
func (r *Reconciler) deleteDiscarded(ctx context.Context, v view, s step) error {
	var obj client.Object = v.machine
	switch s {
	case stepDeleteOwner:
		if err := r.skipDrain(ctx, v.owner); err != nil {
			return err
		}
		obj = v.owner
	case stepDeleteSelf:
	default:
		return nil
	}
	uid := obj.GetUID()
	r.Log.Info("instance is gone; deleting its Machine", "machine", v.machine.Name, "shard",
		v.machine.Spec.Shard, "instance", v.machine.Spec.InstanceID)
	if err := r.Client.Delete(ctx, obj, client.Preconditions{UID: &uid}); err != nil {
		return client.IgnoreNotFound(err)
	}
	return nil
}

// skipDrain tells Cluster API to skip draining and volume detachment. Otherwise a pod that cannot be evicted would
// block the Machine forever, although the instance is gone.
func (r *Reconciler) skipDrain(ctx context.Context, owner *clusterv1.Machine) error {
	next := owner.DeepCopy()
	for _, a := range []string{clusterv1.ExcludeNodeDrainingAnnotation,
		clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation} {
		if _, ok := next.Annotations[a]; !ok {
			metav1.SetMetaDataAnnotation(&next.ObjectMeta, a, "true")
		}
	}
	if err := r.Patch(ctx, owner, next); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("annotate the Machine: %w", err)
	}
	return nil
}

// recordEvents records events for changed conditions.
func (r *Reconciler) recordEvents(before, after *v1beta1.NstanceMachine) {
	for _, e := range []struct{ condition, reason, action, kind string }{
		{v1beta1.InstanceCreatedCondition, v1beta1.CreatedReason, "Create", corev1.EventTypeNormal},
		{v1beta1.InstanceCreatedCondition, v1beta1.CreateFailedReason, "Create", corev1.EventTypeWarning},
		{v1beta1.InstanceCreatedCondition, v1beta1.RefusedReason, "Create", corev1.EventTypeWarning},
		{v1beta1.InstanceCreatedCondition, v1beta1.UnknownShardReason, "Create", corev1.EventTypeWarning},
		{v1beta1.InstanceCreatedCondition, v1beta1.UnreachableReason, "Create", corev1.EventTypeWarning},
		{v1beta1.InstanceCreatedCondition, v1beta1.WaitingForShardReason, "Create", corev1.EventTypeWarning},
		{v1beta1.ServerDeletedCondition, v1beta1.InstanceGoneReason, "Delete", corev1.EventTypeNormal},
		{v1beta1.ReadyCondition, v1beta1.DeletingReason, "Delete", corev1.EventTypeWarning},
	} {
		old, now := meta.FindStatusCondition(before.Status.Conditions, e.condition),
			meta.FindStatusCondition(after.Status.Conditions, e.condition)
		if now == nil || now.Reason != e.reason || old != nil && old.Reason == now.Reason &&
			old.Message == now.Message {
			continue
		}
		text := now.Message
		if text == deletingText {
			continue // the deletion waits for nothing but the server
		}
		if text == "" {
			text = "instance " + after.Spec.InstanceID + " on shard " + after.Spec.Shard
		}
		r.Recorder.Eventf(after, nil, e.kind, e.reason, e.action, "%s", scope.Truncate(text))
	}
}

// refusals remembers, in memory only, two kinds of CreateInstance calls: those that the server refused, and failed ones
// that may still create an instance. For some time, the operator does not repeat a refused call, because the call would
// fail again. After a restart, the operator repeats a refused call once. A call that failed before the restart can no
// longer create an instance.
type refusals struct {
	of   sync.Map // the refusal of each machine's last call, by the UID of the machine
	lost sync.Map // the time of each machine's last call that failed and may still create the instance, by the UID
}

type refusal struct {
	generation int64
	group      string // the group's etag
	until      time.Time
	fault      *fault
}

func etag(s *shardView) string {
	if s == nil {
		return ""
	}
	return s.group.GetEtag()
}

func (r *refusals) remember(m *v1beta1.NstanceMachine, s *shardView, f *fault, now time.Time) {
	r.of.Store(m.UID, refusal{generation: m.Generation, group: etag(s), until: now.Add(f.after), fault: f})
}

// lookup returns the stored refusal. It returns nil if the refusal has expired, or if the machine or the group has
// changed after the refusal.
func (r *refusals) lookup(m *v1beta1.NstanceMachine, s *shardView, now time.Time) *fault {
	stored, _ := r.of.Load(m.UID)
	old, ok := stored.(refusal)
	if !ok || old.generation != m.Generation || old.group != etag(s) || !now.Before(old.until) {
		return nil
	}
	f := *old.fault
	f.after = old.until.Sub(now)
	return &f
}

func (r *refusals) forget(id types.UID) {
	r.of.Delete(id)
	r.lost.Delete(id)
}

// inDoubt reports whether the server may still process a failed CreateInstance call. If so, an answer that the instance
// does not exist may be premature.
func (r *refusals) inDoubt(id types.UID, now time.Time) bool {
	at, ok := r.lost.Load(id)
	return ok && now.Sub(at.(time.Time)) < creationDoubt
}
