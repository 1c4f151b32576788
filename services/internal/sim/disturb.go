package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/infra/mock"
)

// plan fixes, before anything has happened, when something goes wrong, and what: each moment has dice of its own, so
// that one can be left out and the others stay.
func (w *World) plan() {
	d := w.dice("timeline")
	// some worlds are restless, some have time to recover
	longest := 30*time.Second + time.Duration(d.Float64()*float64(3*minute))
	at := d.between(0, time.Minute)
	for n := uint64(0); at < w.opts.Faulty; n++ {
		moment := w.roll("moment", n)
		own := dice{moment.state}
		if k := w.rates.pick(&own); k != "" {
			w.sched.after(at, func() { w.lurk(moment.state, k, &own) })
		}
		at += d.between(time.Second, longest)
	}
}

// lurking is a fault that waits for a server to do something.
type lurking struct {
	until time.Time
	state state
	delay time.Duration
	fire  func()
}

// lurk lets something go wrong, every other time not now but when the leader next does a certain thing: most of what it
// does takes milliseconds, and a moment that is drawn hardly ever meets it.
func (w *World) lurk(moment uint64, k Kind, d *dice) {
	wait, x := d.IntN(2) == 0, []state{configuring, creating, marking, draining, terminating, forgetting, registering,
		settling, collecting, refilling, balancing,
		addressing, regrouping, renewing, takingOver, rechecking}[d.IntN(16)]
	l := lurking{until: w.sched.now.Add(3 * minute), state: x, delay: d.between(0, 30*time.Millisecond), fire: func() {
		w.strike(moment, k, d)
	}}
	s := w.acting()
	if !wait || s == nil {
		l.fire()
		return
	}
	s.lurking = append(s.lurking, l)
}

// spring is told of what a server begins.
func (s *server) spring(x state) {
	now := s.world.sched.now
	s.lurking = slices.DeleteFunc(s.lurking, func(l lurking) bool {
		if l.state == x && now.Before(l.until) {
			s.world.sched.after(l.delay, l.fire)
		}
		return l.state == x || !now.Before(l.until)
	})
}

