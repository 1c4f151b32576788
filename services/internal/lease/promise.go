package lease

// promise is what a follower has given its word for: that it will not write the lock before until. It is kept for the
// leader of one term; an earlier one's can only make it longer.
type promise struct {
	to    Peer
	term  uint64
	until Instant
	over  bool // the leader said farewell: nothing more is promised to him
}

// heard takes in a leader's heartbeat, as what it tells about the lock and as a question.
func (e *Elector) heartbeat(now Instant, h Heartbeat, d *Decision) {
	if e.opt.PeerLease == 0 || h.Follower != e.self.Peer() || h.Lock.Incarnation != h.Leader.Incarnation ||
		h.Lock.Term != h.Term || h.Length <= 0 {
		return
	}
	switch {
	case e.role == Leader && h.Term > e.term:
		e.floor = max(e.floor, h.Term)
		e.lose(ReasonTerm, d)
		return
	case e.role != Candidate || h.Term < e.seen.lock.Term:
		return
	case e.pending == write || e.write.sends > 0:
		return // a take-over that may still land allows no promise
	case e.promise.over && e.promise.to == h.Leader && e.promise.term == h.Term:
		return
	}
	if e.seen.kind == held && h.Lock.Revision > e.seen.lock.Revision {
		e.lookedAt = now
		e.sight(now, sighting{kind: held, lock: h.Lock, token: h.Token})
	}
	e.promise = promise{to: h.Leader, term: h.Term, until: max(e.promise.until, now.Add(faith(h.Length)))}
	e.severed = severance{}
	e.lookAt = e.promise.until // who hears the leader need not read, and who hears him no more should
	d.add(Send{To: h.Leader, Message: Promise{Leader: h.Leader, Follower: h.Follower, Term: h.Term, Beat: h.Beat,
		Length: h.Length}})
}

// farewell ends the promise to a leader who has stopped.
func (e *Elector) farewell(now Instant, f Farewell) {
	if f.Follower == e.self.Peer() && f.Leader == e.promise.to && f.Term == e.promise.term {
		e.promise.until, e.promise.over = now, true
		e.lookAt = now // who is not his heir, as far as he knows, may have become it
	}
}

// inherits says whether this process is the heir of the lock that it saw last, and knows what it promised its holder. A
// restarted heir does not: the lock names another incarnation.
func (e *Elector) inherits() bool {
	lock := e.seen.lock
	return lock.Heir == e.self.Peer() && e.promise.to.Incarnation == lock.Incarnation && e.promise.term == lock.Term
}
