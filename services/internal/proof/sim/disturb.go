package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
)

// plan decides, before the run starts, at which times faults occur and of which kind. Each fault has its own stream of
// random numbers. If a later run leaves out one fault, the others therefore stay the same.
func (w *World) plan() {
	d := w.dice("timeline")
	// longest is the largest pause between two faults. A small value makes many faults; a large value leaves time to
	// recover.
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

// lurking is a fault that waits until a server begins a certain operation.
type lurking struct {
	until time.Time
	task  string // the name of the task that begins the operation
	delay time.Duration
	fire  func()
}

// loadUnseen is the name of the operation in which a leader loads records that it does not have yet, or has in another
// version.
const loadUnseen = "load unseen records"

// lurksFor names the operations that faults wait for.
var lurksFor = []string{"refresh", "create", "create an instance", "mark_deleting", "delete an instance", "drain",
	"terminate", "forget", "register", "settle", "terminate_stray", "remove_tombstone", "refill reservations",
	"halt_rollout", "end_halt", "store_good_config",
	"register_load_balancers", "hold the address", "change a group", "write lock", "lead", loadUnseen}

// lurk starts a fault. Half of the faults occur immediately; the others wait up to three minutes for the leader to
// begin a random operation. Most operations take milliseconds, so a fault at a random time would seldom hit one.
func (w *World) lurk(moment uint64, k Kind, d *dice) {
	wait, task := d.IntN(2) == 0, lurksFor[d.IntN(len(lurksFor))]
	l := lurking{until: w.sched.now.Add(3 * minute), task: task, delay: d.between(0, 30*time.Millisecond),
		fire: func() { w.strike(moment, k, d) }}
	s := w.acting()
	if !wait || s == nil {
		l.fire()
		return
	}
	s.lurking = append(s.lurking, l)
}

// spring is called when this server begins a task. It starts the faults that have waited for this task.
func (s *server) spring(task string) {
	now := s.world.sched.now
	s.lurking = slices.DeleteFunc(s.lurking, func(l lurking) bool {
		if l.task == task && now.Before(l.until) {
			s.world.sched.after(l.delay, l.fire)
		}
		return l.task == task || !now.Before(l.until)
	})
}

// strike causes one fault of a shard, or one action of a person.
func (w *World) strike(moment uint64, k Kind, d *dice) {
	s := w.servers[d.IntN(len(w.servers))]
	leader := w.acting()
	if w.quiet {
		return
	}
	if leader != nil && d.chance(0.5) {
		s = leader
	}
	ofShard := func(format string, args ...any) bool {
		if !w.faults.admit(moment, k) {
			return false
		}
		w.faults.about(format, args...)
		return true
	}
	ofServer := func(format string, args ...any) bool { return s.alive() && ofShard(format, args...) }
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
		if s.alive() && w.faults.admit(moment, k) {
			w.strikePeers(k, s, d)
		}
	case heirKilled, heirPaused, pairKilled, pairCut:
		w.strikeHeir(moment, k, leader, d)
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
		// Wait for at least four leases between two removals of the lock. A write that creates the lock cannot depend
		// on a version, so two quick removals could produce two leaders. Do not remove the lock before the first leader
		// has recorded its term, because servers would take the shard for a new one. docs/concepts/election.md forbids
		// both.
		if w.highest > 0 && w.sched.now.Sub(w.lockRemovedAt) > 4*w.longest() && ofShard("") {
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
	case bucketCrawls:
		if ofShard("") {
			w.slowBucket(d)
		}
	case spotScarce:
		if scarce := d.between(time.Minute, 10*time.Minute); ofShard("for %v", scarce) {
			w.scarceUntil = w.sched.now.Add(scarce)
		}
	case stranger:
		// Plant one VM, as if a create call took effect after its instance's tombstone was removed. Or plant several
		// VMs, as if the bucket was restored from a backup.
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
	case refusedAll:
		if ofShard("") {
			w.refuseAll(d)
		}
	case lostVM, agentMute, allMute, allCutOff, refused, agentSick, checkFails, checksDown, notice, powerOff, reboot,
		agentFlaps, recommended, maintained:
		w.strikeVM(moment, k, d)
	default:
		w.people.act(moment, k, leader, d)
	}
}

// strikeVM causes a fault of one VM, some VMs or all VMs.
func (w *World) strikeVM(moment uint64, k Kind, d *dice) {
	m := w.fleet.any(d)
	if m == nil || !w.faults.admit(moment, k) {
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
	case allCutOff:
		w.cutOffAgents(d)
		return
	case agentFlaps:
		w.flapAgent(m, d)
		return
	case refused:
		m.verdict.refused = w.sched.now.Add(24 * time.Hour)
		return
	case checkFails:
		a.failing = w.sched.now.Add(24 * time.Hour)
	case checksDown:
		w.failChecks(d)
		return
	case notice:
		a.notice = true
	case powerOff:
		a.powerOff = true
	case reboot:
		a.reboot = true
	case recommended:
		a.recommended = !a.recommended
	case maintained:
		w.maintain(m, d)
	}
	w.fleet.speakAfter(m, 0)
	if a.notice || a.powerOff {
		w.sched.after(d.between(5*time.Second, 2*time.Minute), func() { w.fleet.lose(m, w.provider.Kill) })
	}
}

// strikeHeir causes a fault of the heir, or of the leader and the heir together.
func (w *World) strikeHeir(moment uint64, k Kind, leader *server, d *dice) {
	heir := w.heir()
	if heir == nil || (k == pairKilled || k == pairCut) && leader == nil || !w.faults.admit(moment, k) {
		return
	}
	w.faults.about("%s", heir.name)
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
			s.kill(false) // it exceeded the time limit for stopping
		}
		s.start()
	})
}

