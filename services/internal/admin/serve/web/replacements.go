package web

import (
	"maps"
	"slices"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

const (
	// statisticsTime is the period of the statistics of replacements.
	statisticsTime = 24 * time.Hour
	// paceTime is the period for the estimate of a rollout's end. The estimate counts the replacements of the last 15
	// minutes.
	paceTime = 15 * time.Minute
)

// replacements reads the events of a journal and measures how long replacements take. The zero value is ready for use.
type replacements struct {
	// failed maps the ID of an instance to the time at which the instance was lost or became unhealthy. running
	// contains the unfinished replacements, by the ID of the new instance.
	failed  map[string]time.Time
	running map[string]replacement
	done    []replacement
}

// replacement is the replacement of one instance. It begins when the old instance fails. If the old instance is still
// good, it begins when the leader asks the provider for the new instance. It ends when the new instance is healthy.
type replacement struct {
	group      string
	began, end time.Time
}

// add takes the next event of the journal.
func (r *replacements) add(e *nstancev1.JournalEvent) {
	if r.failed == nil {
		r.failed, r.running = map[string]time.Time{}, map[string]replacement{}
	}
	id, at := e.GetInstanceId(), fleet.Time(e.GetAt())
	switch e.GetKind() {
	case "instance_lost", "instance_unhealthy":
		if _, known := r.failed[id]; !known {
			r.failed[id] = at
		}
	case "instance_creating":
		if e.GetReplaces() == "" {
			return
		}
		began, ok := r.failed[e.GetReplaces()]
		if !ok {
			began = at
		}
		delete(r.failed, e.GetReplaces())
		r.running[id] = replacement{group: e.GetGroup(), began: began}
	case "instance_healthy":
		delete(r.failed, id)
		if done, ok := r.running[id]; ok {
			done.end = at
			r.done = append(r.done, done)
			delete(r.running, id)
		}
	case "instance_deleted":
		delete(r.running, id)
		r.forget(at)
	}
}

// forget drops what is older than the period of the statistics.
func (r *replacements) forget(now time.Time) {
	before := now.Add(-statisticsTime)
	r.done = slices.DeleteFunc(r.done, func(d replacement) bool { return d.end.Before(before) })
	for id, at := range r.failed {
		if at.Before(before) {
			delete(r.failed, id)
		}
	}
	// If a leader died, the journal may lack the event that ends a replacement. So unfinished replacements are dropped,
	// too, when they are old.
	maps.DeleteFunc(r.running, func(_ string, d replacement) bool { return d.began.Before(before) })
}

// statistics describe the replacements of a period.
type statistics struct {
	Count    int
	P50, P99 time.Duration
	// Pace is the average time between the ends of consecutive recent replacements. It is zero if fewer than two
	// replacements ended recently.
	Pace time.Duration
}

func (r *replacements) statistics(group string, now time.Time) statistics {
	r.forget(now)
	var took []time.Duration
	var recent []time.Time
	for _, d := range r.done {
		if group != "" && d.group != group {
			continue
		}
		took = append(took, d.end.Sub(d.began))
		if now.Sub(d.end) < paceTime {
			recent = append(recent, d.end)
		}
	}
	s := statistics{Count: len(took)}
	if s.Count == 0 {
		return s
	}
	slices.Sort(took)
	s.P50, s.P99 = quantile(took, 50), quantile(took, 99)
	if len(recent) > 1 {
		slices.SortFunc(recent, time.Time.Compare)
		s.Pace = recent[len(recent)-1].Sub(recent[0]) / time.Duration(len(recent)-1)
	}
	return s
}

// quantile returns the smallest duration in `sorted` that is at least as long as `percent` percent of the durations.
func quantile(sorted []time.Duration, percent int) time.Duration {
	return sorted[(len(sorted)*percent+99)/100-1]
}
