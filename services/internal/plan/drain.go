package plan

import "time"

// terminateAgain is how long after a termination was asked for a VM that still runs is asked for again.
const terminateAgain = time.Minute

// end plans the next step of an instance whose deletion is durable. A VM that still runs is drained until that is
// acknowledged or the deadline has come, then terminated; one that stopped or is stopping is terminated without drain;
// one that is gone is forgotten. The deadline is the record's: the next leader keeps it, and announces the drain anew.
func (p *planner) end(i *Instance) {
	if i.Work != Idle {
		return
	}
	state := i.provider()
	switch {
	case state == ProviderGone:
		if p.retry(i, i.Failed) {
			p.emit(Action{Kind: Forget, Instance: i.ID, ProviderID: i.ProviderID, Reason: "its VM is gone"})
		}
	case !i.TerminateRequested.IsZero():
		p.endAgain(i, state)
	case i.runs() && !i.Drained && !p.reached(i.DeleteDeadline):
		if !i.Announced && p.retry(i, i.Failed) {
			p.emit(Action{Kind: Drain, Instance: i.ID, ProviderID: i.ProviderID, Reason: i.DeleteReason,
				Deadline: i.DeleteDeadline})
		}
	default:
		p.terminate(i, p.ended(i))
	}
}

// endAgain repeats a termination that the provider accepted but that did not take: its VM was seen running a minute
// later.
func (p *planner) endAgain(i *Instance, state ProviderState) {
	due := i.TerminateRequested.Add(terminateAgain)
	if (i.runs() || state == ProviderStopped) && p.reached(due) && !i.Provider.At.Before(due) {
		p.terminate(i, "its end was asked for, but the provider still has it")
	}
}

func (p *planner) terminate(i *Instance, reason string) {
	if p.retry(i, i.Failed) {
		p.emit(Action{Kind: Terminate, Instance: i.ID, ProviderID: i.ProviderID, Reason: reason})
	}
}

func (p *planner) ended(i *Instance) string {
	switch {
	case !i.runs():
		return "its VM has stopped or is stopping"
	case i.Drained:
		return "it is drained"
	case i.DeleteDeadline.IsZero():
		return "it has nothing to drain"
	}
	return "its drain has reached the deadline"
}
