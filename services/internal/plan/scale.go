package plan

import (
	"cmp"
	"slices"
	"time"
)

// remove chooses what goes: whatever is more than the size, and the instances whose replacement has proven itself.
//
// Two counts decide. Instances that are available (well, or running and to go) beyond the size are removed at once:
// this is how an instance that is to go is deleted only when its replacement has reported healthy, and never the only
// one of a group of one. Instances that are not available yet are removed when they exceed the size by more than the
// surge that replacements in progress are entitled to. Work under way has been counted out already, so no removal is
// planned twice; chosen instances that cannot be touched yet keep their place.
func (p *planner) remove() {
	t := &p.tally
	surplus := t.total() - p.desired
	if surplus <= 0 {
		return
	}
	available := max(0, t.available()-p.desired)
	leaving := t.hard() + t.of[classGuarded] + min(1, t.soft()+t.softUncertain)
	// Scale down rather than rotation: beyond what rotation may have added.
	down := max(0, surplus-min(p.surge, leaving))
	if t.of[classWell] == 0 && t.hard() == 0 {
		down = surplus // nothing but drift or age, and nobody who could be a replacement
	}
	if available > 0 {
		p.removeAvailable(available, min(down, available))
	}
	// Creates under way have no ID yet that could be marked, but count as chosen: the next pass sees them.
	for chosen := available + p.PendingCreates; ; {
		tolerated := min(p.surge, p.leavingLeft(), max(0, p.desired-p.wellLeft()))
		n := p.removeUncertain(surplus - chosen - tolerated)
		if n == 0 {
			return
		}
		chosen += n // which may have left less to tolerate
	}
}

// removeAvailable removes n of the available instances, the first down of them as a scale-down: unhealthy first, then
// those that are to go anyway, then the oldest. The rest are rotation's: forced expiry first, then unhealthy ones, then
// drift and age.
func (p *planner) removeAvailable(n, down int) {
	var picks []pick
	for k, m := range p.marks {
		if c := m.class(p.guarded); m&markOnDemand == 0 && c >= classForced && c <= classWell {
			picks = append(picks, p.pick(k, c, scaleDownRank[c]))
		}
	}
	slices.SortFunc(picks, comparePicks)
	for k := range picks[:down] {
		p.removeOne(picks[k], p.scaleDownCause(), "the group is larger than its size")
	}
	if n == down {
		return
	}
	picks = picks[down:]
	for k := range picks {
		picks[k].rank = int(picks[k].class)
	}
	slices.SortFunc(picks, comparePicks)
	for k := range picks[:n-down] {
		i := &p.Instances[picks[k].at]
		cause := p.cause(i, p.marks[picks[k].at])
		if cause == "" || picks[k].class == classGuarded {
			p.removeOne(picks[k], p.scaleDownCause(), "the group is larger than its size")
			continue
		}
		p.removeOne(picks[k], cause, p.whyNow(i, cause))
	}
}

// removeUncertain removes up to n of the instances that are not available and returns how many: creates under way, then
// those never registered, the latest first, then the others, the oldest first. Those that this leader has yet to hear
// of are left until it has or they are silent.
func (p *planner) removeUncertain(n int) int {
	if n <= 0 {
		return 0
	}
	var picks []pick
	for k, m := range p.marks {
		if m&(markOnDemand|markRemoved) != 0 || m.class(p.guarded) != classUncertain {
			continue
		}
		rank := 2
		switch {
		case m&markMoving != 0:
			rank = 0
		case m&markRegistered == 0:
			rank = 1
		case m&markDrifted == 0:
			rank = 3
		}
		if m&markUnknown != 0 && !p.unheardOf() {
			p.block("waiting for the agents to report before removing any")
			continue
		}
		picks = append(picks, p.pick(k, classUncertain, rank))
	}
	slices.SortFunc(picks, comparePicks)
	n = min(n, len(picks))
	for _, v := range picks[:n] {
		if m := p.marks[v.at]; m&markRegistered != 0 && m&markDrifted != 0 && p.tally.of[classWell] > 0 {
			p.removeOne(v, causeDrift, p.whyNow(&p.Instances[v.at], causeDrift))
			continue
		}
		p.removeOne(v, p.scaleDownCause(), "the group is larger than its size")
	}
	return n
}

// unheardOf: instances that no agent spoke for may be removed as any other. A group on its way to zero does not wait
// for them, and nobody waits longer than a registration may take.
func (p *planner) unheardOf() bool {
	return p.desired == 0 || p.LeaderSince.IsZero() || p.reached(p.LeaderSince.Add(p.Settings.RegistrationTimeout))
}

// removeOne marks an instance as chosen and, if nothing is under way for it, plans its deletion.
func (p *planner) removeOne(v pick, cause, reason string) {
	m := p.marks[v.at]
	p.marks[v.at] |= markRemoved
	if m&markMoving == 0 && p.markDeletingBecause(&p.Instances[v.at], cause, reason) {
		p.removed++
	}
}

func (p *planner) scaleDownCause() string {
	switch {
	case p.Group.Deleted:
		return causeGroupDeleted
	case p.Settings.Terminating:
		return causeTerminating
	}
	return causeScaleDown
}

// leavingLeft and wellLeft count what remains once the chosen are gone: instances whose replacement may be on its way,
// and well ones that stay.
func (p *planner) leavingLeft() int {
	n, soft := 0, 0
	for k, m := range p.marks {
		if m&(markRemoved|markOnDemand) != 0 {
			continue
		}
		switch c := m.class(p.guarded); {
		case c == classForced, c == classSilent, c == classGuarded:
			n++
		case c == classDrifted, c == classAged, c == classUncertain && m&markDrifted != 0 &&
			p.Instances[k].Work != Creating:
			soft = 1
		}
	}
	return n + soft
}

func (p *planner) wellLeft() int {
	n := 0
	for _, m := range p.marks {
		if m&(markRemoved|markOnDemand) == 0 && m.class(p.guarded) == classWell {
			n++
		}
	}
	return n
}

// pick is an instance that may be removed, in order of rank, then age.
type pick struct {
	at       int // index
	class    class
	rank     int
	newest   bool // among equals the latest first
	launched time.Time
}

// scaleDownRank orders available instances for scale-down: unhealthy, to go anyway, the rest.
var scaleDownRank = [classes]int{classSilent: 0, classGuarded: 0, classForced: 1, classDrifted: 1, classAged: 1,
	classWell: 2}

func (p *planner) pick(at int, c class, rank int) pick {
	i := &p.Instances[at]
	silent := c == classSilent || c == classGuarded
	return pick{at: at, class: c, rank: rank, launched: i.launched(),
		// Of several silent ones, those that were never well go first and the latest of them before the rest: the
		// oldest has most likely served. Of those that never registered the latest has made the least progress.
		newest: silent && !i.EverHealthy || c == classUncertain && p.marks[at]&markRegistered == 0}
}

func comparePicks(a, b pick) int {
	if d := cmp.Compare(a.rank, b.rank); d != 0 {
		return d
	}
	if a.newest != b.newest {
		if a.newest {
			return -1
		}
		return 1
	}
	age := cmp.Or(a.launched.Compare(b.launched), cmp.Compare(a.at, b.at))
	if a.newest {
		return -age
	}
	return age
}
