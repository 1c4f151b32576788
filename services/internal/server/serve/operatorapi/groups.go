package operatorapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// ListGroups lists the tenant's groups, sorted by name.
func (c *call) ListGroups(_ context.Context, req *nstancev1.ListGroupsRequest) (*nstancev1.ListGroupsResponse, error) {
	after := req.GetPageToken()
	if after != "" {
		if err := groupName("page_token", after); err != nil {
			return nil, err
		}
	}
	views, more := pageOf(c.state().GroupViews(c.tenant), req.GetPageSize(), func(v shardstate.GroupView) bool {
		return v.GroupKey.Group > after
	})
	answer := &nstancev1.ListGroupsResponse{}
	if name := req.GetGroup(); name != "" {
		if err := groupName("group", name); err != nil {
			return nil, err
		}
		view, ok := c.state().GroupView(c.key(name))
		if !ok {
			return nil, errNoGroup(c.key(name))
		}
		answer.Groups = append(answer.Groups, c.groupStatus(view))
		return answer, nil
	}
	for _, view := range views {
		answer.Groups = append(answer.Groups, c.groupStatus(view))
	}
	if more {
		answer.NextPageToken = views[len(views)-1].GroupKey.Group
	}
	return answer, nil
}

// pageOf returns the next page of the sorted views, and whether more follow. The page has at most size views; with size
// zero, there is no limit. It begins with the first view for which the function "after" returns true.
func pageOf[V any](views []V, size uint32, after func(V) bool) (page []V, more bool) {
	n := slices.IndexFunc(views, after)
	if n < 0 {
		return nil, false
	}
	if page = views[n:]; size == 0 || len(page) <= int(size) {
		return page, false
	}
	return page[:size], true
}

// UpsertGroup creates a group, or changes a group by a merge patch.
func (c *call) UpsertGroup(_ context.Context, req *nstancev1.UpsertGroupRequest) (
	*nstancev1.UpsertGroupResponse, error) {
	patch, err := parsePatch(req)
	if err != nil {
		return nil, err
	}
	key := c.key(req.GetGroup())
	by := c.caller(req.Pin)
	set, removed := patch.Paths()
	if by.Sets = set; req.GetUntil() != nil {
		if by.Until = req.GetUntil().AsTime(); !slices.Equal(set, []string{"size"}) || !by.Until.After(by.At) {
			return nil, invalid("until", "want a time in the future, and a patch that sets only size")
		}
	}
	had, _ := c.Config.Override(key)
	group, err := c.Config.Upsert(c, key, req.GetExpectedEtag(), by, func(spec *config.GroupSpec, exists bool) error {
		if !exists && req.GetMustExist() {
			return errNoGroup(key)
		}
		if exists && req.GetMustCreate() {
			return status.Errorf(codes.AlreadyExists, "group: group %s exists already", key.Group)
		}
		_, static := c.Config.Shard().Groups[key.Tenant][key.Group]
		if !static && (req.GetPin() || req.GetUntil() != nil) {
			return invalid("pin and until", "group %s is dynamic: no configuration has another value for it", key.Group)
		}
		if static {
			if paths := patch.Restricted(); len(paths) > 0 {
				c.refuses(key, paths)
				return status.Errorf(codes.FailedPrecondition,
					"%s: cannot be changed: group %s is static, only %s can be", strings.Join(paths, ", "), key.Group,
					strings.Join(config.OperatorFields(), ", "))
			}
		}
		changed, err := patch.Apply(*spec)
		if err != nil {
			return &shardconfig.RefusedError{Err: err}
		}
		if static {
			changed = c.Config.Shard().Unset(key, changed, removed)
		}
		*spec = changed
		return c.permitGroup(key, *spec)
	})
	if err != nil {
		return nil, c.groupFault(key, err)
	}
	c.addEvent(record.Event{Kind: record.EventGroupChanged, Group: key.Group, Message: fmt.Sprintf("size %d",
		group.Size)})
	for _, field := range c.Config.Shard().SetFields(key, had, c.Now()) {
		if slices.ContainsFunc(removed, field.In) {
			c.addEvent(record.Event{Kind: record.EventOverrideEnded, Group: key.Group,
				Message: field.EndText("it is reset")})
		}
	}
	view, ok := c.state().GroupView(key)
	if !ok {
		view = shardstate.GroupView{Group: group}
	}
	return &nstancev1.UpsertGroupResponse{Group: c.groupStatus(view)}, nil
}

// caller describes the caller for a change of a group. A caller that does not say whether its values are pinned keeps
// the group as it wants, such as nstance-operator: they are.
func (c *call) caller(pin *bool) config.Caller {
	return config.Caller{Name: cmp.Or(c.name, c.operator.String()), At: c.Now(), Pinned: pin == nil || *pin}
}

// DeleteGroup deletes a dynamic group as soon as its instances are gone. For a static group, it removes the override
// immediately.
func (c *call) DeleteGroup(_ context.Context, req *nstancev1.DeleteGroupRequest) (
	*nstancev1.DeleteGroupResponse, error) {
	if err := groupName("group", req.GetGroup()); err != nil {
		return nil, err
	}
	if err := checkText("expected_etag", req.GetExpectedEtag(), maxText); err != nil {
		return nil, err
	}
	key := c.key(req.GetGroup())
	restored, err := c.Config.Delete(c, key, req.GetExpectedEtag())
	if err != nil {
		return nil, c.groupFault(key, err)
	}
	message := ""
	if restored {
		message = "it has the values of the configuration again"
	}
	c.addEvent(record.Event{Kind: record.EventGroupDeleted, Group: key.Group, Message: message})
	return &nstancev1.DeleteGroupResponse{RestoredStatic: restored}, nil
}

