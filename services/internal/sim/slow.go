package sim

import (
	"time"

	"github.com/nstance-kit/nstance/services/internal/election"
)

// crawl is the latency of every request to the bucket during a fault of the kind bucketCrawls. If random is set, each
// request has another latency, up to this one.
type crawl struct {
	latency time.Duration
	random  bool
	until   time.Time
}

// slowBucket makes the bucket slow for all servers, for up to fifteen minutes.
func (w *World) slowBucket(d *dice) {
	w.crawl = crawl{latency: d.between(100*time.Millisecond, 20*time.Second), random: d.IntN(2) == 0,
		until: w.sched.now.Add(d.between(2*minute, 15*minute))}
	w.faults.about("%v, random: %t", w.crawl.latency, w.crawl.random)
}

// bucketLatency returns what a slow bucket adds to the latency of one request.
func (w *World) bucketLatency(d *dice) time.Duration {
	c := w.crawl
	switch {
	case w.quiet || !w.sched.now.Before(c.until):
		return 0
	case c.random:
		return d.between(100*time.Millisecond, c.latency)
	}
	return c.latency
}

// delayed notes the latency of a request for the lock. disturbed notes that something other than latency disturbs the
// election of this server.
func (s *server) delayed(latency time.Duration) {
	now := s.world.sched.now
	if latency < s.options.Lease/40 {
		s.fastAt = now
	}
	if latency >= s.slowest || now.Sub(s.slowestAt) > 2*s.world.longest() {
		s.slowest, s.slowestAt = latency, now
	}
}

func (s *server) disturbed() { s.disturbedAt = s.world.sched.now }

// checkExpired checks why a leader did not renew its lease in time. If nothing but latency disturbed it, and the lease
// leaves time for the slowest answer, it must have renewed the lease.
func (s *server) checkExpired(reason election.Reason) {
	w := s.world
	if reason != election.ReasonExpired || w.sched.now.Sub(s.disturbedAt) < 3*w.longest() {
		return
	}
	lease, renew := s.holds.Lease(), s.options.Renew
	if s.holds.Heir.ID != "" {
		renew = s.options.HeirRenew
	}
	// A leader gives up the first slow request after three quarters of the time that is left, because the request may
	// be lost. A twentieth of the lease is for clocks that differ in speed, and for late timers.
	permits, requests := (lease-renew)*3/4-lease/20, 1
	// A leader that does not know yet that the bucket is slow may read the lock before it renews it. A server that has
	// just taken over may have read the lock to learn that it holds it.
	if w.sched.now.Sub(s.fastAt) < lease || s.term == nil || w.sched.now.Sub(s.term.began) < lease {
		requests = 2
	}
	if time.Duration(requests)*s.slowest < permits {
		w.fail(ruleSlow, "%s lost its lease of %v, although no answer took longer than %v and %v were permitted",
			s.process.name, lease, s.slowest, permits)
	}
}
