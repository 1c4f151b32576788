package scope

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

const (
	// A failed reconciliation is repeated after firstRetry. The delay doubles with each failure, up to lastRetry.
	firstRetry, lastRetry = 50 * time.Millisecond, 30 * time.Second
	// recheck is the longest time between two reconciliations of an object.
	recheck = time.Minute
	// failureGrace is how long the reconciliation of an object may fail before an event reports the failure. Many
	// failures end with the next attempt.
	failureGrace = 3 * time.Second
	// maxNote is the longest error in an event, in bytes. The API limits the note to 1024 bytes.
	maxNote = 900
)

// NewController returns the builder of a controller that reconciles the given number of objects at a time. All
// controllers of the operator are built with NewController, so that all repeat failed reconciliations alike.
func (s *Scope) NewController(mgr ctrl.Manager, name string, workers int) *ctrl.Builder {
	return ctrl.NewControllerManagedBy(mgr).Named(name).WithOptions(controller.Options{
		MaxConcurrentReconciles: workers,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry,
			lastRetry),
	})
}

// Supervise returns a reconciler that calls next. If the reconciliation of an object fails for longer than
// failureGrace, it records an event about the object with the error. After a success, it reconciles the object again
// after at most recheck, as long as the object exists: another client may have changed what the operator wrote. The
// parameter kind is an empty object of the kind that the requests name. If kind is nil, the requests name no object,
// and the events are about the NstanceCluster.
func (s *Scope) Supervise(next reconcile.Reconciler, kind client.Object) reconcile.Reconciler {
	return &supervisor{Scope: s, next: next, kind: kind, failures: map[string]failure{}}
}

type supervisor struct {
	*Scope
	next reconcile.Reconciler
	kind client.Object

	mu       sync.Mutex
	failures map[string]failure // by the name in the request
}

// failure is what is known about an object whose last reconciliation failed.
type failure struct {
	since time.Time
	noted string // the error in the last event
}

// Reconcile implements reconcile.Reconciler.
func (r *supervisor) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	result, err := r.next.Reconcile(ctx, request)
	if ctx.Err() == nil && r.mustReport(request.Name, err) {
		r.report(ctx, request.Name, err)
	}
	if err == nil && r.exists(ctx, request.Name) {
		// The random part spreads the checks of many objects.
		again := recheck - rand.N(recheck/4)
		if result.RequeueAfter == 0 || result.RequeueAfter > again {
			result.RequeueAfter = again
		}
	}
	return result, err
}

// exists reports whether the request with the given name must be repeated. If the requests name objects, it must be
// repeated while the object exists.
func (r *supervisor) exists(ctx context.Context, name string) bool {
	if r.kind == nil {
		return true
	}
	found, err := r.Read(ctx, name, r.kind.DeepCopyObject().(client.Object))
	return found || err != nil
}

// mustReport records the outcome of a reconciliation, and reports whether an event is due.
func (r *supervisor) mustReport(name string, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.failures, name)
		return false
	}
	f, failed := r.failures[name]
	if !failed {
		f.since = r.Now()
	}
	due := r.Now().Sub(f.since) >= failureGrace && f.noted != err.Error()
	if due {
		f.noted = err.Error()
	}
	r.failures[name] = f
	return due
}

// report records an event about the object with the given name. It records none if the object does not exist.
func (r *supervisor) report(ctx context.Context, name string, err error) {
	object := client.Object(&v1beta1.NstanceCluster{})
	if r.kind == nil {
		name = r.ClusterName()
	} else {
		object = r.kind.DeepCopyObject().(client.Object)
	}
	if found, readErr := r.Read(ctx, name, object); readErr != nil || !found {
		return
	}
	r.Recorder.Eventf(object, nil, corev1.EventTypeWarning, v1beta1.ReconcileFailedReason, "Reconcile",
		"failed, and is repeated at least every %s: %s", lastRetry, Truncate(err.Error()))
}

// Truncate shortens a text for an event.
func Truncate(text string) string {
	if len(text) > maxNote {
		text = strings.ToValidUTF8(text[:maxNote], "") + " ..."
	}
	return text
}
