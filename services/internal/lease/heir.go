package lease

import "time"

const (
	// maxLinks bounds the followers that a leader keeps in mind; more of them only wait.
	maxLinks = 4
	// maxBeats is how many heartbeats are remembered: a promise upon an older one says nothing any more.
	maxBeats = 16
)

// link is what a leader knows of a follower that is connected to it, or was and is its heir.
type link struct {
	peer Peer
	up   bool
	// promises: it has made one in this term. promised is when the sending of the newest heartbeat that it answered
	// began, since the beginning of answers without a gap.
	promises bool
	promised Instant
	since    Instant
}

// beats are the last heartbeats of this process.
type beats struct {
	last   uint64
	sent   [maxBeats]Instant
	covers [maxBeats]uint64 // highest Confirm asked for before it was sent
	nextAt Instant
}

// soon is when a heartbeat may be sent out of turn: not so often that those that may still be answered are forgotten.
func (b *beats) soon(o Options) Instant { return b.sent[b.last%maxBeats].Add(o.beatEvery() / 4) }

// beatEvery is the time between heartbeats: a heartbeat and its answer may be lost without the heir being given up.
func (o Options) beatEvery() time.Duration { return min(o.PeerInterval, o.PeerLease/4) }

// stale is how old the newest promise may be before the leader writes the lock without that heir: 0.3 promises are left
// for the write. Sooner, and a busy machine's pauses would cost it its heir now and then; later, and a follower's end
// could cost the leadership.
func (o Options) stale() time.Duration { return o.PeerLease * 13 / 20 }

// bound says until when a leader may act and what ends it: the storage lease, and the promise of the heir. While a
// write is unsettled, either version may be in the store: both leases and both heirs count.
func (e *Elector) bound() (Instant, Reason) {
	until, why := e.leaseFrom.Add(authority(e.lease)), ReasonExpired
	heirs := [2]Peer{e.heir}
	if e.write.sends > 0 {
		until = min(until, e.write.began.Add(authority(e.write.lock.Lease())))
		heirs[1] = e.write.lock.Heir
	}
	for _, heir := range heirs {
		if heir == (Peer{}) {
			continue
		}
		if end := e.promiseEnd(heir); end < until {
			until, why = end, ReasonPromise
		}
	}
	return until, why
}

// promiseEnd is when the newest promise of a follower ends for the leader, who counts from before he began to send the
// heartbeat; the zero Instant without one.
func (e *Elector) promiseEnd(of Peer) Instant {
	if l := e.link(of); l != nil && l.promises {
		return l.promised.Add(authority(e.opt.PeerLease))
	}
	return 0
}

func (e *Elector) link(of Peer) *link {
	for i := range e.links {
		if e.links[i].peer == of {
			return &e.links[i]
		}
	}
	return nil
}

// linkUp notes a link. It takes the place of one that is gone, unless that one's promise may still be needed.
func (e *Elector) linkUp(peer Peer) {
	l := e.link(peer)
	for i := 0; l == nil && i < maxLinks; i++ {
		if free := &e.links[i]; !free.up && (free.peer == Peer{} || free.peer != e.heir &&
			free.peer != e.write.lock.Heir) {
			*free = link{peer: peer}
			l = free
		}
	}
	if l != nil && peer != (Peer{}) {
		l.up = true
		e.beats.nextAt = min(e.beats.nextAt, e.beats.soon(e.opt)) // it is asked soon
	}
}

// linkDown notes that a link has ended. What was promised over it still holds.
func (e *Elector) linkDown(now Instant, peer Peer) {
	if l := e.link(peer); l != nil {
		l.up = false
	}
	if e.role == Releasing && peer == e.heir { // it will not tell us that it has taken over
		e.retryAt = min(e.retryAt, now)
	}
}

// nextHeir is who the lock should name: the heir while its answers come, or else a follower that has answered for long
// enough, or nobody.
func (e *Elector) nextHeir(now Instant) Peer {
	var next *link
	for i := range e.links {
		l := &e.links[i]
		switch {
		case !l.up || !l.promises || now >= l.promised.Add(e.opt.stale()):
		case l.peer == e.heir:
			return e.heir
		case now >= l.since.Add(e.opt.Steady) && (next == nil || l.since < next.since):
			next = l
		}
	}
	if next == nil {
		return Peer{}
	}
	return next.peer
}

