package fleet

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// MetricText returns a value of a scaling metric for people, with the unit of its target.
func MetricText(name string, value float64) string {
	switch name {
	case "cpu", "memory":
		return fmt.Sprintf("%.0f %%", value)
	case "network":
		for _, unit := range []string{"B/s", "kB/s", "MB/s"} {
			if value < 1000 {
				return fmt.Sprintf("%.3g %s", value, unit)
			}
			value /= 1000
		}
		return fmt.Sprintf("%.4g GB/s", value)
	}
	text := strconv.FormatFloat(value, 'f', 3, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// ScalingText says what a leader decided about the size of a group, why, and when the limit ends. It returns "" if no
// leader chooses the size.
func ScalingText(s *nstancev1.GroupScaling, now time.Time) string {
	text := s.GetWhy()
	if until := Time(s.GetUntil()); until.After(now) {
		what := "goes on"
		if s.GetLimitedBy() == "down.stabilization" {
			what = "shrinks"
		} else if s.GetLimitedBy() == "up.stabilization" {
			what = "grows"
		}
		text += fmt.Sprintf("; %s in %s if the metrics stay the same", what, until.Sub(now).Round(time.Second))
	}
	return text
}

// ScalingRun is a part of a history in which the leader was there, from the oldest point to the newest.
type ScalingRun []*nstancev1.ScalingPoint

// ScalingRuns divides a history at its gaps.
func ScalingRuns(h *nstancev1.GetScalingHistoryResponse) (runs []ScalingRun) {
	for i, p := range h.GetPoints() {
		if i == 0 || Time(p.GetAt()).Sub(Time(h.GetPoints()[i-1].GetAt())) > 2*h.GetInterval().AsDuration() {
			runs = append(runs, nil)
		}
		runs[len(runs)-1] = append(runs[len(runs)-1], p)
	}
	return runs
}

// ScalingSince says where a history begins and why it has gaps. It returns "" for that of a whole day. clock formats a
// time.
func ScalingSince(h *nstancev1.GetScalingHistoryResponse, now time.Time, clock func(time.Time) string) string {
	runs := ScalingRuns(h)
	if len(runs) == 0 {
		return ""
	}
	slack := 2 * h.GetInterval().AsDuration()
	led := func(at time.Time) bool { // whether the leader began then
		d := at.Sub(Time(h.GetLeaderSince()))
		return d >= 0 && d <= slack
	}
	text := ""
	if begins := Time(runs[0][0].GetAt()); now.Sub(begins) < 24*time.Hour-slack {
		text = "since " + clock(begins)
		if led(begins) {
			text += ", when " + h.GetLeaderId() + " became leader"
		}
	}
	if len(runs) > 1 {
		gap := "with gaps, in which " + h.GetLeaderId() + " did not scale the group"
		text = strings.TrimPrefix(text+"; "+gap, "; ")
	}
	return text
}

// MetricName identifies a metric in the points of a history. The metrics of a group have different names, and the group
// may have had other ones at other times.
type MetricName string

// Of returns the metric in a point. It returns an empty one if the group did not have the metric then.
func (n MetricName) Of(p *nstancev1.ScalingPoint) *nstancev1.ScalingMetric {
	for _, m := range p.GetMetrics() {
		if m.GetName() == string(n) {
			return m
		}
	}
	return &nstancev1.ScalingMetric{}
}

// Text returns the metric's value and target in a point, such as "78 % of 60 %".
func (n MetricName) Text(p *nstancev1.ScalingPoint) string {
	m := n.Of(p)
	if m.Value == nil {
		return "unknown"
	}
	text := MetricText(string(n), m.GetValue()) + " of " + MetricText(string(n), m.GetTarget())
	if m.GetTotal() {
		text += " per instance"
	}
	return text
}

// ScalingMetrics returns the names of the metrics of all points, those of the newest point first.
func ScalingMetrics(runs []ScalingRun) (names []MetricName) {
	for _, run := range slices.Backward(runs) {
		for _, p := range slices.Backward(run) {
			for _, m := range p.GetMetrics() {
				if n := MetricName(m.GetName()); !slices.Contains(names, n) {
					names = append(names, n)
				}
			}
		}
	}
	return names
}
