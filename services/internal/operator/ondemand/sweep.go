package ondemand

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
)

const (
	// cacheRetry is the delay before the next sweep after the cache was found to be out of date.
	cacheRetry = 5 * time.Second
	// restRetry is the delay before the next sweep if the present sweep did not create all machines.
	restRetry = 100 * time.Millisecond
	// parallelWrites is the number of objects that a sweep writes at a time. A sweep creates at most that many
	// machines.
	parallelWrites = 16
)

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	w, paused, err := r.readSnapshot(ctx)
	if err != nil || paused {
		return ctrl.Result{}, err
	}
	d := decideSweep(w)
	r.waiting.Store(d.waiting)
	var again atomic.Bool
	d.tolerate = slices.DeleteFunc(d.tolerate, func(pod *corev1.Pod) bool {
		_, done := r.tolerant.Load(pod.UID)
		return done
	})
	d.remove = slices.DeleteFunc(d.remove, func(one machineRemoval) bool {
		_, done := r.deleted.Load(one.machine.UID)
		return done
	})
	var failed sync.Map // the error of each pod whose machine could not be prepared, by the pod's UID
	problems := []error{
		inParallel(d.reserve, func(one nodeReservation) error {
			err := r.reserveNode(ctx, one)
			if err != nil {
				failed.Store(types.UID(one.machine.Labels[v1beta1.PodUIDLabel]), err)
			}
			return err
		}),
		inParallel(d.remove, func(one machineRemoval) error {
			behind, err := r.deleteMachine(ctx, one)
			if behind {
				again.Store(true)
			}
			return err
		}),
		inParallel(d.tolerate, func(pod *corev1.Pod) error {
			err := r.addToleration(ctx, pod)
			if err != nil {
				failed.Store(pod.UID, err)
			} else {
				r.tolerant.Store(pod.UID, true)
			}
			return err
		}),
	}
	// Create no machine for a pod that did not get its toleration: the pod could not use it.
	d.create = slices.DeleteFunc(d.create, func(c machineCreation) bool {
		_, ok := failed.Load(c.pod.UID)
		return ok
	})
	// Create at most parallelWrites machines now. The next sweep first reserves the Nodes that have appeared by then,
	// and then creates the remaining machines.
	rest := len(d.create) - parallelWrites
	if rest > 0 {
		d.create = d.create[:parallelWrites]
	}
	problems = append(problems, inParallel(d.create, func(c machineCreation) error {
		err := r.createMachine(ctx, &w, c)
		if err != nil {
			failed.Store(c.pod.UID, err)
		}
		return err
	}))
	if ctx.Err() == nil {
		r.recordWarnings(w, append(d.warn, failureWarnings(w, &failed)...))
	}
	switch err := errors.Join(problems...); {
	case err != nil:
		return ctrl.Result{}, err
	case rest > 0:
		return ctrl.Result{RequeueAfter: restRetry}, nil
	case again.Load():
		return ctrl.Result{RequeueAfter: cacheRetry}, nil
	}
	return ctrl.Result{}, nil
}

// failureWarnings returns a warning for each pod whose machine could not be prepared. The parameter failed maps UIDs of
// pods to errors.
func failureWarnings(w snapshot, failed *sync.Map) (warnings []podWarning) {
	failed.Range(func(uid, err any) bool {
		if pod := w.alive[uid.(types.UID)]; pod != nil {
			warnings = append(warnings, podWarning{pod, v1beta1.CreateFailedReason,
				scope.Truncate("the machine of this pod cannot be prepared; trying again: " + err.(error).Error())})
		}
		return true
	})
	return warnings
}

// inParallel calls the function do for each item, up to parallelWrites at a time. It returns all errors.
func inParallel[T any](items []T, do func(T) error) error {
	var group errgroup.Group
	group.SetLimit(parallelWrites)
	failed := make([]error, len(items))
	for i, item := range items {
		group.Go(func() error {
			failed[i] = do(item)
			return nil
		})
	}
	_ = group.Wait() // the errors are in failed
	return errors.Join(failed...)
}

