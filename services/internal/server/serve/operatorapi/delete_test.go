package operatorapi_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

func TestDeleteInstance(t *testing.T) {
	w := newTestShard(t)
	made, err := w.create("", "static")
	if err != nil {
		t.Fatal(err)
	}
	id := parse(t, made.GetInstanceId())
	events := live(t, w)
	req := &nstancev1.DeleteInstanceRequest{InstanceId: id.String(), Reason: "no longer needed"}

	w.breakStore(func(r mem.Request) mem.Fault {
		if r.Op == mem.Put {
			return outOfOrder(r)
		}
		return mem.Fault{}
	})
	_, err = w.DeleteInstance(t.Context(), req)
	wants(t, "not durable", err, codes.Unavailable, "out of order")
	if now := w.status(t, id); now.GetState() != "created" {
		t.Errorf("%v", now)
	}
	w.breakStore(nil)

	answer, err := w.DeleteInstance(t.Context(), req)
	if i := answer.GetInstance(); err != nil || i.GetState() != "deleting" ||
		i.GetDeleteReason() != "no longer needed" ||
		!i.GetDeleteDeadline().AsTime().Equal(w.Clock.Now().Add(5*time.Minute)) {
		t.Errorf("%v, %v", i, err)
	}
	if rec, _, err := w.state.GetInstance(t.Context(), "prod", id); err != nil || rec.State != record.Deleting {
		t.Errorf("answered before it was durable: %+v, %v", rec, err)
	}
	drain := events.await("the drain", func(e *instanceEvent) bool { return e.GetDrain() })
	if drain.GetReason() != "no longer needed" || drain.GetInstance().GetState() != "deleting" {
		t.Errorf("%v", drain)
	}
	// A second request to delete the instance, with another reason, changes neither the reason nor the deadline.
	w.Clock.Advance(time.Second)
	again, err := w.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: id.String(),
		Reason: "other"})
	if err != nil || again.GetInstance().GetDeleteReason() != "no longer needed" ||
		!again.GetInstance().GetDeleteDeadline().AsTime().Equal(answer.GetInstance().GetDeleteDeadline().AsTime()) {
		t.Errorf("%v, %v", again, err)
	}
	// When an operator acknowledges the drain, the instance is terminated, and its record becomes a tombstone.
	if _, err := w.AcknowledgeDrained(t.Context(), &nstancev1.AcknowledgeDrainedRequest{
		InstanceId: id.String()}); err != nil {
		t.Fatal(err)
	}
	w.awaitListing(events, "its end", ofType(nstancev1.InstanceEvent_TYPE_DELETED))
	if n := w.provider.Count(mock.Delete); n != 1 {
		t.Errorf("%d delete calls", n)
	}
	now := w.status(t, id)
	if now.GetState() != "deleted" || now.GetProviderState() != "deleted" || now.GetDeletedAt() == nil ||
		now.GetHealth() != "unknown" {
		t.Errorf("%v", now)
	}
	for _, call := range []func() error{
		func() error { _, err := w.DeleteInstance(t.Context(), req); return err },
		func() error {
			_, err := w.AcknowledgeDrained(t.Context(), &nstancev1.AcknowledgeDrainedRequest{InstanceId: id.String()})
			return err
		},
		func() error {
			_, err := w.AcknowledgeDrained(t.Context(), &nstancev1.AcknowledgeDrainedRequest{InstanceId: w.NewID(t,
				"knd").String()})
			return err
		},
	} {
		if err := call(); err != nil {
			t.Errorf("what is gone: %v", err)
		}
	}
}

