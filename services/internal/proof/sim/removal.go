package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// why is the reason for a removal. Its values are the reasons that the rules distinguish.
type why uint8

const (
	unknown   why = iota
	elsewhere     // requested, or its lifetime is over
	vmEnded       // its VM does not run
	scaleDown
	silence
	unfit   // it was never healthy
	failing // its health check fails
	// refusedByBalancer means that the instance's load balancers call it unhealthy.
	refusedByBalancer
	rotation // age or drift
	flaps    // it recovered, or it fails again and again
	advised  // the cloud's recommendation or maintenance
	first    // age or drift, before its replacement is healthy
)

// reasons maps the beginnings of the planner's texts to values of type why. An unknown text fails the run, because the
// checks could not choose the rules for it.
var reasons = []struct {
	prefix string
	why    why
}{
	{"the group is larger than its size", scaleDown},
	{"it runs but is silent", silence},
	{"it was never healthy", unfit},
	{"its health check fails", failing},
	{"it is unhealthy in load balancer", refusedByBalancer},
	{"it recovered, but its replacement is under way", flaps},
	{"it restarted or became unhealthy", flaps},
	{"it has reached its age, and max_unavailable", first},
	{"its infra configuration is out of date, and max_unavailable", first},
	{oldImage + ", and max_unavailable", first},
	{oldImage, rotation},
	{"it has reached its age, and enough others are healthy", rotation},
	{"it has reached its age", elsewhere}, // this is the time to replace it, too
	{"its infra configuration is out of date", rotation},
	{notRegistered, elsewhere},
	{forTimeOver, elsewhere},
	{aboveMax, elsewhere},
	{"its VM ended before its agent registered", vmEnded},
	{"its VM is gone", vmEnded},
	{"its VM has stopped or is stopping", vmEnded},
	{"its VM did not wake", elsewhere},
	{"its VM cannot be woken", elsewhere},
	{"the cloud takes its VM away", elsewhere},
	{byRecommendation, advised},
	{byMaintenance, advised},
	{"its machine powers off", elsewhere},
	{"its group is deleted", elsewhere},
	{"the shard is being emptied", elsewhere},
	{"it was bought on demand, and the group lacks spot instances", rotation},
	{requested, elsewhere},
}

// requested is the reason of deletions by people.
const requested = "requested"

func whyOf(reason string) why {
	reason = strings.Replace(reason, ": the group has returned to its last good one", "", 1)
	for _, r := range reasons {
		if strings.HasPrefix(reason, r.prefix) {
			return r.why
		}
	}
	return unknown
}

// silenceNoticedAfter returns the time after which a leader notices silence: one missed report.
func (w *World) silenceNoticedAfter() time.Duration { return w.reportInterval + w.reportInterval/3 }

// rebootTime is how long an announced reboot excuses silence.
const rebootTime = 5 * minute

