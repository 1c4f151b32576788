package operatorapi_test

import (
	"crypto/tls"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// as registers an operator of the tenant prod with the given name and role, and returns its client.
func (f *testShard) as(t *testing.T, name string, role record.OperatorRole) nstancev1.OperatorServiceClient {
	t.Helper()
	return f.dial(t, f.certificateAs(t, name, role))
}

// certificateAs returns the certificate of an operator with a name and a role.
func (f *testShard) certificateAs(t *testing.T, name string, role record.OperatorRole) *tls.Certificate {
	t.Helper()
	id, key := f.NewID(t, "opr"), transporttest.NewKey(t)
	cert := f.operator(t, "prod", id, key)
	rec, token, err := f.state.GetOperator(t.Context(), "prod", id)
	if err != nil {
		t.Fatal(err)
	}
	rec.Revision++
	rec.Name, rec.Role = name, role
	if _, err := f.state.PutOperator(t.Context(), rec, token); err != nil {
		t.Fatal(err)
	}
	return cert
}

// TestShardStatus checks that GetShardStatus describes the shard's leadership and counts its groups.
func TestShardStatus(t *testing.T) {
	w := newTestShard(t)
	s, err := w.as(t, "", record.RoleViewer).GetShardStatus(t.Context(), &nstancev1.GetShardStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if s.GetShard() != "a" || s.GetLeaderId() != "one" || s.GetVersion() != "v1" || s.GetHeirId() != "two" ||
		!slices.Equal(s.GetStandbyIds(), []string{"three", "two"}) || s.GetLeaseLeft().AsDuration() != 80*time.Second ||
		s.GetConfigEtag() == "" || s.GetGroups() == 0 {
		t.Errorf("%v", s)
	}
}

// TestOperatorRoles checks what each role may do, and that events in the journal contain the operator's name.
func TestOperatorRoles(t *testing.T) {
	w := newTestShard(t)
	viewer, operator, admin := w.as(t, "vera", record.RoleViewer), w.as(t, "olga", ""), w.as(t, "ada", record.RoleAdmin)
	for _, tt := range []struct {
		name   string
		client nstancev1.OperatorServiceClient
		pause  codes.Code
		down   codes.Code
	}{{"viewer", viewer, codes.PermissionDenied, codes.PermissionDenied},
		{"operator", operator, codes.OK, codes.PermissionDenied}, {"admin", admin, codes.OK, codes.OK}} {
		if _, err := tt.client.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{}); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		_, err := tt.client.PauseGroup(t.Context(), &nstancev1.PauseGroupRequest{Group: "static"})
		if code := status.Code(err); code != tt.pause {
			t.Errorf("%s pauses a group: %v, want %v", tt.name, err, tt.pause)
		}
		if w.steppedDown.Load() {
			t.Errorf("the leader steps down before %s asks", tt.name)
		}
		_, err = tt.client.StepDown(t.Context(), &nstancev1.StepDownRequest{})
		if code := status.Code(err); code != tt.down {
			t.Errorf("%s makes the leader step down: %v, want %v", tt.name, err, tt.down)
		}
		// nstance-admin recognises this text.
		if err != nil && !strings.Contains(err.Error(), "StepDown needs the role admin: ") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if !w.steppedDown.Load() {
		t.Error("the leader does not step down")
	}
	have := strings.Join(w.listed(t, &nstancev1.EventFilter{Kinds: []string{"leader_steps_down"}}, 1), ", ")
	if want := "leader_steps_down ada the leader steps down"; have != want {
		t.Errorf("the journal has %q, want %q", have, want)
	}
}

// TestOrphansNeedAConfirmation checks that orphans can be listed, and that ConfirmOrphans is refused while no orphan
// waits for a confirmation.
func TestOrphansNeedAConfirmation(t *testing.T) {
	w := newTestShard(t)
	admin := w.as(t, "ada", record.RoleAdmin)
	answer, err := admin.ListOrphans(t.Context(), &nstancev1.ListOrphansRequest{})
	if err != nil || len(answer.GetOrphans()) != 0 || answer.GetNeedsConfirmation() {
		t.Errorf("%v, %v", answer, err)
	}
	_, err = admin.ConfirmOrphans(t.Context(), &nstancev1.ConfirmOrphansRequest{ProviderIds: []string{"vm"}})
	wants(t, "confirm", err, codes.FailedPrecondition, "no orphans wait")
}
