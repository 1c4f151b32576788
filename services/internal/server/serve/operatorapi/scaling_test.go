package operatorapi_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
)

// TestGetScalingHistory checks that an operator gets the points of the tenant's group, and who has seen them since
// when.
func TestGetScalingHistory(t *testing.T) {
	w := newTestShard(t)
	w.scale(t, "fleet", 1)
	at := w.Clock.Now()
	for _, tenant := range []string{"prod", "rival"} {
		err := w.api.Journal.KeepScaling(t.Context(), localdb.ScalingPoint{
			GroupKey: config.GroupKey{Tenant: tenant, Group: "fleet"}, At: at, Size: 4, Wanted: 6,
			Metrics: []localdb.ScalingValue{{Name: "cpu", Value: new(78.), Target: 60, Wanted: 6},
				{Name: "memory", Target: 80, Wanted: 4}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	h, err := w.GetScalingHistory(t.Context(), &nstancev1.GetScalingHistoryRequest{Group: "fleet"})
	if err != nil || len(h.GetPoints()) != 1 || h.GetLeaderId() != "one" || h.GetLeaderSince() == nil ||
		h.GetInterval().AsDuration() != 5*time.Minute {
		t.Fatalf("%v, %v", h, err)
	}
	p := h.GetPoints()[0]
	if m := p.GetMetrics(); !p.GetAt().AsTime().Equal(at) || p.GetSize() != 4 || p.GetWanted() != 6 || len(m) != 2 ||
		m[0].GetName() != "cpu" || m[0].GetValue() != 78 || m[0].GetTarget() != 60 || m[1].Value != nil {
		t.Errorf("%v", p)
	}
	h, err = w.GetScalingHistory(t.Context(), &nstancev1.GetScalingHistoryRequest{Group: "static"})
	if err != nil || len(h.GetPoints()) != 0 {
		t.Errorf("a group without scaling: %v, %v", h, err)
	}
	_, err = w.GetScalingHistory(t.Context(), &nstancev1.GetScalingHistoryRequest{Group: "nowhere"})
	wants(t, "no group", err, codes.NotFound, "group")
	_, err = w.GetScalingHistory(t.Context(), &nstancev1.GetScalingHistoryRequest{})
	wants(t, "no name", err, codes.InvalidArgument, "group: ")
}
