package plan

import (
	"slices"
	"time"
)

// Causes of a deletion, for metrics and events.
const (
	causeScaleDown    = "scale_down"
	causeUnhealthy    = "unhealthy"
	causeGone         = "gone"
	causeExpired      = "expired"
	causeDrift        = "drift"
	causeNotice       = "notice"
	causePowerOff     = "power_off"
	causeGroupDeleted = "group_deleted"
	causeTerminating  = "terminating"
	causeUnregistered = "unregistered"
)

// cause is the word for why an instance is to go by itself; "" if it is not.
func (p *planner) cause(i *Instance, m mark) string {
	switch m.class(false) {
	case classLost:
		switch {
		case i.Notice:
			return causeNotice
		case !i.PowerOffAt.IsZero():
			return causePowerOff
		case m&markRegistered == 0:
			return causeUnregistered
		}
		return causeGone
	case classFailed:
		return causeUnregistered
	case classForced, classAged:
		return causeExpired
	case classSilent:
		return causeUnhealthy
	case classDrifted:
		return causeDrift
	case classUncertain:
		if m&markDrifted != 0 {
			return causeDrift
		}
	case classOnDemand:
		if p.emptying() {
			return p.scaleDownCause()
		}
	}
	return ""
}

// why puts a cause into words. Words hold nothing that changes from pass to pass.
func (p *planner) why(i *Instance, cause string) string {
	switch cause {
	case causeUnregistered:
		if !i.runs() {
			return "its VM ended before its agent registered"
		}
		return "its agent did not register in time"
	case causeGone:
		if i.provider() == ProviderGone {
			return "its VM is gone"
		}
		return "its VM has stopped or is stopping"
	case causeNotice:
		return "the cloud takes its VM away"
	case causePowerOff:
		return "its machine powers off"
	case causeExpired:
		return "it has reached its age"
	case causeDrift:
		return "its infra configuration is out of date"
	case causeUnhealthy:
		if i.Connected && !i.Healthy {
			return "it was never healthy"
		}
		return "it runs but is silent"
	case causeGroupDeleted:
		return "its group is deleted"
	case causeTerminating:
		return "the shard is being emptied"
	}
	return cause
}

// whyNow puts into words why an instance that is to go can go now.
func (p *planner) whyNow(i *Instance, cause string) string {
	if p.tally.of[classWell] == 0 {
		return p.why(i, cause)
	}
	return p.why(i, cause) + ", and enough others are healthy"
}

// create plans new instances: for what the size lacks, lost instances included, and, up to max_surge above it,
// replacements of instances that run but are to go, so that those are replaced first.
func (p *planner) create() {
	t := &p.tally
	total := t.total() + t.failing
	lacking := max(0, p.desired-total)
	surge := min(p.surge, t.hard()-p.removedHard())
	if surge == 0 && p.removed == 0 {
		surge = p.softSlot()
	}
	above := max(0, total-p.desired) // replacements that are there or on their way
	surge = max(0, surge-above)
	n := p.room(lacking + surge)
	p.out.Actions = slices.Grow(p.out.Actions, min(2*n, n+len(p.marks))) // most have a deletion beside them
	lost := p.replaced(classLost)
	for range min(n, lacking) {
		p.createFor(lost())
	}
	leaving := p.replaced(classForced, classSilent, classDrifted, classUncertain, classAged)
	for range above {
		leaving()
	}
	for k := lacking; k < n; k++ {
		p.createFor(leaving())
	}
}

// createFor plans one instance, in place of the n-th unless n is negative. The reason is why that one goes.
func (p *planner) createFor(n int) {
	if n < 0 {
		p.emit(Action{Kind: Create, Reason: "the group is smaller than its size"})
		return
	}
	i := &p.Instances[n]
	p.emit(Action{Kind: Create, Replaces: i.ID, Reason: p.why(i, p.cause(i, p.marks[n]))})
}

func (p *planner) removedHard() int {
	n := 0
	for _, m := range p.marks {
		if m&markRemoved != 0 {
			if c := m.class(p.guarded); c == classForced || c == classSilent {
				n++
			}
		}
	}
	return n
}

// replaced yields the indexes of the managed instances of the given classes that are not chosen for removal, class by
// class; -1 after the last.
func (p *planner) replaced(of ...class) func() int {
	n := 0
	return func() int {
		for ; len(of) > 0; of, n = of[1:], 0 {
			for n < len(p.marks) {
				m := p.marks[n]
				n++
				if m&(markOnDemand|markRemoved) != 0 || m.class(p.guarded) != of[0] {
					continue
				}
				if cause := p.cause(&p.Instances[n-1], m); cause != "" && cause != causeUnregistered {
					return n - 1
				}
			}
		}
		return -1
	}
}

// markDeleting plans the durable intent to delete.
func (p *planner) markDeleting(i *Instance, cause string) {
	p.markDeletingBecause(i, cause, p.why(i, cause))
}

func (p *planner) markDeletingBecause(i *Instance, cause, reason string) bool {
	if i.Work != Idle || !p.retry(i, i.Failed) {
		return false
	}
	p.emit(Action{Kind: Mark, Instance: i.ID, ProviderID: i.ProviderID, Cause: cause, Reason: reason,
		Deadline: p.deadline(i)})
	return true
}

// deadline of a drain that is decided now: none for a VM that does not run or a group without drain time-out, the
// cloud's own where it announced one.
func (p *planner) deadline(i *Instance) time.Time {
	switch drain := time.Duration(p.Group.DrainTimeout); {
	case drain == 0 || !i.runs():
		return time.Time{}
	case i.Notice && !i.NoticeDeadline.IsZero():
		return i.NoticeDeadline
	default:
		return p.Now.Add(drain)
	}
}
