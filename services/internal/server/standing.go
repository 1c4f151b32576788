package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// bucketOutage is a time in which no request to the bucket succeeded.
type bucketOutage struct {
	// what is what the server could not do: "read the bucket" or "write to the bucket".
	what         string
	since, until time.Time
	// latest is when the last request failed.
	latest time.Time
	cause  string
}

// shortestOutage is how long an outage lasts at least to be part of the journal.
const shortestOutage = 5 * time.Second

// outageKnown is how long after the last failed request an outage still counts as present. A server that needs the
// bucket sends a request more often, and one that makes none, such as an heir, does not know whether the outage has
// ended.
const outageKnown = 90 * time.Second

// bucketWatch knows whether a bucket answers this server. The zero value knows of no request. It is safe for concurrent
// use.
type bucketWatch struct {
	name          string // "": the bucket
	mu            sync.Mutex
	reads, writes bucketOutage // in progress, if since is set
	last          bucketOutage // the last one that has ended and is not in the journal
}

// observe records the result of a request, which has ended just now.
func (b *bucketWatch) observe(op string, took time.Duration, err error, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	current, what := &b.reads, "read "
	if op == "put" || op == "delete" {
		current, what = &b.writes, "write to "
	}
	what += cmp.Or(b.name, "the bucket")
	switch {
	case errors.Is(err, context.Canceled): // by this server
	case storageResult(err) != "error":
		if !current.since.IsZero() && now.Sub(current.since) >= shortestOutage {
			b.last = *current
			b.last.until = now
		}
		*current = bucketOutage{}
	default:
		current.since = cmp.Or(current.since, now.Add(-took))
		current.what, current.cause, current.latest = what, objstore.Cause(err), now
	}
}

// present returns the outage in progress. Its since is zero if there is none.
func (b *bucketWatch) present(now time.Time) (present bucketOutage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range []bucketOutage{b.reads, b.writes} {
		if !o.since.IsZero() && now.Sub(o.latest) < outageKnown &&
			(present.since.IsZero() || o.since.Before(present.since)) {
			present = o
		}
	}
	return present
}

// ended returns the last outage that has ended. The next call does not return it again.
func (b *bucketWatch) ended() bucketOutage {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.last
	b.last = bucketOutage{}
	return last
}

// failing says in words that the bucket does not answer, or returns "".
func (s *server) failing() string {
	return s.outage(s.bucket.present(s.env.Now()))
}

func (s *server) outage(o bucketOutage) string {
	if o.since.IsZero() {
		return ""
	}
	return fmt.Sprintf("cannot %s since %s: %s", o.what, s.clockTime(o.since), o.cause)
}

// clusterLookEvery is the time between two reads of the cluster's bucket, if it is not that of the shard.
const clusterLookEvery = 30 * time.Second

// watchCluster reads the cluster's bucket from time to time until ctx ends, if it is not that of the shard. So an
// outage is noticed before a VM or an operator needs this bucket.
func (s *server) watchCluster(ctx context.Context) {
	for s.inUse.Load().clusterBucket != nil && s.env.Sleep(ctx, clusterLookEvery) == nil {
		_, _ = s.state.CABundleToken(ctx) // clusterBucket observes the result
	}
	<-ctx.Done()
}

// clusterFailing says in words that the cluster's bucket does not answer, and what waits for it, or returns "". It
// returns "" if that is the shard's bucket.
func (s *server) clusterFailing() string {
	r := s.inUse.Load()
	if r == nil || r.clusterBucket == nil {
		return ""
	}
	o := r.clusterBucket.present(s.env.Now())
	if o.since.IsZero() || s.env.Now().Sub(o.since) < shortestOutage {
		return ""
	}
	return s.outage(o) + "; until it answers, no VM or operator can register, and no other server can take over"
}

// bucketAlertEvery is the time between two looks at whether the bucket answers.
const bucketAlertEvery = time.Second

// alertOutages raises an alert of the shard while the bucket, or that of the cluster, has not answered this leader for
// shortestOutage, until ctx ends. The leader leads on for some time, so its alert is seen.
func (s *server) alertOutages(ctx context.Context, state *shardstate.State) {
	key := shardstate.ErrorKey{Kind: plan.AlertStorage}
	for s.env.Sleep(ctx, bucketAlertEvery) == nil {
		now, says := s.env.Now(), s.clusterFailing()
		if o := s.bucket.present(now); !o.since.IsZero() && now.Sub(o.since) >= shortestOutage {
			says = s.failing()
		}
		if says == "" {
			state.ResolveError(key)
		} else {
			state.RaiseError(key, says)
		}
	}
}

// clockTime returns a time for people, in UTC: without the date if it is less than a day away.
func (s *server) clockTime(t time.Time) string {
	t = t.UTC().Round(time.Second)
	if s.env.Now().Sub(t).Abs() > 24*time.Hour {
		return t.Format("2006-01-02 15:04:05")
	}
	return t.Format(time.TimeOnly)
}

