package operatorapi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/internal/server/watch"
)

// stream is the sending side of a watch.
type stream[M any] interface {
	Send(*M) error
	Context() context.Context
}

// serve calls the function next again and again, and sends each result to the client. It returns when the leadership
// ends, or when the client disconnects, falls behind or is removed. A client that does not read blocks only the sending
// goroutine. That goroutine ends after serve has returned, because grpc cancels a blocked send when the handler
// returns.
func serve[M any](c *call, to stream[M], slow <-chan struct{}, next func(context.Context) (*M, error)) error {
	out, failed := make(chan *M), make(chan error, 1)
	defer close(out)
	go func() {
		for m := range out {
			if err := to.Send(m); err != nil {
				failed <- err
				return
			}
		}
	}()
	ctx, refuse := context.WithCancelCause(c)
	defer refuse(nil)
	go c.readmit(ctx, refuse)
	for {
		m, err := next(ctx)
		if err != nil {
			return c.ended(cmp.Or(refusal(ctx), err))
		}
		select {
		case out <- m:
		case err := <-failed:
			return c.ended(err)
		case <-slow:
			return c.ended(watch.ErrSlow)
		case <-ctx.Done():
			return c.ended(cmp.Or(refusal(ctx), ctx.Err()))
		}
	}
}

// readmit checks periodically that the client of a stream is still admitted. If it is not, readmit cancels the context
// of the stream with the function refuse.
func (c *call) readmit(ctx context.Context, refuse context.CancelCauseFunc) {
	for tasks.Sleep(ctx, c.service.recheck) == nil {
		if err := c.admit(); err != nil {
			refuse(&refusedStream{err})
		}
	}
}

// refusal returns the reason why readmit ended a stream. It returns nil if readmit did not end it.
func refusal(ctx context.Context) error {
	if refused, ok := errors.AsType[*refusedStream](context.Cause(ctx)); ok {
		return refused.error
	}
	return nil
}

// refusedStream is the cause with which readmit ends a stream.
type refusedStream struct{ error }

// ended converts the error that ended a stream to a status error. If the client was refused, it logs the refusal.
func (c *call) ended(err error) error {
	if errors.Is(err, watch.ErrSlow) && c.Err() == nil {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	err = c.fault("watch", err)
	c.logRefusal(err)
	return err
}

// WatchErrors sends the unresolved errors, then every error that is raised or resolved.
func (c *call) WatchErrors(_ *nstancev1.WatchErrorsRequest, to nstancev1.OperatorService_WatchErrorsServer) error {
	sub := c.Events.errors.Subscribe(c.service.queue, func(key shardstate.ErrorKey) bool {
		return key.Tenant == c.tenant || key.Tenant == ""
	})
	defer sub.Close()
	standing := c.state().Standing(c.tenant)
	slices.SortFunc(standing, func(a, b shardstate.ErrorEvent) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Group, b.Group),
			a.Instance.Compare(b.Instance))
	})
	return serve(c, to, sub.Slow(), func(ctx context.Context) (answer *nstancev1.WatchErrorsResponse, err error) {
		var event shardstate.ErrorEvent
		if len(standing) > 0 {
			event, standing = standing[0], standing[1:]
		} else if event, err = sub.Next(ctx); err != nil {
			return nil, err
		}
		return &nstancev1.WatchErrorsResponse{Event: errorEvent(event)}, nil
	})
}

func errorEvent(event shardstate.ErrorEvent) *nstancev1.ErrorEvent {
	return &nstancev1.ErrorEvent{Kind: string(event.Kind), InstanceId: event.Instance.String(), Group: event.Group,
		Message: event.Message, At: timestamp(event.At), Resolved: event.Resolved}
}

// WatchInstances sends the deletions in progress, a marker for the end of this snapshot, and then every new event.
// While the stream is open, an operator that does not only observe takes part in drains.
func (c *call) WatchInstances(req *nstancev1.WatchInstancesRequest,
	to nstancev1.OperatorService_WatchInstancesServer) error {
	sub := c.Events.instances.Subscribe(c.service.queue,
		func(key instanceKey) bool { return key.tenant == c.tenant })
	defer sub.Close()
	if !req.GetObserve() && c.role.Includes(record.RoleOperator) {
		defer c.state().OperatorConnected(c.tenant)()
	}
	first := c.deletions()
	return serve(c, to, sub.Slow(), func(ctx context.Context) (*nstancev1.WatchInstancesResponse, error) {
		if len(first) > 0 {
			event := first[0]
			first = first[1:]
			return &nstancev1.WatchInstancesResponse{Event: event}, nil
		}
		event, err := sub.Next(ctx)
		if err != nil {
			return nil, err
		}
		return &nstancev1.WatchInstancesResponse{Event: c.instanceEvent(event)}, nil
	})
}

