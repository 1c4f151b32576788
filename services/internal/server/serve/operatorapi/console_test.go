package operatorapi_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
)

// TestGetInstanceConsole checks that an operator reads the console of its tenant's instances as clean text, and why it
// cannot be read.
func TestGetInstanceConsole(t *testing.T) {
	w := newTestShard(t)
	id := w.grow(t, "fleet", 1)[0]
	read := func(lines uint32) (*nstancev1.GetInstanceConsoleResponse, error) {
		return w.GetInstanceConsole(t.Context(), &nstancev1.GetInstanceConsoleRequest{InstanceId: id.String(),
			Lines: lines})
	}
	vm := w.status(t, id).GetProviderId()
	if c, err := read(0); err != nil || c.GetText() != "booting\n"+vm+" login:" || c.GetCut() {
		t.Errorf("%v, %v", c, err)
	}
	if c, err := read(1); err != nil || c.GetText() != vm+" login:" || !c.GetCut() {
		t.Errorf("the last line: %v, %v", c, err)
	}
	for _, test := range []struct {
		class infra.Class
		at    mock.Kind
		code  codes.Code
		want  string
	}{
		{infra.NotFound, mock.Get, codes.FailedPrecondition, "is gone, and its console with it"},
		{infra.Denied, mock.ReadConsole, codes.FailedPrecondition, "ec2:GetConsoleOutput"},
		{infra.Throttled, mock.ReadConsole, codes.Unavailable, "ec2:GetConsoleOutput"},
	} {
		w.provide(func(_ context.Context, call mock.Call) mock.Outcome {
			if call.Kind != test.at {
				return mock.Outcome{}
			}
			return mock.Outcome{Err: infra.Errorf(test.class, "read the console", "needs ec2:GetConsoleOutput")}
		})
		_, err := read(0)
		wants(t, string(test.class), err, test.code, "instance_id: ", test.want)
	}
	_, err := w.GetInstanceConsole(t.Context(), &nstancev1.GetInstanceConsoleRequest{InstanceId: "i-1"})
	wants(t, "no ID", err, codes.InvalidArgument, "instance_id: ")
}