// standing is how this server stands in the election.
type standing struct {
	Role string `json:"role"` // leader, standby or stopping
	// Leader is the holder of the lock, and Term its term, as far as this server knows.
	Leader string `json:"leader,omitempty"`
	Term   uint64 `json:"term,omitempty"`
	Heir   string `json:"heir,omitempty"`
	// NoLeader says why the shard has no leader, as far as this server knows. It is empty if there is one.
	NoLeader string `json:"no_leader,omitempty"`
	// Bucket says since when requests to the bucket fail, and why.
	Bucket      string     `json:"bucket,omitempty"`
	BucketSince *time.Time `json:"bucket_since,omitempty"`
	// TakeoverFrom is when this server may take over, by its clock.
	TakeoverFrom *time.Time `json:"takeover_from,omitempty"`

	says string
}

// standing describes how this server stands in the election, for people and their programs. Nothing decides by it.
func (s *server) standing() (v standing) {
	o := s.bucket.present(s.env.Now())
	if !o.since.IsZero() {
		since := o.since.UTC()
		v.Bucket, v.BucketSince = s.failing(), &since
	}
	status := s.status.Load()
	if status == nil {
		status = &lease.Status{}
	}
	holder := status.Holder
	v.Role, v.Leader, v.Term, v.Heir = "standby", holder.LeaderID, holder.Term, holder.Heir.ID
	switch status.Role {
	case election.Leader:
		v.Role, v.Leader, v.Term = "leader", s.opts.ID, status.Term
		v.says = s.leaderSays(v, status.Wait.LeaseEnds)
		return v
	case election.Stopping, election.Releasing:
		v.Role = "stopping"
	}
	v.NoLeader = s.noLeader(status, &v)
	switch {
	case v.NoLeader != "":
		v.says = "no leader is known: " + v.NoLeader
		if v.Leader != "" && v.Bucket != "" {
			v.says += fmt.Sprintf("; %s led last, in term %d", v.Leader, v.Term)
		}
	default:
		v.says = fmt.Sprintf("ok: %s leads in term %d", v.Leader, v.Term)
	}
	return v
}

// leaderSays describes the leader. Its lease ends at leaseEnds.
func (s *server) leaderSays(v standing, leaseEnds election.Instant) string {
	l := s.leading.Load()
	switch {
	case v.Bucket != "" && l != nil:
		return fmt.Sprintf("leads in term %d, but %s; if that does not end, it leads until %s", v.Term, v.Bucket,
			s.clockTime(s.env.Now().Add(leaseEnds.Sub(s.clock.Now()))))
	case v.Bucket != "":
		return fmt.Sprintf("becomes the leader of term %d, but %s", v.Term, v.Bucket)
	case l == nil:
		return fmt.Sprintf("ok: becomes the leader of term %d", v.Term)
	}
	if cluster := s.clusterFailing(); cluster != "" {
		return fmt.Sprintf("leads in term %d, but %s", v.Term, cluster)
	}
	return fmt.Sprintf("ok: leads in term %d", v.Term)
}

// noLeader says why a server that does not lead knows no leader, or returns "".
func (s *server) noLeader(status *lease.Status, v *standing) string {
	holder, wait := status.Holder, status.Wait
	takeover := ""
	if now := s.clock.Now(); wait.Takeover > 0 && wait.Takeover != election.Never {
		at := s.env.Now().Add(wait.Takeover.Sub(now)).UTC().Round(time.Second)
		v.TakeoverFrom = &at
		takeover = "; a takeover is possible from " + s.clockTime(at)
	}
	idle := s.idle.Load()
	led := holder.Term > 0 && !holder.Released && holder.Incarnation != s.incarnation
	switch {
	case led && status.Role == election.Standby && !wait.Late && !wait.Unusable && idle == nil:
		return "" // the leader renews its lock or sends heartbeats, whatever this server can read
	case v.Bucket != "":
		v.TakeoverFrom = nil
		return v.Bucket
	case idle != nil:
		return *idle
	case status.Role != election.Standby:
		return "the leadership of this server ends"
	case wait.Unusable:
		return "the lock in the bucket cannot be used: this server's log says why"
	case holder.Term == 0 && wait.Late:
		return "the lock was deleted" + takeover
	case holder.Term == 0:
		return "the lock was not read yet, or no server has led the shard"
	case holder.Released:
		return holder.LeaderID + " has released the lock"
	case holder.Incarnation == s.incarnation:
		return "the leadership of this server has ended"
	case wait.Late:
		return fmt.Sprintf("%s has not renewed its lock, and its lease ends at %s", holder.LeaderID,
			s.clockTime(s.env.Now().Add(wait.LeaseEnds.Sub(s.clock.Now())))) + takeover
	}
	return ""
}

// stay makes known why this server takes no part in the election, while the function `do` runs.
func (s *server) stay(why string, do func() error) error {
	s.idle.Store(&why)
	defer s.idle.Store(nil)
	return do()
}
