package server

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/authority"
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
