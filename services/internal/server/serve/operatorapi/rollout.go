package operatorapi

import (
	"context"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// PauseGroup stops a group's rollout.
func (s *Service) PauseGroup(ctx context.Context, req *nstancev1.PauseGroupRequest) (*nstancev1.PauseGroupResponse,
	error) {
	return unary(s, ctx, "pause the group", req, func(c *call, req *nstancev1.PauseGroupRequest) (
		*nstancev1.PauseGroupResponse, error) {
		group, err := c.changeRollout(req.GetGroup(), "its rollout is paused", func(r *config.Rollout) {
			r.Paused = true
		})
		return &nstancev1.PauseGroupResponse{Group: group}, err
	})
}

// ResumeGroup ends the pause of a group's rollout, or starts a halted rollout again.
func (s *Service) ResumeGroup(ctx context.Context, req *nstancev1.ResumeGroupRequest) (*nstancev1.ResumeGroupResponse,
	error) {
	return unary(s, ctx, "resume the group", req, func(c *call, req *nstancev1.ResumeGroupRequest) (
		*nstancev1.ResumeGroupResponse, error) {
		group, err := c.changeRollout(req.GetGroup(), "its rollout is resumed", func(r *config.Rollout) {
			r.Paused = false
		})
		if err != nil {
			return nil, err
		}
		c.state().ResumeRollout(c.key(req.GetGroup()))
		return &nstancev1.ResumeGroupResponse{Group: group}, nil
	})
}

// RollGroup starts to replace all instances of a group. The time of the call becomes the revision of the rollout.
func (s *Service) RollGroup(ctx context.Context, req *nstancev1.RollGroupRequest) (*nstancev1.RollGroupResponse,
	error) {
	return unary(s, ctx, "roll the group", req, func(c *call, req *nstancev1.RollGroupRequest) (
		*nstancev1.RollGroupResponse, error) {
		group, err := c.changeRollout(req.GetGroup(), "its instances are rolled", func(r *config.Rollout) {
			r.Revision = c.Now().UTC().Format(time.RFC3339)
		})
		return &nstancev1.RollGroupResponse{Group: group}, err
	})
}

// changeRollout changes the rollout of a dynamic group, or of a static group's override. The journal describes the
// change with the text in the parameter "what".
func (c *call) changeRollout(name, what string, change func(*config.Rollout)) (*nstancev1.GroupStatus, error) {
	if err := groupName("group", name); err != nil {
		return nil, err
	}
	key := c.key(name)
	group, err := c.Config.Upsert(c, key, "", func(spec *config.GroupSpec, exists bool) error {
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
	c.Log.Info("rollout changed", "tenant", key.Tenant, "group", key.Group, "operator", c.operator.String(),
		"change", what)
	c.addEvent(record.Event{Kind: record.EventGroupChanged, Group: key.Group, Message: what})
	view, ok := c.state().GroupView(key)
	if !ok {
		view.Group = group
	}
	return c.groupStatus(view), nil
}
