// Package report owns the events of Kubernetes that tell of what goes wrong on the servers: failures of the provider,
// refused configurations, groups that are held back.
//
// Invariant: what the servers report is told once when it begins and once when it is over, on the object that it is
// about or the nearest one above that is there. Nothing that looks like a key or a token gets into an event.
package report

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceclusters;nstancemachinepools;nstanceshardgroups;nstancemachines,verbs=get;list;watch

// Options of Setup. Client and Recorder are the manager's when they are nil.
type Options struct {
	Client                     client.Client // reads from a cache
	Recorder                   events.EventRecorder
	Shards                     shards.Shards
	Namespace, Cluster, Tenant string
	Log                        *slog.Logger
}

// Setup adds the reporter, which runs while this process leads.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Shards == nil || o.Log == nil || o.Namespace == "" || o.Cluster == "" || o.Tenant == "" {
		return errors.New("report: incomplete options")
	}
	if o.Client == nil {
		o.Client = mgr.GetClient()
	}
	if o.Recorder == nil {
		o.Recorder = mgr.GetEventRecorder("nstance-report")
	}
	return mgr.Add(newReporter(o))
}

// subject is what an error is about: there is at most one standing of each.
type subject struct{ shard, kind, group, instance string }

const (
	// maxPending bounds what waits to be told: more than that at a time is not worth reading. maxStanding bounds what
	// is remembered.
	maxPending  = 1000
	maxStanding = 10000
)

// reporter takes errors from any goroutine and tells of them in its own.
type reporter struct {
	Options
	due chan struct{}

	mu      sync.Mutex
	pending []shards.Change
	lost    int

	standing map[subject]string // what was told of it
}

func newReporter(o Options) *reporter {
	return &reporter{Options: o, due: make(chan struct{}, 1), standing: map[subject]string{}}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r *reporter) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (r *reporter) Start(ctx context.Context) error {
	r.Shards.Notify(r.take)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.due:
		}
		for _, change := range r.next() {
			r.tell(ctx, change)
		}
	}
}

func (r *reporter) take(c shards.Change) {
	if c.Kind != shards.ErrorReported || c.Error == nil {
		return
	}
	r.mu.Lock()
	if len(r.pending) < maxPending {
		r.pending = append(r.pending, c)
	} else {
		r.lost++
	}
	r.mu.Unlock()
	select {
	case r.due <- struct{}{}:
	default:
	}
}

func (r *reporter) next() []shards.Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.pending
	r.pending = nil
	if r.lost > 0 {
		r.Log.Warn("errors of the servers were too many to tell of", "count", r.lost)
		r.lost = 0
	}
	return out
}

// tell makes the events of one error. A server repeats those that stand whenever a connection is made: these are known.
func (r *reporter) tell(ctx context.Context, c shards.Change) {
	e := c.Error
	s := subject{c.Shard, e.GetKind(), e.GetGroup(), e.GetInstanceId()}
	message := clean(e.GetMessage())
	old, stands := r.standing[s]
	if e.GetResolved() && !stands || !e.GetResolved() && stands && old == message {
		return
	}
	kind, note := corev1.EventTypeWarning, "shard "+c.Shard+": "+message
	if e.GetResolved() {
		delete(r.standing, s)
		kind, note = corev1.EventTypeNormal, "shard "+c.Shard+", over: "+old
	} else if stands || len(r.standing) < maxStanding {
		r.standing[s] = message
	}
	for _, object := range r.objects(ctx, c.Shard, e) {
		r.Recorder.Eventf(object, nil, kind, reason(e.GetKind()), action(e.GetKind()), "%s", note)
	}
}

// reason puts the servers' kinds of errors under those of events.
func reason(kind string) string {
	switch kind {
	case "config":
		return v1beta1.ConfigRefusedReason
	case "backoff", "unhealthy_guard":
		return v1beta1.BlockedReason
	}
	return v1beta1.ProviderErrorReason
}

// action keeps events of different kinds on one object apart.
func action(kind string) string {
	if kind == "" || len(kind) > 64 {
		return "Report"
	}
	return kind
}

// objects finds what the error is about: the instance's NstanceMachine; the group's NstanceShardGroup and
// NstanceMachinePool; the NstanceCluster. When what it is about is not there, the next above is told.
func (r *reporter) objects(ctx context.Context, shard string, e *nstancev1.ErrorEvent) (out []client.Object) {
	if id := e.GetInstanceId(); id != "" {
		var machines v1beta1.NstanceMachineList
		if err := r.Client.List(ctx, &machines, client.InNamespace(r.Namespace),
			client.UnsafeDisableDeepCopy); err != nil {
			r.Log.Warn("machines cannot be listed", "error", err)
		}
		for i := range machines.Items {
			if m := &machines.Items[i]; m.Spec.InstanceID == id {
				return []client.Object{m.DeepCopy()}
			}
		}
	}
	if group := e.GetGroup(); group != "" {
		var shardGroup v1beta1.NstanceShardGroup
		if r.get(ctx, v1beta1.ShardGroupName(group, shard), &shardGroup) {
			out = append(out, &shardGroup)
		}
		var pools v1beta1.NstanceMachinePoolList
		if err := r.Client.List(ctx, &pools, client.InNamespace(r.Namespace)); err != nil {
			r.Log.Warn("pools cannot be listed", "error", err)
		}
		for i := range pools.Items {
			if pools.Items[i].Spec.Group == group {
				out = append(out, &pools.Items[i])
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	var cluster v1beta1.NstanceCluster
	if r.get(ctx, v1beta1.ClusterName(r.Cluster, r.Tenant), &cluster) {
		out = append(out, &cluster)
	}
	return out
}

func (r *reporter) get(ctx context.Context, name string, object client.Object) bool {
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, object)
	if client.IgnoreNotFound(err) != nil {
		r.Log.Warn("object cannot be read", "name", name, "error", err)
	}
	return err == nil
}
