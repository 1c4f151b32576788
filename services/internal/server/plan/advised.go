package plan

import (
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
)

const (
	reasonTooEarly = "no window of disruption.windows is open for instances whose VMs get maintenance later (rule 66)"
	reasonAdvised  = "as many instances as the group's size were replaced within an hour because of recommendations " +
		"or maintenance (rule 39)"
)

// findAdvised marks the instances to which rules 65 (recommended) and 66 (maintenance) apply. They do not apply to new
// instances that have not been healthy yet. A drifted instance with a recommendation is replaced in a wave.
func (g *group) findAdvised() {
	if g.emptying() {
		return
	}
	var maintained []int
	for n := range g.Instances {
		i := &g.Instances[n]
		if i.OnDemand || g.isProtected(i) || !i.EverHealthy ||
			g.facts[n]&(factLeaving|factPreserved|factEnded|factNoticed) != 0 {
			continue
		}
		if awaits, _ := g.awaitsBalancer(i); awaits {
			continue
		}
		if i.Recommended && g.Group.Purchase.OnRecommendation == config.OnNoticeReplace &&
			!Drifted(&g.Group, g.Image, i) {
			g.facts[n] |= factRecommended
		}
		if i.Maintenance != "" && !g.Group.IgnoreMaintenance {
			if g.facts[n] |= factMaintenance; i.isSpare() {
				continue // nothing depends on it, so that it needs no window
			}
			maintained = append(maintained, n)
		}
	}
	g.findTooEarly(maintained)
}

// findTooEarly marks those of the given instances whose replacement waits for a window: there is still time for it
// before their maintenance. If the instances were replaced one wave after the other, the replacement of each would be
// complete when its maintenance begins.
func (g *group) findTooEarly(maintained []int) {
	closed, opens := g.closed()
	if len(maintained) == 0 || !closed {
		return
	}
	g.planAgainAt(opens)
	slices.SortStableFunc(maintained, func(a, b int) int {
		return g.Instances[a].MaintenanceAt.Compare(g.Instances[b].MaintenanceAt)
	})
	replaced := StartGrace(g.Settings, &g.Group) + g.Group.DrainTimeout.D() // the time that one wave takes
	due := 0
	for k, n := range maintained {
		start := g.Instances[n].MaintenanceAt
		for range k/g.surge + 1 { // the waves up to its own
			start = start.Add(-replaced)
		}
		over, until := reached(start, g.Now)
		if over {
			due++
		}
		g.planAgainAt(until)
	}
	for _, n := range maintained[due:] {
		if !g.facts[n].has(factRecommended) {
			g.facts[n] |= factTooEarly
		}
	}
}

// advisedOrder orders the instances of classAdvised: those with a recommendation first, the oldest of them first, then
// those with maintenance, in the order of its begin.
func (i *Instance) advisedOrder() time.Time {
	if i.MaintenanceAt.IsZero() {
		return i.launched()
	}
	return i.MaintenanceAt
}

// findWaiting finds the instances of classAdvised whose replacement must not begin now, and adds them to those that are
// chosen for removal. At most max_surge replacements are under way, with those whose old instance drains. If the
// provider refused one, or there were too many within an hour (rule 39), all wait.
func (g *group) findWaiting(chosen []bool) (out steps) {
	g.waiting = chosen
	if g.tally.of[classAdvised] == 0 {
		return out
	}
	g.waiting = make([]bool, len(g.Instances))
	copy(g.waiting, chosen)
	var advised []int
	for n := range g.rows {
		if g.class(n) == classAdvised && !g.waiting[n] && !g.Instances[n].OnDemand {
			advised = append(advised, n)
		}
	}
	slices.SortStableFunc(advised, func(a, b int) int {
		return g.Instances[a].advisedOrder().Compare(g.Instances[b].advisedOrder())
	})
	most, limits := g.mayReplaceAdvised()
	out.merge(limits)
	for _, n := range advised {
		switch {
		case g.facts[n].has(factTooEarly):
			_, opens := g.closed()
			out.waitRollout(reasonTooEarly, opens)
		case most > 0:
			most--
			continue
		}
		g.waiting[n] = true
		g.waits++
	}
	return out
}

// mayReplaceAdvised returns how many instances of classAdvised may be under replacement now.
func (g *group) mayReplaceAdvised() (most int, out steps) {
	if n := &g.Advised; n.Count > 0 && !n.over(g.Now) && n.Count >= max(1, g.desired) {
		out.waitRollout(reasonAdvised, n.Since.Add(noticeWindow))
		return 0, out
	}
	if b := &g.Advised.Backoff; b.Failures > 0 {
		if over, until := reached(b.Until(g.Group.GroupKey), g.Now); !over {
			out.waitRollout("no replacement for an instance with a recommendation or maintenance: "+b.Reason, until)
			return 0, out
		}
	}
	return max(0, g.surge-g.tally.draining), out
}

// ApplyAdvisedCreate returns a group's count of replacements under rules 65 and 66 after a create call for one more of
// them. refused is why the provider made no VM; "": it made one. A refusal lets only such replacements wait.
func ApplyAdvisedCreate(n Notices, key config.GroupKey, refused string, now time.Time) Notices {
	if n.Count == 0 || n.over(now) {
		n = Notices{Since: now, Backoff: n.Backoff}
	}
	if refused != "" {
		n.Backoff = ApplyCreateFailure(n.Backoff, key, refused, now)
		return n
	}
	n.Count++
	n.Backoff = Backoff{}
	return n
}
