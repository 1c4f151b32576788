package fleettest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
)

// Shard is the operator API of one leader, with state in memory. Set the fields before the API is served. Change them
// later only in a function that [Shard.Do] runs.
type Shard struct {
	nstancev1.UnimplementedOperatorServiceServer

	mu sync.Mutex
	// Before, if set, is called before every call of the API, with the name of the method. An error rejects the call.
	Before    func(method string) error
	Config    *nstancev1.GetConfigStatusResponse
	Status    *nstancev1.GetShardStatusResponse
	Orphans   []*nstancev1.Orphan
	Refresh   *nstancev1.RefreshConfigResponse
	Groups    []*nstancev1.GroupStatus
	Instances []*nstancev1.InstanceStatus
	// LongPages gives each page of instances the length that the client requests, and a page of events 1,000 events. If
	// LongPages is false, each page has one instance or two events.
	LongPages bool
	// Drained means that all drains have ended: GetInstanceStatus marks an instance that is being deleted as deleted.
	Drained bool
	// Explanations maps the name of a group to the answer of ExplainGroup.
	Explanations map[string]*nstancev1.ExplainGroupResponse
	// Scaling maps the name of a group to the answer of GetScalingHistory. Others have no points.
	Scaling map[string]*nstancev1.GetScalingHistoryResponse
	// Console is what every instance has written to its console. If it is empty, the provider has no consoles.
	Console string
	// History contains the events that ListEvents returns.
	History []*nstancev1.JournalEvent
	// JournalEvents are what FollowEvents sends after History.
	JournalEvents chan *nstancev1.JournalEvent
	// Filters are the filters that ListEvents received.
	Filters []*nstancev1.EventFilter
	// Each channel holds the events that one watch stream sends. A stream ends with the error Ended when its channel is
	// closed.
	GroupEvents    chan *nstancev1.GroupEvent
	InstanceEvents chan *nstancev1.InstanceEvent
	ErrorEvents    chan *nstancev1.ErrorEvent
	Ended          error
	// Calls are the names of the called methods. Upserts are the requests of UpsertGroup. Tenants are the tenants of
	// the clients.
	Calls   []string
	Upserts []*nstancev1.UpsertGroupRequest
	Tenants []string
}

// Do runs f while no call is in progress.
func (s *Shard) Do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// NotLeader returns the error of a standby.
func NotLeader(shard, leader, addr string) error {
	message := "this server does not lead"
	if leader != "" {
		message += ": " + leader + " does"
	}
	return notleader.Error(message, &nstancev1.NotLeader{Shard: shard, LeaderId: leader, OperatorAddr: addr})
}

// enter records a call of the API. No other call can start until the returned function is called.
func (s *Shard) enter(ctx context.Context, method string) (leave func(), err error) {
	s.mu.Lock()
	s.Calls = append(s.Calls, method)
	if who, err := transport.PeerIdentity(ctx); err == nil && !slices.Contains(s.Tenants, who.Tenant) {
		s.Tenants = append(s.Tenants, who.Tenant)
	}
	if s.Before != nil {
		err = s.Before(method)
	}
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	return s.mu.Unlock, nil
}

// intercept is the interceptor of all unary calls. It makes the calls run one after the other.
func (s *Shard) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any,
	error) {
	leave, err := s.enter(ctx, path.Base(info.FullMethod))
	if err != nil {
		return nil, err
	}
	defer leave()
	if r, ok := request.(interface{ GetGroup() string }); ok && r.GetGroup() != "" {
		if err := ident.ValidateName(r.GetGroup()); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "group: %v", err)
		}
	}
	answer, err := handle(ctx, request)
	if err != nil {
		return nil, err
	}
	return proto.Clone(answer.(proto.Message)), nil // gRPC encodes the answer after the call
}

// GetConfigStatus implements nstancev1.OperatorServiceServer.
func (s *Shard) GetConfigStatus(_ context.Context, _ *nstancev1.GetConfigStatusRequest) (
	*nstancev1.GetConfigStatusResponse, error) {
	return s.Config, nil
}

