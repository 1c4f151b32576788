package shards

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

const (
	// keepDeleted is the time for which a deleted instance is remembered. maxDeleted limits the number of such
	// instances.
	keepDeleted = 15 * time.Minute
	maxDeleted  = 10000

	// settleReserved is how long a reserved instance stays in the mirror if a new leader does not know it. The new
	// leader may find the reservation a little later.
	settleReserved = 2 * time.Minute

	deleted  = "deleted"
	reserved = "reserved"
)

// mirror is the state that a shard's leader reports. The changes are numbered, and each entry has the number of its
// last change. So the answer to a call that began before a change cannot overwrite that change. A stored message is
// never modified, only replaced.
type mirror struct {
	id  string
	now func() time.Time

	mu        sync.Mutex
	number    uint64
	groups    map[string]entry[*nstancev1.GroupStatus]
	instances map[string]instanceEntry
	drains    map[string]Drain

	zone, region string
}

type entry[M proto.Message] struct {
	message M
	number  uint64
}

type instanceEntry struct {
	entry[*nstancev1.InstanceStatus]
	// deletedAt is when the instance was first seen deleted, zero if it is not deleted. guessed: no leader has reported
	// it as deleted. It counts as deleted because the leader does not know it.
	deletedAt time.Time
	guessed   bool
	// missingSince is when it was first seen that a leader does not know this reserved instance. The instance may still
	// appear.
	missingSince time.Time
}

func newMirror(id string, now func() time.Time) *mirror {
	return &mirror{id: id, now: now, groups: map[string]entry[*nstancev1.GroupStatus]{},
		instances: map[string]instanceEntry{}, drains: map[string]Drain{}}
}

// ID implements [Shard].
func (m *mirror) ID() string { return m.id }

// mark returns the number of the latest change. The caller passes this number to a later update (parameter since),
// which does not overwrite changes with higher numbers.
func (m *mirror) mark() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.number
}

// Group implements [Shard].
func (m *mirror) Group(name string) (*nstancev1.GroupStatus, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.groups[name]
	return e.message, ok
}

// Groups implements [Shard].
func (m *mirror) Groups() []*nstancev1.GroupStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*nstancev1.GroupStatus, 0, len(m.groups))
	for _, name := range slices.Sorted(maps.Keys(m.groups)) {
		out = append(out, m.groups[name].message)
	}
	return out
}

// Instance implements [Shard].
func (m *mirror) Instance(id string) (*nstancev1.InstanceStatus, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.instances[id]
	return e.message, ok
}

// Instances implements [Shard].
func (m *mirror) Instances(group string) []*nstancev1.InstanceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*nstancev1.InstanceStatus
	for _, e := range m.instances {
		if i := e.message; i.GetState() != deleted && (group == "" || i.GetGroup() == group) {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b *nstancev1.InstanceStatus) int {
		return strings.Compare(a.GetInstanceId(), b.GetInstanceId())
	})
	return out
}

// Drains implements [Shard].
func (m *mirror) Drains() []Drain {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Drain, 0, len(m.drains))
	for _, id := range slices.Sorted(maps.Keys(m.drains)) {
		out = append(out, m.drains[id])
	}
	return out
}

// counts returns the number of instances of each group, for metrics. It includes groups without instances.
func (m *mirror) counts() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]int{}
	for name := range m.groups {
		out[name] = 0
	}
	for _, e := range m.instances {
		if e.message.GetState() != deleted {
			out[e.message.GetGroup()]++
		}
	}
	return out
}

// setGroup stores a group that a call has returned. since is the number that mark returned before the call. A change of
// the group with a higher number takes precedence.
func (m *mirror) setGroup(g *nstancev1.GroupStatus, since uint64) []Change {
	if g.GetGroup() == "" {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	have, ok := m.groups[g.GetGroup()]
	if have.number > since {
		return nil
	}
	m.number++
	m.groups[g.GetGroup()] = entry[*nstancev1.GroupStatus]{g, m.number}
	if ok && proto.Equal(have.message, g) {
		return nil
	}
	return []Change{m.groupChange(g.GetGroup())}
}

// latest is higher than every other mark, so an update with latest is always applied.
const latest = ^uint64(0)

func (m *mirror) removeGroup(name string) []Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.groups[name]; !ok {
		return nil
	}
	m.number++
	delete(m.groups, name)
	return []Change{m.groupChange(name)}
}

// replaceGroups replaces all groups.
func (m *mirror) replaceGroups(all map[string]*nstancev1.GroupStatus) (changes []Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.number++
	for name := range m.groups {
		if _, ok := all[name]; !ok {
			delete(m.groups, name)
			changes = append(changes, m.groupChange(name))
		}
	}
	for name, g := range all {
		if have, ok := m.groups[name]; !ok || !proto.Equal(have.message, g) {
			changes = append(changes, m.groupChange(name))
		}
		m.groups[name] = entry[*nstancev1.GroupStatus]{g, m.number}
	}
	return changes
}

// markDeleting marks a group as being deleted after a DeleteGroup call.
func (m *mirror) markDeleting(name string, since uint64) []Change {
	m.mu.Lock()
	have, ok := m.groups[name]
	m.mu.Unlock()
	if !ok || have.message.GetDeleting() {
		return nil
	}
	g := proto.CloneOf(have.message)
	g.Deleting = true
	return m.setGroup(g, since)
}

// setInstance stores an instance that a call has returned. since is the number that mark returned before the call. An
// instance that was reported as deleted stays deleted, because IDs are not reused.
func (m *mirror) setInstance(i *nstancev1.InstanceStatus, since uint64) []Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.number++
	return m.setInstanceLocked(i, since)
}

