package plan

import (
	"slices"
	"sort"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// forgetGroupRetry is how long forgetting a deleted group may take before it is planned again.
const forgetGroupRetry = 10 * time.Second

// Next plans one group: what to do now, in order, and when to plan again. It looks at every instance a few times and
// allocates little, because it runs on every event.
//
// Apart from [Create], [Ask], alerts and actions that concern the whole group, Next plans at most one action per
// instance, and none while work for the instance is under way. If an action had no effect, a later plan contains the
// same action again.
func Next(s Snapshot) Decision {
	if s.Group.Deleted && !s.Group.Static && len(s.Instances) == 0 && s.PendingCreates+s.PendingSpares == 0 {
		return Decision{
			Actions:  []Action{{Kind: ForgetGroup, Reason: "the group is deleted and its last instance is gone"}},
			Schedule: Schedule{}.with(s.Now.Add(forgetGroupRetry)),
			Wait:     Wait{Parts: []Part{{Text: "the group is deleted, and its entry is being removed"}}},
		}
	}
	return classifyGroup(s).plan()
}

// plan plans what to do for the group.
func (g *group) plan() Decision {
	removed := g.planRemovals()
	removed.merge(g.findWaiting(removed.chosen))
	wave := g.planWave(&removed)
	var out steps
	out.merge(removed.steps)
	added := g.planCreates(removed, wave)
	out.merge(added.steps)
	out.merge(g.planSpares(&removed, added))
	g.planInstances(&out, removed.chosen)
	g.preserve(out.actions)
	out.merge(g.planHalt())
	out.merge(g.planAlerts())
	if g.Group.RolledBack() {
		out.waitRollout(g.Group.HaltReason()+" (rule 71)", time.Time{})
	}

	g.schedule = g.schedule.with(out.until)
	d := Decision{Actions: out.actions, Blocked: out.blocked, BlockedUntil: out.blockedUntil, Rollout: out.rollout,
		RolloutUntil: out.rolloutUntil, Guard: g.guard, Schedule: g.schedule, Wait: g.wait(&out)}
	if g.anyReportMatters || g.guarded {
		d.NextIfReporting = d.NextPlan
	}
	return d
}

// steps is what a phase of planning returns.
type steps struct {
	actions []Action
	until   time.Time // when the phase may return something else by time alone; zero: never
	blocked string    // the first reason why the group is not at its size
	rollout string    // the first reason why a rollout waits
	// blockedUntil is when the reason in "blocked" ends if nothing happens until then, and rolloutUntil when that in
	// "rollout" ends; zero: unknown.
	blockedUntil, rolloutUntil time.Time
}

func (s *steps) add(a Action) { s.actions = append(s.actions, a) }

func (s *steps) wait(until time.Time) {
	if !until.IsZero() {
		s.until = sooner(s.until, until)
	}
}

func (s *steps) block(reason string) { s.blockUntil(reason, time.Time{}) }

// blockUntil records why the group is not at its size, and when that reason ends if nothing happens until then; zero:
// unknown.
func (s *steps) blockUntil(reason string, until time.Time) {
	if s.blocked == "" {
		s.blocked, s.blockedUntil = reason, until
	}
}

// waitRollout records why a rollout waits, and when that reason ends if nothing happens until then; zero: unknown.
func (s *steps) waitRollout(reason string, until time.Time) {
	s.wait(until)
	if s.rollout == "" {
		s.rollout, s.rolloutUntil = reason, until
	}
}

func (s *steps) merge(other steps) {
	if s.actions == nil {
		s.actions = other.actions
	} else {
		s.actions = append(s.actions, other.actions...)
	}
	s.wait(other.until)
	s.blockUntil(other.blocked, other.blockedUntil)
	s.waitRollout(other.rollout, other.rolloutUntil)
}

// planInstances plans what each instance needs next. chosen marks the instances that the removal phase has already
// handled.
func (g *group) planInstances(out *steps, chosen []bool) {
	for n := range g.Instances {
		i := &g.Instances[n]
		switch c := g.class(n); {
		case c == classLeaving:
			if i.State == record.Deleting {
				g.planEnd(out, i)
				g.planQuestion(out, subject{i, g.facts[n]})
			} else if g.isRemoved(i) {
				g.planDeletion(out, n, CauseRequested, reasonRemoved)
			}
		case c == classPreserved:
			g.planPreserved(out, n)
		case i.State == record.Reserved:
			g.planSettlement(out, i)
		case chosen != nil && chosen[n]:
			// The removal phase has already handled this chosen instance. It has planned the deletion, or it will do so
			// when the create call is answered.
		case c == classLost, c == classFailed, c == classOnDemandExpired, i.OnDemand && g.emptying():
			g.planDeletion(out, n, g.cause(n), g.reason(i, g.cause(n)))
		default:
			if !g.planSleep(out, n) {
				g.planMaintenance(out, i)
			}
			g.planQuestion(out, subject{i, g.facts[n]})
		}
	}
}

// planSettlement settles a reservation of this term. Its create call has ended, but no answer is recorded, so that it
// is unknown whether the VM exists.
func (g *group) planSettlement(out *steps, i *Instance) {
	if i.Work != Idle {
		return
	}
	g.attempt(out, i.Failed, Action{Kind: Settle, Instance: i.ID, ProviderID: i.ProviderID,
		Reason: "reserved, but nothing is under way for it"})
}

// attempt plans action a, unless that action failed too recently. f is its last failure.
func (g *group) attempt(out *steps, f Failure, a Action) {
	if ready, until := retryReady(a.Instance, f, g.Now); !ready {
		out.wait(until)
		return
	}
	out.add(a)
}

// find returns the index of an instance.
func (g *group) find(id ident.ID) (n int, found bool) {
	n = sort.Search(len(g.Instances), func(n int) bool { return g.Instances[n].ID.Compare(id) >= 0 }) // copies none
	return n, n < len(g.Instances) && g.Instances[n].ID == id
}

// emptying reports whether all instances are to be deleted, on-demand ones included.
func (g *group) emptying() bool { return g.Group.Deleted || g.Settings.Terminating }

// reached reports whether a time has come. until is that time if it is still ahead.
func reached(at, now time.Time) (yes bool, until time.Time) {
	if at.After(now) {
		return false, at
	}
	return true, time.Time{}
}

// sooner returns the earlier of two times. The zero time means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// grow makes room for n more actions.
func (s *steps) grow(n int) { s.actions = slices.Grow(s.actions, n) }
