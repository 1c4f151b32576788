package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/secretstore"
)

// keys reads the cluster's nonce key and ensures that the cluster has a CA. It creates missing keys, but only if the
// shard has a configuration. Without one, the cluster was destroyed, and a standby that takes over from its stopped
// leader must not create keys in the bucket.
func (s *server) keys(ctx context.Context) (authority.NonceKey, error) {
	fail := func(err error) (authority.NonceKey, error) { return authority.NonceKey{}, err }
	key, err := s.state.LoadNonceKey(ctx)
	missing := errors.Is(err, secretstore.ErrNotFound)
	if missing {
		if _, _, err := s.state.ReadConfig(ctx, s.opts.Shard); err != nil {
			return fail(fmt.Errorf("read the shard's configuration before the cluster's keys are made: %w", err))
		}
	} else if err != nil {
		return fail(err)
	}
	ca, created, err := s.state.EnsureCA(ctx)
	if err != nil {
		return fail(err)
	}
	if created {
		s.log.Info("made the cluster's CA", "fingerprint", authority.Fingerprint(ca.Certificate()))
	}
	if missing {
		if key, created, err = s.state.EnsureNonceKey(ctx); err != nil {
			return fail(err)
		}
		if created {
			s.log.Info("made the cluster's nonce key")
		}
	}
	return key, nil
}

func isNotFound(err error) bool {
	return errors.Is(err, objstore.ErrNotFound) || errors.Is(err, secretstore.ErrNotFound)
}
