package operatorapi_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

func TestWatchGroups(t *testing.T) {
	w := newTestShard(t)
	w.scale(t, "fleet", 0)
	groups := watchGroups(t, w)
	var names []string
	groups.await("the end of the snapshot", func(e *groupEvent) bool {
		if e.GetType() == nstancev1.GroupEvent_TYPE_UPSERT {
			names = append(names, e.GetStatus().GetGroup())
		}
		return e.GetType() == nstancev1.GroupEvent_TYPE_SNAPSHOT_END
	})
	if !slices.Equal(names, []string{"fleet", "static"}) {
		t.Errorf("snapshot of %v", names)
	}
	w.scale(t, "fleet", 2)
	full := groups.await("two instances", func(e *groupEvent) bool {
		return e.GetStatus().GetActualSize() == 2 && len(e.GetStatus().GetProviderIds()) == 2
	})
	if full.GetType() != nstancev1.GroupEvent_TYPE_UPSERT || full.GetGroup() != "" ||
		full.GetStatus().GetGroup() != "fleet" {
		t.Errorf("%v", full)
	}
	// A changed configuration must reach the watch, just like a changed group.
	w.configure(t, document(`"images": {},`))
	refreshed, err := w.RefreshConfig(t.Context(), &nstancev1.RefreshConfigRequest{})
	if err != nil || refreshed.GetResult() != nstancev1.RefreshResult_REFRESH_RESULT_UPDATED {
		t.Fatal(refreshed, err)
	}
	if _, err := w.UpsertGroup(t.Context(), upsertOf("static", `{"vars": {"a": "b"}}`)); err != nil {
		t.Fatal(err)
	}
	// Unchanged groups were not sent again.
	next := groups.await("an event", func(e *groupEvent) bool { return e.GetStatus().GetGroup() != "fleet" })
	if next.GetStatus().GetGroup() != "static" || settingsOf(next.GetStatus()).Vars["a"] != "b" {
		t.Errorf("%v", next)
	}
}

// Many changes of a group lead to few events, and the last one has the current state.
func TestWatchGroupsCoalesces(t *testing.T) {
	w := newTestShard(t)
	groups := watchGroups(t, w)
	groups.await("the end of the snapshot", func(e *groupEvent) bool {
		return e.GetType() == nstancev1.GroupEvent_TYPE_SNAPSHOT_END
	})
	const last = 200
	for i := range last {
		if _, err := w.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "static",
			Patch: fmt.Sprintf(`{"vars": {"n": "%d"}}`, i+1)}); err != nil {
			t.Fatal(err)
		}
	}
	events := 0
	groups.await("the last change", func(e *groupEvent) bool {
		events++
		return settingsOf(e.GetStatus()).Vars["n"] == fmt.Sprint(last)
	})
	if events > last/2 {
		t.Errorf("%d events", events)
	}
}

// When time alone changes a group's status, the new status is sent although there was no event.
func TestWatchGroupsReportsTimedChanges(t *testing.T) {
	w := newTestShard(t)
	w.service.Tune(100, time.Millisecond, 20*time.Millisecond)
	id := w.grow(t, "fleet", 1)[0]
	w.register(t, id, shardstate.Report{Healthy: true})
	groups := watchGroups(t, w)
	groups.await("a healthy instance", func(e *groupEvent) bool { return e.GetStatus().GetHealthy() == 1 })
	w.Clock.Advance(4 * time.Minute) // more than three reports are missing, and no event triggers a rendering
	groups.await("none", func(e *groupEvent) bool {
		return e.GetStatus().GetGroup() == "fleet" && e.GetStatus().GetHealthy() == 0
	})
}

func TestWatchInstancesReplacement(t *testing.T) {
	w := newTestShard(t)
	events := live(t, w)
	w.scale(t, "fleet", 1)
	creating := events.await("creating", ofType(nstancev1.InstanceEvent_TYPE_CREATING))
	id := parse(t, events.await("created", ofType(nstancev1.InstanceEvent_TYPE_CREATED)).GetInstance().GetInstanceId())
	if creating.GetReplaces() != "" || creating.GetReason() == "" {
		t.Errorf("%v", creating)
	}
	w.register(t, id, shardstate.Report{Healthy: true})
	events.await("registered", ofType(nstancev1.InstanceEvent_TYPE_REGISTERED))
	if e := events.await("healthy",
		ofType(nstancev1.InstanceEvent_TYPE_HEALTHY)); e.GetInstance().GetHealth() != "healthy" {
		t.Errorf("%v", e)
	}
	w.Clock.Advance(time.Minute / 2)
	if err := w.provider.Terminate(w.status(t, id).GetProviderId()); err != nil {
		t.Fatal(err)
	}
	w.list(t)
	lost := events.await("lost", ofType(nstancev1.InstanceEvent_TYPE_LOST))
	if lost.GetInstance().GetInstanceId() != id.String() || lost.GetReason() == "" ||
		!lost.GetAt().AsTime().Equal(w.Clock.Now()) {
		t.Errorf("%v", lost)
	}
	replacement := events.await("its replacement", ofType(nstancev1.InstanceEvent_TYPE_CREATING))
	if replacement.GetReplaces() != id.String() || replacement.GetInstance().GetInstanceId() == id.String() ||
		!replacement.GetAt().AsTime().Equal(w.Clock.Now()) {
		t.Errorf("%v", replacement)
	}
}

