package operatorapi_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// TestProtectInstance checks that a scale-down spares a protected instance, and that the protection is durable before
// the client gets the answer. When an instance is gone, its ID is deleted from the group's entry.
func TestProtectInstance(t *testing.T) {
	w := newTestShard(t)
	ids := w.grow(t, "fleet", 3)
	for _, id := range ids {
		w.register(t, id, shardstate.Report{Healthy: true})
	}
	oldest := ids[0]
	req := &nstancev1.ProtectInstanceRequest{InstanceId: oldest.String()}
	w.breakStore(func(r mem.Request) mem.Fault {
		if r.Op == mem.Put {
			return outOfOrder(r)
		}
		return mem.Fault{}
	})
	_, err := w.ProtectInstance(t.Context(), req)
	wants(t, "not durable", err, codes.Unavailable, "out of order")
	if i := w.status(t, oldest); i.GetProtected() {
		t.Errorf("%v", i)
	}
	w.breakStore(nil)
	protected := func(want ...ident.ID) {
		t.Helper()
		var texts []string
		for _, id := range want {
			texts = append(texts, id.String())
		}
		groups, _, _, err := w.state.ReadGroups(t.Context())
		if spec := groups.Tenants["prod"]["fleet"]; err != nil || !slices.Equal(spec.Protected, texts) {
			t.Errorf("the bucket has %v, %v, want %v", spec.Protected, err, texts)
		}
	}
	for range 2 {
		answer, err := w.ProtectInstance(t.Context(), req)
		if err != nil || !answer.GetInstance().GetProtected() {
			t.Fatalf("%v, %v", answer, err)
		}
		protected(oldest)
	}
	if _, err := w.ProtectInstance(t.Context(),
		&nstancev1.ProtectInstanceRequest{InstanceId: ids[2].String()}); err != nil {
		t.Fatal(err)
	}
	protected(oldest, ids[2])
	events := live(t, w)
	w.scale(t, "fleet", 2)
	deletion := events.await("the scale-down", ofType(nstancev1.InstanceEvent_TYPE_PENDING_DELETION))
	if id := parse(t, deletion.GetInstance().GetInstanceId()); id != ids[1] {
		t.Errorf("%v goes, want %v", id, ids[1])
	}
	// DeleteInstance deletes even a protected instance.
	if _, err := w.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{
		InstanceId: oldest.String()}); err != nil {
		t.Fatal(err)
	}
	_, err = w.ProtectInstance(t.Context(), req)
	wants(t, "a leaving instance", err, codes.FailedPrecondition, "is deleting")
	answer, err := w.ProtectInstance(t.Context(), &nstancev1.ProtectInstanceRequest{InstanceId: ids[2].String(),
		Off: true})
	if err != nil || answer.GetInstance().GetProtected() {
		t.Errorf("%v, %v", answer, err)
	}
	protected(oldest)
	w.listed(t, &nstancev1.EventFilter{InstanceId: ids[2].String(), Kinds: []string{"group_changed"}}, 2)
	onDemand, err := w.create("", "static")
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.ProtectInstance(t.Context(), &nstancev1.ProtectInstanceRequest{InstanceId: onDemand.GetInstanceId()})
	wants(t, "on demand", err, codes.InvalidArgument, "on demand")
	_, err = w.ProtectInstance(t.Context(), &nstancev1.ProtectInstanceRequest{InstanceId: w.NewID(t, "knd").String()})
	wants(t, "unknown", err, codes.NotFound, "instance_id")
}

// TestPages reads groups and instances page by page.
func TestPages(t *testing.T) {
	w := newTestShard(t)
	ids := w.grow(t, "fleet", 3)
	var names, instances []string
	token := ""
	for pages := 1; ; pages++ {
		r, err := w.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{PageSize: 1, PageToken: token})
		if err != nil || len(r.GetGroups()) != 1 || pages > 9 {
			t.Fatalf("page %d: %v, %v", pages, r, err)
		}
		names = append(names, r.GetGroups()[0].GetGroup())
		if token = r.GetNextPageToken(); token == "" {
			break
		}
	}
	all, err := w.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{})
	if err != nil || len(all.GetGroups()) != len(names) || len(names) < 2 || !slices.IsSorted(names) {
		t.Errorf("%v, %v, %v", names, all, err)
	}
	for pages := 1; ; pages++ {
		r, err := w.ListInstances(t.Context(), &nstancev1.ListInstancesRequest{Group: "fleet", PageSize: 2,
			PageToken: token})
		if err != nil || pages > 2 {
			t.Fatalf("page %d: %v, %v", pages, r, err)
		}
		for _, i := range r.GetInstances() {
			instances = append(instances, i.GetInstanceId())
		}
		if token = r.GetNextPageToken(); token == "" {
			break
		}
	}
	slices.SortFunc(ids, ident.ID.Compare)
	for n, id := range ids {
		if len(instances) != 3 || instances[n] != id.String() {
			t.Errorf("%v, want %v", instances, ids)
		}
	}
	_, err = w.ListInstances(t.Context(), &nstancev1.ListInstancesRequest{PageToken: "i-1"})
	wants(t, "token of instances", err, codes.InvalidArgument, "page_token")
	_, err = w.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{PageToken: "No/name"})
	wants(t, "token of groups", err, codes.InvalidArgument, "page_token")
}