// deletions returns an event for each of the tenant's instances that is being deleted or is preserved, and then the
// marker for the end of the snapshot. An operator may not have learned that an instance was preserved, so its node is
// drained unless an operator has acknowledged that to this leader.
func (c *call) deletions() []*nstancev1.InstanceEvent {
	var out []*nstancev1.InstanceEvent
	now := c.Now()
	for _, view := range c.state().Instances(c.tenant, "") {
		rec := &view.Record
		if rec.State != record.Deleting {
			if rec.Preserved != nil {
				out = append(out, c.preservation(view, now))
			}
			continue
		}
		out = append(out, &nstancev1.InstanceEvent{Type: nstancev1.InstanceEvent_TYPE_PENDING_DELETION,
			Instance: c.instanceStatus(view),
			Reason:   rec.DeleteReason, Deadline: timestamp(view.Plan.DeleteDeadline), At: timestamp(rec.DeletingAt),
			Remaining: remaining(view.Plan.DeleteDeadline, now), Drain: plan.IsDraining(&view.Plan, now)})
	}
	return append(out, &nstancev1.InstanceEvent{Type: nstancev1.InstanceEvent_TYPE_SNAPSHOT_END, At: timestamp(now)})
}

// preservation returns an event that says that an instance is preserved.
func (c *call) preservation(view shardstate.InstanceView, now time.Time) *nstancev1.InstanceEvent {
	event := &nstancev1.InstanceEvent{Type: nstancev1.InstanceEvent_TYPE_PRESERVED, Instance: c.instanceStatus(view),
		Reason: view.Record.Preserved.Reason, At: timestamp(view.Record.Preserved.At)}
	drain := c.state().DrainTimeout(c.key(view.Record.Group))
	if event.Drain = drain > 0 && !view.Plan.Drained; event.GetDrain() {
		deadline := now.Add(drain)
		event.Deadline, event.Remaining = timestamp(deadline), remaining(deadline, now)
	}
	return event
}

// remaining returns the time from now to a deadline, at least 0. It returns nil if there is no deadline.
func remaining(deadline, now time.Time) *durationpb.Duration {
	if deadline.IsZero() {
		return nil
	}
	return durationpb.New(max(0, deadline.Sub(now)))
}

// eventType returns the protocol's type of an event: its name is TYPE_ and that of the event.
func eventType(t shardstate.InstanceEventType) nstancev1.InstanceEvent_Type {
	return nstancev1.InstanceEvent_Type(nstancev1.InstanceEvent_Type_value["TYPE_"+strings.ToUpper(string(t))])
}

// instanceEvent renders an event with the current status of the instance.
func (c *call) instanceEvent(event shardstate.InstanceEvent) *nstancev1.InstanceEvent {
	out := &nstancev1.InstanceEvent{Type: eventType(event.Type), Reason: event.Reason,
		Replaces: event.Replaces.String(), Deadline: timestamp(event.Deadline), At: timestamp(event.At),
		Remaining: remaining(event.Deadline, c.Now()), Drain: event.Drain}
	view, ok := c.state().Instance(event.Instance)
	if !ok {
		out.Instance = deletedStatus(event.Instance, event.Group)
		return out
	}
	out.Instance = c.instanceStatus(view)
	return out
}

// WatchGroups sends every group, a marker for the end of the snapshot, and then each group that changed.
func (c *call) WatchGroups(_ *nstancev1.WatchGroupsRequest, to nstancev1.OperatorService_WatchGroupsServer) error {
	// The subscription starts before the snapshot is taken. A change between the two may be sent twice, but no change
	// is missed.
	sub := c.Events.groups.Subscribe(c.service.queue,
		func(key config.GroupKey) bool { return key.Tenant == c.tenant })
	defer sub.Close()
	w := &groupWatch{call: c, sub: sub, sent: map[string][sha256.Size]byte{}}
	w.renderGroups()
	w.ready = append(w.ready, &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_SNAPSHOT_END})
	return serve(c, to, sub.Slow(), w.next)
}

