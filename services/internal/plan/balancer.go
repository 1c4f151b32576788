package plan

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// BalancerHealth is what the load balancers of an instance's group have told this leader about the instance (rule 59).
type BalancerHealth struct {
	// WasHealthy: a load balancer called the instance healthy, and at that time no other one called it unhealthy.
	WasHealthy bool
	// Refused: a load balancer called the instance unhealthy in the last round of questions, even if its verdict does
	// not count yet.
	Refused bool
	// Rounds counts the successive rounds in which a load balancer called the instance unhealthy and its verdict
	// counted.
	Rounds uint8
	// Failed names the load balancer whose verdict counts, with its reason; "": none.
	Failed string
}

// balancerRounds is the number of successive rounds of questions in which a load balancer must call an instance
// unhealthy. The cloud's own threshold applies in addition, before the first of these rounds.
const balancerRounds = 2

// BalancerVerdict is what the load balancers of an instance's group say about it.
type BalancerVerdict struct {
	// Healthy: a load balancer calls the instance healthy, and none calls it unhealthy. Failed names one that calls it
	// unhealthy, with its reason. If both are zero, none has decided.
	Healthy bool
	Failed  string
}

// ApplyBalancerVerdict applies rule 59 (load-balancer health): it returns the instance after an answer of its load
// balancers. grace is the [StartGrace] of the group. failed reports whether the verdict made the instance unhealthy.
// After a better verdict, the next report makes the instance healthy again. A verdict on a leaving instance is ignored,
// because the drain removes the instance from its load balancers.
func ApplyBalancerVerdict(i Instance, v BalancerVerdict, grace time.Duration, now time.Time) (next Instance,
	failed bool) {
	counts := i.Balancer.WasHealthy || !now.Before(i.BalancedAt.Add(grace))
	switch {
	case i.isLeaving():
		return i, false
	case v.Failed != "" && !counts:
		i.Balancer.Refused = true // rule 60
		return i, false
	case v.Failed == "":
		was := i.Balancer.WasHealthy || v.Healthy
		i = ForgetBalancerHealth(i)
		i.Balancer.WasHealthy = was
		return i, false
	}
	i.Balancer.Refused, i.Balancer.Rounds = true, min(i.Balancer.Rounds+1, balancerRounds)
	if i.Balancer.Rounds < balancerRounds || i.Balancer.Failed != "" {
		return i, false // the first reason stays, so that another one is no change
	}
	i.Balancer.Failed = v.Failed
	if i.FailedCheck != "" {
		return i, false
	}
	failed = i.Healthy
	i.Healthy, i.FailedCheck, i.CheckFailedAt = false, v.Failed, now
	return i, failed
}

// ForgetBalancerHealth returns the instance as if its load balancers had said nothing about it.
func ForgetBalancerHealth(i Instance) Instance {
	if i.Balancer.Failed != "" && i.FailedCheck == i.Balancer.Failed {
		i.FailedCheck, i.CheckFailedAt = "", time.Time{}
	}
	i.Balancer = BalancerHealth{}
	return i
}

// awaitsBalancer is rule 60. It reports whether a new instance must still wait until its load balancers call it
// healthy. If they do not answer, the wait ends after the [StartGrace]. An instance whose grace ended before this
// leader's term does not wait.
func (g *group) awaitsBalancer(i *Instance) (bool, time.Time) {
	if !g.Group.LoadBalancerHealth || i.Balancer.WasHealthy || i.RegisteredAt.IsZero() {
		return false, time.Time{}
	}
	grace := StartGrace(g.Settings, &g.Group)
	switch {
	case !i.RegisteredAt.Add(grace).After(g.LeaderSince):
		return false, time.Time{}
	case i.Balancer.Refused:
		return true, time.Time{}
	}
	over, until := reached(latest(i.RegisteredAt, g.LeaderSince).Add(grace), g.Now)
	return !over, until
}

// StartGrace is the time that a new instance has before failed health checks (rule 52) and verdicts of load balancers
// (rule 59) count against it.
func StartGrace(s Settings, group *config.Group) time.Duration {
	return s.RegistrationTimeout + group.StartPeriod()
}
