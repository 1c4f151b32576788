package shardstatus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
)

func advice(err error) string {
	if errors.Is(err, objstore.ErrNotFound) {
		return "Create the shard with nstance_shard first, or correct the shard's name or the provider's storage."
	}
	return bucket.Advice(err)
}

// readStatus fills in the computed attributes from the bucket. It returns objstore.ErrNotFound if the shard has no
// configuration.
func (m *model) readStatus(ctx context.Context, b *bucket.Connection) error {
	name := m.Shard.ValueString()
	reader, err := b.Shard(ctx, "", name)
	if err != nil {
		return err
	}
	body, token, err := reader.ReadConfig(ctx, name)
	if err != nil {
		return err
	}
	written, problems := config.ParseStored("", body)
	if err := problems.Err(); err != nil {
		return fmt.Errorf("the configuration in the bucket is not valid: %w", err)
	}
	m.ClusterID, m.ConfigETag = types.StringValue(written.Cluster.ID), types.StringValue(string(token))
	m.Terminating = types.BoolValue(written.Terminating)
	state, err := b.Shard(ctx, written.Cluster.ID, name)
	if err != nil {
		return err
	}
	if err := m.leadership(ctx, state, name); err != nil {
		return err
	}
	inForce, err := m.inForce(ctx, state, written)
	if err != nil {
		return err
	}
	return m.count(ctx, state, inForce)
}

func (m *model) leadership(ctx context.Context, state *clusterstate.State, name string) error {
	lock, _, err := state.ReadLock(ctx, name)
	m.Applied = types.BoolValue(false)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if lock.AppliedETag != "" {
		m.AppliedETag = types.StringValue(lock.AppliedETag)
	}
	if lock.Released {
		return nil
	}
	m.Applied = types.BoolValue(lock.AppliedETag == m.ConfigETag.ValueString())
	m.Leader = &leaderModel{
		ID: types.StringValue(lock.LeaderID), Term: types.Int64Value(int64(lock.Term)),
		RenewedAt:    types.StringValue(lock.RenewedAt.UTC().Format(time.RFC3339)),
		OperatorAddr: types.StringValue(lock.Addresses.Operator), RegistrationAddr: types.StringValue(
			lock.Addresses.Registration), AgentAddr: types.StringValue(lock.Addresses.Agent),
	}
	return nil
}

// inForce returns the configuration that a leader applied last. If no leader has applied one, it returns `written`. It
// does not check the configuration's signature, because the data source has no key.
func (m *model) inForce(ctx context.Context, state *clusterstate.State, written *config.Shard) (*config.Shard, error) {
	m.Generation = types.Int64Value(0)
	applied, err := state.UnverifiedApplied(ctx)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return written, nil
	case err != nil:
		return nil, err
	}
	m.Generation = types.Int64Value(int64(applied.Revision))
	shard, problems := config.ParseApplied("", applied.Body)
	if shard == nil {
		return nil, fmt.Errorf("the configuration that was applied is not valid: %w", problems.Err())
	}
	return shard, nil
}

func (m *model) count(ctx context.Context, state *clusterstate.State, shard *config.Shard) error {
	dynamic, _, _, err := state.ReadGroups(ctx)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return err
	}
	type counts struct{ actual, registered, deleting int64 }
	byGroup := map[config.GroupKey]counts{}
	err = state.LoadInstances(ctx, func(rec record.Instance, _ objstore.Token) {
		key := config.GroupKey{Tenant: rec.Tenant, Group: rec.Group}
		n := byGroup[key]
		switch {
		case rec.OnDemand || rec.State == record.Deleted:
		case rec.State == record.Deleting:
			n.deleting++
		default:
			n.actual++
			if rec.State == record.Registered {
				n.registered++
			}
		}
		byGroup[key] = n
	})
	if err != nil {
		return err
	}
	merged, _ := shard.Merged(dynamic) // servers report the problems; a group with a problem is still in the result
	m.Groups = map[string]groupModel{}
	for key, group := range merged {
		n := byGroup[key]
		m.Groups[key.String()] = groupModel{
			Static: types.BoolValue(group.Static), Template: types.StringValue(group.Template),
			Size:       types.Int64Value(int64(group.Size)),
			ActualSize: types.Int64Value(n.actual), Registered: types.Int64Value(n.registered),
			Deleting: types.Int64Value(n.deleting),
		}
	}
	return nil
}
