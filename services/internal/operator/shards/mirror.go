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
	// keepDeleted is for how long a deleted instance is remembered; maxDeleted bounds how many are.
	keepDeleted = 15 * time.Minute
	maxDeleted  = 10000

	// settleReserved is for how long a leader may not know an instance that was reserved last.
	settleReserved = 2 * time.Minute

	deleted  = "deleted"
	reserved = "reserved"
)

// mirror is what a shard's leader says. Every entry has the number of the last change, so that an answer that was on
// its way meanwhile does not undo newer news. Messages in it are never changed, only replaced.
type mirror struct {
	id  string
	now func() time.Time

	mu        sync.Mutex
	number    uint64
	groups    map[string]entry[*nstancev1.GroupStatus]
	instances map[string]entry[*nstancev1.InstanceStatus]
	drains    map[string]Drain
	// gone is when an instance was first seen deleted. Of those in guessed nobody has said so: the leader does not know
	// them.
	gone    map[string]time.Time
	guessed map[string]bool
	// missed is since when a leader has not known an instance that may yet turn up.
	missed       map[string]time.Time
	zone, region string
}

type entry[M proto.Message] struct {
	message M
	number  uint64
}

func newMirror(id string, now func() time.Time) *mirror {
	return &mirror{id: id, now: now, groups: map[string]entry[*nstancev1.GroupStatus]{},
		instances: map[string]entry[*nstancev1.InstanceStatus]{},
		drains:    map[string]Drain{}, gone: map[string]time.Time{}, guessed: map[string]bool{},
		missed: map[string]time.Time{}}
}

// mark returns a number to hand to [mirror.answer] and the like: what is newer than it is not replaced.
func (m *mirror) mark() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.number
}

func (m *mirror) group(name string) (*nstancev1.GroupStatus, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.groups[name]
	return e.message, ok
}

func (m *mirror) allGroups() []*nstancev1.GroupStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*nstancev1.GroupStatus, 0, len(m.groups))
	for _, name := range slices.Sorted(maps.Keys(m.groups)) {
		out = append(out, m.groups[name].message)
	}
	return out
}

func (m *mirror) instance(id string) (*nstancev1.InstanceStatus, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.instances[id]
	return e.message, ok
}

func (m *mirror) allInstances(group string) []*nstancev1.InstanceStatus {
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

func (m *mirror) allDrains() []Drain {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Drain, 0, len(m.drains))
	for _, id := range slices.Sorted(maps.Keys(m.drains)) {
		out = append(out, m.drains[id])
	}
	return out
}

// counts returns how many instances there are by group, for metrics. A group without any has a zero.
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

// setGroup takes a group as it is now. since is the mark of the call that it answers; news that came after it wins.
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

// latest is a mark that nothing is newer than.
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

// replaceGroups takes all groups there are.
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

// deletingGroup takes over that a group was asked to go.
func (m *mirror) deletingGroup(name string, since uint64) []Change {
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

// setInstance takes an instance as it is now; since as in setGroup. One that was said to be deleted stays so: IDs are
// used once.
func (m *mirror) setInstance(i *nstancev1.InstanceStatus, since uint64) []Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.number++
	return m.takeInstance(i, since)
}

// takeInstance is setInstance with mu held, under the number that m has.
func (m *mirror) takeInstance(i *nstancev1.InstanceStatus, since uint64) []Change {
	id := i.GetInstanceId()
	have, ok := m.instances[id]
	switch {
	case id == "", have.number > since, ok && have.message.GetState() == deleted && !m.guessed[id]:
		return nil
	}
	delete(m.guessed, id)
	delete(m.missed, id)
	delete(m.gone, id)
	if i.GetState() == deleted {
		if ok && i.GetGroup() == "" { // all that a leader knows of one that nobody remembers
			i = proto.CloneOf(i)
			i.Group = have.message.GetGroup()
		}
		m.gone[id] = m.now()
		delete(m.drains, id)
	} else if d, ok := m.drains[id]; ok {
		d.Instance = i
		m.drains[id] = d
	}
	if m.zone == "" && i.GetState() != deleted {
		m.zone, m.region = i.GetZone(), i.GetRegion()
	}
	m.instances[id] = entry[*nstancev1.InstanceStatus]{i, m.number}
	if ok && same(have.message, i) {
		return nil
	}
	return []Change{m.instanceChange(InstanceChanged, i)}
}

