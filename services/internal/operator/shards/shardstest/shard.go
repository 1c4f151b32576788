package shardstest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// Shard is a fake shard with its leader.
type Shard struct {
	id  string
	set *Set

	mu         sync.Mutex
	state      shards.State
	groups     map[string]*nstancev1.GroupStatus
	static     map[string]*nstancev1.GroupStatus // static groups without their overrides
	own        map[string]config.GroupSpec       // settings of dynamic groups and overrides of static groups
	instances  map[string]*nstancev1.InstanceStatus
	drains     map[string]shards.Drain
	fail       func(method string) error
	calls      []string
	created    int
	holdDrains bool
	// decremented are the instances whose deletion also lowered their group's size.
	decremented map[string]bool
	types       map[string]*nstancev1.GetInstanceTypeResponse
}

// Start is the creation time of the first instance. Each later instance is created one second after the one before it.
var Start = time.Date(2026, 7, 28, 10, 0, 0, 0, time.UTC)

// SetState changes the state and sends a notification.
func (s *Shard) SetState(change func(*shards.State)) {
	s.mu.Lock()
	change(&s.state)
	s.mu.Unlock()
	s.set.notifyAll(shards.Change{Shard: s.id, Kind: shards.ShardState})
}

// Fail sets a hook. A call fails if the hook returns an error for the call's method, such as "UpsertGroup". Fail(nil)
// removes the hook.
func (s *Shard) Fail(fn func(method string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fn
}

// HoldDrains makes deletions wait for AcknowledgeDrained, as drain_timeout does. Without HoldDrains, deletions end
// immediately.
func (s *Shard) HoldDrains() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holdDrains = true
}

// SetType adds an instance type to those that the shard's provider knows: m5.large and c5.xlarge.
func (s *Shard) SetType(name string, cpus uint32, memoryMiB uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.types[name] = &nstancev1.GetInstanceTypeResponse{Cpus: cpus, MemoryMib: memoryMiB}
}

// Calls returns the modifying calls since the last call of Calls, as "{method} {group or instance} {size}".
func (s *Shard) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// SetGroup creates a group and its instances, as the configuration file (static) or another client (dynamic) does. It
// keeps the override of a static group.
func (s *Shard) SetGroup(g *nstancev1.GroupStatus) {
	s.mu.Lock()
	g = proto.CloneOf(g)
	if g.Kind == "" {
		g.Kind = Kind
	}
	s.groups[g.GetGroup()] = g
	if g.GetIsStatic() {
		s.static[g.GetGroup()] = g
	} else {
		delete(s.static, g.GetGroup())
		s.own[g.GetGroup()] = specOf(g)
	}
	g = s.merge(g.GetGroup())
	changes := s.reconcile(g)
	s.mu.Unlock()
	s.set.notifyAll(changes...)
}

// specOf returns the group that has a status.
func specOf(g *nstancev1.GroupStatus) config.GroupSpec {
	size := int(g.GetSize())
	spec := config.ReadSettings(g.GetMergedJson())
	spec.Size = &size
	return spec
}

// merge returns a group with its merged settings. For a static group, it merges the override into the definition. A
// dynamic group has only its own settings. merge ignores templates. The caller must hold mu.
func (s *Shard) merge(name string) *nstancev1.GroupStatus {
	own, overridden := s.own[name]
	g := proto.CloneOf(s.groups[name])
	settings := (&config.Shard{}).WithDefaults().Settings(own, nil)
	static, isStatic := s.static[name]
	switch {
	case isStatic && overridden:
		settings = (&config.Shard{}).WithDefaults().Settings(specOf(static), &own)
	case isStatic:
		settings = (&config.Shard{}).WithDefaults().Settings(specOf(static), nil)
	}
	g.SpecJson, g.MergedJson = "", settings.JSON()
	g.Size = uint32(*config.ReadSettings(g.GetMergedJson()).Size)
	if g.Overridden = overridden; overridden {
		text, err := json.Marshal(own)
		if err != nil {
			panic(err)
		}
		g.SpecJson = string(text)
	}
	if text := static.GetMergedJson(); text != "" && !overridden {
		g.MergedJson = text // its spelling matters to a test
	}
	s.groups[name] = g
	return g
}

// Change edits an instance, as its VM or the leader would, and sends a notification.
func (s *Shard) Change(id string, change func(*nstancev1.InstanceStatus)) {
	s.mu.Lock()
	i := proto.CloneOf(s.instances[id])
	change(i)
	s.instances[id] = i
	changes := append([]shards.Change{s.instanceChanged(i)}, s.reconcileOf(i)...)
	s.mu.Unlock()
	s.set.notifyAll(changes...)
}

