package plan

import (
	"iter"
	"time"
)

// Schedule is when a group must be planned again even if nothing happens.
type Schedule struct {
	// NextPlan is the earliest time at which the plan may change; zero: never.
	NextPlan time.Time
	// NextIfReporting is the earliest time at which the plan may change, provided that every healthy connected instance
	// reports in time; zero: never.
	NextIfReporting time.Time
}

// with returns a copy of the schedule with the given time as a further time to plan. A zero time changes nothing.
func (s Schedule) with(at time.Time) Schedule {
	if at.IsZero() {
		return s
	}
	return Schedule{NextPlan: sooner(s.NextPlan, at), NextIfReporting: sooner(s.NextIfReporting, at)}
}

// Postpone returns a later time to plan if the plan at NextPlan would only check for overdue reports, and no report is
// overdue. ok is false if the group must be planned now. Without Postpone, a group would be planned about ten times per
// report interval, mostly to find that the report has come.
func (s Schedule) Postpone(instances iter.Seq[*Instance], settings *Settings, now time.Time) (later Schedule, ok bool) {
	if !s.NextIfReporting.IsZero() && !s.NextIfReporting.After(now) {
		return s, false
	}
	next := s.NextIfReporting
	for i := range instances {
		overdue, owes := i.reportOverdueAt(settings)
		switch {
		case !owes:
		case !overdue.After(now):
			return s, false
		default:
			next = sooner(next, overdue)
		}
	}
	if next.IsZero() {
		return s, false
	}
	return Schedule{NextPlan: next, NextIfReporting: s.NextIfReporting}, true
}

// reportOverdueAt returns when the next report of a healthy connected instance counts as missed. ok is false for an
// instance that was not healthy at its last report, is not connected, or sleeps.
func (i *Instance) reportOverdueAt(s *Settings) (overdue time.Time, ok bool) {
	if !i.Healthy || !i.Connected || i.LastReport.IsZero() || i.Rests() {
		return time.Time{}, false
	}
	return overdueAfter(i.LastReport, s.HealthInterval), true
}
