package web

import (
	"fmt"
	"slices"
	"strings"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// scalingChart plots what a group was scaled by: a picture of its sizes, and one of each metric and its target. It
// returns nothing for a group that no leader scales.
func scalingChart(h *nstancev1.GetScalingHistoryResponse, period plotPeriod, now time.Time) []chart {
	if len(h.GetPoints()) == 0 {
		return nil
	}
	if period.Length > day {
		period = plotPeriods[1] // a leader has no more than a day
	}
	s := scalingPlot{from: now.Add(-period.Length), to: now, slack: 2 * h.GetInterval().AsDuration()}
	for _, run := range fleet.ScalingRuns(h) {
		old := func(p *nstancev1.ScalingPoint) bool { return fleet.Time(p.GetAt()).Before(s.from) }
		if run = slices.DeleteFunc(run, old); len(run) > 0 {
			s.runs = append(s.runs, run)
		}
	}
	c := chart{Title: "Scaling", Unit: "last " + period.Name, Axis: period.axis(), Columns: []string{"Time", "Size",
		"Wanted"}, Legend: []segment{{Class: "actual", Name: "size"}, {Class: "wanted", Name: "wanted by the metrics"},
		{Class: "metric", Name: "metric"}, {Class: "desired", Name: "target"}},
		Note: fleet.ScalingSince(h, now, func(t time.Time) string { return stamp(t) + " UTC" })}
	c.Lanes = []lane{s.lane("instances", func(v float64) string { return fmt.Sprint(v) },
		series{"line wanted", true, func(p *nstancev1.ScalingPoint) *float64 { return new(float64(p.GetWanted())) }},
		series{"line actual", true, func(p *nstancev1.ScalingPoint) *float64 { return new(float64(p.GetSize())) }})}
	metrics := fleet.ScalingMetrics(s.runs)
	for _, m := range metrics {
		c.Columns = append(c.Columns, string(m))
		c.Lanes = append(c.Lanes, s.lane(string(m), func(v float64) string { return fleet.MetricText(string(m), v) },
			series{"line metric", false, func(p *nstancev1.ScalingPoint) *float64 {
				return m.Of(p).Value
			}},
			series{"line desired", true, func(p *nstancev1.ScalingPoint) *float64 {
				switch of := m.Of(p); {
				case of.GetTarget() == 0:
					return nil // it was no metric of the group then
				case of.GetTotal(): // what all instances can do
					return new(of.GetTarget() * float64(p.GetSize()))
				default:
					return &of.Target
				}
			}}))
	}
	c.Rows = s.rows(metrics, period.step)
	return []chart{c}
}

// scalingPlot is a history in a period. The runs are between gaps.
type scalingPlot struct {
	from, to time.Time
	slack    time.Duration // most time between two points of a run
	runs     []fleet.ScalingRun
}

// series is a line in a picture. steps means that a value holds until the next one.
type series struct {
	class string
	steps bool
	value func(*nstancev1.ScalingPoint) *float64
}

// lane draws lines in one picture.
func (s *scalingPlot) lane(name string, text func(float64) string, lines ...series) lane {
	top := 0.0
	for _, run := range s.runs {
		for _, p := range run {
			for _, line := range lines {
				if v := line.value(p); v != nil {
					top = max(top, *v)
				}
			}
		}
	}
	if top == 0 {
		top = 1
	}
	l := lane{Label: name + ", up to " + text(top)}
	for _, line := range lines {
		var b strings.Builder
		for _, run := range s.runs {
			s.draw(&b, run, line, top)
		}
		if b.Len() > 0 {
			l.Shapes = append(l.Shapes, shape{Class: line.class, Path: b.String()})
		}
	}
	return l
}

// draw adds the line of a run to a path. Where a value is unknown, the line has a gap. The last value of the newest run
// holds until now.
func (s *scalingPlot) draw(b *strings.Builder, run fleet.ScalingRun, line series, top float64) {
	drawing := false
	for i, p := range run {
		v, at := line.value(p), fleet.Time(p.GetAt())
		x := position(at, s.from, s.to)
		switch {
		case v == nil:
			drawing = false
			continue
		case !drawing:
			fmt.Fprintf(b, "M%s %s", number(x), number(plotHeight*(1-*v/top)))
		case line.steps:
			fmt.Fprintf(b, "H%sV%s", number(x), number(plotHeight*(1-*v/top)))
		default:
			fmt.Fprintf(b, "L%s %s", number(x), number(plotHeight*(1-*v/top)))
		}
		drawing = true
		switch last := i == len(run)-1; {
		case last && s.to.Sub(at) <= s.slack:
			fmt.Fprintf(b, "H%s", number(plotWidth))
		case last || line.value(run[i+1]) == nil: // so that a single point is visible
			fmt.Fprintf(b, "H%s", number(x+1))
		}
	}
}

// rows returns the table for screen readers: a row for each step of the period, each change of the size, and each gap.
func (s *scalingPlot) rows(metrics []fleet.MetricName, step time.Duration) (rows [][]string) {
	var last *nstancev1.ScalingPoint
	for n, run := range s.runs {
		if n > 0 {
			rows = append(rows, append([]string{"from " + stamp(fleet.Time(last.GetAt()).Add(s.slack/2))},
				slices.Repeat([]string{"unknown"}, 2+len(metrics))...))
		}
		for i, p := range run {
			at := fleet.Time(p.GetAt())
			if i > 0 && p.GetSize() == last.GetSize() &&
				at.Truncate(step).Equal(fleet.Time(last.GetAt()).Truncate(step)) {
				last = p
				continue
			}
			last = p
			row := []string{stamp(at), fmt.Sprint(p.GetSize()), fmt.Sprint(p.GetWanted())}
			for _, m := range metrics {
				row = append(row, m.Text(p))
			}
			rows = append(rows, row)
		}
	}
	return rows
}