// A new watch begins with the drains in progress and the marker for the end of the snapshot.
func TestWatchInstancesSnapshot(t *testing.T) {
	w := newTestShard(t)
	ids := w.grow(t, "fleet", 2)
	made, err := w.create("", "static")
	if err != nil {
		t.Fatal(err)
	}
	before := live(t, w)
	for _, id := range []string{ids[0].String(), made.GetInstanceId()} {
		if _, err := w.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: id,
			Reason: "why not"}); err != nil {
			t.Fatal(err)
		}
		before.await("the drain", func(e *instanceEvent) bool { return e.GetDrain() })
	}
	terminated := make(chan struct{})
	w.provide(func(_ context.Context, call mock.Call) mock.Outcome {
		if call.Kind == mock.Delete {
			<-terminated
		}
		return mock.Outcome{}
	})
	defer close(terminated)
	if _, err := w.AcknowledgeDrained(t.Context(), &nstancev1.AcknowledgeDrainedRequest{
		InstanceId: made.GetInstanceId()}); err != nil {
		t.Fatal(err)
	}
	awaited := map[string]bool{}
	late := watchInstances(t, w)
	late.await("the end of the snapshot", func(e *instanceEvent) bool {
		if e.GetType() == nstancev1.InstanceEvent_TYPE_PENDING_DELETION {
			awaited[e.GetInstance().GetInstanceId()] = e.GetDrain()
			if e.GetReason() != "why not" || e.GetDeadline() == nil || e.GetAt() == nil {
				t.Errorf("%v", e)
			}
		}
		return e.GetType() == nstancev1.InstanceEvent_TYPE_SNAPSHOT_END
	})
	drain, there := awaited[ids[0].String()]
	drained, alsoThere := awaited[made.GetInstanceId()]
	if len(awaited) != 2 || !there || !drain || !alsoThere || drained {
		t.Errorf("%v", awaited)
	}
}

// If a VM is not running, its instance is not drained.
func TestWatchInstancesWithoutDrain(t *testing.T) {
	w := newTestShard(t)
	made, err := w.create("", "static")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.provider.SetState(made.GetProviderId(), infra.Stopped); err != nil {
		t.Fatal(err)
	}
	w.Clock.Advance(time.Second)
	events := live(t, w)
	w.list(t)
	pending := events.await("its deletion", ofType(nstancev1.InstanceEvent_TYPE_PENDING_DELETION))
	if pending.GetDrain() {
		t.Errorf("%v", pending)
	}
	w.awaitListing(events, "its end", func(e *instanceEvent) bool {
		if e.GetDrain() {
			t.Errorf("%v", e)
		}
		return e.GetType() == nstancev1.InstanceEvent_TYPE_DELETED
	})
}

func TestWatchErrors(t *testing.T) {
	w := newTestShard(t)
	id := w.grow(t, "fleet", 1)[0]
	raise := func(kind plan.AlertKind, message string) {
		w.leader.State.RaiseError(shardstate.ErrorKey{Kind: kind, Tenant: "prod", Group: "fleet", Instance: id},
			message)
	}
	raise("capacity", "first")
	w.Clock.Advance(time.Second)
	raise("storage", "second")
	errors := watchErrors(t, w)
	for _, want := range []string{"first", "second"} {
		e := errors.await("a standing error", func(*errorEvent) bool { return true })
		if e.GetMessage() != want || e.GetGroup() != "fleet" || e.GetInstanceId() != id.String() || e.GetResolved() ||
			e.GetAt() == nil {
			t.Errorf("%v, want %s", e, want)
		}
	}
	raise("load_balancer", "third")
	if e := errors.await("a new error", func(*errorEvent) bool {
		return true
	}); e.GetKind() != "load_balancer" || e.GetMessage() != "third" {
		t.Errorf("%v", e)
	}
	w.leader.State.ResolveError(shardstate.ErrorKey{Kind: "capacity", Tenant: "prod", Group: "fleet", Instance: id})
	if e := errors.await("its end", func(*errorEvent) bool {
		return true
	}); e.GetKind() != "capacity" || !e.GetResolved() {
		t.Errorf("%v", e)
	}
}

