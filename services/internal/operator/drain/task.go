package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// task is one drain.
type task struct {
	*coordinator
	key
	log *slog.Logger

	mu       sync.Mutex
	drain    shards.Drain
	stop     context.CancelCauseFunc // of the whole task
	stopWork context.CancelCauseFunc // of the draining alone: what follows is the acknowledgement
	timer    *time.Timer             // fires at the deadline, less the margin
	stopped  error                   // why the draining was stopped, or is to be when it begins
	over     error                   // the same of the task
	finished time.Time
}

const (
	// A drain ends this much before its deadline, so that its acknowledgement is in time; a tenth of the time there is,
	// if that is less.
	maxMargin = 5 * time.Second
	// unlimited is how long a drain may take for which the server gave no deadline.
	unlimited = 10 * time.Minute
	// retry is the pause after Kubernetes, or the shard, could not be asked.
	retry = 2 * time.Second
	// progress is how often a drain that goes on says so.
	progress = time.Minute
)

func newTask(c *coordinator, k key, d shards.Drain) *task {
	t := &task{coordinator: c, key: k, log: c.Log.With("shard", k.shard, "instance", k.instance)}
	t.timer = time.AfterFunc(remaining(d), func() { t.end(errDeadline) })
	t.drain = d
	return t
}

// remaining is for how long to drain.
func remaining(d shards.Drain) time.Duration {
	if d.Deadline.IsZero() {
		return unlimited
	}
	left := time.Until(d.Deadline)
	return max(0, left-min(maxMargin, left/10))
}

// update takes what is newly known of the drain: a spot notice may bring the deadline forward, the machine may be gone
// before its time.
func (t *task) update(d shards.Drain) {
	t.mu.Lock()
	moved := !d.Deadline.Equal(t.drain.Deadline)
	t.drain = d
	t.mu.Unlock()
	if moved {
		t.timer.Reset(remaining(d))
	}
	if isGone(d.Instance) {
		t.end(errVMGone)
	}
}

// isGone: the provider says that there is no machine whose pods could be moved.
func isGone(i *nstancev1.InstanceStatus) bool {
	switch i.GetProviderState() {
	case "stopped", "deleted", "failed":
		return true
	}
	return i.GetState() == "deleted"
}

// end stops the draining.
func (t *task) end(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped == nil {
		t.stopped = why
	}
	if t.stopWork != nil {
		t.stopWork(why)
	}
}

// cancel stops the task: nothing is acknowledged.
func (t *task) cancel(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over == nil {
		t.over = why
	}
	if t.stop != nil {
		t.stop(why)
	}
}

func (t *task) now() shards.Drain {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.drain
}

func (t *task) deadlineNow() time.Time { return t.now().Deadline }

func (t *task) finishedBefore(at time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.finished.IsZero() && t.finished.Before(at)
}

// contexts makes those of the task and of the draining.
func (t *task) contexts(ctx context.Context) (whole, work context.Context, done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	whole, t.stop = context.WithCancelCause(ctx)
	work, t.stopWork = context.WithCancelCause(whole)
	if t.over != nil {
		t.stop(t.over)
	}
	if t.stopped != nil {
		t.stopWork(t.stopped)
	}
	return whole, work, func() {
		t.timer.Stop()
		t.end(errOver)
		t.cancel(errOver)
		t.mu.Lock()
		t.finished = time.Now()
		t.mu.Unlock()
		wake(t.drains)
	}
}

func (t *task) run(ctx context.Context) {
	began := time.Now()
	t.metrics.active.Inc()
	defer t.metrics.active.Dec()
	whole, work, done := t.contexts(ctx)
	defer done()
	end := t.evacuate(work)
	if whole.Err() != nil {
		t.log.Info("drain is dropped", "reason", context.Cause(whole).Error())
		return
	}
	if !t.acknowledge(whole) {
		return
	}
	took := time.Since(began)
	t.metrics.duration.WithLabelValues(string(end)).Observe(took.Seconds())
	t.log.Info("drain is acknowledged", "result", string(end), "took", took.Round(time.Millisecond).String())
}

