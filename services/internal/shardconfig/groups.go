package shardconfig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/objstore"
)

var (
	// ErrNoGroup means that there is no such group (any more).
	ErrNoGroup = errors.New("no such group")
	// ErrGroupChanged means that the group is no longer what the caller expected.
	ErrGroupChanged = errors.New("group has changed")
	// ErrStaticGroup means that a static group cannot be removed through the API.
	ErrStaticGroup = errors.New("group is static: remove it from the shard's configuration")
)

// SupersededError means that a leader of a higher term wrote the dynamic groups: this one leads no more. It matches
// objstore.ErrConflict.
type SupersededError struct{ Term uint64 }

func (e *SupersededError) Error() string {
	return fmt.Sprintf("a leader of term %d wrote the dynamic groups", e.Term)
}

// Unwrap returns objstore.ErrConflict.
func (e *SupersededError) Unwrap() error { return objstore.ErrConflict }

// maxGroups is the largest document of dynamic groups that is written, in bytes: one that could not be read again would
// stop the shard.
const maxGroups = config.MaxSize / 2

// A RefusedError says which fields of a group are not acceptable, and why.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// Override returns the group's entry in the dynamic groups, if it has one.
func (m *Manager) Override(key config.GroupKey) (config.GroupSpec, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.groups.Get(key)
}

// Upsert creates or changes a group. change is given the group's own entry (the zero GroupSpec if it has none) and
// whether the group exists; it must only alter what it is given, since it is called again when another write came
// first, and give it new maps and lists instead of changing those there are. The result is the merged group, durable
// and in force. expected, unless empty, is the GroupETag that the group must have.
func (m *Manager) Upsert(ctx context.Context, key config.GroupKey, expected string,
	change func(spec *config.GroupSpec, exists bool) error) (config.Group, error) {
	m.changing.Lock()
	defer m.changing.Unlock()
	for {
		m.mu.Lock()
		shard, groups, token, merged := m.shard, m.groups, m.groupsToken, m.merged
		m.mu.Unlock()
		have, exists := merged[key]
		exists = exists && !have.Deleted
		if expected != "" && (!exists || GroupETag(have) != expected) {
			return config.Group{}, ErrGroupChanged
		}
		entry, overridden := groups.Get(key)
		spec := entry
		switch _, static := shard.Groups[key.Tenant][key.Group]; {
		case static && !spec.Deleted:
			// What else there is comes from when it was no static group; it is ignored, and ends here.
			spec = config.GroupSpec{Size: spec.Size, InstanceType: spec.InstanceType, Vars: spec.Vars}
		case spec.Deleted:
			// It is on its way out: what comes now is a new definition.
			spec = config.GroupSpec{}
		}
		if err := change(&spec, exists); err != nil {
			return config.Group{}, err
		}
		if (overridden || exists) && reflect.DeepEqual(spec, entry) {
			return have, nil
		}
		if err := config.CheckUpsert(shard, key, spec); err != nil {
			return config.Group{}, &RefusedError{err}
		}
		ok, err := m.write(ctx, with(groups, key, &spec), token)
		if err != nil {
			return config.Group{}, err
		}
		if ok {
			m.mu.Lock()
			group := m.merged[key]
			m.mu.Unlock()
			return group, nil
		}
	}
}

// Delete removes a dynamic group (it is scaled to zero and then forgotten) or the override of a static one, whose
// static values then hold again (restored).
func (m *Manager) Delete(ctx context.Context, key config.GroupKey, expected string) (restored bool, err error) {
	m.changing.Lock()
	defer m.changing.Unlock()
	for {
		m.mu.Lock()
		groups, token, merged := m.groups, m.groupsToken, m.merged
		m.mu.Unlock()
		have, exists := merged[key]
		if !exists {
			return false, ErrNoGroup
		}
		if expected != "" && GroupETag(have) != expected {
			return false, ErrGroupChanged
		}
		spec, overridden := groups.Get(key)
		var next config.Groups
		switch {
		case have.Static && !overridden:
			return false, ErrStaticGroup
		case have.Static:
			next = with(groups, key, nil)
		case spec.Deleted:
			return false, nil
		default:
			spec.Deleted = true
			next = with(groups, key, &spec)
		}
		ok, err := m.write(ctx, next, token)
		if err != nil {
			return false, err
		}
		if ok {
			return have.Static, nil
		}
	}
}

// Forget removes a deleted dynamic group for good; no error if there is none.
func (m *Manager) Forget(ctx context.Context, key config.GroupKey) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	for {
		m.mu.Lock()
		groups, token := m.groups, m.groupsToken
		m.mu.Unlock()
		spec, ok := groups.Get(key)
		if !ok || !spec.Deleted {
			return nil
		}
		done, err := m.write(ctx, with(groups, key, nil), token)
		if err != nil || done {
			return err
		}
	}
}

// write stores the groups and puts them in force. ok is false when another write came first: the groups were read anew,
// try again.
func (m *Manager) write(ctx context.Context, groups config.Groups, token objstore.Token) (ok bool, err error) {
	m.mu.Lock()
	term := m.term
	m.mu.Unlock()
	if groups.Term > term {
		return false, &SupersededError{groups.Term}
	}
	groups.Term = term
	groups.Revision++
	if size := len(config.EncodeGroups(groups)); size > maxGroups {
		return false, &RefusedError{fmt.Errorf("the shard's dynamic groups would be %d bytes, at most %d are allowed",
			size, maxGroups)}
	}
	newToken, err := m.store.PutGroups(ctx, groups, token)
	if err == nil {
		m.takeGroups(dynamic{groups, newToken})
		return true, nil
	}
	if !errors.Is(err, objstore.ErrConflict) {
		return false, fmt.Errorf("write the dynamic groups: %w", err)
	}
	fresh, readErr := m.readGroups(ctx)
	switch {
	case readErr != nil:
		return false, readErr
	case fresh.groups.Term > term:
		return false, &SupersededError{fresh.groups.Term}
	case fresh.token == token:
		return false, fmt.Errorf("write the dynamic groups: %w", err)
	}
	m.takeGroups(fresh)
	return false, nil
}

// takeGroups puts dynamic groups in force.
func (m *Manager) takeGroups(d dynamic) {
	m.mu.Lock()
	shard := m.shard
	m.mu.Unlock()
	merged, problems := shard.Merged(d.groups)
	for _, problem := range problems {
		m.log.Warn("dynamic groups", "problem", problem.String())
	}
	m.mu.Lock()
	changed := changedGroups(m.merged, merged)
	m.groups, m.groupsToken, m.merged = d.groups, d.token, merged
	applier := m.applier
	m.mu.Unlock()
	if applier != nil && len(changed) > 0 {
		applier.ApplyGroups(merged, changed)
	}
}

// changedGroups returns the keys of the groups that only one of two sets has, or that differ in them.
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

// with returns a copy of groups in which key's entry is spec, or gone where spec is nil.
func with(groups config.Groups, key config.GroupKey, spec *config.GroupSpec) config.Groups {
	groups.Tenants = maps.Clone(groups.Tenants)
	if groups.Tenants == nil {
		groups.Tenants = map[string]map[string]config.GroupSpec{}
	}
	tenant := maps.Clone(groups.Tenants[key.Tenant])
	if tenant == nil {
		tenant = map[string]config.GroupSpec{}
	}
	if spec != nil {
		tenant[key.Group] = *spec
	} else {
		delete(tenant, key.Group)
	}
	groups.Tenants[key.Tenant] = tenant
	if len(tenant) == 0 {
		delete(groups.Tenants, key.Tenant)
	}
	return groups
}
