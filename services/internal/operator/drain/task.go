package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// task drains the Nodes of one instance.
type task struct {
	*coordinator
	key
	log *slog.Logger

	whole, eviction context.Context         // of the task, and of its eviction only
	cancel          context.CancelCauseFunc // cancels the task without an acknowledgement
	stopEviction    context.CancelCauseFunc // cancels the eviction; the acknowledgement follows
	timer           *time.Timer             // fires at the deadline, less the margin

	mu       sync.Mutex
	drain    shards.Drain
	finished time.Time
}

const (
	// The eviction ends before the deadline, so that the acknowledgement is in time. The margin is a tenth of the
	// remaining time, but at most maxMargin.
	maxMargin = 5 * time.Second
	// unlimited is the time limit of a drain without a deadline.
	unlimited = 10 * time.Minute
	// retry is the pause after a failed call to Kubernetes or the shard.
	retry = 2 * time.Second
	// progress is the time between two log messages about a running drain.
	progress = time.Minute
)

func newTask(ctx context.Context, c *coordinator, k key, d shards.Drain) *task {
	t := &task{coordinator: c, key: k, log: c.Log.With("shard", k.shard, "instance", k.instance), drain: d}
	t.whole, t.cancel = context.WithCancelCause(ctx)
	t.eviction, t.stopEviction = context.WithCancelCause(t.whole)
	t.timer = time.AfterFunc(remaining(d), func() { t.stopEviction(errDeadline) })
	return t
}

// remaining returns the time left for the eviction.
func remaining(d shards.Drain) time.Duration {
	if d.Deadline.IsZero() {
		return unlimited
	}
	left := time.Until(d.Deadline)
	return max(0, left-min(maxMargin, left/10))
}

// setDrain stores the current state of the drain. It adjusts the timer, because a spot notice can make the deadline
// earlier. If the VM no longer runs, setDrain stops the eviction.
func (t *task) setDrain(d shards.Drain) {
	t.mu.Lock()
	moved := !d.Deadline.Equal(t.drain.Deadline)
	t.drain = d
	t.mu.Unlock()
	if moved {
		t.timer.Reset(remaining(d))
	}
	if isGone(d.Instance) {
		t.stopEviction(errVMGone)
	}
}

// isGone reports whether the VM no longer runs, so that no pods can be moved.
func isGone(i *nstancev1.InstanceStatus) bool {
	switch i.GetProviderState() {
	case "stopped", "deleted", "failed":
		return true
	}
	return i.GetState() == "deleted"
}

func (t *task) currentDrain() shards.Drain {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.drain
}

func (t *task) currentDeadline() time.Time { return t.currentDrain().Deadline }

func (t *task) finishedBefore(at time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.finished.IsZero() && t.finished.Before(at)
}

// run drains the Nodes, and acknowledges the drain unless the task was cancelled.
func (t *task) run() {
	began := time.Now()
	t.metrics.active.Inc()
	defer t.metrics.active.Dec()
	defer t.finish()
	end := t.evacuate(t.eviction)
	if t.whole.Err() != nil {
		t.log.Info("drain cancelled", "reason", context.Cause(t.whole).Error())
		return
	}
	if !t.acknowledge(t.whole) {
		return
	}
	took := time.Since(began)
	t.metrics.duration.WithLabelValues(string(end)).Observe(took.Seconds())
	t.log.Info("drain acknowledged", "result", string(end), "took", took.Round(time.Millisecond).String())
}

func (t *task) finish() {
	t.timer.Stop()
	t.cancel(errOver)
	t.mu.Lock()
	t.finished = time.Now()
	t.mu.Unlock()
	wake(t.drains)
}

// evacuate evicts all pods of the instance's Nodes. It returns when the Nodes are empty or ctx ends.
func (t *task) evacuate(ctx context.Context) result {
	d := t.currentDrain()
	if isGone(d.Instance) {
		return noNode
	}
	nodes, err := t.nodesOf(ctx, d.Instance.GetProviderId())
	if err == nil && len(nodes) == 0 {
		return noNode
	}
	t.log.Info("drain started", "nodes", nodeNames(nodes), "reason", d.Reason, "deadline", d.Deadline)
	begun := "draining before the deletion of instance %s (%s)"
	if d.Instance.GetPreservedUntil() != nil {
		begun = "draining: instance %s failed, and its VM is preserved (%s)"
	}
	t.recordEvents(nodes, corev1.EventTypeNormal, v1beta1.DrainStartedReason, begun,
		t.instance, scope.Truncate(d.Reason))
	holding := false
	defer func() {
		if holding {
			t.slots.release()
		}
	}()
	for reported := ""; ; {
		if err == nil {
			// While the drain waits for a slot, the Node must not get new pods.
			err = t.cordon(ctx, nodes)
		}
		if err == nil && !holding {
			holding = t.slots.acquire(ctx, t.currentDeadline)
		}
		if err == nil && holding {
			err = t.evict(ctx, nodes)
		}
		switch {
		case ctx.Err() != nil:
			return t.resultOfStopped(context.Cause(ctx), nodes, err)
		case err == nil:
			t.recordEvents(nodes, corev1.EventTypeNormal, v1beta1.DrainedReason,
				"drained before the deletion of instance %s",
				t.instance)
			return drained
		case err.Error() != reported:
			reported = err.Error()
			t.log.Warn("drain failed; trying again", "error", err)
			t.recordEvents(nodes, corev1.EventTypeWarning, v1beta1.DrainFailedReason, "drain failed; trying again: %s",
				scope.Truncate(reported))
		}
		if tasks.Sleep(ctx, retry) != nil {
			return t.resultOfStopped(context.Cause(ctx), nodes, err)
		}
		if nodes, err = t.nodesOf(ctx, t.currentDrain().Instance.GetProviderId()); err == nil && len(nodes) == 0 {
			return noNode
		}
	}
}

