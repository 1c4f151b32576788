package shardstest

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

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
