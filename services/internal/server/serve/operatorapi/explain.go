package operatorapi

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// ExplainGroup returns the leader's next plan for one of the tenant's groups, and changes nothing.
func (c *call) ExplainGroup(_ context.Context, req *nstancev1.ExplainGroupRequest) (
	*nstancev1.ExplainGroupResponse, error) {
	name := req.GetGroup()
	var only shardstate.InstanceView // zero: all instances
	if req.GetInstanceId() != "" {
		var err error
		if only, err = c.instance(req.GetInstanceId()); err != nil {
			return nil, err
		}
		name = cmp.Or(name, only.Record.Group)
	}
	about := func(ids ...ident.ID) bool {
		return req.GetInstanceId() == "" || slices.Contains(ids, only.Record.ID)
	}
	if err := groupName("group", name); err != nil {
		return nil, err
	}
	key := c.key(name)
	snapshot, e, ok := c.Leader.Leader.Loop.Explain(key)
	if !ok {
		return nil, errNoGroup(key)
	}
	answer := c.explained(key, snapshot, e, about)
	if req.GetInstanceId() != "" && len(answer.GetInstances()) == 0 {
		return nil, status.Errorf(codes.FailedPrecondition,
			"instance_id: instance %s is %s, so that no rule applies to it", only.Record.ID, only.Record.State)
	}
	for _, v := range e.Verdicts {
		if v.Instance == only.Record.ID {
			answer.Wait = wait(v.Wait, snapshot.Now)
		}
	}
	return answer, nil
}

// explained describes the plan of a group, as far as it is about the instances that the function "about" selects.
func (c *call) explained(key config.GroupKey, snapshot plan.Snapshot, e plan.Explanation,
	about func(...ident.ID) bool) *nstancev1.ExplainGroupResponse {
	answer := &nstancev1.ExplainGroupResponse{Group: key.Group, PlannedAt: timestamp(snapshot.Now), Term: snapshot.Term,
		Desired: uint32(e.Desired), BlockedReason: e.Blocked, BlockedUntil: timestamp(e.BlockedUntil),
		NextPlanAt:     timestamp(e.NextPlan),
		UnhealthyGuard: e.Guarded, RolloutWaits: e.Rollout, RolloutUntil: timestamp(e.RolloutUntil),
		Wait: wait(e.Says, snapshot.Now), Rollout: progress(e.Progress)}
	for _, a := range e.Actions {
		if a.Kind == plan.RaiseError || a.Kind == plan.ResolveError || !about(a.Instance, a.Replaces) {
			continue // errors has the active ones
		}
		answer.Actions = append(answer.Actions, &nstancev1.PlannedAction{Kind: string(a.Kind), Reason: a.Why(),
			Cause: string(a.Cause), InstanceId: a.Instance.String(), Replaces: a.Replaces.String(),
			Deadline: timestamp(a.Deadline)})
	}
	if view, ok := c.state().GroupView(key); ok && view.Scaled != nil {
		answer.Scaling = groupScaling(view.Scaled)
	}
	for n, v := range e.Verdicts {
		if !about(v.Instance) {
			continue
		}
		i := &snapshot.Instances[n]
		answer.Instances = append(answer.Instances, &nstancev1.InstanceVerdict{InstanceId: v.Instance.String(),
			Rule: uint32(v.Rule), RuleName: v.RuleName, Cause: string(v.Cause), Until: timestamp(v.Until),
			Work: i.Work.String(), DrainDeadline: timestamp(i.DeleteDeadline), FailedCheck: i.FailedCheck,
			Refused: i.Refused, DrainWaits: v.DrainWaits, Wait: v.Wait.Words(snapshot.Now), Late: v.Late})
	}
	for _, event := range c.state().Standing(c.tenant) {
		if event.Group == "" || event.Tenant == key.Tenant && event.Group == key.Group {
			answer.Errors = append(answer.Errors, errorEvent(event))
		}
	}
	return answer
}

// wait returns what a group or an instance waits for, or nil if there are no words for it.
func wait(w plan.Wait, now time.Time) *nstancev1.Wait {
	if len(w.Parts) == 0 {
		return nil
	}
	out := &nstancev1.Wait{Text: w.Words(now), Until: timestamp(w.Until), Resting: w.Resting}
	for _, p := range w.Parts {
		out.Parts = append(out.Parts, &nstancev1.WaitPart{Text: p.Words(now), InstanceId: p.Instance.String(),
			At: timestamp(p.At)})
	}
	return out
}

func progress(p plan.Progress) *nstancev1.RolloutProgress {
	if p.Since.IsZero() {
		return nil
	}
	out := &nstancev1.RolloutProgress{Since: timestamp(p.Since), Replaced: uint32(p.Done)}
	if p.Left > 0 {
		out.Left = durationpb.New(p.Left)
	}
	return out
}
