// Package shardstest fakes shards for tests of reconcilers. Its leaders keep groups and instances in memory and change
// them immediately.
//
// Invariant: answers and mirror agree with services/internal/operatorapi; only time, failures and VMs are simulated.
package shardstest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// Kind is the prefix of all instance IDs.
const Kind = "wrk"

// Set is a set of fake shards.
type Set struct {
	mu     sync.Mutex
	shards map[string]*Shard
	notify []func(shards.Change)
}

var _ shards.Shards = (*Set)(nil)

// New returns a set of shards that are reachable, synced and empty.
func New(ids ...string) *Set {
	s := &Set{shards: map[string]*Shard{}}
	for _, id := range ids {
		s.Add(id)
	}
	return s
}

// Add adds a shard, as a change of the configuration file does.
func (s *Set) Add(id string) *Shard {
	shard := &Shard{id: id, set: s, groups: map[string]*nstancev1.GroupStatus{},
		static: map[string]*nstancev1.GroupStatus{}, own: map[string]config.GroupSpec{},
		instances: map[string]*nstancev1.InstanceStatus{}, drains: map[string]shards.Drain{},
		state: shards.State{Reachable: true, Synced: true, Zone: id, Region: "test"}}
	s.mu.Lock()
	s.shards[id] = shard
	s.mu.Unlock()
	s.notifyAll(shards.Change{Shard: id, Kind: shards.ShardState})
	return shard
}

// Remove removes a shard, as a change of the configuration file does.
func (s *Set) Remove(id string) {
	s.mu.Lock()
	delete(s.shards, id)
	s.mu.Unlock()
	s.notifyAll(shards.Change{Shard: id, Kind: shards.ShardState})
}

// Of returns a shard. It panics if there is none.
func (s *Set) Of(id string) *Shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	shard, ok := s.shards[id]
	if !ok {
		panic("shardstest: no shard " + id)
	}
	return shard
}

// IDs implements shards.Shards.
func (s *Set) IDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]string, 0, len(s.shards))
	for id := range s.shards {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Shard implements shards.Shards.
func (s *Set) Shard(id string) (shards.Shard, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shard, ok := s.shards[id]
	if !ok {
		return nil, false
	}
	return shard, true
}

// Notify implements shards.Shards.
func (s *Set) Notify(fn func(shards.Change)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = append(s.notify, fn)
}

func (s *Set) notifyAll(changes ...shards.Change) {
	s.mu.Lock()
	to := slices.Clone(s.notify)
	s.mu.Unlock()
	for _, change := range changes {
		for _, fn := range to {
			fn(change)
		}
	}
}

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
}

var _ shards.Shard = (*Shard)(nil)

// Start is the creation time of the first instance. Each further instance is a second later.
var Start = time.Date(2026, 7, 28, 10, 0, 0, 0, time.UTC)

// SetState changes the state and sends a notification.
func (s *Shard) SetState(change func(*shards.State)) {
	s.mu.Lock()
	change(&s.state)
	s.mu.Unlock()
	s.set.notifyAll(shards.Change{Shard: s.id, Kind: shards.ShardState})
}

// Fail sets a hook: a call fails with the error that fn returns for its method, such as "UpsertGroup". nil removes it.
func (s *Shard) Fail(fn func(method string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fn
}

// HoldDrains makes deletions wait for AcknowledgeDrained, as drain_timeout does. Otherwise they end immediately.
func (s *Shard) HoldDrains() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holdDrains = true
}

// Calls returns the modifying calls since the last call of Calls, as "{method} {group or instance} {size}".
func (s *Shard) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// SetGroup creates a group and its instances, as the configuration file (static) or another client (dynamic) does. An
// override of a static group stays.
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
		size := int(g.GetSize())
		delete(s.static, g.GetGroup())
		s.own[g.GetGroup()] = config.GroupSpec{Template: g.GetTemplate(), Size: &size,
			InstanceType: g.GetInstanceType(), SubnetPool: g.GetSubnetPool(), Vars: g.GetVars()}
	}
	g = s.merge(g.GetGroup())
	changes := s.reconcile(g)
	s.mu.Unlock()
	s.set.notifyAll(changes...)
}

