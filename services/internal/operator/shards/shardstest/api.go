package shardstest

import (
	"context"
	"path"
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
func (s *Shard) API() nstancev1.OperatorServiceClient {
	return nstancev1.NewOperatorServiceClient(leaderConn{s})
}

// leaderConn answers the calls that reconcilers make. Other calls panic.
type leaderConn struct{ shard *Shard }

// NewStream implements grpc.ClientConnInterface.
func (leaderConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	panic("shardstest: the fake leader has no streams")
}

// Invoke implements grpc.ClientConnInterface.
func (c leaderConn) Invoke(_ context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	answer, changes, err := c.shard.call(path.Base(method), args)
	if err != nil {
		return err
	}
	proto.Merge(reply.(proto.Message), answer)
	c.shard.set.notifyAll(changes...)
	return nil
}

func (s *Shard) call(method string, request any) (answer proto.Message, changes []shards.Change, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.Reachable {
		return nil, nil, status.Error(codes.Unavailable, "shard is unreachable")
	}
	if r, ok := request.(*nstancev1.GetInstanceTypeRequest); ok {
		if size, ok := s.types[r.GetInstanceType()]; ok {
			return size, nil, nil
		}
		return nil, nil, status.Error(codes.NotFound, "instance_type: there is no such type")
	}
	if s.fail != nil {
		if err := s.fail(method); err != nil {
			return nil, nil, err
		}
	}
	changed := func(subject string) { s.calls = append(s.calls, method+" "+subject) }
	switch r := request.(type) {
	case *nstancev1.ListGroupsRequest:
		return &nstancev1.ListGroupsResponse{Groups: s.sortedGroups()}, nil, nil
	case *nstancev1.ListInstancesRequest:
		return &nstancev1.ListInstancesResponse{Instances: s.sortedInstances(r.GetGroup())}, nil, nil
	case *nstancev1.GetInstanceStatusRequest:
		i, err := s.knownInstance(r.GetInstanceId())
		return &nstancev1.GetInstanceStatusResponse{Instance: i}, nil, err
	case *nstancev1.UpsertGroupRequest:
		changed(r.GetGroup() + " " + r.GetPatch())
		return s.upsertGroup(r)
	case *nstancev1.DeleteGroupRequest:
		changed(r.GetGroup())
		return s.deleteGroup(r)
	case *nstancev1.CreateInstanceRequest:
		changed(r.GetInstanceId())
		return s.createInstance(r)
	case *nstancev1.DeleteInstanceRequest:
		changed(r.GetInstanceId())
		i, err := s.knownInstance(r.GetInstanceId())
		if err != nil {
			return nil, nil, err
		}
		if r.GetDecrement() && i.GetState() != "deleted" && !s.decremented[i.GetInstanceId()] {
			s.decremented[i.GetInstanceId()] = true
			own, size := s.own[i.GetGroup()], int(s.groups[i.GetGroup()].GetSize())-1
			own.Size = &size
			s.own[i.GetGroup()] = own
			s.merge(i.GetGroup())
		}
		if i.GetState() != "deleted" && i.GetState() != "deleting" {
			changes = append(s.deleteInstance(r.GetInstanceId(), r.GetReason()), s.reconcileOf(i)...)
		}
		answer := &nstancev1.DeleteInstanceResponse{Instance: s.instances[r.GetInstanceId()]}
		if r.GetDecrement() {
			answer.Group = s.groups[i.GetGroup()]
		}
		return answer, changes, nil
	case *nstancev1.AcknowledgeDrainedRequest:
		changed(r.GetInstanceId())
		return &nstancev1.AcknowledgeDrainedResponse{}, s.endDrain(r.GetInstanceId()), nil
	}
	panic("shardstest: the fake leader does not answer " + method)
}

func (s *Shard) knownInstance(id string) (*nstancev1.InstanceStatus, error) {
	if i, ok := s.instances[id]; ok {
		return i, nil
	}
	return nil, status.Errorf(codes.NotFound, "instance_id: there is no instance %s", id)
}

func (s *Shard) upsertGroup(r *nstancev1.UpsertGroupRequest) (proto.Message, []shards.Change, error) {
	patch, problems := config.ParsePatch("", []byte(r.GetPatch()))
	for i := range problems {
		problems[i].Line, problems[i].Col = 0, 0
	}
	if err := problems.Err(); err != nil {
		return nil, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	g, ok := s.groups[r.GetGroup()]
	own := s.own[r.GetGroup()]
	switch restricted := patch.Restricted(); {
	case !ok && r.GetMustExist():
		return nil, nil, status.Errorf(codes.NotFound, "group: there is no group %s", r.GetGroup())
	case ok && g.GetIsStatic() && len(restricted) > 0:
		return nil, nil, status.Errorf(codes.FailedPrecondition, "%s: cannot be changed: group %s is static",
			restricted[0], r.GetGroup())
	case !ok || g.GetDeleting():
		own = config.GroupSpec{}
	}
	own, err := patch.Apply(own)
	if err != nil {
		return nil, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !ok || g.GetDeleting() {
		if own.Template == "" {
			return nil, nil, status.Error(codes.InvalidArgument, "template: is missing")
		}
		s.groups[r.GetGroup()] = &nstancev1.GroupStatus{Group: r.GetGroup(), Kind: Kind}
	}
	s.own[r.GetGroup()] = own
	changes := s.reconcile(s.merge(r.GetGroup()))
	return &nstancev1.UpsertGroupResponse{Group: s.groups[r.GetGroup()]}, changes, nil
}

func (s *Shard) deleteGroup(r *nstancev1.DeleteGroupRequest) (proto.Message, []shards.Change, error) {
	g, ok := s.groups[r.GetGroup()]
	switch {
	case !ok:
		return nil, nil, status.Errorf(codes.NotFound, "group: there is no group %s", r.GetGroup())
	case g.GetIsStatic() && !g.GetOverridden():
		return nil, nil, status.Errorf(codes.FailedPrecondition,
			"group: %s is static and has nothing to be removed here", r.GetGroup())
	}
	if g.GetIsStatic() {
		delete(s.own, r.GetGroup())
		g = s.merge(r.GetGroup())
	} else {
		g = proto.CloneOf(g)
		g.Deleting = true
		s.groups[r.GetGroup()] = g
	}
	return &nstancev1.DeleteGroupResponse{RestoredStatic: g.GetIsStatic()}, s.reconcile(g), nil
}

func (s *Shard) createInstance(r *nstancev1.CreateInstanceRequest) (proto.Message, []shards.Change, error) {
	if i, ok := s.instances[r.GetInstanceId()]; ok {
		return &nstancev1.CreateInstanceResponse{Instance: i}, nil, nil
	}
	g, ok := s.groups[r.GetGroup()]
	if _, bad := ident.ParseID(r.GetInstanceId()); bad != nil || !ok ||
		!strings.HasPrefix(r.GetInstanceId(), g.GetKind()) {
		return nil, nil, status.Errorf(codes.InvalidArgument, "instance_id or group: %s, %s", r.GetInstanceId(),
			r.GetGroup())
	}
	i := s.newInstance(r.GetInstanceId(), g, r.GetInstanceType())
	i.OnDemand = true
	s.instances[i.GetInstanceId()] = i
	return &nstancev1.CreateInstanceResponse{Instance: i}, []shards.Change{s.instanceChanged(i)}, nil
}

func (s *Shard) endDrain(id string) []shards.Change {
	d, ok := s.drains[id]
	if !ok {
		return nil
	}
	delete(s.drains, id)
	i := proto.CloneOf(d.Instance)
	markDeleted(i)
	s.instances[id] = i
	return append([]shards.Change{s.instanceChanged(i)}, s.reconcileOf(i)...)
}
