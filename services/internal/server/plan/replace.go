package plan

import (
	"strings"
	"time"
)

// reasonReplaced ends the reason of a deletion after a replacement.
const reasonReplaced = ", and enough others are healthy"

// Fault returns the Reason of a Mark action without what it says about the instance's replacement.
func (a Action) Fault() string { return strings.TrimSuffix(a.Reason, reasonReplaced) }

// reason describes a cause in words. The text contains nothing that changes from one plan to the next.
func (g *group) reason(i *Instance, cause Cause) string {
	switch cause {
	case CauseUnregistered:
		if !i.runs() {
			return withEndReason("its VM ended before its agent registered", i)
		}
		return withRefusal("its agent did not register in time", i)
	case CauseGone:
		if i.providerState() == ProviderGone {
			return withEndReason("its VM is gone", i)
		}
		return withEndReason("its VM has stopped or is stopping", i)
	case CauseNotWoken:
		if i.WakeFailed != "" {
			return "its VM cannot be woken: " + i.WakeFailed
		}
		return "its VM did not wake"
	case CauseNotice:
		return "the cloud takes its VM away"
	case CauseRecommendation:
		return "the cloud recommends replacing its VM"
	case CauseMaintenance:
		return "the cloud has announced maintenance of its VM (" + i.Maintenance + ")"
	case CausePowerOff:
		return "its machine powers off"
	case CauseExpired:
		if due, _ := g.isCertificateDue(i); due {
			return reasonCertificate
		}
		return "it has reached its age"
	case CauseDrift:
		if i.Spare && i.Sleep != g.Group.Spares.Sleep() && !Drifted(&g.Group, g.Image, i) {
			return reasonOtherSleep
		}
		reason := "its infra configuration is out of date"
		if !Drifted(&g.Group, "", i) {
			reason = "its image is out of date"
		}
		if g.hasFailedConfig(i) {
			reason += ": the group has returned to its last good one"
		}
		return reason
	case CauseReturnToSpot:
		return "it was bought on demand, and the group lacks spot instances"
	case CauseUnhealthy:
		if at, ok := i.silentAt(&g.Settings, g.SilenceFrom); ok && at.After(g.Now) {
			return "it was never healthy"
		}
		return withRefusal("it runs but is silent", i)
	case CauseHealthCheck:
		return "its health check fails: " + i.FailedCheck
	case CauseLoadBalancer:
		return "it is unhealthy in " + i.Balancer.Failed
	case CauseFlapping:
		return g.flapsReason(i)
	case CausePreserved:
		return g.endOfPreservation(i)
	case CauseGroupDeleted:
		return "its group is deleted"
	case CauseTerminating:
		return "the shard is being emptied"
	}
	return string(cause)
}

// withEndReason adds to a reason the provider's explanation why the VM ended, if there is one.
func withEndReason(reason string, i *Instance) string {
	if i.EndReason == "" {
		return reason
	}
	return reason + ": " + i.EndReason
}

// withRefusal adds to a reason why the leader last refused the agent, if it did.
func withRefusal(reason string, i *Instance) string {
	if i.Refused == "" {
		return reason
	}
	return reason + ": last refused: " + i.Refused
}

// replacedReason says why an instance is deleted now that its replacement is healthy.
func (g *group) replacedReason(i *Instance, cause Cause) string {
	if g.tally.of[classWell] == 0 {
		return g.reason(i, cause)
	}
	return g.reason(i, cause) + reasonReplaced
}

// planCreates plans new instances. They fill up the group to its size, and so take the place of lost instances (rule
// 18). Up to max_surge above the size, they also replace instances that run but will be deleted (rules 19 and 20). The
// parameter wave is how many replacements rule 20 permits now. Before anything is created, spares take these places
// (rule 78).
func (g *group) planCreates(removed removals, wave int) (out additions) {
	t := &g.tally
	total := t.total() + t.failing
	lacking := max(0, g.desired-total)
	surge := min(g.surge, t.replaceFirst()-removed.replaceFirst-g.waits)
	if surge == 0 && removed.planned == 0 {
		surge = wave
	}
	above := max(0, total-g.desired) // replacements that exist or are on their way
	surge = max(0, surge-above)
	if lacking+surge == 0 {
		return out
	}
	spares, until := g.promotable()
	out.wait(until)
	places, wanted := placing{spares: spares, bought: g.countBought(nil)}, lacking+surge
	if len(spares) == 0 {
		wanted = g.mayCreate(&out, lacking, surge)
	}
	if wanted == 0 {
		return out
	}
	out.grow(min(2*wanted, wanted+len(g.rows))) // most creates come with a deletion
	lost := g.replaceable(removed.chosen, classLost)
	for range min(wanted, lacking) {
		g.place(&out, &places, g.create(lost()))
	}
	needed := len(places.creates)
	leaving := g.replaceable(g.waiting, classExpired, classSilent, classAdvised, classDrifted, classUnreadyDrifted,
		classAged, classReturning)
	for range above {
		g.leave(leaving(), &places.bought)
	}
	for range wanted - min(wanted, lacking) {
		replaced := leaving()
		g.leave(replaced, &places.bought)
		create := g.create(replaced)
		create.Voluntary = true
		g.place(&out, &places, create)
	}
	if len(spares) > 0 {
		places.creates = places.creates[:g.mayCreate(&out, needed, len(places.creates)-needed)]
	}
	out.creates = len(places.creates)
	out.actions = append(out.actions, places.creates...)
	return out
}

