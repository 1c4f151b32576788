package fleettest

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// GetShardStatus implements nstancev1.OperatorServiceServer.
func (s *Shard) GetShardStatus(context.Context, *nstancev1.GetShardStatusRequest) (*nstancev1.GetShardStatusResponse,
	error) {
	return s.Status, nil
}

// StepDown implements nstancev1.OperatorServiceServer.
func (s *Shard) StepDown(context.Context, *nstancev1.StepDownRequest) (*nstancev1.StepDownResponse, error) {
	return &nstancev1.StepDownResponse{LeaderId: s.Status.GetLeaderId(), Term: s.Status.GetTerm(),
		HeirId: s.Status.GetHeirId()}, nil
}

// ListOrphans implements nstancev1.OperatorServiceServer.
func (s *Shard) ListOrphans(context.Context, *nstancev1.ListOrphansRequest) (*nstancev1.ListOrphansResponse, error) {
	return &nstancev1.ListOrphansResponse{Orphans: s.Orphans, NeedsConfirmation: len(s.Orphans) > 2}, nil
}

// ConfirmOrphans implements nstancev1.OperatorServiceServer.
func (s *Shard) ConfirmOrphans(_ context.Context, r *nstancev1.ConfirmOrphansRequest) (
	*nstancev1.ConfirmOrphansResponse, error) {
	for _, o := range s.Orphans {
		if !slices.Contains(r.GetProviderIds(), o.GetProviderId()) {
			return nil, status.Error(codes.Aborted, "provider_ids: the shard has others now: list them again")
		}
	}
	return &nstancev1.ConfirmOrphansResponse{Confirmed: uint32(len(s.Orphans))}, nil
}
