package election

// givenPromise is a standby's promise not to write the lock before the time `until`. The promise is for the leader of
// one term. A promise to an earlier leader remains in force, so a new promise never makes `until` earlier.
type givenPromise struct {
	to    Peer
	term  uint64
	until Instant
	ended bool // the leader has handed over: it gets no further promise
}

// answerHeartbeat takes the leader's version of the lock from a heartbeat and answers the heartbeat with a promise.
func (e *Elector) answerHeartbeat(now Instant, h Heartbeat, d *Decision) {
	if e.opt.PeerLease == 0 || h.Standby != e.self.Peer() || h.Lock.Incarnation != h.Leader.Incarnation ||
		h.Lock.Term != h.Term || h.Length <= 0 {
		return
	}
	switch {
	case e.role == Leader && h.Term > e.term:
		e.highestTerm = max(e.highestTerm, h.Term)
		e.endLeadership(ReasonTerm, d)
		return
	case e.role != Standby || h.Term < e.seen.lock.Term:
		return
	case e.pending == write || e.write.attempts > 0:
		return // a server makes no promises while its own takeover write may still succeed
	case e.promise.ended && e.promise.to == h.Leader && e.promise.term == h.Term:
		return
	}
	if e.seen.presence == present && h.Lock.Revision > e.seen.lock.Revision {
		e.readBegan = now
		e.observe(now, observedLock{presence: present, lock: h.Lock, token: h.Token})
	}
	e.promise = givenPromise{to: h.Leader, term: h.Term, until: max(e.promise.until, now.Add(promiseHold(h.Length)))}
	e.broken = brokenLink{}
	e.readAt = e.promise.until // the heartbeats replace reads until they stay away
	d.add(Send{To: h.Leader, Message: Promise{Leader: h.Leader, Standby: h.Standby, Term: h.Term, Beat: h.Beat,
		Length: h.Length}})
}

// acceptHandover ends the promise to a leader that has stopped.
func (e *Elector) acceptHandover(now Instant, h Handover) {
	if h.Standby == e.self.Peer() && h.Leader == e.promise.to && h.Term == e.promise.term {
		e.promise.until, e.promise.ended = now, true
		e.readAt = now // the lock may name this process as heir in a version that it has not seen yet
	}
}

// isHeir reports whether this process is the heir: the lock that was seen last names it as heir, and it has made a
// promise to the holder in this term. A restarted process is not the heir, because the lock names its earlier
// incarnation.
func (e *Elector) isHeir() bool {
	lock := e.seen.lock
	return lock.Heir == e.self.Peer() && e.promise.to.Incarnation == lock.Incarnation && e.promise.term == lock.Term
}