// RefreshConfig implements nstancev1.OperatorServiceServer.
func (s *Shard) RefreshConfig(_ context.Context, _ *nstancev1.RefreshConfigRequest) (*nstancev1.RefreshConfigResponse,
	error) {
	return s.Refresh, nil
}

// ListGroups implements nstancev1.OperatorServiceServer. Its pages have one group.
func (s *Shard) ListGroups(_ context.Context, r *nstancev1.ListGroupsRequest) (*nstancev1.ListGroupsResponse, error) {
	groups := slices.SortedFunc(slices.Values(s.Groups), func(a, b *nstancev1.GroupStatus) int {
		return strings.Compare(a.GetGroup(), b.GetGroup())
	})
	if r.GetGroup() != "" {
		g := s.group(r.GetGroup())
		if g == nil {
			return nil, status.Errorf(codes.NotFound, "group: there is no group %s", r.GetGroup())
		}
		return &nstancev1.ListGroupsResponse{Groups: []*nstancev1.GroupStatus{g}}, nil
	}
	from := 1 + slices.IndexFunc(groups, func(g *nstancev1.GroupStatus) bool {
		return g.GetGroup() == r.GetPageToken()
	})
	if r.GetPageSize() == 0 || from+1 >= len(groups) {
		return &nstancev1.ListGroupsResponse{Groups: groups[from:]}, nil
	}
	return &nstancev1.ListGroupsResponse{Groups: groups[from : from+1], NextPageToken: groups[from].GetGroup()}, nil
}

// ExplainGroup implements nstancev1.OperatorServiceServer.
func (s *Shard) ExplainGroup(_ context.Context, r *nstancev1.ExplainGroupRequest) (*nstancev1.ExplainGroupResponse,
	error) {
	name, id := r.GetGroup(), r.GetInstanceId()
	if id != "" {
		i := s.instance(id)
		if i == nil {
			return nil, status.Errorf(codes.NotFound, "instance_id: there is no %q", id)
		}
		name = i.GetGroup()
	}
	if s.Explanations[name] == nil {
		return nil, status.Errorf(codes.NotFound, "group: there is no group %s", name)
	}
	e := proto.CloneOf(s.Explanations[name])
	e.Group = name
	if id == "" {
		return e, nil
	}
	e.Actions = slices.DeleteFunc(e.GetActions(), func(a *nstancev1.PlannedAction) bool {
		return a.GetInstanceId() != id && a.GetReplaces() != id
	})
	e.Instances = slices.DeleteFunc(e.GetInstances(), func(v *nstancev1.InstanceVerdict) bool {
		return v.GetInstanceId() != id
	})
	if len(e.GetInstances()) == 0 {
		return nil, status.Errorf(codes.FailedPrecondition,
			"instance_id: instance %s is %s, so that no rule applies to it", id, s.instance(id).GetState())
	}
	return e, nil
}