// setInstanceLocked does the same as setInstance, but takes no new change number. The caller must hold mu.
func (m *mirror) setInstanceLocked(i *nstancev1.InstanceStatus, since uint64) []Change {
	id := i.GetInstanceId()
	have, ok := m.instances[id]
	switch {
	case id == "", have.number > since, !have.deletedAt.IsZero() && !have.guessed:
		return nil
	}
	var deletedAt time.Time
	if i.GetState() == deleted {
		if ok && i.GetGroup() == "" { // a leader no longer knows the group of an old instance
			i = proto.CloneOf(i)
			i.Group = have.message.GetGroup()
		}
		deletedAt = m.now()
		delete(m.drains, id)
	} else if d, ok := m.drains[id]; ok {
		d.Instance = i
		m.drains[id] = d
	}
	if m.zone == "" && i.GetState() != deleted {
		m.zone, m.region = i.GetZone(), i.GetRegion()
	}
	m.instances[id] = instanceEntry{entry: entry[*nstancev1.InstanceStatus]{i, m.number}, deletedAt: deletedAt}
	if ok && equalIgnoringMeasurements(have.message, i) {
		return nil
	}
	return []Change{m.instanceChange(InstanceChanged, i)}
}

// equalIgnoringMeasurements reports whether two messages describe the same state of an instance.
func equalIgnoringMeasurements(a, b *nstancev1.InstanceStatus) bool {
	quiet := func(i *nstancev1.InstanceStatus) *nstancev1.InstanceStatus {
		i = proto.CloneOf(i)
		i.Metrics, i.LastReportAt = nil, nil
		return i
	}
	return proto.Equal(quiet(a), quiet(b))
}

// applyList stores a complete list of the live instances. since is the number that mark returned before the list was
// requested. missing are the instances that the mirror has and the list lacks. The caller must ask the leader for each
// of them and pass the answer to setInstance or markUnknown.
func (m *mirror) applyList(all []*nstancev1.InstanceStatus, since uint64) (changes []Change, missing []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.number++
	there := make(map[string]bool, len(all))
	for _, i := range all {
		there[i.GetInstanceId()] = true
		changes = append(changes, m.setInstanceLocked(i, since)...)
	}
	for id, have := range m.instances {
		if !there[id] && have.number <= since && have.message.GetState() != deleted {
			missing = append(missing, id)
		}
	}
	slices.Sort(missing)
	return append(changes, m.dropOldDeleted()...), missing
}

// markUnknown marks an instance as deleted, because the leader does not know it. A reserved instance is kept for
// settleReserved: a new leader learns of its predecessor's reservations only from the provider.
func (m *mirror) markUnknown(id string, since uint64) []Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	have, ok := m.instances[id]
	if !ok || have.number > since || have.message.GetState() == deleted {
		return nil
	}
	if have.message.GetState() == reserved {
		if have.missingSince.IsZero() {
			have.missingSince = m.now()
			m.instances[id] = have
		}
		if m.now().Sub(have.missingSince) < settleReserved {
			return nil
		}
	}
	m.number++
	i := proto.CloneOf(have.message)
	i.State, i.DeletedAt = deleted, timestamppb.New(m.now())
	changes := m.setInstanceLocked(i, since)
	have = m.instances[id]
	have.guessed = true
	m.instances[id] = have
	return changes
}

// dropOldDeleted drops the instances that were deleted longer ago than keepDeleted. If more than maxDeleted remain, it
// also drops the oldest.
func (m *mirror) dropOldDeleted() (changes []Change) {
	var gone []instanceEntry
	for _, e := range m.instances {
		if !e.deletedAt.IsZero() {
			gone = append(gone, e)
		}
	}
	slices.SortFunc(gone, func(a, b instanceEntry) int { return a.deletedAt.Compare(b.deletedAt) })
	limit := m.now().Add(-keepDeleted)
	for i, e := range gone {
		if len(gone)-i > maxDeleted || e.deletedAt.Before(limit) {
			changes = append(changes, m.instanceChange(InstanceChanged, e.message))
			delete(m.instances, e.message.GetInstanceId())
		}
	}
	return changes
}

// setDrain stores an announced drain.
func (m *mirror) setDrain(d Drain) []Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.setDrainLocked(d)
}

func (m *mirror) setDrainLocked(d Drain) []Change {
	id := d.Instance.GetInstanceId()
	have, ok := m.drains[id]
	if m.instances[id].message.GetState() == deleted {
		return nil
	}
	m.drains[id] = d
	if ok && have.Announced.Equal(d.Announced) && have.Reason == d.Reason {
		return nil
	}
	return []Change{m.instanceChange(DrainPending, d.Instance)}
}

// endDrain removes a drain that was acknowledged or is no longer needed.
func (m *mirror) endDrain(id string) []Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.drains[id]
	if !ok {
		return nil
	}
	delete(m.drains, id)
	return []Change{m.instanceChange(InstanceChanged, d.Instance)}
}

// replaceDrains replaces all pending drains.
func (m *mirror) replaceDrains(all map[string]Drain) (changes []Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, d := range m.drains {
		if _, ok := all[id]; !ok {
			delete(m.drains, id)
			changes = append(changes, m.instanceChange(InstanceChanged, d.Instance))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		changes = append(changes, m.setDrainLocked(all[id])...)
	}
	return changes
}

func (m *mirror) location() (zone, region string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.zone, m.region
}

func (m *mirror) groupChange(name string) Change {
	return Change{Shard: m.id, Kind: GroupChanged, Group: name}
}

func (m *mirror) instanceChange(kind ChangeKind, i *nstancev1.InstanceStatus) Change {
	return Change{Shard: m.id, Kind: kind, Group: i.GetGroup(), Instance: i.GetInstanceId()}
}
