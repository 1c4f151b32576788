package clusterstate

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// PutInstance writes one version of an instance record and returns the new token. The caller sets its revision, term
// and writer. The write succeeds only if the record's present version has the given token; "" means that there is no
// record. Otherwise the error is a [*SupersededError] with the present version. objstore.ErrIndeterminate means that
// ctx ended first: repeat the call with the same arguments to learn the result.
func (s *State) PutInstance(ctx context.Context, rec record.Instance, token objstore.Token) (newToken objstore.Token,
	err error) {
	defer explain(&err, "write instance %s", rec.ID)
	if err := s.ours(rec, rec.Tenant, rec.ID); err != nil {
		return "", err
	}
	body, err := rec.Encode()
	if err != nil {
		return "", err
	}
	key := keys.Instance(s.options.ShardID, rec.Tenant, rec.ID.Storage())
	newToken, err = s.put(ctx, s.options.Shard, key, body, token)
	return newToken, superseded(err, rec.ID, func() (record.Instance, objstore.Token, error) {
		return s.GetInstance(ctx, rec.Tenant, rec.ID)
	})
}

// GetInstance reads one record. It returns objstore.ErrNotFound if there is none.
func (s *State) GetInstance(ctx context.Context, tenant string, id ident.ID) (rec record.Instance,
	token objstore.Token, err error) {
	defer explain(&err, "read instance %s", id)
	return read(ctx, s.options.Shard, keys.Instance(s.options.ShardID, tenant, id.Storage()),
		checked(record.Decode[record.Instance], func(rec record.Instance) error { return s.ours(rec, tenant, id) }))
}

func (s *State) ours(rec record.Instance, tenant string, id ident.ID) error {
	return errors.Join(
		belongs("cluster", rec.Cluster, s.options.ClusterID), belongs("shard", rec.Shard, s.options.ShardID),
		belongs("tenant", rec.Tenant, tenant), belongs("id", rec.ID.String(), id.String()))
}

// DeleteInstance removes a tombstone after its retention. It is no error if the tombstone is gone already. The caller
// must have read the record and found that it is a tombstone. A tombstone never changes again.
func (s *State) DeleteInstance(ctx context.Context, tenant string, id ident.ID) (err error) {
	defer explain(&err, "delete instance %s", id)
	return s.options.Shard.Delete(ctx, keys.Instance(s.options.ShardID, tenant, id.Storage()))
}

// InstanceKey names one version of an instance record of a shard.
type InstanceKey struct {
	Shard, Tenant string
	ID            ident.ID
	Token         objstore.Token
}

// ListInstances lists the records of the shard, sorted by tenant and age, without reading them.
func (s *State) ListInstances(ctx context.Context) (_ []InstanceKey, err error) {
	defer explain(&err, "list instances")
	if err := s.checkShard(); err != nil {
		return nil, err
	}
	return listInstances(ctx, s.options.Shard, keys.InstancePrefix(s.options.ShardID))
}

// ListAllInstances lists the records of every shard. It lists the records in the cluster's bucket first, then those
// that only the bucket of this State's shard contains.
func (s *State) ListAllInstances(ctx context.Context) ([]InstanceKey, error) {
	var all []InstanceKey
	seen := map[ident.ID]bool{} // the buckets may be the same
	for _, store := range []objstore.Store{s.options.Cluster, s.options.Shard} {
		if store == nil {
			continue
		}
		found, err := listInstances(ctx, store, keys.ShardsPrefix())
		if err != nil {
			return nil, fmt.Errorf("list instances of all shards: %w", err)
		}
		for _, one := range found {
			if !seen[one.ID] {
				all = append(all, one)
			}
			seen[one.ID] = true
		}
	}
	return all, nil
}

func listInstances(ctx context.Context, store objstore.Store, prefix string) ([]InstanceKey, error) {
	entries, err := store.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	var found []InstanceKey
	var errs []error
	for _, entry := range entries {
		key, err := keys.Parse(entry.Key)
		if err != nil {
			errs = append(errs, err) // skipping it could hide an instance
			continue
		}
		if key.Kind != keys.KindInstance {
			continue
		}
		id, err := ident.ParseStorageID(key.ID)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found = append(found, InstanceKey{key.Shard, key.Tenant, id, entry.Token})
	}
	if err := few(errs); err != nil {
		return nil, err
	}
	return found, nil
}

// LoadInstances reads every instance record of the shard, many at a time. Then it calls the function "take" for each
// record, one after the other, sorted by tenant and age. LoadInstances fails if one record cannot be read, because
// decisions need knowledge of all instances.
func (s *State) LoadInstances(ctx context.Context, take func(record.Instance, objstore.Token)) error {
	return s.LoadUnseen(ctx, func(ident.ID, objstore.Token) bool { return false }, take)
}

// LoadUnseen is like LoadInstances, but skips each record for whose listed version the function "seen" returns true. It
// calls both functions from the caller's goroutine. If every record is skipped, it costs one request for each thousand
// records.
func (s *State) LoadUnseen(ctx context.Context, seen func(ident.ID, objstore.Token) bool,
	take func(record.Instance, objstore.Token)) (err error) {
	defer explain(&err, "load instances")
	found, err := s.ListInstances(ctx)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(k InstanceKey) bool { return seen(k.ID, k.Token) })
	type stored struct {
		rec   record.Instance
		token objstore.Token
	}
	all, err := load(ctx, s, len(found), func(ctx context.Context, i int) (stored, error) {
		rec, token, err := s.GetInstance(ctx, found[i].Tenant, found[i].ID)
		return stored{rec, token}, err
	})
	for _, one := range all {
		take(one.rec, one.token)
	}
	return err
}

// KeyTakenError means that a public key belongs to another instance.
type KeyTakenError struct {
	// Holder is the instance to which the key belongs, and Shard is its shard.
	Holder ident.ID
	Shard  string
}

func (e *KeyTakenError) Error() string {
	return fmt.Sprintf("is the key of instance %s in shard %s, so this disk or image was made from the disk of that "+
		"VM: make images without the content of /opt/nstance-agent", e.Holder, e.Shard)
}

// TakeKey records for ever that a public key belongs to an instance of the shard. It returns a [*KeyTakenError] if the
// key belongs to another instance of the cluster. The same instance may take its key again.
func (s *State) TakeKey(ctx context.Context, key ed25519.PublicKey, tenant string, id ident.ID) error {
	fail := func(err error) error { return fmt.Errorf("record the key of instance %s: %w", id, err) }
	body, err := record.AgentKey{Schema: record.AgentKeySchema, Cluster: s.options.ClusterID, Shard: s.options.ShardID,
		Tenant: tenant, Instance: id}.Encode()
	if err != nil {
		return fail(err)
	}
	name := keys.AgentKey(key)
	_, err = s.put(ctx, s.options.Cluster, name, body, "")
	if !errors.Is(err, objstore.ErrConflict) {
		if err != nil {
			return fail(err)
		}
		return nil
	}
	have, _, err := read(ctx, s.options.Cluster, name, orDamaged(record.Decode[record.AgentKey]))
	if err != nil {
		return fail(fmt.Errorf("%s: %w", name, err))
	}
	if have.Instance == id {
		return nil
	}
	return &KeyTakenError{Holder: have.Instance, Shard: have.Shard}
}