// TestDeleteInstanceDecrement checks that DeleteInstance with Decrement set deletes the requested instance, lowers the
// group's size by one and creates no replacement. A repeated call does not lower the size again.
func TestDeleteInstanceDecrement(t *testing.T) {
	w := newTestShard(t)
	ids := w.grow(t, "fleet", 3)
	for _, id := range ids {
		w.register(t, id, shardstate.Report{Healthy: true})
	}
	chosen := ids[2] // a scale-down would remove the oldest
	req := &nstancev1.DeleteInstanceRequest{InstanceId: chosen.String(), Decrement: true}

	// One write stores the new size and the ID of the chosen instance. If it fails, both stay unchanged.
	w.breakStore(func(r mem.Request) mem.Fault {
		if r.Op == mem.Put {
			return outOfOrder(r)
		}
		return mem.Fault{}
	})
	_, err := w.DeleteInstance(t.Context(), req)
	wants(t, "not durable", err, codes.Unavailable, "out of order")
	if g := w.group(t, "fleet"); g.GetSize() != 3 || g.GetActualSize() != 3 {
		t.Errorf("%v", g)
	}
	w.breakStore(nil)

	events := live(t, w)
	for range 3 {
		answer, err := w.DeleteInstance(t.Context(), req)
		if err != nil || answer.GetGroup().GetSize() != 2 || answer.GetInstance().GetState() != "deleting" {
			t.Fatalf("%v, %v", answer, err)
		}
	}
	groups, _, _, err := w.state.ReadGroups(t.Context())
	if spec := groups.Tenants["prod"]["fleet"]; err != nil || *spec.Size != 2 ||
		!slices.Equal(spec.Removed, []string{chosen.String()}) {
		t.Errorf("%+v, %v", groups, err)
	}
	if _, err := w.AcknowledgeDrained(t.Context(), &nstancev1.AcknowledgeDrainedRequest{
		InstanceId: chosen.String()}); err != nil {
		t.Fatal(err)
	}
	w.awaitListing(events, "its end", ofType(nstancev1.InstanceEvent_TYPE_DELETED))
	if answer, err := w.DeleteInstance(t.Context(), req); err != nil || answer.GetGroup().GetSize() != 2 {
		t.Errorf("a retry after the end: %v, %v", answer, err)
	}
	if n, d := w.provider.Count(mock.Create), w.provider.Count(mock.Delete); n != 3 || d != 1 {
		t.Errorf("%d create calls, %d delete calls", n, d)
	}
	for _, id := range ids[:2] {
		if i := w.status(t, id); i.GetState() != "registered" {
			t.Errorf("%v", i)
		}
	}
	// The instance that the first decrement removed is gone. The next decrement in the group deletes that instance's ID
	// from the group's entry in the bucket.
	answer, err := w.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: ids[0].String(),
		Decrement: true})
	if err != nil || answer.GetGroup().GetSize() != 1 {
		t.Errorf("%v, %v", answer, err)
	}
	groups, _, _, err = w.state.ReadGroups(t.Context())
	if spec := groups.Tenants["prod"]["fleet"]; err != nil || !slices.Equal(spec.Removed, []string{ids[0].String()}) {
		t.Errorf("%+v, %v", spec, err)
	}
}

// TestDeleteInstanceDecrementStatic checks that a decrement of a static group stores the new size in the group's
// override.
func TestDeleteInstanceDecrementStatic(t *testing.T) {
	w := newTestShard(t)
	events := live(t, w)
	if _, err := w.UpsertGroup(t.Context(), upsertOf("static", `{"size": 2}`)); err != nil {
		t.Fatal(err)
	}
	var id string
	for range 2 {
		id = events.await("creation", ofType(nstancev1.InstanceEvent_TYPE_CREATED)).GetInstance().GetInstanceId()
	}
	for range 2 {
		answer, err := w.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: id, Decrement: true})
		if err != nil || answer.GetGroup().GetSize() != 1 || !answer.GetGroup().GetIsStatic() {
			t.Fatalf("%v, %v", answer, err)
		}
	}
	made, err := w.create("", "static")
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: made.GetInstanceId(),
		Decrement: true})
	wants(t, "on demand", err, codes.InvalidArgument, "decrement: ", "on demand")
}

func TestDeleteInstanceRefusals(t *testing.T) {
	w := newTestShard(t)
	made, err := w.create("", "static")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		req     *nstancev1.DeleteInstanceRequest
		code    codes.Code
		message string
	}{
		"no ID": {&nstancev1.DeleteInstanceRequest{}, codes.InvalidArgument, "instance_id: "},
		"unknown": {&nstancev1.DeleteInstanceRequest{InstanceId: w.NewID(t, "knd").String()}, codes.NotFound,
			"instance_id: "},
		"long": {&nstancev1.DeleteInstanceRequest{InstanceId: made.GetInstanceId(),
			Reason: strings.Repeat("x", 513)}, codes.InvalidArgument, "reason: "},
		"characters": {&nstancev1.DeleteInstanceRequest{InstanceId: made.GetInstanceId(), Reason: "a\x00b"},
			codes.InvalidArgument, "reason: "},
	} {
		_, err := w.DeleteInstance(t.Context(), test.req)
		wants(t, name, err, test.code, test.message)
	}
	_, err = w.AcknowledgeDrained(t.Context(), &nstancev1.AcknowledgeDrainedRequest{InstanceId: made.GetInstanceId()})
	wants(t, "acknowledge what is not deleted", err, codes.FailedPrecondition, "instance_id: ")
	_, err = w.AcknowledgeDrained(t.Context(), &nstancev1.AcknowledgeDrainedRequest{InstanceId: "x"})
	wants(t, "acknowledge nonsense", err, codes.InvalidArgument, "instance_id: ")
}