// AddSpare adds a warm spare to a group, and returns its ID.
func (s *Shard) AddSpare(group string) string {
	s.mu.Lock()
	g, id := s.groups[group], s.newID()
	i := s.newInstance(id, g, "")
	i.Spare = true
	s.instances[id] = i
	changes := append(s.reconcile(g), s.instanceChanged(i))
	s.mu.Unlock()
	s.set.notifyAll(changes...)
	return id
}

// Promote kills a member of a group, and makes a spare a member in its place.
func (s *Shard) Promote(spare, member string) {
	s.mu.Lock()
	for id, change := range map[string]func(*nstancev1.InstanceStatus){member: markDeleted,
		spare: func(i *nstancev1.InstanceStatus) { i.Spare, i.PromotedAt = false, timestamppb.New(Start) }} {
		i := proto.CloneOf(s.instances[id])
		change(i)
		s.instances[id] = i
	}
	changes := append(s.reconcileOf(s.instances[spare]), s.instanceChanged(s.instances[spare]),
		s.instanceChanged(s.instances[member]))
	s.mu.Unlock()
	s.set.notifyAll(changes...)
}

// Drain marks an instance as being deleted. The deletion waits for the drain of its node.
func (s *Shard) Drain(id, reason string, deadline time.Time) {
	s.mu.Lock()
	i := proto.CloneOf(s.instances[id])
	i.State, i.DeleteReason, i.DeleteDeadline = "deleting", reason, timestamppb.New(deadline)
	s.instances[id] = i
	s.drains[id] = shards.Drain{Instance: i, Reason: reason, Deadline: deadline}
	change := s.instanceChanged(i)
	change.Kind = shards.DrainPending
	changes := append([]shards.Change{change}, s.reconcileOf(i)...)
	s.mu.Unlock()
	s.set.notifyAll(changes...)
}

// Kill terminates an instance outside the leader's control. The leader replaces it.
func (s *Shard) Kill(id string) { s.Change(id, markDeleted) }

// Forget drops an instance from the mirror, as happens 15 minutes after its deletion.
func (s *Shard) Forget(id string) {
	s.mu.Lock()
	group := s.instances[id].GetGroup()
	delete(s.instances, id)
	delete(s.drains, id)
	s.mu.Unlock()
	s.set.notifyAll(shards.Change{Shard: s.id, Kind: shards.InstanceChanged, Group: group, Instance: id})
}

// Report sends an error event.
func (s *Shard) Report(e *nstancev1.ErrorEvent) {
	s.set.notifyAll(shards.Change{Shard: s.id, Kind: shards.ErrorReported, Group: e.GetGroup(),
		Instance: e.GetInstanceId(),
		Error:    e})
}

func (s *Shard) instanceChanged(i *nstancev1.InstanceStatus) shards.Change {
	return shards.Change{Shard: s.id, Kind: shards.InstanceChanged, Group: i.GetGroup(), Instance: i.GetInstanceId()}
}

// reconcileOf reconciles the group to which an instance belongs. It does nothing if there is no such group.
func (s *Shard) reconcileOf(i *nstancev1.InstanceStatus) []shards.Change {
	if g := s.groups[i.GetGroup()]; g != nil {
		return s.reconcile(g)
	}
	return nil
}

func markDeleted(i *nstancev1.InstanceStatus) {
	i.State, i.ProviderState, i.DeletedAt = "deleted", "terminated", timestamppb.New(Start)
}

// reconcile creates and deletes instances until the group has the wanted number, and updates the group's status. The
// caller must hold mu.
func (s *Shard) reconcile(g *nstancev1.GroupStatus) (changes []shards.Change) {
	live := s.liveInstances(g.GetGroup())
	for len(live) < int(g.GetSize()) && !g.GetDeleting() {
		id := s.newID()
		s.instances[id] = s.newInstance(id, g, "")
		live = append(live, id)
		changes = append(changes, s.instanceChanged(s.instances[id]))
	}
	for len(live) > int(g.GetSize()) || g.GetDeleting() && len(live) > 0 {
		id := live[len(live)-1]
		live = live[:len(live)-1]
		changes = append(changes, s.deleteInstance(id, "scale down")...)
	}
	for id, i := range s.instances {
		if g.GetDeleting() && i.GetGroup() == g.GetGroup() && i.GetSpare() && i.GetState() == "registered" {
			changes = append(changes, s.deleteInstance(id, "the group is deleted")...)
		}
	}
	next := proto.CloneOf(g)
	next.ActualSize, next.Healthy, next.ProviderIds, next.InstanceIds = uint32(len(live)), 0, nil, nil
	next.Spares = s.spares(g)
	for _, id := range live {
		i := s.instances[id]
		next.InstanceIds = append(next.InstanceIds, id)
		if i.GetProviderId() != "" {
			next.ProviderIds = append(next.ProviderIds, i.GetProviderId())
		}
		if i.GetHealth() == "healthy" {
			next.Healthy++
		}
	}
	s.groups[g.GetGroup()] = next
	if g.GetDeleting() && !s.hasInstances(g.GetGroup()) {
		delete(s.groups, g.GetGroup())
		delete(s.own, g.GetGroup())
	}
	return append(changes, shards.Change{Shard: s.id, Kind: shards.GroupChanged, Group: g.GetGroup()})
}

