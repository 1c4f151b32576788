package plan

import (
	"fmt"
	"slices"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// shardLimit is the share of silent instances in a shard from which the guard holds; at least shardMinimum.
var shardLimit = config.Limit{Value: 40, Percent: true}

const shardMinimum = 3

// guardHolds is rule 26: more than max_unhealthy of the group, or more than 40 % (at least 3) of the shard, runs but is
// silent, fails a health check or is unhealthy in a load balancer. A partition between agents and server, or a fault
// that new VMs would share, is then more likely than dead VMs, so none of them is replaced. VMs that the provider
// reports as ended are still replaced.
func (g *group) guardHolds() bool {
	return g.tally.late > g.Group.MaxUnhealthy.Of(g.tally.running) || shardGuardHolds(g.Shard)
}

func shardGuardHolds(h ShardHealth) bool {
	return h.Silent > max(shardMinimum, shardLimit.Of(h.Running))
}

// planAlerts raises and resolves the group's alerts.
func (g *group) planAlerts() (out steps) {
	held := g.guarded && g.tally.unhealthy > 0
	switch {
	case held && !g.GuardRaised:
		out.add(Action{Kind: RaiseError, Alert: AlertUnhealthyGuard, Reason: g.guardReason(), Rule: 26})
	case !held && g.GuardRaised:
		out.add(Action{Kind: ResolveError, Alert: AlertUnhealthyGuard, Reason: "silent instances are few again"})
	}
	halted := g.tally.of[classDrifted]+g.tally.of[classUnreadyDrifted] > 0 && g.halted()
	switch {
	case halted && !g.HaltRaised:
		out.add(Action{Kind: RaiseError, Alert: AlertRolloutHalted, Reason: g.haltReason(), Rule: 47})
	case !halted && g.HaltRaised:
		out.add(Action{Kind: ResolveError, Alert: AlertRolloutHalted, Reason: "the rollout is no longer halted"})
	}
	backoff, until := g.backoff()
	out.wait(until)
	switch {
	case backoff.Failures > 0 && !g.BackoffRaised:
		out.add(Action{Kind: RaiseError, Alert: AlertBackoff, Reason: backoff.Reason, Rule: backoff.rule()})
	case backoff.Failures == 0 && g.BackoffRaised:
		out.add(Action{Kind: ResolveError, Alert: AlertBackoff, Reason: "instances are created again"})
	}
	return out
}

func (g *group) guardReason() string {
	silent, running, of, are := g.tally.late, g.tally.running, "group", "silent"
	if slices.ContainsFunc(g.Instances, func(i Instance) bool { return i.FailedCheck != "" }) {
		are = "silent or fail a health check"
	}
	if slices.ContainsFunc(g.Instances, func(i Instance) bool { return i.Balancer.Failed != "" }) {
		are = "silent, fail a health check or are unhealthy in a load balancer"
	}
	if shardGuardHolds(g.Shard) {
		silent, running, of = g.Shard.Silent, g.Shard.Running, "shard"
	}
	return fmt.Sprintf(
		"%d of the %s's %d running instances are %s: not replacing them, the fault is more likely here",
		silent, of, running, are)
}
