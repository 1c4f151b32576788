package machine

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/capacity"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// templateReconciler reconciles NstanceMachineTemplates. It sets the capacity of a machine, from which the cluster
// autoscaler scales from zero.
type templateReconciler struct{ Options }

// Reconcile implements reconcile.Reconciler.
func (r *templateReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	t := &v1beta1.NstanceMachineTemplate{}
	if err := r.Client.Get(ctx, request.NamespacedName, t); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	name := v1beta1.ClusterName(r.Cluster, r.Tenant)
	if cluster := t.Labels[clusterv1.ClusterNameLabel]; cluster != "" && cluster != name ||
		!t.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	paused, err := (&Reconciler{Options: r.Options}).paused(ctx, t, name)
	if err != nil {
		return ctrl.Result{}, err
	}
	next := t.DeepCopy()
	r.updateStatus(next, paused)
	if equality.Semantic.DeepEqual(t.Status, next.Status) {
		return ctrl.Result{}, nil
	}
	if err := r.Client.Status().Patch(ctx, next, client.MergeFrom(t)); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(fmt.Errorf("store the template's status: %w", err))
	}
	return ctrl.Result{}, nil
}

func (r *templateReconciler) updateStatus(t *v1beta1.NstanceMachineTemplate, paused bool) {
	set := func(condition string, is bool, reason, message string) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&t.Status.Conditions, metav1.Condition{Type: condition, Status: status, Reason: reason,
			Message:            message,
			ObservedGeneration: t.Generation, LastTransitionTime: metav1.NewTime(r.Now().UTC().Truncate(time.Second))})
	}
	if paused {
		set(v1beta1.PausedCondition, true, v1beta1.PausedReason,
			"the template or its cluster is paused")
		return
	}
	set(v1beta1.PausedCondition, false, v1beta1.NotPausedReason, "")
	t.Status.ObservedGeneration = t.Generation
	instanceType := r.instanceType(t.Spec.Template.Spec)
	switch {
	case instanceType == "":
		// Keep the known capacity while the shards are unreachable.
		if t.Status.Capacity == nil {
			set(v1beta1.ReadyCondition, false, v1beta1.WaitingForShardReason,
				"no shard has reported the instance type of group "+t.Spec.Template.Spec.GroupRef.Name)
		}
		return
	default:
		t.Status.Capacity = capacity.Of(instanceType)
	}
	set(v1beta1.ReadyCondition, true, v1beta1.ReadyReason, "")
}

// instanceType returns the template's instance type, else the group's.
func (r *templateReconciler) instanceType(spec v1beta1.NstanceMachineSpec) string {
	if spec.InstanceType != "" {
		return spec.InstanceType
	}
	for _, id := range r.Shards.IDs() {
		if spec.Shard != "" && spec.Shard != id {
			continue
		}
		if s, ok := r.Shards.Shard(id); ok {
			if g, ok := s.Group(spec.GroupRef.Name); ok && g.GetInstanceType() != "" {
				return g.GetInstanceType()
			}
		}
	}
	return ""
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
