package plan

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
)

const (
	reasonRefill     = "the group has fewer spares than spares.count"
	reasonManySpares = "the group has more spares than it wants"
	reasonRenewed    = ", and another spare is ready"
)

// isSpare reports whether an instance is a warm spare. While the record of its promotion is being written, it counts as
// a member that is being created, so that nothing else takes the same place.
func (i *Instance) isSpare() bool { return i.Spare && i.Work != Promoting }

// isMember reports whether instance n is managed and no spare.
func (g *group) isMember(n int) bool { return !g.Instances[n].OnDemand && !g.facts[n].has(factSpare) }

// joined returns when an instance became a member of its group.
func (i *Instance) joined() time.Time { return latest(i.CreatedAt, i.PromotedAt) }

// servesFrom returns when an instance began to serve: at its registration, or when it became a member.
func (i *Instance) servesFrom() time.Time { return latest(i.RegisteredAt, i.PromotedAt) }

// hasRole reports whether the agent has the role that the record says. Agents that are older than spares report none.
func (i *Instance) hasRole() bool {
	return i.Role == "" || (i.Role == RoleSpare) == i.Spare
}

// RoleOf returns the role of an instance.
func RoleOf(rec *record.Instance) Role {
	if rec.IsSpare() {
		return RoleSpare
	}
	return RoleMember
}

// applySpare applies what the record says about the role of an instance. A spare that becomes a member is unready until
// its agent reports that it has the role and is healthy. Its health checks then have as much time as those of a new
// instance.
func applySpare(i Instance, rec *record.Instance, now time.Time) Instance {
	if was := i.Spare; rec.Spare != nil {
		i.Spare, i.PromotedAt = rec.IsSpare(), rec.Spare.PromotedAt
		if was && !i.hasRole() {
			i.Healthy, i.EverHealthy = false, false
		}
		i = applySleep(i, rec.Spare, was && !i.Spare, now)
	}
	return i
}

// RequestPromote makes a spare a member of its group in its record. It returns false if it changed nothing.
func RequestPromote(rec *record.Instance, now time.Time) bool {
	if !rec.IsSpare() || rec.State != record.Registered {
		return false
	}
	spare := *rec.Spare
	spare.PromotedAt = now
	rec.Spare = &spare
	return true
}

// spareClass returns the class of a spare whose class would be c if it were a member.
func spareClass(c class) class {
	switch c {
	case classExpired, classSilent, classAdvised, classUnreadyDrifted, classDrifted, classAged, classReturning:
		return classSpareDue
	case classHeld, classUnready:
		return classSpareUnready
	case classWell:
		return classSpare
	}
	return c
}

// isAgedSpare is the part of rule 80 about max_age and certificates.
func (g *group) isAgedSpare(i subject) (bool, time.Time) {
	due, until := g.isCertificateDue(i.Instance)
	if due || g.isProtected(i.Instance) {
		return due, until
	}
	aged, at := g.isOlder(i.Instance, g.Group.Spares.MaxAge.D())
	return aged, sooner(until, at)
}

// wantedSpares is how many spares the group should have (rule 77).
func (g *group) wantedSpares() int {
	if g.desired == 0 {
		return 0
	}
	return g.Group.Spares.Count
}

// promotable returns the spares that may become members, in the order of rule 78. until is when a spare whose promotion
// failed may be tried again.
func (g *group) promotable() (spares []int, until time.Time) {
	if g.spares == 0 || g.emptying() {
		return nil, time.Time{}
	}
	for n := range g.Instances {
		i := &g.Instances[n]
		if g.class(n) != classSpare || !i.canWake() || i.Work != Idle || i.State != record.Registered {
			continue
		}
		ready, at := retryReady(i.ID, i.Failed, g.Now)
		if until = sooner(until, at); ready {
			spares = append(spares, n)
		}
	}
	slices.SortStableFunc(spares, func(a, b int) int {
		return cmp.Or(g.Instances[a].wakeRank()-g.Instances[b].wakeRank(), g.oldestFirst(a, b))
	})
	return spares, until
}

func (g *group) oldestFirst(a, b int) int {
	return g.Instances[a].launched().Compare(g.Instances[b].launched())
}

// placing is the state of [group.planCreates]: the spares that are left, the creations that no spare makes superfluous,
// and how the instances that stay were bought.
type placing struct {
	spares  []int
	creates []Action
	bought  bought
}

