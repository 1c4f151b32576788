package machine

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// templateReconciler reconciles NstanceMachineTemplates. It sets in the status the capacity of one machine. The cluster
// autoscaler needs the capacity to scale from zero.
type templateReconciler struct {
	scope.Scope
	types shards.Types
}

// Reconcile implements reconcile.Reconciler.
func (r *templateReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	t := &v1beta1.NstanceMachineTemplate{}
	if found, err := r.Read(ctx, request.Name, t); err != nil || !found {
		return ctrl.Result{}, err
	}
	if cluster := t.Labels[clusterv1.ClusterNameLabel]; cluster != "" && cluster != r.ClusterName() ||
		!t.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	permission, err := r.Permission(ctx, r.Client, t)
	if err != nil {
		return ctrl.Result{}, err
	}
	next := t.DeepCopy()
	r.updateStatus(ctx, next, permission.Paused)
	if err := r.PatchStatus(ctx, t, next); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	was := meta.FindStatusCondition(t.Status.Conditions, v1beta1.ReadyCondition)
	is := meta.FindStatusCondition(next.Status.Conditions, v1beta1.ReadyCondition)
	if is != nil && is.Reason == v1beta1.WaitingForShardReason && (was == nil || was.Message != is.Message) {
		r.Recorder.Eventf(next, nil, corev1.EventTypeWarning, is.Reason, "ReadCapacity", "%s", is.Message)
	}
	return ctrl.Result{}, nil
}

func (r *templateReconciler) updateStatus(ctx context.Context, t *v1beta1.NstanceMachineTemplate, paused bool) {
	set := func(condition string, is bool, reason, message string) {
		scope.SetCondition(&t.Status.Conditions, t.Generation, r.Now(), condition, is, reason, message)
	}
	if paused {
		set(v1beta1.PausedCondition, true, v1beta1.PausedReason,
			"the template or its cluster is paused")
		return
	}
	set(v1beta1.PausedCondition, false, v1beta1.NotPausedReason, "")
	t.Status.ObservedGeneration = t.Generation
	capacity, known := r.capacity(ctx, t.Spec.Template.Spec)
	if !known {
		// No shard has reported the capacity, perhaps because none can be reached. Keep the capacity that the status
		// already has.
		if t.Status.Capacity == nil {
			text := "no shard has reported the instance type of group " + t.Spec.Template.Spec.GroupRef.Name
			if silent := shards.Silent(r.Shards, t.Spec.Template.Spec.Shard); silent != "" {
				text += ": waiting for " + silent
			}
			set(v1beta1.ReadyCondition, false, v1beta1.WaitingForShardReason, text)
		}
		return
	}
	t.Status.Capacity = capacity
	set(v1beta1.ReadyCondition, true, v1beta1.ReadyReason, "")
}

// capacity returns the capacity of the template's instance type. If the template sets none, it is the type of the
// template's group. known is false if no shard with the group has answered.
func (r *templateReconciler) capacity(ctx context.Context, spec v1beta1.NstanceMachineSpec) (_ corev1.ResourceList,
	known bool) {
	for _, s := range r.Shards.All() {
		g, ok := s.Group(spec.GroupRef.Name)
		if !ok || spec.Shard != "" && spec.Shard != s.ID() {
			continue
		}
		if of := cmp.Or(spec.InstanceType, config.ReadSettings(g.GetMergedJson()).InstanceType); of != "" {
			return r.types.Capacity(ctx, s, of)
		}
	}
	return nil, false
}

func (r *templateReconciler) requestsForChange(c shards.Change) (requests []reconcile.Request) {
	if c.Kind != shards.GroupChanged && c.Kind != shards.ShardState {
		return nil
	}
	var list v1beta1.NstanceMachineTemplateList
	if err := r.Client.List(context.Background(), &list, client.InNamespace(r.Namespace),
		client.UnsafeDisableDeepCopy); err != nil {
		r.Log.Warn("failed to list templates", "error", err)
		return nil
	}
	for i := range list.Items {
		if c.Group == "" || list.Items[i].Spec.Template.Spec.GroupRef.Name == c.Group {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}
