package lease

import (
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// Input is one thing that happened. All inputs are comparable values.
type Input interface{ input() }

type (
	// Tick says that only time has passed.
	Tick struct{}

	// LockRead answers ReadLock, as LockAbsent, LockUnreadable and ReadFailed do.
	LockRead struct {
		Lock  record.Lock
		Token objstore.Token
	}
	// LockAbsent comes with the highest term in any record of the shard, 0 if there is none.
	LockAbsent struct{ HighestTerm uint64 }
	// LockUnreadable means that there is a lock that this program cannot decode: it is never taken.
	LockUnreadable struct{ Token objstore.Token }
	// ReadFailed says nothing about the lock.
	ReadFailed struct{}

	// LockWritten answers WriteLock, as WriteConflict and WriteUnknown do.
	LockWritten struct{ Token objstore.Token }
	// WriteConflict means that the condition did not hold.
	WriteConflict struct{}
	// WriteUnknown is whatever is neither success nor conflict.
	WriteUnknown struct{}

	// MachineAnswer answers AskMachine.
	MachineAnswer struct{ State Evidence }

	// Confirm asks for proof, younger than the request, that this process still holds the lock. Seq rises by one with
	// each request.
	Confirm struct{ Seq uint64 }
	// Applied names the configuration that the leader applied; the next renewal carries it.
	Applied struct{ ETag string }
	// TermMet says that something written in this term was found.
	TermMet struct{ Term uint64 }
	// LeaderStopped says that the leader's code has ended after LostLeadership. Before it, the process does not stand
	// again.
	LeaderStopped struct{}
	// Release ends the candidacy. It is given when no leader's code runs (any more).
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
func (Applied) input()        {}
func (TermMet) input()        {}
func (LeaderStopped) input()  {}
func (Release) input()        {}

// Evidence is what the provider says of a lock holder's machine.
type Evidence uint8

const (
	// MachineUnknown is every answer that is none of the others, errors too.
	MachineUnknown Evidence = iota
	MachineRunning
	MachineStopping
	// MachineStopped counts when it is said again after one more renewal interval with an unchanged token.
	MachineStopped
	MachineSuspended
	// MachineTerminated counts at once: such a machine never runs again.
	MachineTerminated
	// MachineNotFound never counts: the provider may not know the machine yet, or be asked about the wrong one.
	MachineNotFound
)

// Action is one thing to do. All actions are comparable values.
type Action interface{ action() }

type (
	// ReadLock asks for one read of the lock. At most one ReadLock or WriteLock is unanswered at a time.
	ReadLock struct{}
	// WriteLock asks for one conditional put. The same Version of the lock always means the same bytes.
	WriteLock struct {
		Lock      record.Lock
		Condition objstore.Condition
	}
	// AskMachine asks the provider. At most one is unanswered at a time.
	AskMachine struct{ Machine string }

	// BecameLeader starts the leader's code.
	BecameLeader struct{ Term uint64 }
	// LostLeadership ends its context.
	LostLeadership struct {
		Term   uint64
		Reason Reason
	}
	// Confirmed answers every Confirm up to Seq.
	Confirmed struct{ Seq uint64 }
	// Released ends the election for this process: it holds no lock and will not ask for one.
	Released struct{}
)

func (ReadLock) action()       {}
func (WriteLock) action()      {}
func (AskMachine) action()     {}
func (BecameLeader) action()   {}
func (LostLeadership) action() {}
func (Confirmed) action()      {}
func (Released) action()       {}

// Reason says why leadership ended.
type Reason string

const (
	ReasonExpired  Reason = "lease not renewed in time"
	ReasonPromise  Reason = "heir's promise has ended"
	ReasonTaken    Reason = "lock is not ours any more"
	ReasonTerm     Reason = "higher term met"
	ReasonReleased Reason = "released"
)

// Decision is the answer to one input.
type Decision struct {
	Actions []Action
	// Wake is when Tick is due if nothing else happens first.
	Wake Instant
}

func (d *Decision) add(a Action) { d.Actions = append(d.Actions, a) }

func (d *Decision) wakeAt(t Instant) { d.Wake = min(d.Wake, t) }
