// Package scope holds what all reconcilers share: clients, shards, and the one Cluster that the operator manages.
package scope

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// Scope is the environment of a reconciler.
type Scope struct {
	Client   client.Client // reads from the cache
	Reader   client.Reader // reads from the API server
	Recorder events.EventRecorder
	Shards   shards.Shards
	// Namespace is the namespace of all objects. Cluster and Tenant determine the name of the only Cluster that is
	// managed.
	Namespace, Cluster, Tenant string
	Now                        func() time.Time
	Rand                       io.Reader
	Log                        *slog.Logger
}

// From returns a copy of s with the clients of mgr, the real clock, and an event recorder for one component.
func (s Scope) From(mgr ctrl.Manager, component string) Scope {
	s.Client, s.Reader, s.Recorder = mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder(component)
	s.Now, s.Rand = time.Now, rand.Reader
	return s
}

// ClusterName returns the name of the managed Cluster and of its NstanceCluster.
func (s *Scope) ClusterName() string { return v1beta1.ClusterName(s.Cluster, s.Tenant) }

// Key returns the key of an object in the namespace.
func (s *Scope) Key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: s.Namespace, Name: name}
}

// MachineReference returns the owner reference that Cluster API sets on a Machine's NstanceMachine.
func MachineReference(m *clusterv1.Machine) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: m.Name, UID: m.UID,
		Controller: ptr.To(true)}
}

// IsCluster reports whether the object is the managed Cluster.
func (s *Scope) IsCluster(object client.Object) bool {
	return client.ObjectKeyFromObject(object) == s.Key(s.ClusterName())
}

// InCluster reports whether the object's label assigns it to the managed Cluster.
func (s *Scope) InCluster(object client.Object) bool {
	return object.GetNamespace() == s.Namespace && object.GetLabels()[clusterv1.ClusterNameLabel] == s.ClusterName()
}

// Permission says what the operator may do. This depends on the managed Cluster and on the annotations of objects.
type Permission struct {
	// Paused: nothing is reconciled, because the Cluster or an object is paused (Cluster API contract).
	Paused bool
	// Ending: the Cluster is being deleted or does not exist. Nothing is imported, created or scaled. Deletions finish.
	Ending bool
	// Skip contains the shards that deletions do not wait for.
	Skip map[string]bool
}

// Permission returns what the operator may do according to the managed Cluster and the annotations of objects.
// Permission reads the Cluster with the reader "from".
func (s *Scope) Permission(ctx context.Context, from client.Reader, objects ...client.Object) (Permission, error) {
	cluster := &clusterv1.Cluster{}
	err := from.Get(ctx, s.Key(s.ClusterName()), cluster)
	if client.IgnoreNotFound(err) != nil {
		return Permission{}, fmt.Errorf("read Cluster: %w", err)
	}
	p := Permission{Paused: ptr.Deref(cluster.Spec.Paused, false), Skip: map[string]bool{},
		Ending: err != nil || !cluster.DeletionTimestamp.IsZero()}
	for _, object := range objects {
		if _, paused := object.GetAnnotations()[clusterv1.PausedAnnotation]; paused {
			p.Paused = true
		}
	}
	for _, object := range append(objects, cluster) {
		for shard := range strings.SplitSeq(object.GetAnnotations()[v1beta1.SkipShardsAnnotation], ",") {
			p.Skip[strings.TrimSpace(shard)] = true
		}
	}
	return p, nil
}

// Read reads an object of the namespace from the cache. It returns false if the object does not exist.
func (s *Scope) Read(ctx context.Context, name string, into client.Object) (bool, error) {
	err := s.Client.Get(ctx, s.Key(name), into)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read %T %s: %w", into, name, err)
	}
	return err == nil, nil
}

// Request returns a request for an object of the namespace.
func (s *Scope) Request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: s.Key(name)}
}

// Requests lists objects of the namespace from the cache, and returns a request for each.
func (s *Scope) Requests(ctx context.Context, list client.ObjectList, opts ...client.ListOption) (
	requests []reconcile.Request) {
	// The list is read only for names, so sharing it with the cache is safe.
	opts = append(opts, client.InNamespace(s.Namespace), client.UnsafeDisableDeepCopy)
	if err := s.Client.List(ctx, list, opts...); err != nil {
		s.Log.Error("failed to list objects", "kind", fmt.Sprintf("%T", list), "error", err)
		return nil
	}
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		requests = append(requests, s.Request(item.(client.Object).GetName()))
		return nil
	})
	return requests
}

// Patch writes the difference between two versions of an object: was is the version that the caller has read, and want
// is the wanted version. It writes nothing if both are equal. If the finalizers differ, Patch replaces the whole list
// of finalizers. It then fails if another client has changed the object.
func (s *Scope) Patch(ctx context.Context, was, want client.Object) error {
	if equality.Semantic.DeepEqual(was, want) {
		return nil
	}
	base := client.MergeFrom(was)
	if !equality.Semantic.DeepEqual(was.GetFinalizers(), want.GetFinalizers()) {
		base = client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	}
	return s.Client.Patch(ctx, want, base)
}

