package lease

import (
	"context"
	"time"

	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// Peer names one process of the shard: its ID and its incarnation.
type Peer = record.LockHeir

// Peer is what other processes call this one.
func (i Identity) Peer() Peer { return Peer{ID: i.ID, Incarnation: i.Incarnation} }

// Message is what one process says to another over a link: an Input to the one that hears it. Messages may be lost,
// late, repeated and out of order; each names both processes and the term, so that one of another life says nothing.
// All messages are comparable values.
type Message interface {
	Input
	message()
}

type (
	// Heartbeat is the leader's question for a promise not to take the lock over for Length from now.
	Heartbeat struct {
		Leader, Follower Peer
		Term, Beat       uint64
		Length           time.Duration
		// Lock and Token are the last version that the leader knows to be in the store, so that a follower need not
		// read it.
		Lock  record.Lock
		Token objstore.Token
	}
	// Promise answers one Heartbeat.
	Promise struct {
		Leader, Follower Peer
		Term, Beat       uint64
		Length           time.Duration
	}
	// Farewell ends every promise of a term: its leader has stopped to act.
	Farewell struct {
		Leader, Follower Peer
		Term             uint64
	}
	// Taken answers a Farewell: Follower leads in Term.
	Taken struct {
		Leader, Follower Peer
		Term             uint64
	}

	// LinkUp says that a process can be spoken to.
	LinkUp struct{ Peer Peer }
	// LinkDown says that it cannot any more.
	LinkDown struct{ Peer Peer }

	// LeaderGone says that the link by which this process followed a leader has ended: a reason to look whether his
	// machine has.
	LeaderGone struct{ Leader Peer }

	// Send is the action that hands a message to a link. Without a link it is lost.
	Send struct {
		To      Peer
		Message Message
	}
)

func (Heartbeat) input()  {}
func (Promise) input()    {}
func (Farewell) input()   {}
func (Taken) input()      {}
func (LinkUp) input()     {}
func (LinkDown) input()   {}
func (LeaderGone) input() {}
func (Send) action()      {}

func (Heartbeat) message() {}
func (Promise) message()   {}
func (Farewell) message()  {}
func (Taken) message()     {}

// Peers carries messages between the processes of a shard. Its methods do not wait, and may be called concurrently.
type Peers interface {
	// Events yields what comes in until ctx ends: first a LinkUp for every link that there is, then links and messages
	// in their order. A LinkDown comes before the next LinkUp of the same process. A LeaderGone follows the end of a
	// link that was made for Follow. Who a message says it is from is who it is from. A later call ends an earlier
	// one's.
	Events(ctx context.Context) <-chan Input
	// Send hands a message to the link with a process. It is lost if there is none, or too much is under way.
	Send(to Peer, m Message)
	// Follow keeps a link to the process that holds a lock, at the lock's election address, in place of an earlier one;
	// what was handed to that one is still sent. The zero Lock: to nobody.
	Follow(holder record.Lock)
}