// A client that does not read is disconnected and then uses no resources.
func TestSlowWatchers(t *testing.T) {
	w := newTestShard(t)
	w.service.Tune(50, time.Millisecond, time.Hour)
	conn := w.dialTo(t, w.listener, w.cert, grpc.WithInitialWindowSize(64<<10), grpc.WithStaticStreamWindowSize(64<<10))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	instances, err := conn.WatchInstances(ctx, &nstancev1.WatchInstancesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := instances.Recv(); err != nil { // the client has subscribed
		t.Fatal(err)
	}
	made, err := w.create("", "static")
	if err != nil {
		t.Fatal(err)
	}
	// HTTP/2's flow control accepts some thousands of events although the client does not read, so send more events
	// than that. Each event is about another instance, so that no event replaces another.
	for range 20_000 {
		w.leader.State.Publish(shardstate.InstanceEvent{Type: shardstate.EventNotice, Tenant: "prod", Group: "static",
			Instance: w.NewID(t, "knd"), Reason: "x"})
	}
	received := 0
	for {
		if _, err = instances.Recv(); err != nil {
			break
		}
		received++
	}
	wants(t, "slow reader", err, codes.ResourceExhausted, "list and watch again")
	if received > 10_000 {
		t.Errorf("%d events were kept", received)
	}
	// The leader did not block, and serves the client again.
	fresh := live(t, conn)
	if _, err := w.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{
		InstanceId: made.GetInstanceId()}); err != nil {
		t.Fatal(err)
	}
	fresh.await("an event", ofType(nstancev1.InstanceEvent_TYPE_PENDING_DELETION))
}

// When the leadership ends, all streams end with an error that contains the new leader. This includes streams whose
// clients do not read.
func TestStreamsEndWithTheLeadership(t *testing.T) {
	w := newTestShard(t)
	w.service.Tune(1<<20, time.Millisecond, time.Hour)
	instances, groups, errs := live(t, w), watchGroups(t, w), watchErrors(t, w)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stuck, err := w.dialTo(t, w.listener, w.cert, grpc.WithInitialWindowSize(64<<10),
		grpc.WithStaticStreamWindowSize(64<<10)).
		WatchInstances(ctx, &nstancev1.WatchInstancesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stuck.Recv(); err != nil {
		t.Fatal(err)
	}
	for range 5_000 {
		w.leader.State.Publish(shardstate.InstanceEvent{Type: shardstate.EventNotice, Tenant: "prod", Group: "static",
			Instance: w.NewID(t, "knd"), Reason: "x"})
	}
	w.end()
	_, err = instances.ended()
	isNotLeader(t, "instances", err)
	_, err = groups.ended()
	isNotLeader(t, "groups", err)
	_, err = errs.ended()
	isNotLeader(t, "errors", err)
	for received := 0; ; received++ {
		if _, err = stuck.Recv(); err != nil {
			isNotLeader(t, "the one that does not read", err)
			if received >= 5_000 {
				t.Error("it was never stuck")
			}
			break
		}
	}
	before, err := watchGroups(t, w).ended()
	isNotLeader(t, "a new stream", err)
	if len(before) > 0 {
		t.Errorf("%v", before)
	}
}

// TestWhoTakesPartInDrains checks which watchers of instances the leader waits for in a drain.
func TestWhoTakesPartInDrains(t *testing.T) {
	w := newTestShard(t)
	key := config.GroupKey{Tenant: "prod", Group: "fleet"}
	w.scale(t, "fleet", 1)
	takesPart := func() bool {
		snapshot, ok := w.leader.State.Snapshot(key, nil)
		if !ok {
			t.Fatal("no snapshot")
		}
		return snapshot.Operators
	}
	for name, c := range map[string]struct {
		client  nstancev1.OperatorServiceClient
		observe bool
		want    bool
	}{
		"an operator":                    {w.as(t, "olga", ""), false, true},
		"an operator that only observes": {w.as(t, "oskar", ""), true, false},
		"an admin":                       {w.as(t, "ada", record.RoleAdmin), false, true},
		"a viewer":                       {w.as(t, "vera", record.RoleViewer), false, false},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := c.client.WatchInstances(ctx, &nstancev1.WatchInstancesRequest{Observe: c.observe})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil { // the stream is served
			t.Fatal(err)
		}
		if got := takesPart(); got != c.want {
			t.Errorf("%s takes part: %v, want %v", name, got, c.want)
		}
		cancel()
		for deadline := time.Now().Add(10 * time.Second); takesPart() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		if takesPart() {
			t.Errorf("%s takes part after its stream has ended", name)
		}
	}
}
