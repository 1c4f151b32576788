package web

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// TestScalingPlot checks that a plot of what a group is scaled by has gaps where nothing is known, and that its table
// says the same.
func TestScalingPlot(t *testing.T) {
	now := time.Date(2026, 5, 2, 15, 0, 0, 0, time.UTC)
	h := &nstancev1.GetScalingHistoryResponse{Interval: durationpb.New(5 * time.Minute), LeaderId: "server-1",
		LeaderSince: timestamppb.New(now.Add(-30 * time.Minute))}
	point := func(ago time.Duration, size uint32, cpu float64) {
		m := &nstancev1.ScalingMetric{Name: "cpu", Target: 50}
		if cpu >= 0 {
			m.Value = &cpu
		}
		h.Points = append(h.Points, &nstancev1.ScalingPoint{At: timestamppb.New(now.Add(-ago)), Size: size,
			Wanted: size, Metrics: []*nstancev1.ScalingMetric{m}})
	}
	point(55*time.Minute, 2, 100)
	point(30*time.Minute, 4, 50)
	point(25*time.Minute, 4, -1)
	point(20*time.Minute, 4, 25)
	charts := scalingChart(h, plotPeriods[0], now)
	if len(charts) != 1 || len(charts[0].Lanes) != 2 {
		t.Fatalf("%+v", charts)
	}
	c := charts[0]
	if want := "since 2026-05-02 14:05:00 UTC; with gaps, in which server-1 did not scale the group"; c.Note != want {
		t.Errorf("%q", c.Note)
	}
	size, cpu := c.Lanes[0].Shapes[1].Path, c.Lanes[1].Shapes[0].Path
	if size != "M50 50H51M300 0H350V0H400V0H401" || cpu != "M50 0H51M300 50H301M400 75H401" {
		t.Errorf("size %s, cpu %s", size, cpu)
	}
	var rows []string
	for _, row := range c.Rows {
		rows = append(rows, strings.Join(row, " "))
	}
	want := `2026-05-02 14:05:00 2 2 100 % of 50 %
from 2026-05-02 14:10:00 unknown unknown unknown
2026-05-02 14:30:00 4 4 50 % of 50 %
2026-05-02 14:35:00 4 4 unknown
2026-05-02 14:40:00 4 4 25 % of 50 %`
	if have := strings.Join(rows, "\n"); have != want {
		t.Errorf("%s", have)
	}
	if charts := scalingChart(nil, plotPeriods[0], now); charts != nil {
		t.Errorf("a group without scaling: %+v", charts)
	}
	if c := scalingChart(h, plotPeriods[2], now)[0]; c.Unit != "last 24 h" {
		t.Errorf("in a week: %s", c.Unit)
	}
}
