package sim

import (
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// drawPurchase draws a group's purchase options, such as the share of spot instances. They stay the same for the whole
// run.
func (g *spec) drawPurchase(d *dice) {
	if d.IntN(2) == 0 {
		return
	}
	g.purchase = &config.Purchase{SpotPercent: []int{50, 100, 100}[d.IntN(3)],
		OnDemandBase: max(0, d.IntN(4)-1)}
	if d.IntN(2) == 0 {
		g.purchase.Fallback = config.FallbackOnDemand
		g.purchase.ReturnToSpot = config.Duration(time.Duration(1+d.IntN(2)) * 90 * time.Second)
	}
}

// spotOf returns how many instances of a group of the given size are spot instances.
func spotOf(p config.Purchase, size int) int {
	return max(0, size-p.OnDemandBase) * p.SpotPercent / 100
}

// shareOf returns how many instances of a group of the given size are spot instances or, if spot is false, on-demand
// instances.
func shareOf(p config.Purchase, size int, spot bool) int {
	if spot {
		return spotOf(p, size)
	}
	return size - spotOf(p, size)
}

// checkPurchase checks whether a new VM may be bought as a spot instance or on demand. A group without purchase options
// buys no spot instance. A group with purchase options buys only as many spot instances as the options permit. If the
// options have no fallback, they also limit the on-demand instances. The limits leave room for the replacements that
// the group may have in progress.
func (w *World) checkPurchase(t *term, key config.GroupKey, tags infra.Tags) {
	g, ok := t.groups[key]
	least, most := t.size(key)
	p := g.Purchase
	switch {
	case !ok:
		return
	case tags.Spot && p.SpotPercent == 0:
		w.fail(rulePurchase, "%s of %s is bought as a spot instance, and the group asks for none", tags.Instance, key)
	case p.SpotPercent == 0 || !tags.Spot && p.Fallback != "":
		return
	}
	same := 0 // healthy instances that were bought in the same way, which the leader must know
	for _, d := range w.bucket.order {
		if m := w.fleet.byInstance[d.ID]; !d.removed && d.key() == key && d.Spot == tags.Spot &&
			!d.OnDemand && !d.isSpare() && m != nil && d.State == record.Registered &&
			t.marked[d.ID] == 0 && w.isWell(t, m) {
			same++
		}
	}
	wanted := max(shareOf(p, most, tags.Spot), shareOf(p, least, tags.Spot))
	if wanted == 0 || same >= wanted+max(g.MaxSurge, g.Rollout.MaxUnavailable) {
		w.fail(rulePurchase, "%s of %s is bought (spot %t), and %d of %d are already bought in that way: %s",
			tags.Instance, key, tags.Spot, same, most, w.describe(key))
	}
}

// checkScaleDown checks that, without faults, a scale-down of a group keeps as many spot and on-demand instances as the
// group's options say.
func (w *World) checkScaleDown(t *term, d *document) {
	key := d.key()
	g, ok := t.groups[key]
	p := g.Purchase
	size, _ := g.SizeAt(w.sched.now.Add(-wallSkew))
	if later, _ := g.SizeAt(w.sched.now.Add(wallSkew)); !ok || p.SpotPercent == 0 || later != size ||
		w.sched.now.Equal(t.beforeAt) || w.sched.now.Sub(t.server.pausedUntil) < time.Second ||
		t.server.slowness() > 0 {
		return
	}
	for _, a := range w.fleet.asked {
		if a.key == key {
			return // its leader counts it already
		}
	}
	if m := w.fleet.byInstance[d.ID]; m == nil || d.State == record.Registered && !w.isWell(t, m) {
		return
	}
	same := w.remaining(t, key, func(other *document) bool { return other.Spot == d.Spot })
	others := w.remaining(t, key, func(other *document) bool { return other.Spot != d.Spot })
	well := w.remaining(t, key, func(other *document) bool {
		m := w.fleet.byInstance[other.ID]
		return other.Spot != d.Spot && m != nil && w.isWell(t, m) && !slices.Contains(g.Protected, other.ID)
	})
	if least := shareOf(p, size, d.Spot); same < least && others > 0 && well == others {
		w.fail(rulePurchase, "%s (spot %t) of %s is scaled down, %d of at least %d bought in that way are left: %s",
			d.ID, d.Spot, key, same, least, w.describe(key))
	}
}

// checkReturned checks a group with return_to_spot at the end of a run. The group may have at most as many on-demand
// instances as its purchase options permit.
func (w *World) checkReturned(g config.Group, size int) {
	p := g.Purchase
	if p.ReturnToSpot == 0 || w.countProtected(g) > 0 {
		return
	}
	others := 0
	for _, m := range w.fleet.order {
		if m.key == g.GroupKey && !m.onDemand && !w.isSpare(m) && !m.spot {
			others++
		}
	}
	if most := shareOf(p, size, false); others > most {
		w.fail(rulePurchase, "%d of %d instances of %s are bought on demand, at most %d may be: %s", others, size,
			g.GroupKey, most, w.describe(g.GroupKey))
	}
}
