package plan

import "time"

const (
	// terminateRetry is the time after which a VM's termination is requested again if the provider still has the VM.
	terminateRetry = time.Minute
	// operatorsReturn is how long operators may take to connect again (rule 64).
	operatorsReturn = 30 * time.Second
)

// IsDraining reports whether an operator may still drain the node of an instance. This is the case while the VM may
// run, no termination was requested, no operator has acknowledged the drain, and the deadline is in the future.
func IsDraining(i *Instance, now time.Time) bool {
	return i.runs() && !i.Drained && i.TerminateRequested.IsZero() && i.DeleteDeadline.After(now)
}

// planEnd plans the next step of an instance whose deletion is durable: drain, terminate or forget (rules 27 to 29).
func (g *group) planEnd(out *steps, i *Instance) {
	if i.Work != Idle {
		return
	}
	if i.providerState() == ProviderGone { // rule 29
		g.attempt(out, i.Failed, Action{Kind: Forget, Instance: i.ID, ProviderID: i.ProviderID,
			Reason: "its VM is gone"})
		return
	}
	if !i.TerminateRequested.IsZero() {
		g.planRepeatedTermination(out, i)
		return
	}
	part, until := g.participant(i) // rule 27
	switch {
	case part == "": // rule 28
		g.planTermination(out, i, g.terminationReason(i))
	case !i.Announced, i.InLoadBalancers && len(g.Group.LoadBalancers) > 0: // it may have failed to leave them
		g.attempt(out, i.Failed, Action{Kind: Drain, Instance: i.ID, ProviderID: i.ProviderID,
			Reason: i.DeleteReason, Deadline: i.DeleteDeadline})
		out.wait(until) // time may end the drain before it is announced
	case g.noticeShortens(i):
		g.attempt(out, i.Failed, Action{Kind: Mark, Instance: i.ID, ProviderID: i.ProviderID, Cause: CauseNotice,
			Reason: g.reason(i, CauseNotice), Deadline: latest(i.NoticeDeadline, g.Now), Rule: 40})
		out.wait(until)
	default:
		out.wait(until)
	}
}

// noticeShortens reports whether the cloud takes the VM away before the drain ends (rule 40). A deadline that this
// leader has postponed stays.
func (g *group) noticeShortens(i *Instance) bool {
	return i.Notice && !i.NoticeDeadline.IsZero() && i.NoticeDeadline.Before(i.DeleteDeadline) && !i.Postponed
}

// participant returns whom the drain of an instance waits for, and until when at the longest (rule 27). It returns ""
// if the drain is over.
func (g *group) participant(i *Instance) (part string, until time.Time) {
	if !i.runs() || !i.DeleteDeadline.After(g.Now) {
		return "", time.Time{}
	}
	back := latest(g.ServingSince, g.OperatorLeftAt).Add(operatorsReturn)
	if g.ServingSince.IsZero() {
		back = i.DeleteDeadline
	}
	hook := i.Hook || !i.Announced && g.Group.Drain != nil
	switch {
	case !i.Drained && (i.Operator || !i.Announced && g.Operators):
		return "an operator drains its node", i.DeleteDeadline
	case hook && !i.HookEnded && !i.RegisteredAt.IsZero():
		return "its drain hook runs", i.DeleteDeadline
	case len(g.Group.LoadBalancers) > 0 && (!i.Announced || i.InLoadBalancers):
		return "it leaves its load balancers", i.DeleteDeadline
	case i.BalancersUntil.After(g.Now):
		return "its load balancers finish its requests", sooner(i.BalancersUntil, i.DeleteDeadline)
	case !i.Drained && back.After(g.Now): // rule 64
		return "an operator may still connect", sooner(back, i.DeleteDeadline)
	}
	return "", time.Time{}
}

// planRepeatedTermination repeats a termination that the provider accepted but did not carry out: a minute later the
// provider still has the VM.
func (g *group) planRepeatedTermination(out *steps, i *Instance) {
	if state := i.providerState(); !i.runs() && state != ProviderStopped && state != ProviderFailed {
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

func (g *group) terminationReason(i *Instance) string {
	switch {
	case !i.runs():
		return "its VM has stopped or is stopping"
	case i.DeleteDeadline.IsZero():
		return "it has nothing to drain"
	case !i.DeleteDeadline.After(g.Now):
		return "its drain has reached the deadline"
	case i.Drained || i.HookEnded || !i.BalancersUntil.IsZero():
		return "it is drained"
	}
	return "nobody takes part in its drain"
}
