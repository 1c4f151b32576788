package shardconfig

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// loadRollouts reads what is stored about the rollouts of the groups. It deletes what belongs to groups that no longer
// exist, and writes again what was signed before the cluster's CA changed. A document that cannot be used counts as
// missing.
func (m *Manager) loadRollouts(ctx context.Context) (map[config.GroupKey]clusterstate.StoredRollout, error) {
	now, state := m.view(), m.signed()
	all, err := state.ReadRollouts(ctx)
	if err != nil {
		return nil, err
	}
	rollouts := map[config.GroupKey]clusterstate.StoredRollout{}
	for _, stored := range all {
		key := config.GroupKey{Tenant: stored.Tenant, Group: stored.Group}
		_, exists := now.merged[key]
		switch {
		case stored.Err != nil:
			m.log.Warn("what is stored about the rollouts of a group is not used", "tenant", key.Tenant, "group",
				key.Group, "error", stored.Err)
		case stored.Term > now.term:
			return nil, &SupersededError{stored.Term}
		case !exists:
			m.deleteRollout(ctx, key)
			continue
		case stored.Trust != state.Trust():
			stored.Term = now.term
			again, err := state.WriteRollout(ctx, stored)
			if err != nil {
				return nil, err
			}
			stored = again
		}
		rollouts[key] = stored
	}
	return rollouts, nil
}

// Halt records durably that the rollout of a group is halted. version is what the group runs. If that is the good
// configuration to which it had returned, Halt records that the good one failed too. Halt does nothing if the group
// runs another version meanwhile.
func (m *Manager) Halt(ctx context.Context, key config.GroupKey, version record.GroupVersion, reason string,
	at time.Time) error {
	return m.changeRollout(ctx, key, func(_ inForce, g config.Group, doc *record.Rollout) (bool, error) {
		switch halt := g.Halt; {
		case !g.Version(version.Image).Is(version):
			return false, nil
		case g.RolledBack():
			if !halt.GoodFailedAt.IsZero() {
				return false, nil
			}
			again := halt.Halted
			again.GoodFailedAt, again.GoodFailed = at.UTC(), reason
			doc.Halted = &again
		default:
			doc.Halted = &record.Halted{At: at.UTC(), Reason: reason, Failed: version}
		}
		return true, nil
	})
}

// KeepGood stores the present configuration of a group as the one to which a halt returns the group. version is that
// configuration, and images has the IDs of the shard's images. KeepGood does nothing if the group runs another version
// meanwhile.
func (m *Manager) KeepGood(ctx context.Context, key config.GroupKey, version record.GroupVersion,
	images map[string]string, at time.Time) error {
	return m.changeRollout(ctx, key, func(now inForce, g config.Group, doc *record.Rollout) (bool, error) {
		if g.RolledBack() || !g.Version(version.Image).Is(version) {
			return false, nil
		}
		chosen, _ := now.groups.groups.Get(key)
		doc.Good = &record.Good{At: at.UTC(), Version: version,
			Config: now.shard.GoodOf(g, images, chosen).Encode()}
		return true, nil
	})
}

// EndHalt ends the halt of a group's rollout, if there is one. A group that had returned to its good configuration gets
// its present one again.
func (m *Manager) EndHalt(ctx context.Context, key config.GroupKey) error {
	return m.changeRollout(ctx, key, func(_ inForce, _ config.Group, doc *record.Rollout) (bool, error) {
		changed := doc.Halted != nil
		doc.Halted = nil
		return changed, nil
	})
}

// changeRollout changes what is stored about the rollouts of a group, and puts it in force. The function change returns
// whether it has changed doc. If another server has written the document first, changeRollout calls change again.
func (m *Manager) changeRollout(ctx context.Context, key config.GroupKey,
	change func(now inForce, g config.Group, doc *record.Rollout) (bool, error)) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	return m.writeRollout(ctx, key, change)
}

// writeRollout is changeRollout for a caller that holds changing.
func (m *Manager) writeRollout(ctx context.Context, key config.GroupKey,
	change func(now inForce, g config.Group, doc *record.Rollout) (bool, error)) error {
	for {
		now, state := m.view(), m.signed()
		g, exists := now.merged[key]
		if !exists {
			return nil
		}
		next := now.rollouts[key]
		next.Term, next.Tenant, next.Group = now.term, key.Tenant, key.Group
		changed, err := change(now, g, &next.Rollout)
		if err != nil || !changed {
			return err
		}
		if m.rehearses {
			m.takeRollout(key, next)
			return nil
		}
		written, err := state.WriteRollout(ctx, next)
		if err == nil {
			m.takeRollout(key, written)
			return nil
		}
		if !errors.Is(err, objstore.ErrConflict) {
			return err
		}
		fresh, readErr := state.ReadRollout(ctx, key.Tenant, key.Group)
		switch {
		case readErr != nil:
			return readErr
		case fresh.Term > now.term:
			return &SupersededError{fresh.Term}
		case fresh.Token == next.Token:
			return err
		}
		m.takeRollout(key, fresh)
	}
}

// takeRollout puts in force what is stored about the rollouts of a group.
func (m *Manager) takeRollout(key config.GroupKey, stored clusterstate.StoredRollout) {
	before := m.view()
	rollouts := map[config.GroupKey]clusterstate.StoredRollout{}
	maps.Copy(rollouts, before.rollouts)
	if rollouts[key] = stored; stored.Token == "" {
		delete(rollouts, key)
	}
	m.take(before.groups, rollouts)
}

// forgetRollout removes what is stored about the rollouts of a group that is forgotten. The caller holds changing.
func (m *Manager) forgetRollout(ctx context.Context, key config.GroupKey) error {
	if _, ok := m.view().rollouts[key]; !ok {
		return nil
	}
	err := m.writeRollout(ctx, key, func(_ inForce, _ config.Group, doc *record.Rollout) (bool, error) {
		changed := doc.Halted != nil || doc.Good != nil
		doc.Halted, doc.Good = nil, nil
		return changed, nil
	})
	if err != nil {
		return err
	}
	m.deleteRollout(ctx, key)
	m.takeRollout(key, clusterstate.StoredRollout{})
	return nil
}

// deleteRollout deletes the document about the rollouts of a group that does not exist. Nothing depends on it, so an
// error is only logged: servers that were set up by an earlier version of Nstance may not delete such documents.
func (m *Manager) deleteRollout(ctx context.Context, key config.GroupKey) {
	if err := m.signed().DeleteRollout(ctx, key.Tenant, key.Group); err != nil {
		m.log.Info("what is stored about the rollouts of a former group stays", "tenant", key.Tenant, "group",
			key.Group, "error", err)
	}
}
