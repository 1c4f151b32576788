package journal

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/metrics"
)

// Replacement is an instance that replaced another one and became healthy. A time that is not known is zero.
type Replacement struct {
	Tenant, Group      string
	Instance, Replaces string // instance IDs
	Cause              string // why the other instance was replaced

	Lost       time.Time // first sign that the other instance failed; zero if it did not fail before it was replaced
	Creating   time.Time // start of the create call
	Created    time.Time // the answer of the create call was recorded
	Registers  time.Time // the agent's registration arrived
	Registered time.Time // it was answered
	Healthy    time.Time
}

// Step is one stage of a replacement.
type Step struct {
	Stage        metrics.Stage
	Began, Ended time.Time
}

// Took returns the duration of the step.
func (s Step) Took() time.Duration { return s.Ended.Sub(s.Began) }

// Steps returns those stages of the replacement whose times are known, in their order. An agent may register before the
// answer of the create call is recorded. The stage between these two events then has the duration 0.
func (r *Replacement) Steps() (steps []Step) {
	for _, s := range []Step{
		{metrics.StageDecide, r.Lost, r.Creating},
		{metrics.StageCreate, r.Creating, r.Created},
		{metrics.StageBoot, r.Created, r.Registers},
		{metrics.StageRegister, r.Registers, r.Registered},
		{metrics.StageHealthy, r.Registered, r.Healthy},
	} {
		if !s.Began.IsZero() && !s.Ended.IsZero() {
			if s.Ended.Before(s.Began) {
				s.Ended = s.Began
			}
			steps = append(steps, s)
		}
	}
	return steps
}

const (
	// replacementTime is the maximum duration of a replacement. A longer replacement is not measured. A replacement
	// ends when the new instance is healthy.
	replacementTime = time.Hour
	// maxReplacements is the largest number of replacements that are measured at the same time. It is also the largest
	// number of failed instances that are remembered.
	maxReplacements = 10_000
)

// Replacements finds replacements in the events of a journal. It finds a replacement only if all events of the
// replacement have the same term. The zero value is ready for use. It is not safe for concurrent use.
type Replacements struct {
	failed  map[string]failure
	running map[string]*Replacement
	pruned  time.Time
}

// failure holds the times of the first signs of an instance's failure: lost is when the leader found that the instance
// is lost, and other is when any other sign came. When the instance becomes healthy, its failure is forgotten.
type failure struct{ lost, other time.Time }

// Add adds the next event of the journal. If the event completes a replacement, Add returns the replacement.
func (r *Replacements) Add(e *record.Event) (Replacement, bool) {
	if r.failed == nil {
		r.failed, r.running = map[string]failure{}, map[string]*Replacement{}
	}
	r.prune(e.At)
	running := r.running[e.Instance]
	switch e.Kind {
	case record.EventInstanceLost, record.EventInstanceUnhealthy, record.EventInstanceNotice:
		r.fail(e)
	case record.EventInstanceCreating:
		if e.Replaces != "" && len(r.running) < maxReplacements {
			r.running[e.Instance] = &Replacement{Tenant: e.Tenant, Group: e.Group, Instance: e.Instance,
				Replaces: e.Replaces, Cause: e.Cause, Creating: e.At}
		}
	case record.EventInstancePendingDeletion, record.EventInstanceDeleted:
		delete(r.running, e.Instance)
	case record.EventInstanceCreated:
		if running != nil {
			running.Created = e.At
		}
	case record.EventInstanceRegistered:
		if running != nil {
			running.Registered = e.At
			running.Registers = e.At.Add(-time.Duration(e.TookSeconds * float64(time.Second)))
		}
	case record.EventInstanceHealthy:
		delete(r.failed, e.Instance)
		if running != nil {
			delete(r.running, e.Instance)
			running.Healthy = e.At
			running.Lost = r.failed[running.Replaces].before(running.Creating)
			return *running, true
		}
	}
	return Replacement{}, false
}

// fail records an event as a sign of an instance's failure. It keeps only the first loss and the first other sign.
func (r *Replacements) fail(e *record.Event) {
	f, known := r.failed[e.Instance]
	switch {
	case !known && len(r.failed) >= maxReplacements:
		return
	case e.Kind == record.EventInstanceLost && f.lost.IsZero():
		f.lost = e.At
	case e.Kind != record.EventInstanceLost && f.other.IsZero():
		f.other = e.At
	}
	r.failed[e.Instance] = f
}

// before returns the time at which an instance failed: when it was lost or, if that is not known, when another sign of
// failure came. creating is the start of the create call for the replacement. A loss or a sign after that time does not
// count. If none counts, before returns the zero time.
func (f failure) before(creating time.Time) time.Time {
	for _, at := range []time.Time{f.lost, f.other} {
		if !at.IsZero() && !at.After(creating) {
			return at
		}
	}
	return time.Time{}
}

// prune drops entries that are older than replacementTime, at most once per tenth of replacementTime.
func (r *Replacements) prune(now time.Time) {
	if now.Sub(r.pruned) < replacementTime/10 {
		return
	}
	r.pruned = now
	old := now.Add(-replacementTime)
	for id, f := range r.failed {
		if f.lost.Before(old) && f.other.Before(old) {
			delete(r.failed, id)
		}
	}
	for id, running := range r.running {
		if running.Creating.Before(old) {
			delete(r.running, id)
		}
	}
}
