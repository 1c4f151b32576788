package clusterstate

import (
	"context"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// LoadNonceKey reads the key that signs registration nonces. It returns secretstore.ErrNotFound if there is none yet.
func (s *State) LoadNonceKey(ctx context.Context) (authority.NonceKey, error) {
	secret, err := s.options.Secrets.Get(ctx, secretstore.NonceKey)
	if err != nil {
		return authority.NonceKey{}, fmt.Errorf("load nonce key: %w", err)
	}
	key, err := authority.ParseNonceKey(secret.Value.Reveal())
	if err != nil {
		return authority.NonceKey{}, fmt.Errorf("load nonce key: %w", err)
	}
	return key, nil
}

// EnsureNonceKey returns the key that signs registration nonces, and makes one if there is none. Two concurrent callers
// get the same key. Call [State.EnsureCA] first, because EnsureCA notices a wrong prefix.
func (s *State) EnsureNonceKey(ctx context.Context) (key authority.NonceKey, created bool, err error) {
	key, err = s.LoadNonceKey(ctx)
	if !errors.Is(err, secretstore.ErrNotFound) {
		return key, false, err
	}
	if key, err = authority.CreateNonceKey(s.options.Rand); err == nil {
		err = s.putNonceKey(ctx, key, secretstore.IfAbsent)
	}
	if errors.Is(err, secretstore.ErrExists) {
		key, err = s.LoadNonceKey(ctx)
		return key, false, err
	}
	if err != nil {
		return authority.NonceKey{}, false, fmt.Errorf("ensure nonce key: %w", err)
	}
	return key, true, nil
}

func (s *State) putNonceKey(ctx context.Context, key authority.NonceKey, cond secretstore.Condition) error {
	secret, err := key.MarshalSecret()
	if err != nil {
		return err
	}
	return s.options.Secrets.Put(ctx, secretstore.NonceKey, secretstore.NewValue(secret), cond)
}

// The functions below are the three steps of a rotation of the nonce key. A leader that notices a change of the CA
// reads the nonce key too. So each step of the nonce key must be written before the corresponding step of the CA.

// announceNonceKey lets leaders accept nonces of the new key. That key is zero if an older version of Nstance began the
// rotation. Then the nonce key does not change.
func (s *State) announceNonceKey(ctx context.Context, next authority.NonceKey) error {
	key, _, err := s.EnsureNonceKey(ctx)
	if err != nil || next.IsZero() || next.Public().Equal(key.Public()) {
		return err
	}
	return s.putNonceKey(ctx, key.Accepting(next), secretstore.Any)
}

// signNoncesWith makes the new key sign nonces. Nonces of the old key are still accepted.
func (s *State) signNoncesWith(ctx context.Context, next authority.NonceKey) error {
	key, _, err := s.EnsureNonceKey(ctx)
	if err != nil || next.IsZero() || next.Public().Equal(key.Public()) {
		return err
	}
	return s.putNonceKey(ctx, next.Accepting(key), secretstore.Any)
}

// refuseOldNonces lets leaders accept only nonces of the key that signs them.
func (s *State) refuseOldNonces(ctx context.Context) error {
	key, _, err := s.EnsureNonceKey(ctx)
	if err != nil || len(key.Accepted()) == 1 {
		return err
	}
	return s.putNonceKey(ctx, key.Accepting(authority.NonceKey{}), secretstore.Any)
}