// same says whether two messages tell the same of an instance; measurements do not count.
func same(a, b *nstancev1.InstanceStatus) bool {
	quiet := func(i *nstancev1.InstanceStatus) *nstancev1.InstanceStatus {
		i = proto.CloneOf(i)
		i.Metrics, i.LastReportAt = nil, nil
		return i
	}
	return proto.Equal(quiet(a), quiet(b))
}

// listInstances takes all live instances, as they were listed after the mark since. It returns those that a leader
// named once and now does not: what has become of them has to be asked, and the answer given to setInstance or lose.
func (m *mirror) listInstances(all []*nstancev1.InstanceStatus, since uint64) (changes []Change, missing []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.number++
	there := make(map[string]bool, len(all))
	for _, i := range all {
		there[i.GetInstanceId()] = true
		changes = append(changes, m.takeInstance(i, since)...)
	}
	for id, have := range m.instances {
		if !there[id] && have.number <= since && have.message.GetState() != deleted {
			missing = append(missing, id)
		}
	}
	slices.Sort(missing)
	return append(changes, m.forget()...), missing
}

// lose takes over that the leader does not know an instance. It is deleted, unless it was reserved last: a new leader
// does not know of a reservation of its predecessor's until it has asked the provider about it.
func (m *mirror) lose(id string, since uint64) []Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	have, ok := m.instances[id]
	if !ok || have.number > since || have.message.GetState() == deleted {
		return nil
	}
	if have.message.GetState() == reserved {
		at, ok := m.missed[id]
		if !ok {
			m.missed[id] = m.now()
		}
		if !ok || m.now().Sub(at) < settleReserved {
			return nil
		}
	}
	m.number++
	i := proto.CloneOf(have.message)
	i.State, i.DeletedAt = deleted, timestamppb.New(m.now())
	changes := m.takeInstance(i, since)
	m.guessed[id] = true
	return changes
}

// forget drops the deleted instances that were remembered for long enough.
func (m *mirror) forget() (changes []Change) {
	limit := m.now().Add(-keepDeleted)
	drop := func(id string) {
		changes = append(changes, m.instanceChange(InstanceChanged, m.instances[id].message))
		delete(m.instances, id)
		delete(m.gone, id)
		delete(m.guessed, id)
	}
	for id, at := range m.gone {
		if at.Before(limit) {
			drop(id)
		}
	}
	if len(m.gone) > maxDeleted {
		oldest := slices.SortedFunc(maps.Keys(m.gone), func(a, b string) int { return m.gone[a].Compare(m.gone[b]) })
		for _, id := range oldest[:len(oldest)-maxDeleted] {
			drop(id)
		}
	}
	return changes
}

// setDrain takes a drain that was announced.
func (m *mirror) setDrain(d Drain) []Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.takeDrain(d)
}

func (m *mirror) takeDrain(d Drain) []Change {
	id := d.Instance.GetInstanceId()
	have, ok := m.drains[id]
	if m.instances[id].message.GetState() == deleted {
		return nil
	}
	m.drains[id] = d
	if ok && have.Deadline.Equal(d.Deadline) && have.Reason == d.Reason {
		return nil
	}
	return []Change{m.instanceChange(DrainPending, d.Instance)}
}

// endDrain forgets a drain: it was acknowledged, or nobody waits for it any more.
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

// replaceDrains takes all drains that are pending.
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
		changes = append(changes, m.takeDrain(all[id])...)
	}
	return changes
}

func (m *mirror) place() (zone, region string) {
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