// ExplainChange implements nstancev1.OperatorServiceServer. It makes the change in a copy of the shard. The plans are
// those of Explanations.
func (s *Shard) ExplainChange(ctx context.Context, r *nstancev1.ExplainChangeRequest) (
	*nstancev1.ExplainChangeResponse, error) {
	after := &Shard{Status: s.Status, Orphans: s.Orphans}
	for _, g := range s.Groups {
		after.Groups = append(after.Groups, proto.CloneOf(g))
	}
	for _, i := range s.Instances {
		after.Instances = append(after.Instances, proto.CloneOf(i))
	}
	answer := &nstancev1.ExplainChangeResponse{}
	var name string
	var err error
	switch change := r.GetChange().(type) {
	case *nstancev1.ExplainChangeRequest_UpsertGroup:
		name = change.UpsertGroup.GetGroup()
		_, err = after.UpsertGroup(ctx, change.UpsertGroup)
	case *nstancev1.ExplainChangeRequest_DeleteGroup:
		name = change.DeleteGroup.GetGroup()
		_, err = after.DeleteGroup(ctx, change.DeleteGroup)
	case *nstancev1.ExplainChangeRequest_PauseGroup:
		name = change.PauseGroup.GetGroup()
		_, err = after.PauseGroup(ctx, change.PauseGroup)
	case *nstancev1.ExplainChangeRequest_ResumeGroup:
		name = change.ResumeGroup.GetGroup()
		_, err = after.ResumeGroup(ctx, change.ResumeGroup)
	case *nstancev1.ExplainChangeRequest_RollGroup:
		name = change.RollGroup.GetGroup()
		_, err = after.RollGroup(ctx, change.RollGroup)
	case *nstancev1.ExplainChangeRequest_DeleteInstance:
		name = s.instance(change.DeleteInstance.GetInstanceId()).GetGroup()
		_, err = after.DeleteInstance(ctx, change.DeleteInstance)
	case *nstancev1.ExplainChangeRequest_ReleaseInstance:
		name = s.instance(change.ReleaseInstance.GetInstanceId()).GetGroup()
		_, err = after.ReleaseInstance(ctx, change.ReleaseInstance)
	case *nstancev1.ExplainChangeRequest_StepDown:
		answer.StepDown, err = after.StepDown(ctx, change.StepDown)
	case *nstancev1.ExplainChangeRequest_ConfirmOrphans:
		answer.ConfirmOrphans, err = after.ConfirmOrphans(ctx, change.ConfirmOrphans)
	}
	if err != nil {
		return nil, err
	}
	if name != "" {
		plan := &nstancev1.ExplainGroupResponse{}
		proto.Merge(plan, s.Explanations[name])
		plan.Group, plan.Instances = name, nil
		answer.Groups = []*nstancev1.GroupChange{{Before: s.group(name), After: after.group(name), Plan: plan}}
	}
	return answer, nil
}

// ListEvents implements nstancev1.OperatorServiceServer. Of the request's filter, it applies only the instance.
func (s *Shard) ListEvents(_ context.Context, r *nstancev1.ListEventsRequest) (*nstancev1.ListEventsResponse, error) {
	s.Filters = append(s.Filters, r.GetFilter())
	history := slices.DeleteFunc(slices.Clone(s.History), func(e *nstancev1.JournalEvent) bool {
		return r.GetFilter().GetInstanceId() != "" && e.GetInstanceId() != r.GetFilter().GetInstanceId()
	})
	from := 1 + slices.IndexFunc(history, func(e *nstancev1.JournalEvent) bool {
		return e.GetPosition() == r.GetPageToken()
	})
	size := 2
	if s.LongPages {
		size = 1000
	}
	page := history[from:min(from+size, len(history))]
	answer := &nstancev1.ListEventsResponse{Events: page}
	if from+size < len(history) {
		answer.NextPageToken = page[size-1].GetPosition()
	}
	return answer, nil
}

func (s *Shard) group(name string) *nstancev1.GroupStatus {
	if n := slices.IndexFunc(s.Groups, func(g *nstancev1.GroupStatus) bool { return g.GetGroup() == name }); n >= 0 {
		return s.Groups[n]
	}
	return nil
}

// PauseGroup implements nstancev1.OperatorServiceServer.
func (s *Shard) PauseGroup(_ context.Context, r *nstancev1.PauseGroupRequest) (*nstancev1.PauseGroupResponse, error) {
	g, err := s.changeRollout(r.GetGroup(), func(g *nstancev1.GroupStatus) { g.Paused = true })
	return &nstancev1.PauseGroupResponse{Group: g}, err
}

// ResumeGroup implements nstancev1.OperatorServiceServer.
func (s *Shard) ResumeGroup(_ context.Context, r *nstancev1.ResumeGroupRequest) (*nstancev1.ResumeGroupResponse,
	error) {
	g, err := s.changeRollout(r.GetGroup(), func(g *nstancev1.GroupStatus) {
		g.Paused, g.RolloutWaits, g.Halted = false, "", nil
	})
	return &nstancev1.ResumeGroupResponse{Group: g}, err
}

// RollGroup implements nstancev1.OperatorServiceServer. It makes every instance outdated.
func (s *Shard) RollGroup(_ context.Context, r *nstancev1.RollGroupRequest) (*nstancev1.RollGroupResponse, error) {
	g, err := s.changeRollout(r.GetGroup(), func(g *nstancev1.GroupStatus) { g.Outdated = g.GetActualSize() })
	return &nstancev1.RollGroupResponse{Group: g}, err
}

