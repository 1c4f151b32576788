package fleet

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// Status returns for each shard which server leads it, and which problems it has.
func (f *Fleet) Status(ctx context.Context, shards []string) []StatusAnswer {
	return ask(ctx, f, shards, Client.GetShardStatus, &nstancev1.GetShardStatusRequest{})
}

// LeaseText says how long a leader may act without another renewal of its lock.
func LeaseText(s *nstancev1.GetShardStatusResponse) string {
	if s.GetLeaseLeft() == nil {
		return "no lock"
	}
	return s.GetLeaseLeft().AsDuration().Round(time.Millisecond).String()
}

// StepDown makes leaders hand over to another server. If an answer is lost, StepDown may repeat the call. Then the next
// leader steps down too.
func (f *Fleet) StepDown(ctx context.Context, shards []string) []StepDownAnswer {
	return ask(ctx, f, shards, Client.StepDown, &nstancev1.StepDownRequest{})
}

// Orphans lists the VMs that have no record.
func (f *Fleet) Orphans(ctx context.Context, shards []string) []OrphansAnswer {
	return ask(ctx, f, shards, Client.ListOrphans, &nstancev1.ListOrphansRequest{})
}

// ConfirmOrphans allows the leader of a shard to terminate its orphans. providerIDs are the orphans that a person has
// seen. The leader refuses the call if the shard has other orphans now.
func (f *Fleet) ConfirmOrphans(ctx context.Context, shards,
	providerIDs []string) []ConfirmAnswer {
	return ask(ctx, f, shards, Client.ConfirmOrphans, &nstancev1.ConfirmOrphansRequest{ProviderIds: providerIDs})
}

// ConfigStatus returns the state of the configuration of each shard.
func (f *Fleet) ConfigStatus(ctx context.Context, shards []string) []ConfigAnswer {
	return ask(ctx, f, shards, Client.GetConfigStatus, &nstancev1.GetConfigStatusRequest{})
}

// Refresh makes shards read their configuration immediately. If a shard's configuration is invalid, the shard's answer
// has an error and lists the problems.
func (f *Fleet) Refresh(ctx context.Context, shards []string) []RefreshAnswer {
	answers := ask(ctx, f, shards, Client.RefreshConfig, &nstancev1.RefreshConfigRequest{})
	for i := range answers {
		if a := &answers[i]; a.Message.GetResult() == nstancev1.RefreshResult_REFRESH_RESULT_INVALID {
			a.Err = refuse(a.Shard, codes.InvalidArgument,
				"the configuration before it stays in force; correct the file and push it again",
				"the configuration is invalid: %d problems", len(a.Message.GetProblems()))
		}
	}
	return answers
}
