package plan

import (
	"hash/fnv"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
)

const (
	backoffFirst = time.Second
	backoffMost  = 5 * time.Minute // between creations of a group
	retryMost    = time.Minute     // between attempts at one instance's work

	noticeWindow      = time.Hour // in which notices are counted
	reasonManyNotices = "its agents report more termination notices in an hour than its size"
)

// over reports whether the hour in which notices were counted has ended.
func (n Notices) over(now time.Time) bool { return !now.Before(n.Since.Add(noticeWindow)) }

// backoff returns the backoff that the group must observe: the one for failed creations (rule 25) or the one for
// notices (rule 39), whichever ends later. until is the end of the hour in which the notices are counted, or zero if no
// notices count.
func (g *group) backoff() (b Backoff, until time.Time) {
	b = g.Backoff
	if g.Notices.Backoff.Failures == 0 || g.Notices.over(g.Now) {
		return b, time.Time{}
	}
	key := g.Group.GroupKey
	if g.Notices.Backoff.Until(key).After(b.Until(key)) {
		b = g.Notices.Backoff
	}
	return b, g.Notices.Since.Add(noticeWindow)
}

// rule returns the number of the rule that makes the group wait.
func (b Backoff) rule() int {
	if b.Reason == reasonManyNotices {
		return 39
	}
	return 25
}

// Until returns when the group may try to create again (rule 25), or zero if no creation failed. The wait is 1 s after
// the first failure and doubles up to 5 min, plus or minus 10 %. The deviation comes from a hash of the key, so that
// groups try at different times, but the same input gives the same plan.
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

// retryReady reports whether a failed action may be tried again. The wait is 1 s after the first failure and doubles up
// to 1 min, plus or minus 10 %. The deviation comes from a hash of the instance ID.
func retryReady(id ident.ID, f Failure, now time.Time) (ready bool, until time.Time) {
	if f.Count == 0 {
		return true, time.Time{}
	}
	return reached(f.At.Add(jitter(doubled(f.Count, retryMost), hashID(id)+uint64(f.Count))), now)
}

// doubled returns the wait after a number of failures: 1 s for one failure, twice as much for each further one, at most
// the duration most.
func doubled(failures int, most time.Duration) time.Duration {
	return reconnect.Backoff(backoffFirst, most, failures)
}

// jitter changes d by up to 10 % in either direction.
func jitter(d time.Duration, hash uint64) time.Duration {
	return d + d/1000*time.Duration(int64(hash%201)-100)
}

func hashID(id ident.ID) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id.Storage()))
	return h.Sum64()
}

// createsAllowed returns how many of the wanted instances may be created now. out contains the reasons why the others
// must wait. A group creates nothing during its backoff. After that, its number of creates in progress is limited to
// the size of the group, halved for each failure, but at least one. The create budget limits the number too.
func (g *group) createsAllowed(want int) (n int, out steps) {
	if want <= 0 {
		return 0, out
	}
	n = want
	if backoff, _ := g.backoff(); backoff.Failures > 0 {
		over, until := reached(backoff.Until(g.Group.GroupKey), g.Now)
		out.wait(until)
		n = min(n, max(1, g.desired>>min(backoff.Failures, 30))-g.tally.of[classCreating]-g.sparesCreating())
		if !over || n <= 0 {
			out.blockUntil("backing off: "+backoff.Reason, until)
			return 0, out
		}
	}
	if g.CreateBudget >= 0 && n > g.CreateBudget {
		n = g.CreateBudget
		passed, until := reached(g.CreateBudgetAt, g.Now)
		if g.CreateEvery > 0 {
			out.blockUntil("create_rate_limit allows 1 create per "+config.Duration(g.CreateEvery).String()+
				" in the shard, and it is used", until)
		} else {
			out.block("the limit of concurrent creates of the shard is reached")
		}
		if passed {
			until = g.Now.Add(time.Second) // when the budget grows is unknown
		}
		out.wait(until)
	}
	return n, out
}
