package operatorapi

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// rehearsal collects what a call would change outside [shardconfig.Manager]. The method of the call runs as always, so
// that it checks its request and finds the change as in the call itself.
type rehearsal struct {
	about   config.GroupKey // the group of the request, or of its instance; zero: none
	deleted map[ident.ID]plan.Deletion
	resumed bool
}

// rehearseDeletion notes a requested deletion, as leader.Leader.DeleteInstance makes it.
func (c *call) rehearseDeletion(id ident.ID, reason string) {
	drain := c.state().DrainTimeout(c.rehearsal.about)
	c.rehearsal.deleted = map[ident.ID]plan.Deletion{id: {Reason: reason, Cause: plan.CauseRequested,
		Deadline: c.Now().Add(drain)}}
}

// ExplainChange runs the method of the change in a rehearsal, and plans every group that has changed.
func (c *call) ExplainChange(ctx context.Context, req *nstancev1.ExplainChangeRequest) (
	*nstancev1.ExplainChangeResponse, error) {
	change := req.ProtoReflect().WhichOneof(req.ProtoReflect().Descriptor().Oneofs().ByName("change"))
	if change == nil {
		return nil, invalid("change", "is missing")
	}
	r := *c
	r.rehearsal, r.Config = &rehearsal{}, c.Config.Rehearse()
	method := "RefreshConfig"
	if change.Message() != nil {
		method = strings.TrimSuffix(string(change.Message().Name()), "Request")
		switch about := req.ProtoReflect().Get(change).Message().Interface().(type) {
		case interface{ GetGroup() string }:
			r.rehearsal.about = c.key(about.GetGroup())
		case interface{ GetInstanceId() string }:
			if view, err := c.instance(about.GetInstanceId()); err == nil {
				r.rehearsal.about = c.key(view.Record.Group)
			}
		}
	}
	if err := c.permit(method); err != nil {
		return nil, err
	}
	answer := &nstancev1.ExplainChangeResponse{}
	var err error
	switch change := req.GetChange().(type) {
	case *nstancev1.ExplainChangeRequest_UpsertGroup:
		_, err = r.UpsertGroup(ctx, change.UpsertGroup)
	case *nstancev1.ExplainChangeRequest_DeleteGroup:
		_, err = r.DeleteGroup(ctx, change.DeleteGroup)
	case *nstancev1.ExplainChangeRequest_PauseGroup:
		_, err = r.PauseGroup(ctx, change.PauseGroup)
	case *nstancev1.ExplainChangeRequest_ResumeGroup:
		_, err = r.ResumeGroup(ctx, change.ResumeGroup)
	case *nstancev1.ExplainChangeRequest_RollGroup:
		_, err = r.RollGroup(ctx, change.RollGroup)
	case *nstancev1.ExplainChangeRequest_DeleteInstance:
		_, err = r.DeleteInstance(ctx, change.DeleteInstance)
	case *nstancev1.ExplainChangeRequest_ReleaseInstance:
		_, err = r.ReleaseInstance(ctx, change.ReleaseInstance)
	case *nstancev1.ExplainChangeRequest_StepDown:
		answer.StepDown, err = r.StepDown(ctx, change.StepDown)
	case *nstancev1.ExplainChangeRequest_ConfirmOrphans:
		answer.ConfirmOrphans, err = r.ConfirmOrphans(ctx, change.ConfirmOrphans)
	case *nstancev1.ExplainChangeRequest_Configuration:
		result, found := r.Config.Configure(change.Configuration)
		answer.Problems, answer.Restarting = problems(found), result == shardconfig.Restart
	}
	if err != nil {
		c.refused = r.refused
		return nil, err
	}
	answer.Groups = c.groupChanges(&r)
	return answer, nil
}

// groupChanges plans the groups that a rehearsal has changed.
func (c *call) groupChanges(r *call) (changes []*nstancev1.GroupChange) {
	before, after := c.Config.Groups(), r.Config.Groups()
	settings := shardstate.SettingsOf(r.Config.Shard())
	everywhere := settings != c.state().Settings()
	names := map[string]bool{}
	for _, groups := range []map[config.GroupKey]config.Group{before, after} {
		for key := range groups {
			_, had := before[key]
			_, has := after[key]
			if key.Tenant == c.tenant && (everywhere || key == r.rehearsal.about || had != has ||
				!reflect.DeepEqual(before[key], after[key])) {
				names[key.Group] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		key := c.key(name)
		change := &nstancev1.GroupChange{}
		supposition := shardstate.Supposition{Settings: settings}
		if group, ok := after[key]; ok {
			supposition.Group = &group
		}
		if key == r.rehearsal.about {
			supposition.Resumed, supposition.Deleted = r.rehearsal.resumed, r.rehearsal.deleted
		}
		if view, ok := c.state().GroupView(key); ok {
			change.Before = withoutInstances(c.groupStatus(view))
		}
		snapshot, explanation, view, ok := c.Leader.Leader.Loop.ExplainChange(key, supposition)
		if !ok {
			continue // it is gone meanwhile
		}
		if supposition.Group != nil {
			change.After = withoutInstances(r.groupStatus(view))
			change.After.BlockedReason, change.After.RolloutWaits = explanation.Blocked, explanation.Rollout
		}
		change.Plan = c.explained(key, snapshot, explanation, func(...ident.ID) bool { return true })
		change.Plan.Instances = nil
		changes = append(changes, change)
	}
	return changes
}

// withoutInstances removes the lists of instances, which may be long, from the status of a group.
func withoutInstances(g *nstancev1.GroupStatus) *nstancev1.GroupStatus {
	g.InstanceIds, g.ProviderIds = nil, nil
	return g
}
