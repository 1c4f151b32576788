package plan

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

// class is what an instance is to its group's size.
type class uint8

const (
	// classOut: on its way out (state deleting, or the intent is being written). Never counts.
	classOut class = iota
	// classLost: the provider says gone or going, or a termination notice is there. Does not count: its replacement is
	// no surge.
	classLost
	// classFailed: never registered within its time. Does not count, but its replacement waits for the group's
	// back-off.
	classFailed
	// classUncertain: counts, but cannot stand in for another yet: reserved, booting, not heard of lately, or not well.
	classUncertain
	// classForced: runs, older than forced_age. classSilent: runs, three reports missed, or never well in its time.
	// Both count and are replaced first.
	classForced
	classSilent
	// classGuarded: silent too, but the unhealthy guard says that the fault is ours. Counts and stays.
	classGuarded
	// classDrifted, classAged: runs well, with an older infra configuration or past eligible_age. Count; one at a time
	// is replaced first.
	classDrifted
	classAged
	// classWell: counts, and has reported healthy in time.
	classWell
	// classOnDemand: an on-demand instance that stays. No group's size asked for it: it is never counted, replaced or
	// rotated, and a silent one is left to whoever made it. It is deleted when its VM is gone, going or announced to
	// go, when it never registered, at ondemand_age, and with its group or shard.
	classOnDemand
	classes = int(iota)
)

// mark holds what was found out about one instance in the first look.
type mark uint16

const (
	markOut mark = 1 << iota
	markLost
	markFailed
	markForced
	markSilent
	markLate // counts as silent for the guard
	markDrifted
	markAged
	markWell
	markRegistered
	markUnknown // registered, but neither heard of by this leader nor silent for long enough
	markOnDemand
	markMoving  // state reserved, or its create call is under way
	markRemoved // chosen for removal in this pass
)

// class of an instance. Forced expiry goes before silence and that before drift and age: the page's order.
func (m mark) class(guarded bool) class {
	switch {
	case m&markOut != 0:
		return classOut
	case m&markLost != 0:
		return classLost
	case m&markFailed != 0 && !(guarded && m&markOnDemand == 0):
		return classFailed
	case m&markOnDemand != 0 && m&markForced != 0:
		return classForced
	case m&markOnDemand != 0:
		return classOnDemand
	case m&markForced != 0:
		return classForced
	case m&markSilent != 0 && guarded:
		return classGuarded
	case m&markSilent != 0:
		return classSilent
	case m&markWell == 0:
		return classUncertain
	case m&markDrifted != 0:
		return classDrifted
	case m&markAged != 0:
		return classAged
	}
	return classWell
}

// deleting: the intent to delete is durable, or is being written.
func (i *Instance) deleting() bool {
	switch i.Work {
	case MarkingDeleting, Draining, Terminating, Forgetting:
		return true
	}
	return i.State == record.Deleting || i.State == record.Deleted
}

// provider is what the provider said, with absence from an incomplete answer taken for no answer.
func (i *Instance) provider() ProviderState {
	if i.Provider.Value == ProviderGone && !i.Provider.Complete {
		return ProviderUnknown
	}
	return i.Provider.Value
}

// runs reports whether the VM may still run, as far as the provider has told.
func (i *Instance) runs() bool {
	switch i.provider() {
	case ProviderGoing, ProviderStopped, ProviderGone:
		return false
	}
	return true
}

// launched is when the VM's age began.
func (i *Instance) launched() time.Time {
	if i.LaunchedAt.IsZero() {
		return i.CreatedAt
	}
	return i.LaunchedAt
}

// Counts reports whether an instance counts towards its group's size as far as its own state tells: managed, not on its
// way out, not lost.
func Counts(i *Instance) bool {
	if i.OnDemand || i.deleting() {
		return false
	}
	return i.moving() || i.runs() && !i.Notice
}

// moving: nothing but the executor's answer, or a settlement, tells what became of it.
func (i *Instance) moving() bool {
	return i.State == record.Reserved || i.Work == Creating && i.State == record.Created
}

// tally counts managed instances by class, and what the rules ask about a group as a whole.
type tally struct {
	of [classes]int
	// running: registered instances that run, those removed for their silence included; silent: those of them that are
	// late or silent. unhealthy: those that became unhealthy by it.
	running, silent, unhealthy int
	// softUncertain: drifted instances that are not well.
	softUncertain int
	// failing: failed creations, and instances that run and are to go, whose deletion is not durable yet. They hold
	// their place until it is: a store that does not answer, or a leader that dies, does not turn them into more VMs
	// than size and surge allow.
	failing int
	// moving: creates whose answer is not there yet.
	moving int
	// draining: instances on their way out that still run and whose end was not asked for yet.
	draining int
}

func (t *tally) hard() int { return t.of[classForced] + t.of[classSilent] }
func (t *tally) soft() int { return t.of[classDrifted] + t.of[classAged] }

// available are instances that serve, or may: they run, and are well or were told apart only by a signal that can be
// false.
func (t *tally) available() int {
	return t.of[classWell] + t.hard() + t.of[classGuarded] + t.soft()
}

// total counts towards the size.
func (t *tally) total() int { return t.available() + t.of[classUncertain] }

// count sorts the managed instances into classes, once each instance was looked at.
func (p *planner) count() {
	t := &p.tally
	for n, m := range p.marks {
		if m&markOnDemand != 0 {
			continue
		}
		i := &p.Instances[n]
		if m&markOut != 0 {
			if i.Work == MarkingDeleting && !i.Notice && (m&markRegistered == 0 || !p.lost(i)) {
				t.failing++
			}
			if i.runs() && i.TerminateRequested.IsZero() {
				t.draining++
			}
		}
		if m&markRegistered != 0 && m&markLost == 0 && i.runs() && (m&markOut == 0 || m&markLate != 0) {
			t.running++
			if m&markLate != 0 {
				t.silent++
			}
			if m&markSilent != 0 {
				t.unhealthy++
			}
		}
	}
	p.guarded = p.guard()
	for n, m := range p.marks {
		if m&markOnDemand != 0 {
			continue
		}
		c := m.class(p.guarded)
		t.of[c]++
		i := &p.Instances[n]
		switch {
		case c == classFailed || c == classLost && m&markRegistered == 0 && p.cause(i, m) == causeUnregistered:
			t.failing++
		case c == classUncertain && m&markMoving != 0:
			t.moving++
		case c == classUncertain && m&markDrifted != 0:
			t.softUncertain++
		}
	}
	t.of[classUncertain] += p.PendingCreates
	t.moving += p.PendingCreates
}
