package server

import (
	"context"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/lease"
	"github.com/nstance-kit/nstance/services/internal/mtls"
	"github.com/nstance-kit/nstance/services/internal/observe"
	"github.com/nstance-kit/nstance/services/internal/reconcile"
)

type operatorService struct {
	nstancev1.UnimplementedOperatorServiceServer
}
type operatorLeader struct{}

func (s *server) operatorLeader(context.Context, *lease.Authority, *reconcile.Leader, observe.Events, mtls.Issuer) *operatorLeader {
	return nil
}
