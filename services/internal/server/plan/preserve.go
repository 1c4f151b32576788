package plan

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// PreservedUntil returns when the time of a preserved instance is over (rule 68). It is zero for an instance that is
// not preserved, or no longer.
func PreservedUntil(group *config.Group, i *Instance) time.Time {
	if i.PreservedAt.IsZero() || i.State == record.Deleting || i.State == record.Deleted {
		return time.Time{}
	}
	return i.PreservedAt.Add(group.Preserve.For.D())
}

// isPreserved is rule 67 for an instance whose preservation is recorded. until is when its time is over.
func (g *group) isPreserved(i subject) (yes bool, until time.Time) {
	_, until = reached(PreservedUntil(&g.Group, i.Instance), g.Now)
	return true, until
}

// preserve is rule 67: of the actions that delete failed instances, it turns the first ones into actions that preserve
// the instance, as long as the group preserves fewer than preserve.max.
func (g *group) preserve(actions []Action) {
	left := g.Group.Preserve.Max
	if left == 0 || g.emptying() {
		return
	}
	for n := range g.Instances {
		i := &g.Instances[n]
		if preserved := g.class(n) == classPreserved && PreservedUntil(&g.Group, i).After(g.Now); preserved ||
			i.Work == Preserving {
			left--
		}
	}
	for n := range actions {
		a := &actions[n]
		if left <= 0 {
			return
		}
		if a.Kind != Mark || !a.Cause.failed() {
			continue
		}
		at, found := g.find(a.Instance)
		if found && g.Instances[at].runs() && g.isMember(at) {
			a.Kind = Preserve
			left--
		}
	}
}

// planPreserved plans what a preserved instance needs: it leaves the load balancers, and it is deleted when its VM has
// ended or its time is over (rules 67 and 68). The provider's next list tells that the VM has ended.
func (g *group) planPreserved(out *steps, n int) {
	i := &g.Instances[n]
	switch {
	case g.emptying():
		g.planDeletion(out, n, g.scaleDownCause(), g.reason(i, g.scaleDownCause()))
	case !i.runs():
		g.planDeletion(out, n, CauseGone, g.reason(i, CauseGone))
	case g.endOfPreservation(i) != "":
		g.planDeletion(out, n, CausePreserved, g.reason(i, CausePreserved))
	case i.Work == Idle && !i.Deregistered && len(g.Group.LoadBalancers) > 0:
		g.attempt(out, i.Failed, Action{Kind: Preserve, Instance: i.ID, ProviderID: i.ProviderID,
			Reason: "it is preserved"})
	}
}

// endOfPreservation is rule 68: it says why an instance is not preserved any longer. It returns "" if the instance is
// still preserved. If more instances are preserved than preserve.max, those that were preserved first end.
func (g *group) endOfPreservation(i *Instance) string {
	if !PreservedUntil(&g.Group, i).After(g.Now) {
		return "it was preserved for " + g.Group.Preserve.For.String()
	}
	later := 0
	for n := range g.Instances {
		other := &g.Instances[n]
		if g.class(n) == classPreserved && PreservedUntil(&g.Group, other).After(g.Now) &&
			(other.PreservedAt.After(i.PreservedAt) ||
				other.PreservedAt.Equal(i.PreservedAt) && other.ID.Compare(i.ID) > 0) {
			later++
		}
	}
	if later >= g.Group.Preserve.Max {
		return "more instances are preserved than preserve.max"
	}
	return ""
}

// RequestPreserve records that a failed instance is preserved. It returns false if it changed nothing.
func RequestPreserve(rec *record.Instance, reason string, now time.Time) bool {
	if rec.Preserved != nil || rec.State == record.Deleting || rec.State == record.Deleted {
		return false
	}
	rec.Preserved = &record.Preserved{At: now, Reason: reason}
	return true
}