// place gives the place of a new instance to a spare that was bought in the same way (rule 78). An on-demand spare also
// takes the place of a spot instance that may be bought on demand (rule 57). If there is no such spare, the instance
// must be created.
func (g *group) place(out *additions, p *placing, create Action) {
	create = g.buy(create, &p.bought)
	for k, n := range p.spares {
		i := &g.Instances[n]
		if g.Group.Purchase.SpotPercent > 0 {
			if i.Spot != create.Spot && (i.Spot || !create.Fallback) {
				continue
			}
			p.bought.add(create.Spot, -1)
			p.bought.add(i.Spot, 1)
		}
		out.add(Action{Kind: Promote, Instance: i.ID, ProviderID: i.ProviderID, Replaces: create.Replaces,
			Cause: create.Cause, Reason: create.Reason, Rule: 78})
		out.promoted = append(out.promoted, n)
		p.spares = slices.Delete(p.spares, k, k+1)
		return
	}
	p.creates = append(p.creates, create)
}

// buySpare decides how a new spare is bought: as the next instance of a larger group (rule 56). b counts the instances
// and the spares that stay.
func (g *group) buySpare(a Action, b *bought) Action {
	p := &g.Group.Purchase
	if p.SpotPercent == 0 {
		return a
	}
	all := g.desired + g.wantedSpares()
	a.Spot = b.onDemand >= min(p.OnDemandBase, all) && b.spot < spotTarget(p, all)
	a.Fallback = a.Spot && p.Fallback == config.FallbackOnDemand
	b.add(a.Spot, 1)
	return a
}

// pool is the spares of a group that stay, by what they are good for.
type pool struct {
	ready, unready, due []int
	// failing counts those that did not register, and whose deletion is not recorded yet. Before that, the backoff of
	// spares does not count them.
	failing int
	// marking counts the others whose deletion is being recorded. They are left until then, because that may fail.
	marking int
}

// findPool returns the spares that are left when the given ones have become members. creating counts those that have no
// VM yet.
func (g *group) findPool(promoted []int) (p pool, creating int) {
	creating = g.PendingSpares
	for n := range g.Instances {
		if g.spares == 0 {
			break
		}
		if !g.facts[n].has(factSpare) || slices.Contains(promoted, n) {
			continue
		}
		switch g.class(n) {
		case classCreating:
			creating++
		case classFailed:
			p.failing++
		case classLeaving:
			switch i := &g.Instances[n]; {
			case i.Work != MarkingDeleting || i.ended(i.providerState()) || i.Notice:
			case i.RegisteredAt.IsZero():
				p.failing++
			default:
				p.marking++
			}
		case classSpare:
			p.ready = append(p.ready, n)
		case classSpareUnready:
			p.unready = append(p.unready, n)
		case classSpareDue:
			p.due = append(p.due, n)
		}
	}
	return p, creating
}

// planSpares plans the pool of spares: it deletes those beyond spares.count (rule 81) and those that have been renewed
// (rule 80), and fills the pool up again (rule 79). added is what [group.planCreates] returned.
func (g *group) planSpares(removed *removals, added additions) (out steps) {
	if g.spares+g.PendingSpares+g.wantedSpares() == 0 {
		return out
	}
	p, creating := g.findPool(added.promoted)
	if removed.chosen == nil {
		removed.chosen = make([]bool, len(g.Instances))
	}
	for _, n := range added.promoted {
		removed.chosen[n] = true // no other action now
	}
	want := g.wantedSpares()
	g.removeSpares(removed, &out, p.ready, len(p.ready)-want, g.compareReady)
	// As many due spares stay as are needed until new ones are ready.
	due := min(len(p.due), max(0, want-len(p.ready)))
	g.removeSpares(removed, &out, p.due, len(p.due)-due, g.compareDue)
	lacking := max(0, want-len(p.ready)-due)
	if renews := due > 0 && g.renews(p.due); renews {
		lacking = max(lacking, 1)
	}
	g.removeSpares(removed, &out, p.unready, len(p.unready)-max(0, lacking-creating), g.compareUnready)
	coming := creating + len(p.unready) + p.failing
	there := len(p.ready) + len(p.due) + coming + p.marking
	lacking = min(lacking-coming, want+1-there)
	if g.SpareBackoff.Failures > 0 {
		lacking = min(lacking, 1-coming) // until one works
	}
	out.merge(g.refill(added, lacking))
	return out
}

