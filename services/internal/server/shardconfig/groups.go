package shardconfig

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

var (
	// ErrNoGroup means that the group does not exist.
	ErrNoGroup = errors.New("no such group")
	// ErrGroupChanged means that the group differs from what the caller expected.
	ErrGroupChanged = errors.New("group has changed")
	// ErrStaticGroup means that the API cannot remove a group of the shard's configuration.
	ErrStaticGroup = errors.New("group is static: remove it from the shard's configuration")
)

// SupersededError means that this server no longer leads, because a leader of a higher term has written the dynamic
// groups. It matches objstore.ErrConflict.
type SupersededError struct{ Term uint64 }

func (e *SupersededError) Error() string {
	return fmt.Sprintf("a leader of term %d wrote the dynamic groups", e.Term)
}

// Unwrap returns objstore.ErrConflict.
func (e *SupersededError) Unwrap() error { return objstore.ErrConflict }

// maxGroups is the maximum size in bytes of the document of dynamic groups that a server writes. If the document became
// too large for servers to read, the shard would stop.
const maxGroups = config.MaxSize / 2

// A RefusedError says which fields of a group are not acceptable, and why.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// etag returns the GroupETag of a group that is in force.
func (f inForce) etag(g config.Group) string {
	return GroupETag(g, f.shard.SettingsOf(g.GroupKey, f.groups.groups).JSON())
}

// Override returns the group's entry in the dynamic groups, and whether it has one.
func (m *Manager) Override(key config.GroupKey) (config.GroupSpec, bool) {
	return m.view().groups.groups.Get(key)
}

// Settings returns all settings of a group that are in force at a time. If the time is zero, the size of an operator
// does not end. See [config.Override].
func (m *Manager) Settings(key config.GroupKey, at time.Time) config.Settings {
	now := m.view()
	groups := now.groups.groups
	if entry, ok := groups.Get(key); ok && now.merged[key].Static && !entry.Deleted && !at.IsZero() {
		entry = now.shard.Current(key, entry, at)
		groups = with(groups, key, &entry)
	}
	return now.shard.SettingsOf(key, groups)
}

// Upsert creates or changes a group. It returns the merged group after the change is stored and in force. If expected
// is not empty, it must be the group's current GroupETag.
//
// The function change gets the group's dynamic entry, or a zero spec if there is none. exists reports whether the group
// exists. If another writer stores the groups first, Upsert calls change again. change may modify only the spec, and
// must assign new maps and lists instead of modifying the existing ones. For a static group, Upsert then records who
// set which field, and drops the values that have ended.
func (m *Manager) Upsert(ctx context.Context, key config.GroupKey, expected string, by config.Caller,
	change func(spec *config.GroupSpec, exists bool) error) (config.Group, error) {
	m.changing.Lock()
	defer m.changing.Unlock()
	for {
		now := m.view()
		have, exists := now.merged[key]
		exists = exists && !have.Deleted
		if expected != "" && (!exists || now.etag(have) != expected) {
			return config.Group{}, ErrGroupChanged
		}
		entry, overridden := now.groups.groups.Get(key)
		spec := entry
		_, static := now.shard.Groups[key.Tenant][key.Group]
		switch {
		case static && !spec.Deleted:
			// The entry may be older than the static group, and may have fields that an override cannot have. These
			// fields have no effect. Drop them.
			spec = now.shard.Current(key, spec, by.At)
		case spec.Deleted:
			// The group is still being deleted. The function change must define the group from an empty spec.
			spec = config.GroupSpec{}
		}
		before := spec
		if err := change(&spec, exists); err != nil {
			return config.Group{}, err
		}
		if static {
			spec = now.shard.Recorded(key, before, spec, by)
		}
		if (overridden || exists) && reflect.DeepEqual(spec, entry) || static && !overridden && spec.Empty() {
			return have, nil
		}
		if err := config.CheckUpsert(now.shard, key, spec); err != nil {
			return config.Group{}, &RefusedError{err}
		}
		stored := &spec
		if static && spec.Empty() {
			stored = nil
		}
		ok, err := m.write(ctx, with(now.groups.groups, key, stored), now.groups.token)
		if err != nil {
			return config.Group{}, err
		}
		if ok {
			return m.view().merged[key], nil
		}
	}
}

