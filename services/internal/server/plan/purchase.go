package plan

import (
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
)

const reasonSpotRefused = "the provider had no spot capacity within return_to_spot"

// bought counts those instances of a group that are not removed, by how they were bought.
type bought struct{ spot, onDemand int }

func (b *bought) add(spot bool, n int) {
	if spot {
		b.spot += n
	} else {
		b.onDemand += n
	}
}

// spotTarget is how many instances of a group of the given size are spot instances (rule 56).
func spotTarget(p *config.Purchase, size int) int {
	return max(0, size-p.OnDemandBase) * p.SpotPercent / 100
}

// surplus returns how many more instances of each kind the group has than its purchase options ask for.
func (g *group) surplus(b bought) bought {
	target := spotTarget(&g.Group.Purchase, g.desired)
	return bought{spot: max(0, b.spot-target), onDemand: max(0, b.onDemand-(g.desired-target))}
}

// countBought counts the instances that count towards the size, and the creations that have no instance ID yet. It
// leaves out instances that are leaving or powering off, and those that are marked in the slice "chosen" (nil: none).
func (g *group) countBought(chosen []bool) bought {
	b := bought{spot: g.PendingSpot, onDemand: g.PendingCreates - g.PendingSpot}
	for k := range g.Instances {
		if i := &g.Instances[k]; Counts(i) && g.facts[k]&(factLeaving|factPoweringOff) == 0 &&
			(chosen == nil || !chosen[k]) {
			b.add(i.Spot, 1)
		}
	}
	return b
}

// buysSpot is rule 56: it reports whether the next new instance is a spot instance. b counts the instances that stay.
func (g *group) buysSpot(b bought) bool {
	p := &g.Group.Purchase
	return b.onDemand >= min(p.OnDemandBase, g.desired) && b.spot < spotTarget(p, g.desired)
}

// buy decides whether action a, which creates an instance, buys a spot instance (rules 56 and 57). It adds the new
// instance to the counts b.
func (g *group) buy(a Action, b *bought) Action {
	if g.Group.Purchase.SpotPercent == 0 {
		return a
	}
	a.Spot = g.buysSpot(*b)
	voluntary := a.Cause == CauseReturnToSpot || a.Cause == CauseRecommendation
	a.Fallback = a.Spot && !voluntary && g.Group.Purchase.Fallback == config.FallbackOnDemand
	b.add(a.Spot, 1)
	return a
}

// leave subtracts instance n from the counts b, because an action replaces it. If n is negative, the action replaces no
// instance.
func (g *group) leave(n int, b *bought) {
	if n >= 0 {
		b.add(g.Instances[n].Spot, -1)
	}
}

// findReturning is the first part of rule 58: if the group has too few spot instances, it finds the oldest instances
// that spot instances should replace. until is when the rule may apply to more instances.
func (g *group) findReturning() (until time.Time) {
	wait := g.Group.Purchase.ReturnToSpot.D()
	if wait == 0 || g.emptying() {
		return time.Time{}
	}
	n := g.surplus(g.countBought(nil)).onDemand
	if n == 0 {
		return time.Time{}
	}
	var candidates []*Instance
	for k := range g.Instances {
		if i := &g.Instances[k]; !i.Spot && Counts(i) && !g.facts[k].has(factLeaving) && !i.RegisteredAt.IsZero() &&
			!g.isProtected(i) {
			candidates = append(candidates, i)
		}
	}
	slices.SortStableFunc(candidates, func(a, b *Instance) int { return a.launched().Compare(b.launched()) })
	for _, i := range candidates[:min(n, len(candidates))] {
		due, at := reached(i.launched().Add(wait), g.Now)
		if !due {
			return at
		}
		g.returning = append(g.returning, i)
	}
	return time.Time{}
}

// isReturning is rule 58.
func (g *group) isReturning(i subject) (bool, time.Time) {
	return slices.Contains(g.returning, i.Instance), time.Time{}
}

// mayReturn is the second part of rule 58: it returns how many of n instances may be replaced by spot instances now. If
// the provider had no spot capacity, the group waits for return_to_spot before it tries again.
func (g *group) mayReturn(n int) (int, steps) {
	var out steps
	if n == 0 || g.SpotRefusedAt.IsZero() {
		return n, out
	}
	if over, until := reached(g.SpotRefusedAt.Add(g.Group.Purchase.ReturnToSpot.D()), g.Now); !over {
		out.waitRollout(reasonSpotRefused, until)
		return 0, out
	}
	return n, out
}

// preferSurplus sorts the candidates for removal again, after a sort by rank. If the group has too many instances of
// one kind (spot or on demand, rule 56), that many candidates of the kind come before the others. Only candidates of
// rank 0 stay in front of them. chosen marks the instances whose removal is already decided.
func (g *group) preferSurplus(candidates []candidate, chosen []bool) {
	if g.Group.Purchase.SpotPercent == 0 {
		return
	}
	left := g.surplus(g.countBought(chosen))
	for k := range candidates {
		c := &candidates[k]
		n := &left.onDemand
		if g.Instances[c.at].Spot {
			n = &left.spot
		}
		// A silent instance serves neither as a spot instance nor as an on-demand one.
		serves := g.class(c.at) != classSilent && g.class(c.at) != classHeld
		if c.inBalance = serves && *n <= 0; c.inBalance && c.rank > 0 {
			c.rank += classes
		}
		*n--
	}
	slices.SortFunc(candidates, compareCandidates)
}
