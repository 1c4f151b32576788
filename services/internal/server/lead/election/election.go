// Package election decides which server of a shard leads. Elector is a pure state machine: it takes inputs with the
// instant at which they happened and returns actions. It reads no clock, does no I/O and starts no goroutines; package
// lease connects it to a store, to a clock and to the other servers.
//
// Invariant: two processes never hold authority at the same time, as long as the rates of their clocks differ by less
// than a tenth and the clocks count while the machine sleeps. A process replaces the lock (record.Lock) only if the
// store still has the token that the process read. The invariant rests on the following rules. In them, 0.95 leases
// means 0.95 times the length of a lease, and the same holds for promises:
//
//   - A leader acts until 0.95 leases after it began to send its last confirmed renewal. Another process writes the
//     lock only after it has seen the same token for 1.06 leases, unless the lock is released or the holder's machine
//     is terminated.
//   - While the lock names an heir, the leader also stops 0.95 promises after it began to send the last heartbeat that
//     the heir answered. The heir writes the lock no sooner than 1.1 promises after it received the last heartbeat that
//     it answered, and it answers none while its own takeover write may still succeed. For true time t, clock rates of
//     0.95 to 1.05 and a promise of length P:
//     leader stops ≤ t(sent) + 0.95 P / 0.95 = t(sent) + P < t(received) + 1.1 P / 1.05 ≤ heir writes.
//   - While the result of a leader's write is unknown, the old or the new version may be in the store. The leader acts
//     only as long as both versions permit it, each by its lease and by the promise of its heir.
//
// The heir is a process, not a server: a restarted server has another incarnation and waits for the whole lease.
package election

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

// Instant is a reading of one machine's clock in nanoseconds since an arbitrary origin. The clock counts while the
// machine is suspended and is never set. Instants of different machines cannot be compared.
type Instant int64

// Never is an Instant that no clock reaches.
const Never Instant = math.MaxInt64

// Add returns the instant d after t.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Identity is what a process writes about itself into the lock.
type Identity struct {
	// ID is the server's --id.
	ID string
	// Incarnation is random for each start of the process.
	Incarnation string
	// Machine is the provider's ID of the machine. The provider never gives the ID to another machine. Machine is empty
	// if the ID is not known.
	Machine   string
	Addresses record.LockAddresses
}

// Peer returns the ID and the incarnation of this process. Other processes identify it by these two.
func (i Identity) Peer() Peer { return Peer{ID: i.ID, Incarnation: i.Incarnation} }

// Options are the settings of `leader_election`.
type Options struct {
	// Lease is how long a lock is valid after the leader's last renewal. Other servers wait 6 % longer before they take
	// over. Lease is a whole number of milliseconds.
	Lease time.Duration
	// Renew is the time between renewals. It is at most half a lease, so that a failed renewal can be repeated.
	Renew time.Duration

	// PeerLease is the length of an heir's promise not to take over. 0 means that there is no heir.
	PeerLease time.Duration
	// PeerInterval is the time between two heartbeats of the leader, at most a quarter of PeerLease.
	PeerInterval time.Duration
	// HeirLease and HeirRenew are used instead of Lease and Renew while the lock names an heir. 0 means 90 s and 30 s,
	// or Lease and Renew if those are longer.
	HeirLease, HeirRenew time.Duration
	// HeirProbation is how long a standby must answer every heartbeat before it becomes heir. 0 means 10 s.
	HeirProbation time.Duration
}

// minPeerLease is the shortest PeerLease. It leaves room for a few round trips and for the pauses of a busy process.
const minPeerLease = 100 * time.Millisecond

// withDefaults returns the options with the omitted ones filled in.
func (o Options) withDefaults() Options {
	o.HeirLease = cmp.Or(o.HeirLease, max(90*time.Second, o.Lease))
	o.HeirRenew = cmp.Or(o.HeirRenew, max(30*time.Second, o.Renew))
	o.HeirProbation = cmp.Or(o.HeirProbation, 10*time.Second)
	return o
}

// minRenew is the shortest Renew. The pauses that are derived from Renew then stay above a timer's precision.
const minRenew = 10 * time.Millisecond