// checkRemoval checks the decision to delete an instance when the leader sends it to the bucket.
func (w *World) checkRemoval(s *server, d, next *document) {
	if s == nil || s.term == nil {
		return // a former leader decided this, so the write may or may not take effect
	}
	if s.pausedUntil.Equal(w.sched.now) {
		return // it decided this before its pause, and another server may have led meanwhile
	}
	t, key := s.term, config.GroupKey{Tenant: d.Tenant, Group: d.Group}
	why := whyOf(next.Reason)
	if next.Reason != requested { // the leader's plan learns of requested deletions when they are durable
		t.marked[d.ID] = next.Revision
	}
	if m := w.fleet.byInstance[d.ID]; why == vmEnded && m != nil && m.alive() {
		w.fail(ruleGone, "%s is removed (%s), and it runs", d.ID, next.Reason)
	}
	if d.Preserved != nil {
		// A leader that has not seen that an earlier one preserved the instance cannot take effect with this write.
		if next.Preserved != nil && !s.fooled && !w.recentlyFooled() {
			w.checkPreserved(t, key, d, next.Reason)
		}
		return
	}
	if d.OnDemand || d.isSpare() {
		return
	}
	if why == unknown {
		w.fail(ruleSimulator, "%s is removed for a reason that is not known here: %q", d.ID, next.Reason)
	}
	if s.fooled || w.recentlyFooled() {
		// Do not check counts of instances. Two leaders may have counted the group's instances at the same time,
		// without knowing of each other's removals. Conditional writes protect each record, but not the counts.
		return
	}
	w.checkProtected(t, key, d.ID, next.Reason)
	w.checkRecovers(t, d.ID, next.Reason, w.sched.now)
	least, _ := t.size(key)
	switch why {
	case scaleDown:
		w.checkScaleDown(t, d)
		w.checkFinished(t, key, d, least)
		if n := w.remaining(t, key, func(*document) bool { return true }); n < least {
			w.fail(ruleScaledDown, "%s is scaled down, and %d of %d are left: %s", d.ID, n, least, w.describe(key))
		}
	case silence, unfit:
		w.checkOutage(t, d.ID, "removed")
		w.checkWave(t, key, d)
		w.checkReplaced(t, key, d, next, least)
	case failing:
		w.checkFailing(t, key, d)
		w.checkReplaced(t, key, d, next, least)
	case refusedByBalancer:
		w.checkRefused(t, key, d)
		w.checkReplaced(t, key, d, next, least)
	case advised:
		w.checkAdvised(t, key, d.ID, next.Reason, false, w.sched.now)
		w.checkReplaced(t, key, d, next, least)
	case rotation, flaps:
		w.checkReplaced(t, key, d, next, least)
	case first:
		w.checkFirst(t, key, d, next, least)
	}
}

// checkOutage checks that no VM is replaced because all servers were down. If the VM runs and its agent can reach the
// leader, the VM must stay, because the agent connects at its next attempt. The check skips agents that have had a
// fault since the term began.
func (w *World) checkOutage(t *term, id ident.ID, what string) {
	m := w.fleet.byInstance[id]
	if m == nil || m.state != infra.Running || t == nil {
		return
	}
	a, s := &m.agent, t.server
	undisturbed := a.registered && !a.refused && !a.broken && a.mute.Before(t.began) && a.mutedAt.Before(t.began) &&
		a.sick.Before(t.began) && a.rebootAt.Before(t.began) && s.deaf.Before(t.began) && s.pausedUntil.Before(t.began)
	if view, ok := t.leader.State.Instance(id); ok && undisturbed && view.Plan.LastReport.IsZero() {
		w.fail(ruleOutage, "%s is %s for its silence %v after term %d began, but its agent can reach the leader", id,
			what,
			w.sched.now.Sub(t.began), t.number)
	}
}

// checkOrphan checks that a VM without a record is deleted only after the registration time. If there are more than two
// orphans, and more than 5 % of all VMs are orphans, a person must have confirmed their deletion: so many orphans point
// to a fault of the leader.
func (w *World) checkOrphan(s *server, d *document) {
	if s == nil || s.term == nil || s.term.confirmed[d.ProviderID] {
		return
	}
	if m := w.fleet.byInstance[d.ID]; m != nil && w.sched.now.Sub(m.since) < registrationTime-2*wallSkew {
		w.fail(ruleOrphans, "%s is ended %v after it appeared: its record may be on its way", d.ID,
			w.sched.now.Sub(m.since))
	}
	if orphans, all := w.fleet.orphans(s.term); orphans > 2 && 100*orphans > 5*all {
		w.fail(ruleOrphans, "%s is terminated, which has no record: %d of %d have none, without confirmation", d.ID,
			orphans, all)
	}
}

// remaining returns how many instances of a group will remain when this leader's decisions are carried out. It counts
// only instances for which the function `counts` returns true.
func (w *World) remaining(t *term, key config.GroupKey, counts func(*document) bool) int {
	n := 0
	for _, d := range w.bucket.order {
		// Count the VM of a reservation that an earlier leader left, as this leader does (planning rule 34).
		m := w.fleet.byInstance[d.ID]
		adopted := d.State == record.Reserved && m != nil && m.key == key && !m.onDemand && !m.spare && m.alive()
		// Also count an instance whose deletion this leader did not know when it planned: an earlier leader wrote the
		// deletion after this leader read the bucket, or the bucket has not acknowledged it yet. Also count an instance
		// if this leader's write of the deletion failed, because another write came first.
		unseen := (d.State == record.Deleting && (t.unseen(d) || t.deleting[d.ID] > 0) ||
			d.Preserved != nil && t.unseen(d)) && !d.isSpare()
		stays := unseen || d.counts() && counts(d)
		if (adopted && counts(d) || stays && !d.OnDemand && d.key() == key) && t.marked[d.ID] <= d.Revision {
			n++
		}
	}
	return n
}

