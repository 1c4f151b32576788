package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
)

const (
	reasonPaused = "the rollout is paused"
	reasonCanary = "the first instances with the new configuration run for less than bake_time"
)

// wave is rule 20: how many drifted or aged instances get their replacement now. A wave starts while the group is at
// its size and no instance is draining, silent or booting. Drift does not wait for instances that the guard holds or
// that are unhealthy because of the outdated configuration: a wave is the cure.
func (g *group) wave() (n int, out steps) {
	t := &g.tally
	drifted := t.of[classDrifted] + t.of[classUnreadyDrifted]
	steady := t.draining == 0 && t.replaceFirst() == 0 && t.of[classFailed] == 0 && t.total() == g.desired &&
		t.of[classUnready]+t.of[classCreating] == 0
	switch {
	case drifted == 0 && (t.of[classAged] == 0 || t.of[classHeld] > 0):
		return 0, out
	case g.Group.Rollout.Paused: // rule 45
		out.waitRollout(reasonPaused)
		return 0, out
	case drifted > 0 && g.halted():
		out.waitRollout(g.haltReason())
		return 0, out
	case !steady:
		return 0, out
	case drifted > 0:
		n, out = g.canaryWave()
		return min(n, g.surge, drifted), out
	}
	return min(g.surge, t.of[classAged]), out
}

// canaryWave is rule 46: how many drifted instances the canaries allow to replace now. Canaries are healthy instances
// with the present configuration.
func (g *group) canaryWave() (n int, out steps) {
	canary, bake := g.Group.Rollout.Canary, g.Group.Rollout.BakeTime.D()
	baked, young := 0, 0
	var until time.Time
	for k := range g.rows {
		if c := g.class(k); g.Instances[k].OnDemand || c != classWell && c != classAged {
			continue
		}
		if over, at := reached(g.Instances[k].RegisteredAt.Add(bake), g.Now); over {
			baked++
		} else {
			young++
			until = sooner(until, at)
		}
	}
	switch {
	case baked >= canary:
		return g.surge, out
	case baked+young >= canary:
		out.wait(until)
		out.waitRollout(reasonCanary)
		return 0, out
	}
	return canary - baked - young, out
}

// halted is rule 47: too many instances with the present configuration failed to register or are unhealthy. Silent ones
// that the guard holds count although they are not deleted.
func (g *group) halted() bool {
	limit := g.Group.Rollout.HaltOnFailures
	if limit == 0 {
		return false
	}
	n := g.RolloutFailures
	for k := range g.rows {
		if i := &g.Instances[k]; g.class(k) == classHeld && i.InfraHash == g.Group.InfraHash {
			n++
		}
	}
	return n >= limit
}

// haltReason contains no number: it must not change from pass to pass.
func (g *group) haltReason() string {
	return fmt.Sprintf("the rollout is halted: at least %d instances with the new configuration failed to register or "+
		"became unhealthy", g.Group.Rollout.HaltOnFailures)
}

// FailsRollout reports whether the deletion of an instance with this infra hash counts towards rule 47.
func (d Deletion) FailsRollout(infraHash string, group *config.Group) bool {
	return (d.Cause == CauseUnregistered || d.Cause == CauseUnhealthy) && infraHash == group.InfraHash
}

// EndsRollout reports whether a change of a group's configuration resets the count of rule 47: another rollout begins,
// or the same one after a pause.
func EndsRollout(before, after *config.Group) bool {
	return before.InfraHash != after.InfraHash || before.RuntimeHash != after.RuntimeHash ||
		before.Rollout != after.Rollout || !slices.Equal(before.Subnets, after.Subnets)
}
