package operatorapi

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// GetInstanceConsole returns the console of one of the tenant's instances.
func (c *call) GetInstanceConsole(_ context.Context, req *nstancev1.GetInstanceConsoleRequest) (
	*nstancev1.GetInstanceConsoleResponse, error) {
	view, err := c.instance(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	rec, provider := &view.Record, c.Leader.Leader.Executor.Provider
	consoles, ok := infra.Capability[infra.VMConsoles](provider)
	switch {
	case !ok:
		return nil, status.Error(codes.FailedPrecondition,
			"the servers cannot read consoles of this shard's provider: use the tools of the provider")
	case rec.State == record.Reserved || rec.ProviderID == "":
		return nil, status.Errorf(codes.FailedPrecondition, "instance_id: instance %s has no VM yet", rec.ID)
	}
	vm, err := provider.Get(c, rec.ProviderID)
	if err == nil {
		err = infra.CheckOwned("read the console", vm.Tags,
			infra.Tags{Owner: c.Leader.Leader.Executor.Owner, Instance: rec.ID})
	}
	var raw []byte
	if err == nil {
		raw, err = consoles.ReadConsole(c, vm)
	}
	switch infra.ClassOf(err) {
	case "":
	case infra.NotFound:
		return nil, status.Errorf(codes.FailedPrecondition,
			"instance_id: the VM of instance %s is gone, and its console with it", rec.ID)
	case infra.Denied, infra.Invalid:
		return nil, status.Errorf(codes.FailedPrecondition, "instance_id: instance %s: %v", rec.ID, err)
	default:
		return nil, status.Errorf(codes.Unavailable, "instance_id: instance %s: %v", rec.ID, err)
	}
	text, cut := infra.ConsoleText(raw)
	if n := int(min(req.GetLines(), infra.MaxConsole)); n > 0 {
		last := infra.LastLines(text, n)
		text, cut = last, cut || len(last) < len(strings.TrimRight(text, "\n"))
	}
	return &nstancev1.GetInstanceConsoleResponse{Text: text, Cut: cut}, nil
}
