package election

import "time"

const (
	// maxLinks is the maximum number of standbys that a leader tracks. Another standby must wait until a tracked one
	// leaves.
	maxLinks = 4
	// maxHeartbeats is the number of heartbeats that a leader remembers. A promise that answers an older heartbeat is
	// ignored.
	maxHeartbeats = 16
)

// standbyLink is what a leader has recorded about a standby. The standby is connected, or it was connected and the lock
// still names it as heir.
type standbyLink struct {
	peer Peer
	up   bool
	// promised is true if the standby has made a promise in this term. promisedFrom is when the leader began to send
	// the newest heartbeat that the standby answered. Since answersSince, the standby has answered without a break.
	promised     bool
	promisedFrom Instant
	answersSince Instant
}

// heartbeatLog holds the last heartbeats of this process.
type heartbeatLog struct {
	last   uint64
	sent   [maxHeartbeats]Instant
	covers [maxHeartbeats]uint64 // highest Confirm that was asked for before the heartbeat was sent
	nextAt Instant
}

// earliestNext returns the earliest time for the next heartbeat: a quarter of heartbeatInterval after the last one. The
// log holds only a fixed number of heartbeats. With this minimum distance, each heartbeat stays in the log as long as
// standbys may still answer it.
func (h *heartbeatLog) earliestNext(o Options) Instant {
	return h.sent[h.last%maxHeartbeats].Add(o.heartbeatInterval() / 4)
}

// heartbeatInterval is the time between heartbeats. It is so short that the leader keeps its heir even if one heartbeat
// or its answer is lost.
func (o Options) heartbeatInterval() time.Duration { return min(o.PeerInterval, o.PeerLease/4) }

// heirTimeout is the maximum age of the heir's newest promise. When the promise is older, the leader writes a lock that
// does not name this heir. At that time, 0.3 PeerLease of the authority is left for the write. With a shorter timeout,
// the leader would remove its heir after a mere pause of a busy machine. With a longer timeout, the end of a standby
// could end the leadership.
func (o Options) heirTimeout() time.Duration { return o.PeerLease * 13 / 20 }

// authorityEnd returns the time until which a leader may act, and what ends its authority: the storage lease or the
// heir's promise. While the result of a write is unknown, the store may hold the old or the new version of the lock.
// Then the leases and heirs of both versions count, and the earliest end decides.
func (e *Elector) authorityEnd() (Instant, Reason) {
	until, reason := e.leaseEnd(), ReasonExpired
	heirs := [2]Peer{e.heir}
	if e.write.attempts > 0 {
		heirs[1] = e.write.lock.Heir
	}
	for _, heir := range heirs {
		if heir == (Peer{}) {
			continue
		}
		if end := e.promiseEnd(heir); end < until {
			until, reason = end, ReasonPromise
		}
	}
	return until, reason
}

// promiseEnd returns the time at which the leader must treat the newest promise of a standby as ended. A promise counts
// from just before the leader sent the heartbeat that the promise answers. Without a promise, promiseEnd returns 0.
func (e *Elector) promiseEnd(standby Peer) Instant {
	if l := e.findLink(standby); l != nil && l.promised {
		return l.promisedFrom.Add(authorityPeriod(e.opt.PeerLease))
	}
	return 0
}

// findLink returns the link to a standby, or nil.
func (e *Elector) findLink(standby Peer) *standbyLink {
	for i := range e.links {
		if e.links[i].peer == standby {
			return &e.links[i]
		}
	}
	return nil
}

// addLink records a link. The new link may replace a link that has ended, unless the leader may still need a promise
// that was made over the ended link.
func (e *Elector) addLink(peer Peer) {
	l := e.findLink(peer)
	for i := 0; l == nil && i < maxLinks; i++ {
		if free := &e.links[i]; !free.up && (free.peer == Peer{} || free.peer != e.heir &&
			free.peer != e.write.lock.Heir) {
			*free = standbyLink{peer: peer}
			l = free
		}
	}
	if l != nil && peer != (Peer{}) {
		l.up = true
		e.advanceHeartbeat()
	}
}

// advanceHeartbeat makes the next heartbeat due as early as the heartbeat log allows.
func (e *Elector) advanceHeartbeat() {
	e.heartbeats.nextAt = min(e.heartbeats.nextAt, e.heartbeats.earliestNext(e.opt))
}

// dropLink records that a link has ended. Promises that were made over it still hold.
func (e *Elector) dropLink(now Instant, peer Peer) {
	if l := e.findLink(peer); l != nil {
		l.up = false
	}
	if e.role == Releasing && peer == e.heir { // its TookOver cannot arrive any more
		e.retryAt = min(e.retryAt, now)
	}
}

