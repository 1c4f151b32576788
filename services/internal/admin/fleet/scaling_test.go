package fleet_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// TestScalingSince checks what is said about a history that is not that of a whole day.
func TestScalingSince(t *testing.T) {
	now := time.Date(2026, 5, 2, 15, 0, 0, 0, time.UTC)
	ago := func(minutes int) time.Time { return now.Add(-time.Duration(minutes) * time.Minute) }
	day := 24 * 60
	for name, test := range map[string]struct {
		points []int // minutes ago
		leader int   // since so many minutes
		want   string
	}{
		"none":           {nil, 10, ""},
		"a day":          {[]int{day - 1, day - 6, day - 11}, 2 * day, ""},
		"a new leader":   {[]int{58, 53, 48}, 58, "since 14:02, when server-1 became leader"},
		"scaling is new": {[]int{58, 53, 48}, 300, "since 14:02"},
		"it led before": {[]int{day - 1, day - 6, 58, 53}, 58,
			"with gaps, in which server-1 did not scale the group"},
		"it led for a bit": {[]int{100, 58, 53}, 58,
			"since 13:20; with gaps, in which server-1 did not scale the group"},
	} {
		h := &nstancev1.GetScalingHistoryResponse{Interval: durationpb.New(5 * time.Minute), LeaderId: "server-1",
			LeaderSince: timestamppb.New(ago(test.leader))}
		for _, p := range test.points {
			h.Points = append(h.Points, &nstancev1.ScalingPoint{At: timestamppb.New(ago(p))})
		}
		have := fleet.ScalingSince(h, now, func(t time.Time) string { return t.Format("15:04") })
		if have != test.want {
			t.Errorf("%s: %q, want %q", name, have, test.want)
		}
	}
}

// TestMetricText checks the units.
func TestMetricText(t *testing.T) {
	for want, have := range map[string]string{"78 %": fleet.MetricText("cpu", 77.9), "100": fleet.MetricText("vm", 100),
		"0.5":     fleet.MetricText("vm", 0.5),
		"50 MB/s": fleet.MetricText("network", 5e7), "0 B/s": fleet.MetricText("network", 0)} {
		if have != want {
			t.Errorf("%q, want %q", have, want)
		}
	}
}

// TestScalingInChanges checks that a dry run says who chooses the size afterwards.
func TestScalingInChanges(t *testing.T) {
	group := func(size uint32, settings string) *nstancev1.GroupStatus {
		return &nstancev1.GroupStatus{Group: "workers", Size: size, ActualSize: 6, MergedJson: settings}
	}
	scaled := group(6, `{"scaling": {"min": 2, "max": 40}}`)
	for want, change := range map[string]*nstancev1.GroupChange{
		"group workers: the leader chooses the size from now on, between 2 and 40": {Before: group(6, `{}`),
			After: scaled},
		"group workers: the leader no longer chooses the size": {Before: scaled, After: group(3, `{}`)},
		"group workers: the leader chooses the size between 2 and 4 instead of between 2 and 40": {Before: scaled,
			After: group(4, `{"scaling": {"min": 2, "max": 4}}`)},
	} {
		lines := fleet.ChangeTexts(&nstancev1.ExplainChangeResponse{Groups: []*nstancev1.GroupChange{change}})
		if !slices.Contains(lines, want) {
			t.Errorf("%q, want %q", lines, want)
		}
	}
}
