package plan

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// BalancerHealth is what this leader has learned about an instance from the load balancers of its group (rule 59).
type BalancerHealth struct {
	// WasHealthy means that in at least one round of questions, a load balancer called the instance healthy and none
	// called it unhealthy.
	WasHealthy bool
	// Refused means that a load balancer called the instance unhealthy in the last round of questions. This includes a
	// verdict that is ignored because the instance is new.
	Refused bool
	// Rounds counts the successive rounds in which a load balancer called the instance unhealthy. The count does not
	// exceed balancerRounds. Verdicts that are ignored because the instance is new are not counted.
	Rounds uint8
	// Failed contains the name and the reason of a load balancer that makes the instance count as unhealthy. It is
	// empty if there is none.
	Failed string
}

// balancerRounds is the number of successive rounds of questions in which a load balancer must call an instance
// unhealthy before the instance counts as unhealthy. A load balancer itself calls an instance unhealthy only after
// several failed checks.
const balancerRounds = 2

// BalancerVerdict is what the load balancers of a group say about one of its instances.
type BalancerVerdict struct {
	// Healthy means that at least one load balancer calls the instance healthy, and none calls it unhealthy. Failed
	// contains the name and the reason of a load balancer that calls the instance unhealthy. If Healthy is false and
	// Failed is empty, no load balancer has decided.
	Healthy bool
	Failed  string
}

// ApplyBalancerVerdict applies rule 59 (load-balancer health): it returns the instance after a round of questions to
// its load balancers. grace is the [StartGrace] of the group. failed reports whether the verdict made the instance
// unhealthy. If a later verdict is better, the instance can become healthy again with the next report of its agent. A
// leaving instance is returned unchanged, because its drain removes it from its load balancers.
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
	if failed {
		i.Lapses = i.Lapses.After(now)
	}
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
	if !g.Group.LoadBalancerHealth || i.Balancer.WasHealthy || i.RegisteredAt.IsZero() || i.isSpare() {
		return false, time.Time{}
	}
	grace := StartGrace(g.Settings, &g.Group)
	switch {
	case !i.servesFrom().Add(grace).After(g.LeaderSince):
		return false, time.Time{}
	case i.Balancer.Refused:
		return true, time.Time{}
	}
	over, until := reached(latest(i.servesFrom(), g.LeaderSince).Add(grace), g.Now)
	return !over, until
}

// StartGrace is the time that a new instance has before failed health checks (rule 52) and verdicts of load balancers
// (rule 59) count against it.
func StartGrace(s Settings, group *config.Group) time.Duration {
	return s.RegistrationTimeout + group.StartPeriod()
}
