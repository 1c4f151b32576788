package sim

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

const (
	// forTimeOver and aboveMax are the reasons for the end of a preserved instance (planning rule 68).
	forTimeOver = "it was preserved for"
	aboveMax    = "more instances are preserved than preserve.max"
	// restingFor is preserve.for after the faults, so that every preserved instance ends before the shard is at rest.
	restingFor = config.Duration(minute)
)

// drawPreserve draws whether a group preserves failed instances. In two of three Worlds, no group does.
func (g *spec) drawPreserve(d *dice) {
	if d.IntN(2) == 0 {
		g.preserve = config.Preserve{Max: 1 + d.IntN(2), For: config.Duration(d.between(minute, 8*minute))}
	}
}

// preserves reports whether a group of this World preserves failed instances.
func (w *World) preserves() bool {
	return slices.ContainsFunc(w.people.groups, func(g *spec) bool { return g.preserve.Max > 0 })
}

// ofPreserved are the faults of a World with groups that preserve failed instances. planPreserved decides on them.
var ofPreserved = []odds{{failsKept, 3}, {released, 1}, {newPreserve, 0.5}, {killedKeeping, 2}}

// planPreserved plans the faults of ofPreserved. They have their own streams of random numbers, so that other Worlds do
// not depend on them.
func (w *World) planPreserved() {
	if !w.preserves() {
		return
	}
	d := w.dice("preserved timeline")
	for n, at := uint64(0), d.between(2*minute, 5*minute); at < w.opts.Faulty; n++ {
		moment := w.roll("preserved", n)
		own := dice{moment.state}
		k := pickOf(ofPreserved, &own)
		w.sched.after(at, func() { w.strikePreserved(moment.state, k, &own) })
		at += d.between(10*time.Second, 4*minute)
	}
}

func pickOf(all []odds, d *dice) Kind {
	total := 0.0
	for _, o := range all {
		total += o.most
	}
	at := d.Float64() * total
	for _, o := range all {
		if at -= o.most; at < 0 {
			return o.kind
		}
	}
	return all[len(all)-1].kind
}

func (w *World) strikePreserved(moment uint64, k Kind, d *dice) {
	p, leader := &w.people, w.acting()
	switch k {
	case failsKept:
		if m := w.anyKept(d, false); m != nil && leader != nil && w.othersAreWell(leader.term, m) &&
			w.faults.admit(moment, k) {
			w.faults.about("%s", m.id)
			m.agent.failing = w.sched.now.Add(24 * time.Hour)
			w.fleet.speakAfter(m, 0)
		}
	case released:
		if m := w.anyKept(d, true); m != nil && leader != nil && w.faults.admit(moment, k) {
			w.faults.about("%s", m.id)
			p.removeOne(leader.term, m.id)
		}
	case newPreserve:
		if g := p.groups[d.IntN(len(p.groups))]; w.faults.admit(moment, k) {
			g.preserve = config.Preserve{}
			if most := d.IntN(4); most > 0 {
				g.preserve = config.Preserve{Max: most, For: config.Duration(d.between(minute, 8*minute))}
			}
			p.apply()
			w.faults.about("version %d: group %s: %+v", p.version, g.key, g.preserve)
		}
	case killedKeeping:
		w.killDuring(moment, k, "preserve", d)
	}
}

// killDuring kills the leader when it begins an operation in the next six minutes.
func (w *World) killDuring(moment uint64, k Kind, task string, d *dice) {
	s := w.acting()
	if s == nil {
		return
	}
	delay := d.between(0, 30*time.Millisecond)
	s.lurking = append(s.lurking, lurking{until: w.sched.now.Add(6 * minute), task: task, delay: delay, fire: func() {
		if s.alive() && w.faults.admit(moment, k) {
			w.faults.about("%s", s.name)
			w.restart(s, d.IntN(3) == 0, d)
		}
	}})
}