// merge computes a group from its configuration and its own settings, without templates. The caller must hold mu.
func (s *Shard) merge(name string) *nstancev1.GroupStatus {
	own, overridden := s.own[name]
	g := proto.CloneOf(s.groups[name])
	if static, ok := s.static[name]; ok {
		g = proto.CloneOf(static)
		g.Vars = maps.Clone(g.GetVars())
		if g.Vars == nil {
			g.Vars = map[string]string{}
		}
		maps.Copy(g.Vars, own.Vars)
		if own.InstanceType != "" {
			g.InstanceType = own.InstanceType
		}
	} else {
		g.Size, g.Template, g.InstanceType, g.SubnetPool, g.Vars = 0, own.Template, own.InstanceType, own.SubnetPool,
			own.Vars
	}
	if own.Size != nil {
		g.Size = uint32(*own.Size)
	}
	g.Overridden, g.SpecJson = overridden, ""
	if overridden {
		text, err := json.Marshal(own)
		if err != nil {
			panic(err)
		}
		g.SpecJson = string(text)
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
	changes := []shards.Change{{Shard: s.id, Kind: shards.InstanceChanged, Group: i.GetGroup(), Instance: id}}
	if g := s.groups[i.GetGroup()]; g != nil {
		changes = append(changes, s.reconcile(g)...)
	}
	s.mu.Unlock()
	s.set.notifyAll(changes...)
}

// Drain deletes an instance that has to be drained first.
func (s *Shard) Drain(id, reason string, deadline time.Time) {
	s.mu.Lock()
	i := proto.CloneOf(s.instances[id])
	i.State, i.DeleteReason, i.DeleteDeadline = "deleting", reason, timestamppb.New(deadline)
	s.instances[id] = i
	s.drains[id] = shards.Drain{Instance: i, Reason: reason, Deadline: deadline}
	changes := []shards.Change{{Shard: s.id, Kind: shards.DrainPending, Group: i.GetGroup(), Instance: id}}
	if g := s.groups[i.GetGroup()]; g != nil {
		changes = append(changes, s.reconcile(g)...)
	}
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

func markDeleted(i *nstancev1.InstanceStatus) {
	i.State, i.ProviderState, i.DeletedAt = "deleted", "terminated", timestamppb.New(Start)
}

// reconcile creates and deletes instances until the group has its size, and updates its status. The caller must hold
// mu.
func (s *Shard) reconcile(g *nstancev1.GroupStatus) (changes []shards.Change) {
	live := s.liveInstances(g.GetGroup())
	for len(live) < int(g.GetSize()) && !g.GetDeleting() {
		id := s.newID()
		s.instances[id] = s.newInstance(id, g, "")
		live = append(live, id)
		changes = append(changes, shards.Change{Shard: s.id, Kind: shards.InstanceChanged, Group: g.GetGroup(),
			Instance: id})
	}
	for len(live) > int(g.GetSize()) || g.GetDeleting() && len(live) > 0 {
		id := live[len(live)-1]
		live = live[:len(live)-1]
		changes = append(changes, s.deleteInstance(id, "scale down")...)
	}
	next := proto.CloneOf(g)
	next.ActualSize, next.Healthy, next.ProviderIds, next.InstanceIds = uint32(len(live)), 0, nil, nil
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

// hasInstances reports whether a group still has instances that are being deleted.
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
		if i.GetGroup() == group && !i.GetOnDemand() && i.GetState() != "deleting" && i.GetState() != "deleted" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (s *Shard) deleteInstance(id, reason string) []shards.Change {
	i := proto.CloneOf(s.instances[id])
	i.DeleteReason = reason
	change := shards.Change{Shard: s.id, Kind: shards.InstanceChanged, Group: i.GetGroup(), Instance: id}
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
	if instanceType == "" {
		instanceType = g.GetInstanceType()
	}
	return &nstancev1.InstanceStatus{InstanceId: id, Group: g.GetGroup(), Template: g.GetTemplate(), Kind: g.GetKind(),
		State: "registered", ProviderState: "running",
		ProviderId: "test:///" + s.id + "/" + id, Health: "healthy", Ipv4: "10.0.0.1", Hostname: id,
		InstanceType: instanceType, Zone: s.id, Region: "test"}
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
	out := make([]*nstancev1.GroupStatus, 0, len(s.groups))
	for _, g := range s.groups {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *nstancev1.GroupStatus) int { return strings.Compare(a.GetGroup(), b.GetGroup()) })
	return out
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
	out := make([]shards.Drain, 0, len(s.drains))
	for _, d := range s.drains {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b shards.Drain) int {
		return strings.Compare(a.Instance.GetInstanceId(), b.Instance.GetInstanceId())
	})
	return out
}

// API implements shards.Shard.
func (s *Shard) API() nstancev1.OperatorServiceClient { return &leaderAPI{shard: s} }

// leaderAPI implements the calls that reconcilers make. Other calls panic.
type leaderAPI struct {
	nstancev1.OperatorServiceClient
	shard *Shard
}

// beginCall begins a call and locks mu. The returned function unlocks mu and sends the changes.
func (a *leaderAPI) beginCall(method, subject string) (leave func(changes ...shards.Change), err error) {
	s := a.shard
	s.mu.Lock()
	switch {
	case !s.state.Reachable:
		err = status.Error(codes.Unavailable, "shard is unreachable")
	case s.fail != nil:
		err = s.fail(method)
	}
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	if !strings.HasPrefix(method, "List") && !strings.HasPrefix(method, "Get") {
		s.calls = append(s.calls, method+" "+subject)
	}
	return func(changes ...shards.Change) {
		s.mu.Unlock()
		s.set.notifyAll(changes...)
	}, nil
}

func (a *leaderAPI) ListGroups(context.Context, *nstancev1.ListGroupsRequest,
	...grpc.CallOption) (*nstancev1.ListGroupsResponse, error) {
	leave, err := a.beginCall("ListGroups", "")
	if err != nil {
		return nil, err
	}
	leave()
	return &nstancev1.ListGroupsResponse{Groups: a.shard.Groups()}, nil
}

func (a *leaderAPI) ListInstances(_ context.Context, r *nstancev1.ListInstancesRequest,
	_ ...grpc.CallOption) (*nstancev1.ListInstancesResponse, error) {
	leave, err := a.beginCall("ListInstances", "")
	if err != nil {
		return nil, err
	}
	leave()
	return &nstancev1.ListInstancesResponse{Instances: a.shard.Instances(r.GetGroup())}, nil
}

func (a *leaderAPI) GetInstanceStatus(_ context.Context, r *nstancev1.GetInstanceStatusRequest,
	_ ...grpc.CallOption) (*nstancev1.GetInstanceStatusResponse, error) {
	leave, err := a.beginCall("GetInstanceStatus", "")
	if err != nil {
		return nil, err
	}
	i, ok := a.shard.instances[r.GetInstanceId()]
	leave()
	if !ok {
		return nil, status.Errorf(codes.NotFound, "instance_id: there is no instance %s", r.GetInstanceId())
	}
	return &nstancev1.GetInstanceStatusResponse{Instance: i}, nil
}

func (a *leaderAPI) UpsertGroup(_ context.Context, r *nstancev1.UpsertGroupRequest,
	_ ...grpc.CallOption) (*nstancev1.UpsertGroupResponse, error) {
	leave, err := a.beginCall("UpsertGroup", fmt.Sprintf("%s %d", r.GetGroup(), r.GetSize()))
	if err != nil {
		return nil, err
	}
	s := a.shard
	g, ok := s.groups[r.GetGroup()]
	switch {
	case !ok && r.GetMustExist():
		leave()
		return nil, status.Errorf(codes.NotFound, "group: there is no group %s", r.GetGroup())
	case (!ok || g.GetDeleting()) && r.GetTemplate() == "":
		leave()
		return nil, status.Error(codes.InvalidArgument, "template: is missing")
	case ok && g.GetIsStatic() && (r.GetTemplate() != "" || r.GetSubnetPool() != ""):
		leave()
		return nil,
			status.Errorf(codes.FailedPrecondition,
				"template: cannot be changed: group %s is static, only size, instance_type and vars can be",
				r.GetGroup())
	}
	own := s.own[r.GetGroup()]
	if !ok || g.GetDeleting() {
		s.groups[r.GetGroup()], own = &nstancev1.GroupStatus{Group: r.GetGroup(), Kind: Kind}, config.GroupSpec{}
	}
	for _, field := range r.GetClearFields() {
		switch field {
		case "size":
			own.Size = nil
		case "instance_type":
			own.InstanceType = ""
		case "subnet_pool":
			own.SubnetPool = ""
		case "vars":
			own.Vars = nil
		}
	}
	if r.Size != nil {
		size := int(r.GetSize())
		own.Size = &size
	}
	if r.GetTemplate() != "" {
		own.Template = r.GetTemplate()
	}
	if r.GetInstanceType() != "" {
		own.InstanceType = r.GetInstanceType()
	}
	if r.GetSubnetPool() != "" {
		own.SubnetPool = r.GetSubnetPool()
	}
	if r.GetSetVars() {
		own.Vars = r.GetVars()
	}
	s.own[r.GetGroup()] = own
	g = s.merge(r.GetGroup())
	changes := s.reconcile(g)
	g = s.groups[r.GetGroup()]
	leave(changes...)
	return &nstancev1.UpsertGroupResponse{Group: g}, nil
}

func (a *leaderAPI) DeleteGroup(_ context.Context, r *nstancev1.DeleteGroupRequest,
	_ ...grpc.CallOption) (*nstancev1.DeleteGroupResponse, error) {
	leave, err := a.beginCall("DeleteGroup", r.GetGroup())
	if err != nil {
		return nil, err
	}
	g, ok := a.shard.groups[r.GetGroup()]
	switch {
	case !ok:
		leave()
		return nil, status.Errorf(codes.NotFound, "group: there is no group %s", r.GetGroup())
	case g.GetIsStatic() && !g.GetOverridden():
		leave()
		return nil, status.Errorf(codes.FailedPrecondition, "group: %s is static and has nothing to be removed here",
			r.GetGroup())
	}
	if g.GetIsStatic() {
		delete(a.shard.own, r.GetGroup())
		g = a.shard.merge(r.GetGroup())
	} else {
		g = proto.CloneOf(g)
		g.Deleting = true
		a.shard.groups[r.GetGroup()] = g
	}
	leave(a.shard.reconcile(g)...)
	return &nstancev1.DeleteGroupResponse{RestoredStatic: g.GetIsStatic()}, nil
}

func (a *leaderAPI) CreateInstance(_ context.Context, r *nstancev1.CreateInstanceRequest,
	_ ...grpc.CallOption) (*nstancev1.CreateInstanceResponse, error) {
	leave, err := a.beginCall("CreateInstance", r.GetInstanceId())
	if err != nil {
		return nil, err
	}
	s := a.shard
	if i, ok := s.instances[r.GetInstanceId()]; ok {
		leave()
		return &nstancev1.CreateInstanceResponse{Instance: i}, nil
	}
	g, ok := s.groups[r.GetGroup()]
	if _, bad := ident.ParseID(r.GetInstanceId()); bad != nil || !ok ||
		!strings.HasPrefix(r.GetInstanceId(), g.GetKind()) {
		leave()
		return nil, status.Errorf(codes.InvalidArgument, "instance_id or group: %s, %s", r.GetInstanceId(),
			r.GetGroup())
	}
	i := s.newInstance(r.GetInstanceId(), g, r.GetInstanceType())
	i.OnDemand = true
	s.instances[i.GetInstanceId()] = i
	leave(shards.Change{Shard: s.id, Kind: shards.InstanceChanged, Group: i.GetGroup(), Instance: i.GetInstanceId()})
	return &nstancev1.CreateInstanceResponse{Instance: i}, nil
}

func (a *leaderAPI) DeleteInstance(_ context.Context, r *nstancev1.DeleteInstanceRequest,
	_ ...grpc.CallOption) (*nstancev1.DeleteInstanceResponse, error) {
	leave, err := a.beginCall("DeleteInstance", r.GetInstanceId())
	if err != nil {
		return nil, err
	}
	s := a.shard
	i, ok := s.instances[r.GetInstanceId()]
	if !ok {
		leave()
		return nil, status.Errorf(codes.NotFound, "instance_id: there is no instance %s", r.GetInstanceId())
	}
	var changes []shards.Change
	if i.GetState() != "deleted" && i.GetState() != "deleting" {
		changes = s.deleteInstance(r.GetInstanceId(), r.GetReason())
		if g := s.groups[i.GetGroup()]; g != nil {
			changes = append(changes, s.reconcile(g)...)
		}
	}
	i = s.instances[r.GetInstanceId()]
	leave(changes...)
	return &nstancev1.DeleteInstanceResponse{Instance: i}, nil
}

func (a *leaderAPI) AcknowledgeDrained(_ context.Context, r *nstancev1.AcknowledgeDrainedRequest,
	_ ...grpc.CallOption) (*nstancev1.AcknowledgeDrainedResponse, error) {
	leave, err := a.beginCall("AcknowledgeDrained", r.GetInstanceId())
	if err != nil {
		return nil, err
	}
	s := a.shard
	var changes []shards.Change
	if d, ok := s.drains[r.GetInstanceId()]; ok {
		delete(s.drains, r.GetInstanceId())
		i := proto.CloneOf(d.Instance)
		markDeleted(i)
		s.instances[i.GetInstanceId()] = i
		changes = append(changes, shards.Change{Shard: s.id, Kind: shards.InstanceChanged, Group: i.GetGroup(),
			Instance: i.GetInstanceId()})
		if g := s.groups[i.GetGroup()]; g != nil {
			changes = append(changes, s.reconcile(g)...)
		}
	}
	leave(changes...)
	return &nstancev1.AcknowledgeDrainedResponse{}, nil
}
