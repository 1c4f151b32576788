package fleet

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// ExplanationAnswer is the plan of a shard's leader for one group.
type ExplanationAnswer struct {
	Outcome
	*Explanation
}

// Explanation is what a leader would do next for a group and why. ExplainGroupResponse in operator.proto explains the
// fields.
type Explanation struct {
	Group          string          `json:"group"`
	PlannedAt      time.Time       `json:"planned_at,omitzero"`
	Term           uint64          `json:"term"`
	Desired        uint32          `json:"desired"`
	BlockedReason  string          `json:"blocked_reason,omitempty" jsonschema:"description=Why the group is not at its size"`
	BlockedUntil   time.Time       `json:"blocked_until,omitzero" jsonschema:"description=When that reason ends because of the time alone"`
	RolloutWaits   string          `json:"rollout_waits,omitempty" jsonschema:"description=Why outdated instances are not replaced now"`
	RolloutUntil   time.Time       `json:"rollout_until,omitzero" jsonschema:"description=When the reason in rollout_waits ends because time has passed"`
	UnhealthyGuard bool            `json:"unhealthy_guard,omitempty" jsonschema:"description=So many instances are silent or unhealthy that none of them is replaced"`
	NextPlanAt     time.Time       `json:"next_plan_at,omitzero" jsonschema:"description=When the group is planned again even if nothing happens"`
	Actions        []PlannedAction `json:"actions"`
	Instances      []Verdict       `json:"instances"`
	Errors         []Event         `json:"errors,omitempty" jsonschema:"description=The active alerts of the group and of its shard"`
}

// PlannedAction is one action of a plan.
type PlannedAction struct {
	Kind     string    `json:"kind"`
	ID       string    `json:"instance_id,omitempty"`
	Replaces string    `json:"replaces,omitempty"`
	Reason   string    `json:"reason"`
	Cause    string    `json:"cause,omitempty"`
	Deadline time.Time `json:"deadline,omitzero"`
}

// Verdict is how a leader classifies one instance.
type Verdict struct {
	ID            string    `json:"instance_id"`
	Rule          uint32    `json:"rule" jsonschema:"description=Number of the planning rule that classifies the instance"`
	RuleName      string    `json:"rule_name"`
	Cause         string    `json:"cause,omitempty" jsonschema:"description=Why the instance's own state requires its deletion or replacement"`
	Until         time.Time `json:"until,omitzero" jsonschema:"description=When another rule may apply to the instance because time has passed"`
	Work          string    `json:"work,omitempty" jsonschema:"description=What is under way for the instance"`
	DrainDeadline time.Time `json:"drain_deadline,omitzero"`
	FailedCheck   string    `json:"failed_check,omitempty" jsonschema:"description=The health check or load balancer that calls the instance unhealthy and the reason"`
	Refused       string    `json:"refused,omitempty" jsonschema:"description=Why the leader last refused the instance's agent"`
}

// Blocked says why the group does not have its desired size and, if known, until when.
func (e *Explanation) Blocked() string { return reasonUntil(e.BlockedReason, e.BlockedUntil) }

// RolloutText says why outdated instances are not replaced now and, if known, until when.
func (e *Explanation) RolloutText() string { return reasonUntil(e.RolloutWaits, e.RolloutUntil) }

// GuardText says why no silent or failing instance is replaced: too many instances are silent or failing (rules 26 and
// 61).
func (e *Explanation) GuardText() string {
	held, failing, check := 0, 0, ""
	for _, v := range e.Instances {
		if v.RuleName != "held" {
			continue
		}
		if held++; v.FailedCheck != "" {
			failing++
			check = v.FailedCheck
		}
	}
	what := "are, or just were, silent, failing a health check or unhealthy in a load balancer"
	if held > 0 && failing == held {
		what = "fail, or just failed, a check (" + check + ")"
	}
	return "too many instances " + what + ": none of them is replaced (rules 26 and 61)"
}

