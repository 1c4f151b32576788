package fleet

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

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

// LeaseText says how long a leader may act without another renewal of its lock.
func LeaseText(s *nstancev1.GetShardStatusResponse) string {
	if s.GetLeaseLeft() == nil {
		return "no lock"
	}
	return s.GetLeaseLeft().AsDuration().Round(time.Millisecond).String()
}

// Time returns the time of a message. It is zero if the message has none.
func Time(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
