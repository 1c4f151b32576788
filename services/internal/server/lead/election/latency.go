package election

import "time"

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