// renewEvery is the time between two renewals of the lock as it is.
func (e *Elector) renewEvery() time.Duration {
	if e.heir != (Peer{}) {
		return e.opt.HeirRenew
	}
	return e.opt.Renew
}

// beat asks every connected follower for a promise when that is due: in time, or at once for a Confirm, which an heir's
// answer settles.
func (e *Elector) beat(now Instant, d *Decision) {
	if e.role != Leader || e.opt.PeerLease == 0 {
		return
	}
	if l := e.link(e.heir); e.heir != (Peer{}) && l != nil && now < l.promised.Add(e.opt.stale()) {
		d.wakeAt(l.promised.Add(e.opt.stale()))
	}
	at, b := e.beats.nextAt, &e.beats
	if e.heir != (Peer{}) && e.wanted > max(e.confirmed, b.covers[b.last%maxBeats]) {
		at = min(at, b.soon(e.opt))
	}
	sends := false
	for i := range e.links {
		l := &e.links[i]
		if !l.up {
			continue
		}
		if at > now {
			d.wakeAt(at)
			return
		}
		if !sends {
			sends = true
			b.last++
			b.sent[b.last%maxBeats], b.covers[b.last%maxBeats], b.nextAt = now, e.wanted, now.Add(e.opt.beatEvery())
			d.wakeAt(b.nextAt)
		}
		d.add(Send{To: l.peer, Message: Heartbeat{Leader: e.self.Peer(), Follower: l.peer, Term: e.term, Beat: b.last,
			Length: e.opt.PeerLease,
			Lock:   e.seen.lock, Token: e.seen.token}})
	}
}

// hasPromised takes in a follower's answer. It counts from the sending of the heartbeat that it names, whenever it
// arrives.
func (e *Elector) hasPromised(now Instant, p Promise, d *Decision) {
	l := e.link(p.Follower)
	b := &e.beats
	if e.role != Leader || p.Leader != e.self.Peer() || p.Term != e.term || p.Length != e.opt.PeerLease ||
		p.Follower == (Peer{}) || l == nil || !l.up ||
		p.Beat > b.last || b.last-p.Beat >= maxBeats || p.Beat == 0 {
		return
	}
	sent := b.sent[p.Beat%maxBeats]
	if !l.promises || sent > l.promised {
		if !l.promises || sent.Sub(l.promised) > e.opt.stale() {
			l.since = now
		}
		l.promises, l.promised = true, sent
	}
	// Nobody but the heir can take the lock within the lease, and the heir had not begun to when it answered.
	covers := b.covers[p.Beat%maxBeats]
	if p.Follower == e.heir && covers > e.confirmed && (e.write.sends == 0 || e.write.lock.Heir == e.heir) {
		e.confirmed = covers
		d.add(Confirmed{Seq: covers})
	}
}

// adopt takes in which version of the lock this leader is known to hold.
func (e *Elector) adopt(w attempt) {
	e.leaseFrom, e.lease = w.began, w.lock.Lease()
	if gone := e.link(e.heir); e.heir != w.lock.Heir && gone != nil {
		gone.promises = false // to be heir again it has to be steady again
	}
	if e.heir != w.lock.Heir {
		e.heir = w.lock.Heir
		e.beats.nextAt = min(e.beats.nextAt, e.beats.soon(e.opt)) // it should know
	}
}

// forgetPromises begins a term: promises of an earlier one are void.
func (e *Elector) forgetPromises() {
	for i := range e.links {
		e.links[i].promises = false
	}
	e.heir = Peer{}
	e.beats.nextAt = 0
}

// sayFarewell ends the heir's promise instead of releasing the lock: its take-over is then the only write. The lock is
// looked at, and released if it still is ours, when the heir has not answered for a while.
func (e *Elector) sayFarewell(now Instant, d *Decision) {
	if l := e.link(e.heir); e.heir != (Peer{}) && l != nil && l.up && e.nextHeir(now) == e.heir {
		d.add(Send{To: e.heir, Message: Farewell{Leader: e.self.Peer(), Follower: e.heir, Term: e.term}})
		e.stale, e.retryAt = true, now.Add(e.opt.PeerLease)
	}
}