// renews reports whether a spare that is due may be replaced now (rule 80). While the rollout is halted, a spare with
// an outdated configuration is worth more than a new one.
func (g *group) renews(due []int) bool {
	halted := g.halted()
	return slices.ContainsFunc(due, func(n int) bool { return !halted || g.cause(n) != CauseDrift })
}

// compareReady, compareDue and compareUnready say which spares are deleted first.
func (g *group) compareReady(a, b int) int { return g.oldestFirst(a, b) }

func (g *group) compareDue(a, b int) int {
	unwell := func(n int) int { return int(g.facts[n] & factUnwell) }
	return cmp.Or(unwell(b)-unwell(a), g.oldestFirst(a, b))
}

func (g *group) compareUnready(a, b int) int { return g.oldestFirst(b, a) }

// removeSpares plans the deletion of up to n of the given spares. Protected ones stay while they are ready.
func (g *group) removeSpares(removed *removals, out *steps, spares []int, n int, compare func(a, b int) int) {
	slices.SortStableFunc(spares, compare)
	for _, k := range spares {
		i := &g.Instances[k]
		if n <= 0 {
			return
		}
		if g.class(k) == classSpare && g.isProtected(i) {
			continue
		}
		n--
		removed.chosen[k] = true
		cause, reason := g.scaleDownCause(), reasonManySpares
		if g.class(k) == classSpareDue && !g.emptying() && g.desired > 0 {
			cause = g.cause(k)
			reason = g.reason(i, cause) + reasonRenewed
		}
		g.planDeletion(out, k, cause, reason)
	}
}

// refill is rule 79: it plans the creation of n spares, after all instances that the group lacks.
func (g *group) refill(added additions, n int) (out steps) {
	if n <= 0 || added.unfilled > 0 {
		return out
	}
	if over, until := reached(g.SpareBackoff.Until(g.Group.GroupKey), g.Now); !over {
		out.wait(until)
		return out
	}
	_, n, paced := g.paced(0, n)
	out.wait(paced.until)
	total, limits := g.createsAllowed(added.creates + n)
	out.wait(limits.until) // the group has its size, so that nothing blocks it
	b := g.countBought(nil)
	for k := range g.Instances {
		if i := &g.Instances[k]; CountsAsSpare(i) && !g.facts[k].has(factLeaving) {
			b.add(i.Spot, 1)
		}
	}
	for range total - added.creates {
		out.add(g.buySpare(Action{Kind: Create, Spare: true, Voluntary: true, Reason: reasonRefill, Rule: 79}, &b))
	}
	return out
}

// sparesCreating counts the spares that are being created.
func (g *group) sparesCreating() int {
	_, creating := g.findPool(nil)
	return creating
}

// spareWords says how many spares are ready, or "" if the group wants none.
func (g *group) spareWords() string {
	want := g.wantedSpares()
	if want == 0 {
		return ""
	}
	p, _ := g.findPool(nil)
	ready, asleep := len(p.ready), 0
	text := counted(want, "spare") + " ready"
	if ready < want {
		text = strconv.Itoa(ready) + " of " + text
	}
	for _, n := range p.ready {
		if g.Instances[n].sleeps() {
			asleep++
		}
	}
	switch asleep {
	case 0:
	case ready:
		text += ", asleep"
	default:
		text += ", " + strconv.Itoa(asleep) + " asleep"
	}
	return text
}

// saySpares adds how many spares are ready, and why there are not more.
func (g *group) saySpares(w *sentence) {
	text, until := g.spareWords(), g.SpareBackoff.Until(g.Group.GroupKey)
	if text == "" {
		return
	}
	if w.clause(until).text(text); until.After(g.Now) {
		w.text(": backing off: " + g.SpareBackoff.Reason).until(until)
	}
}

// sparesRest reports whether the pool of spares is complete, and none falls asleep.
func (g *group) sparesRest() bool {
	p, creating := g.findPool(nil)
	if slices.ContainsFunc(p.ready, func(n int) bool { return g.fallsAsleep(n) }) {
		return false
	}
	return len(p.ready) >= g.wantedSpares() && len(p.unready)+len(p.due)+creating == 0
}
