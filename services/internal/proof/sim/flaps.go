package sim

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// flapAgent makes an agent silent again and again, until its VM is replaced or the faults end. Each time the silence is
// just long enough for a replacement, and seldom long enough for the replacement to boot.
func (w *World) flapAgent(m *machine, d *dice) {
	if w.quiet || !m.alive() {
		return
	}
	silence := 3*w.reportInterval + w.reportInterval/2 + d.between(0, 20*time.Second)
	if until := w.sched.now.Add(silence); until.After(m.agent.mute) {
		m.agent.mute, m.agent.mutedAt = until, w.sched.now
	}
	w.fleet.hangUp(m)
	w.sched.after(silence+d.between(minute, 3*minute), func() { w.flapAgent(m, d) })
}

// checkFinished checks that the deletion of an instance as surplus does not undo the replacement of an instance that
// was silent or unhealthy (planning rule 62). Without both of them, the group must have its size.
func (w *World) checkFinished(t *term, key config.GroupKey, d *document, least int) {
	old, replaces := t.finishes[d.ID]
	if !replaces || d.State == record.Registered {
		return // a new instance that fails too may be removed as any other
	}
	was, m := w.bucket.byID[old], w.fleet.byInstance[old]
	replacement := w.fleet.byInstance[d.ID]
	switch {
	case was == nil || was.State != record.Registered || t.marked[old] > was.Revision || t.unseen(was) || was.OnDemand:
		return // it is being deleted
	case m == nil || !m.alive() || m.doomed() || replacement == nil || !replacement.alive() || replacement.doomed():
		return
	case w.sched.now.Sub(replacement.since) > registrationTime-2*wallSkew:
		return // it did not register in time
	}
	others := func(o *document) bool { return o.ID != old && o.ID != d.ID }
	if n := w.remaining(t, key, others); n < least {
		w.fail(ruleFinish, "%s is removed as surplus, but it replaces %s, and there are only %d others of %d: %s",
			d.ID, old,
			n, least, w.describe(key))
	}
}