// key returns the key of one of the tenant's groups.
func (c *call) key(group string) config.GroupKey {
	return config.GroupKey{Tenant: c.tenant, Group: group}
}

func errNoGroup(key config.GroupKey) error {
	return status.Errorf(codes.NotFound, "group: there is no group %s", key.Group)
}

// groupFault converts an error from reading or changing a group to a status error.
func (c *call) groupFault(key config.GroupKey, err error) error {
	var refused *shardconfig.RefusedError
	var superseded *shardconfig.SupersededError
	switch {
	case errors.As(err, &superseded):
		c.Leader.Leader.Executor.Authority.Refuse(superseded.Term) // a newer term exists
	case errors.As(err, &refused):
		return c.refusedGroup(key, refused)
	case errors.Is(err, shardconfig.ErrNoGroup):
		return errNoGroup(key)
	case errors.Is(err, shardconfig.ErrGroupChanged):
		return status.Errorf(codes.Aborted,
			"expected_etag: group %s has changed: read it again", key.Group)
	case errors.Is(err, shardconfig.ErrStaticGroup):
		return status.Errorf(codes.FailedPrecondition,
			"group: %s is static and has no values of operators to remove: remove it from the shard's configuration",
			key.Group)
	}
	return err
}

// refusedGroup returns an error that lists every refused field of a group, under the names that the request uses.
func (c *call) refusedGroup(key config.GroupKey, err error) error {
	if denied, ok := errors.AsType[*config.DeniedError](err); ok {
		return c.refusal(codes.PermissionDenied, key, denied.Problems)
	}
	var found config.Problems
	if !errors.As(err, &found) {
		return status.Error(codes.InvalidArgument, "group: "+err.Error())
	}
	return status.Error(codes.InvalidArgument, listed("group", found))
}

// PauseGroup stops a group's rollout.
func (c *call) PauseGroup(_ context.Context, req *nstancev1.PauseGroupRequest) (*nstancev1.PauseGroupResponse, error) {
	group, err := c.changeRollout(req.GetGroup(), "its rollout is paused", func(r *config.Rollout) {
		r.Paused = true
	})
	return &nstancev1.PauseGroupResponse{Group: group}, err
}

// ResumeGroup ends the pause of a group's rollout, or starts a halted rollout again.
func (c *call) ResumeGroup(_ context.Context, req *nstancev1.ResumeGroupRequest) (
	*nstancev1.ResumeGroupResponse, error) {
	group, err := c.changeRollout(req.GetGroup(), "its rollout is resumed", func(r *config.Rollout) {
		r.Paused = false
	})
	if err != nil {
		return nil, err
	}
	key := c.key(req.GetGroup())
	if err := c.Config.EndHalt(c, key); err != nil {
		return nil, c.groupFault(key, err)
	}
	if c.rehearsal != nil {
		c.rehearsal.resumed = true
		return &nstancev1.ResumeGroupResponse{}, nil
	}
	c.state().ResumeRollout(key)
	if view, ok := c.state().GroupView(key); ok {
		group = c.groupStatus(view)
	}
	return &nstancev1.ResumeGroupResponse{Group: group}, nil
}

// RollGroup starts to replace all instances of a group. The time of the call becomes the revision of the rollout.
func (c *call) RollGroup(_ context.Context, req *nstancev1.RollGroupRequest) (*nstancev1.RollGroupResponse, error) {
	group, err := c.changeRollout(req.GetGroup(), "its instances are rolled", func(r *config.Rollout) {
		r.Revision = c.Now().UTC().Format(time.RFC3339)
	})
	return &nstancev1.RollGroupResponse{Group: group}, err
}

// changeRollout changes the rollout of a dynamic group, or of a static group's override. The journal describes the
// change with the text in the parameter "what".
func (c *call) changeRollout(name, what string, change func(*config.Rollout)) (*nstancev1.GroupStatus, error) {
	if err := groupName("group", name); err != nil {
		return nil, err
	}
	key := c.key(name)
	unpinned := false
	group, err := c.Config.Upsert(c, key, "", c.caller(&unpinned), func(spec *config.GroupSpec, exists bool) error {
		if !exists {
			return errNoGroup(key)
		}
		// If the configuration pauses a static group, the group is paused, unless its override has a rollout of its
		// own.
		var inherited config.Rollout
		if static, ok := c.Config.Shard().Groups[key.Tenant][key.Group]; ok && static.Rollout != nil {
			inherited.Paused = static.Rollout.Paused
		}
		rollout := inherited
		if spec.Rollout != nil {
			rollout = *spec.Rollout
		}
		change(&rollout)
		if spec.Rollout = &rollout; rollout == inherited {
			spec.Rollout = nil
		}
		return nil
	})
	if err != nil {
		return nil, c.groupFault(key, err)
	}
	c.addEvent(record.Event{Kind: record.EventGroupChanged, Group: key.Group, Message: what})
	view, ok := c.state().GroupView(key)
	if !ok {
		view.Group = group
	}
	return c.groupStatus(view), nil
}
