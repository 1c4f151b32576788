package vmaddress_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi/leadertest"
	"github.com/nstance-kit/nstance/services/internal/server/serve/vmaddress"
)

// TestQuestionsAreFew checks that a hostile client cannot make the leader ask the provider again and again, and that a
// fault of the provider is told.
func TestQuestionsAreFew(t *testing.T) {
	w := leadertest.New(t, config.Group{Template: "worker", Kind: "knd", Size: 1, RuntimeHash: "r1", InfraHash: "i1"})
	id := w.Created(t)
	w.State.Answered(id, infra.VM{ProviderID: "vm-" + id.String(), State: infra.Running,
		Addresses: []string{"10.0.0.1"}, LaunchedAt: w.Clock.Now()}, w.Clock.Now())
	asked, fault := 0, error(nil)
	c := &vmaddress.Checker{State: w.State, Enabled: func() bool { return true }, Now: w.Clock.Now,
		Ask: func(context.Context, ident.ID) error { asked++; return fault }}
	for range 100 {
		err := c.Check(t.Context(), id, netip.MustParseAddr("10.0.0.2"))
		if status.Code(err) != codes.PermissionDenied {
			t.Fatal(err)
		}
	}
	if err := c.Check(t.Context(), id, netip.MustParseAddr("10.0.0.1")); err != nil || asked != 1 {
		t.Errorf("%v, asked %d times, want once", err, asked)
	}
	w.Clock.Advance(time.Minute)
	fault = errors.New("timeout")
	if err := c.Check(t.Context(), id, netip.MustParseAddr("10.0.0.2")); !errors.Is(err, vmaddress.ErrNoAnswer) {
		t.Error(err)
	}
}