// spares counts the spares of a group. It returns nil if the group has and wants none.
func (s *Shard) spares(g *nstancev1.GroupStatus) *nstancev1.GroupSpares {
	out := &nstancev1.GroupSpares{}
	if settings := config.ReadSettings(g.GetMergedJson()); settings.Spares != nil {
		out.Count = uint32(settings.Spares.Count)
	}
	for _, i := range s.instances {
		if i.GetGroup() == g.GetGroup() && i.GetSpare() && i.GetState() != "deleting" && i.GetState() != "deleted" {
			out.Actual++
			if i.GetHealth() == "healthy" {
				out.Ready++
			}
		}
	}
	if out.Count+out.Actual == 0 {
		return nil
	}
	return out
}

// hasInstances reports whether a group still has instances that are not deleted.
func (s *Shard) hasInstances(group string) bool {
	for _, i := range s.instances {
		if i.GetGroup() == group && i.GetState() != "deleted" {
			return true
		}
	}
	return false
}

func (s *Shard) liveInstances(group string) (ids []string) {
	for id, i := range s.instances {
		if i.GetGroup() == group && !i.GetOnDemand() && !i.GetSpare() && i.GetState() != "deleting" &&
			i.GetState() != "deleted" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (s *Shard) deleteInstance(id, reason string) []shards.Change {
	i := proto.CloneOf(s.instances[id])
	i.DeleteReason = reason
	change := s.instanceChanged(i)
	if s.holdDrains {
		i.State = "deleting"
		s.drains[id] = shards.Drain{Instance: i, Reason: reason, Deadline: Start.Add(time.Hour)}
		change.Kind = shards.DrainPending
	} else {
		markDeleted(i)
	}
	s.instances[id] = i
	return []shards.Change{change}
}

func (s *Shard) newID() string {
	s.created++
	id, err := ident.NewID(Kind, Start.Add(time.Duration(s.created)*time.Second),
		strings.NewReader(strings.Repeat(fmt.Sprintf("%s%09d", s.id, s.created), 4)))
	if err != nil {
		panic(err)
	}
	return id.String()
}

func (s *Shard) newInstance(id string, g *nstancev1.GroupStatus, instanceType string) *nstancev1.InstanceStatus {
	settings := config.ReadSettings(g.GetMergedJson())
	return &nstancev1.InstanceStatus{InstanceId: id, Group: g.GetGroup(), Template: settings.Template,
		Kind: g.GetKind(), State: "registered", ProviderState: "running",
		ProviderId: "test:///" + s.id + "/" + id, Health: "healthy", Ipv4: "10.0.0.1", Hostname: id,
		InstanceType: cmp.Or(instanceType, settings.InstanceType), Zone: s.id, Region: "test"}
}

// ID implements shards.Shard.
func (s *Shard) ID() string { return s.id }

// State implements shards.Shard.
func (s *Shard) State() shards.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Group implements shards.Shard.
func (s *Shard) Group(name string) (*nstancev1.GroupStatus, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.groups[name]
	return g, ok
}

// Groups implements shards.Shard.
func (s *Shard) Groups() []*nstancev1.GroupStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sortedGroups()
}

func (s *Shard) sortedGroups() []*nstancev1.GroupStatus {
	return slices.SortedFunc(maps.Values(s.groups), func(a, b *nstancev1.GroupStatus) int {
		return strings.Compare(a.GetGroup(), b.GetGroup())
	})
}

// Instance implements shards.Shard.
func (s *Shard) Instance(id string) (*nstancev1.InstanceStatus, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.instances[id]
	return i, ok
}

// Instances implements shards.Shard.
func (s *Shard) Instances(group string) []*nstancev1.InstanceStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sortedInstances(group)
}

func (s *Shard) sortedInstances(group string) []*nstancev1.InstanceStatus {
	var out []*nstancev1.InstanceStatus
	for _, i := range s.instances {
		if (group == "" || i.GetGroup() == group) && i.GetState() != "deleted" {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b *nstancev1.InstanceStatus) int {
		return strings.Compare(a.GetInstanceId(), b.GetInstanceId())
	})
	return out
}

// Drains implements shards.Shard.
func (s *Shard) Drains() []shards.Drain {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.drains), func(a, b shards.Drain) int {
		return strings.Compare(a.Instance.GetInstanceId(), b.Instance.GetInstanceId())
	})
}
