package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
)

// shardLimit is the share of a shard's instances that may be silent before the unhealthy guard holds. In small shards,
// shardMinimum instances may be silent.
var shardLimit = config.Limit{Value: 40, Percent: true}

const shardMinimum = 3

// Guard is what a leader remembers of the unhealthy guard, for a group or for the shard. A new leader begins with the
// zero value, because it gives every instance time to come back anyway (rule 33).
type Guard struct {
	// Exceeded is true if more instances than the limit were silent or failing at the last count.
	Exceeded bool
	// HoldUntil is when the latest recovery period ends (rule 61). FellAt is when the first recovery period of the
	// present series began; rule 61 limits the length of a series. Both are zero before the first recovery period.
	HoldUntil, FellAt time.Time
}

// After returns the guard after a new count of the silent and failing instances. exceeded means that the count is above
// the limit. When the count falls to the limit or below, a series of recovery periods begins (rule 61). Each period
// lasts for the duration "recovery" (see [RecoveryTime]). If the count exceeds the limit again and falls within the
// duration "bound" after the first fall, another period begins. When bound is over, no period begins for bound +
// recovery.
func (g Guard) After(exceeded bool, recovery, bound time.Duration, now time.Time) Guard {
	if g.Exceeded && !exceeded {
		if !now.Before(g.FellAt.Add(bound + recovery + bound)) {
			g.FellAt = now
		}
		if now.Before(g.FellAt.Add(bound)) {
			g.HoldUntil = now.Add(recovery)
		}
	}
	g.Exceeded = exceeded
	return g
}

// RecoveryTime returns how much later than the first instance the last instance of a group may recover, when a shared
// fault ends. Instances recover when they report again (rule 33), pass their health checks, or are called healthy by
// their load balancers. How often a load balancer checks is unknown. So RecoveryTime uses the time in which a new
// instance must become healthy in its load balancers.
func RecoveryTime(s Settings, group *config.Group) time.Duration {
	longest := max(reconnect.ReturnTime(s.HealthInterval), group.PassTime()+s.HealthInterval)
	if group.LoadBalancerHealth {
		longest = max(longest, StartGrace(s, group))
	}
	return longest + reportSlack(s.HealthInterval)
}

// Exceeds reports whether more instances of the shard are silent or failing than its limit allows.
func (h ShardHealth) Exceeds() bool {
	return h.Silent > max(shardMinimum, shardLimit.Of(h.Running))
}

// exceedsLimit is rule 26. It reports whether more than max_unhealthy of the group, or more than three instances and
// 40 % of the shard, are silent, fail a health check or are unhealthy in a load balancer. Then a partition between
// agents and server, or a fault that new VMs would share, is more likely than dead VMs, so none of them is replaced.
// VMs that the provider reports as ended are still replaced.
func (g *group) exceedsLimit() bool {
	return g.guard.Exceeded || g.Shard.Exceeds()
}

// guardHolds reports whether the unhealthy guard forbids replacements: too many instances are silent or failing (rule
// 26), or a recovery period is under way (rule 61). until is when the guard ends if nothing happens until then; zero:
// unknown.
func (g *group) guardHolds() (holds bool, until time.Time) {
	if g.exceedsLimit() {
		return true, time.Time{}
	}
	over, until := reached(latest(g.guard.HoldUntil, g.Shard.HoldUntil), g.Now)
	return !over, until
}

// planAlerts raises and resolves the group's alerts.
func (g *group) planAlerts() (out steps) {
	held := g.guarded && g.tally.unhealthy > 0
	switch {
	case held && !g.GuardRaised:
		out.add(Action{Kind: RaiseError, Alert: AlertUnhealthyGuard, Reason: g.guardReason(), Rule: g.guardRule()})
	case !held && g.GuardRaised:
		out.add(Action{Kind: ResolveError, Alert: AlertUnhealthyGuard, Reason: "silent instances are few again"})
	}
	g.planHaltAlert(&out)
	g.planFlaps(&out)
	g.planLateAlert(&out)
	backoff, until := g.backoff()
	out.wait(until)
	if backoff.Failures == 0 {
		backoff = g.SpareBackoff
	}
	switch {
	case backoff.Failures > 0 && !g.BackoffRaised:
		out.add(Action{Kind: RaiseError, Alert: AlertBackoff, Reason: backoff.Reason, Rule: backoff.rule()})
	case backoff.Failures == 0 && g.BackoffRaised:
		out.add(Action{Kind: ResolveError, Alert: AlertBackoff, Reason: "instances are created again"})
	}
	return out
}

// guardRule returns the number of the rule because of which the unhealthy guard forbids replacements: 26 or 61.
func (g *group) guardRule() int {
	if g.exceedsLimit() {
		return 26
	}
	return 61
}

func (g *group) guardReason() string {
	silent, running, of, are, why := g.tally.late, g.tally.running, "group", "silent", "the fault is more likely here"
	if slices.ContainsFunc(g.Instances, func(i Instance) bool { return i.FailedCheck != "" }) {
		are = "silent or fail a health check"
	}
	if slices.ContainsFunc(g.Instances, func(i Instance) bool { return i.Balancer.Failed != "" }) {
		are = "silent, fail a health check or are unhealthy in a load balancer"
	}
	switch {
	case g.Shard.Exceeds():
		silent, running, of = g.Shard.Silent, g.Shard.Running, "shard"
	case !g.exceedsLimit():
		why = "more were, and they have time to recover"
	}
	return fmt.Sprintf("%d of the %s's %d running instances are %s: not replacing them, %s", silent, of, running, are,
		why)
}
