package sim

import (
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// drawSpares draws whether a group has warm spares. In two of three Worlds, no group has any.
func (g *spec) drawSpares(d *dice) {
	if d.IntN(2) == 0 {
		g.spares = config.Spares{Count: 1 + d.IntN(2)}
		if d.IntN(3) == 0 {
			g.spares.MaxAge = config.Duration(d.between(5*minute, 20*minute))
		}
		g.spares.State = drawState(d)
	}
}

// drawState draws whether spares sleep.
func drawState(d *dice) string {
	return []string{config.SparesRunning, config.SparesStopped, config.SparesSuspended}[d.IntN(3)]
}

// ofSpares are the faults of a World with groups that have spares. planSpares decides on them.
var ofSpares = []odds{{memberLost, 5}, {newSpares, 1}, {killedPromoting, 2}, {killedSleeping, 1}, {killedWaking, 2},
	{noSleep, 1}, {noWake, 1}, {sleeperLost, 1}}

// planSpares plans the faults of ofSpares. They have their own streams of random numbers, so that other Worlds do not
// depend on them.
func (w *World) planSpares() {
	if !w.spares() {
		return
	}
	d := w.dice("spares timeline")
	for n, at := uint64(0), d.between(2*minute, 5*minute); at < w.opts.Faulty; n++ {
		moment := w.roll("spares", n)
		own := dice{moment.state}
		k := pickOf(ofSpares, &own)
		w.sched.after(at, func() { w.strikeSpares(moment.state, k, &own) })
		at += d.between(10*time.Second, 4*minute)
	}
}

// spares reports whether a group of this World has spares.
func (w *World) spares() bool {
	for _, g := range w.people.groups {
		if g.spares.Count > 0 {
			return true
		}
	}
	return false
}

func (w *World) strikeSpares(moment uint64, k Kind, d *dice) {
	p := &w.people
	switch k {
	case memberLost:
		if m := w.fleet.any(d); m != nil && m.state == infra.Running && w.faults.admit(moment, k) {
			w.faults.about("%s", m.id)
			w.fleet.lose(m, w.provider.Kill)
		}
	case newSpares:
		if g := p.groups[d.IntN(len(p.groups))]; w.faults.admit(moment, k) {
			g.spares = config.Spares{Count: d.IntN(4), State: drawState(d)}
			p.apply()
			w.faults.about("version %d: group %s: %+v", p.version, g.key, g.spares)
		}
	case killedPromoting:
		w.killDuring(moment, k, "promote", d)
	case killedSleeping:
		w.killDuring(moment, k, "sleep", d)
	case killedWaking:
		w.killDuring(moment, k, "wake", d)
	case noSleep:
		if w.faults.admit(moment, k) {
			w.noSleepUntil = w.sched.now.Add(d.between(10*time.Second, 10*minute))
		}
	case noWake:
		if w.faults.admit(moment, k) {
			w.noWakeUntil = w.sched.now.Add(d.between(10*time.Second, 10*minute))
		}
	case sleeperLost:
		for _, m := range w.fleet.order {
			if w.sleeps(m) && w.faults.admit(moment, k) {
				w.faults.about("%s", m.id)
				w.fleet.lose(m, w.provider.Terminate)
				return
			}
		}
	}
}

// refuses returns why the provider refuses a call that puts a VM to sleep or wakes it, or nil.
func (w *World) refuses(call mock.Call) error {
	switch now := w.sched.now; {
	case w.quiet:
	case call.Kind == mock.Sleep && now.Before(w.noSleepUntil):
		return infra.Errorf(infra.Invalid, string(call.Kind), "this VM cannot sleep")
	case call.Kind == mock.Wake && now.Before(w.noWakeUntil):
		return infra.Errorf(infra.Capacity, string(call.Kind), "no room")
	}
	return nil
}

// checkSleep checks a call that puts a VM to sleep or wakes it: the decision is durable, and no member is put to sleep.
func (w *World) checkSleep(s *server, call mock.Call) {
	w.checkMutation(s, call)
	d := w.bucket.byID[call.Instance]
	switch {
	case s == nil || s.fooled || w.recentlyFooled():
	case d == nil || d.Spare == nil || d.Spare.Sleep == "" || d.Spare.AsleepAt.IsZero():
		w.fail(ruleSpares, "%s of %s, which is not recorded as asleep", call.Kind, call.Instance)
	case call.Kind == mock.Sleep && !d.isSpare():
		w.fail(ruleSpares, "%s is a member, and is put to sleep", d.ID)
	case call.Kind == mock.Wake && d.isSpare():
		w.fail(ruleSpares, "%s is a spare, and is woken", d.ID)
	}
	if call.Kind == mock.Wake {
		w.result.Woken++
	}
}

// sleeps reports whether the VM of a spare, or of one that is being woken, sleeps or falls asleep.
func (w *World) sleeps(m *machine) bool {
	d := w.bucket.byID[m.id]
	return (m.state == infra.Stopping || m.state == infra.Stopped) && d != nil && d.Spare != nil &&
		!d.Spare.AsleepAt.IsZero()
}

// checkSleepAtRest checks that a VM sleeps if it is that of a spare that should sleep, and otherwise runs.
func (w *World) checkSleepAtRest(d *document, m *machine) {
	should := d.isSpare() && d.Spare.Sleep != ""
	if sleeps := w.sleeps(m); sleeps != should {
		w.fail(ruleSpares, "the VM of %s is %s, spare: %+v", d.ID, m.state, d.Spare)
	}
}

// wakes lets the agent of a VM speak again.
func (f *fleet) wakes(m *machine) {
	if m.agent.ready = f.world.sched.now; m.dice.IntN(2) == 0 {
		m.agent.ready = f.world.sched.now.Add(m.dice.between(0, 20*time.Second))
	}
	f.speakAfter(m, m.dice.between(time.Millisecond, 10*time.Second))
}

// takeRole gives an agent the role that the leader's record says. A member never becomes a spare again.
func (f *fleet) takeRole(t *term, m *machine) {
	rec, _, ok := t.leader.State.Record(m.id)
	if !ok || m.agent.role == plan.RoleMember {
		return
	}
	role := plan.RoleOf(&rec)
	if m.agent.role == plan.RoleSpare && role == plan.RoleMember {
		m.agent.ready = f.world.sched.now.Add(m.dice.between(0, 5*time.Second)) // its health checks run again
		f.world.sched.after(time.Millisecond, func() { f.speakAfter(m, 0) })
	}
	m.agent.role = role
}

// isSpare reports whether a VM is a spare by its record, or by its tags while it has no record of its VM yet.
func (w *World) isSpare(m *machine) bool {
	d := w.bucket.byID[m.id]
	if d == nil || d.State == record.Reserved {
		return m.spare
	}
	return d.isSpare()
}

// isSpare reports whether the record calls the instance a spare.
func (d *document) isSpare() bool { return d.Spare != nil && d.Spare.PromotedAt.IsZero() }

// checkPromotion checks the decision to make a spare a member: its group lacks an instance, or replaces one.
func (w *World) checkPromotion(s *server, d, next *document) {
	if s == nil || s.term == nil || s.fooled || w.recentlyFooled() || s.pausedUntil.Equal(w.sched.now) {
		return
	}
	t, key := s.term, d.key()
	switch {
	case d.State != record.Registered || next.State != record.Registered:
		w.fail(ruleSpares, "%s becomes a member in state %s", d.ID, d.State)
	case d.Preserved != nil:
		w.fail(ruleSpares, "%s becomes a member, and it is preserved", d.ID)
	}
	w.result.Promotions++
	t.marked[d.ID] = next.Revision // the leader no longer counts it as a spare
	_, size := t.size(key)
	surge := 1
	if g, ok := t.groups[key]; ok {
		surge = g.MaxSurge
	}
	runs := func(other *document) bool { // a lost one is not marked yet
		m := w.fleet.byInstance[other.ID]
		return m == nil || m.alive() && !m.doomed()
	}
	if n := w.remaining(t, key, runs); n+1 > size+surge {
		w.fail(ruleSpares, "%s becomes member number %d of %s, its size is %d and its surge %d: %s", d.ID, n+1, key,
			size, surge, w.describe(key))
	}
}

// checkSpareCount checks a create call for a spare: the group never has more spares than it asks for, and one more
// while one is renewed.
func (w *World) checkSpareCount(t *term, key config.GroupKey, id ident.ID) {
	n := 0
	for _, d := range w.bucket.order {
		m := w.fleet.byInstance[d.ID]
		if d.ID != id && d.key() == key && d.isSpare() && d.stays() && !t.unseen(d) && t.marked[d.ID] <= d.Revision &&
			m != nil && (m.alive() || w.sleeps(m)) && !m.doomed() {
			n++
		}
	}
	for other, a := range w.fleet.asked {
		if d := w.bucket.byID[other]; other != id && a.term == t.number && a.key == key && a.spare &&
			d.State == record.Reserved {
			n++
		}
	}
	if most := t.spares(key) + 1; n+1 > most {
		w.fail(ruleSpares, "group %s gets spare number %d, and wants %d: %s", key, n+1, most-1, w.describe(key))
	}
}

// spares returns the largest spares.count of a group in the last minute.
func (t *term) spares(key config.GroupKey) int {
	most := t.groups[key].Spares.Count
	if before, ok := t.before[key]; ok && t.server.world.sched.now.Sub(t.beforeAt) < minute {
		most = max(most, before.Spares.Count)
	}
	return most
}

// checkSparesAtRest checks that each group has as many spares as it asks for.
func (w *World) checkSparesAtRest(t *term, have map[config.GroupKey]int) {
	for key, g := range t.groups {
		want := g.Spares.Count
		if size, _ := g.SizeAt(w.sched.now); size == 0 || g.Deleted {
			want = 0
		}
		protected := 0 // which stay if more are there than are wanted
		for _, m := range w.fleet.order {
			if m.key == key && w.isSpare(m) && slices.Contains(g.Protected, m.id) {
				protected++
			}
		}
		if have[key] < want || have[key] > max(want, protected) {
			w.fail(ruleSpares, "group %s has %d spares, wants %d: %s", key, have[key], want, w.describe(key))
		}
		delete(have, key)
	}
	for key, n := range have {
		w.fail(ruleSpares, "%d spares of group %s, which does not exist", n, key)
	}
}
