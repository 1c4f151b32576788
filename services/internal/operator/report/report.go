// Package report records Kubernetes events for errors on the servers, such as provider failures, refused configurations
// and blocked groups.
//
// Invariant: the operator records one event when an error begins and one when it ends. The events are about the object
// that the error concerns. If that object does not exist, they are about its nearest existing parent. Text that looks
// like a key or a token is removed.
package report

import (
	"context"
	"regexp"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceclusters;nstancemachinepools;nstanceshardgroups;nstancemachines,verbs=list;watch

// Setup adds the reporter, which runs while this process is the leader.
func Setup(mgr ctrl.Manager, s scope.Scope) error {
	return mgr.Add(newReporter(s.From(mgr, "nstance-report")))
}

// subject is what an error is about. The reporter keeps at most one unresolved error, the standing error, for each
// subject.
type subject struct{ shard, kind, group, instance string }

const (
	// maxPending limits the errors that wait to be recorded; further errors are dropped. maxStanding limits the
	// standing errors that the reporter remembers.
	maxPending  = 1000
	maxStanding = 10000
)

// reporter receives errors from any goroutine and records them in its own goroutine.
type reporter struct {
	scope.Scope
	pending  chan shards.Change
	standing map[subject]string // the last message of each standing error
}

func newReporter(s scope.Scope) *reporter {
	return &reporter{Scope: s, pending: make(chan shards.Change, maxPending), standing: map[subject]string{}}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r *reporter) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (r *reporter) Start(ctx context.Context) error {
	r.Shards.Notify(r.enqueue)
	for {
		select {
		case <-ctx.Done():
			return nil
		case change := <-r.pending:
			r.recordEvents(ctx, change)
		}
	}
}

// enqueue queues an error. It is safe for concurrent use.
func (r *reporter) enqueue(c shards.Change) {
	if c.Kind != shards.ErrorReported || c.Error == nil {
		return
	}
	select {
	case r.pending <- c:
	default:
		r.Log.Warn("dropped an error of the servers: too many at a time", "shard", c.Shard, "kind", c.Error.GetKind())
	}
}

// recordEvents records the events of one error. On each new connection, a server reports its unresolved errors again.
// recordEvents ignores these repetitions.
func (r *reporter) recordEvents(ctx context.Context, c shards.Change) {
	e := c.Error
	s := subject{c.Shard, e.GetKind(), e.GetGroup(), e.GetInstanceId()}
	message := sanitize(e.GetMessage())
	old, stands := r.standing[s]
	if e.GetResolved() && !stands || !e.GetResolved() && stands && old == message {
		return
	}
	kind, note := corev1.EventTypeWarning, "shard "+c.Shard+": "+message
	if e.GetResolved() {
		delete(r.standing, s)
		kind, note = corev1.EventTypeNormal, "shard "+c.Shard+", resolved: "+old
	} else if stands || len(r.standing) < maxStanding {
		r.standing[s] = message
	}
	for _, object := range r.objects(ctx, c.Shard, e) {
		r.Recorder.Eventf(object, nil, kind, eventReason(e.GetKind()), eventAction(e.GetKind()), "%s", note)
	}
}

// eventReason returns the reason of the event for an error of the given kind.
func eventReason(kind string) string {
	switch kind {
	case "config":
		return v1beta1.ConfigRefusedReason
	case "backoff", "unhealthy_guard":
		return v1beta1.BlockedReason
	}
	return v1beta1.ProviderErrorReason
}

// eventAction returns the action of an event. It differs for each kind of error, so that Kubernetes does not combine
// events of different kinds about one object.
func eventAction(kind string) string {
	if kind == "" || len(kind) > 64 {
		return "Report"
	}
	return kind
}

// objects returns the objects that an error is about. For an instance, this is its NstanceMachine. If there is no
// NstanceMachine, these are the group's NstanceShardGroup and NstanceMachinePool. If these do not exist either, this is
// the NstanceCluster.
func (r *reporter) objects(ctx context.Context, shard string, e *nstancev1.ErrorEvent) (out []client.Object) {
	if id := e.GetInstanceId(); id != "" {
		var machines v1beta1.NstanceMachineList
		if err := r.Client.List(ctx, &machines, client.InNamespace(r.Namespace),
			client.MatchingFields{scope.MachineByInstance.Field: id}); err != nil {
			r.Log.Warn("failed to list machines", "error", err)
		}
		if len(machines.Items) > 0 {
			return []client.Object{&machines.Items[0]}
		}
	}
	if group := e.GetGroup(); group != "" {
		var shardGroup v1beta1.NstanceShardGroup
		if r.readObject(ctx, v1beta1.ShardGroupName(group, shard), &shardGroup) {
			out = append(out, &shardGroup)
		}
		var pools v1beta1.NstanceMachinePoolList
		if err := r.Client.List(ctx, &pools, client.InNamespace(r.Namespace)); err != nil {
			r.Log.Warn("failed to list pools", "error", err)
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
	if r.readObject(ctx, r.ClusterName(), &cluster) {
		out = append(out, &cluster)
	}
	return out
}

func (r *reporter) readObject(ctx context.Context, name string, object client.Object) bool {
	found, err := r.Read(ctx, name, object)
	if err != nil {
		r.Log.Warn("failed to read object", "name", name, "error", err)
	}
	return found
}

// secrets matches PEM keys, JSON web tokens, and values with names such as "password".
var secrets = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)` +
	`|eyJ[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]*){1,2}` +
	`|(?i:\b(token|secret|password|passwd|authorization|api[_-]?key)["']?\s*[=:]\s*["']?(bearer\s+|basic\s+)?)[^\s"',;&]+`)

// sanitize turns a message into one line of limited length without secrets. The servers send no secrets, but the errors
// of providers may contain some.
func sanitize(message string) string {
	message = secrets.ReplaceAllString(message, "[removed]")
	message = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(message, ""), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	return scope.Truncate(message)
}
