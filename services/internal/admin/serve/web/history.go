package web

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

const (
	day = 24 * time.Hour
	// keepTime is how far back the page keeps what it reads in the journals.
	keepTime = 7 * day
	// runningTime is the longest time between two replacements of one rollout, and the longest duration of a
	// replacement. If a leader died, the journal may lack the event that ends a replacement.
	runningTime = time.Hour
)

// history is what the page keeps of a shard's journal, for its statistics and plots. The zero value is ready for use.
type history struct {
	// read means that the stored events were read. Before, nothing can be said about the past.
	read bool
	// failed maps the ID of an instance to the time at which the instance was lost or became unhealthy. running
	// contains the unfinished replacements, by the ID of the new instance.
	failed  map[string]time.Time
	running map[string]*replacement
	// done contains the finished replacements in the order of their ends.
	done    []*replacement
	sizes   map[string][]sample // by group
	leaders []leadership
	// changed contains the last change of each group by an operator.
	changed map[string]*nstancev1.JournalEvent
	// begins is the time of the oldest event that was read.
	begins time.Time
	forgot time.Time
}

// replacement is the replacement of one instance. It ends when the new instance is healthy. A time that is not known is
// zero.
type replacement struct {
	Shard, Group, Cause, Old, New string
	// failed is the first sign that the old instance failed. It is zero if the old instance is still good.
	failed, creating, created, registers, registered, healthy time.Time
}

// Began returns when the replacement began: when the old instance failed, and otherwise when the leader asked the
// provider for the new instance.
func (r *replacement) Began() time.Time {
	if r.failed.IsZero() {
		return r.creating
	}
	return r.failed
}

// Took returns the duration of a finished replacement, and otherwise 0.
func (r *replacement) Took() time.Duration {
	if r.healthy.IsZero() {
		return 0
	}
	return r.healthy.Sub(r.Began())
}

// Doing says what an unfinished replacement waits for.
func (r *replacement) Doing() string {
	switch {
	case r.created.IsZero():
		return "is created"
	case r.registered.IsZero():
		return "boots"
	}
	return "is not healthy yet"
}

// stageNames are the stages of a replacement, with the names that the metrics have.
var stageNames = []string{"decide", "create", "boot", "register", "healthy"}

// stages returns the durations of the stages in the order of stageNames. A duration that is not known is negative. An
// agent may register before the answer of the create call is recorded. The stage between these two has the duration 0.
func (r *replacement) stages() (took [5]time.Duration) {
	times := [][2]time.Time{{r.failed, r.creating}, {r.creating, r.created}, {r.created, r.registers},
		{r.registers, r.registered}, {r.registered, r.healthy}}
	for i, t := range times {
		if took[i] = -1; !t[0].IsZero() && !t[1].IsZero() {
			took[i] = max(0, t[1].Sub(t[0]))
		}
	}
	return took
}

// sample counts the instances of a group from a time on.
type sample struct {
	at                       time.Time
	desired, actual, healthy uint32
}

// leadership is a term of a leader. If the journal lacks an end of the term, ended is zero.
type leadership struct {
	term           uint64
	server         string
	started, ended time.Time
	why            string // why it ended
}

// add takes the next event of the journal of a shard.
func (h *history) add(shard string, e *nstancev1.JournalEvent) {
	if h.failed == nil {
		h.failed, h.running, h.sizes = map[string]time.Time{}, map[string]*replacement{}, map[string][]sample{}
		h.changed = map[string]*nstancev1.JournalEvent{}
	}
	id, at := e.GetInstanceId(), fleet.Time(e.GetAt())
	if h.begins.IsZero() || at.Before(h.begins) {
		h.begins = at
	}
	if at.Sub(h.forgot) > time.Minute {
		h.forget(at)
	}
	running := h.running[id]
	switch kind := record.EventKind(e.GetKind()); kind {
	case record.EventInstanceLost, record.EventInstanceUnhealthy:
		if _, known := h.failed[id]; !known {
			h.failed[id] = at
		}
	case record.EventInstanceCreating:
		if old := e.GetReplaces(); old != "" {
			h.running[id] = &replacement{Shard: shard, Group: e.GetGroup(), Cause: e.GetCause(), Old: old, New: id,
				failed: h.failed[old], creating: at}
			delete(h.failed, old)
		}
	case record.EventInstanceCreated:
		if running != nil {
			running.created = at
		}
	case record.EventInstanceRegistered:
		if running != nil {
			running.registered = at
			running.registers = at.Add(-time.Duration(e.GetTookSeconds() * float64(time.Second)))
		}
	case record.EventInstanceHealthy:
		delete(h.failed, id)
		if running != nil {
			running.healthy = at
			h.done = append(h.done, running)
			delete(h.running, id)
		}
	case record.EventInstanceDeleted:
		delete(h.running, id)
	case record.EventGroupSize:
		s := e.GetSize()
		h.sizes[e.GetGroup()] = append(h.sizes[e.GetGroup()], sample{at, s.GetDesired(), s.GetActual(),
			s.GetHealthy()})
	case record.EventGroupChanged, record.EventGroupDeleted:
		h.changed[e.GetGroup()] = e
	case record.EventLeaderStarted, record.EventLeaderEnded:
		h.addLeader(e, kind == record.EventLeaderStarted)
	}
}

