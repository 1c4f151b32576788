package lease

import (
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// attempt is a write whose result is not known: in flight, or answered ambiguously. Only a changed token settles the
// latter.
type attempt struct {
	lock      record.Lock
	condition objstore.Condition
	began     Instant // first sent
	sends     int     // 0: there is no such write
	again     bool    // seen unchanged since: to be sent again
	abandoned bool    // not wanted any more, whatever comes of it
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
		e.adopt(w)
	case e.role == Candidate && now < w.began.Add(authority(e.opt.Lease)):
		e.forgetPromises()
		e.adopt(w)
		e.role, e.term, e.etag = Leader, w.lock.Term, w.lock.AppliedETag
		d.add(BecameLeader{Term: e.term})
		if p := e.promise; p.over {
			d.add(Send{To: p.to, Message: Taken{Leader: p.to, Follower: e.self.Peer(), Term: e.term}})
		}
		e.promise = promise{}
	}
	// A candidate whose write was settled after its lease holds the lock without authority, and writes it again (see
	// takeAt).
	e.confirm(d)
}

// conflict takes in that the condition of our write did not hold. For a first attempt this means that another wrote; a
// later one may have met our own bytes.
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
	first := e.fails == 0
	e.backOff(now)
	if lost && first && e.role == Candidate && e.inherits() {
		e.retryAt = now // the leader's last renewal, which he had no time to tell of
	}
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
	case Leader:
		if lock.Heir = e.nextHeir(now); lock.Heir != (Peer{}) {
			lock.LeaseMS, lock.RenewMS = e.opt.HeirLease.Milliseconds(), e.opt.HeirRenew.Milliseconds()
		}
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
		condition, e.alone = objstore.IfAbsent(), lock.Revision
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