// Idle returns a sentence which says that no action is planned. It also lists the active alerts.
func (e *Explanation) Idle() string {
	var kinds []string
	for _, err := range e.Errors {
		kinds = append(kinds, err.Kind)
	}
	switch {
	case len(kinds) > 0:
		slices.Sort(kinds)
		return "No action is planned now. Active alerts: " + strings.Join(slices.Compact(kinds), ", ") + "."
	case e.UnhealthyGuard || e.BlockedReason != "":
		return "No action is planned now."
	}
	return "Nothing is to be done now."
}

// Explain returns what the leaders would do next for one group. If size is set, they plan as if the group had that
// size. Nothing is changed.
func (f *Fleet) Explain(ctx context.Context, shards []string, group string, size *uint32) []ExplanationAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *ExplanationAnswer) error {
		var err error
		into.Explanation, err = f.explain(ctx, shard, group, size)
		return err
	})
}

func (f *Fleet) explain(ctx context.Context, shard, group string, size *uint32) (view *Explanation, err error) {
	err = f.call(ctx, shard, func(ctx context.Context, c Client) error {
		r, err := c.ExplainGroup(ctx, &nstancev1.ExplainGroupRequest{Group: group, Size: size})
		if err == nil {
			view = viewExplanation(shard, group, r)
		}
		return err
	})
	return view, err
}

// ExplainInstance returns what the leaders would do next for one instance. It changes nothing.
func (f *Fleet) ExplainInstance(ctx context.Context, shards []string, id ident.ID) []ExplanationAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *ExplanationAnswer) error {
		return f.call(ctx, shard, func(ctx context.Context, c Client) error {
			i, err := c.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id.String()})
			if err != nil {
				return err
			}
			group := i.GetInstance().GetGroup()
			r, err := c.ExplainGroup(ctx, &nstancev1.ExplainGroupRequest{Group: group})
			if err != nil {
				return err
			}
			e := viewExplanation(shard, group, r)
			e.Actions = slices.DeleteFunc(e.Actions, func(a PlannedAction) bool {
				return a.ID != id.String() && a.Replaces != id.String()
			})
			e.Instances = slices.DeleteFunc(e.Instances, func(v Verdict) bool { return v.ID != id.String() })
			if len(e.Instances) == 0 {
				return refuse(shard, codes.FailedPrecondition, "nstance-admin explain group "+group+
					" shows those that are there", "instance %s is %s, so that no rule applies to it", id,
					i.GetInstance().GetState())
			}
			into.Explanation = e
			return nil
		})
	})
}

func viewExplanation(shard, group string, r *nstancev1.ExplainGroupResponse) *Explanation {
	view := &Explanation{Group: group, PlannedAt: at(r.GetPlannedAt()), Term: r.GetTerm(), Desired: r.GetDesired(),
		BlockedReason: r.GetBlockedReason(), BlockedUntil: at(r.GetBlockedUntil()), RolloutWaits: r.GetRolloutWaits(),
		RolloutUntil:   at(r.GetRolloutUntil()),
		UnhealthyGuard: r.GetUnhealthyGuard(), NextPlanAt: at(r.GetNextPlanAt()),
		Actions: []PlannedAction{}, Instances: []Verdict{}}
	for _, a := range r.GetActions() {
		view.Actions = append(view.Actions, PlannedAction{a.GetKind(), a.GetInstanceId(), a.GetReplaces(),
			a.GetReason(), a.GetCause(), at(a.GetDeadline())})
	}
	for _, v := range r.GetInstances() {
		view.Instances = append(view.Instances, Verdict{v.GetInstanceId(), v.GetRule(), v.GetRuleName(), v.GetCause(),
			at(v.GetUntil()), v.GetWork(), at(v.GetDrainDeadline()), v.GetFailedCheck(),
			v.GetRefused()})
	}
	for _, e := range r.GetErrors() {
		view.Errors = append(view.Errors, viewErrorEvent(shard, e))
	}
	return view
}