// TestTenants checks that an operator can neither see nor change objects of another tenant.
func TestTenants(t *testing.T) {
	w := newTestShard(t)
	rival := w.rival(t)
	made, err := w.create("", "static")
	if err != nil {
		t.Fatal(err)
	}
	id := made.GetInstanceId()
	_, err = rival.GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: id})
	wants(t, "status", err, codes.NotFound)
	_, err = rival.GetInstanceConsole(t.Context(), &nstancev1.GetInstanceConsoleRequest{InstanceId: id})
	wants(t, "console", err, codes.NotFound)
	_, err = rival.GetScalingHistory(t.Context(), &nstancev1.GetScalingHistoryRequest{Group: "static"})
	wants(t, "history", err, codes.NotFound)
	_, err = rival.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: id})
	wants(t, "delete", err, codes.NotFound)
	if now := w.status(t, parse(t, id)); now.GetState() != "created" {
		t.Errorf("%v", now)
	}
	list, err := rival.ListInstances(t.Context(), &nstancev1.ListInstancesRequest{})
	if err != nil || len(list.GetInstances()) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	groups, err := rival.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{})
	if err != nil || len(groups.GetGroups()) != 1 || groups.GetGroups()[0].GetGroup() != "theirs" {
		t.Errorf("%v, %v", groups, err)
	}
	// Groups of two tenants are different groups, even if they have the same name.
	own := w.scale(t, "fleet", 0)
	if _, err := rival.UpsertGroup(t.Context(), upsertOf("fleet", `{"template": "quick", "size": 0}`)); err != nil {
		t.Fatal(err)
	}
	if now := w.group(t, "fleet"); now.GetEtag() != own.GetEtag() || settingsOf(now).Template != "worker" {
		t.Errorf("%v", now)
	}
	_, err = rival.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Group: "static"})
	wants(t, "delete a group", err, codes.NotFound)

	// An acknowledgement by an operator of another tenant has no effect.
	theirs, errs, groupsOf := live(t, rival), watchErrors(t, rival), watchGroups(t, rival)
	events := live(t, w)
	if _, err := w.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: id}); err != nil {
		t.Fatal(err)
	}
	events.await("the drain", func(e *instanceEvent) bool { return e.GetDrain() })
	if _, err := rival.AcknowledgeDrained(t.Context(), &nstancev1.AcknowledgeDrainedRequest{
		InstanceId: id}); err != nil {
		t.Fatal(err)
	}
	if view, _ := w.leader.State.Instance(parse(t, id)); view.Plan.Drained {
		t.Error("drained on another tenant's word")
	}
	w.leader.State.RaiseError(shardstate.ErrorKey{Kind: "provider", Tenant: "prod", Group: "static"}, "not for others")
	w.leader.State.RaiseError(shardstate.ErrorKey{Kind: "config"}, "for all")
	if first := errs.await("an error", func(*errorEvent) bool { return true }); first.GetMessage() != "for all" {
		t.Errorf("%v", first)
	}
	// Events are sent in order: when the event of this creation arrives, all earlier ones have been sent.
	if _, err := rival.CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{Group: "theirs"}); err != nil {
		t.Fatal(err)
	}
	if first := theirs.await("an event", func(*instanceEvent) bool {
		return true
	}); first.GetInstance().GetGroup() != "theirs" {
		t.Errorf("%v", first)
	}
	theirs.stop()
	groupsOf.await("their group's instance", func(e *groupEvent) bool {
		if g := e.GetStatus().GetGroup(); g == "static" {
			t.Errorf("%v", e)
		}
		return e.GetStatus().GetGroup() == "theirs" && len(e.GetStatus().GetInstanceIds()) == 1
	})
}

// An earlier leader has reserved an instance. The present leader must not create its VM before it knows whether that VM
// exists already.
func TestCreateInstanceLeftByAnEarlierLeader(t *testing.T) {
	w := newTestShard(t)
	id := w.NewID(t, "knd")
	if _, err := w.state.PutInstance(t.Context(), record.Instance{Schema: record.InstanceSchema, ID: id,
		State: record.Reserved, Revision: 1, Term: 2, ReservedTerm: 2,
		Writer: "before", Cluster: w.Name, Shard: "a", Tenant: "prod", Kind: "knd", Group: "static", OnDemand: true,
		CreatedAt: w.Clock.Now()}, ""); err != nil {
		t.Fatal(err)
	}
	_, err := w.create(id.String(), "static")
	wants(t, "left over", err, codes.Unavailable, "instance_id: ", "earlier leader")
	if n := w.provider.Count(mock.Create); n != 0 {
		t.Errorf("%d create calls", n)
	}
}

func TestLeadershipLostWhileCreating(t *testing.T) {
	w := newTestShard(t)
	entered := make(chan struct{})
	w.provide(func(ctx context.Context, call mock.Call) mock.Outcome {
		if call.Kind != mock.Create {
			return mock.Outcome{}
		}
		close(entered)
		<-ctx.Done()
		return mock.Outcome{Err: errors.New("cancelled")}
	})
	failed := make(chan error, 1)
	go func() {
		_, err := w.create("", "static")
		failed <- err
	}()
	<-entered
	w.end()
	isNotLeader(t, "create", <-failed)
	_, err := w.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{})
	isNotLeader(t, "list", err)
	if _, err := w.store.Get(t.Context(), keys.Groups("a")); err == nil {
		t.Error("something was written")
	}
}