func (s *Shard) changeRollout(name string, change func(*nstancev1.GroupStatus)) (*nstancev1.GroupStatus, error) {
	g := s.group(name)
	if g == nil {
		return nil, status.Errorf(codes.NotFound, "group: there is no group %s", name)
	}
	change(g)
	return g, nil
}

// UpsertGroup implements nstancev1.OperatorServiceServer. It applies the patch to the merged settings, and checks every
// condition that nstance-admin depends on.
func (s *Shard) UpsertGroup(_ context.Context, r *nstancev1.UpsertGroupRequest) (*nstancev1.UpsertGroupResponse,
	error) {
	s.Upserts = append(s.Upserts, proto.CloneOf(r))
	g := s.group(r.GetGroup())
	switch {
	case g == nil && r.GetMustExist():
		return nil, status.Errorf(codes.NotFound, "group: there is no %q", r.GetGroup())
	case r.GetExpectedEtag() != "" && (g == nil || g.GetEtag() != r.GetExpectedEtag()):
		return nil, status.Error(codes.Aborted, "expected_etag: the group has changed")
	case g != nil && r.GetMustCreate():
		return nil, status.Errorf(codes.AlreadyExists, "group: group %s exists already", r.GetGroup())
	case g == nil:
		g = &nstancev1.GroupStatus{Group: r.GetGroup(), Kind: "wrk"}
		s.Groups = append(s.Groups, g)
	}
	patch, problems := config.ParsePatch("", []byte(r.GetPatch()))
	if err := problems.Err(); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	_, removed := patch.Paths()
	tree := patchTree(r.GetPatch(), "", func(path string) (configured any, keep bool) {
		n := slices.IndexFunc(g.GetOverrides(), func(o *nstancev1.GroupOverride) bool { return o.GetPath() == path })
		if n < 0 {
			return nil, !g.GetIsStatic()
		}
		_ = json.Unmarshal([]byte(g.GetOverrides()[n].GetConfigured()), &configured)
		return configured, true
	})
	g.Overrides = slices.DeleteFunc(g.GetOverrides(), func(o *nstancev1.GroupOverride) bool {
		return slices.Contains(removed, o.GetPath())
	})
	if size, ok := tree["size"].(float64); ok {
		g.Size = uint32(size)
	}
	var settings map[string]any
	_ = json.Unmarshal([]byte(cmp.Or(g.GetMergedJson(), "{}")), &settings)
	settings = config.MergePatch(settings, tree)
	settings["size"] = g.GetSize()
	merged, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	g.MergedJson = string(merged)
	g.Etag = fmt.Sprintf("etag-%d", len(s.Upserts)+1)
	return &nstancev1.UpsertGroupResponse{Group: g}, nil
}

// patchTree returns a merge patch as a tree. The function gives the values in place of null; a member that it does not
// keep is left out.
func patchTree(patch, path string, instead func(path string) (value any, keep bool)) map[string]any {
	var tree map[string]any
	_ = json.Unmarshal([]byte(patch), &tree)
	for name, value := range tree {
		below := config.ChildPath(path, name)
		if value == nil {
			if configured, keep := instead(below); keep {
				tree[name] = configured
			} else {
				delete(tree, name)
			}
			continue
		}
		if _, ok := value.(map[string]any); ok {
			text, _ := json.Marshal(value)
			tree[name] = patchTree(string(text), below, instead)
		}
	}
	return tree
}

// DeleteGroup implements nstancev1.OperatorServiceServer.
func (s *Shard) DeleteGroup(_ context.Context, r *nstancev1.DeleteGroupRequest) (*nstancev1.DeleteGroupResponse,
	error) {
	g := s.group(r.GetGroup())
	switch {
	case g == nil:
		return nil, status.Errorf(codes.NotFound, "group: there is no %q", r.GetGroup())
	case g.GetIsStatic() && !g.GetOverridden():
		return nil,
			status.Errorf(codes.FailedPrecondition, "group: %q is static: remove it from the shard's configuration",
				r.GetGroup())
	case g.GetIsStatic():
		g.Overridden = false
		return &nstancev1.DeleteGroupResponse{RestoredStatic: true}, nil
	}
	g.Deleting = true
	return &nstancev1.DeleteGroupResponse{}, nil
}