// checkReplaced checks the removal of a running instance. At least `least` other instances must be registered. If the
// removed instance was ever healthy, at least one of the others must have reported healthy. A group of one instance
// therefore needs a healthy replacement. A removed instance that was never healthy may itself be a failed replacement.
func (w *World) checkReplaced(t *term, key config.GroupKey, d, next *document, least int) {
	registered := w.remaining(t, key, func(other *document) bool { return other.State == record.Registered })
	healthy := w.remaining(t, key, func(other *document) bool {
		m := w.fleet.byInstance[other.ID]
		return other.State == record.Registered && m != nil && m.agent.wasHealthy
	})
	w.checkBalancerFirst(t, key, d, next.Reason, least)
	m := w.fleet.byInstance[d.ID]
	served := m != nil && m.agent.wasHealthy && !m.verdict.neverHealthy(t)
	if registered < least || served && healthy < min(1, least) {
		w.fail(ruleReplaced, "%s is removed (%s), of %d wanted %d others have registered and %d ever been healthy: %s",
			d.ID, next.Reason, least, registered, healthy,
			w.describe(key))
	}
}

// checkWave checks the removal of an instance that was silent. At most max_unhealthy of the group may be silent. At
// most two fifths of the shard or three instances may be silent, whichever is more.
func (w *World) checkWave(t *term, key config.GroupKey, d *document) {
	group, ok := t.groups[key]
	if !ok || t.hasFailed(key, d) {
		return
	}
	running, silent := w.silent(t, func(m *machine, d *document) bool {
		return m.key == key && !d.OnDemand && !d.isSpare() && !t.hasFailed(key, d)
	})
	if silent > group.MaxUnhealthy.Of(running) {
		w.fail(ruleWave, "%s is removed for its silence, %d of %d in its group are silent: %s", d.ID, silent, running,
			w.describe(key))
	}
	running, silent = w.silent(t, func(*machine, *document) bool { return true })
	if silent > max(3, running*2/5) {
		w.fail(ruleWave, "%s is removed for its silence, %d of %d in the shard are silent", d.ID, silent, running)
	}
}

// silent counts the running VMs of the group, and among them the VMs with silent agents. A VM that was removed for
// silence counts too.
func (w *World) silent(t *term, of func(*machine, *document) bool) (running, silent int) {
	late := w.sched.now.Add(-w.silenceNoticedAfter())
	for _, m := range w.fleet.order {
		d := w.bucket.byID[m.id]
		if !m.alive() || m.doomed() || d == nil || d.removed || d.Preserved != nil || t.unseen(d) || !of(m, d) {
			continue
		}
		if view, ok := t.leader.State.Instance(m.id); ok && view.Plan.Rests() {
			continue // its agent may be asleep
		}
		a := &m.agent
		// Its first report is due. The clock by which its registration was recorded may be ahead of the leader's.
		due := d.since.Before(late.Add(-2 * wallSkew))
		mute := w.sched.now.Before(a.mute) && a.mutedAt.Before(late)
		deaf := w.sched.now.Before(t.server.deaf) && t.deafSince.Before(late)
		switch {
		case d.State == record.Registered && due && (mute || deaf) && w.sched.now.Sub(a.rebootAt) > rebootTime:
			running++
			silent++
		case d.State == record.Registered:
			running++
		case d.State == record.Deleting && whyOf(d.Reason) == silence && (mute || deaf): // not those that report again
			running++
			silent++
		}
	}
	return running, silent
}

// unseen reports whether an earlier leader wrote this version of the record after this leader began to read the bucket.
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