// resultOfStopped returns the result of a drain that was stopped early. The parameter why is the reason. The parameter
// last is the last error, or nil.
func (t *task) resultOfStopped(why error, nodes []corev1.Node, last error) result {
	switch {
	case errors.Is(why, errVMGone):
		return noNode
	case !errors.Is(why, errDeadline):
		return dropped
	}
	ctx, cancel := context.WithTimeout(context.Background(), retry)
	defer cancel()
	left, err := t.podsOn(ctx, nodes)
	if err != nil {
		if last == nil {
			last = err
		}
		t.log.Warn("drain incomplete at the deadline", "error", last)
		t.recordEvents(nodes, corev1.EventTypeWarning, v1beta1.DrainDeadlineReason,
			"drain incomplete at the deadline; instance %s will be deleted: %s", t.instance,
			scope.Truncate(last.Error()))
		return failed
	}
	t.log.Warn("drain incomplete at the deadline", "pods", left)
	t.recordEvents(nodes, corev1.EventTypeWarning, v1beta1.DrainDeadlineReason,
		"drain incomplete at the deadline; instance %s will be deleted; remaining pods: %s", t.instance,
		joinNames(left))
	return deadline
}

// acknowledge tells the server that the instance can be deleted, and repeats the call until the server answers. It
// returns false if ctx ends first, or if the shard is no longer configured.
func (t *task) acknowledge(ctx context.Context) bool {
	for reported := codes.OK; ; {
		shard, ok := t.Shards.Shard(t.shard)
		if !ok {
			return false
		}
		_, err := shard.API().AcknowledgeDrained(ctx, &nstancev1.AcknowledgeDrainedRequest{InstanceId: t.instance})
		switch code := status.Code(err); code {
		case codes.OK:
			return true
		case codes.NotFound, codes.FailedPrecondition, codes.InvalidArgument:
			// These codes mean that the instance is gone, or that the server does not want to delete it any more.
			t.log.Info("the server no longer waits for the drain", "answer", status.Convert(err).Message())
			return true
		default:
			if code != reported {
				reported = code
				t.log.Warn("failed to acknowledge the drain; trying again", "error", err)
				t.recordEvents(nil, corev1.EventTypeWarning, v1beta1.WaitingForShardReason,
					"the drain has ended, but shard %s cannot be told; trying again: %s", t.shard,
					scope.Truncate(err.Error()))
			}
		}
		if tasks.Sleep(ctx, retry) != nil {
			return false
		}
	}
}

// nodesOf returns the Nodes that have the given provider ID. There are two if the VM's kubelet has registered a second
// time under another Node name.
func (t *task) nodesOf(ctx context.Context, providerID string) ([]corev1.Node, error) {
	if providerID == "" {
		return nil, nil
	}
	var list corev1.NodeList
	if err := t.nodes.List(ctx, &list, client.MatchingFields{scope.NodeByProviderID.Field: providerID}); err != nil {
		return nil, fmt.Errorf("find the Node: %w", err)
	}
	return list.Items, nil
}

// recordEvents records an event about every Node, and about the instance's NstanceMachine.
func (t *task) recordEvents(nodes []corev1.Node, kind, reason, format string, args ...any) {
	for i := range nodes {
		t.recorder.Eventf(&nodes[i], nil, kind, reason, "Drain", format, args...)
	}
	var machines v1beta1.NstanceMachineList
	if err := t.Client.List(context.Background(), &machines, client.InNamespace(t.Namespace),
		client.MatchingFields{scope.MachineByInstance.Field: t.instance}); err != nil {
		t.log.Warn("failed to list machines", "error", err)
		return
	}
	for i := range machines.Items {
		t.Recorder.Eventf(&machines.Items[i], nil, kind, reason, "Drain", format, args...)
	}
}

func nodeNames(nodes []corev1.Node) (out []string) {
	for i := range nodes {
		out = append(out, nodes[i].Name)
	}
	return out
}

// joinNames joins as many names as fit into an event.
func joinNames(all []string) string {
	out := ""
	for i, name := range all {
		if len(out)+len(name) > 600 {
			return fmt.Sprintf("%s and %d more", out, len(all)-i)
		}
		if i > 0 {
			out += ", "
		}
		out += name
	}
	if out == "" {
		return "none"
	}
	return out
}