func (s *Shard) instance(id string) *nstancev1.InstanceStatus {
	for _, i := range s.Instances {
		if i.GetInstanceId() == id {
			return i
		}
	}
	return nil
}

// CreateInstance implements nstancev1.OperatorServiceServer.
func (s *Shard) CreateInstance(_ context.Context, r *nstancev1.CreateInstanceRequest) (
	*nstancev1.CreateInstanceResponse, error) {
	if _, err := ident.ParseID(r.GetInstanceId()); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "instance_id: %v", err)
	}
	i := s.instance(r.GetInstanceId())
	if i == nil {
		i = &nstancev1.InstanceStatus{InstanceId: r.GetInstanceId(), Group: r.GetGroup(), OnDemand: true,
			State: "reserved", InstanceType: r.GetInstanceType(), CreatedAt: timestamppb.New(Now)}
		s.Instances = append(s.Instances, i)
	}
	return &nstancev1.CreateInstanceResponse{Instance: i}, nil
}

// DeleteInstance implements nstancev1.OperatorServiceServer. If the request has Decrement set and the instance is not
// being deleted yet, the group gets smaller by one.
func (s *Shard) DeleteInstance(_ context.Context, r *nstancev1.DeleteInstanceRequest) (
	*nstancev1.DeleteInstanceResponse, error) {
	i := s.instance(r.GetInstanceId())
	if i == nil {
		return nil, status.Errorf(codes.NotFound, "instance_id: there is no %q", r.GetInstanceId())
	}
	answer := &nstancev1.DeleteInstanceResponse{Instance: i}
	if r.GetDecrement() {
		if answer.Group = s.group(i.GetGroup()); i.GetState() != "deleting" {
			answer.Group.Size--
		}
	}
	i.State, i.DeleteReason = "deleting", r.GetReason()
	return answer, nil
}

// ProtectInstance implements nstancev1.OperatorServiceServer.
func (s *Shard) ProtectInstance(_ context.Context, r *nstancev1.ProtectInstanceRequest) (
	*nstancev1.ProtectInstanceResponse, error) {
	i := s.instance(r.GetInstanceId())
	if i == nil {
		return nil, status.Errorf(codes.NotFound, "instance_id: there is no %q", r.GetInstanceId())
	}
	i.Protected = !r.GetOff()
	return &nstancev1.ProtectInstanceResponse{Instance: i}, nil
}

// GetScalingHistory implements nstancev1.OperatorServiceServer.
func (s *Shard) GetScalingHistory(_ context.Context, r *nstancev1.GetScalingHistoryRequest) (
	*nstancev1.GetScalingHistoryResponse, error) {
	if s.group(r.GetGroup()) == nil {
		return nil, status.Errorf(codes.NotFound, "group: there is no group %s", r.GetGroup())
	}
	if h := s.Scaling[r.GetGroup()]; h != nil {
		return h, nil
	}
	return &nstancev1.GetScalingHistoryResponse{}, nil
}

// GetInstanceConsole implements nstancev1.OperatorServiceServer.
func (s *Shard) GetInstanceConsole(_ context.Context, r *nstancev1.GetInstanceConsoleRequest) (
	*nstancev1.GetInstanceConsoleResponse, error) {
	if s.instance(r.GetInstanceId()) == nil {
		return nil, status.Errorf(codes.NotFound, "instance_id: there is no instance %s", r.GetInstanceId())
	}
	if s.Console == "" {
		return nil, status.Error(codes.FailedPrecondition,
			"the servers cannot read consoles of this shard's provider: use the tools of the provider")
	}
	return &nstancev1.GetInstanceConsoleResponse{Text: s.Console, Cut: true}, nil
}