// PatchLocked does the same as Patch, but always fails if another client has changed the object.
func (s *Scope) PatchLocked(ctx context.Context, was, want client.Object) error {
	return s.Client.Patch(ctx, want, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
}

// PatchStatus does the same as Patch, but writes only the status.
func (s *Scope) PatchStatus(ctx context.Context, was, want client.Object) error {
	if equality.Semantic.DeepEqual(was, want) {
		return nil
	}
	return s.Client.Status().Patch(ctx, want, client.MergeFrom(was))
}

// conflictRetry is the delay after a write conflict, which means that the cache was out of date.
const conflictRetry = 100 * time.Millisecond

// RetryConflict converts the error of a reconciliation to its result. If a write conflicted, or a created object
// already exists, the reconciliation is repeated soon and no error is returned.
func RetryConflict(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	}
	return reconcile.Result{}, err
}

// SetCondition sets a condition. A condition that keeps its status keeps its transition time.
func SetCondition(conditions *[]metav1.Condition, generation int64, now time.Time, kind string, ok bool, reason,
	message string) {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message,
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now.UTC().Truncate(time.Second))})
}

// WatchCluster makes a controller reconcile the requests when the [Permission] changes by a change of the managed
// Cluster.
func (s *Scope) WatchCluster(b *ctrl.Builder, requests func(context.Context) []reconcile.Request) *ctrl.Builder {
	return b.Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context,
		cluster client.Object) []reconcile.Request {
		if !s.IsCluster(cluster) {
			return nil
		}
		return requests(ctx)
	}), builder.WithPredicates(permissionChanged))
}

// permissionChanged ignores updates of a Cluster that do not change the [Permission].
var permissionChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.(*clusterv1.Cluster), e.ObjectNew.(*clusterv1.Cluster)
	return ptr.Deref(was.Spec.Paused, false) != ptr.Deref(is.Spec.Paused, false) ||
		was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero() ||
		was.Annotations[v1beta1.SkipShardsAnnotation] != is.Annotations[v1beta1.SkipShardsAnnotation]
}}

// DeletionChanged ignores updates, except the one with which the deletion of an object begins.
func DeletionChanged[T client.Object]() predicate.TypedFuncs[T] {
	return predicate.TypedFuncs[T]{UpdateFunc: func(e event.TypedUpdateEvent[T]) bool {
		return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
	}}
}

// Index is an index of a cache.
type Index struct {
	Object client.Object
	Field  string
	Values client.IndexerFunc
}

// Add adds the index to a cache. It must not be there yet.
func (i Index) Add(to client.FieldIndexer) error {
	if err := to.IndexField(context.Background(), i.Object, i.Field, i.Values); err != nil {
		return fmt.Errorf("index %s: %w", i.Field, err)
	}
	return nil
}

// MachineByInstance is the index of NstanceMachines by instance ID.
var MachineByInstance = Index{&v1beta1.NstanceMachine{}, "nstance.dev/machine.instance",
	func(o client.Object) []string { return present(o.(*v1beta1.NstanceMachine).Spec.InstanceID) }}

// NodeByProviderID is the index of the Nodes of the workload cluster.
var NodeByProviderID = Index{&corev1.Node{}, "nstance.dev/node.provider-id",
	func(o client.Object) []string { return present(o.(*corev1.Node).Spec.ProviderID) }}

func present(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

// Problems collects what is wrong with the operator's own ConfigMaps, Secrets and configuration file. The condition
// Ready of the NstanceCluster shows it. The zero value is empty. All methods are safe for concurrent use.
type Problems struct {
	mu      sync.Mutex
	by      map[string]Problem
	changed []func()
}

// Problem is what is wrong, and the reason of its event.
type Problem struct{ Reason, Message string }

// Set replaces the problem of a source, and reports whether that changed it. If err is nil, the source has none.
func (p *Problems) Set(source, reason string, err error) bool {
	p.mu.Lock()
	before, had := p.by[source]
	if err == nil {
		delete(p.by, source)
	} else {
		if p.by == nil {
			p.by = map[string]Problem{}
		}
		p.by[source] = Problem{reason, err.Error()}
	}
	after, has := p.by[source]
	changed := p.changed
	p.mu.Unlock()
	if had == has && before == after {
		return false
	}
	for _, fn := range changed {
		fn()
	}
	return true
}

// All returns the problems, sorted by source.
func (p *Problems) All() (all []Problem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, source := range slices.Sorted(maps.Keys(p.by)) {
		all = append(all, p.by[source])
	}
	return all
}

// String returns the messages of all problems, "" if there is none.
func (p *Problems) String() string {
	var messages []string
	for _, one := range p.All() {
		messages = append(messages, one.Message)
	}
	return strings.Join(messages, "; ")
}

// Notify registers fn for all later changes. fn must not block.
func (p *Problems) Notify(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = append(p.changed, fn)
}

// ConditionMessage shortens a text to the API's limit for a condition.
func ConditionMessage(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), 32768)], "")
}
