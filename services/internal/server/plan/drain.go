package plan

import "time"

// terminateRetry is the time after which a VM's termination is requested again if the provider still has the VM.
const terminateRetry = time.Minute

// IsDraining reports whether the termination of an instance must still wait for the drain of its node. It waits while
// the VM may run, no termination was requested, no operator has acknowledged the drain, and the deadline is in the
// future.
func IsDraining(i *Instance, now time.Time) bool {
	return i.runs() && !i.Drained && i.TerminateRequested.IsZero() && i.DeleteDeadline.After(now)
}

// planEnd plans the next step of an instance whose deletion is durable: drain, terminate or forget (rules 27 to 29).
func (g *group) planEnd(out *steps, i *Instance) {
	if i.Work != Idle {
		return
	}
	switch {
	case i.providerState() == ProviderGone: // rule 29
		g.attempt(out, i.Failed, Action{Kind: Forget, Instance: i.ID, ProviderID: i.ProviderID,
			Reason: "its VM is gone"})
	case !i.TerminateRequested.IsZero():
		g.planRepeatedTermination(out, i)
	case IsDraining(i, g.Now): // rule 27
		out.wait(i.DeleteDeadline)
		if !i.Announced {
			g.attempt(out, i.Failed, Action{Kind: Drain, Instance: i.ID, ProviderID: i.ProviderID,
				Reason: i.DeleteReason, Deadline: i.DeleteDeadline})
		}
	default:
		g.planTermination(out, i, terminationReason(i)) // rule 28
	}
}

// planRepeatedTermination repeats a termination that the provider accepted but did not carry out: a minute later the
// provider still has the VM.
func (g *group) planRepeatedTermination(out *steps, i *Instance) {
	if !i.runs() && i.providerState() != ProviderStopped {
		return
	}
	due := i.TerminateRequested.Add(terminateRetry)
	if over, until := reached(due, g.Now); !over || i.Provider.At.Before(due) {
		out.wait(until)
		return
	}
	g.planTermination(out, i, "its termination was requested, but the provider still lists it")
}

func (g *group) planTermination(out *steps, i *Instance, reason string) {
	g.attempt(out, i.Failed, Action{Kind: Terminate, Instance: i.ID, ProviderID: i.ProviderID, Reason: reason})
}

func terminationReason(i *Instance) string {
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
