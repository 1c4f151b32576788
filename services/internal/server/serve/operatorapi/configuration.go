package operatorapi

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
)

// GetConfigStatus returns the active configuration and the problems of a newer one that was rejected.
func (c *call) GetConfigStatus(_ context.Context, _ *nstancev1.GetConfigStatusRequest) (
	*nstancev1.GetConfigStatusResponse, error) {
	status := c.Config.Status()
	answer := &nstancev1.GetConfigStatusResponse{
		Etag: status.ETag, Size: uint64(status.Size), Generation: status.Generation, RefusedEtag: status.RefusedETag,
		Problems: problems(status.Problems),
		Shard:    c.Shard, LeaderId: c.ID, Term: c.state().Term(), ClusterId: c.Cluster,
		Waits: c.Leader.Status().ConfigWaits,
	}
	// List the bucket to find out when the configuration was last modified. If that fails, the answer does not contain
	// this time.
	if status.RefusedETag == "" && c.ConfigModified != nil {
		if at, err := c.ConfigModified(c); err == nil {
			answer.LastModified = timestamppb.New(at)
		}
	}
	return answer, nil
}

// RefreshConfig reads the configuration from the bucket and applies it if it is newer and valid.
func (c *call) RefreshConfig(_ context.Context, _ *nstancev1.RefreshConfigRequest) (
	*nstancev1.RefreshConfigResponse, error) {
	result, found, err := c.Refresh(c)
	if err != nil {
		return nil, err
	}
	answer := &nstancev1.RefreshConfigResponse{Problems: problems(found), Etag: c.Config.Status().ETag}
	switch result {
	case shardconfig.Updated:
		answer.Result = nstancev1.RefreshResult_REFRESH_RESULT_UPDATED
	case shardconfig.Restart:
		answer.Result, answer.Restarting = nstancev1.RefreshResult_REFRESH_RESULT_UPDATED, true
		answer.Etag = c.Config.Status().RestartETag
	case shardconfig.Invalid:
		answer.Result = nstancev1.RefreshResult_REFRESH_RESULT_INVALID
	default:
		answer.Result = nstancev1.RefreshResult_REFRESH_RESULT_UNCHANGED
	}
	return answer, nil
}

func problems(list config.Problems) []*nstancev1.ConfigProblem {
	out := make([]*nstancev1.ConfigProblem, 0, len(list))
	for _, p := range list {
		message := p.Message
		if p.Hint != "" {
			message += " (" + p.Hint + ")"
		}
		out = append(out, &nstancev1.ConfigProblem{Path: p.Path, Line: uint32(p.Line), Column: uint32(p.Col),
			Message: message})
	}
	return out
}
