package sim

import (
	"context"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// verdict holds what the load balancers answer about a VM, and which of these answers a leader has received.
type verdict struct {
	decidedAt time.Time // the load balancers have no verdict before
	refused   time.Time // they call it unhealthy until then
	// term is the term of the leader that asks the load balancers. The fields below describe the answers to that
	// leader. rounds counts how many answers in a row called the VM unhealthy. refusedSince is the time of the first
	// one of them.
	term         *term
	wasHealthy   bool
	refusedSince time.Time
	rounds       int
}

// unhealthyInBalancer is the reason that load balancers give for every unhealthy VM.
const unhealthyInBalancer = "timeout"

// memberHealth implements mock.Config.Health.
func (w *World) memberHealth(string) (map[string]infra.MemberHealth, error) {
	said := map[string]infra.MemberHealth{}
	for _, m := range w.fleet.order {
		switch v := &m.verdict; {
		case m.state != infra.Running:
		case w.sched.now.Before(v.refused) || w.sched.now.Before(w.refusing):
			said[m.providerID] = infra.MemberHealth{Reason: unhealthyInBalancer}
		case !w.sched.now.Before(v.decidedAt):
			said[m.providerID] = infra.MemberHealth{Healthy: true}
		}
	}
	return said, nil
}

// MemberHealth implements infra.LoadBalancerHealth. If a leader calls it, MemberHealth notes in the VMs' verdicts what
// the leader learns.
func (c cloud) MemberHealth(ctx context.Context, lb string, vms []infra.VM) (map[string]infra.MemberHealth, error) {
	answer, err := c.Provider.MemberHealth(ctx, lb, vms)
	if s := c.world.caller(); err == nil && s != nil && s.term != nil {
		for _, vm := range vms {
			if m := c.world.fleet.byProvider[vm.ProviderID]; m != nil {
				said, decided := answer[vm.ProviderID]
				m.verdict.hear(s.term, said, decided, c.world.sched.now)
			}
		}
	}
	return answer, err
}

func (v *verdict) hear(t *term, said infra.MemberHealth, decided bool, now time.Time) {
	if v.term != t {
		v.term, v.wasHealthy, v.refusedSince, v.rounds = t, false, time.Time{}, 0
	}
	v.wasHealthy = v.wasHealthy || said.Healthy
	if !decided || said.Healthy {
		v.refusedSince, v.rounds = time.Time{}, 0
		return
	}
	if v.rounds++; v.rounds == 1 {
		v.refusedSince = now
	}
}

// startVerdict decides what load balancers say about a new VM: healthy after some seconds, or always unhealthy.
func (f *fleet) startVerdict(m *machine) {
	now := f.world.sched.now
	d := f.world.dice("verdict", hashText(m.id.String()))
	m.verdict.decidedAt = now.Add(d.between(0, 40*time.Second))
	if g := f.world.people.spec(m.key); g != nil && g.asksBalancers() && f.befalls(m, neverServes) {
		m.verdict.refused = now.Add(24 * time.Hour)
	}
}

// refuseAll makes the load balancers call all VMs unhealthy for some minutes.
func (w *World) refuseAll(d *dice) {
	w.refusing = w.sched.now.Add(d.between(30*time.Second, 15*minute))
	w.trace("load balancers call all VMs unhealthy until %v", w.refusing.Sub(epoch))
}

// spec returns the static group with the given key, or nil.
func (p *people) spec(key config.GroupKey) *spec {
	for _, g := range p.groups {
		if g.key == key {
			return g
		}
	}
	return nil
}

// asksBalancers reports whether load_balancer_health is set in the configuration that people want for the group.
func (g *spec) asksBalancers() bool { return g.asks && len(g.balancers) > 0 }

// asked returns a group, and whether the simulation can check the leader's use of load balancer verdicts in it. The
// second result is true only if the group has load_balancer_health. It is false for a minute after a pause of the
// server or a change of the configuration. It stays false once people have changed the load balancers of any group,
// because the leader then forgets verdicts.
func (t *term) asked(key config.GroupKey) (config.Group, bool) {
	g, ok := t.groups[key]
	w := t.server.world
	return g, ok && g.LoadBalancerHealth && !w.people.rebalanced && w.sched.now.Sub(t.beforeAt) > minute &&
		w.sched.now.Sub(t.server.pausedUntil) > minute
}

// checkRefused checks the removal of an instance that its load balancer calls unhealthy. The leader must have received
// two such answers in a row. At most max_unhealthy of the group's instances may be refused. An instance counts as
// refused if it was healthy before and the leader has known the verdict for a minute.
func (w *World) checkRefused(t *term, key config.GroupKey, d *document) {
	group, ok := t.asked(key)
	if !ok {
		return
	}
	if m := w.fleet.byInstance[d.ID]; m != nil && m.alive() && (m.verdict.term != t || m.verdict.rounds < 2) {
		w.fail(ruleVerdict, "%s is removed for its load balancer, which called it unhealthy %d times in a row", d.ID,
			m.verdict.rounds)
	}
	if t.hasFailed(key, d) {
		return
	}
	running, refused := 0, 0
	for _, m := range w.fleet.order {
		other, v := w.bucket.byID[m.id], &m.verdict
		if m.key != key || !m.alive() || m.doomed() || other == nil || other.removed || other.OnDemand ||
			other.isSpare() || other.Preserved != nil || t.unseen(other) || t.hasFailed(key, other) {
			continue
		}
		known := v.term == t && v.wasHealthy && v.rounds > 1 && w.sched.now.Sub(v.refusedSince) > minute
		switch {
		case other.State == record.Registered:
			running++
		case other.State == record.Deleting && whyOf(other.Reason) == refusedByBalancer && known:
			running++
		default:
			continue
		}
		if known {
			refused++
		}
	}
	if refused > group.MaxUnhealthy.Of(running) {
		w.fail(ruleWave, "%s is removed for its load balancer, which refuses %d of %d in its group: %s", d.ID, refused,
			running, w.describe(key))
	}
}

// isNewToBalancer reports whether an instance is too new to replace another one. It is too new if its load balancers
// have not called it healthy yet. The function returns false after registrationTime. It also returns false for an
// instance that fails its health check or is silent. An instance whose nonce was consumed by another key is silent too.
func (t *term) isNewToBalancer(m *machine, d *document) bool {
	v, now := &m.verdict, t.server.world.sched.now
	age := now.Sub(d.RegisteredAt)
	down := now.Before(m.agent.mute) || !m.agent.failsSince.IsZero() || m.agent.refused
	return !down && !(v.term == t && v.wasHealthy) && d.RegisteredAt.After(t.began.Add(2*wallSkew)) &&
		age < registrationTime-4*wallSkew
}

// neverHealthy reports whether a leader knows that the load balancers call the VM unhealthy, and that they have never
// called it healthy. Such a VM has not served, although its agent reported healthy.
func (v *verdict) neverHealthy(t *term) bool { return v.term == t && v.rounds > 1 && !v.wasHealthy }

// checkBalancerFirst checks that a running instance is not removed before its replacement is healthy in its load
// balancers.
func (w *World) checkBalancerFirst(t *term, key config.GroupKey, d *document, reason string, least int) {
	if _, ok := t.asked(key); !ok {
		return
	}
	n := w.remaining(t, key, func(other *document) bool {
		m := w.fleet.byInstance[other.ID]
		return other.State == record.Registered && (m == nil || !t.isNewToBalancer(m, other))
	})
	if n < least {
		w.fail(ruleVerdict, "%s is removed (%s), and of %d wanted %d others are not new to their load balancers: %s",
			d.ID, reason, least, n, w.describe(key))
	}
}

// keepOneRefused makes the load balancers call all VMs healthy except one, so that the leader must replace that one.
func (f *fleet) keepOneRefused() {
	kept := false
	for _, m := range f.order {
		g := f.world.people.spec(m.key)
		if a := &m.agent; kept || g == nil || !g.asksBalancers() || m.onDemand || f.world.isPreserved(m) ||
			f.world.isSpare(m) || a.refused || m.doomed() || !a.registered {
			f.world.endFault(&m.verdict.refused)
		}
		kept = kept || f.world.sched.now.Before(m.verdict.refused)
	}
}

// checkNoneRefused checks that each remaining instance is healthy in its load balancers.
func (w *World) checkNoneRefused(t *term) {
	for _, m := range w.fleet.order {
		if w.sched.now.Before(m.verdict.refused) && t.groups[m.key].LoadBalancerHealth && !m.onDemand &&
			!w.isPreserved(m) && !w.isSpare(m) {
			w.fail(ruleVerdict, "%s is unhealthy in its load balancer since the end of the faults, and is not "+
				"replaced: %s", m.id, w.describe(m.key))
		}
	}
}
