package plan

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

// Next plans one group: what to do now, in order, and when to look again. It is pure, looks at every instance a few
// times and allocates little: it runs on every event. When several rules apply the order is: scale down, forced expiry,
// replace unhealthy, opportunistic expiry and drift rotation, scale up.
//
// At most one action that the executor works on (all but [Create], [Ask], and errors) is planned per instance, and none
// while an instance has work under way. What is planned again in a later pass because nothing came of it is planned in
// the same words.
func Next(s Snapshot) Decision {
	p := planner{Snapshot: s, desired: max(0, s.Group.Size), surge: max(1, s.Group.MaxSurge)}
	if s.Group.Deleted || s.Settings.Terminating {
		p.desired = 0
	}
	if s.Group.Deleted && !s.Group.Static && len(s.Instances) == 0 && s.PendingCreates == 0 {
		p.emit(Action{Kind: ForgetGroup, Reason: "the group is deleted and its last instance is gone"})
		p.wake(s.Now.Add(forgetAgain))
		return p.out
	}
	p.marks = make([]mark, len(s.Instances))
	for n := range s.Instances {
		p.registered = p.registered || !s.Instances[n].RegisteredAt.IsZero()
	}
	for n := range s.Instances {
		p.marks[n] = p.look(&p.Instances[n])
	}
	p.count()
	p.remove()
	p.create()
	for n := range p.Instances {
		p.follow(&p.Instances[n], p.marks[n])
	}
	p.raise()
	if p.restless || p.guarded {
		p.out.Firm = p.out.WakeAt
	}
	return p.out
}

// forgetAgain is how long the end of a deleted group may take before it is asked for again.
const forgetAgain = 10 * time.Second

// planner is the state of one pass.
type planner struct {
	Snapshot
	desired, surge int
	marks          []mark // by instance
	tally          tally
	guarded        bool
	registered     bool // some instance of the group has registered
	restless       bool // there are instances that are not well, of which any report may change what they are
	removed        int  // instances chosen for removal whose deletion is planned in this pass
	out            Decision
}

func (p *planner) emit(a Action) { p.out.Actions = append(p.out.Actions, a) }

// wake asks for another look at a time, if that is still to come.
func (p *planner) wake(at time.Time) {
	if at.After(p.Now) {
		p.out.WakeAt, p.out.Firm = sooner(p.out.WakeAt, at), sooner(p.out.Firm, at)
	}
}

// await asks for another look when a report that is owed is missed.
func (p *planner) await(missed time.Time) { p.out.WakeAt = sooner(p.out.WakeAt, missed) }

// sooner is the earlier of two times of which the first may be none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// reached reports whether a time has come, and asks for a look when it has not.
func (p *planner) reached(at time.Time) bool {
	p.wake(at)
	return !at.After(p.Now)
}

// block says why the group is not at its size; the first reason stays.
func (p *planner) block(why string) {
	if p.out.Blocked == "" {
		p.out.Blocked = why
	}
}

// follow plans what one instance needs next.
func (p *planner) follow(i *Instance, m mark) {
	switch c := m.class(p.guarded); {
	case c == classOut:
		if i.State == record.Deleting {
			p.end(i)
			p.ask(i, m)
		}
	case i.State == record.Reserved:
		// Its create call ended without an answer that could be recorded.
		if i.Work == Idle && p.retry(i, i.Failed) {
			p.emit(Action{Kind: Settle, Instance: i.ID, ProviderID: i.ProviderID,
				Reason: "reserved, but nothing is under way for it"})
		}
	case m&markRemoved != 0:
		// Planned in remove, or waiting for its create call to be recorded.
	case c == classLost, c == classFailed, m&markOnDemand != 0 && (c == classForced || p.emptying()):
		p.markDeleting(i, p.cause(i, m))
	default:
		p.tend(i)
		p.ask(i, m)
	}
}

// emptying: on-demand instances go too.
func (p *planner) emptying() bool { return p.Group.Deleted || p.Settings.Terminating }