// ReleaseInstance implements nstancev1.OperatorServiceServer.
func (s *Shard) ReleaseInstance(_ context.Context, r *nstancev1.ReleaseInstanceRequest) (
	*nstancev1.ReleaseInstanceResponse, error) {
	i := s.instance(r.GetInstanceId())
	switch {
	case i == nil:
		return nil, status.Errorf(codes.NotFound, "instance_id: there is no %q", r.GetInstanceId())
	case i.GetPreservedAt() == nil:
		return nil, status.Errorf(codes.FailedPrecondition, "instance_id: instance %s is not preserved",
			r.GetInstanceId())
	}
	i.State, i.DeleteReason, i.PreservedUntil = "deleting", "released", nil
	return &nstancev1.ReleaseInstanceResponse{Instance: i}, nil
}

// GetInstanceStatus implements nstancev1.OperatorServiceServer. If s.Drained is set, it marks an instance that is being
// deleted as deleted.
func (s *Shard) GetInstanceStatus(_ context.Context, r *nstancev1.GetInstanceStatusRequest) (
	*nstancev1.GetInstanceStatusResponse, error) {
	i := s.instance(r.GetInstanceId())
	if i == nil {
		return nil, status.Errorf(codes.NotFound, "instance_id: there is no %q", r.GetInstanceId())
	}
	if s.Drained && i.GetState() == "deleting" {
		i.State = "deleted"
	}
	return &nstancev1.GetInstanceStatusResponse{Instance: i}, nil
}

// ListInstances implements nstancev1.OperatorServiceServer.
func (s *Shard) ListInstances(_ context.Context, r *nstancev1.ListInstancesRequest) (*nstancev1.ListInstancesResponse,
	error) {
	out := &nstancev1.ListInstancesResponse{}
	for _, i := range s.Instances {
		if (r.GetGroup() == "" || r.GetGroup() == i.GetGroup()) && (!r.GetPreserved() || i.GetPreservedAt() != nil) {
			out.Instances = append(out.Instances, i)
		}
	}
	from := 1 + slices.IndexFunc(out.Instances, func(i *nstancev1.InstanceStatus) bool {
		return i.GetInstanceId() == r.GetPageToken()
	})
	size := 1
	if s.LongPages {
		size = int(r.GetPageSize())
	}
	if out.Instances = out.Instances[from:]; r.GetPageSize() > 0 && len(out.Instances) > size {
		out.Instances = out.Instances[:size]
		out.NextPageToken = out.Instances[size-1].GetInstanceId()
	}
	return out, nil
}

// WatchGroups implements nstancev1.OperatorServiceServer.
func (s *Shard) WatchGroups(_ *nstancev1.WatchGroupsRequest, stream nstancev1.OperatorService_WatchGroupsServer) error {
	return follow(stream.Context(), s, "WatchGroups", &s.GroupEvents, func(e *nstancev1.GroupEvent) error {
		return stream.Send(&nstancev1.WatchGroupsResponse{Event: e})
	})
}

// WatchInstances implements nstancev1.OperatorServiceServer.
func (s *Shard) WatchInstances(_ *nstancev1.WatchInstancesRequest,
	stream nstancev1.OperatorService_WatchInstancesServer) error {
	return follow(stream.Context(), s, "WatchInstances", &s.InstanceEvents, func(e *nstancev1.InstanceEvent) error {
		return stream.Send(&nstancev1.WatchInstancesResponse{Event: e})
	})
}

// WatchErrors implements nstancev1.OperatorServiceServer.
func (s *Shard) WatchErrors(_ *nstancev1.WatchErrorsRequest, stream nstancev1.OperatorService_WatchErrorsServer) error {
	return follow(stream.Context(), s, "WatchErrors", &s.ErrorEvents, func(e *nstancev1.ErrorEvent) error {
		return stream.Send(&nstancev1.WatchErrorsResponse{Event: e})
	})
}

func follow[E any](ctx context.Context, s *Shard, method string, from *chan E, send func(E) error) error {
	leave, err := s.enter(ctx, method)
	if err != nil {
		return err
	}
	events := *from
	leave()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-events:
			if !ok {
				return s.Ended
			}
			if err := send(e); err != nil {
				return err
			}
		}
	}
}