// chooseHeir returns the heir that the lock should name. The present heir remains while it answers. If it does not, the
// new heir is the standby that has answered for the longest time. A standby that has answered for less than
// HeirProbation is not chosen. If no standby is left, chooseHeir returns the zero Peer.
func (e *Elector) chooseHeir(now Instant) Peer {
	var next *standbyLink
	for i := range e.links {
		l := &e.links[i]
		switch {
		case !l.up || !l.promised || now >= l.promisedFrom.Add(e.opt.heirTimeout()):
		case l.peer == e.heir:
			return e.heir
		case now >= l.answersSince.Add(e.opt.HeirProbation) && (next == nil || l.answersSince < next.answersSince):
			next = l
		}
	}
	if next == nil {
		return Peer{}
	}
	return next.peer
}

// renewInterval returns the time between two renewals of the present lock.
func (e *Elector) renewInterval() time.Duration {
	if e.heir != (Peer{}) {
		return e.opt.HeirRenew
	}
	return e.opt.Renew
}

// sendHeartbeats sends a heartbeat to every connected standby when one is due. A waiting Confirm makes a heartbeat due
// immediately, because the heir's answer is the proof that Confirm asks for.
func (e *Elector) sendHeartbeats(now Instant, d *Decision) {
	if e.role != Leader || e.opt.PeerLease == 0 {
		return
	}
	if l := e.findLink(e.heir); e.heir != (Peer{}) && l != nil && now < l.promisedFrom.Add(e.opt.heirTimeout()) {
		d.wakeAt(l.promisedFrom.Add(e.opt.heirTimeout()))
	}
	at, h := e.heartbeats.nextAt, &e.heartbeats
	if e.heir != (Peer{}) && e.confirmWanted > max(e.confirmDone, h.covers[h.last%maxHeartbeats]) {
		at = min(at, h.earliestNext(e.opt))
	}
	logged := false
	for i := range e.links {
		l := &e.links[i]
		if !l.up {
			continue
		}
		if at > now {
			d.wakeAt(at)
			return
		}
		if !logged {
			logged = true
			h.last++
			h.sent[h.last%maxHeartbeats], h.covers[h.last%maxHeartbeats] = now, e.confirmWanted
			h.nextAt = now.Add(e.opt.heartbeatInterval())
			d.wakeAt(h.nextAt)
		}
		d.add(Send{To: l.peer, Message: Heartbeat{Leader: e.self.Peer(), Standby: l.peer, Term: e.term, Beat: h.last,
			Length: e.opt.PeerLease, Lock: e.seen.lock, Token: e.seen.token}})
	}
}

// recordPromise records a standby's answer. The answer names a heartbeat. The promise counts from the time at which
// that heartbeat was sent, however late the answer arrives.
func (e *Elector) recordPromise(now Instant, p Promise, d *Decision) {
	l := e.findLink(p.Standby)
	h := &e.heartbeats
	if e.role != Leader || p.Leader != e.self.Peer() || p.Term != e.term || p.Length != e.opt.PeerLease ||
		p.Standby == (Peer{}) || l == nil || !l.up ||
		p.Beat > h.last || h.last-p.Beat >= maxHeartbeats || p.Beat == 0 {
		return
	}
	sent := h.sent[p.Beat%maxHeartbeats]
	if !l.promised || sent > l.promisedFrom {
		if !l.promised || sent.Sub(l.promisedFrom) > e.opt.heirTimeout() {
			l.answersSince = now
		}
		l.promised, l.promisedFrom = true, sent
	}
	// The heir's answer proves that the leader held the lock: only the heir can take the lock within the lease, and the
	// heir had not begun to take it when it answered.
	covers := h.covers[p.Beat%maxHeartbeats]
	if p.Standby == e.heir && covers > e.confirmDone && (e.write.attempts == 0 || e.write.lock.Heir == e.heir) {
		e.confirmDone = covers
		d.add(Confirmed{Seq: covers})
	}
}

// adoptVersion records that this leader now holds the lock in the version that w wrote.
func (e *Elector) adoptVersion(w pendingWrite) {
	e.leaseFrom, e.lease = w.began, w.lock.Lease()
	if e.heir == w.lock.Heir {
		return
	}
	if former := e.findLink(e.heir); former != nil {
		former.promised = false // the former heir must pass its probation again
	}
	e.heir = w.lock.Heir
	e.advanceHeartbeat() // tells the new heir
}

// resetPromises discards the promises of earlier terms at the beginning of a term.
func (e *Elector) resetPromises() {
	for i := range e.links {
		e.links[i].promised = false
	}
	e.heir = Peer{}
	e.heartbeats.nextAt = 0
}

// offerHandover tells the heir that this leader has stopped, so that the heir can take over immediately. This saves the
// write that releases the lock. If the heir does not answer within PeerLease, this process reads the lock. It then
// releases the lock, unless the heir holds the lock by then.
func (e *Elector) offerHandover(now Instant, d *Decision) {
	if l := e.findLink(e.heir); e.heir != (Peer{}) && l != nil && l.up && e.chooseHeir(now) == e.heir {
		d.add(Send{To: e.heir, Message: Handover{Leader: e.self.Peer(), Standby: e.heir, Term: e.term}})
		e.mustRead, e.retryAt = true, now.Add(e.opt.PeerLease)
	}
}