// Validate returns an error that names the first setting that is out of range.
func (o Options) Validate() error {
	switch {
	case o.Renew < minRenew:
		return fmt.Errorf("renew_interval %v: want at least %v", o.Renew, minRenew)
	case o.Lease > time.Hour:
		return fmt.Errorf("lease_duration %v: want at most an hour", o.Lease)
	case o.Renew > o.Lease/2:
		return fmt.Errorf("renew_interval %v: want at most half of lease_duration %v", o.Renew, o.Lease)
	case o.Lease%time.Millisecond != 0 || o.Renew%time.Millisecond != 0:
		return errors.New("renew_interval and lease_duration: want whole milliseconds")
	case o.PeerLease == 0:
		return nil
	case o.PeerLease < minPeerLease || o.PeerLease > time.Minute:
		return fmt.Errorf("peer_lease %v: want 0, or %v to a minute", o.PeerLease, minPeerLease)
	case o.PeerInterval <= 0:
		return fmt.Errorf("peer_interval %v: want more than 0", o.PeerInterval)
	}
	heir := o.withDefaults()
	if heir.HeirLease < heir.Lease || heir.HeirLease > time.Hour || heir.HeirRenew > heir.HeirLease/2 ||
		heir.HeirRenew < minRenew || heir.HeirLease%time.Millisecond != 0 || heir.HeirRenew%time.Millisecond != 0 {
		return fmt.Errorf("lock with an heir: renewals every %v with a lease of %v are not allowed",
			heir.HeirRenew, heir.HeirLease)
	}
	return nil
}

// authorityPeriod is how long a leader may act after it began to send a renewal or an answered heartbeat.
func authorityPeriod(lease time.Duration) time.Duration { return lease - lease/20 }

// takeoverWait is how long a standby must see an unchanged token before it may write. On a clock that is 5 % fast, the
// wait lasts 1.06/1.05 leases in true time. On a clock that is 5 % slow, a leader acts for at most 0.95/0.95 leases in
// true time, which is less.
func takeoverWait(lease time.Duration) time.Duration { return lease + lease*6/100 }

// promiseHold is how long a standby keeps a promise. The extra tenth covers clocks that differ in speed, and a few
// milliseconds of transmission. takeoverWait adds only 6 %: a lease is longer than a promise, so a smaller share of it
// covers the same milliseconds.
func promiseHold(promise time.Duration) time.Duration { return promise + promise/10 }

// longestAttempt is the longest time for one request to the store by a process that has no authority. It is above the
// request_timeout that servers have by default.
const longestAttempt = 30 * time.Second

// RequestTimeout returns the time after which a request to the store that is sent now counts as failed. A process
// without authority waits twice as long as one of its last requests took, at least an eighth of the lease and at most
// longestAttempt. A leader waits for three quarters of the time until its lease ends, or longer if a process without
// authority would, but not beyond that end. The rest is for another attempt, because the first one may have been lost.
func (e Elector) RequestTimeout(now Instant) time.Duration {
	timeout := max(e.opt.Lease/8, min(2*e.slowest, longestAttempt))
	if e.role != Leader {
		return timeout
	}
	remaining := e.leaseEnd().Sub(now)
	return max(remaining*3/4, min(timeout, remaining))
}

// Latency returns how long the slowest of the last requests to the store took, and the longest time that a renewal of
// the present lease may take. A leader that waits longer for the answer to a renewal loses its authority. It may also
// lose it after three quarters of that time if its last requests were fast (see RequestTimeout). The limit is zero for
// a process that does not lead.
func (e Elector) Latency() (slowest, limit time.Duration) {
	if e.role == Leader {
		limit = authorityPeriod(e.lease) - e.renewInterval()
	}
	return e.slowest, limit
}

// recordLatency records how long the request took that has just been answered or given up. Requests that are fast
// compared with the lease count as zero. A slow request is forgotten gradually, within about twenty fast ones.
func (e *Elector) recordLatency(now Instant) {
	took := min(now.Sub(e.sentAt), longestAttempt)
	if e.slowest -= e.slowest / 8; e.slowest < e.opt.Lease/40 {
		e.slowest = 0
	}
	if took >= e.opt.Lease/40 {
		e.slowest = max(e.slowest, took)
	}
}

// leaseWithoutHeir returns the lease of a lock that names no heir. If the store is so slow that a renewal could miss
// the end of the short lease, it is the lease of a lock with an heir, to which other servers may have to wait anyway.
func (e *Elector) leaseWithoutHeir() time.Duration {
	if e.opt.PeerLease > 0 && 2*e.slowest > authorityPeriod(e.opt.Lease)-e.opt.Renew {
		return e.opt.HeirLease
	}
	return e.opt.Lease
}

// leaseEnd returns the time until which the lease permits a leader to act. While the result of a write is unknown, the
// store may hold the old or the new version of the lock, so the lease that ends first decides.
func (e *Elector) leaseEnd() Instant {
	until := e.leaseFrom.Add(authorityPeriod(e.lease))
	if e.write.attempts > 0 {
		until = min(until, e.write.began.Add(authorityPeriod(e.write.lock.Lease())))
	}
	return until
}

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
