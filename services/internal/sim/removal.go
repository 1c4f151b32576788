package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/infra"
)

// why an instance is removed, as far as the rules about removals go.
type why uint8

const (
	unknown   why = iota
	elsewhere     // somebody asked for it, or its time is up
	gone          // its VM does not run
	scaleDown
	silence
	rotation // age or drift
)

// reasons are the planner's words. One that is not here breaks the run: it would escape the checks.
var reasons = []struct {
	prefix string
	why    why
}{
	{"the group is larger than its size", scaleDown},
	{"it runs but is silent", silence},
	{"it was never healthy", silence},
	{"it has reached its age, and enough others are healthy", rotation},
	{"it has reached its age", elsewhere}, // the time of its replacement is up, too
	{"its infra configuration is out of date", rotation},
	{"its agent did not register in time", elsewhere},
	{"its VM ended before its agent registered", gone},
	{"its VM is gone", gone},
	{"its VM has stopped or is stopping", gone},
	{"the cloud takes its VM away", elsewhere},
	{"its machine powers off", elsewhere},
	{"its group is deleted", elsewhere},
	{"the shard is being emptied", elsewhere},
	{requested, elsewhere},
}

// requested is what people say.
const requested = "requested"

func whyOf(reason string) why {
	for _, r := range reasons {
		if strings.HasPrefix(reason, r.prefix) {
			return r.why
		}
	}
	return unknown
}

// heardWithin is how fast a leader knows of a silence: one report missed.
func (w *World) heardWithin() time.Duration { return w.reportInterval + w.reportInterval/3 }

// rebootTime is for how long an announced reboot excuses silence.
const rebootTime = 5 * minute

// checkRemoval looks at the decision to delete an instance, when the leader sends it to the bucket.
func (w *World) checkRemoval(s *server, d, next *document) {
	if s == nil || s.term == nil {
		return // decided by a leader that leads no more: it may land or not
	}
	t, key := s.term, config.GroupKey{Tenant: d.Tenant, Group: d.Group}
	why := whyOf(next.Reason)
	if next.Reason != requested { // the leader's plan hears of those when they are durable
		t.marked[d.ID] = next.Revision
	}
	if m := w.fleet.byInstance[d.ID]; why == gone && m != nil && m.alive() {
		w.fail(ruleGone, "%s is removed (%s), and it runs", d.ID, next.Reason)
	}
	if d.OnDemand {
		return
	}
	if why == unknown {
		w.fail(ruleSimulator, "%s is removed for a reason that is not known here: %q", d.ID, next.Reason)
	}
	if s.fooled || w.recentlyFooled() {
		// Two counted at the same time, and neither saw what the other chose: what each writes is fenced, what they
		// choose is not.
		return
	}
	least, _ := t.size(key)
	switch why {
	case scaleDown:
		if n := w.remaining(t, key, func(*document) bool { return true }); n < least {
			w.fail(ruleScaledDown, "%s is scaled down, and %d of %d are left: %s", d.ID, n, least, w.describe(key))
		}
	case silence:
		w.checkOutage(t, d.ID, "removed")
		w.checkWave(t, key, d)
		w.checkReplaced(t, key, d, next, least)
	case rotation:
		w.checkReplaced(t, key, d, next, least)
	}
}

// checkOutage: an outage of all servers replaces no VM that runs and whose agent can reach the leader. An agent that
// was not disturbed since the servers came back only waits for its next try.
func (w *World) checkOutage(t *term, id ident.ID, what string) {
	m := w.fleet.byInstance[id]
	if m == nil || m.state != infra.Running || t == nil {
		return
	}
	a, s := &m.agent, t.server
	undisturbed := a.registered && !a.refused && !a.broken && a.mute.Before(t.began) && a.mutedAt.Before(t.began) &&
		a.sick.Before(t.began) && a.rebootAt.Before(t.began) && s.deaf.Before(t.began)
	if view, ok := t.leader.World.Instance(id); ok && undisturbed && view.Plan.LastReport.IsZero() {
		w.fail(ruleOutage, "%s is %s for its silence %v after term %d began, but its agent can reach the leader", id,
			what,
			w.sched.now.Sub(t.began), t.number)
	}
}

// checkOrphan: a VM of which there is no record may be ended, but not if there are so many that the mistake is more
// likely here.
func (w *World) checkOrphan(s *server, d *document) {
	if s == nil || s.term == nil || s.term.confirmed[d.ProviderID] {
		return
	}
	if m := w.fleet.byInstance[d.ID]; m != nil && w.sched.now.Sub(m.since) < registrationTime-2*wallSkew {
		w.fail(ruleOrphans, "%s is ended %v after it appeared: its record may be on its way", d.ID,
			w.sched.now.Sub(m.since))
	}
	if orphans, all := w.fleet.orphans(s.term); orphans > 2 && 100*orphans > 5*all {
		w.fail(ruleOrphans, "%s is ended, which has no record: %d of %d have none, and nobody has confirmed that", d.ID,
			orphans, all)
	}
}

