package operatorapi_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// TestReleaseInstance preserves an instance whose health check fails, lists it, and releases it.
func TestReleaseInstance(t *testing.T) {
	w := newTestShard(t)
	ids := w.grow(t, "fleet", 2)
	if _, err := w.UpsertGroup(t.Context(), upsertOf("fleet", `{"preserve": {"max": 1, "for": "24h"}}`)); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		w.register(t, id, shardstate.Report{Healthy: true})
	}
	events := live(t, w)
	defer events.stop()
	failed, other := ids[0], ids[1]
	release := func(id ident.ID) (*nstancev1.ReleaseInstanceResponse, error) {
		return w.ReleaseInstance(t.Context(), &nstancev1.ReleaseInstanceRequest{InstanceId: id.String()})
	}
	_, err := release(failed)
	wants(t, "a healthy instance", err, codes.FailedPrecondition, "is not preserved")

	w.register(t, failed, shardstate.Report{Healthy: true, Files: []shardstate.FileState{},
		Checks: []shardstate.CheckState{{Name: "web",
			Status: shardstate.CheckFailing, Reason: "status 503, want 200"}}})
	made := events.await("its replacement", ofType(nstancev1.InstanceEvent_TYPE_CREATED))
	w.register(t, parse(t, made.GetInstance().GetInstanceId()), shardstate.Report{Healthy: true})
	event := events.await("its preservation", ofType(nstancev1.InstanceEvent_TYPE_PRESERVED))
	if i := event.GetInstance(); i.GetInstanceId() != failed.String() || !event.GetDrain() ||
		event.GetRemaining() == nil || i.GetState() != "registered" ||
		i.GetPreservedUntil().AsTime().Sub(i.GetPreservedAt().AsTime()).Hours() != 24 ||
		i.GetPreserveReason() != "its health check fails: web: status 503, want 200, and enough others are healthy "+
			"(rule 52)" {
		t.Errorf("%v", event)
	}
	listed, err := w.ListInstances(t.Context(), &nstancev1.ListInstancesRequest{Preserved: true})
	if all := listed.GetInstances(); err != nil || len(all) != 1 || all[0].GetInstanceId() != failed.String() {
		t.Errorf("%v, %v", all, err)
	}
	group, err := w.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{Group: "fleet"})
	if g := group.GetGroups()[0]; err != nil || g.GetPreserved() != 1 || g.GetActualSize() != 2 || g.GetSize() != 2 {
		t.Errorf("%v, %v", g, err)
	}
	why, err := w.ExplainGroup(t.Context(), &nstancev1.ExplainGroupRequest{InstanceId: failed.String()})
	if v := why.GetInstances()[0]; err != nil || v.GetRule() != 67 || v.GetUntil() == nil {
		t.Errorf("%v, %v", v, err)
	}

	// An operator that connects later drains its node, unless one has acknowledged that.
	again := func() *instanceEvent {
		watch := watchInstances(t, w)
		defer watch.stop()
		return watch.await("the preserved instance", ofType(nstancev1.InstanceEvent_TYPE_PRESERVED))
	}
	if e := again(); !e.GetDrain() || e.GetRemaining() == nil {
		t.Errorf("%v", e)
	}
	if _, err := w.AcknowledgeDrained(t.Context(), &nstancev1.AcknowledgeDrainedRequest{
		InstanceId: failed.String()}); err != nil {
		t.Error(err)
	}
	if e := again(); e.GetDrain() {
		t.Errorf("%v", e)
	}

	_, err = w.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: failed.String(),
		Decrement: true})
	wants(t, "decrement", err, codes.InvalidArgument, "does not count")
	_, err = w.ProtectInstance(t.Context(), &nstancev1.ProtectInstanceRequest{InstanceId: failed.String()})
	wants(t, "protect", err, codes.FailedPrecondition, "is preserved")
	_, err = release(other)
	wants(t, "another one", err, codes.FailedPrecondition, "is not preserved: it is registered")
	_, err = release(w.NewID(t, "knd"))
	wants(t, "unknown", err, codes.NotFound, "instance_id")
	_, err = w.ReleaseInstance(t.Context(), &nstancev1.ReleaseInstanceRequest{InstanceId: "i-1"})
	wants(t, "no ID", err, codes.InvalidArgument, "instance_id")

	explained, err := w.ExplainChange(t.Context(), changeOf(&nstancev1.ReleaseInstanceRequest{
		InstanceId: failed.String()}))
	if err != nil || !slices.ContainsFunc(explained.GetGroups()[0].GetPlan().GetActions(),
		func(a *nstancev1.PlannedAction) bool {
			return a.GetKind() == "terminate" && a.GetInstanceId() == failed.String()
		}) {
		t.Errorf("a rehearsed release: %v, %v", explained, err)
	}
	for range 2 {
		answer, err := release(failed)
		if i := answer.GetInstance(); err != nil || i.GetState() != "deleting" || i.GetPreservedUntil() != nil ||
			i.GetPreservedAt() == nil {
			t.Errorf("%v, %v", i, err)
		}
	}
	if got := w.listed(t, &nstancev1.EventFilter{InstanceId: failed.String(), Kinds: []string{"deletion_requested"}},
		1); len(got) != 1 || !strings.Contains(got[0], "released by operator") {
		t.Errorf("%v", got)
	}
}
