package sim

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// checkFailing checks the removal of an instance for its health check: health checks may fail on at most max_unhealthy
// of the group. It counts only failures that the leader has known for a minute.
func (w *World) checkFailing(t *term, key config.GroupKey, d *document) {
	group, ok := t.groups[key]
	if !ok || t.hasFailed(key, d) {
		return
	}
	running, fail := 0, 0
	for _, m := range w.fleet.order {
		other, a := w.bucket.byID[m.id], &m.agent
		if m.key != key || !m.alive() || m.doomed() || other == nil || other.removed || other.OnDemand ||
			other.isSpare() || other.Preserved != nil || t.unseen(other) || a.notice || a.powerOff ||
			t.hasFailed(key, other) {
			continue
		}
		known := a.leader == t.leader && !a.failsSince.IsZero() && w.sched.now.Sub(a.failsSince) > minute
		switch {
		case other.State == record.Registered:
			running++
		case other.State == record.Deleting && whyOf(other.Reason) == failing && known:
			running++
		default:
			continue
		}
		if known {
			fail++
		}
	}
	if fail > group.MaxUnhealthy.Of(running) {
		w.fail(ruleWave, "%s is removed for its health check, which fails on %d of %d in its group: %s", d.ID, fail,
			running, w.describe(key))
	}
}

// endFault ends a fault now if its end, *until, is still ahead. It sets *until to the present time, not to zero,
// because the leader learns of the end later.
func (w *World) endFault(until *time.Time) {
	if w.sched.now.Before(*until) {
		*until = w.sched.now
	}
}

// keepOneFailing ends the failures of health checks on all VMs except one, so that the leader must replace that one.
func (f *fleet) keepOneFailing() {
	kept := false
	for _, m := range f.order {
		if a := &m.agent; kept || m.onDemand || f.world.isPreserved(m) || a.refused || a.notice ||
			a.powerOff || !a.registered || f.world.sleeps(m) {
			f.world.endFault(&a.failing)
		}
		kept = kept || f.world.sched.now.Before(m.agent.failing)
	}
}

// checkNoneFails checks that no remaining instance that is awake has a failing health check.
func (w *World) checkNoneFails() {
	for _, m := range w.fleet.order {
		if w.sched.now.Before(m.agent.failing) && !m.onDemand && !w.isPreserved(m) && !w.sleeps(m) {
			w.fail(ruleChecks, "the health check of %s fails since the end of the faults, and it is not replaced: %s",
				m.id, w.describe(m.key))
		}
	}
}
