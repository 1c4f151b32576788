package sim

import (
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
)

// protect chooses a random instance and makes people protect it, or all instances of its group. If the chosen instance
// is already protected, people end the protection instead.
func (p *people) protect(t *term, d *dice) {
	w := p.world
	m := w.fleet.any(d)
	if m == nil || m.onDemand || w.bucket.byID[m.id] == nil || w.isPreserved(m) {
		return
	}
	_, ends := p.protected[m.id]
	ids := []ident.ID{m.id}
	if d.IntN(2) == 0 {
		ids = nil
		for _, other := range w.fleet.order {
			if other.key == m.key && !other.onDemand && w.bucket.byID[other.id] != nil && !w.isPreserved(other) {
				ids = append(ids, other.id)
			}
		}
	}
	for _, id := range ids {
		delete(p.protected, id)
	}
	w.faults.about("%v, ends %t", ids, ends)
	t.env.Go("protect instances", func() {
		err := t.manage(func(manager *shardconfig.Manager) error {
			_, err := manager.Upsert(t.scope, m.key, "", config.Caller{}, func(spec *config.GroupSpec,
				exists bool) error {
				if !exists {
					return shardconfig.ErrNoGroup
				}
				spec.Protected = slices.DeleteFunc(slices.Clone(spec.Protected), func(text string) bool {
					id, err := ident.ParseID(text)
					return err != nil || slices.Contains(ids, id) || w.bucket.byID[id].removed
				})
				for _, id := range ids {
					if !ends {
						spec.Protected = append(spec.Protected, id.String())
					}
				}
				return nil
			})
			return err
		})
		w.trace("protection of %v, ends %t: %v", ids, ends, err)
		for _, id := range ids {
			if err == nil && !ends {
				p.protected[id] = w.sched.now
			}
		}
	})
}

// countProtected counts the protected instances of a group. The group keeps them even if its size is smaller.
func (w *World) countProtected(g config.Group) (n int) {
	for _, m := range w.fleet.order {
		if m.key == g.GroupKey && !m.onDemand && !w.isSpare(m) && !w.isPreserved(m) &&
			slices.Contains(g.Protected, m.id) {
			n++
		}
	}
	return n
}

// checkProtected checks the removal of a protected instance. An outdated configuration, an outdated image or
// eligible_age must not be the reason. While the instance is well (see isWell), a scale-down must not be the reason
// either. The check skips deleted groups and terminating shards.
func (w *World) checkProtected(t *term, key config.GroupKey, id ident.ID, reason string) {
	since, protected := w.people.protected[id]
	g, ok := t.groups[key]
	s, m := t.server, w.fleet.byInstance[id]
	shard := s.manager.Shard()
	if !protected || !ok || m == nil || g.Deleted || shard.Terminating || w.sched.now.Sub(t.beforeAt) < minute ||
		w.sched.now.Sub(since) < rolloutLag || s.slowness() > 0 || w.sched.now.Sub(s.pausedUntil) < rolloutLag ||
		s.fooled || w.recentlyFooled() {
		return
	}
	if forced := shard.Server.Expiry.ForcedAge.D(); forced > 0 && w.sched.now.Sub(m.since) > forced-minute {
		return
	}
	switch why := whyOf(reason); {
	case why == scaleDown && w.isWell(t, m):
		w.fail(ruleProtected, "%s of %s is scaled down, and it is protected since %v", id, key, since)
	case why == rotation, why == first, why == advised, strings.HasPrefix(reason, "it has reached its age"):
		w.fail(ruleProtected, "%s of %s is replaced (%s), and it is protected since %v", id, key, reason, since)
	}
}

// isWell reports whether the leader has no reason to replace a VM. The VM's agent is connected to this leader, and
// nothing has disturbed the agent or the VM in the last two minutes.
func (w *World) isWell(t *term, m *machine) bool {
	a, s, long := &m.agent, t.server, w.sched.now.Add(-2*minute)
	return m.state == infra.Running && w.bucket.byID[m.id].State == record.Registered && !w.isPreserved(m) &&
		a.leader == t.leader && !m.doomed() && a.wasHealthy && !a.refused && t.began.Before(long) &&
		a.mute.Before(long) && a.sick.Before(long) && a.failing.Before(long) && w.checksDown.Before(long) &&
		m.verdict.refused.Before(long) && w.refusing.Before(long) &&
		w.sched.now.Sub(a.rebootAt) > rebootTime && a.ready.Before(long) && s.deaf.Before(long) &&
		s.pausedUntil.Before(long)
}
