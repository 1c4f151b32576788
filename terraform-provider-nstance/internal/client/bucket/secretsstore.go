package bucket

import (
	"context"
	"errors"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// SecretsStore identifies the store of a cluster's secrets.
type SecretsStore struct{ Provider, Prefix, ProjectID string }

// StoreOf returns the store that settings name.
func StoreOf(settings config.Secrets) SecretsStore {
	if settings.Provider == "" || settings.Provider == config.ObjectStorage {
		return SecretsStore{Provider: config.ObjectStorage} // which has no prefix
	}
	return SecretsStore{settings.Provider, settings.Prefix, settings.ProjectID}
}

// String describes the store for messages.
func (s SecretsStore) String() string {
	text := s.Provider
	if s.ProjectID != "" {
		text += ", project " + s.ProjectID
	}
	if s.Prefix != "" {
		text += ", prefix " + s.Prefix
	}
	return text
}

// CanUse reports whether servers can use the store of secrets that a configuration names: they find the CA's key in it,
// or the cluster has no CA yet. The result is false if the store is not that in the provider's settings, or if it
// cannot be read.
func (c *Connection) CanUse(ctx context.Context, cluster config.Cluster) (ok bool) {
	c.Glance(ctx, func(ctx context.Context) {
		state, err := c.Shard(ctx, cluster.ID, "")
		if err != nil {
			return
		}
		// If the cluster has another bucket, this one does not show whether there is a CA.
		_, err = state.UnverifiedCABundle(ctx)
		ok = cluster.Storage == nil && errors.Is(err, objstore.ErrNotFound)
		if !ok && !c.settings.StoreUnknown && StoreOf(c.settings.Secrets) == StoreOf(cluster.Secrets) {
			ok, err = c.HasSecret(ctx, cluster.ID, secretstore.CAKey)
			ok = ok && err == nil
		}
	})
	return ok
}
