package sim

import (
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// checkAuthority checks that at most one process may act at a time. It runs after each step of an elector. Between the
// steps, only time passes, and that can end the authority of a process, but not give it.
func (w *World) checkAuthority() {
	var holder *server
	for _, s := range w.servers {
		if !s.alive() || s.fooled {
			continue // with a stopped clock it cannot notice the end of its lease: only conditional writes stop it
		}
		if until, _ := s.elector.ActUntil(); until <= s.clock() {
			continue
		}
		if holder != nil {
			_, a := holder.elector.ActUntil()
			_, b := s.elector.ActUntil()
			w.fail(ruleOneLeader, "%s (term %d) and %s (term %d) may both act", holder.process.name, a, s.process.name,
				b)
		}
		holder = s
	}
}

// checkTerm checks that terms only rise.
func (w *World) checkTerm(s *server, number uint64) {
	w.result.Terms++
	if number < w.highest && !s.fooled {
		w.fail(ruleRisingTerms, "term %d begins, but %d was led already", number, w.highest)
	}
}

// checkRecordedTerm checks that no two leaders act in the same term. It runs when the leader has recorded its term,
// because a leader changes nothing before that. If the lock was removed, the next leader knows only the recorded terms.
func (w *World) checkRecordedTerm(s *server, number uint64) {
	if number <= w.highest && !s.fooled {
		w.fail(ruleRisingTerms, "term %d begins, but %d was led already", number, w.highest)
	}
	w.highest = max(w.highest, number)
}

// checkMutation checks that only the leader changes anything at the provider.
func (w *World) checkMutation(s *server, call mock.Call) {
	if call.Kind == mock.Release {
		return // a server may always release its own address
	}
	if s == nil {
		w.fail(ruleMayAct, "%s outside any server", call.Kind)
		return
	}
	if until, _ := s.elector.ActUntil(); until <= s.clock() {
		w.fail(ruleMayAct, "%s calls %s without authority", s.process.name, call.Kind)
	}
	if strings.HasPrefix(call.ProviderID, "foreign") {
		w.fail(ruleOwnVMs, "%s of a foreign VM", call.Kind)
	}
}

// restless reports whether the final phase of the run has begun. Nothing may happen in that phase.
func (w *World) restless() bool { return !w.restAt.IsZero() && w.sched.now.After(w.restAt) }

// checkCreate checks a create call when a server sends it.
func (w *World) checkCreate(s *server, call mock.Call) {
	w.checkMutation(s, call)
	w.result.Creates++
	if w.restless() {
		w.fail(ruleQuiet, "create of %s (%s) after everything had come to rest", call.Instance, call.Request.Tags.Group)
	}
	if s == nil || s.term == nil {
		return
	}
	t, id, key := s.term, call.Instance, config.GroupKey{Tenant: call.Request.Tags.Tenant,
		Group: call.Request.Tags.Group}
	digest, err := call.Request.Digest()
	if err != nil {
		w.fail(ruleSimulator, "create of %s: %v", id, err)
	}
	d := w.bucket.byID[id]
	before, again := w.fleet.asked[id], t.called[id]
	t.called[id] = true
	if before != nil && before.calls.often(w.sched.now) {
		w.fail(rulePatience, "%s is asked for again and again", id)
	}
	switch {
	case d == nil || d.removed:
		w.fail(ruleReservedVM, "create of %s without a durable reservation", id)
	case d.ReservedTerm != t.number:
		w.fail(ruleReservedVM, "create of %s in term %d, it was reserved in %d", id, t.number, d.ReservedTerm)
	case (d.State == record.Deleting || d.State == record.Deleted) && !s.fooled &&
		!(again && d.State == record.Deleting && !t.knows(id, record.Deleting)):
		w.fail(ruleReservedVM, "create of %s with a record in state %s", id, d.State)
	case before != nil && before.digest != digest:
		w.fail(ruleOneVM, "%s is asked for a second time with other parameters", id)
	case before == nil && d.State == record.Reserved:
		w.fleet.asked[id] = &ask{term: t.number, key: key, digest: digest, spare: call.Request.Tags.Spare}
		if call.Request.Tags.Spare && !s.fooled && !w.recentlyFooled() {
			w.checkSpareCount(t, key, id)
		} else if !call.Request.Tags.OnDemand && !s.fooled && !w.recentlyFooled() {
			w.checkSize(t, key)
			w.checkPurchase(t, key, call.Request.Tags)
		}
	}
}

// knows reports whether the leader believes an instance to be in the given state. A leader that does not know of a
// deletion yet may still repeat a create call. That does no harm, because the deletion looks for the instance's VM
// before it completes.
func (t *term) knows(id ident.ID, state record.State) bool {
	rec, _, ok := t.leader.State.Record(id)
	return ok && rec.State == state
}

// checkSize checks that a group never has more than its size plus surge. It counts the group's VMs and this leader's
// create calls without a result. It does not count create calls of earlier leaders, because this leader sees their VMs
// only in the provider's list.
func (w *World) checkSize(t *term, key config.GroupKey) {
	n := 0
	for _, m := range w.fleet.order {
		if m.key == key && m.alive() && !m.doomed() {
			d := w.bucket.byID[m.id]
			switch {
			case d == nil || d.removed || m.onDemand || w.isSpare(m):
			case d.ReservedTerm < t.number && m.since.Before(t.listed):
				if d.counts() || d.State == record.Reserved {
					n++
				}
			case d.ReservedTerm < t.number && d.Term == t.number && d.State == record.Created &&
				w.sched.now.Sub(d.since) < minute:
				// Do not count this VM: an earlier leader sent its create call, and this leader learned of it within
				// the last minute.
			case d.counts():
				n++
			}
		}
	}
	for id, a := range w.fleet.asked {
		if d := w.bucket.byID[id]; a.term == t.number && a.key == key && !d.OnDemand && (!a.spare || d.counts()) {
			n++
		}
	}
	_, size := t.size(key)
	surge := 1
	if g, ok := t.groups[key]; ok {
		surge = g.MaxSurge
	}
	if n > size+surge {
		w.fail(ruleSize, "group %s gets VM number %d, its size is %d and its surge %d: %s", key, n, size, surge,
			w.describe(key))
	}
}

// checkDelete checks a delete call when a server sends it.
func (w *World) checkDelete(s *server, call mock.Call) {
	w.checkMutation(s, call)
	w.result.Deletes++
	m := w.fleet.byProvider[call.ProviderID]
	if m == nil {
		w.fail(ruleOwnVMs, "delete of %s, which is not ours", call.ProviderID)
		return
	}
	if m.calls.often(w.sched.now) {
		w.fail(rulePatience, "%s is asked to end again and again", m.id)
	}
	if !m.alive() {
		return
	}
	if w.restless() {
		w.fail(ruleQuiet, "delete of %s (%s) after everything had come to rest", m.id, m.key)
	}
	d := w.bucket.byID[m.id]
	switch {
	case s != nil && s.term != nil && d != nil && s.term.provedAt.Before(d.since):
		w.fail(ruleProof, "%s is terminated, and the leader has not proved itself since that was decided", m.id)
	case d == nil || d.removed || d.stays() || d.State == record.Reserved:
		w.fail(ruleIntent, "running VM %s of %s is terminated without a durable intent: %+v", m.providerID, m.id, d)
	case d.State == record.Deleting && s != nil && w.operate.unaware(s.term, d):
		l := s.term.learnt[d.ID]
		w.fail(ruleDrain,
			"%s is terminated without a drain announcement in the %v that this leader has known of it, though an "+
				"operator listened", m.id, w.sched.now.Sub(l.at))
	case d.State == record.Deleting && d.Deadline.After(w.sched.now.Add(2*wallSkew)) && w.fleet.awaitsHook(m):
		w.fail(ruleDrain, "%s is terminated at %v while its hook runs, its drain may take until %v", m.id, w.sched.now,
			d.Deadline)
	case d.State == record.Deleting && d.Deadline.After(w.sched.now.Add(2*wallSkew)) && m.agent.wasHealthy &&
		w.sched.now.Add(wallSkew).Before(m.balancedUntil):
		w.fail(ruleDrain, "%s is terminated at %v, its load balancers finish its requests until %v", m.id, w.sched.now,
			m.balancedUntil)
	case d.State == record.Deleting && s != nil && s.term != nil && !w.operate.takesPart(s.term, m.id):
	case d.State == record.Deleting && d.Deadline.After(w.sched.now.Add(2*wallSkew)) && !w.people.drained[m.id]:
		w.fail(ruleDrain, "%s is terminated at %v, its drain may take until %v", m.id, w.sched.now, d.Deadline)
	case d.State == record.Deleting && s != nil && s.term != nil:
		if left, hasty := s.term.hasty(d); hasty {
			w.fail(ruleDrain,
				"%s is terminated %v after this leader learned of its deletion, its drain may take %v more", m.id,
				w.sched.now.Sub(s.term.learnt[d.ID].at), left)
		}
	}
}

// checkAnnounced checks that a deletion is durable before clients receive an event about it.
func (w *World) checkAnnounced(event shardstate.InstanceEvent) {
	if d := w.bucket.byID[event.Instance]; d == nil || d.State != record.Deleting && d.State != record.Deleted {
		w.fail(ruleIntent, "the deletion of %s is announced before it is durable", event.Instance)
	}
}

// checkRest checks the converged state after the faults have stopped. Every group has as many instances as its size,
// and VMs and records match one to one. Acknowledged changes are in force, and the leader has the shard's address.
func (w *World) checkRest() {
	s := w.acting()
	if s == nil {
		w.fail(ruleLeads, "no server leads %v after the faults have stopped", w.opts.Quiet)
		return
	}
	if holder := w.provider.Holder(); holder != s.machine() {
		w.fail(ruleAddress, "the leader is %s, the address is at %q", s.machine(), holder)
	}
	have, spares := map[config.GroupKey]int{}, map[config.GroupKey]int{}
	for _, m := range w.fleet.order {
		d := w.bucket.byID[m.id]
		switch {
		case d == nil || d.removed:
			w.fail(ruleAtRest, "VM %s of %s has no record", m.providerID, m.id)
		case d.Preserved != nil:
			w.fail(rulePreserve, "%s is preserved since %v, and its time is over", d.ID, d.Preserved.At)
		case d.State != record.Registered:
			w.fail(ruleAtRest, "VM %s of %s exists, its record has state %s", m.providerID, m.id, d.State)
		case d.ProviderID != m.providerID:
			w.fail(ruleOneVM, "the record of %s names %s, its VM is %s", d.ID, d.ProviderID, m.providerID)
		case d.isSpare():
			spares[m.key]++
		case !d.OnDemand:
			have[m.key]++
		}
	}
	w.checkGroups(s.term, have)
	w.checkSparesAtRest(s.term, spares)
	w.checkTrial(s.term)
	w.checkNoneFails()
	w.checkNoneRefused(s.term)
	for _, d := range w.bucket.order {
		w.checkRecordAtRest(s.term, d)
	}
	for id, wish := range w.people.onDemand {
		m, d := w.fleet.byInstance[id], w.bucket.byID[id]
		if wish.acked && m == nil && d.stays() {
			w.fail(ruleAcked, "%s was acknowledged, and has no VM", id)
		}
	}
}

func (w *World) checkGroups(t *term, have map[config.GroupKey]int) {
	for key, g := range t.groups {
		size, _ := g.SizeAt(w.sched.now)
		if size = max(size, w.countProtected(g)); have[key] != size {
			view, _ := t.leader.State.GroupView(key)
			w.fail(ruleAtRest, "group %s has %d VMs, wants %d (blocked: %q, backoff %+v):%s", key, have[key], size,
				view.Blocked, view.Backoff, w.describe(key))
		}
		w.checkReturned(g, size)
		w.checkRolledBack(t, g)
		delete(have, key)
	}
	for key, n := range have {
		w.fail(ruleAtRest, "%d VMs of group %s, which does not exist", n, key)
	}
	for key, wish := range w.people.dynamic {
		g, ok := t.groups[key]
		switch {
		case !wish.acked:
		case wish.deleted && ok:
			w.fail(ruleAcked, "group %s was deleted, and is there", key)
		case !wish.deleted && (!ok || g.Size != wish.size):
			w.fail(ruleAcked, "group %s was given size %d, it has %d", key, wish.size, g.Size)
		}
	}
	for _, g := range w.people.groups {
		merged, ok := t.groups[g.key]
		if ok && g.scaling != nil && !g.absent {
			w.checkScaled(t, g, merged)
		} else if ok == g.absent || ok && merged.Size != g.size {
			w.fail(ruleNewest, "group %s is configured with size %d (absent: %t), in force is %d (there: %t)", g.key,
				g.size, g.absent, merged.Size, ok)
		}
	}
	for _, name := range []string{"lb1", "lb2"} {
		w.checkBalancer(t, name)
	}
}

// checkBalancer checks that a load balancer has exactly the right members: the instances of all groups that list it in
// their configuration. After a change of a group's load balancers, the former ones may keep members, because no record
// lists the former load balancers.
func (w *World) checkBalancer(t *term, name string) {
	want := map[string]bool{}
	for _, m := range w.fleet.order {
		for _, lb := range t.groups[m.key].LoadBalancers {
			// An agent is refused if another key consumed its nonce. Its instance is never healthy, so it must not be a
			// member. The leader keeps such an instance only if it is on-demand.
			want[m.providerID] = want[m.providerID] || lb == name && !m.agent.refused && !w.isSpare(m)
		}
	}
	for _, id := range w.provider.Members(name) {
		if !want[id] && !w.people.rebalanced {
			w.fail(ruleBalancers, "%s is a member of %s", id, name)
		}
		delete(want, id)
	}
	for id, wanted := range want {
		if wanted {
			w.fail(ruleBalancers, "%s is no member of %s", id, name)
		}
	}
}

func (w *World) checkRecordAtRest(t *term, d *document) {
	switch {
	case d.removed || d.State == record.Deleted:
	case d.State == record.Reserved:
		// Ignore a reservation that took effect after this leader read the bucket, or that a stale list omitted. This
		// leader cannot know of the reservation, and the next leader will use or remove it.
		if d.ReservedTerm != w.highest && w.rates.of[bucketStale] == 0 && d.since.Before(t.began) {
			w.fail(ruleAtRest, "reservation %s of term %d was never settled", d.ID, d.ReservedTerm)
		}
		// A reservation with a group belongs to an on-demand instance whose creation was not acknowledged. The client's
		// retry with the same ID must have completed the creation.
		if d.Group != "" && (d.ReservedTerm == t.number || d.since.Before(t.began)) {
			w.fail(ruleAtRest, "reservation %s of group %s is left", d.ID, d.Group)
		}
	case d.State == record.Registered:
		m := w.fleet.byInstance[d.ID]
		if m == nil || m.state != infra.Running && !w.sleeps(m) {
			w.fail(ruleAtRest, "the record of %s is registered, its VM is gone", d.ID)
			return
		}
		w.checkSleepAtRest(d, m)
		if string(m.agent.public) != string(d.PublicKey) && !d.OnDemand && t.reported {
			// An instance whose nonce was stolen is removed because its agent is silent. There are two exceptions: the
			// planner ignores the silence of on-demand instances, and a leader measures silence only once some agent
			// has connected to it.
			w.fail(ruleOneKey, "the record of %s holds a key that is not its agent's", d.ID)
		}
	default:
		w.fail(ruleDrain, "the record of %s is left in state %s since %v", d.ID, d.State,
			d.since.Sub(epoch).Round(time.Second))
	}
}

// recentlyFooled reports whether a leader with a stopped clock wrote a record in the last two minutes. In that time,
// another leader may have acted too. Conditional writes still protect each record, but a leader's count of instances
// may be wrong.
func (w *World) recentlyFooled() bool {
	return !w.fooledAt.IsZero() && w.sched.now.Sub(w.fooledAt) < 2*minute
}

// checkNeverMade checks that no VM runs for a record that a leader marks as never created. It runs when the leader
// sends the mark. It ignores a VM that appeared just before.
func (w *World) checkNeverMade(s *server, d *document) {
	if w.rates.of[cloudLag] > 0 || s == nil || s.fooled {
		return
	}
	for _, reason := range []string{"refused", "reserved, never used", "its create call made no VM"} {
		m := w.fleet.byInstance[d.ID]
		if strings.HasPrefix(d.Reason, reason) && m != nil && m.alive() && w.sched.now.Sub(m.since) >= s.slowness() {
			w.fail(ruleGone, "%s is taken never to have been made (%s), and it runs", d.ID, d.Reason)
		}
	}
}

// slowness returns how old data may be when this server acts on the data.
func (s *server) slowness() time.Duration {
	if s.world.sched.now.Sub(s.slowAt) < 2*minute {
		return 2 * minute
	}
	return 0 // without delays, a server reads and writes in the same instant
}
