package plan

import (
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/config"
)

const (
	guardKind   = "unhealthy_guard"
	backoffKind = "backoff"
)

// shardLimit of silent instances in a shard, at least shardLeast.
var shardLimit = config.Limit{Value: 40, Percent: true}

const shardLeast = 3

// guard reports whether more than max_unhealthy of the group, or more than 40 % (at least 3) of the shard, runs but is
// silent. The fault is then more likely ours, a partition: nothing silent is replaced, and no registration is overdue.
// What the provider confirms dead still is.
func (p *planner) guard() bool {
	return p.tally.silent > p.Group.MaxUnhealthy.Of(p.tally.running) || shardTripped(p.Shard)
}

func shardTripped(h ShardHealth) bool { return h.Silent > max(shardLeast, shardLimit.Of(h.Running)) }

// raise brings the group's standing error events in line with what holds.
func (p *planner) raise() {
	held := p.guarded && p.tally.unhealthy > 0
	switch {
	case held && !p.GuardRaised:
		p.emit(Action{Kind: RaiseError, ErrorKind: guardKind, Reason: p.guardReason()})
	case !held && p.GuardRaised:
		p.emit(Action{Kind: ResolveError, ErrorKind: guardKind, Reason: "silent instances are few again"})
	}
	switch {
	case p.Backoff.Failures > 0 && !p.BackoffRaised:
		p.emit(Action{Kind: RaiseError, ErrorKind: backoffKind, Reason: p.Backoff.Reason})
	case p.Backoff.Failures == 0 && p.BackoffRaised:
		p.emit(Action{Kind: ResolveError, ErrorKind: backoffKind, Reason: "instances are created again"})
	}
}

func (p *planner) guardReason() string {
	if shardTripped(p.Shard) {
		return fmt.Sprintf(
			"%d of the shard's %d running instances are silent: not replacing them, the fault is more likely here",
			p.Shard.Silent, p.Shard.Running)
	}
	return fmt.Sprintf(
		"%d of the group's %d running instances are silent: not replacing them, the fault is more likely here",
		p.tally.silent, p.tally.running)
}