// remaining counts the instances of a group that stay once this leader's decisions are carried out.
func (w *World) remaining(t *term, key config.GroupKey, counts func(*document) bool) int {
	n := 0
	for _, d := range w.bucket.order {
		// Where another has written the revision that was to say that one goes it stays, until the plan looks again.
		// What an earlier leader wrote, and what landed when this one had read the bucket, it cannot know of.
		// Nor does its plan know of a deletion that somebody asked for before the bucket has answered.
		unseen := d.State == record.Deleting && (t.unseen(d) || t.deleting[d.ID] > 0)
		if (unseen || d.stays() && counts(d)) && !d.OnDemand && d.Tenant == key.Tenant && d.Group == key.Group &&
			t.marked[d.ID] <= d.Revision {
			n++
		}
	}
	return n
}

// checkReplaced: an instance that runs goes only when enough others run, and not before one of them has reported
// healthy. That of a group of one has its replacement then. One that was never well itself may be a replacement that
// came to nothing.
func (w *World) checkReplaced(t *term, key config.GroupKey, d, next *document, least int) {
	registered := w.remaining(t, key, func(other *document) bool { return other.State == record.Registered })
	healthy := w.remaining(t, key, func(other *document) bool {
		m := w.fleet.byInstance[other.ID]
		return other.State == record.Registered && m != nil && m.agent.wasHealthy
	})
	m := w.fleet.byInstance[d.ID]
	served := m != nil && m.agent.wasHealthy
	if registered < least || served && healthy < min(1, least) {
		w.fail(ruleReplaced, "%s is removed (%s), of %d wanted %d others have registered and %d ever been healthy: %s",
			d.ID, next.Reason, least, registered, healthy,
			w.describe(key))
	}
}

// checkWave: no wave of false signals removes more than max_unhealthy of a group, or more than two fifths (three at
// least) of the shard.
func (w *World) checkWave(t *term, key config.GroupKey, d *document) {
	group, ok := t.groups[key]
	if !ok {
		return
	}
	running, silent := w.silent(t, func(m *machine, d *document) bool { return m.key == key && !d.OnDemand })
	if silent > group.MaxUnhealthy.Of(running) {
		w.fail(ruleWave, "%s is removed for its silence, %d of %d in its group are silent: %s", d.ID, silent, running,
			w.describe(key))
	}
	running, silent = w.silent(t, func(*machine, *document) bool { return true })
	if silent > max(3, running*2/5) {
		w.fail(ruleWave, "%s is removed for its silence, %d of %d in the shard are silent", d.ID, silent, running)
	}
}

// silent counts VMs that run and whose agents cannot be heard, or that were removed for that.
func (w *World) silent(t *term, of func(*machine, *document) bool) (running, silent int) {
	late := w.sched.now.Add(-w.heardWithin())
	for _, m := range w.fleet.order {
		d := w.bucket.byID[m.id]
		if !m.alive() || m.doomed() || d == nil || d.removed || t.unseen(d) || !of(m, d) {
			continue
		}
		a := &m.agent
		mute := w.sched.now.Before(a.mute) && a.mutedAt.Before(late)
		deaf := w.sched.now.Before(t.server.deaf) && t.deafSince.Before(late)
		switch {
		case d.State == record.Registered && (mute || deaf) && w.sched.now.Sub(a.rebootAt) > rebootTime:
			running++
			silent++
		case d.State == record.Registered:
			running++
		case d.State == record.Deleting && whyOf(d.Reason) == silence && (mute || deaf): // not one that is heard again
			running++
			silent++
		}
	}
	return running, silent
}

// unseen says whether a record's version was written by an earlier leader, so late that this one may have read the
// version before.
func (t *term) unseen(d *document) bool { return d.Term < t.number && d.since.After(t.began) }

func (w *World) describe(key config.GroupKey) string {
	var b strings.Builder
	for _, m := range w.fleet.order {
		if m.key == key {
			d := w.bucket.byID[m.id]
			if d == nil {
				d = &document{}
			}
			fmt.Fprintf(&b, "\n  %s %s VM %s record %s of term %d (mute %t, doomed %t, on demand %t)", m.id,
				m.providerID, m.state, d.State, d.Term,
				w.sched.now.Before(m.agent.mute), m.doomed(), d.OnDemand)
		}
	}
	return b.String()
}