// readSnapshot reads from the caches everything that a sweep depends on.
func (r *reconciler) readSnapshot(ctx context.Context) (w snapshot, paused bool, err error) {
	w = snapshot{cluster: r.ClusterName(), namespace: r.Namespace, alive: map[types.UID]*corev1.Pod{},
		machines: map[string]*clusterv1.Machine{}, nodes: map[string]*corev1.Node{},
		infra: map[string]*v1beta1.NstanceMachine{}, pools: map[string]*v1beta1.NstanceMachinePool{}}
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
		if !podFinished(pod) {
			w.alive[pod.UID] = pod
		}
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
		if len(one.Items) > 0 && !podFinished(&one.Items[0]) {
			w.alive[uid] = &one.Items[0]
		}
	}
	for i := range infra.Items {
		w.infra[infra.Items[i].Name] = &infra.Items[i]
		id := infra.Items[i].Spec.ProviderID
		if id == "" {
			continue
		}
		var nodes corev1.NodeList
		if err := r.pods.List(ctx, &nodes, client.MatchingFields{scope.NodeByProviderID.Field: id}); err != nil {
			return w, false, fmt.Errorf("find the Node of a machine: %w", err)
		}
		if len(nodes.Items) > 0 {
			w.nodes[id] = &nodes.Items[0]
		}
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
		view := shardView{id: s.ID(), usable: s.State().Answers(), groups: map[string]bool{}}
		for _, g := range s.Groups() {
			view.groups[g.GetGroup()] = !g.GetDeleting()
		}
		out = append(out, view)
	}
	return out
}

// podFinished reports whether the pod's containers have ended and will not start again.
func podFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// recordWarnings records a warning for each pod that waits. It does not repeat a warning with the same reason. It also
// forgets pods and Machines that no longer exist.
func (r *reconciler) recordWarnings(w snapshot, warnings []podWarning) {
	for uid := range r.warned {
		if w.alive[uid] == nil {
			delete(r.warned, uid)
		}
	}
	r.tolerant.Range(func(uid, _ any) bool {
		if w.alive[uid.(types.UID)] == nil {
			r.tolerant.Delete(uid)
		}
		return true
	})
	present := map[types.UID]bool{}
	for _, m := range w.machines {
		present[m.UID] = true
	}
	r.deleted.Range(func(uid, _ any) bool {
		if !present[uid.(types.UID)] {
			r.deleted.Delete(uid)
		}
		return true
	})
	for _, one := range warnings {
		if r.warned[one.pod.UID] == one.text {
			continue
		}
		r.warned[one.pod.UID] = one.text
		r.Log.Warn("a pod waits", "pod", one.pod.Namespace+"/"+one.pod.Name, "reason", one.text)
		r.recorder.Eventf(one.pod, nil, corev1.EventTypeWarning, one.reason, "CreateMachine", "%s",
			scope.Truncate(one.text))
	}
}

// createMachine creates the Machine first, and then its NstanceMachine. It does not change objects that exist already.
func (r *reconciler) createMachine(ctx context.Context, w *snapshot, c machineCreation) error {
	m, infra := w.newObjects(c)
	switch {
	case c.machine != nil:
		m = c.machine
	default:
		if err := r.Client.Create(ctx, m); apierrors.IsAlreadyExists(err) {
			// The Machine exists, but it is not in the cache yet. When it appears there, another sweep starts.
			return nil
		} else if err != nil {
			return fmt.Errorf("create Machine %s: %w", c.name, err)
		}
		r.Log.Info("created machine for a pod", "machine", c.name, "pod", c.pod.Namespace+"/"+c.pod.Name, "group",
			infra.Spec.GroupRef.Name)
		r.recorder.Eventf(c.pod, nil, corev1.EventTypeNormal, v1beta1.CreatedReason, "CreateMachine",
			"Machine %s created for this pod", c.name)
	}
	infra.OwnerReferences = append(infra.OwnerReferences, scope.MachineReference(m))
	if err := r.Client.Create(ctx, infra); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create NstanceMachine %s: %w", c.name, err)
	}
	return nil
}

