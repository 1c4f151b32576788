package plan

import (
	"hash/fnv"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

const (
	backoffFirst = time.Second
	backoffMost  = 5 * time.Minute // between creations of a group
	retryMost    = time.Minute     // between attempts at one instance's work
)

// Until is when the group may try to create again: 1 s after the first failure, doubling up to 5 min, give or take 10 %
// by a hash, so that groups do not come in step and a plan stays pure. Zero without failures.
func (b Backoff) Until(key config.GroupKey) time.Time {
	if b.Failures == 0 {
		return time.Time{}
	}
	h := fnv.New64a()
	h.Write([]byte(key.Tenant))
	h.Write([]byte{0})
	h.Write([]byte(key.Group))
	h.Write([]byte{0, byte(b.Failures), byte(b.Failures >> 8)})
	return b.Last.Add(jitter(doubled(b.Failures, backoffMost), h.Sum64()))
}

// Failed counts one failed creation. Creations that ran side by side fail together: those that fail while the group
// waits already count once.
func (b Backoff) Failed(key config.GroupKey, now time.Time, reason string) Backoff {
	b.Reason = reason
	if b.Failures == 0 || !now.Before(b.Until(key)) {
		b.Failures++
		b.Last = now
	}
	return b
}

// End notes the end of the work that was under way for an instance.
func (i *Instance) End(now time.Time, failed bool) {
	if i.Work == Tending {
		i.TendFailed.note(now, failed)
	} else {
		i.Failed.note(now, failed)
	}
	i.Work = Idle
}

// Answered notes the end of a question to the provider about an instance; failed if there was no answer.
func (i *Instance) Answered(now time.Time, failed bool) {
	i.AskFailed.note(now, failed)
	i.Asking = false
}

func (f *Failure) note(now time.Time, failed bool) {
	if failed {
		*f = Failure{At: now, Count: f.Count + 1}
	} else {
		*f = Failure{}
	}
}

// retry reports whether what failed may be tried again: 1 s after the first failure, doubling up to 1 min, give or take
// 10 % by a hash.
func (p *planner) retry(i *Instance, f Failure) bool {
	if f.Count == 0 {
		return true
	}
	return p.reached(f.At.Add(jitter(doubled(f.Count, retryMost), hashID(i.ID)+uint64(f.Count))))
}

// doubled is 1 s doubled with every failure after the first, at most most.
func doubled(failures int, most time.Duration) time.Duration {
	d := backoffFirst
	for n := 1; n < failures && d < most; n++ {
		d *= 2
	}
	return min(d, most)
}

// jitter moves d by up to 10 % either way.
func jitter(d time.Duration, hash uint64) time.Duration {
	return d + d/1000*time.Duration(int64(hash%201)-100)
}

func hashID(id ident.ID) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id.Storage()))
	return h.Sum64()
}

// room is how many of the wanted creates may start now. A group that backs off waits, and then tries with fewer at a
// time, the more often it failed; a create budget bounds the rest.
func (p *planner) room(want int) int {
	if want <= 0 {
		return 0
	}
	n := want
	if p.Backoff.Failures > 0 {
		if !p.reached(p.Backoff.Until(p.Group.GroupKey)) {
			p.block("backing off: " + p.Backoff.Reason)
			return 0
		}
		n = min(n, max(1, p.desired>>min(p.Backoff.Failures, 30))-p.tally.moving)
		if n <= 0 {
			p.block("backing off: " + p.Backoff.Reason)
			return 0
		}
	}
	if p.CreateBudget >= 0 && n > p.CreateBudget {
		n = p.CreateBudget
		p.block("as many creates as may be are under way, or create_rate_limit is reached")
		if p.reached(p.CreateBudgetAt) {
			p.wake(p.Now.Add(time.Second)) // nobody can tell
		}
	}
	return n
}
