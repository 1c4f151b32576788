package server

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// clusterKeys are the keys of the cluster that a leader needs.
type clusterKeys struct {
	nonce  authority.NonceKey
	ca     authority.CA
	bundle []*x509.Certificate // the certificates in `ca.crt`, newest first
}

// keys reads the cluster's nonce key and its CA. It creates missing keys, but only if the shard has a configuration.
// Without one, the cluster was destroyed. A standby that takes over after the destruction must not create keys in the
// bucket.
func (s *server) keys(ctx context.Context) (k clusterKeys, err error) {
	defer func() {
		if err != nil && s.inUse.Load().clusterBucket != nil {
			err = fmt.Errorf("cluster.storage: %w", err)
		}
	}()
	k.nonce, err = s.state.LoadNonceKey(ctx)
	missing := errors.Is(err, secretstore.ErrNotFound)
	if missing {
		if _, _, err := s.state.ReadConfig(ctx, s.opts.Shard); err != nil {
			return k, fmt.Errorf("read the shard's configuration before the cluster's keys are made: %w", err)
		}
	} else if err != nil {
		return k, err
	}
	var created bool
	if k.ca, k.bundle, created, err = s.state.EnsureTrust(ctx); err != nil {
		return k, err
	}
	if created {
		s.log.Info("made the cluster's CA", "fingerprint", authority.Fingerprint(k.ca.Certificate()))
	}
	switch {
	case missing:
		if k.nonce, created, err = s.state.EnsureNonceKey(ctx); created {
			s.log.Info("made the cluster's nonce key")
		}
	case len(k.bundle) > 1:
		// Read the nonce key again, because a rotation may have changed it after the first read. A rotation changes the
		// nonce key before the CA, and a term with a new CA needs the nonce key that belongs to that CA.
		k.nonce, err = s.state.LoadNonceKey(ctx)
	}
	return k, err
}

func isNotFound(err error) bool {
	return errors.Is(err, objstore.ErrNotFound) || errors.Is(err, secretstore.ErrNotFound)
}

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
