package lease

import (
	"hash/fnv"
	"time"

	"github.com/nstance-kit/nstance/services/contract/objstore"
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

// Elector is the state of one process in the election: a value that Next advances. There is no clock, chance or I/O in it.
type Elector struct {
	self Identity
	opt  Options
	role Role
	term uint64 // led now, or last

	seen     sighting // the lock as it was seen last
	stale    bool     // it must be read before anything is written
	fresh    bool     // it was read in this very step
	inPhase  bool     // the token was seen to change: seen.since is close to the renewal itself
	lookAt   Instant
	longest  time.Duration // lease ever seen
	floor    uint64        // highest term ever met
	revision uint64        // highest revision ever seen or tried
	machine  inquiry

	pending   request
	write     attempt // ours, if it is not settled
	leaseFrom Instant // when sending of the last confirmed renewal began
	etag      string
	wanted    uint64 // highest Confirm asked for,
	underWay  uint64 // covered by the pending request,
	confirmed uint64 // answered
	fails     int
	retryAt   Instant
}

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

// request is the kind of storage request without an answer.
type request uint8

const (
	none request = iota
	read
	write
)

// attempt is a write whose result is not known: in flight, or answered ambiguously. Only a changed token settles the latter.
type attempt struct {
	lock      record.Lock
	condition objstore.Condition
	began     Instant // first sent
	sends     int     // 0: there is no such write
	again     bool    // seen unchanged since: to be sent again
	abandoned bool    // not wanted any more, whatever comes of it
}

// inquiry is what is known of the holder's machine, for one token of the lock.
type inquiry struct {
	asking  bool
	about   objstore.Token // token that was seen when asked
	askAt   Instant
	stopped bool // the last answer said so; the next question comes a renewal interval later
	gone    bool
}

// New returns a candidate that has seen nothing.
func New(self Identity, opt Options) Elector {
	return Elector{self: self, opt: opt, longest: opt.Lease}
}

// Role says what the process is.
func (e Elector) Role() Role { return e.role }

// ActUntil says until when authority may be exercised, and in which term. Outside Leader it is the zero Instant.
func (e Elector) ActUntil() (Instant, uint64) {
	if e.role != Leader {
		return 0, 0
	}
	return e.leaseFrom.Add(authority(e.opt.Lease)), e.term
}

// Holder returns the lock as it was seen last; ok is false if there was none.
func (e Elector) Holder() (lock record.Lock, ok bool) { return e.seen.lock, e.seen.kind == held }

// Next takes one input at an instant and says what to do. Instants never go back. The receiver is left as it is.
func (e Elector) Next(now Instant, in Input) (Elector, Decision) {
	d := Decision{Wake: Never}
	e.fresh = false
	if until, _ := e.ActUntil(); e.role == Leader && now >= until {
		e.lose(ReasonExpired, &d)
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
		if e.role == Leader {
			e.lose(ReasonReleased, &d)
		}
		if e.role != Gone {
			e.abandon()
			e.role = Releasing
		}
	}
	e.act(now, &d)
	return e, d
}

// saw takes in the answer of a read.
func (e *Elector) saw(now Instant, s sighting, d *Decision) {
	e.pending, e.stale, e.fresh = none, false, true
	e.sight(now, s)
	switch w := e.write; {
	case w.sends == 0:
	case s.kind == held && s.lock.Version() == w.lock.Version():
		e.won(now, s.token, d)
	case w.condition.Holds(s.token, s.kind != absent) && (s.kind == held || w.lock.Term > e.floor):
		e.write.again = true // it may still land: only the same bytes may follow it
	default:
		e.write = attempt{}
	}
	if e.role == Leader && !(e.mine() && e.seen.lock.Term == e.term) {
		e.lose(ReasonTaken, d)
	}
	e.confirm(d)
}

// sight notes what is under the lock's key.
func (e *Elector) sight(now Instant, s sighting) {
	s.since = e.seen.since
	if s.kind != e.seen.kind || s.token != e.seen.token || s.highest != e.seen.highest {
		s.since = now
		e.inPhase = e.seen.kind != nothingYet
		e.fails = 0
		// What is known of a machine holds for one token only. The first question waits until a renewal is overdue.
		e.machine = inquiry{asking: e.machine.asking, askAt: now.Add(s.lock.Renew() + s.lock.Renew()/5)}
	}
	e.seen = s
	e.longest = max(e.longest, s.lock.Lease())
	e.floor = max(e.floor, s.lock.Term)
	e.revision = max(e.revision, s.lock.Revision)
	e.lookAt = e.nextLook(now)
}

// mine says whether the lock, as it was seen last, is held by this process.
func (e *Elector) mine() bool {
	return e.seen.kind == held && e.seen.lock.Incarnation == e.self.Incarnation && !e.seen.lock.Released
}

// won takes in that our write is in the store under token: its answer says so, or it was read there.
func (e *Elector) won(now Instant, token objstore.Token, d *Decision) {
	w := e.write
	e.write, e.stale = attempt{}, false
	e.sight(now, sighting{kind: held, lock: w.lock, token: token})
	switch {
	case w.abandoned || w.lock.Released:
	case e.role == Leader:
		e.leaseFrom = w.began
	case e.role == Candidate && now < w.began.Add(authority(e.opt.Lease)):
		e.role, e.term, e.etag, e.leaseFrom = Leader, w.lock.Term, w.lock.AppliedETag, w.began
		d.add(BecameLeader{Term: e.term})
	}
	// A candidate whose write was settled after its lease holds the lock without authority, and writes it again (see takeAt).
	e.confirm(d)
}

// conflict takes in that the condition of our write did not hold. For a first attempt this means that another wrote; a later one may
// have met our own bytes.
func (e *Elector) conflict(now Instant, d *Decision) {
	lost := e.write.sends == 1
	if lost || e.write.abandoned {
		e.write = attempt{}
	}
	e.write.again = false
	e.stale = true
	if lost && e.role == Leader {
		e.lose(ReasonTaken, d)
	}
	e.backOff(now)
}

// confirm answers waiting Confirms after proof that this process held the lock.
func (e *Elector) confirm(d *Decision) {
	if e.role == Leader && e.underWay > e.confirmed {
		e.confirmed = e.underWay
		d.add(Confirmed{Seq: e.confirmed})
	}
}

// heard takes in the provider's answer. It counts only if the token is still the one that had been read when the question was put.
func (e *Elector) heard(now Instant, state Evidence) {
	m := &e.machine
	m.asking = false
	if e.seen.kind != held || m.about != e.seen.token {
		return
	}
	renew := e.seen.lock.Renew()
	m.askAt = now.Add(renew / 2)
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

// lose ends authority. The process does nothing more until its leader's code has ended.
func (e *Elector) lose(why Reason, d *Decision) {
	e.role = Stopping
	e.abandon()
	d.add(LostLeadership{Term: e.term, Reason: why})
}

// abandon gives up an unsettled write: it may land or not, the next read will tell.
func (e *Elector) abandon() {
	if e.write.sends == 0 {
		return
	}
	e.stale = true
	if e.pending == write {
		e.write.abandoned = true
	} else {
		e.write = attempt{}
	}
}

// act issues what is due and says when to wake.
func (e *Elector) act(now Instant, d *Decision) {
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
			e.pending, e.underWay = read, e.wanted
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
	case e.role == Stopping || e.role == Gone:
		return none, Never
	case e.write.again:
		return write, e.retryAt
	case e.write.sends > 0 || e.stale:
		return read, e.retryAt
	}
	switch e.role {
	case Leader:
		renewAt := e.leaseFrom.Add(e.opt.Renew)
		if e.wanted > e.confirmed && now < renewAt { // a renewal would confirm as well
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

// takeAt says when a candidate may write the lock that it saw last, if it is still the same.
func (e *Elector) takeAt() Instant {
	switch e.seen.kind {
	case held:
		lock := e.seen.lock
		// A candidate's own lock is that of its ended leadership, or a take-over that was settled too late.
		if lock.Released || lock.Incarnation == e.self.Incarnation || e.machine.gone {
			return e.seen.since
		}
		return e.seen.since.Add(patience(lock.Lease()))
	case absent:
		if e.floor == 0 { // nobody has ever led
			return e.seen.since
		}
		return e.seen.since.Add(patience(e.longest)) // somebody removed it; its holder may not know yet
	}
	return Never
}

// nextWrite is the unsettled write again, or else a new version of the lock: a take-over, a renewal or a release.
func (e *Elector) nextWrite(now Instant) WriteLock {
	if e.write.again {
		e.write.again = false
		e.write.sends++
		return WriteLock{Lock: e.write.lock, Condition: e.write.condition}
	}
	e.revision++
	lock := version(e.self, e.opt, e.term, e.revision)
	lock.AppliedETag = e.etag
	switch e.role {
	case Candidate:
		lock.Term = e.floor + 1
		lock.AppliedETag = e.seen.lock.AppliedETag
	case Releasing:
		lock.Term = e.seen.lock.Term
		lock.AppliedETag = e.seen.lock.AppliedETag
		lock.Released = true
	}
	condition := objstore.IfToken(e.seen.token)
	if e.seen.kind == absent {
		condition = objstore.IfAbsent()
	}
	e.write = attempt{lock: lock, condition: condition, began: now, sends: 1}
	return WriteLock{Lock: lock, Condition: condition}
}

// version is a version of the lock that this process holds.
func version(self Identity, opt Options, term, revision uint64) record.Lock {
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

// nextLook is when a candidate reads the lock again: once for each renewal, just before it is due, and then often enough to see it soon
// after it was written, since the wait for a dead leader counts from there. A renewal that stays away is looked for less and less often.
func (e *Elector) nextLook(now Instant) Instant {
	if e.seen.kind != held {
		return now.Add(e.opt.Renew)
	}
	renew := e.seen.lock.Renew()
	due := e.seen.since.Add(renew)
	switch early := due.Add(-renew / 50); {
	case e.inPhase && now < early:
		return early
	default:
		return now.Add(max(renew/20, min(now.Sub(due), renew/5)))
	}
}

// inquire asks for the holder's machine when a renewal is overdue.
func (e *Elector) inquire(now Instant, d *Decision) {
	machine := e.seen.lock.Machine
	if e.seen.kind != held || machine == "" || machine == e.self.Machine || e.machine.gone || e.machine.asking || e.seen.lock.Released {
		return
	}
	if e.machine.askAt > now {
		d.wakeAt(e.machine.askAt)
		return
	}
	e.machine.asking, e.machine.about = true, e.seen.token
	d.add(AskMachine{Machine: machine})
}

// backOff delays the next request after one that failed: doubling from a twentieth of the renewal interval, to a quarter of it while there is a
// lease to save, to all of it otherwise. Candidates are spread by a hash of their incarnation.
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
