package plan

import (
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
)

const (
	reasonPaused  = "the rollout is paused (rule 45)"
	reasonCanary  = "the first instances with the new configuration run for less than bake_time (rule 46)"
	reasonWindow  = "no window of disruption.windows is open (rule 49)"
	reasonPerHour = "disruption.max_per_hour instances were created within the hour (rule 50)"

	reasonMayBeUnavailable = ", and max_unavailable lets it go first"
)

// planWave begins a wave of replacements (rule 20) if one is due. The result is the number of replacements that are
// created before the old instances are deleted. With max_unavailable, planWave plans the deletions first and returns 0
// (rule 48), unless the wave only returns instances to spot. Instances that never registered are deleted first, then
// other unready ones, then those that serve.
func (g *group) planWave(removed *removals) (replacedFirst int) {
	t := &g.tally
	n, waits := g.wave()
	removed.merge(waits)
	if n == 0 || g.mayBeUnavailable() == 0 || t.rotating()+t.of[classUnreadyDrifted] == t.of[classReturning] {
		return n // spot capacity may be missing, so such a replacement always comes first
	}
	if removed.chosen == nil {
		removed.chosen = make([]bool, len(g.Instances))
	}
	var candidates []int
	next := g.replaceable(removed.chosen, classUnreadyDrifted, classDrifted, classAged)
	for k := next(); k >= 0; k = next() {
		candidates = append(candidates, k)
	}
	slices.SortStableFunc(candidates, g.unregisteredFirst)
	for _, k := range candidates[:min(n, len(candidates))] {
		i, cause := &g.Instances[k], g.cause(k)
		before := len(removed.actions)
		g.planDeletion(&removed.steps, k, cause, g.reason(i, cause)+reasonMayBeUnavailable)
		removed.chosen[k] = len(removed.actions) > before
	}
	return 0
}

// unregisteredFirst sorts instances that never registered before the others. Other unready instances may serve: after a
// takeover, an instance is unready until its agent connects to the new leader.
func (g *group) unregisteredFirst(a, b int) int {
	return int(g.facts[b]&factUnregistered) - int(g.facts[a]&factUnregistered)
}

// mayBeUnavailable returns how many instances a wave may delete before their replacements are healthy. Instances that
// the unhealthy guard holds are subtracted, because they already count as unavailable.
func (g *group) mayBeUnavailable() int {
	return max(0, g.Group.Rollout.MaxUnavailable-g.tally.of[classHeld])
}

// wave is rule 20: it returns how many outdated instances may be replaced now. A wave starts while the group is at its
// size and no instance is silent or booting. Instances that are draining count towards the size of the wave. If
// instances have drifted, a wave also starts while some of them are unready or the unhealthy guard keeps instances. The
// new configuration may repair such instances.
func (g *group) wave() (n int, out steps) {
	t := &g.tally
	drifted := t.of[classDrifted] + t.of[classUnreadyDrifted]
	steady := t.marking == 0 && t.replaceFirst() == g.waits && t.of[classFailed] == 0 && t.total() == g.desired &&
		t.of[classUnready]+t.of[classCreating] == 0
	if drifted == 0 && (t.of[classAged]+t.of[classReturning] == 0 || t.of[classHeld] > 0) {
		return 0, out
	}
	closed, opens := g.closed()
	switch {
	case g.Group.Rollout.Paused: // rule 45
		out.waitRollout(reasonPaused, time.Time{})
		return 0, out
	case drifted > 0 && g.halted():
		out.waitRollout(g.haltReason()+" (rule 47)", time.Time{})
		return 0, out
	case closed:
		out.waitRollout(reasonWindow, opens)
		return 0, out
	case !steady:
		return 0, out
	}
	most := g.surge
	if first := g.mayBeUnavailable(); first > 0 {
		most = first
	}
	switch n = t.of[classAged]; {
	case drifted > 0:
		n, out = g.canaryWave()
		n = min(n, drifted)
	case n == 0:
		n, out = g.mayReturn(t.of[classReturning])
		most = g.surge
	}
	n, limits := g.withinHour(min(n, max(0, most-t.draining)))
	out.merge(limits)
	return n, out
}

// closed is rule 49: it reports whether no window of the group is open now, and when the next one opens.
func (g *group) closed() (yes bool, opens time.Time) {
	for _, w := range g.Group.Windows {
		open, at := w.Open(g.Now)
		if open {
			return false, time.Time{}
		}
		opens = sooner(opens, at)
	}
	return len(g.Group.Windows) > 0, opens
}

// withinHour is rule 50: it returns how many of n instances may be replaced now without exceeding max_per_hour. It
// counts the instances that were created within the last hour. Their records contain that time, so that a new leader
// can count them, too.
func (g *group) withinHour(n int) (int, steps) {
	var out steps
	most := g.Group.MaxPerHour
	if most == 0 {
		return n, out
	}
	var young []time.Time // when each of them is older than an hour
	for k := range g.Instances {
		if !g.isMember(k) {
			continue
		}
		if over, at := reached(g.Instances[k].joined().Add(time.Hour), g.Now); !over {
			young = append(young, at)
		}
	}
	left := max(0, most-len(young))
	if left >= n {
		return n, out
	}
	slices.SortFunc(young, time.Time.Compare)
	switch {
	case left == 0:
		out.waitRollout(reasonPerHour, young[len(young)-most])
	case len(young) > 0:
		out.wait(young[0])
	}
	return left, out
}

// canaryWave is rule 46: it returns how many drifted instances may be replaced now. This depends on the number of
// canaries: instances with the present configuration that are healthy, or that the unhealthy guard keeps.
func (g *group) canaryWave() (n int, out steps) {
	canary, bake := g.Group.Rollout.Canary, g.Group.Rollout.BakeTime.D()
	baked, young := 0, 0
	var due []time.Time // when each of the young that the guard does not hold has run for bake_time
	for k := range g.rows {
		i, c := &g.Instances[k], g.class(k)
		switch {
		case !g.isMember(k):
			continue
		case c == classHeld && !Drifted(&g.Group, g.Image, i):
			young++ // it proves nothing until the guard ends
			continue
		case c != classWell && c != classAged && c != classReturning:
			continue
		case Drifted(&g.Group, g.Image, i): // it is well, because it is protected (rule 54)
			continue
		}
		if over, at := reached(g.Instances[k].servesFrom().Add(bake), g.Now); over {
			baked++
		} else {
			young++
			due = append(due, at)
		}
	}
	switch {
	case baked >= canary:
		return len(g.Instances), out
	case baked+young >= canary:
		var until time.Time
		if lacking := canary - baked; lacking <= len(due) {
			slices.SortFunc(due, time.Time.Compare)
			until = due[lacking-1]
		}
		out.waitRollout(reasonCanary, until)
		return 0, out
	}
	return canary - baked - young, out
}

// FailsRollout reports whether the deletion of an instance counts as a failure of the rollout (rule 47). drifted is the
// result of [Drifted].
func (d Deletion) FailsRollout(drifted bool) bool {
	return d.Cause.failed() && !drifted
}

// EndsRollout reports whether a change of a group's configuration resets the count of the rollout's failures (rule 47).
// This is the case if another rollout begins, or if the same one continues after a pause.
func EndsRollout(before, after *config.Group) bool {
	return before.InfraHash != after.InfraHash || before.RuntimeHash != after.RuntimeHash ||
		before.Rollout != after.Rollout || before.RolledBack() != after.RolledBack() ||
		!slices.Equal(before.Subnets, after.Subnets)
}
