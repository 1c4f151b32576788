package plan

import (
	"cmp"
	"slices"
	"time"
)

const (
	reasonTooLarge = "the group is larger than its size"
	reasonRemoved  = "an operator lowered the size and chose this instance"

	reasonProtected = "the group is larger than its size, and its other instances are protected"
)

// removals is what the removal phase returns.
type removals struct {
	steps
	chosen       []bool // by instance; nil if none is chosen
	planned      int    // chosen instances of which the deletion is planned in this pass
	replaceFirst int    // chosen instances that rule 19 would replace
}

// planRemovals chooses the instances to delete: those beyond the size, and those with a healthy replacement.
//
// Available instances beyond the size are deleted immediately (rules 19 and 22). An instance that must be replaced is
// beyond the size only when its replacement has reported healthy, so it stays until then, even in a group of size one.
// Instances that are not available yet may exceed the size, but only by the number of replacements in progress. The
// surplus beyond that number is deleted (rule 23). Leaving instances do not count, so no removal is planned twice. An
// instance that cannot be deleted yet, because work for it is under way, also counts as chosen.
func (g *group) planRemovals() (r removals) {
	t := &g.tally
	surplus := t.total() - g.desired
	if surplus <= 0 {
		return r
	}
	r.chosen = make([]bool, len(g.Instances))
	available := max(0, t.available()-g.desired)
	leaving := t.replaceFirst() + t.of[classHeld] + min(g.surge, t.rotating()+t.of[classUnreadyDrifted])
	// Of the surplus, up to min(g.surge, leaving) instances may be replacements of others. Any further surplus comes
	// from a smaller size: it is a scale-down.
	down := max(0, surplus-min(g.surge, leaving))
	if t.of[classWell] == 0 && t.replaceFirst() == 0 {
		down = surplus // nothing but drift or age, and no instance that could be a replacement
	}
	removed := 0
	if available > 0 {
		if removed = g.removeAvailable(&r, available, min(down, available)); removed < available {
			r.block(reasonProtected)
		}
	}
	// Creations that have no instance ID yet cannot be marked for deletion, but count as chosen for removal. Once they
	// have an ID, the planner treats them as instances.
	for chosen := removed + g.PendingCreates; ; {
		tolerated := min(g.surge, g.replaceableLeft(r.chosen), max(0, g.desired-g.wellLeft(r.chosen)))
		n := g.removeUnavailable(&r, surplus-chosen-tolerated)
		if n == 0 {
			return r
		}
		chosen += n // which may leave fewer replacements to tolerate
	}
}

// removeAvailable chooses n of the available instances for removal, or fewer if the others are protected (rule 54). It
// returns how many it chose. The parameter down is the number of instances to remove for a scale-down (rule 22). A
// scale-down removes silent instances first, then those of a kind (spot or on demand) of which the group has too many
// (rule 56), then those that would be replaced anyway, then the oldest. The remaining removals are of instances with
// healthy replacements (rule 19): first of expired ones, then of silent ones, then of drifted and aged ones.
func (g *group) removeAvailable(r *removals, n, down int) int {
	var candidates []candidate
	for k := range g.rows {
		c := g.class(k)
		if g.Instances[k].OnDemand || !c.available() || c == classWell && g.isProtected(&g.Instances[k]) {
			continue
		}
		rank := scaleDownRank[c]
		if g.isUnwellAdvised(k) {
			rank = scaleDownRank[classSilent]
		}
		candidates = append(candidates, g.candidate(k, rank))
	}
	slices.SortFunc(candidates, compareCandidates)
	g.preferSurplus(candidates, r.chosen)
	n = min(n, len(candidates))
	down = min(down, n)
	for _, c := range candidates[:down] {
		g.remove(r, c.at, g.scaleDownCause(), reasonTooLarge)
	}
	if n == down {
		return n
	}
	candidates = candidates[down:]
	for k := range candidates {
		c := &candidates[k]
		g.rankReplaced(c)
		if c.inBalance && !g.Instances[c.at].Spot {
			c.rank += classes // its replacement is bought on demand too, and it is not there yet
		}
	}
	slices.SortFunc(candidates, compareCandidates)
	for _, c := range candidates[:n-down] {
		cause := g.cause(c.at)
		if cause == CauseNone {
			g.remove(r, c.at, g.scaleDownCause(), reasonTooLarge)
			continue
		}
		g.remove(r, c.at, cause, g.replacedReason(&g.Instances[c.at], cause))
	}
	return n
}

