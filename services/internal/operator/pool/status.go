package pool

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// conditions are the conditions that a decision sets, without generation and time.
type conditions []metav1.Condition

func (c *conditions) set(kind string, ok bool, reason, format string, args ...any) {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}
	message := fmt.Sprintf(format, args...)
	if most := 32768; len(message) > most { // the API's limit for a condition
		message = message[:most]
	}
	*c = append(*c, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message})
}

// mergeInto merges the conditions into an object's. A condition that keeps its status keeps its transition time.
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
func (o *Options) recordEvents(about runtime.Object, events ...notice) {
	for _, e := range events {
		kind := corev1.EventTypeNormal
		if e.warning {
			kind = corev1.EventTypeWarning
		}
		if most := 1024; len(e.note) > most { // the API's limit for an event
			e.note = e.note[:most]
		}
		o.Recorder.Eventf(about, nil, kind, e.reason, e.reason, "%s", e.note)
	}
}

// patch writes the difference between an object as it was read and as it is wanted. It writes nothing if they are
// equal. A change of finalizers replaces the whole list, so it is written only if nothing else has changed the object.
func (o *Options) patch(ctx context.Context, was, want client.Object) error {
	if equality.Semantic.DeepEqual(was, want) {
		return nil
	}
	base := client.MergeFrom(was)
	if !equality.Semantic.DeepEqual(was.GetFinalizers(), want.GetFinalizers()) {
		base = client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	}
	return o.Client.Patch(ctx, want, base)
}

// retryConflict turns a write conflict into a silent early retry.
func retryConflict(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: firstRetry}, nil
	}
	return reconcile.Result{}, err
}

// patchStatus is patch for the status alone.
func (o *Options) patchStatus(ctx context.Context, was, want client.Object) error {
	if equality.Semantic.DeepEqual(was, want) {
		return nil
	}
	return o.Client.Status().Patch(ctx, want, client.MergeFrom(was))
}
