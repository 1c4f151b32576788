package fleet

import (
	"context"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// StatusAnswer says which server leads one shard, and which problems the shard has.
type StatusAnswer struct {
	Outcome
	*Status
}

// Status is the state of a shard according to its leader.
type Status struct {
	Cluster     string    `json:"cluster_id,omitempty"`
	Leader      string    `json:"leader_id,omitempty"`
	Version     string    `json:"version,omitempty" jsonschema:"description=Version of the leader"`
	Term        uint64    `json:"term,omitempty"`
	Since       time.Time `json:"leader_since,omitzero"`
	LeaseLeft   string    `json:"lease_left,omitempty" jsonschema:"description=How long the leader may act without another renewal of its lock: a Go duration. Missing: the leader has no lock"`
	Heir        string    `json:"heir_id,omitempty" jsonschema:"description=The standby that takes over when the leader fails"`
	Standbys    []string  `json:"standby_ids,omitempty" jsonschema:"description=The standbys that are connected to the leader"`
	ETag        string    `json:"config_etag,omitempty" jsonschema:"description=ETag of the configuration in force"`
	RefusedETag string    `json:"refused_etag,omitempty" jsonschema:"description=ETag of a newer configuration that was refused"`
	Problems    []Problem `json:"problems,omitempty" jsonschema:"description=Problems of the refused configuration"`
	Groups      uint32    `json:"groups,omitempty"`
	Instances   uint32    `json:"instances,omitempty"`
	Connected   uint32    `json:"agents_connected,omitempty"`
	Errors      []Event   `json:"errors,omitempty" jsonschema:"description=The active alerts"`
}

// Status returns for each shard which server leads it, and which problems it has.
func (f *Fleet) Status(ctx context.Context, shards []string) []StatusAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *StatusAnswer) error {
		return f.call(ctx, shard, func(ctx context.Context, c Client) error {
			r, err := c.GetShardStatus(ctx, &nstancev1.GetShardStatusRequest{})
			if err != nil {
				return err
			}
			s := &Status{Cluster: r.GetClusterId(), Leader: r.GetLeaderId(), Version: r.GetVersion(), Term: r.GetTerm(),
				Since: at(r.GetLeaderSince()), Heir: r.GetHeirId(), Standbys: r.GetStandbyIds(),
				ETag: r.GetConfigEtag(), RefusedETag: r.GetRefusedEtag(), Problems: viewProblems(r.GetProblems()),
				Groups: r.GetGroups(), Instances: r.GetInstances(), Connected: r.GetAgentsConnected()}
			if left := r.GetLeaseLeft(); left != nil {
				s.LeaseLeft = left.AsDuration().Round(time.Millisecond).String()
			}
			for _, e := range r.GetErrors() {
				s.Errors = append(s.Errors, viewErrorEvent(shard, e))
			}
			into.Status = s
			return nil
		})
	})
}

// StepDownAnswer says which leader steps down.
type StepDownAnswer struct {
	Outcome
	Leader string `json:"leader_id,omitempty"`
	Term   uint64 `json:"term,omitempty"`
	Heir   string `json:"heir_id,omitempty" jsonschema:"description=The standby that is expected to take over"`
}

// StepDown makes leaders hand over to another server. If an answer is lost, StepDown may repeat the call. Then the next
// leader steps down too.
func (f *Fleet) StepDown(ctx context.Context, shards []string) []StepDownAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *StepDownAnswer) error {
		return f.call(ctx, shard, func(ctx context.Context, c Client) error {
			r, err := c.StepDown(ctx, &nstancev1.StepDownRequest{})
			into.Leader, into.Term, into.Heir = r.GetLeaderId(), r.GetTerm(), r.GetHeirId()
			return err
		})
	})
}

// OrphansAnswer lists the orphans of one shard: its VMs without a record.
type OrphansAnswer struct {
	Outcome
	Orphans []Orphan `json:"orphans,omitempty"`
	// NeedsConfirmation means that garbage collection has stopped until the orphans are confirmed.
	NeedsConfirmation bool `json:"needs_confirmation,omitempty"`
	// Confirmed counts the VMs that the leader may terminate now.
	Confirmed uint32 `json:"confirmed,omitempty"`
}

// Orphan is a VM without a record.
type Orphan struct {
	ProviderID string    `json:"provider_id"`
	InstanceID string    `json:"instance_id"`
	Tenant     string    `json:"tenant"`
	Group      string    `json:"group"`
	State      string    `json:"state"`
	LaunchedAt time.Time `json:"launched_at,omitzero"`
}

// Orphans lists the VMs that have no record.
func (f *Fleet) Orphans(ctx context.Context, shards []string) []OrphansAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *OrphansAnswer) error {
		return f.call(ctx, shard, func(ctx context.Context, c Client) error {
			r, err := c.ListOrphans(ctx, &nstancev1.ListOrphansRequest{})
			into.viewOrphans(r)
			return err
		})
	})
}

func (a *OrphansAnswer) viewOrphans(r *nstancev1.ListOrphansResponse) {
	a.Orphans, a.NeedsConfirmation = []Orphan{}, r.GetNeedsConfirmation()
	for _, o := range r.GetOrphans() {
		a.Orphans = append(a.Orphans, Orphan{o.GetProviderId(), o.GetInstanceId(), o.GetTenant(), o.GetGroup(),
			o.GetState(), at(o.GetLaunchedAt())})
	}
}

// ConfirmOrphans allows the leader of a shard to terminate its orphans. providerIDs are the orphans that a person has
// seen. The leader refuses the call if the shard has other orphans now.
func (f *Fleet) ConfirmOrphans(ctx context.Context, shards, providerIDs []string) []OrphansAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *OrphansAnswer) error {
		return f.call(ctx, shard, func(ctx context.Context, c Client) error {
			r, err := c.ConfirmOrphans(ctx, &nstancev1.ConfirmOrphansRequest{ProviderIds: providerIDs})
			into.Orphans, into.Confirmed = []Orphan{}, r.GetConfirmed()
			return err
		})
	})
}