// mayCreate returns how many instances may be created now: of those that the group lacks, and after them of voluntary
// replacements.
func (g *group) mayCreate(out *additions, lacking, voluntary int) int {
	needed, voluntary, paced := g.paced(lacking, voluntary)
	out.merge(paced)
	n, limits := g.createsAllowed(needed + voluntary)
	out.merge(limits)
	out.unfilled = max(0, lacking-n)
	return n
}

// additions are new members of a group, and the spares that become members.
type additions struct {
	steps
	creates  int   // actions that create a member
	unfilled int   // instances that the group lacks and that cannot be created now
	promoted []int // spares
}

// create plans an instance that replaces instance n. With a negative n, it replaces no instance.
func (g *group) create(n int) Action {
	if n < 0 {
		return Action{Kind: Create, Reason: "the group is smaller than its size"}
	}
	i, cause := &g.Instances[n], g.cause(n)
	return Action{Kind: Create, Replaces: i.ID, Cause: cause, Reason: g.reason(i, cause), Rule: g.ruleOf(n, cause)}
}

// replaceable returns a function that yields the indexes of managed instances of the given classes, class by class. It
// leaves out instances that are chosen for removal. After the last index, it yields -1.
func (g *group) replaceable(chosen []bool, of ...class) func() int {
	n := 0
	return func() int {
		for ; len(of) > 0; of, n = of[1:], 0 {
			for n < len(g.rows) {
				k := n
				n++
				if g.class(k) != of[0] || !g.isMember(k) || chosen != nil && chosen[k] ||
					g.cause(k) == CauseUnregistered {
					continue
				}
				return k
			}
		}
		return -1
	}
}

// planDeletion plans the action Mark, which records durably that the instance must be deleted.
func (g *group) planDeletion(out *steps, n int, cause Cause, reason string) {
	i := &g.Instances[n]
	if i.Work != Idle {
		return
	}
	g.attempt(out, i.Failed, Action{Kind: Mark, Instance: i.ID, ProviderID: i.ProviderID, Cause: cause,
		Reason: reason, Deadline: g.drainDeadline(i), Rule: g.ruleOf(n, cause)})
}

// ruleOf returns the number of the rule by which an instance is deleted or replaced.
func (g *group) ruleOf(n int, cause Cause) int {
	switch row := &rules[g.rows[n]]; {
	case cause == CauseRequested:
		return 44
	case row.class == classPreserved:
		return 68
	case cause == row.cause:
		return row.number
	case g.facts[n].has(factSpare):
		return 81
	case row.class.available():
		return 22
	}
	return 23
}

// drainDeadline is rule 21: the deadline of a drain that is decided now. It is zero if the VM does not run or the group
// has no drain time-out. An earlier deadline of a notice shortens the drain. A later one is ignored, because it comes
// from the agent, which may lie. If the deadline of the notice is in the past, the drain ends now.
func (g *group) drainDeadline(i *Instance) time.Time {
	switch drain := g.Group.DrainTimeout.D(); {
	case drain == 0 || !i.runs():
		return time.Time{}
	case i.Notice && !i.NoticeDeadline.IsZero() && i.NoticeDeadline.Before(g.Now.Add(drain)):
		return latest(i.NoticeDeadline, g.Now)
	default:
		return g.Now.Add(drain)
	}
}

// scaleDownCause is the cause of a deletion for which the group's size is the only reason.
func (g *group) scaleDownCause() Cause {
	switch {
	case g.Group.Deleted:
		return CauseGroupDeleted
	case g.Settings.Terminating:
		return CauseTerminating
	}
	return CauseScaleDown
}
