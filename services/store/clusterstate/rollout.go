package clusterstate

import (
	"context"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// StoredRollout is what is stored about the rollouts of one group.
type StoredRollout struct {
	record.Rollout
	Token objstore.Token
	// Err says why the document cannot be used: it is damaged, forged, or written by a newer version of Nstance. Only
	// Tenant, Group and Token are set then.
	Err error
}

// ReadRollouts reads what is stored about the rollouts of the shard's groups.
func (s *State) ReadRollouts(ctx context.Context) (_ []StoredRollout, err error) {
	defer explain(&err, "read rollouts")
	if err := s.checkShard(); err != nil {
		return nil, err
	}
	entries, err := s.options.Shard.List(ctx, keys.RolloutPrefix(s.options.ShardID))
	if err != nil {
		return nil, err
	}
	return load(ctx, s, len(entries), func(ctx context.Context, i int) (StoredRollout, error) {
		return s.readRollout(ctx, entries[i].Key)
	})
}

// UnverifiedRollouts is [State.ReadRollouts] without a check of the signatures. It leaves out documents that cannot be
// read. Anyone who can write to the bucket can forge the result.
func (s *State) UnverifiedRollouts(ctx context.Context) (all []record.Rollout, err error) {
	defer explain(&err, "read rollouts")
	entries, err := s.options.Shard.List(ctx, keys.RolloutPrefix(s.options.ShardID))
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		object, err := s.options.Shard.Get(ctx, entry.Key)
		if errors.Is(err, objstore.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if doc, err := unverified(record.Decode[record.Rollout])(object.Body); err == nil {
			all = append(all, doc)
		}
	}
	return all, nil
}

// ReadRollout reads what is stored about the rollouts of one group. All fields but Tenant and Group are zero if there
// is nothing.
func (s *State) ReadRollout(ctx context.Context, tenant, group string) (StoredRollout, error) {
	stored, err := s.readRollout(ctx, keys.Rollout(s.options.ShardID, tenant, group))
	if errors.Is(err, objstore.ErrNotFound) {
		return StoredRollout{Rollout: record.Rollout{Tenant: tenant, Group: group}}, nil
	}
	return stored, err
}

func (s *State) readRollout(ctx context.Context, key string) (StoredRollout, error) {
	before := s.options.Marks.Highest(key)
	object, err := s.options.Shard.Get(ctx, key)
	if err != nil {
		return StoredRollout{}, err
	}
	stored := StoredRollout{Token: object.Token}
	parsed, err := keys.Parse(key)
	if err == nil {
		var doc record.Rollout
		opened, failed := s.openDocument(ctx, key, object.Body, before)
		if err = failed; err == nil {
			doc, err = record.Decode[record.Rollout](opened.Content)
		}
		if err == nil {
			err = errors.Join(belongs("tenant", doc.Tenant, parsed.Tenant), belongs("group", doc.Group, parsed.Name))
		}
		if err == nil {
			stored.Rollout = doc
		}
	}
	if ctx.Err() != nil {
		return StoredRollout{}, ctx.Err()
	}
	if err != nil {
		stored.Tenant, stored.Group = parsed.Tenant, parsed.Name
		stored.Err = fmt.Errorf("read %s: %w", key, err)
	}
	return stored, nil
}

// WriteRollout writes what is stored about the rollouts of a group. It sets the document's schema, revision and trust.
// It returns objstore.ErrConflict unless the present version has the token of stored; "" means that there is none.
func (s *State) WriteRollout(ctx context.Context, stored StoredRollout) (_ StoredRollout, err error) {
	defer explain(&err, "write rollout of %s/%s", stored.Tenant, stored.Group)
	if err := s.checkShard(); err != nil {
		return StoredRollout{}, err
	}
	key := keys.Rollout(s.options.ShardID, stored.Tenant, stored.Group)
	stored.Schema, stored.Err = record.RolloutSchema, nil
	stored.Revision = max(stored.Revision, s.options.Marks.Highest(key)) + 1
	stored.Trust = s.Trust()
	text, err := stored.Encode()
	if err != nil {
		return StoredRollout{}, err
	}
	stored.Token, err = s.putSigned(ctx, s.options.Shard, key, stored.Revision, text, stored.Token)
	if err != nil {
		return StoredRollout{}, err
	}
	return stored, nil
}

// DeleteRollout deletes what is stored about the rollouts of a group. It is no error if there is nothing.
func (s *State) DeleteRollout(ctx context.Context, tenant, group string) (err error) {
	defer explain(&err, "delete rollout of %s/%s", tenant, group)
	return s.options.Shard.Delete(ctx, keys.Rollout(s.options.ShardID, tenant, group))
}
