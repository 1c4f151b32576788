package sim

import (
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
)

// crawl is the latency of every request to the bucket during a fault of the kind bucketCrawls. If random is set, each
// request has another latency, up to this one.
type crawl struct {
	latency time.Duration
	random  bool
	until   time.Time
}

// slowBucket makes the bucket slow for all servers, for up to fifteen minutes. In half of the cases, a lease without an
// heir may still be renewed in time.
func (w *World) slowBucket(d *dice) {
	most := 20 * time.Second
	if d.IntN(2) == 0 {
		most = w.lease / 3
	}
	w.crawl = crawl{latency: d.between(100*time.Millisecond, most), random: d.IntN(2) == 0,
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

// lockRequest is one request of a server for the lock.
type lockRequest struct {
	sent     time.Time
	revision uint64        // of the lock that it writes; 0: it reads the lock
	expected time.Duration // the longest time that the server's last requests took
	latency  time.Duration
}

// requested notes that the elector has decided to send a request for the lock. It writes the given revision, or it
// reads the lock if that is 0.
func (s *server) requested(revision uint64) {
	now := s.world.sched.now
	expected, _ := s.elector.Latency()
	s.requests = slices.DeleteFunc(s.requests, func(r lockRequest) bool {
		return now.Sub(r.sent) > 2*s.world.longest()
	})
	s.requests = append(s.requests, lockRequest{sent: now, revision: revision, expected: expected})
}

// delayed adds to the latency of the last request for the lock, which a client may send twice. disturbed notes that
// something other than latency disturbs the election of this server.
func (s *server) delayed(latency time.Duration) { s.requests[len(s.requests)-1].latency += latency }

func (s *server) disturbed() { s.disturbedAt = s.world.sched.now }

// checkExpired checks why a leader did not renew its lease in time. If nothing but latency disturbed it, and the lease
// leaves time for the slowest answer, it must have renewed the lease.
func (s *server) checkExpired(reason election.Reason) {
	w := s.world
	if reason != election.ReasonExpired || w.sched.now.Sub(s.disturbedAt) < 3*w.longest() {
		return
	}
	renewed := slices.IndexFunc(s.requests, func(r lockRequest) bool { return r.revision == s.holds.Revision })
	if renewed < 0 || s.term == nil {
		w.fail(ruleSimulator, "%s lost a lease that it did not write", s.process.name)
		return
	}
	// While the leader does not know whether its last write took effect, the shorter of both leases decides.
	lease, renew := min(s.holds.Lease(), s.writes.Lease()), s.options.Renew
	if s.holds.Heir.ID != "" {
		renew = s.options.HeirRenew
	}
	requests := s.requests[renewed:]
	// A server that has taken over may learn late that it leads. A leader may read the lock before it renews it, if it
	// expects the answer before the renewal is due. The read may take longer than expected.
	late := max(0, s.term.began.Sub(requests[0].sent)-renew)
	for n := 1; n < len(requests) && requests[n].revision == 0; n++ {
		late = max(late, requests[n].latency-requests[n].expected)
	}
	var slowest time.Duration
	for _, r := range requests {
		slowest = max(slowest, r.latency)
	}
	// A leader gives up the first slow request after three quarters of the time that is left, because the request may
	// be lost. A twentieth of the lease is for clocks that differ in speed, and for late timers.
	if permits := (lease-renew)*3/4 - lease/20; late+slowest < permits {
		w.fail(ruleSlow, "%s lost its lease of %v, although no answer took longer than %v, the renewal was late by at "+
			"most %v, and %v were permitted", s.process.name, lease, slowest, late, permits)
	}
}