func (h *history) addLeader(e *nstancev1.JournalEvent, started bool) {
	at := fleet.Time(e.GetAt())
	if started {
		l := leadership{term: e.GetTerm(), started: at}
		_, _ = fmt.Sscanf(e.GetMessage(), "server %s", &l.server) // empty if the message has another form
		if n := len(l.server); n > 0 && l.server[n-1] == ',' {
			l.server = l.server[:n-1]
		}
		h.leaders = append(h.leaders, l)
		return
	}
	if n := len(h.leaders); n > 0 && h.leaders[n-1].term == e.GetTerm() {
		h.leaders[n-1].ended, h.leaders[n-1].why = at, e.GetMessage()
	}
}

// forget drops what is older than keepTime. Of the sizes and leaders, it keeps the last one before that time, because
// that one was still true then.
func (h *history) forget(now time.Time) {
	h.forgot = now
	before, old := now.Add(-keepTime), now.Add(-runningTime)
	h.done = slices.DeleteFunc(h.done, func(r *replacement) bool { return r.healthy.Before(before) })
	maps.DeleteFunc(h.failed, func(_ string, at time.Time) bool { return at.Before(old.Add(-day)) })
	maps.DeleteFunc(h.running, func(_ string, r *replacement) bool { return r.creating.Before(old) })
	for group, sizes := range h.sizes {
		n, _ := slices.BinarySearchFunc(sizes, before, func(s sample, t time.Time) int { return s.at.Compare(t) })
		h.sizes[group] = slices.Delete(sizes, 0, max(0, n-1))
	}
	n, _ := slices.BinarySearchFunc(h.leaders, before, func(l leadership, t time.Time) int {
		return l.started.Compare(t)
	})
	h.leaders = slices.Delete(h.leaders, 0, max(0, n-1))
	if h.begins.Before(before) && !h.begins.IsZero() {
		h.begins = before
	}
}

// replacements returns the finished replacements of a group since a time, or those of all groups if group is empty. The
// newest is the first.
func (h *history) replacements(group string, since time.Time) (found []*replacement) {
	for _, r := range slices.Backward(h.done) {
		if r.healthy.Before(since) {
			break
		}
		if group == "" || group == r.Group {
			found = append(found, r)
		}
	}
	return found
}

// underWay returns copies of the unfinished replacements of a group, the newest first.
func (h *history) underWay(group string, now time.Time) (found []*replacement) {
	for _, r := range h.running {
		if r.Group == group && now.Sub(r.creating) < runningTime {
			unfinished := *r
			found = append(found, &unfinished)
		}
	}
	slices.SortFunc(found, func(a, b *replacement) int {
		return cmp.Or(b.creating.Compare(a.creating), cmp.Compare(a.New, b.New))
	})
	return found
}

// statistics describe replacements.
type statistics struct {
	Count    int
	P50, P99 time.Duration
	// Unread is the number of shards whose journals were not read yet.
	Unread int
}

func newStatistics(of []*replacement) statistics {
	var took []time.Duration
	for _, r := range of {
		took = append(took, r.Took())
	}
	slices.Sort(took)
	return statistics{Count: len(took), P50: quantile(took, 50), P99: quantile(took, 99)}
}

// quantile returns the smallest duration in `sorted` that is at least as long as `percent` percent of the durations. It
// returns 0 if there are none.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*percent+99)/100-1]
}

// rolloutCauses are the causes of the replacements of a rollout.
var rolloutCauses = []string{"drift", "expired", "return_to_spot"}
