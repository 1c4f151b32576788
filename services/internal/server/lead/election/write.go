package election

import (
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// pendingWrite is a write with an unknown result: it has no answer yet, or the answer was WriteUnknown. After
// WriteUnknown, the result is unknown until a read finds that the lock's token has changed.
type pendingWrite struct {
	lock      record.Lock
	condition objstore.Condition
	began     Instant // when the first attempt was sent
	attempts  int     // 0: there is no pending write
	resend    bool    // the lock has been read unchanged since: the write is sent again
	abandoned bool    // the write is no longer wanted, whether it succeeds or not
}

// recordRead records the answer of a read.
func (e *Elector) recordRead(now Instant, s observedLock, d *Decision) {
	e.pending, e.mustRead, e.justRead = none, false, true
	e.observe(now, s)
	switch w := e.write; {
	case w.attempts == 0:
	case s.presence == present && s.lock.Version() == w.lock.Version():
		e.recordWritten(now, s.token, d)
	case w.condition.Holds(s.token, s.presence != absent) &&
		(s.presence == present || w.lock.Term > e.highestTerm):
		e.write.resend = true // the write may still succeed: only the same bytes may follow it
	default:
		e.write = pendingWrite{}
	}
	if e.role == Leader && !(e.holdsLock() && e.seen.lock.Term == e.term) {
		e.endLeadership(ReasonTaken, d)
	}
	e.answerConfirms(d)
}

// holdsLock reports whether this process holds the lock, according to the last read.
func (e *Elector) holdsLock() bool {
	return e.seen.presence == present && e.seen.lock.Incarnation == e.self.Incarnation && !e.seen.lock.Released
}

// recordWritten records that this process's write is in the store, with the given token. Either the store confirmed the
// write, or a read found it.
func (e *Elector) recordWritten(now Instant, token objstore.Token, d *Decision) {
	w := e.write
	e.write, e.mustRead = pendingWrite{}, false
	e.observe(now, observedLock{presence: present, lock: w.lock, token: token})
	switch {
	case w.abandoned || w.lock.Released:
	case e.role == Leader:
		e.adoptVersion(w)
	case e.role == Standby && now < w.began.Add(authorityPeriod(w.lock.Lease())):
		e.resetPromises()
		e.adoptVersion(w)
		e.role, e.term, e.etag = Leader, w.lock.Term, w.lock.AppliedETag
		d.add(BecameLeader{Term: e.term})
		if p := e.promise; p.ended {
			d.add(Send{To: p.to, Message: TookOver{Leader: p.to, Standby: e.self.Peer(), Term: e.term}})
		}
		e.promise = givenPromise{}
	}
	// A standby may learn of its successful write too late to become leader, because the written lease has ended. It
	// then holds the lock without authority, and writes the lock again (see takeoverTime).
	e.answerConfirms(d)
}

// recordConflict records that the condition of this process's write did not hold. For a first attempt this means that
// another process wrote the lock. After a repeated attempt, the lock may be the one that an earlier attempt wrote.
func (e *Elector) recordConflict(now Instant, d *Decision) {
	lost := e.write.attempts == 1
	if lost || e.write.abandoned {
		e.write = pendingWrite{}
	}
	e.write.resend = false
	e.mustRead = true
	if lost && e.role == Leader {
		e.endLeadership(ReasonTaken, d)
	}
	first := e.failures == 0
	e.delayRetry(now)
	if lost && first && e.role == Standby && e.isHeir() {
		e.retryAt = now // the heir met the leader's last renewal, which no heartbeat announced
	}
}

// recordWriteUnknown records that the result of this process's write is unknown: the lock must be read.
func (e *Elector) recordWriteUnknown(now Instant) {
	if e.write.abandoned {
		e.write = pendingWrite{}
	}
	e.mustRead = true
	e.delayRetry(now)
}

// abandonWrite gives up a write with an unknown result. The write may still succeed, so the lock must be read next.
func (e *Elector) abandonWrite() {
	if e.write.attempts == 0 {
		return
	}
	e.mustRead = true
	if e.pending == write {
		e.write.abandoned = true
	} else {
		e.write = pendingWrite{}
	}
}

// nextWrite returns the next write. If the result of a write is unknown, nextWrite repeats that write. Otherwise it
// makes a new version of the lock: a takeover, a renewal or a release.
func (e *Elector) nextWrite(now Instant) WriteLock {
	if e.write.resend {
		e.write.resend = false
		e.write.attempts++
		return WriteLock{Lock: e.write.lock, Condition: e.write.condition}
	}
	e.revision++
	lock := NewLock(e.self, e.opt, e.term, e.revision)
	lock.AppliedETag, lock.Marks = e.etag, e.marks
	lock.LeaseMS = e.leaseWithoutHeir().Milliseconds()
	switch e.role {
	case Leader:
		if lock.Heir = e.chooseHeir(now); lock.Heir != (Peer{}) {
			lock.LeaseMS, lock.RenewMS = e.opt.HeirLease.Milliseconds(), e.opt.HeirRenew.Milliseconds()
		}
	case Standby:
		lock.Term = e.highestTerm + 1
		lock.AppliedETag = e.seen.lock.AppliedETag
	case Releasing:
		lock.Term = e.seen.lock.Term
		lock.AppliedETag = e.seen.lock.AppliedETag
		lock.Released = true
	}
	condition := objstore.IfToken(e.seen.token)
	if e.seen.presence == absent {
		condition, e.createdRevision = objstore.IfAbsent(), lock.Revision
	}
	e.write = pendingWrite{lock: lock, condition: condition, began: now, attempts: 1}
	return WriteLock{Lock: lock, Condition: condition}
}

// NewLock returns a lock that the process self holds and that names no heir.
func NewLock(self Identity, opt Options, term, revision uint64) record.Lock {
	return record.Lock{
		LeaderID:    self.ID,
		Incarnation: self.Incarnation,
		Addresses:   self.Addresses,
		Machine:     self.Machine,
		Term:        term,
		Revision:    revision,
		LeaseMS:     opt.Lease.Milliseconds(),
		RenewMS:     opt.Renew.Milliseconds(),
	}
}
