package server

import (
	"context"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/cache"
)

// keyCache gives access to the public keys in the currently open cache.
type keyCache struct{ s *server }

func (k keyCache) Keys(ctx context.Context, instance ident.ID) ([]cache.Key, error) {
	return k.s.cache.Keys(ctx, instance)
}

func (k keyCache) PutKeys(ctx context.Context, instance ident.ID, keys []cache.Key) error {
	return k.s.cache.PutKeys(ctx, instance, keys)
}

func (k keyCache) DeleteKeys(ctx context.Context, instance ident.ID) error {
	return k.s.cache.DeleteKeys(ctx, instance)
}
