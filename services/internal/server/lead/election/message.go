package election

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Input is one thing that happened. All inputs are comparable values.
type Input interface{ input() }

type (
	// Tick means that only time has passed.
	Tick struct{}

	// LockRead answers ReadLock, as do LockAbsent, LockUnreadable and ReadFailed.
	LockRead struct {
		Lock  record.Lock
		Token objstore.Token
	}
	// LockAbsent means that there is no lock. HighestTerm is the highest term in any record of the shard, or 0 if there
	// is none.
	LockAbsent struct{ HighestTerm uint64 }
	// LockUnreadable means that this program cannot decode the lock. Such a lock is never taken over.
	LockUnreadable struct{ Token objstore.Token }
	// ReadFailed means that the read gave no result: the state of the lock is unknown.
	ReadFailed struct{}

	// LockWritten answers WriteLock, as do WriteConflict and WriteUnknown.
	LockWritten struct{ Token objstore.Token }
	// WriteConflict means that the condition of the WriteLock did not hold.
	WriteConflict struct{}
	// WriteUnknown means that the write may have succeeded, or may still succeed later.
	WriteUnknown struct{}

	// MachineAnswer answers AskMachine.
	MachineAnswer struct{ State MachineState }

	// Confirm asks for proof that this process still holds the lock. A request that was sent before this input is not
	// enough. Seq rises by one with each Confirm.
	Confirm struct{ Seq uint64 }
	// ConfigApplied contains the ETag of the configuration that the leader has applied. The next renewal writes this
	// ETag into the lock.
	ConfigApplied struct{ ETag string }
	// TermSeen means that a record with the term Term was found.
	TermSeen struct{ Term uint64 }
	// LeaderStopped means that the leader's code has returned after LostLeadership. Until then the process does not
	// stand for election.
	LeaderStopped struct{}
	// Release ends the candidacy. This input is allowed only while the process does not run the leader's code.
	Release struct{}
)

func (Tick) input()           {}
func (LockRead) input()       {}
func (LockAbsent) input()     {}
func (LockUnreadable) input() {}
func (ReadFailed) input()     {}
func (LockWritten) input()    {}
func (WriteConflict) input()  {}
func (WriteUnknown) input()   {}
func (MachineAnswer) input()  {}
func (Confirm) input()        {}
func (ConfigApplied) input()  {}
func (TermSeen) input()       {}
func (LeaderStopped) input()  {}
func (Release) input()        {}

// MachineState is the provider's answer about a lock holder's machine.
type MachineState uint8

const (
	// MachineUnknown is for errors and for every answer that is not listed below.
	MachineUnknown MachineState = iota
	MachineRunning
	MachineStopping
	// MachineStopped permits a takeover if the provider gives this answer twice, one renewal interval apart, and the
	// lock's token has not changed in between.
	MachineStopped
	MachineSuspended
	// MachineTerminated permits a takeover immediately, because such a machine never runs again.
	MachineTerminated
	// MachineNotFound never permits a takeover: the provider may not know the machine yet, or the question may name a
	// wrong machine.
	MachineNotFound
)

// Peer names one process of the shard by its ID and its incarnation.
type Peer = record.LockHeir

// Message is what one process sends to another over a link. For the receiver it is an Input. Messages may be lost,
// late, repeated and out of order. Each message contains the IDs of both processes and the term, so a message to a
// process that has since been restarted has no effect. All messages are comparable values.
type Message interface {
	Input
	message()
}

type (
	// Heartbeat is the leader's request for a promise. The standby promises not to take over. The promise lasts for
	// Length, from the time at which the standby received the request.
	Heartbeat struct {
		Leader, Standby Peer
		Term, Beat      uint64
		Length          time.Duration
		// Lock and Token are the last version that the leader knows to be in the store, so that the standby need not
		// read it.
		Lock  record.Lock
		Token objstore.Token
	}
	// Promise answers one Heartbeat.
	Promise struct {
		Leader, Standby Peer
		Term, Beat      uint64
		Length          time.Duration
	}
	// Handover releases the heir from its promise: the leader of the term has stopped acting.
	Handover struct {
		Leader, Standby Peer
		Term            uint64
	}
	// TookOver answers Handover: Standby now leads in Term.
	TookOver struct {
		Leader, Standby Peer
		Term            uint64
	}

	// LinkUp means that a standby's process can be reached.
	LinkUp struct{ Peer Peer }
	// LinkDown means that a standby's process can no longer be reached.
	LinkDown struct{ Peer Peer }

	// LeaderLinkDown means that this standby has lost its link to a leader. It then reads the lock and asks about the
	// leader's machine.
	LeaderLinkDown struct{ Leader Peer }
)

func (Heartbeat) input()      {}
func (Promise) input()        {}
func (Handover) input()       {}
func (TookOver) input()       {}
func (LinkUp) input()         {}
func (LinkDown) input()       {}
func (LeaderLinkDown) input() {}

func (Heartbeat) message() {}
func (Promise) message()   {}
func (Handover) message()  {}
func (TookOver) message()  {}

// Action is one thing to do. All actions are comparable values.
type Action interface{ action() }

type (
	// ReadLock asks for one read of the lock. At most one ReadLock or WriteLock is unanswered at a time.
	ReadLock struct{}
	// WriteLock asks for one conditional put. Two locks with the same Version have the same bytes.
	WriteLock struct {
		Lock      record.Lock
		Condition objstore.Condition
	}
	// AskMachine asks the provider about a machine. At most one question is unanswered at a time.
	AskMachine struct{ Machine string }

	// BecameLeader starts the leader's code.
	BecameLeader struct{ Term uint64 }
	// LostLeadership ends the context of the leader's code.
	LostLeadership struct {
		Term   uint64
		Reason Reason
	}
	// Confirmed answers every Confirm up to Seq.
	Confirmed struct{ Seq uint64 }
	// Released ends the election for this process: it holds no lock and will not write one.
	Released struct{}

	// Send hands a message to the link with a process. Without a link the message is lost.
	Send struct {
		To      Peer
		Message Message
	}
)

func (ReadLock) action()       {}
func (WriteLock) action()      {}
func (AskMachine) action()     {}
func (BecameLeader) action()   {}
func (LostLeadership) action() {}
func (Confirmed) action()      {}
func (Released) action()       {}
func (Send) action()           {}

// Reason says why leadership ended.
type Reason string

const (
	ReasonExpired  Reason = "the lease was not renewed in time"
	ReasonPromise  Reason = "the heir's promise has ended"
	ReasonTaken    Reason = "another process holds the lock"
	ReasonTerm     Reason = "a record of a higher term was found"
	ReasonReleased Reason = "the lock is released"
)

// Decision is the answer to one input.
type Decision struct {
	Actions []Action
	// Wake is the time at which the elector needs a Tick, unless another input comes first.
	Wake Instant
}

func (d *Decision) add(a Action) { d.Actions = append(d.Actions, a) }

func (d *Decision) wakeAt(t Instant) { d.Wake = min(d.Wake, t) }

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