// groupWatch is the state of one client's watch.
type groupWatch struct {
	*call
	sub   *watch.Subscription[config.GroupKey, config.GroupKey]
	ready []*nstancev1.GroupEvent
	// sent holds, for each group, a digest of the status that was last sent.
	sent map[string][sha256.Size]byte
	// looked is the time at which all groups were last rendered. notBefore is the earliest time of the next rendering.
	looked, notBefore time.Time
}

// next returns the next event. It renders changed groups in batches with a pause after each batch, so that a thousand
// changes of one group need few renderings.
func (g *groupWatch) next(ctx context.Context) (*nstancev1.WatchGroupsResponse, error) {
	for len(g.ready) == 0 {
		if err := g.wait(ctx); err != nil {
			return nil, err
		}
	}
	event := g.ready[0]
	g.ready = g.ready[1:]
	if len(g.ready) == 0 {
		g.ready = nil
	}
	return &nstancev1.WatchGroupsResponse{Event: event}, nil
}

// wait waits for changes or for the next resync, and renders the groups that changed, or all groups at a resync.
func (g *groupWatch) wait(ctx context.Context) error {
	if err := tasks.Sleep(ctx, time.Until(g.notBefore)); err != nil {
		return err
	}
	again := g.looked.Add(g.service.resync)
	if !time.Now().Before(again) {
		g.renderGroups()
		return nil
	}
	due, cancel := context.WithDeadline(ctx, again)
	defer cancel()
	key, err := g.sub.Next(due)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return nil
		}
		return err
	}
	// Also take all changes that are already queued, so that they are rendered together.
	over, stop := context.WithCancel(ctx)
	stop()
	for n := 0; err == nil && n < g.service.queue; n++ {
		g.changed(key.Group)
		key, err = g.sub.Next(over)
	}
	g.notBefore = time.Now().Add(g.service.pace)
	return nil
}

// renderGroups renders all of the tenant's groups.
func (g *groupWatch) renderGroups() {
	g.looked = time.Now()
	there := map[string]bool{}
	for _, view := range g.state().GroupViews(g.tenant) {
		there[view.GroupKey.Group] = true
		g.queueStatus(g.groupStatus(view))
	}
	for group := range g.sent {
		if !there[group] {
			g.deleted(group)
		}
	}
}

// changed renders one group.
func (g *groupWatch) changed(group string) {
	if view, ok := g.state().GroupView(g.key(group)); ok {
		g.queueStatus(g.groupStatus(view))
	} else if _, ok := g.sent[group]; ok {
		g.deleted(group)
	}
}

// queueStatus queues a status unless the client already has it.
func (g *groupWatch) queueStatus(group *nstancev1.GroupStatus) {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(group)
	digest := sha256.Sum256(text)
	if have, ok := g.sent[group.GetGroup()]; err == nil && ok && have == digest {
		return
	}
	g.sent[group.GetGroup()] = digest
	g.ready = append(g.ready, &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Status: group})
}

func (g *groupWatch) deleted(group string) {
	delete(g.sent, group)
	g.ready = append(g.ready, &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_DELETE, Group: group})
}

// Events forwards the events of a shard to the watch streams, and never blocks. While no stream is open, events are
// dropped. The streams convert the events to messages. Each leadership has a separate Events.
type Events struct {
	groups    watch.Hub[config.GroupKey, config.GroupKey]
	instances watch.Hub[instanceKey, shardstate.InstanceEvent]
	errors    watch.Hub[shardstate.ErrorKey, shardstate.ErrorEvent]
}

// instanceKey is the key of an event. Of the waiting events with the same key, a stream keeps only the newest. The
// start of a drain has a separate key, so that later events of the same deletion do not replace it.
type instanceKey struct {
	tenant string
	id     ident.ID
	what   shardstate.InstanceEventType
	drain  bool
}

var _ shardstate.Events = (*Events)(nil)

// NewEvents returns Events without streams.
func NewEvents() *Events { return &Events{} }

// Instance implements shardstate.Events.
func (e *Events) Instance(event shardstate.InstanceEvent) {
	e.instances.Publish(instanceKey{event.Tenant, event.Instance, event.Type, event.Drain}, event)
}

// Group implements shardstate.Events.
func (e *Events) Group(key config.GroupKey) { e.groups.Publish(key, key) }

// Error implements shardstate.Events.
func (e *Events) Error(event shardstate.ErrorEvent) { e.errors.Publish(event.ErrorKey, event) }