// removeUnavailable is rule 23. It chooses up to n of the instances that are not available, and returns how many.
// Instances that are being created come first. Then come instances of a kind (spot or on demand) of which the group has
// too many (rule 56), then the rest. In each of these two parts, instances that never registered go first, beginning
// with the newest. Drifted ones and then the others follow, beginning with the oldest.
//
// Instances that this leader has not heard of stay for now (rule 24). An unregistered instance also stays if the group
// needs its kind: when it is healthy, rule 22 removes another one. A registered one stays if fewer others than the size
// have registered.
func (g *group) removeUnavailable(r *removals, n int) int {
	if n <= 0 {
		return 0
	}
	var candidates []candidate
	for k := range g.rows {
		i, c := &g.Instances[k], g.class(k)
		if !g.isMember(k) || r.chosen[k] || c != classCreating && c != classUnready && c != classUnreadyDrifted ||
			g.isProtected(i) {
			continue
		}
		rank := 3
		switch {
		case c == classCreating:
			rank = 0
		case i.RegisteredAt.IsZero():
			rank = 1
		case c == classUnreadyDrifted:
			rank = 2
		}
		if c != classCreating && !i.RegisteredAt.IsZero() && i.LastReport.IsZero() {
			waited, until := g.waitedForAgents()
			if r.wait(until); !waited {
				r.block("waiting for the agents to report before removing any")
				continue
			}
		}
		candidates = append(candidates, g.candidate(k, rank))
	}
	slices.SortFunc(candidates, compareCandidates)
	g.preferSurplus(candidates, r.chosen)
	registered := g.registeredLeft(r.chosen)
	candidates = slices.DeleteFunc(candidates, func(c candidate) (stays bool) {
		switch {
		case g.class(c.at) == classCreating:
			return false
		case g.Instances[c.at].RegisteredAt.IsZero():
			return c.inBalance
		}
		registered--
		return registered < g.desired
	})
	n = min(n, len(candidates))
	for _, c := range candidates[:n] {
		i := &g.Instances[c.at]
		if g.class(c.at) == classUnreadyDrifted && !i.RegisteredAt.IsZero() && g.tally.of[classWell] > 0 {
			g.remove(r, c.at, CauseDrift, g.replacedReason(i, CauseDrift))
			continue
		}
		g.remove(r, c.at, g.scaleDownCause(), reasonTooLarge)
	}
	return n
}

// waitedForAgents is rule 24: when the registration time-out is over, instances that this leader has not heard of may
// be removed like any others. In a group that is to become empty, they may be removed immediately.
func (g *group) waitedForAgents() (bool, time.Time) {
	if g.desired == 0 || g.LeaderSince.IsZero() {
		return true, time.Time{}
	}
	return reached(g.LeaderSince.Add(g.Settings.RegistrationTimeout), g.Now)
}

// remove chooses an instance and, unless work is under way for it, plans its deletion.
func (g *group) remove(r *removals, n int, cause Cause, reason string) {
	c := g.class(n)
	r.chosen[n] = true
	if c == classExpired || c == classSilent || c == classAdvised {
		r.replaceFirst++
	}
	if c == classCreating {
		return
	}
	before := len(r.actions)
	g.planDeletion(&r.steps, n, cause, reason)
	r.planned += len(r.actions) - before
}

// replaceableLeft counts the instances that are not chosen for removal and for which a replacement may be in progress.
func (g *group) replaceableLeft(chosen []bool) int {
	n := 0
	for k := range g.rows {
		if chosen[k] || g.Instances[k].OnDemand {
			continue
		}
		switch g.class(k) {
		case classExpired, classSilent, classAdvised, classHeld, classDrifted, classAged, classReturning:
			n++
		case classUnreadyDrifted:
			if g.Instances[k].Work != Creating {
				n++
			}
		}
	}
	return n
}

