package agentapi_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi/leadertest"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// hooked returns a leader whose group has a drain hook.
func hooked(t *testing.T) *testLeader {
	t.Helper()
	w, timeout := newTestLeader(t), config.Duration(2*time.Minute)
	w.group.Drain = &config.DrainHook{Exec: []string{"/usr/local/bin/drain", "all"}, Timeout: &timeout}
	w.Configure(w.group)
	w.Executor.Files = w.service
	return w
}

// leave records that an instance is deleted, with a drain of five minutes.
func (c *client) leave() {
	c.t.Helper()
	c.w.Change(c.t, c.id, func(r *record.Instance) {
		r.State, r.DeleteReason, r.DeletingAt = record.Deleting, "the group became smaller", c.w.Clock.Now()
		r.DeleteDeadline = c.w.Clock.Now().Add(5 * time.Minute)
	})
}

// drain lets the executor announce the instance's drain.
func (c *client) drain() {
	c.w.Executor.Do(c.t.Context(), leadertest.Group, plan.Action{Kind: plan.Drain, Instance: c.id})
}

func (c *client) drainStream(with bool) filesStream {
	c.t.Helper()
	stream, err := c.ReceiveFiles(c.t.Context(), &nstancev1.ReceiveFilesRequest{InstanceId: c.id.String(),
		WithDrain: with})
	if err != nil {
		c.t.Fatal(err)
	}
	return stream
}

// nothingMore checks that a stream has no message when the server has done all work that it was woken for.
func (c *client) nothingMore(what string, stream filesStream) {
	c.t.Helper()
	got := make(chan *nstancev1.ReceiveFilesResponse, 1)
	go func() {
		message, _ := stream.Recv()
		got <- message
	}()
	for range 3 {
		c.w.service.Drain(c.id)
		time.Sleep(20 * time.Millisecond)
	}
	select {
	case message := <-got:
		c.t.Errorf("%s: %v", what, message)
	default:
	}
}

// TestDrainIsSent checks when an agent is asked to run its drain hook: at the announcement, once per stream, with the
// time that remains, and until the hook has ended.
func TestDrainIsSent(t *testing.T) {
	w := hooked(t)
	c := w.agent(t)
	stream, old := c.drainStream(true), w.agent(t)
	c.leave()
	w.service.Drain(c.id) // not announced yet
	w.Clock.Advance(time.Minute)
	c.drain()
	want := &nstancev1.Drain{Reason: "the group became smaller", Remaining: durationpb.New(4 * time.Minute),
		Command: []string{"/usr/local/bin/drain", "all"}, Timeout: durationpb.New(2 * time.Minute)}
	message, err := stream.Recv()
	if diff := cmp.Diff(want, message.GetDrain(), protocmp.Transform()); err != nil || diff != "" {
		t.Fatalf("%v %s", err, diff)
	}
	c.nothingMore("the same stream", stream)

	w.Clock.Advance(time.Minute)
	again := c.again()
	message, err = again.drainStream(true).Recv()
	want.Remaining = durationpb.New(3 * time.Minute)
	if diff := cmp.Diff(want, message.GetDrain(), protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("a new stream: %v %s", err, diff)
	}
	w.Clock.Advance(time.Hour)
	message, err = again.drainStream(true).Recv()
	if got := message.GetDrain().GetRemaining(); err != nil || got == nil || got.AsDuration() != 0 {
		t.Errorf("after the deadline: %v, %v", message, err)
	}
	again.reports().send(func(m *nstancev1.ReportHealthRequest) { m.Drain = &nstancev1.DrainReport{} })
	again.nothingMore("after the end of the hook", again.drainStream(true))

	// An agent that does not ask for it, and a template without a hook.
	old.leave()
	old.drain()
	old.nothingMore("not asked for", old.drainStream(false))
	if view, _ := w.State.Instance(old.id); !view.Plan.HookEnded || w.Events(old.id, shardstate.EventDrainHook) != 1 {
		t.Errorf("the drain waits for an agent that cannot run the hook: %+v", view.Plan)
	}
	w.group.Drain = nil
	w.Configure(w.group)
	old.nothingMore("no hook", old.drainStream(true))
}