// loseVMs ends n VMs without a notice.
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

// muteAgents disturbs some or all agents for a while. With the kind agentSick, the agents falsely report that they are
// unhealthy. With another kind, they cannot reach the servers, but their machines run.
func (w *World) muteAgents(first *machine, k Kind, d *dice) {
	until := w.sched.now.Add(d.between(10*time.Second, 5*time.Minute))
	all := k == allMute || d.IntN(3) == 0
	rolling := d.IntN(2) == 0 // one agent after the other
	for _, m := range w.fleet.order {
		if hit := d.IntN(5) == 0; m != first && !all && !hit {
			continue
		}
		if k == agentSick {
			w.trace("agent of %s reports that it is unhealthy", m.id)
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
				m.agent.mute = end // the agent's next attempt is scheduled for the later end
			}
			m.agent.mutedAt = w.sched.now
			w.fleet.hangUp(m)
		})
	}
}

// failChecks makes the health checks of all VMs fail for some minutes. The agents report it within a few seconds.
func (w *World) failChecks(d *dice) {
	w.checksDown = w.sched.now.Add(d.between(30*time.Second, 15*minute))
	w.trace("health checks fail on all VMs until %v", w.checksDown.Sub(epoch))
	w.sched.after(w.checksDown.Sub(w.sched.now), w.endCommonFault)
	for _, m := range w.fleet.order {
		w.fleet.speakAfter(m, d.between(0, 5*time.Second))
	}
}

// strangers adds n VMs that have the shard's tags but no record.
func (w *World) strangers(n int, d *dice) {
	for range n {
		w.fleet.planted++
		group := w.people.groups[d.IntN(len(w.people.groups))]
		id := w.freshID(d)
		w.trace("a VM appears for %s, of which there is no record", id)
		w.plant(fmt.Sprintf("orphan-%d", w.fleet.planted), ours, id, group.key)
	}
}

// calm ends all faults. Servers run, networks deliver, agents report, the configuration is valid, and everything that
// was already sent arrives.
func (w *World) calm() {
	w.trace("calm")
	w.quiet = true
	w.store.Land()
	for _, subnet := range []string{"a", "b"} {
		w.provider.SetCapacity(mock.Place{Subnet: subnet}, -1)
	}
	for _, s := range w.servers {
		s.cut = map[Kind]int{}
		if w.sched.now.Before(s.deaf) {
			s.deaf = w.sched.now // the rules give agents time to come back from here on
		}
		w.ways[s.index] = [3]way{}
		switch {
		case !s.alive():
			s.start()
		case s.process.paused:
			s.process.resume()
		}
	}
	for _, m := range w.fleet.order {
		if w.sched.now.Before(m.agent.mute) {
			m.agent.mutedAt = m.agent.mute // its next attempt stays scheduled for this time
		}
		w.endFault(&m.agent.mute)
		w.endFault(&m.agent.sick)
		w.endFault(&m.agent.numberless)
		w.endFault(&m.agent.lying)
		m.agent.recommended, m.agent.maintenance = false, time.Time{}
	}
	w.endFault(&w.checksDown)
	w.endFault(&w.refusing)
	w.fleet.keepOneFailing()
	w.fleet.keepOneRefused()
	w.people.settle()
	w.every(time.Minute, w.people.confirm)
}