// addToleration lets a pod run on the Node of its machine. It ignores a pod that no longer exists.
func (r *reconciler) addToleration(ctx context.Context, pod *corev1.Pod) error {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	// For existing pods, the API server accepts additional tolerations, but no other change that affects scheduling.
	add := operation{"add", "/spec/tolerations/-", toleration(pod.UID)}
	if len(pod.Spec.Tolerations) == 0 {
		add = operation{"add", "/spec/tolerations", []corev1.Toleration{toleration(pod.UID)}}
	}
	patch, err := json.Marshal([]operation{{"test", "/metadata/uid", pod.UID}, add})
	if err != nil {
		return fmt.Errorf("encode the toleration of a pod: %w", err)
	}
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	if err := r.pods.Patch(ctx, object, client.RawPatch(types.JSONPatchType, patch)); client.IgnoreNotFound(
		err) != nil {
		return fmt.Errorf("add a toleration to pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// reserveNode gives a Node the labels and the taint of its machine in one write. If the labels came first, a pod that
// selects the group could be scheduled to the Node before the Node has the taint.
func (r *reconciler) reserveNode(ctx context.Context, one nodeReservation) error {
	labels, taint := reservation(one.machine)
	name := one.node.Name
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node := &corev1.Node{}
		if err := r.apiReader.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
			return err
		}
		if node.UID != one.node.UID || isReserved(node, one.machine) {
			return nil
		}
		before := node.DeepCopy()
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		maps.Copy(node.Labels, labels)
		node.Spec.Taints = append(slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == taint.Key && t.Effect == taint.Effect
		}), taint)
		return r.pods.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reserve Node %s for the pod of machine %s: %w", name, one.machine.Name, err)
	}
	return nil
}

// deleteMachine deletes a machine that its pod does not need. It first reads the pod from the API server, because the
// cache may be out of date. If the pod may still need the machine, deleteMachine keeps the machine and returns true.
func (r *reconciler) deleteMachine(ctx context.Context, one machineRemoval) (behind bool, err error) {
	m := one.machine
	if at, ok := podOfMachine(m); ok {
		var pod corev1.Pod
		err := r.apiReader.Get(ctx, at, &pod)
		switch {
		case err == nil && string(pod.UID) == m.Labels[v1beta1.PodUIDLabel] && !podFinished(&pod):
			if behind, err := r.stillNeeds(ctx, &pod, one); behind || err != nil {
				return behind, err
			}
		case client.IgnoreNotFound(err) != nil:
			return false, fmt.Errorf("read the pod of machine %s: %w", m.Name, err)
		}
	}
	uid := m.UID
	if err := r.Client.Delete(ctx, m, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("delete Machine %s: %w", m.Name, err)
	}
	r.deleted.Store(uid, true)
	r.Log.Info("deleted the machine of a pod that does not need it", "machine", m.Name, "pod",
		m.Annotations[v1beta1.PodAnnotation])
	return false, nil
}

// stillNeeds reports the same as needsMachine, but reads the pod's Node from the API server. If the Node has no
// provider ID yet, stillNeeds returns true, because the Node may belong to the machine.
func (r *reconciler) stillNeeds(ctx context.Context, pod *corev1.Pod, one machineRemoval) (bool, error) {
	if pod.Spec.NodeName == "" || one.infra == nil || one.infra.Spec.ProviderID == "" {
		return needsMachine(pod, one.machine, one.infra, nil), nil
	}
	node := &corev1.Node{}
	if err := r.apiReader.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node); err != nil {
		return true, client.IgnoreNotFound(err)
	}
	return node.Spec.ProviderID == "" || node.Spec.ProviderID == one.infra.Spec.ProviderID, nil
}

// podOfMachine returns the pod that a machine was created for. It returns false if the machine's annotation was changed
// and is no longer the name of a pod.
func podOfMachine(m *clusterv1.Machine) (client.ObjectKey, bool) {
	namespace, name, ok := strings.Cut(m.Annotations[v1beta1.PodAnnotation], "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return client.ObjectKey{}, false
	}
	return client.ObjectKey{Namespace: namespace, Name: name}, true
}