// TestDrainKeepsItsHook checks that a drain keeps the hook with which it was announced, and that the agent learns of an
// earlier deadline.
func TestDrainKeepsItsHook(t *testing.T) {
	w := hooked(t)
	c := w.agent(t)
	stream := c.drainStream(true)
	c.leave()
	c.drain()
	if message, err := stream.Recv(); err != nil || message.GetDrain() == nil {
		t.Fatal(message, err)
	}
	w.group.Drain = nil
	w.Configure(w.group)
	w.Change(t, c.id, func(r *record.Instance) { r.DeleteDeadline = w.Clock.Now().Add(time.Minute) })
	w.service.Drain(c.id)
	message, err := stream.Recv()
	if drain := message.GetDrain(); err != nil || drain.GetRemaining().AsDuration() != time.Minute ||
		len(drain.GetCommand()) != 2 {
		t.Errorf("%v, %v, want the hook with a minute", message, err)
	}
}

// TestDrainReports checks that the first report about the end of the hook is an event, and that it counts only while
// the instance is being deleted.
func TestDrainReports(t *testing.T) {
	w := hooked(t)
	for failure, want := range map[string]string{"": "the drain hook succeeded",
		"exit status 1": "the drain hook failed: exit status 1"} {
		c := w.agent(t)
		r := c.reports()
		report := func() {
			r.send(func(m *nstancev1.ReportHealthRequest) {
				m.Drain = &nstancev1.DrainReport{Error: failure}
				m.Unchanged = m.GetSequence() > 1
			})
		}
		report()
		if view, _ := w.State.Instance(c.id); view.Plan.HookEnded || w.Events(c.id, shardstate.EventDrainHook) != 0 {
			t.Errorf("an instance that is not being deleted: %+v", view.Plan)
		}
		c.leave()
		report()
		report()
		r.send(nil)
		view, _ := w.State.Instance(c.id)
		if n := w.Events(c.id, shardstate.EventDrainHook); n != 1 || !view.Plan.HookEnded {
			t.Errorf("%q: %d events, %+v", failure, n, view.Plan)
		}
		if last := w.LastEvent(c.id); last.Type != shardstate.EventDrainHook || last.Reason != want {
			t.Errorf("%q: %+v", failure, last)
		}
	}
}

// TestHostileDrainReports sends reports about a hook that no genuine agent would send.
func TestHostileDrainReports(t *testing.T) {
	w := hooked(t)
	for text, want := range map[string]string{
		strings.Repeat("x", 257): "drain.error: 257 bytes, at most 256 are allowed",
		"two\nlines":             "drain.error: has a control character",
		"\x1b[31mred":            "drain.error: has a control character",
	} {
		c := w.agent(t)
		c.leave()
		r := c.reports()
		if err := r.Send(&nstancev1.ReportHealthRequest{InstanceId: c.id.String(), Sequence: 1, Healthy: true,
			Drain: &nstancev1.DrainReport{Error: text}}); err != nil {
			t.Fatal(err)
		}
		wants(t, want, r.RecvMsg(&nstancev1.ReportHealthResponse{}), codes.InvalidArgument, want)
		if view, _ := w.State.Instance(c.id); view.Plan.HookEnded {
			t.Errorf("%q was taken", text)
		}
	}
	// The longest allowed text.
	c := w.agent(t)
	c.leave()
	c.reports().send(func(m *nstancev1.ReportHealthRequest) {
		m.Drain = &nstancev1.DrainReport{Error: strings.Repeat("x", 256)}
	})
	if view, _ := w.State.Instance(c.id); !view.Plan.HookEnded {
		t.Error("the longest text is not taken")
	}
}