// strike does one of the things that go wrong in the life of a shard, or that people do.
func (w *World) strike(moment uint64, k Kind, d *dice) {
	s := w.servers[d.IntN(len(w.servers))]
	leader := w.acting()
	if w.quiet {
		return
	}
	if leader != nil && d.chance(0.5) {
		s = leader
	}
	of := func(s *server, format string, args ...any) bool {
		if !s.alive() || !w.faults.admit(moment, k, s.met()) {
			return false
		}
		w.faults.about(format, args...)
		return true
	}
	ofServer := func(format string, args ...any) bool { return of(s, format, args...) }
	ofShard := func(format string, args ...any) bool {
		if !w.faults.admit(moment, k, w.metLeader()) {
			return false
		}
		w.faults.about(format, args...)
		return true
	}
	switch k {
	case killed9, killedMach:
		if ofServer("%s", s.name) {
			w.restart(s, k == killedMach, d)
		}
	case stopped:
		if ofServer("%s", s.name) {
			s.stop()
			w.startLater(s, d.between(100*time.Millisecond, time.Minute))
		}
	case paused, frozen:
		if pause := d.between(100*time.Millisecond, 40*time.Second); ofServer("%s for %v", s.name, pause) {
			s.pause(pause, k == frozen)
		}
	case cutBoth, cutBucket, cutCloud, cutAnswers:
		if cut := d.between(time.Second, 2*time.Minute); ofServer("%s for %v", s.name, cut) {
			s.cutOff(k, cut)
		}
	case deafened:
		if deaf := d.between(10*time.Second, 3*time.Minute); ofServer("%s for %v", s.name, deaf) {
			s.deafen(deaf)
		}
	case clockStep:
		if ofServer("%s", s.name) {
			s.wall = d.between(-wallSkew, wallSkew)
		}
	case linkLost, linkFlaps:
		if len(s.links()) == 0 || !ofServer("%s", s.name) {
			return
		}
		if k == linkLost {
			w.breakLinks(s, d)
		} else {
			w.flap(s, w.sched.elapsed+d.between(5*time.Second, 2*minute), d)
		}
	case peersCut, peersOneWay, peersLossy, peersSlow:
		if s.alive() && w.faults.admit(moment, k, s.met()) {
			w.strikePeers(k, s, d)
		}
	case heirKilled, heirPaused, pairKilled, pairCut:
		w.strikeHeir(k, leader, d, of)
	case killedAll, wiped:
		if !ofShard("every server, VMs too: %t", k == wiped) {
			return
		}
		for _, s := range w.servers {
			w.restart(s, k == wiped, d)
		}
		if k == wiped {
			w.loseVMs(1000, d)
		}
	case lockRemoved:
		// Once in a lease: absence has no version that a write could depend on (docs/concepts/election.md).
		if w.sched.now.Sub(w.lockRemovedAt) > 4*w.longest() && ofShard("") {
			w.lockRemovedAt = w.sched.now
			if err := w.store.Delete(w.outside, lockKey); err != nil {
				panic(err)
			}
		}
	case lostAll:
		if ofShard("%d VMs", len(w.fleet.order)) {
			w.loseVMs(1000, d)
		}
	case addressGone:
		if ofShard("") {
			if err := w.provider.Acquire(w.outside, "elsewhere"); err != nil {
				panic(err)
			}
		}
	case subnetFull:
		subnet := []string{"a", "b"}[d.IntN(2)]
		if full := d.between(time.Minute, 5*time.Minute); ofShard("%s for %v", subnet, full) {
			w.provider.SetCapacity(mock.Place{Subnet: subnet}, 0)
			w.sched.after(full, func() { w.provider.SetCapacity(mock.Place{Subnet: subnet}, -1) })
		}
	case stranger:
		// One, as after a create that landed later than its tombstone was kept, or many, as after a bucket was
		// restored.
		n := 1
		if d.IntN(4) == 0 {
			n = 4
		}
		if ofShard("%d", n) {
			w.strangers(n, d)
		}
	case watchCut, neverDrains:
		if until := d.between(10*time.Second, 3*time.Minute); ofShard("for %v", until) {
			w.operate.disturb(k, until)
		}
	case lostVM, agentMute, allMute, agentSick, notice, powerOff, reboot:
		w.strikeVM(moment, k, d)
	default:
		w.people.act(moment, k, leader, d)
	}
}

// strikeVM befalls one VM, or some, or all.
func (w *World) strikeVM(moment uint64, k Kind, d *dice) {
	m := w.fleet.any(d)
	if m == nil || !w.faults.admit(moment, k, m.met()) {
		return
	}
	w.faults.about("%s", m.id)
	a := &m.agent
	switch k {
	case lostVM:
		w.loseOne(m, d)
		if d.IntN(2) == 0 {
			w.loseVMs(1, d)
		}
		return
	case agentMute, allMute, agentSick:
		w.muteAgents(m, k, d)
		return
	case notice:
		a.notice = true
	case powerOff:
		a.powerOff = true
	case reboot:
		a.reboot = true
	}
	w.fleet.speakAfter(m, 0)
	if a.notice || a.powerOff {
		w.sched.after(d.between(5*time.Second, 2*time.Minute), func() { w.fleet.lose(m, w.provider.Kill) })
	}
}

// strikeHeir befalls the heir, and what it has in common with its leader.
func (w *World) strikeHeir(k Kind, leader *server, d *dice, admit func(s *server, format string, args ...any) bool) {
	heir := w.heir()
	if heir == nil || (k == pairKilled || k == pairCut) && leader == nil || !admit(heir, "%s", heir.name) {
		return
	}
	switch k {
	case heirKilled:
		w.restart(heir, d.IntN(3) == 0, d)
	case heirPaused:
		heir.pause(d.between(w.promise/4, 40*time.Second), false)
	case pairKilled:
		first, second := leader, heir
		if d.IntN(2) == 0 {
			first, second = heir, leader
		}
		life := second.lives
		w.restart(first, d.IntN(3) == 0, d)
		w.sched.after(d.between(0, 2*w.promise), func() {
			if second.lives == life && !w.quiet {
				w.restart(second, d.IntN(3) == 0, d)
			}
		})
	case pairCut:
		cut := d.between(time.Second, 2*minute)
		leader.cutOff(cutBucket, cut)
		heir.cutOff(cutBucket, cut)
	}
}

