package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// halted is rule 47: the rollout is halted durably (rule 70), or too many instances with the present configuration
// failed. A group that has returned to its good configuration (rule 71) is halted only if that has failed too.
func (g *group) halted() bool {
	if g.Group.Rollout.HaltOnFailures == 0 {
		return false
	}
	if g.haltHolds() && (!g.Group.RolledBack() || !g.Group.Halt.GoodFailedAt.IsZero()) {
		return true
	}
	return g.failures(func(*Instance) bool { return true }) >= g.Group.Rollout.HaltOnFailures
}

// failures counts the instances with the configuration that the group runs that failed to register or became unhealthy.
// Unhealthy instances that the unhealthy guard keeps count, too, if the function counts returns true for them.
func (g *group) failures(counts func(*Instance) bool) int {
	n := g.RolloutFailures
	for k := range g.rows {
		if i := &g.Instances[k]; g.class(k) == classHeld && !Drifted(&g.Group, g.Image, i) && counts(i) {
			n++
		}
	}
	return n
}

// haltsDurably reports whether so many instances failed that a halt is stored (rule 70), and why the last one did.
// Silent instances that the unhealthy guard keeps do not count, because their network may have failed. Nothing counts
// while other groups fail, too.
func (g *group) haltsDurably() (yes bool, last string) {
	halt, limit := g.Group.Halt, g.Group.Rollout.HaltOnFailures
	if limit == 0 || g.outside || !g.rollsOut() ||
		halt != nil && (!g.Group.RolledBack() || !halt.GoodFailedAt.IsZero()) {
		return false, ""
	}
	last = g.RolloutFailure
	return g.failures(func(i *Instance) bool {
		if last == "" && i.FailedCheck != "" {
			last = "its health check fails: " + i.FailedCheck
		}
		return i.FailedCheck != ""
	}) >= limit, last
}

// haltHolds reports whether the group has a durable halt that concerns its present configuration (rule 70).
func (g *group) haltHolds() bool {
	halt := g.Group.Halt
	if halt == nil || halt.Over || g.Group.Rollout.HaltOnFailures == 0 {
		return false
	}
	image := g.Image
	if g.Group.RolledBack() {
		image = g.WantedImage
	}
	return !g.Group.Rollout.OnImageChange || halt.Failed.Is(g.Group.Wanted().Version(image))
}

// rollsOut reports whether a rollout is under way: instances are outdated, or it is not known yet whether the present
// configuration is good (rule 72).
func (g *group) rollsOut() bool {
	if g.Group.RolledBack() {
		return slices.ContainsFunc(g.Instances, func(i Instance) bool { return Counts(&i) && g.hasFailedConfig(&i) })
	}
	return g.outdated() || g.rollsBack() && g.Group.Good != record.GroupVersion{} && !g.isGood()
}

func (g *group) outdated() bool { return g.tally.of[classDrifted]+g.tally.of[classUnreadyDrifted] > 0 }

// rollsBack reports whether a halt returns the group to its good configuration.
func (g *group) rollsBack() bool {
	r := g.Group.Rollout
	return r.OnHalt == config.OnHaltRollback && r.HaltOnFailures > 0
}

// isGood reports whether what the group runs is stored as its good configuration.
func (g *group) isGood() bool {
	version := g.Group.Version(g.Image)
	return g.Group.Good == version || version.Image == "" && g.Group.Good.Is(version)
}

// hasFailedConfig reports whether an instance has the configuration that failed, in a group that has returned to its
// good one (rule 71).
func (g *group) hasFailedConfig(i *Instance) bool {
	return g.Group.RolledBack() && Drifted(&g.Group, g.Image, i)
}

// failed reports whether the unhealthy guard neither counts nor holds an instance, because its configuration is why it
// fails. Other causes are more likely if the good configuration or other groups fail, too.
func (g *group) failed(i *Instance) bool {
	return g.hasFailedConfig(i) && g.Group.Halt.GoodFailedAt.IsZero() && !g.outside
}

