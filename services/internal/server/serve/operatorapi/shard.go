package operatorapi

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// Leading describes a server's leadership.
type Leading struct {
	Version string
	// LeaseLeft is how long the server may still act as leader if it does not renew its lease. It is nil if the server
	// leads without a lock.
	LeaseLeft *time.Duration
	// Heir and Standbys are the IDs of servers. Heir is "" if there is none.
	Heir     string
	Standbys []string
	// ConfigWaits says what a configuration waits for that needs a restart of the servers. It is "" if none waits.
	ConfigWaits string
}

// permit refuses a call that needs a more powerful role than the operator has.
func (c *call) permit(method string) error {
	need := record.RoleAdmin
	if call := nstancev1.OperatorCalls().ByName(protoreflect.Name(method)); call != nil {
		need = record.OperatorRole(nstancev1.OptionsOf(call).GetRole())
	}
	if !c.role.Includes(need) {
		return status.Errorf(codes.PermissionDenied, "%s needs the role %s: register the operator with --role %[2]s",
			method, need)
	}
	return nil
}

// methodOf returns the name of the method that a call invokes.
func methodOf(ctx context.Context) string {
	method, _ := grpc.Method(ctx)
	return method[strings.LastIndexByte(method, '/')+1:]
}

// GetShardStatus returns the shard's leadership, the state of its configuration, and its unresolved errors.
func (c *call) GetShardStatus(_ context.Context, _ *nstancev1.GetShardStatusRequest) (
	*nstancev1.GetShardStatusResponse, error) {
	leading, configured := c.Status(), c.Config.Status()
	counts := c.state().Count()
	answer := &nstancev1.GetShardStatusResponse{
		Shard: c.Shard, ClusterId: c.Cluster, LeaderId: c.ID, Version: leading.Version, Term: c.state().Term(),
		LeaderSince: timestamp(c.state().Since()), HeirId: leading.Heir, StandbyIds: leading.Standbys,
		ConfigEtag: configured.ETag, RefusedEtag: configured.RefusedETag, Problems: problems(configured.Problems),
		Groups: uint32(counts.Groups), Instances: uint32(counts.Instances),
		AgentsConnected: uint32(counts.Connected), ConfigWaits: leading.ConfigWaits,
	}
	if leading.LeaseLeft != nil {
		answer.LeaseLeft = durationpb.New(*leading.LeaseLeft)
	}
	for _, event := range c.state().Standing(c.tenant) {
		answer.Errors = append(answer.Errors, errorEvent(event))
	}
	return answer, nil
}

// StepDown makes the leader hand the leadership over to another server.
func (c *call) StepDown(_ context.Context, _ *nstancev1.StepDownRequest) (*nstancev1.StepDownResponse, error) {
	heir := c.Status().Heir
	c.addEvent(record.Event{Kind: record.EventLeaderStepsDown, Message: "the leader steps down"})
	if c.rehearsal == nil {
		c.Leader.StepDown()
	}
	return &nstancev1.StepDownResponse{LeaderId: c.ID, Term: c.state().Term(), HeirId: heir}, nil
}

// ListOrphans lists the VMs of the shard that have no record.
func (c *call) ListOrphans(_ context.Context, _ *nstancev1.ListOrphansRequest) (*nstancev1.ListOrphansResponse, error) {
	answer := &nstancev1.ListOrphansResponse{NeedsConfirmation: c.orphansWait()}
	for _, vm := range c.state().Orphans() {
		answer.Orphans = append(answer.Orphans, &nstancev1.Orphan{ProviderId: vm.ProviderID,
			InstanceId: vm.Tags.Instance.String(), Tenant: vm.Tags.Tenant, Group: vm.Tags.Group,
			State: string(vm.State), LaunchedAt: timestamp(vm.LaunchedAt)})
	}
	return answer, nil
}

// orphansWait reports whether garbage collection is stopped until a person confirms the orphans.
func (c *call) orphansWait() bool {
	return slices.ContainsFunc(c.state().Standing(""), func(e shardstate.ErrorEvent) bool {
		return e.Kind == plan.AlertOrphans
	})
}

// ConfirmOrphans allows the leader to terminate the present orphans.
func (c *call) ConfirmOrphans(_ context.Context, req *nstancev1.ConfirmOrphansRequest) (
	*nstancev1.ConfirmOrphansResponse, error) {
	if n := len(req.GetProviderIds()); n > maxOrphans {
		return nil, invalid("provider_ids", "has %d entries, at most %d are allowed", n, maxOrphans)
	}
	if !c.orphansWait() {
		return nil, status.Error(codes.FailedPrecondition, "no orphans wait for a confirmation")
	}
	var present []string
	for _, vm := range c.state().Orphans() {
		present = append(present, vm.ProviderID)
	}
	given := slices.Clone(req.GetProviderIds())
	slices.Sort(present)
	slices.Sort(given)
	if !slices.Equal(present, given) {
		return nil, status.Errorf(codes.Aborted,
			"provider_ids: are %d, but the shard has %d orphans now: list them again", len(given), len(present))
	}
	if c.rehearsal != nil {
		return &nstancev1.ConfirmOrphansResponse{Confirmed: uint32(len(present))}, nil
	}
	confirmed := c.state().ConfirmOrphans()
	if c.OrphansConfirmed != nil && len(confirmed) > 0 {
		c.OrphansConfirmed(c)
	}
	for _, vm := range confirmed {
		c.addEvent(record.Event{Kind: record.EventOrphanConfirmed, Message: "VM " + vm.ProviderID})
	}
	return &nstancev1.ConfirmOrphansResponse{Confirmed: uint32(len(confirmed))}, nil
}

// maxTypes is the number of instance types whose sizes are remembered.
const maxTypes = 1000

// GetInstanceType returns the size of an instance type. The provider is asked once for each type, because types do not
// change.
func (c *call) GetInstanceType(_ context.Context, req *nstancev1.GetInstanceTypeRequest) (
	*nstancev1.GetInstanceTypeResponse, error) {
	name := req.GetInstanceType()
	if name == "" {
		return nil, invalid("instance_type", "is missing")
	}
	if err := checkText("instance_type", name, maxText); err != nil {
		return nil, err
	}
	c.mu.Lock()
	known, asked := c.types[name]
	c.mu.Unlock()
	if !asked {
		provider, ok := infra.Capability[infra.InstanceTypes](c.Leader.Leader.Executor.Provider)
		if !ok {
			return nil, status.Error(codes.Unimplemented, "the shard's provider does not describe instance types")
		}
		described, err := provider.DescribeType(c, name)
		switch class := infra.ClassOf(err); {
		case err == nil:
			known = &nstancev1.GetInstanceTypeResponse{Cpus: uint32(described.CPUs),
				MemoryMib: uint64(described.MemoryMiB)}
		case class != infra.NotFound && class != infra.Invalid:
			return nil, err
		}
		c.mu.Lock()
		if c.types == nil || len(c.types) >= maxTypes {
			c.types = map[string]*nstancev1.GetInstanceTypeResponse{}
		}
		c.types[name] = known
		c.mu.Unlock()
	}
	if known == nil {
		return nil, status.Errorf(codes.NotFound, "instance_type: the provider has no type %s", name)
	}
	return known, nil
}
