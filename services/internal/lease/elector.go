package lease

import (
	"hash/fnv"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

// Role is what a process is in the election.
type Role uint8

const (
	// Candidate watches the lock and takes it when it may.
	Candidate Role = iota
	// Leader holds the lock and may act until ActUntil.
	Leader
	// Stopping has lost its authority while its leader's code has not ended yet.
	Stopping
	// Releasing gives the lock back, if it has it.
	Releasing
	// Gone takes no part any more.
	Gone
)

// Elector is the state of one process in the election: a value that Next advances. There is no clock, chance or I/O in
// it.
type Elector struct {
	self Identity
	opt  Options
	role Role
	term uint64 // led now, or last

	seen  sighting // the lock as it was seen last
	stale bool     // it must be read before anything is written
	fresh bool     // it was read in this very step
	// the token was seen to change, by a read that began at phase: the next renewal is due an interval later
	inPhase  bool
	phase    Instant
	lookedAt Instant       // when the last read began
	lookAt   Instant       // when the next one is due
	longest  time.Duration // lease ever seen
	floor    uint64        // highest term ever met
	revision uint64        // highest revision ever seen or tried
	alone    uint64        // revision of our last write where there was no lock
	machine  inquiry
	severed  severance

	pending   request
	write     attempt // ours, if it is not settled
	leaseFrom Instant // when sending of the last confirmed renewal began
	lease     time.Duration
	etag      string
	wanted    uint64 // highest Confirm asked for,
	underWay  uint64 // covered by the pending request,
	confirmed uint64 // answered
	fails     int
	retryAt   Instant

	heir    Peer // of the confirmed version, while leading
	links   [maxLinks]link
	beats   beats
	promise promise // as a follower
	taken   bool    // the heir said that it leads: there is nothing left to release
}

// request is the kind of storage request without an answer.
type request uint8

const (
	none request = iota
	read
	write
)

// New returns a candidate that has seen nothing.
func New(self Identity, opt Options) Elector {
	opt = opt.filled()
	longest := opt.Lease
	if opt.PeerLease > 0 {
		longest = max(longest, opt.HeirLease)
	}
	return Elector{self: self, opt: opt, longest: longest}
}

// Role says what the process is.
func (e Elector) Role() Role { return e.role }

// ActUntil says until when authority may be exercised, and in which term. Outside Leader it is the zero Instant.
func (e Elector) ActUntil() (Instant, uint64) {
	if e.role != Leader {
		return 0, 0
	}
	until, _ := e.bound()
	return until, e.term
}

// Holder returns the lock as it was seen last; ok is false if there was none.
func (e Elector) Holder() (lock record.Lock, ok bool) { return e.seen.lock, e.seen.kind == held }

// Next takes one input at an instant and says what to do. Instants never go back. The receiver is left as it is.
func (e Elector) Next(now Instant, in Input) (Elector, Decision) {
	d := Decision{Wake: Never}
	e.fresh = false
	if until, why := e.bound(); e.role == Leader && now >= until {
		e.lose(why, &d)
	}
	switch in := in.(type) {
	case Tick:
	case LockRead:
		e.saw(now, sighting{kind: held, lock: in.Lock, token: in.Token}, &d)
	case LockAbsent:
		e.floor = max(e.floor, in.HighestTerm)
		e.saw(now, sighting{kind: absent, highest: in.HighestTerm}, &d)
	case LockUnreadable:
		e.floor = max(e.floor, 1) // somebody led
		e.saw(now, sighting{kind: unreadable, token: in.Token}, &d)
	case ReadFailed:
		e.pending = none
		e.backOff(now)
	case LockWritten:
		e.pending = none
		e.won(now, in.Token, &d)
	case WriteConflict:
		e.pending = none
		e.conflict(now, &d)
	case WriteUnknown:
		e.pending = none
		if e.write.abandoned {
			e.write = attempt{}
		}
		e.stale = true
		e.backOff(now)
	case MachineAnswer:
		e.heard(now, in.State)
	case Confirm:
		e.wanted = max(e.wanted, in.Seq)
	case Applied:
		e.etag = in.ETag
	case TermMet:
		e.floor = max(e.floor, in.Term)
		if e.role == Leader && in.Term > e.term {
			e.lose(ReasonTerm, &d)
		}
	case LeaderStopped:
		if e.role == Stopping {
			e.role = Candidate
		}
	case Release:
		e.release(now, &d)
	case LinkUp:
		e.linkUp(in.Peer)
	case LinkDown:
		e.linkDown(now, in.Peer)
	case LeaderGone:
		e.leaderGone(now, in.Leader)
	case Heartbeat:
		e.heartbeat(now, in, &d)
	case Promise:
		e.hasPromised(now, in, &d)
	case Farewell:
		e.farewell(now, in)
	case Taken:
		e.taken = e.taken || e.role == Releasing && in.Leader == e.self.Peer() && in.Term > e.term
	}
	e.act(now, &d)
	return e, d
}

// confirm answers waiting Confirms after proof that this process held the lock.
func (e *Elector) confirm(d *Decision) {
	if e.role == Leader && e.underWay > e.confirmed {
		e.confirmed = e.underWay
		d.add(Confirmed{Seq: e.confirmed})
	}
}

// lose ends authority. The process does nothing more until its leader's code has ended.
func (e *Elector) lose(why Reason, d *Decision) {
	e.role = Stopping
	e.abandon()
	d.add(LostLeadership{Term: e.term, Reason: why})
}

// release ends the candidacy.
func (e *Elector) release(now Instant, d *Decision) {
	if e.role == Gone || e.role == Releasing {
		return
	}
	led := e.role == Leader
	if led {
		e.lose(ReasonReleased, d)
	}
	e.abandon()
	e.role = Releasing
	if led {
		e.sayFarewell(now, d)
	}
}

// act issues what is due and says when to wake.
func (e *Elector) act(now Instant, d *Decision) {
	e.beat(now, d)
	if e.pending == none {
		what, at := e.due(now)
		switch {
		case what == none && e.role == Releasing:
			e.role = Gone
			d.add(Released{})
		case what == none:
		case at > now:
			d.wakeAt(at)
		case what == read:
			e.pending, e.underWay, e.lookedAt = read, e.wanted, now
			d.add(ReadLock{})
		case what == write:
			e.pending, e.underWay = write, e.wanted
			d.add(e.nextWrite(now))
		}
	}
	switch e.role {
	case Leader:
		until, _ := e.ActUntil()
		d.wakeAt(until)
	case Candidate:
		e.inquire(now, d)
	}
}

// due says which request comes next and when.
func (e *Elector) due(now Instant) (what request, at Instant) {
	switch {
	case e.role == Stopping || e.role == Gone || e.taken:
		return none, Never
	case e.write.again:
		return write, e.retryAt
	case e.write.sends > 0 || e.stale:
		return read, e.retryAt
	}
	switch e.role {
	case Leader:
		if e.nextHeir(now) != e.heir {
			return write, e.retryAt
		}
		renewAt := e.leaseFrom.Add(e.renewEvery())
		// A renewal would confirm as well, and so does an heir, without a request.
		if e.wanted > e.confirmed && now < renewAt && e.heir == (Peer{}) {
			return read, e.retryAt
		}
		return write, max(renewAt, e.retryAt)
	case Releasing:
		if e.mine() {
			return write, e.retryAt
		}
		return none, Never
	default:
		if e.seen.kind == nothingYet {
			return read, e.retryAt
		}
		if takeAt := e.takeAt(); takeAt <= max(now, e.lookAt) {
			if e.seen.kind == absent && !e.fresh { // absence has no token: a lock may have come and gone since
				return read, max(takeAt, e.retryAt)
			}
			return write, max(takeAt, e.retryAt)
		}
		return read, max(e.lookAt, e.retryAt)
	}
}

// backOff delays the next request after one that failed: doubling from a twentieth of the renewal interval, to a
// quarter of it while there is a lease to save, to all of it otherwise. Candidates are spread by a hash of their
// incarnation.
func (e *Elector) backOff(now Instant) {
	wait := e.opt.Renew / 20 << min(e.fails, 5)
	e.fails++
	if e.role == Leader {
		wait = min(wait, e.opt.Renew/4)
	} else {
		wait = min(wait, e.opt.Renew)
		h := fnv.New32a()
		h.Write([]byte(e.self.Incarnation))
		wait += wait / 2 * time.Duration(h.Sum32()%1024) / 1024
	}
	e.retryAt = now.Add(wait)
}