func (s *server) cutOff(k Kind, d time.Duration) {
	if s.cut == nil {
		s.cut = map[Kind]int{}
	}
	s.cut[k]++
	s.world.sched.after(d, func() { s.cut[k] = max(0, s.cut[k]-1) })
}

func (w *World) restart(s *server, terminated bool, d *dice) {
	back := d.between(100*time.Millisecond, time.Minute)
	if s.alive() {
		s.kill(terminated)
	}
	w.startLater(s, back)
}

func (w *World) startLater(s *server, in time.Duration) {
	life := s.lives
	w.sched.after(in, func() {
		if s.lives != life {
			return
		}
		if s.alive() {
			s.kill(false) // it took too long to stop
		}
		s.start()
	})
}

// loseVMs takes VMs away without a word.
func (w *World) loseVMs(n int, d *dice) {
	vms := append([]*machine(nil), w.fleet.order...)
	for range min(n, len(vms)) {
		at := d.IntN(len(vms))
		m := vms[at]
		vms = append(vms[:at], vms[at+1:]...)
		w.loseOne(m, d)
	}
}

func (w *World) loseOne(m *machine, d *dice) {
	w.trace("VM %s of %s is lost", m.providerID, m.id)
	lose := w.provider.Terminate
	if d.IntN(2) == 0 {
		lose = w.provider.Kill
	}
	w.fleet.lose(m, lose)
}

// muteAgents cuts agents off from the servers: their machines run, and nobody hears them. Some are well and say the
// opposite for a while.
func (w *World) muteAgents(first *machine, k Kind, d *dice) {
	until := w.sched.now.Add(d.between(10*time.Second, 5*time.Minute))
	all := k == allMute || d.IntN(3) == 0
	rolling := d.IntN(2) == 0 // one after the other
	for _, m := range w.fleet.order {
		if hit := d.IntN(5) == 0; m != first && !all && !hit {
			continue
		}
		if k == agentSick {
			w.trace("agent of %s says that it is not well", m.id)
			m.agent.sick = until
			continue
		}
		from := time.Duration(0)
		if rolling {
			from = d.between(0, 2*minute)
		}
		w.sched.after(from, func() {
			if w.quiet || m.state == infra.Deleted {
				return
			}
			w.trace("agent of %s is mute", m.id)
			if end := until.Add(from); end.After(m.agent.mute) {
				m.agent.mute = end // the agent's next try is planned for the later end
			}
			m.agent.mutedAt = w.sched.now
			w.fleet.hangUp(m)
		})
	}
}

// strangers lets VMs appear that have our tags and no record.
func (w *World) strangers(n int, d *dice) {
	for range n {
		w.fleet.planted++
		group := w.people.groups[d.IntN(len(w.people.groups))]
		id := w.freshID(d)
		w.trace("a VM appears for %s, of which there is no record", id)
		w.plant(fmt.Sprintf("orphan-%d", w.fleet.planted), ours, id, group.key)
	}
}

// calm ends all faults: servers run, networks carry, agents speak, the configuration is sound, and what was sent
// arrives.
func (w *World) calm() {
	w.trace("calm")
	w.quiet = true
	w.store.Land()
	for _, subnet := range []string{"a", "b"} {
		w.provider.SetCapacity(mock.Place{Subnet: subnet}, -1)
	}
	for _, s := range w.servers {
		s.cut, s.deaf = map[Kind]int{}, time.Time{}
		w.ways[s.index] = [3]way{}
		switch {
		case !s.alive():
			s.start()
		case s.process.paused:
			s.process.resume()
		}
	}
	for _, m := range w.fleet.order {
		m.agent.mute, m.agent.sick = time.Time{}, time.Time{}
	}
	w.people.settle()
	w.every(time.Minute, w.people.confirm)
}
