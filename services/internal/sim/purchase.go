package sim

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/infra"
)

// drawPurchase draws how a group's VMs are bought. It stays the same for the whole run.
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

// spotOf is how many instances of a group of the given size are spot instances.
func spotOf(p config.Purchase, size int) int {
	return max(0, size-p.OnDemandBase) * p.SpotPercent / 100
}

// checkPurchase checks how a new VM is bought. A group without purchase options buys no spot instance. A group without
// fallback buys no more on demand than its options say, except while instances are replaced.
func (w *World) checkPurchase(t *term, key config.GroupKey, tags infra.Tags) {
	g, ok := t.groups[key]
	least, most := t.size(key)
	p := g.Purchase
	switch {
	case !ok:
		return
	case tags.Spot && p.SpotPercent == 0:
		w.fail(rulePurchase, "%s of %s is bought as a spot instance, and the group asks for none", tags.Instance, key)
	case tags.Spot || p.SpotPercent == 0 || p.Fallback != "":
		return
	}
	others := 0 // healthy instances that are not spot, which the leader must know
	for _, d := range w.bucket.order {
		if m := w.fleet.byInstance[d.ID]; !d.removed && d.key() == key && !d.Spot && !d.OnDemand && m != nil &&
			d.State == record.Registered && t.marked[d.ID] == 0 && w.isWell(t, m) {
			others++
		}
	}
	wanted := max(most-spotOf(p, most), least-spotOf(p, least))
	if wanted == 0 || others >= wanted+max(g.MaxSurge, g.Rollout.MaxUnavailable) {
		w.fail(rulePurchase, "%s of %s is bought on demand, and %d of %d are already: %s", tags.Instance, key, others,
			most, w.describe(key))
	}
}

// checkReturned checks that a group with return_to_spot replaces its surplus of on-demand instances. At rest, the group
// may have as many of them as its purchase options say.
func (w *World) checkReturned(g config.Group, size int) {
	p := g.Purchase
	if p.ReturnToSpot == 0 || w.countProtected(g) > 0 {
		return
	}
	others := 0
	for _, m := range w.fleet.order {
		if m.key == g.GroupKey && !m.onDemand && !m.spot {
			others++
		}
	}
	if most := size - spotOf(p, size); others > most {
		w.fail(rulePurchase, "%d of %d instances of %s are bought on demand, at most %d may be: %s", others, size,
			g.GroupKey, most, w.describe(g.GroupKey))
	}
}
