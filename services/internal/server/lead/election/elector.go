package election

import (
	"hash/fnv"
	"time"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// Role is the role of a process in the election.
type Role uint8

const (
	// Standby watches the lock, and takes it over when the rules of the election permit that.
	Standby Role = iota
	// Leader holds the lock and may act until ActUntil.
	Leader
	// Stopping means that the process has lost its authority, but the code that it runs as the leader has not returned
	// yet.
	Stopping
	// Releasing means that the process releases the lock if it holds the lock.
	Releasing
	// Done means that the process takes no further part in the election.
	Done
)

// Elector is the state of one process in the election. It is a comparable value; Next returns the following state.
type Elector struct {
	self Identity
	opt  Options
	role Role
	term uint64 // the term that is led now, or was led last

	seen      observedLock // the lock as last read
	mustRead  bool         // the lock must be read before anything is written
	justRead  bool         // the lock was read in this very step
	readBegan Instant      // when the last read began
	readAt    Instant      // when the next read is due
	// phaseKnown means that phase is set. phase is the time at which the process began the read that found a changed
	// token. The leader's next renewal is due one renewal interval after phase.
	phaseKnown bool
	phase      Instant

	longestLease    time.Duration // longest lease seen in any lock
	highestTerm     uint64        // highest term seen anywhere
	revision        uint64        // highest revision seen or written
	createdRevision uint64        // revision of the last write that was conditional on absence

	machine machineCheck
	broken  brokenLink

	pending   request
	sentAt    Instant       // when the pending request was sent
	slowest   time.Duration // how long the slowest of the last requests took; see recordLatency
	write     pendingWrite  // the own write that is not settled
	leaseFrom Instant       // when sending of the last confirmed renewal began
	lease     time.Duration
	etag      string
	marks     string // goes into each lock that this process writes

	confirmWanted  uint64 // highest Confirm that was asked for
	confirmPending uint64 // highest Confirm that the pending request covers
	confirmDone    uint64 // highest Confirm that was answered

	failures int
	retryAt  Instant

	heir       Peer // of the confirmed version, while leading
	links      [maxLinks]standbyLink
	heartbeats heartbeatLog
	promise    givenPromise // while standing by
	handedOver bool         // the heir leads: nothing is left to release
}

// request says which request to the store is unanswered.
type request uint8

const (
	none request = iota
	read
	write
)

// New returns an Elector that stands by and has not read the lock yet.
func New(self Identity, opt Options) Elector {
	opt = opt.withDefaults()
	longest := opt.Lease
	if opt.PeerLease > 0 {
		longest = max(longest, opt.HeirLease)
	}
	return Elector{self: self, opt: opt, longestLease: longest}
}

// Role returns the role of the process.
func (e Elector) Role() Role { return e.role }

// ActUntil returns the end of authority and the term in which the process leads. It returns zeros unless the process
// leads.
func (e Elector) ActUntil() (Instant, uint64) {
	if e.role != Leader {
		return 0, 0
	}
	until, _ := e.authorityEnd()
	return until, e.term
}

// Holder returns the lock as last read. ok is false if there was no lock.
func (e Elector) Holder() (lock record.Lock, ok bool) { return e.seen.lock, e.seen.presence == present }

// WithMarks returns a copy of e that writes the given marks into its locks (see record.Lock). The caller must include
// the marks of every lock that e has read.
func (e Elector) WithMarks(marks string) Elector {
	e.marks = marks
	return e
}

// Heir returns the heir in the confirmed version of this leader's lock. It is zero if there is none.
func (e Elector) Heir() Peer { return e.heir }

// Next takes one input at an instant and returns the following state and what to do. Instants never go back. The
// receiver does not change.
func (e Elector) Next(now Instant, in Input) (Elector, Decision) {
	d := Decision{Wake: Never}
	e.justRead = false
	switch in.(type) {
	case LockRead, LockAbsent, LockUnreadable, ReadFailed, LockWritten, WriteConflict, WriteUnknown:
		e.recordLatency(now)
	}
	if until, reason := e.authorityEnd(); e.role == Leader && now >= until {
		e.endLeadership(reason, &d)
	}
	switch in := in.(type) {
	case Tick:
	case LockRead:
		e.recordRead(now, observedLock{presence: present, lock: in.Lock, token: in.Token}, &d)
	case LockAbsent:
		e.highestTerm = max(e.highestTerm, in.HighestTerm)
		e.recordRead(now, observedLock{presence: absent, highestTerm: in.HighestTerm}, &d)
	case LockUnreadable:
		e.highestTerm = max(e.highestTerm, 1) // a lock means that the shard had a leader
		e.recordRead(now, observedLock{presence: unreadable, token: in.Token}, &d)
	case ReadFailed:
		e.pending = none
		e.delayRetry(now)
	case LockWritten:
		e.pending = none
		e.recordWritten(now, in.Token, &d)
	case WriteConflict:
		e.pending = none
		e.recordConflict(now, &d)
	case WriteUnknown:
		e.pending = none
		e.recordWriteUnknown(now)
	case MachineAnswer:
		e.recordMachineAnswer(now, in.State)
	case Confirm:
		e.confirmWanted = max(e.confirmWanted, in.Seq)
	case ConfigApplied:
		e.etag = in.ETag
	case TermSeen:
		e.highestTerm = max(e.highestTerm, in.Term)
		if e.role == Leader && in.Term > e.term {
			e.endLeadership(ReasonTerm, &d)
		}
	case LeaderStopped:
		if e.role == Stopping {
			e.role = Standby
		}
	case Release:
		e.startRelease(now, &d)
	case LinkUp:
		e.addLink(in.Peer)
	case LinkDown:
		e.dropLink(now, in.Peer)
	case LeaderLinkDown:
		e.recordLeaderLinkDown(now, in.Leader)
	case Heartbeat:
		e.answerHeartbeat(now, in, &d)
	case Promise:
		e.recordPromise(now, in, &d)
	case Handover:
		e.acceptHandover(now, in)
	case TookOver:
		e.handedOver = e.handedOver || e.role == Releasing && in.Leader == e.self.Peer() && in.Term > e.term
	}
	e.issueActions(now, &d)
	return e, d
}

// answerConfirms answers the waiting Confirm inputs. Call it when a request to the store has proved that this process
// holds the lock.
func (e *Elector) answerConfirms(d *Decision) {
	if e.role == Leader && e.confirmPending > e.confirmDone {
		e.confirmDone = e.confirmPending
		d.add(Confirmed{Seq: e.confirmDone})
	}
}

// endLeadership ends the leadership of this process. The process loses its authority. It does nothing more until the
// code that it runs as the leader has returned.
func (e *Elector) endLeadership(reason Reason, d *Decision) {
	e.role = Stopping
	e.abandonWrite()
	d.add(LostLeadership{Term: e.term, Reason: reason})
}

// startRelease ends the candidacy.
func (e *Elector) startRelease(now Instant, d *Decision) {
	if e.role == Done || e.role == Releasing {
		return
	}
	led := e.role == Leader
	if led {
		e.endLeadership(ReasonReleased, d)
	}
	e.abandonWrite()
	e.role = Releasing
	if led {
		e.offerHandover(now, d)
	}
}

// issueActions adds the due actions to the decision, and sets the time at which the elector needs the next Tick.
func (e *Elector) issueActions(now Instant, d *Decision) {
	e.sendHeartbeats(now, d)
	if e.pending == none {
		next, at := e.nextRequest(now)
		switch {
		case next == none && e.role == Releasing:
			e.role = Done
			d.add(Released{})
		case next == none:
		case at > now:
			d.wakeAt(at)
		case next == read:
			e.pending, e.confirmPending, e.readBegan, e.sentAt = read, e.confirmWanted, now, now
			d.add(ReadLock{})
		case next == write:
			e.pending, e.confirmPending, e.sentAt = write, e.confirmWanted, now
			d.add(e.nextWrite(now))
		}
	}
	switch e.role {
	case Leader:
		until, _ := e.ActUntil()
		d.wakeAt(until)
	case Standby:
		e.askMachine(now, d)
	}
}

// nextRequest returns the next storage request and when it is due.
func (e *Elector) nextRequest(now Instant) (next request, at Instant) {
	switch {
	case e.role == Stopping || e.role == Done || e.handedOver:
		return none, Never
	case e.write.resend:
		return write, e.retryAt
	case e.write.attempts > 0 || e.mustRead:
		return read, e.retryAt
	}
	switch e.role {
	case Leader:
		if e.chooseHeir(now) != e.heir {
			return write, e.retryAt
		}
		renewAt := e.leaseFrom.Add(e.renewInterval())
		// A waiting Confirm needs a request only if nothing else will prove soon that this process holds the lock. The
		// proof can also be a renewal that is due now, or the heir's answer to a heartbeat. A read would delay the next
		// renewal if the store is slow, so the request is then a renewal.
		if e.confirmWanted > e.confirmDone && e.heir == (Peer{}) && now < renewAt {
			if now.Add(e.slowest) < renewAt {
				return read, e.retryAt
			}
			return write, e.retryAt
		}
		return write, max(renewAt, e.retryAt)
	case Releasing:
		if e.holdsLock() {
			return write, e.retryAt
		}
		return none, Never
	default:
		if e.seen.presence == notRead {
			return read, e.retryAt
		}
		if takeAt := e.takeoverTime(); takeAt <= max(now, e.readAt) {
			// A standby notices a change of the lock by its token, but an absent lock has no token. Another process may
			// have written and deleted a lock since the last read, so read again.
			if e.seen.presence == absent && !e.justRead {
				return read, max(takeAt, e.retryAt)
			}
			return write, max(takeAt, e.retryAt)
		}
		return read, max(e.readAt, e.retryAt)
	}
}

// delayRetry delays the next request after a failed one. The delay starts at a twentieth of the renewal interval and
// doubles with each failure, up to the whole interval. A leader waits for at most a quarter of the interval, because
// its lease expires. For a standby, a hash of its incarnation adds up to half of the delay, so that standbys retry at
// different times.
func (e *Elector) delayRetry(now Instant) {
	longest := e.opt.Renew
	if e.role == Leader {
		longest /= 4
	}
	e.failures++
	wait := reconnect.Backoff(e.opt.Renew/20, longest, e.failures)
	if e.role != Leader {
		h := fnv.New32a()
		h.Write([]byte(e.self.Incarnation))
		wait += wait / 2 * time.Duration(h.Sum32()%1024) / 1024
	}
	e.retryAt = now.Add(wait)
}
