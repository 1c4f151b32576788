package server

import (
	"bytes"
	"context"

	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
)

// pollCA checks on a standby, once in each term, whether the CA has changed. One check per term is enough: after a
// later change the leader restarts, which begins another term. The leader itself checks in pollConfig.
func (s *server) pollCA(ctx context.Context) {
	followed := uint64(0) // the term in which the standby looked last
	for s.env.Sleep(ctx, configInterval) == nil {
		status := s.status.Load()
		if status == nil || status.Role == election.Leader || status.Holder.Term == followed {
			continue
		}
		if err := s.followCA(ctx); err == nil {
			followed = status.Holder.Term
		} else if ctx.Err() == nil {
			s.log.Warn("CA not looked up", "error", err)
		}
	}
}

// followCA reads the CA and its bundle, and looks for a rotation. During a rotation, a standby uses the new CA and
// bundle for later connections, and a leader restarts to use them. Every rotation first changes `ca.crt`. So followCA
// reads nothing more if `ca.crt` still has the token in followedCA.
func (s *server) followCA(ctx context.Context) error {
	source := s.endpoints.certificates()
	if source == nil {
		return nil // the cluster has no CA yet
	}
	token, err := s.state.CABundleToken(ctx)
	if err != nil || s.followedCA.Load() == token {
		return err
	}
	ca, bundle, err := s.state.ReadCA(ctx)
	switch {
	case err != nil:
		return err
	case source.Uses(ca, bundle):
	case s.isLeader():
		s.log.Info("the cluster's CA is being rotated: restarting to follow", "ca", ca, "bundle_size", len(bundle))
		s.restartSoon(ctx)
		return nil
	default:
		s.log.Info("the cluster's CA is being rotated: following", "ca", ca, "bundle_size", len(bundle))
		if err := s.endpoints.use(ca, bundle); err != nil {
			return err
		}
	}
	if len(bundle) == 1 {
		s.followedCA.Store(token)
	}
	return nil
}

// followWorkloadCA makes the leader restart if the workload CAs have changed. These CAs sign the certificates in
// instances' files. In its next term, the leader sends the instances the files that contain the new CAs.
func (s *server) followWorkloadCA(ctx context.Context, l *leadership) error {
	cas, err := s.state.LoadWorkloadCAs(ctx)
	if err != nil || bytes.Equal(cas.EncodeCertificates(), l.workloadCAPEM) {
		return err
	}
	s.log.Info("the workload CA is being rotated: restarting to follow", "workload_cas", len(cas))
	s.restartSoon(ctx)
	return nil
}

// isLeader reports whether this server holds the lock. It may hold the lock before it serves as leader.
func (s *server) isLeader() bool {
	status := s.status.Load()
	return status != nil && status.Role == election.Leader
}