// evacuate empties the Nodes of the instance. It returns when they are empty, or there is a reason not to go on.
func (t *task) evacuate(ctx context.Context) result {
	d := t.now()
	if isGone(d.Instance) {
		return noNode
	}
	nodes, err := t.nodesOf(ctx, d.Instance.GetProviderId())
	if err == nil && len(nodes) == 0 {
		return noNode
	}
	t.log.Info("drain begins", "nodes", names(nodes), "reason", d.Reason, "deadline", d.Deadline)
	t.tell(nodes, corev1.EventTypeNormal, v1beta1.DrainStartedReason, "draining: instance %s is to be deleted (%s)",
		t.instance, text(d.Reason))
	holding := false
	defer func() {
		if holding {
			t.slots.release()
		}
	}()
	for said := ""; ; {
		if err == nil {
			// Nothing new is to come to a Node that waits for its turn.
			err = t.cordon(ctx, nodes)
		}
		if err == nil && !holding {
			holding = t.slots.acquire(ctx, t.deadlineNow)
		}
		if err == nil && holding {
			err = t.evict(ctx, nodes)
		}
		switch {
		case ctx.Err() != nil:
			return t.cutShort(context.Cause(ctx), nodes, err)
		case err == nil:
			t.tell(nodes, corev1.EventTypeNormal, v1beta1.DrainedReason, "drained: instance %s can be deleted",
				t.instance)
			return drained
		case err.Error() != said:
			said = err.Error()
			t.log.Warn("drain fails, and is tried again", "error", err)
			t.tell(nodes, corev1.EventTypeWarning, v1beta1.DrainFailedReason, "drain fails, and is tried again: %s",
				text(said))
		}
		if sleep(ctx, retry) != nil {
			return t.cutShort(context.Cause(ctx), nodes, err)
		}
		if nodes, err = t.nodesOf(ctx, t.now().Instance.GetProviderId()); err == nil && len(nodes) == 0 {
			return noNode
		}
	}
}

// cutShort says what a drain has come to that did not come to its end. last is what went wrong last, nil if nothing
// did.
func (t *task) cutShort(why error, nodes []corev1.Node, last error) result {
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
		t.log.Warn("drain ends at its deadline", "error", last)
		t.tell(nodes, corev1.EventTypeWarning, v1beta1.DrainDeadlineReason,
			"not drained by the deadline, instance %s is deleted anyway: %s", t.instance, text(last.Error()))
		return failed
	}
	t.log.Warn("drain ends at its deadline", "pods", left)
	t.tell(nodes, corev1.EventTypeWarning, v1beta1.DrainDeadlineReason,
		"not drained by the deadline, instance %s is deleted anyway; pods left: %s", t.instance, some(left))
	return deadline
}

// acknowledge tells the server to delete the instance now. It tries until the server has heard it, or nobody waits for
// it any more (false).
func (t *task) acknowledge(ctx context.Context) bool {
	for said := codes.OK; ; {
		shard, ok := t.Shards.Shard(t.shard)
		if !ok {
			return false
		}
		_, err := shard.API().AcknowledgeDrained(ctx, &nstancev1.AcknowledgeDrainedRequest{InstanceId: t.instance})
		switch code := status.Code(err); code {
		case codes.OK:
			return true
		case codes.NotFound, codes.FailedPrecondition, codes.InvalidArgument:
			// It is gone, or not to be deleted any more.
			t.log.Info("the server does not wait for the drain", "answer", status.Convert(err).Message())
			return true
		default:
			if code != said {
				said = code
				t.log.Warn("drain cannot be acknowledged, and is tried again", "error", err)
			}
		}
		if sleep(ctx, retry) != nil {
			return false
		}
	}
}

// nodesOf finds the Nodes with a provider ID; there may be two when one was registered anew under another name.
func (t *task) nodesOf(ctx context.Context, providerID string) ([]corev1.Node, error) {
	if providerID == "" {
		return nil, nil
	}
	var list corev1.NodeList
	if err := t.nodes.List(ctx, &list, client.MatchingFields{nodeByProviderID: providerID}); err != nil {
		return nil, fmt.Errorf("find the Node: %w", err)
	}
	return list.Items, nil
}

// tell makes an event on every Node, and on the instance's NstanceMachine if it has one.
func (t *task) tell(nodes []corev1.Node, kind, reason, format string, args ...any) {
	for i := range nodes {
		t.recorder.Eventf(&nodes[i], nil, kind, reason, "Drain", format, args...)
	}
	var machines v1beta1.NstanceMachineList
	if err := t.Client.List(context.Background(), &machines, client.InNamespace(t.Namespace),
		client.UnsafeDisableDeepCopy); err != nil {
		t.log.Warn("machines cannot be listed", "error", err)
		return
	}
	for i := range machines.Items {
		if machines.Items[i].Spec.InstanceID == t.instance {
			t.Recorder.Eventf(machines.Items[i].DeepCopy(), nil, kind, reason, "Drain", format, args...)
		}
	}
}

func names(nodes []corev1.Node) (out []string) {
	for i := range nodes {
		out = append(out, nodes[i].Name)
	}
	return out
}

// text fits into an event, whose notes have 1024 bytes.
func text(s string) string {
	const limit = 700
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + " ..."
	}
	return s
}

// some names as many as fit.
func some(all []string) string {
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