// Delete removes a dynamic group or the override of a static group. A dynamic group is scaled to zero and then dropped.
// A static group gets its static values back as [config.Shard.Reset] says, and restored is true. If expected is not
// empty, it must be the group's current GroupETag.
func (m *Manager) Delete(ctx context.Context, key config.GroupKey, expected string) (restored bool, err error) {
	m.changing.Lock()
	defer m.changing.Unlock()
	for {
		now := m.view()
		have, exists := now.merged[key]
		if !exists {
			return false, ErrNoGroup
		}
		if expected != "" && now.etag(have) != expected {
			return false, ErrGroupChanged
		}
		groups := now.groups.groups
		spec, overridden := groups.Get(key)
		var next config.Groups
		switch {
		case have.Static && spec.Deleted:
			next = with(groups, key, nil)
		case have.Static:
			reset := now.shard.Reset(key, spec)
			if !overridden || reflect.DeepEqual(reset, spec) {
				return false, ErrStaticGroup
			}
			if next = with(groups, key, &reset); reset.Empty() {
				next = with(groups, key, nil)
			}
		case spec.Deleted:
			return false, nil
		default:
			spec.Deleted = true
			next = with(groups, key, &spec)
		}
		ok, err := m.write(ctx, next, now.groups.token)
		if err != nil {
			return false, err
		}
		if ok {
			return have.Static, nil
		}
	}
}

// Forget removes the entry of a deleted dynamic group. It also succeeds if there is no entry.
func (m *Manager) Forget(ctx context.Context, key config.GroupKey) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	for {
		now := m.view().groups
		spec, ok := now.groups.Get(key)
		if !ok || !spec.Deleted {
			return nil
		}
		// First, so that a new group of the same name does not get it if this server ends now.
		if err := m.forgetRollout(ctx, key); err != nil {
			return err
		}
		done, err := m.write(ctx, with(now.groups, key, nil), now.token)
		if err != nil || done {
			return err
		}
	}
}

// DropEnded removes the values of operators that have ended because of the time or of the configuration in force. It
// does nothing if this server does not lead.
func (m *Manager) DropEnded(ctx context.Context, at time.Time) {
	m.changing.Lock()
	defer m.changing.Unlock()
	if m.view().applier != nil {
		m.dropEnded(ctx, at)
	}
}

// dropEnded removes the values of operators that the configuration in force has ended, or that have ended at a time. It
// tells the applier. Without it, the values would return with a later configuration that has the former values. If the
// groups cannot be written, the next change drops the values.
func (m *Manager) dropEnded(ctx context.Context, at time.Time) {
	for {
		now := m.view()
		groups, ended := now.groups.groups, map[config.GroupKey][]string{}
		for key, group := range now.merged {
			entry, ok := groups.Get(key)
			if !ok || !group.Static || entry.Deleted {
				continue
			}
			if current := now.shard.Current(key, entry, at); len(current.Overrides) < len(entry.Overrides) {
				ended[key] = now.shard.Ended(key, entry, at)
				if groups = with(groups, key, &current); current.Empty() {
					groups = with(groups, key, nil)
				}
			}
		}
		if len(ended) == 0 {
			return
		}
		ok, err := m.write(ctx, groups, now.groups.token)
		if err != nil {
			m.log.Warn("values of operators that have ended stay in the bucket", "error", err)
		}
		if ok && now.applier != nil {
			for key, lines := range ended {
				now.applier.OverridesEnded(key, lines)
			}
		}
		if ok || err != nil {
			return
		}
	}
}

