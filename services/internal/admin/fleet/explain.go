package fleet

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// ExplanationAnswer is the plan of a shard's leader for one group.
type ExplanationAnswer struct {
	Answer[*nstancev1.ExplainGroupResponse]
	Group string `json:"group,omitempty"`
}

// MarshalJSON returns the answer as JSON.
func (a ExplanationAnswer) MarshalJSON() ([]byte, error) {
	return object(a.Outcome, struct {
		Group string `json:"group,omitempty"`
	}{a.Group}, a.Message)
}

// Blocked says why a group does not have its desired size and, if known, until when. It is empty if the group has that
// size, or if the leader can reach it without waiting.
func Blocked(of interface {
	GetBlockedReason() string
	GetBlockedUntil() *timestamppb.Timestamp
}) string {
	return reasonUntil(of.GetBlockedReason(), of.GetBlockedUntil())
}

// RolloutText says why outdated instances are not replaced now and, if known, until when.
func RolloutText(e *nstancev1.ExplainGroupResponse) string {
	return reasonUntil(e.GetRolloutWaits(), e.GetRolloutUntil())
}

// reasonUntil adds to a reason the time at which the reason ends. If that time is not known, reasonUntil returns the
// reason unchanged.
func reasonUntil(reason string, until *timestamppb.Timestamp) string {
	if reason == "" || until == nil {
		return reason
	}
	return reason + ", until " + until.AsTime().Format(time.RFC3339)
}

// GuardText says why no silent or failing instance is replaced: too many instances are silent or failing (rules 26 and
// 61).
func GuardText(e *nstancev1.ExplainGroupResponse) string {
	held, failing, check := 0, 0, ""
	for _, v := range e.GetInstances() {
		if v.GetRuleName() != "held" {
			continue
		}
		if held++; v.GetFailedCheck() != "" {
			failing++
			check = v.GetFailedCheck()
		}
	}
	what := "are, or just were, silent, failing a health check or unhealthy in a load balancer"
	if held > 0 && failing == held {
		what = "fail, or just failed, a check (" + check + ")"
	}
	return "too many instances " + what + ": none of them is replaced (rules 26 and 61)"
}

// Idle returns a sentence which says that no action is planned. It also lists the active alerts.
func Idle(e *nstancev1.ExplainGroupResponse) string {
	var kinds []string
	for _, err := range e.GetErrors() {
		kinds = append(kinds, err.GetKind())
	}
	switch {
	case len(kinds) > 0:
		slices.Sort(kinds)
		return "No action is planned now. Active alerts: " + strings.Join(slices.Compact(kinds), ", ") + "."
	case e.GetUnhealthyGuard() || e.GetBlockedReason() != "":
		return "No action is planned now."
	}
	return "Nothing is to be done now."
}

// Explain returns what the leaders would do next for one group. If size is set, they plan as if the group had that
// size. Nothing is changed.
func (f *Fleet) Explain(ctx context.Context, shards []string, group string, size *uint32) []ExplanationAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *ExplanationAnswer) (err error) {
		if into.Message, err = f.explain(ctx, shard, group, size); err == nil {
			into.Group = group
		}
		return err
	})
}

func (f *Fleet) explain(ctx context.Context, shard, group string,
	size *uint32) (r *nstancev1.ExplainGroupResponse, err error) {
	err = f.call(ctx, shard, func(ctx context.Context, c Client) (err error) {
		r, err = c.ExplainGroup(ctx, &nstancev1.ExplainGroupRequest{Group: group, Size: size})
		return err
	})
	return r, err
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
			r.Actions = slices.DeleteFunc(r.GetActions(), func(a *nstancev1.PlannedAction) bool {
				return a.GetInstanceId() != id.String() && a.GetReplaces() != id.String()
			})
			r.Instances = slices.DeleteFunc(r.GetInstances(), func(v *nstancev1.InstanceVerdict) bool {
				return v.GetInstanceId() != id.String()
			})
			if len(r.GetInstances()) == 0 {
				return refuse(shard, codes.FailedPrecondition, "nstance-admin explain group "+group+
					" shows those that are there", "instance %s is %s, so that no rule applies to it", id,
					i.GetInstance().GetState())
			}
			into.Group, into.Message = group, r
			return nil
		})
	})
}
