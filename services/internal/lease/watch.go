package lease

import (
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// sighting is what was found under the lock's key. since is when this token was seen first.
type sighting struct {
	kind    sightingKind
	lock    record.Lock
	token   objstore.Token
	highest uint64 // recorded term, when absent: it tells one absence from another
	since   Instant
}

type sightingKind uint8

const (
	nothingYet sightingKind = iota
	absent
	unreadable
	held
)

// inquiry is what is known of the holder's machine, for one token of the lock.
type inquiry struct {
	asking  bool
	about   objstore.Token // token that was seen when asked
	askAt   Instant
	stopped bool // the last answer said so; the next question comes a renewal interval later
	gone    bool
}

// severance is the end of the link to a leader, until he is seen to renew the lock: twice, since once may have been
// under way.
type severance struct {
	from    Peer
	at      Instant
	renewed bool
}

// leaderGone looks at once whether the lock is free, and asks for its holder's machine. The heir does neither: it waits
// for its promise, which is shorter.
func (e *Elector) leaderGone(now Instant, leader Peer) {
	if e.role != Candidate || !e.holds(leader) || e.inherits() {
		return
	}
	e.severed = severance{from: leader, at: now}
	e.lookAt = min(e.lookAt, now)
	if !e.machine.stopped { // it must be said a renewal later
		e.machine.askAt = min(e.machine.askAt, now)
	}
}

// holds says whether the lock that was seen last is a process's.
func (e *Elector) holds(p Peer) bool {
	return e.seen.kind == held && p != (Peer{}) && p == (Peer{ID: e.seen.lock.LeaderID,
		Incarnation: e.seen.lock.Incarnation})
}

// isSevered says whether nothing has been heard of the lock's holder since the link to him ended.
func (e *Elector) isSevered() bool { return e.holds(e.severed.from) }

// sight notes what is under the lock's key.
func (e *Elector) sight(now Instant, s sighting) {
	s.since = e.seen.since
	if s.kind != e.seen.kind || s.token != e.seen.token || s.highest != e.seen.highest {
		s.since = now
		first := e.seen.kind == nothingYet
		e.inPhase, e.phase = !first, e.lookedAt
		e.fails = 0
		// What is known of a machine holds for one token only. Questions wait until a renewal is overdue.
		e.machine = inquiry{asking: e.machine.asking, askAt: now.Add(s.lock.Renew() + s.lock.Renew()/5)}
		e.seen = s
		switch {
		case !e.isSevered() || e.severed.renewed:
			e.severed = severance{}
		default:
			e.severed.renewed = true
		}
		if first || e.isSevered() {
			// Whoever has just started does not know how old the lock is: its holder's machine may be gone for hours.
			e.machine.askAt = now
		}
	}
	e.seen = s
	e.longest = max(e.longest, s.lock.Lease())
	e.floor = max(e.floor, s.lock.Term)
	e.revision = max(e.revision, s.lock.Revision)
	e.lookAt = e.nextLook(now)
}

// takeAt says when a candidate may write the lock that it saw last, if it is still the same.
func (e *Elector) takeAt() Instant {
	switch e.seen.kind {
	case held:
		lock := e.seen.lock
		if lock.Released || e.machine.gone {
			return e.seen.since
		}
		// A candidate's own lock is that of its ended leadership, or a take-over that was settled too late. One that
		// was written where there was none may have landed after another had led, and his lock was removed; he may not
		// know yet.
		if lock.Incarnation == e.self.Incarnation {
			if lock.Term != e.term && lock.Revision <= e.alone {
				return e.seen.since.Add(patience(e.longest))
			}
			return e.seen.since
		}
		if e.inherits() {
			return e.promise.until
		}
		return max(e.seen.since.Add(patience(lock.Lease())), e.promise.until)
	case absent:
		if e.floor == 0 { // nobody has ever led
			return e.seen.since
		}
		return e.seen.since.Add(patience(e.longest)) // somebody removed it; its holder may not know yet
	}
	return Never
}

// nextLook is when a candidate reads the lock again: once for each renewal, just before it is due, and then often
// enough to see it soon after it was written, since the wait for a dead leader counts from there. A renewal that stays
// away is looked for less and less often.
func (e *Elector) nextLook(now Instant) Instant {
	if e.seen.kind != held {
		return now.Add(e.opt.Renew)
	}
	renew := e.seen.lock.Renew()
	if e.isSevered() {
		return now.Add(max(renew/20, min(now.Sub(e.severed.at), renew/5)))
	}
	due := e.phase.Add(renew)
	if early := due.Add(-renew / 100); e.inPhase && now < early {
		return early
	}
	return now.Add(max(renew/20, min(now.Sub(due), renew/5)))
}

// inquire asks for the holder's machine when a renewal is overdue, or the link to him has ended.
func (e *Elector) inquire(now Instant, d *Decision) {
	machine := e.seen.lock.Machine
	if e.seen.kind != held || machine == "" || machine == e.self.Machine || e.machine.gone || e.machine.asking ||
		e.seen.lock.Released {
		return
	}
	if e.machine.askAt > now {
		d.wakeAt(e.machine.askAt)
		return
	}
	e.machine.asking, e.machine.about = true, e.seen.token
	d.add(AskMachine{Machine: machine})
}

// heard takes in the provider's answer. It counts only if the token is still the one that had been read when the
// question was put.
func (e *Elector) heard(now Instant, state Evidence) {
	m := &e.machine
	m.asking = false
	if e.seen.kind != held || m.about != e.seen.token {
		return
	}
	renew := e.seen.lock.Renew()
	m.askAt = max(now.Add(renew/2), e.seen.since.Add(renew+renew/5))
	if e.isSevered() {
		m.askAt = now.Add(e.opt.Renew / 5)
	}
	switch {
	case state == MachineTerminated:
		m.gone = true
	case state != MachineStopped:
		m.stopped = false
	case !m.stopped:
		m.stopped = true
		m.askAt = now.Add(renew + renew/10)
	default: // the question was put no sooner than that
		m.gone = true
	}
}