// registeredLeft counts the members that have registered, count towards the size, and are not chosen for removal.
func (g *group) registeredLeft(chosen []bool) int {
	n := 0
	for k := range g.rows {
		if c := g.class(k); g.isMember(k) && !chosen[k] && !g.Instances[k].RegisteredAt.IsZero() &&
			(c.available() || c == classUnready || c == classUnreadyDrifted) {
			n++
		}
	}
	return n
}

// wellLeft counts the instances that are well and not chosen for removal.
func (g *group) wellLeft(chosen []bool) int {
	n := 0
	for k := range g.rows {
		if !chosen[k] && g.class(k) == classWell {
			n++
		}
	}
	return n
}

// candidate is an instance that may be removed. Candidates are in order of rank, then age.
type candidate struct {
	at   int // index of the instance
	rank int
	// inBalance means that the group does not have too many instances of this instance's kind (spot or on demand).
	// Instances of a kind of which the group has too many are removed first.
	inBalance bool
	newest    bool // among equals the latest is removed first
	// neverHealthy is set if newest is, for an instance that never reported that it is healthy. It goes before one that
	// did, but has never been healthy in its load balancers.
	neverHealthy bool
	launched     time.Time
}

// scaleDownRank orders available instances for a scale-down (rule 22). replacedRank orders them for a deletion after a
// replacement (rule 19). The lowest rank is removed first. In a scale-down, rank 0 is for silent instances.
var (
	scaleDownRank = [classes]int{classSilent: 0, classHeld: 0, classAdvised: 1, classExpired: 2, classDrifted: 2,
		classAged: 2, classReturning: 2, classWell: 3}
	replacedRank = [classes]int{classExpired: 0, classSilent: 1, classHeld: 2, classAdvised: 3, classDrifted: 4,
		classAged: 5, classReturning: 6, classWell: 7}
)

// rankReplaced ranks a candidate for a deletion after a replacement. Instances of classAdvised that are not healthy go
// first, so that a replacement never lets a healthy instance go while an unhealthy one counts as available. The healthy
// ones go in the order of [Instance.advisedOrder].
func (g *group) rankReplaced(c *candidate) {
	c.rank = replacedRank[g.class(c.at)]
	if g.class(c.at) == classAdvised {
		c.launched = g.Instances[c.at].advisedOrder()
		if g.isUnwellAdvised(c.at) {
			c.rank = 0
		}
	}
}

// isUnwellAdvised reports whether an instance of classAdvised is not healthy. The other classes from which available
// instances are removed say whether their instances are healthy.
func (g *group) isUnwellAdvised(n int) bool {
	return g.class(n) == classAdvised && g.facts[n].has(factUnwell)
}

func (g *group) candidate(n, rank int) candidate {
	i, c := &g.Instances[n], g.class(n)
	silent := c == classSilent || c == classHeld
	neverHealthy := !i.EverHealthy || g.Group.LoadBalancerHealth && !i.Balancer.WasHealthy
	unready := c == classCreating || c == classUnready || c == classUnreadyDrifted
	return candidate{at: n, rank: rank, launched: i.launched(), neverHealthy: silent && !i.EverHealthy,
		// Of silent instances that were never healthy, or never healthy in their load balancers, the newest goes first:
		// an older one is more likely to have served. Of instances that never registered, the newest goes first too: it
		// has made the least progress.
		newest: silent && neverHealthy || unready && i.RegisteredAt.IsZero()}
}

func compareCandidates(a, b candidate) int {
	if d := cmp.Compare(a.rank, b.rank); d != 0 {
		return d
	}
	if a.inBalance != b.inBalance {
		if b.inBalance {
			return -1
		}
		return 1
	}
	if a.newest != b.newest {
		if a.newest {
			return -1
		}
		return 1
	}
	if a.neverHealthy != b.neverHealthy {
		if b.neverHealthy {
			return 1
		}
		return -1
	}
	age := cmp.Or(a.launched.Compare(b.launched), cmp.Compare(a.at, b.at))
	if a.newest {
		return -age
	}
	return age
}
