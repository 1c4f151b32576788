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
