package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// drawAdvice draws what the group does because of recommendations and maintenance. It stays the same for the whole run.
func (g *spec) drawAdvice(d *dice) {
	g.ignores = d.IntN(4) == 0
	if g.purchase != nil && d.IntN(2) == 0 {
		g.purchase.OnRecommendation = config.OnNoticeReplace
	}
}

// limits returns the group's disruption settings.
func (g *spec) limits() *config.Disruption {
	limits := g.disruption
	if g.ignores {
		limits.OnMaintenance = config.OnNoticeIgnore
	}
	return &limits
}

// maintain announces maintenance of a VM, which ends the VM when it begins. If maintenance is announced already, it is
// withdrawn.
func (w *World) maintain(m *machine, d *dice) {
	a := &m.agent
	if !a.maintenance.IsZero() {
		a.maintenance = time.Time{}
		return
	}
	a.maintenance = w.sched.now.Add(d.between(minute, time.Hour))
	begins := a.maintenance
	w.sched.after(begins.Sub(w.sched.now), func() {
		if !w.quiet && m.state != infra.Deleted && a.maintenance.Equal(begins) {
			w.fleet.lose(m, w.provider.Kill)
		}
	})
}

const (
	byRecommendation = "the cloud recommends replacing its VM"
	byMaintenance    = "the cloud has announced maintenance of its VM"
)

// checkAdvised checks that a leader may replace an instance because of the cloud's advice: its group does not ignore
// the advice. For maintenance, a window is open or little time is left when the replacement begins. Its end may fall
// outside the windows.
func (w *World) checkAdvised(t *term, key config.GroupKey, id ident.ID, reason string, begins bool, decided time.Time) {
	if t == nil || whyOf(reason) != advised {
		return
	}
	g, ok := t.groups[key]
	m := w.fleet.byInstance[id]
	if !ok || m == nil || w.sched.now.Sub(t.beforeAt) < rolloutLag ||
		t.server.pausedUntil.Add(rolloutLag).After(decided) || t.server.fooled || w.recentlyFooled() {
		return
	}
	switch most, left := len(w.fleet.order)+1, m.agent.maintenance.Sub(decided); {
	case strings.HasPrefix(reason, byRecommendation) && g.Purchase.OnRecommendation != config.OnNoticeReplace:
		w.fail(ruleAdvised, "%s of %s is replaced (%s), and the group ignores recommendations", id, key, reason)
	case strings.HasPrefix(reason, byMaintenance) && g.IgnoreMaintenance:
		w.fail(ruleAdvised, "%s of %s is replaced (%s), and the group ignores maintenance", id, key, reason)
	case begins && strings.HasPrefix(reason, byMaintenance) && !windowOpen(g, decided) && left >
		time.Duration(most)*(registrationTime+g.StartPeriod()+g.DrainTimeout.D())+wallSkew:
		w.fail(ruleAdvised, "%s of %s is replaced outside the windows %v, its maintenance is in %v", id, key, g.Windows,
			left)
	}
}

// deregistrationDelay implements mock.Config.Delay. Some load balancers have no delay.
func (w *World) deregistrationDelay(lb string) (time.Duration, error) {
	d := w.dice("deregistration delay", hashText(lb))
	if d.IntN(2) == 0 {
		return 0, nil
	}
	return d.between(5*time.Second, 40*time.Second), nil
}

// leaves notes that a server begins to remove a VM from a load balancer.
func (c cloud) leaves(lb string, vm infra.VM) {
	w := c.world
	if m := w.fleet.byProvider[vm.ProviderID]; m != nil && slices.Contains(w.provider.Members(lb), vm.ProviderID) {
		delay, _ := w.deregistrationDelay(lb)
		if until := w.sched.now.Add(delay); until.After(m.balancedUntil) {
			m.balancedUntil = until
		}
	}
}