// write stores the groups and puts them in force. If another writer stored the groups first, write reads them again and
// returns ok false, and the caller must retry.
func (m *Manager) write(ctx context.Context, groups config.Groups, token objstore.Token) (ok bool, err error) {
	term := m.view().term
	if groups.Term > term {
		return false, &SupersededError{groups.Term}
	}
	groups.Term = term
	groups.Revision++
	if size := len(config.EncodeGroups(groups)); size > maxGroups {
		return false, &RefusedError{fmt.Errorf("the shard's dynamic groups would be %d bytes, at most %d are allowed",
			size, maxGroups)}
	}
	if m.rehearses {
		m.takeGroups(dynamic{groups, token})
		return true, nil
	}
	newToken, err := m.bucket.WriteGroups(ctx, groups, token)
	if err == nil {
		m.takeGroups(dynamic{groups, newToken})
		return true, nil
	}
	if !errors.Is(err, objstore.ErrConflict) {
		return false, err
	}
	fresh, readErr := m.readGroups(ctx)
	switch {
	case readErr != nil:
		return false, readErr
	case fresh.groups.Term > term:
		return false, &SupersededError{fresh.groups.Term}
	case fresh.token == token:
		return false, err
	}
	m.takeGroups(fresh)
	return false, nil
}

// takeGroups puts dynamic groups in force.
func (m *Manager) takeGroups(d dynamic) { m.take(d, m.view().rollouts) }

// take puts dynamic groups and what is stored about rollouts in force, and passes the groups that it changes to the
// applier.
func (m *Manager) take(d dynamic, rollouts map[config.GroupKey]clusterstate.StoredRollout) {
	before := m.view()
	merged := m.merge(before.shard, d, rollouts)
	changed := changedGroups(before.merged, merged)
	m.update(func(f *inForce) { f.groups, f.rollouts, f.merged = d, rollouts, merged })
	if before.applier != nil && len(changed) > 0 {
		before.applier.ApplyGroups(merged, changed)
	}
}

// changedGroups returns the keys of the groups that were added, removed or changed.
func changedGroups(before, after map[config.GroupKey]config.Group) []config.GroupKey {
	var changed []config.GroupKey
	for key, group := range after {
		if have, ok := before[key]; !ok || !reflect.DeepEqual(have, group) {
			changed = append(changed, key)
		}
	}
	for key := range before {
		if _, ok := after[key]; !ok {
			changed = append(changed, key)
		}
	}
	return changed
}

// with returns a copy of groups in which the entry of key is spec. A nil spec removes the entry.
func with(groups config.Groups, key config.GroupKey, spec *config.GroupSpec) config.Groups {
	tenants, tenant := map[string]map[string]config.GroupSpec{}, map[string]config.GroupSpec{}
	maps.Copy(tenants, groups.Tenants)
	maps.Copy(tenant, groups.Tenants[key.Tenant])
	if spec != nil {
		tenant[key.Group] = *spec
	} else {
		delete(tenant, key.Group)
	}
	if tenants[key.Tenant] = tenant; len(tenant) == 0 {
		delete(tenants, key.Tenant)
	}
	groups.Tenants = tenants
	return groups
}

// InPlace reports whether a running server can replace the configuration `a` by `b` without a restart. Both must
// contain their defaults.
func InPlace(a, b *config.Shard) bool { return len(config.Restarting(a, b)) == 0 }

// GroupETag returns an identifier of a group's definition, for conditional changes. It covers every field that a call
// of the operator API can change. settings is the JSON of all settings of the group that are in force.
func GroupETag(g config.Group, settings string) string {
	digest := sha256.New()
	fmt.Fprintf(digest, "%s\x00%t\x00%t\x00%s\x00%s\x00%s\x00%s\x00%s", g.GroupKey, g.Static, g.Deleted, g.RuntimeHash,
		g.InfraHash, g.Removed, g.Protected, settings)
	return hex.EncodeToString(digest.Sum(nil)[:8])
}