// anyKept returns a random VM of a group that preserves failed instances: one that is preserved, or one that is not. It
// returns nil if there is none.
func (w *World) anyKept(d *dice, preserved bool) *machine {
	var all []*machine
	for _, m := range w.fleet.order {
		rec, g := w.bucket.byID[m.id], w.people.spec(m.key)
		if rec != nil && rec.stays() && !m.onDemand && g != nil && g.preserve.Max > 0 &&
			(rec.Preserved != nil) == preserved {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[d.IntN(len(all))]
}

// othersAreWell reports whether the leader has no reason to replace another VM of the group. If it had, m could be the
// replacement, which the leader deletes first if both fail.
func (w *World) othersAreWell(t *term, m *machine) bool {
	return !slices.ContainsFunc(w.fleet.order, func(other *machine) bool {
		d := w.bucket.byID[other.id]
		return other != m && other.key == m.key && !other.onDemand && d != nil && d.counts() && !w.isWell(t, other)
	})
}

// counts reports whether the instance exists or is being created, and is neither a spare, preserved nor being deleted.
func (d *document) counts() bool { return d.stays() && d.Preserved == nil && !d.isSpare() }

// failure returns why the instance is deleted, or why it is preserved.
func (d *document) failure() string {
	if d.Preserved != nil {
		return d.Preserved.Reason
	}
	return d.Reason
}

// checkPreserve checks the decision to preserve an instance: it failed, and it is one of at most preserve.max.
func (w *World) checkPreserve(s *server, d, next *document) {
	if s == nil || s.term == nil || s.fooled || w.recentlyFooled() || s.pausedUntil.Equal(w.sched.now) {
		return
	}
	t, key := s.term, d.key()
	switch why := whyOf(next.Reason); {
	case d.OnDemand:
		w.fail(rulePreserve, "%s is preserved, and it was created on demand", d.ID)
	case why != silence && why != unfit && why != failing && why != refusedByBalancer && why != flaps &&
		!strings.HasPrefix(next.Reason, notRegistered):
		w.fail(rulePreserve, "%s is preserved, and it has not failed: %s", d.ID, next.Reason)
	}
	most, _ := t.preserve(key)
	if n := w.countPreserved(t, key, d.ID); n+1 > most {
		w.fail(rulePreserve, "%s is preserved, %d others of %s are, and preserve.max is %d: %s", d.ID, n, key, most,
			w.describe(key))
	}
}

// preserve returns the largest preserve.max of a group in the last minute, and the shortest preserve.for.
func (t *term) preserve(key config.GroupKey) (most int, shortest time.Duration) {
	g := t.groups[key]
	most, shortest = g.Preserve.Max, g.Preserve.For.D()
	if before, ok := t.before[key]; ok && t.server.world.sched.now.Sub(t.beforeAt) < minute {
		most, shortest = max(most, before.Preserve.Max), min(shortest, before.Preserve.For.D())
	}
	return most, shortest
}

// countPreserved counts the preserved instances of a group, except one, whose time is not over. It leaves out those
// that the leader may not know, and those that the leader is deleting.
func (w *World) countPreserved(t *term, key config.GroupKey, except ident.ID) (n int) {
	_, shortest := t.preserve(key)
	for _, d := range w.bucket.order {
		if d.ID != except && d.key() == key && d.stays() && d.Preserved != nil && !t.unseen(d) &&
			t.marked[d.ID] <= d.Revision && t.deleting[d.ID] == 0 &&
			d.Preserved.At.Add(shortest).After(w.sched.now.Add(2*wallSkew)) {
			n++
		}
	}
	return n
}

// checkPreserved checks the decision to delete a preserved instance: its time is over, a person releases it,
// preserve.max was lowered, or its group or the shard is emptied. It has left its load balancers, unless a fault delays
// that.
func (w *World) checkPreserved(t *term, key config.GroupKey, d *document, reason string) {
	most, shortest := t.preserve(key)
	kept := w.sched.now.Sub(d.Preserved.At)
	switch {
	case reason == requested, whyOf(reason) == vmEnded, strings.HasPrefix(reason, "its group is deleted"),
		strings.HasPrefix(reason, "the shard is being emptied"):
	case strings.HasPrefix(reason, forTimeOver):
		if kept < shortest-2*wallSkew {
			w.fail(rulePreserve, "%s ends after %v (%s), and preserve.for is %v", d.ID, kept, reason, shortest)
		}
		w.checkOutOfBalancers(t, d, kept)
	case strings.HasPrefix(reason, aboveMax):
		// An earlier leader may have preserved an instance without this leader's knowledge.
		if g := t.groups[key]; w.allPreserved(key) <= min(most, g.Preserve.Max) {
			w.fail(rulePreserve, "%s ends (%s), and preserve.max is %d: %s", d.ID, reason, g.Preserve.Max,
				w.describe(key))
		}
	default:
		w.fail(rulePreserve, "the preserved instance %s is deleted: %s", d.ID, reason)
	}
}

func (w *World) allPreserved(key config.GroupKey) (n int) {
	for _, d := range w.bucket.order {
		if d.key() == key && d.stays() && d.Preserved != nil {
			n++
		}
	}
	return n
}

// checkOutOfBalancers checks that an instance that was preserved for a minute is in no load balancer. It checks nothing
// in a World with faults that delay the calls.
func (w *World) checkOutOfBalancers(t *term, d *document, kept time.Duration) {
	if kept < minute || w.people.rebalanced || w.cloudFaults() || t.server.slowness() > 0 ||
		w.sched.now.Sub(t.began) < minute {
		return
	}
	for _, lb := range t.groups[d.key()].LoadBalancers {
		if slices.Contains(w.provider.Members(lb), d.ProviderID) {
			w.fail(rulePreserve, "%s was preserved for %v, and is a member of %s", d.ID, kept, lb)
		}
	}
}

// cloudFaults reports whether requests to the provider may fail or take long in this World.
func (w *World) cloudFaults() bool {
	return slices.ContainsFunc([]Kind{cloudFails, cloudThrottles, cloudLost, cloudLate, cloudSlow, cloudRepeated,
		cutCloud, cutBoth, cutAnswers}, func(k Kind) bool { return w.rates.of[k] > 0 })
}

// Register implements infra.LoadBalancers. A preserved instance must not return to a load balancer.
func (c cloud) Register(ctx context.Context, lb string, vm infra.VM) error {
	w := c.world
	if m := w.fleet.byProvider[vm.ProviderID]; m != nil {
		d, s := w.bucket.byID[m.id], w.caller()
		if d != nil && d.Preserved != nil && s != nil && s.term != nil && !s.term.unseen(d) && !s.fooled &&
			s.slowness() == 0 && w.sched.now.Sub(d.Preserved.At) > minute {
			w.fail(rulePreserve, "%s is preserved since %v, and is registered in %s", d.ID, d.Preserved.At, lb)
		}
	}
	return c.Provider.Register(ctx, lb, vm)
}

// notRegistered is the reason for the deletion of an instance whose agent did not register.
const notRegistered = "its agent did not register in time"

// isPreserved reports whether a VM's record says that its instance is preserved.
func (w *World) isPreserved(m *machine) bool {
	d := w.bucket.byID[m.id]
	return d != nil && d.Preserved != nil
}

// preserved returns the group's setting in the configuration.
func (g *spec) preserved() *config.Preserve {
	if g.preserve.Max == 0 {
		return nil
	}
	keep := g.preserve
	return &keep
}
