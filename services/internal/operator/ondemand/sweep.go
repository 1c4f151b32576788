package ondemand

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// cacheRetry is the delay before the next sweep after the cache was found to be out of date.
const cacheRetry = 5 * time.Second

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	w, paused, err := r.readSnapshot(ctx)
	if err != nil || paused {
		return ctrl.Result{}, err
	}
	d := decideSweep(w)
	r.waiting.Store(d.waiting)
	r.recordWarnings(w, d.warn)
	var problems []error
	again := false
	for _, m := range d.remove {
		behind, err := r.deleteMachine(ctx, m)
		again = again || behind
		problems = append(problems, err)
	}
	for _, c := range d.create {
		problems = append(problems, r.createMachine(ctx, &w, c))
	}
	if err := errors.Join(problems...); err != nil {
		return ctrl.Result{}, err
	}
	if again {
		return ctrl.Result{RequeueAfter: cacheRetry}, nil
	}
	return ctrl.Result{}, nil
}

// readSnapshot reads everything that a sweep depends on from the caches.
func (r *reconciler) readSnapshot(ctx context.Context) (w snapshot, paused bool, err error) {
	w = snapshot{cluster: r.ClusterName(), namespace: r.Namespace, alive: map[types.UID]bool{},
		machines: map[string]*clusterv1.Machine{},
		infra:    map[string]*v1beta1.NstanceMachine{}, pools: map[string]*v1beta1.NstanceMachinePool{}}
	permission, err := r.Permission(ctx, r.Client)
	if err != nil || permission.Paused {
		return w, permission.Paused, err
	}
	w.ending = permission.Ending
	ours, own := client.InNamespace(r.Namespace), client.MatchingFields{onDemandObjects: indexed}
	var machines clusterv1.MachineList
	var infra v1beta1.NstanceMachineList
	var pools v1beta1.NstanceMachinePoolList
	var pods corev1.PodList
	if err := errors.Join(
		r.Client.List(ctx, &machines, ours, own),
		r.Client.List(ctx, &infra, ours, own),
		r.Client.List(ctx, &pools, ours),
		r.pods.List(ctx, &pods, client.MatchingFields{requestingPods: indexed}),
	); err != nil {
		return w, false, fmt.Errorf("list pods and machines: %w", err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		w.pods = append(w.pods, pod)
		w.alive[pod.UID] = !podFinished(pod)
	}
	for i := range machines.Items {
		m := &machines.Items[i]
		if m.Spec.ClusterName != w.cluster {
			continue
		}
		w.machines[m.Name] = m
		uid := types.UID(m.Labels[v1beta1.PodUIDLabel])
		if _, ok := w.alive[uid]; ok {
			continue
		}
		var one corev1.PodList
		if err := r.pods.List(ctx, &one, client.MatchingFields{podsByUID: string(uid)}); err != nil {
			return w, false, fmt.Errorf("find the pod of a machine: %w", err)
		}
		w.alive[uid] = len(one.Items) > 0 && !podFinished(&one.Items[0])
	}
	for i := range infra.Items {
		w.infra[infra.Items[i].Name] = &infra.Items[i]
	}
	for i := range pools.Items {
		pool := &pools.Items[i]
		if name := pool.Labels[clusterv1.ClusterNameLabel]; name == "" || name == w.cluster {
			w.pools[pool.Spec.Group] = pool
		}
	}
	w.shards = r.shardViews()
	return w, false, nil
}

func (r *reconciler) shardViews() (out []shardView) {
	for _, s := range r.Shards.All() {
		state := s.State()
		view := shardView{id: s.ID(), usable: state.Reachable && state.Synced, groups: map[string]bool{}}
		for _, g := range s.Groups() {
			view.groups[g.GetGroup()] = !g.GetDeleting()
		}
		out = append(out, view)
	}
	return out
}

// podFinished reports whether the pod's containers have ended for good.
func podFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// recordWarnings records why pods get no machine, each reason once.
func (r *reconciler) recordWarnings(w snapshot, warnings []podWarning) {
	for uid := range r.warned {
		if !w.alive[uid] {
			delete(r.warned, uid)
		}
	}
	for _, one := range warnings {
		if r.warned[one.pod.UID] == one.text {
			continue
		}
		r.warned[one.pod.UID] = one.text
		r.Log.Warn("no machine created for a pod", "pod", one.pod.Namespace+"/"+one.pod.Name, "reason", one.text)
		r.recorder.Eventf(one.pod, nil, corev1.EventTypeWarning, one.reason, "CreateMachine",
			"no machine created for this pod: %s", one.text)
	}
}

// createMachine creates a machine, the Machine first. Objects that exist already are not changed.
func (r *reconciler) createMachine(ctx context.Context, w *snapshot, c machineCreation) error {
	m, infra := w.newObjects(c)
	switch {
	case c.machine != nil:
		m = c.machine
	default:
		if err := r.Client.Create(ctx, m); apierrors.IsAlreadyExists(err) {
			// The Machine exists, but the cache does not show it yet. Its appearance causes another sweep.
			return nil
		} else if err != nil {
			return fmt.Errorf("create Machine %s: %w", c.name, err)
		}
		r.Log.Info("created machine for a pod", "machine", c.name, "pod", c.pod.Namespace+"/"+c.pod.Name, "group",
			infra.Spec.GroupRef.Name)
		r.recorder.Eventf(c.pod, nil, corev1.EventTypeNormal, v1beta1.CreatedReason, "CreateMachine",
			"Machine %s created for this pod", c.name)
	}
	controls := true
	infra.OwnerReferences = append(infra.OwnerReferences,
		metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: m.Name, UID: m.UID,
			Controller: &controls})
	if err := r.Client.Create(ctx, infra); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create NstanceMachine %s: %w", c.name, err)
	}
	return nil
}

// deleteMachine deletes the machine of a deleted pod. It asks the API server for the pod first, because the cache may
// be out of date; it returns true if the pod exists.
func (r *reconciler) deleteMachine(ctx context.Context, m *clusterv1.Machine) (behind bool, err error) {
	if at, ok := podOfMachine(m); ok {
		var pod corev1.Pod
		err := r.apiReader.Get(ctx, at, &pod)
		switch {
		case err == nil && string(pod.UID) == m.Labels[v1beta1.PodUIDLabel] && !podFinished(&pod) &&
			indexRequestingPod(&pod) != nil:
			return true, nil
		case client.IgnoreNotFound(err) != nil:
			return false, fmt.Errorf("read the pod of machine %s: %w", m.Name, err)
		}
	}
	uid := m.UID
	if err := r.Client.Delete(ctx, m, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("delete Machine %s: %w", m.Name, err)
	}
	r.Log.Info("deleted the machine of a deleted pod", "machine", m.Name, "pod",
		m.Annotations[v1beta1.PodAnnotation])
	return false, nil
}

// podOfMachine returns the pod that a machine was created for. It returns false if the annotation was changed and is
// not the name of a pod.
func podOfMachine(m *clusterv1.Machine) (client.ObjectKey, bool) {
	namespace, name, ok := strings.Cut(m.Annotations[v1beta1.PodAnnotation], "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return client.ObjectKey{}, false
	}
	return client.ObjectKey{Namespace: namespace, Name: name}, true
}
