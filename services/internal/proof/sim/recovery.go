package sim

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// recovery is the time in which an instance must not be replaced, because a fault of many instances has just ended.
type recovery struct{ from, until time.Time }

// cutOffAgents cuts all agents off from the servers for some minutes. They come back one after the other.
func (w *World) cutOffAgents(d *dice) {
	until := w.sched.now.Add(d.between(6*minute, 8*minute))
	w.trace("all agents are cut off until %v", until.Sub(epoch))
	for _, m := range w.fleet.order {
		if back := until.Add(d.between(0, reconnect.MaxPause)); back.After(m.agent.mute) {
			m.agent.mute = back
		}
		m.agent.mutedAt = w.sched.now
		w.fleet.hangUp(m)
	}
	w.sched.after(until.Sub(w.sched.now), w.endCommonFault)
}

// returnTime is how long instances may take to report again, or to pass their health checks, after a fault.
func (w *World) returnTime() time.Duration {
	return reconnect.MaxPause + reconnect.AttemptTimeout + w.reportInterval
}

// share counts the running instances of a group or of the shard. down lists the instances that the leader has known to
// be silent or failing for a long time.
type share struct {
	running int
	down    []ident.ID
}

// endCommonFault notes which instances must get time to recover from a fault that ends now. It ignores a short fault,
// because instances may still be recovering from an earlier one (planning rule 61).
func (w *World) endCommonFault() {
	s := w.acting()
	if w.quiet || s == nil || s.fooled || w.recentlyFooled() {
		return
	}
	bound := 2*registrationTime + max(w.returnTime(), registrationTime) + w.reportInterval // with load balancers
	t, long := s.term, w.sched.now.Add(-bound-w.silenceNoticedAfter()-4*wallSkew)
	if !t.began.Before(long) || !s.pausedUntil.Before(long) {
		return
	}
	var shard share
	groups := map[config.GroupKey]*share{}
	for _, m := range w.fleet.order {
		d := w.bucket.byID[m.id]
		if d == nil || d.removed || d.State != record.Registered || d.Preserved != nil || !m.alive() ||
			m.doomed() || t.unseen(d) {
			continue
		}
		down := t.knowsDown(m, long)
		shard.add(m.id, down)
		if !m.onDemand {
			if groups[m.key] == nil {
				groups[m.key] = &share{}
			}
			groups[m.key].add(m.id, down)
		}
	}
	t.grantRecovery(&shard, max(3, shard.running*2/5))
	for key, g := range groups {
		if group, ok := t.groups[key]; ok {
			t.grantRecovery(g, group.MaxUnhealthy.Of(g.running))
		}
	}
}

func (s *share) add(id ident.ID, down bool) {
	s.running++
	if down {
		s.down = append(s.down, id)
	}
}

// knowsDown reports whether a leader has known since the given time that an instance is silent or fails its health
// check.
func (t *term) knowsDown(m *machine, since time.Time) bool {
	a, w := &m.agent, t.server.world
	if a.leader == t.leader {
		return !a.failsSince.IsZero() && a.failsSince.Before(since)
	}
	view, ok := t.leader.State.Instance(m.id)
	return ok && !view.Plan.LastReport.IsZero() && w.sched.now.Before(a.mute) && a.mutedAt.Before(since) &&
		a.rebootAt.Before(since.Add(-rebootTime))
}

// grantRecovery gives the silent or failing instances time to recover if their number exceeds limit, and if they are at
// least four fifths of the running instances. A lower share does not prove a fault: a scale-down also lowers the limit.
func (t *term) grantRecovery(s *share, limit int) {
	if len(s.down) <= limit || 5*len(s.down) < 4*s.running {
		return
	}
	w := t.server.world
	w.trace("%d of %d instances get time to recover", len(s.down), s.running)
	for _, id := range s.down {
		t.recovering[id] = recovery{w.sched.now, w.sched.now.Add(w.returnTime() - 2*wallSkew)}
	}
}

// checkRecovers checks that an instance is not replaced for silence or a failing health check while it has time to
// recover.
func (w *World) checkRecovers(t *term, id ident.ID, reason string, decided time.Time) {
	switch why := whyOf(reason); {
	case why != silence && why != unfit && why != failing, t == nil, t.server.fooled, w.recentlyFooled():
		return
	}
	if d := w.bucket.byID[id]; d != nil && t.hasFailed(d.key(), d) {
		return
	}
	if r := t.recovering[id]; decided.After(r.from) && decided.Before(r.until) && !t.server.pausedUntil.After(r.from) {
		w.fail(ruleRecovery, "%s is replaced (%s) %v after a fault ended that most others shared", id, reason,
			decided.Sub(r.from))
	}
}