// failsOutside reports whether so many instances of the shard's other groups are silent or failing that the cause is
// not a configuration of this group.
func (g *group) failsOutside() bool {
	others := g.Shard
	for k := range g.Instances {
		running, silent := CountSilence(&g.Instances[k], g.Settings, g.SilenceFrom, g.Now)
		if running {
			others.Running--
		}
		if silent {
			others.Silent--
		}
	}
	return others.Exceeds()
}

// finished reports whether all instances of the group have its configuration and are healthy, and had the time in which
// a fault would show: bake_time, and what the slowest health check needs to fail. Protected instances may have another
// configuration. until is when that time is over.
func (g *group) finished() (yes bool, until time.Time) {
	t := &g.tally
	if g.desired == 0 || t.failing > 0 || t.total() != g.desired ||
		t.of[classWell]+t.of[classAged]+t.of[classReturning] != g.desired {
		return false, time.Time{}
	}
	since, proven := g.ConfiguredAt, 0
	for k := range g.Instances {
		i := &g.Instances[k]
		if c := g.class(k); i.OnDemand || c != classWell && c != classAged && c != classReturning ||
			Drifted(&g.Group, g.Image, i) {
			continue
		}
		if i.ChecksPending || i.RuntimeHash != g.Group.RuntimeHash {
			return false, time.Time{}
		}
		since = latest(since, i.servesFrom())
		proven++
	}
	if proven == 0 {
		return false, time.Time{}
	}
	shows := max(RecoveryTime(g.Settings, &g.Group), g.Group.FailTime()+g.Settings.HealthInterval)
	return reached(since.Add(max(g.Group.Rollout.BakeTime.D(), shows)), g.Now)
}

// planHalt plans what is stored about the group's rollouts: a halt (rule 70), its end, and the good configuration (rule
// 72).
func (g *group) planHalt() (out steps) {
	halt := g.Group.Halt
	if g.emptying() || g.StoringRollout {
		return out
	}
	store := func(a Action) { g.attempt(&out, g.StoreFailed, a) }
	halts, last := g.haltsDurably()
	switch {
	case halt != nil && !g.haltHolds():
		store(Action{Kind: EndHalt, Reason: "the group's configuration has changed", Rule: 70})
		return out
	case halts:
		reason := g.failedReason()
		if last != "" {
			reason += ", the last one because " + last
		}
		store(Action{Kind: Halt, Reason: reason, Version: g.Group.Version(g.Image), Rule: 70})
		return out
	case halt == nil && (!g.rollsBack() || g.isGood()), g.Group.RolledBack():
		return out
	}
	yes, until := g.finished()
	switch out.wait(until); {
	case !yes:
	case halt != nil:
		store(Action{Kind: EndHalt, Reason: "all instances have the configuration and are healthy", Rule: 70})
	default:
		store(Action{Kind: KeepGood, Reason: "a rollout has finished", Version: g.Group.Version(g.Image), Rule: 72})
	}
	return out
}

// planHaltAlert raises and resolves the alert about a halted rollout.
func (g *group) planHaltAlert(out *steps) {
	rule := 47
	halts, _ := g.haltsDurably()
	switch back := g.haltHolds() && g.Group.RolledBack(); {
	case !back && !(g.rollsOut() && g.halted()):
		if g.HaltRaised != "" {
			out.add(Action{Kind: ResolveError, Alert: AlertRolloutHalted, Reason: "the rollout is no longer halted"})
		}
		return
	case back:
		rule = 71
	case halts && !g.haltHolds() && g.StoreFailed.Count == 0:
		return // the halt is being stored, and then has a reason
	}
	raise := Action{Kind: RaiseError, Alert: AlertRolloutHalted, Reason: g.haltReason(), Rule: rule}
	if raise.Why() != g.HaltRaised {
		out.add(raise)
	}
}

// haltReason says why the rollout is halted. The text does not contain the number of failures, because it must not
// change with every failure.
func (g *group) haltReason() string {
	if g.haltHolds() {
		return g.Group.HaltReason()
	}
	return "the rollout is halted: " + g.failedReason()
}

func (g *group) failedReason() string {
	which := "the new"
	if g.Group.RolledBack() {
		which = "that"
	}
	return fmt.Sprintf("at least %d instances with %s configuration failed to register or became unhealthy",
		g.Group.Rollout.HaltOnFailures, which)
}
