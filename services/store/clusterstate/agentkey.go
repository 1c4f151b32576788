package clusterstate

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

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
	object, err := s.options.Cluster.Get(ctx, name)
	if err != nil {
		return fail(err)
	}
	have, err := record.DecodeAgentKey(object.Body)
	if err != nil {
		return fail(fmt.Errorf("%s: %w", name, damaged(err)))
	}
	if have.Instance == id {
		return nil
	}
	return &KeyTakenError{Holder: have.Instance, Shard: have.Shard}
}
