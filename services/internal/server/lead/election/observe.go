package election

import (
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// observedLock is what was found under the lock's key.
type observedLock struct {
	presence    lockPresence
	lock        record.Lock
	token       objstore.Token
	highestTerm uint64  // recorded term, if the lock is absent: it tells one absence from another
	since       Instant // when this token was seen first
}

type lockPresence uint8

const (
	notRead lockPresence = iota
	absent
	unreadable
	present
)

// machineCheck is what is known of the holder's machine. It is valid for one token of the lock.
type machineCheck struct {
	asking     bool
	about      objstore.Token // the token that was seen when the question was asked
	askAt      Instant
	stopped    bool // the last answer was MachineStopped; the next question comes a renewal interval later
	terminated bool
}

// brokenLink is an ended link to a leader. It is forgotten when the leader has renewed the lock twice: a single renewal
// may have been sent before the link ended.
type brokenLink struct {
	leader  Peer
	at      Instant
	renewed bool
}

// recordLeaderLinkDown makes a standby immediately read the lock and ask about the machine of the lock's holder. The
// heir does neither, because it may take over as soon as its promise to the leader ends.
func (e *Elector) recordLeaderLinkDown(now Instant, leader Peer) {
	if e.role != Standby || !e.isHolder(leader) || e.isHeir() {
		return
	}
	e.broken = brokenLink{leader: leader, at: now}
	e.readAt = min(e.readAt, now)
	if !e.machine.stopped { // the provider must repeat that answer a renewal interval later
		e.machine.askAt = min(e.machine.askAt, now)
	}
}

// isHolder reports whether a process holds the lock that was seen last.
func (e *Elector) isHolder(p Peer) bool {
	return e.seen.presence == present && p != (Peer{}) &&
		p == (Peer{ID: e.seen.lock.LeaderID, Incarnation: e.seen.lock.Incarnation})
}

// linkToHolderBroken reports whether the link to the lock's holder has ended. It returns false again after a heartbeat
// of the holder, or after the second renewal since the end of the link.
func (e *Elector) linkToHolderBroken() bool { return e.isHolder(e.broken.leader) }

// observe records what is under the lock's key.
func (e *Elector) observe(now Instant, s observedLock) {
	s.since = e.seen.since
	if s.presence != e.seen.presence || s.token != e.seen.token || s.highestTerm != e.seen.highestTerm {
		s.since = now
		first := e.seen.presence == notRead
		e.phaseKnown, e.phase = !first, e.readBegan
		e.failures = 0
		// An answer about the holder's machine is valid for one token of the lock only, and the token has changed. Ask
		// again only when a renewal is overdue.
		e.machine = machineCheck{asking: e.machine.asking, askAt: now.Add(s.lock.Renew() + s.lock.Renew()/5)}
		e.seen = s
		switch {
		case !e.linkToHolderBroken() || e.broken.renewed:
			e.broken = brokenLink{}
		default:
			e.broken.renewed = true
		}
		if first || e.linkToHolderBroken() {
			// Ask immediately if the link to the holder has ended, or if this process has just started. In the latter
			// case, the age of the lock is unknown: the holder's machine may have been terminated hours ago.
			e.machine.askAt = now
		}
	}
	e.seen = s
	e.longestLease = max(e.longestLease, s.lock.Lease())
	e.highestTerm = max(e.highestTerm, s.lock.Term)
	e.revision = max(e.revision, s.lock.Revision)
	e.readAt = e.nextReadTime(now)
}

// takeoverTime returns when a standby may write the lock. The result is valid until a read finds that the lock has
// changed.
func (e *Elector) takeoverTime() Instant {
	switch e.seen.presence {
	case present:
		lock := e.seen.lock
		if lock.Released || e.machine.terminated {
			return e.seen.since
		}
		// The lock names this standby as the holder. Either the leadership of this process has ended, or the process
		// learned too late that its takeover had succeeded. If the takeover required that no lock existed, another
		// process may have led before the write took effect. That other process may not know yet that its lock was
		// deleted.
		if lock.Incarnation == e.self.Incarnation {
			if lock.Term != e.term && lock.Revision <= e.createdRevision {
				return e.seen.since.Add(takeoverWait(e.longestLease))
			}
			return e.seen.since
		}
		if e.isHeir() {
			return e.promise.until
		}
		return max(e.seen.since.Add(takeoverWait(lock.Lease())), e.promise.until)
	case absent:
		if e.highestTerm == 0 { // the shard never had a leader
			return e.seen.since
		}
		// The lock was deleted. Its holder may not know this yet and may still act, so wait.
		return e.seen.since.Add(takeoverWait(e.longestLease))
	}
	return Never
}

// Wait describes what a standby waits for. It is zero while the lock's holder leads, as far as the standby knows. For a
// leader it has only LeaseEnds.
type Wait struct {
	// Late means that the holder has not renewed the lock in time, or that there is no lock any more.
	Late bool
	// Unusable means that the lock cannot be decoded, or is an earlier version that was written back.
	Unusable bool
	// LeaseEnds is when the holder's lease ends at the latest. A leader also needs the promises of its heir. Takeover
	// is when this process may write the lock. Both are zero if they are not known.
	LeaseEnds, Takeover Instant
}

// Waits returns what this process waits for.
func (e Elector) Waits(now Instant) (w Wait) {
	switch e.role {
	case Leader:
		w.LeaseEnds = e.leaseEnd()
		return w
	case Standby:
	default:
		return w
	}
	lock := e.seen.lock
	switch e.seen.presence {
	case unreadable:
		w.Unusable = true
	case absent:
		if e.highestTerm > 0 {
			w.Late, w.Takeover = true, e.takeoverTime()
		}
	case present:
		renew := lock.Renew()
		if lock.Released || now < e.promise.until || !e.linkToHolderBroken() && now < e.seen.since.Add(renew+renew/5) {
			return w
		}
		w.Late, w.LeaseEnds, w.Takeover = true, e.seen.since.Add(lock.Lease()), e.takeoverTime()
	}
	return w
}

// nextReadTime returns when a standby reads the lock again. The first read comes just before the next renewal is due.
// Frequent reads follow, so that the standby sees the renewal soon after it was written. The sooner it sees a renewal,
// the sooner its takeover wait begins. While a renewal is overdue, the reads become rarer.
func (e *Elector) nextReadTime(now Instant) Instant {
	if e.seen.presence != present {
		return now.Add(e.opt.Renew)
	}
	renew := e.seen.lock.Renew()
	if e.linkToHolderBroken() {
		return now.Add(max(renew/20, min(now.Sub(e.broken.at), renew/5)))
	}
	due := e.phase.Add(renew)
	if early := due.Add(-renew / 100); e.phaseKnown && now < early {
		return early
	}
	return now.Add(max(renew/20, min(now.Sub(due), renew/5)))
}

// askMachine asks about the holder's machine when a renewal is overdue or the link to the holder has ended.
func (e *Elector) askMachine(now Instant, d *Decision) {
	machine := e.seen.lock.Machine
	if e.seen.presence != present || machine == "" || machine == e.self.Machine || e.machine.terminated ||
		e.machine.asking || e.seen.lock.Released {
		return
	}
	if e.machine.askAt > now {
		d.wakeAt(e.machine.askAt)
		return
	}
	e.machine.asking, e.machine.about = true, e.seen.token
	d.add(AskMachine{Machine: machine})
}

// recordMachineAnswer records the provider's answer about the machine of the lock's holder. It ignores the answer if
// the lock's token has changed since the elector asked.
func (e *Elector) recordMachineAnswer(now Instant, state MachineState) {
	m := &e.machine
	m.asking = false
	if e.seen.presence != present || m.about != e.seen.token {
		return
	}
	renew := e.seen.lock.Renew()
	m.askAt = max(now.Add(renew/2), e.seen.since.Add(renew+renew/5))
	if e.linkToHolderBroken() {
		m.askAt = now.Add(e.opt.Renew / 5)
	}
	switch {
	case state == MachineTerminated:
		m.terminated = true
	case state != MachineStopped:
		m.stopped = false
	case !m.stopped:
		m.stopped = true
		m.askAt = now.Add(renew + renew/10)
	default: // the second answer comes no sooner than that
		m.terminated = true
	}
}
