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

// NthMetric identifies a metric in the points of a history. A group may have several metrics of one name, and other
// ones at other times.
type NthMetric struct {
	Name string
	Nth  int // of this name, from 0
}

func (n NthMetric) String() string {
	if n.Nth > 0 {
		return fmt.Sprintf("%s (%d)", n.Name, n.Nth+1)
	}
	return n.Name
}

// Of returns the metric in a point. It returns an empty one if the group did not have the metric then.
func (n NthMetric) Of(p *nstancev1.ScalingPoint) *nstancev1.ScalingMetric {
	nth := n.Nth
	for _, m := range p.GetMetrics() {
		if m.GetName() == n.Name {
			if nth == 0 {
				return m
			}
			nth--
		}
	}
	return &nstancev1.ScalingMetric{}
}

// Text returns the metric's value and target in a point, such as "78 % of 60 %".
func (n NthMetric) Text(p *nstancev1.ScalingPoint) string {
	m := n.Of(p)
	if m.Value == nil {
		return "unknown"
	}
	text := MetricText(n.Name, m.GetValue()) + " of " + MetricText(n.Name, m.GetTarget())
	if m.GetTotal() {
		text += " per instance"
	}
	return text
}

// ScalingMetrics returns the metrics of all points, those of the newest point first.
func ScalingMetrics(runs []ScalingRun) (metrics []NthMetric) {
	for _, run := range slices.Backward(runs) {
		for _, p := range slices.Backward(run) {
			nth := map[string]int{}
			for _, m := range p.GetMetrics() {
				n := NthMetric{m.GetName(), nth[m.GetName()]}
				if nth[m.GetName()]++; !slices.Contains(metrics, n) {
					metrics = append(metrics, n)
				}
			}
		}
	}
	return metrics
}
