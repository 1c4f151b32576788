package web

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// TestVerdict checks the sentences on top of the page of a fleet.
func TestVerdict(t *testing.T) {
	fine := func(shard string, groups ...*nstancev1.GroupStatus) shardView {
		return shardView{Shard: shard, Groups: groups, Status: &nstancev1.GetShardStatusResponse{HeirId: "heir"}}
	}
	group := func(size, actual, healthy uint32) *nstancev1.GroupStatus {
		return &nstancev1.GroupStatus{Group: "workers", Size: size, ActualSize: actual, Healthy: healthy}
	}
	blocked := group(6, 3, 3)
	blocked.BlockedReason = "no capacity in us-west-2a"
	halted := group(4, 4, 4)
	halted.Halted = &nstancev1.GroupHalt{Message: "the rollout is halted: 3 failed"}
	rolling := group(4, 4, 4)
	rolling.Outdated = 2
	var many []*nstancev1.GroupStatus
	for range maxSentences + 2 {
		many = append(many, group(4, 3, 3))
	}
	for _, test := range []struct {
		name   string
		shards []shardView
		want   []string // the first tone, then the sentences
	}{
		{"fine", []shardView{fine("a", group(4, 4, 4)), fine("b", rolling)},
			[]string{"good", "All 2 shards are fine. 2 replacements in 24 h."}},
		{"one shard", []shardView{fine("a")}, []string{"good", "Shard a is fine. 2 replacements in 24 h."}},
		{"lacks", []shardView{fine("a", blocked)}, []string{"bad", "workers in a: lacks 3: no capacity in us-west-2a"}},
		{"halted", []shardView{fine("a", halted)}, []string{"bad", "workers in a: the rollout is halted: 3 failed"}},
		{"sick", []shardView{fine("a", group(4, 4, 1))}, []string{"warn", "workers in a: 3 not healthy"}},
		{"no leader", []shardView{{Shard: "a", Err: &problem{Message: "refused"}}, fine("b")},
			[]string{"bad", "a does not answer: refused"}},
		{"no heir", []shardView{{Shard: "a", Status: &nstancev1.GetShardStatusResponse{}}},
			[]string{"warn", "a has no heir: no standby takes over if its leader fails"}},
		{"no heir yet", []shardView{{Shard: "a", Status: &nstancev1.GetShardStatusResponse{
			StandbyIds: []string{"b"}}}},
			[]string{"warn", "a has a standby, but no heir yet: if its leader fails now, the standby waits for the " +
				"end of the lease"}},
		{"a restart for a configuration", []shardView{{Shard: "a", Status: &nstancev1.GetShardStatusResponse{
			ConfigWaits: "b has not restarted"}}},
			[]string{"warn", "a restarts its servers for a new configuration: b has not restarted"}},
		{"many", []shardView{fine("a", many...)}, append(append([]string{"bad"},
			slices.Repeat([]string{"workers in a: lacks 1"}, maxSentences)...), "2 more, in the lists below")},
	} {
		v := fleetView{Shards: test.shards}
		for _, s := range test.shards {
			for _, g := range s.Groups {
				row := groupRow{Shard: s.Shard, GroupStatus: g}
				row.Tone, row.Says = groupState(g)
				v.Groups = append(v.Groups, row)
			}
		}
		says := v.judge(statistics{Count: 2})
		got := []string{says.Tone}
		for _, s := range says.Sentences {
			got = append(got, strings.TrimPrefix(s.Subject+" "+s.Text, " "))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// TestList checks which instances the list of a group has, and in which order.
func TestList(t *testing.T) {
	at := func(hour int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(3600*hour, 0)) }
	instances := []*nstancev1.InstanceStatus{
		{InstanceId: "a", Health: "healthy", Ipv4: "10.0.0.9", CreatedAt: at(3)},
		{InstanceId: "b", Health: "healthy", InfraDrift: true, Ipv4: "10.0.0.8", CreatedAt: at(1)},
		{InstanceId: "c", Health: "silent", HealthMessage: "No report", CreatedAt: at(2)},
		{InstanceId: "d", Health: "healthy", State: "deleting", CreatedAt: at(4), OnDemand: true},
	}
	for want, f := range map[string]listFilter{
		"cdba": {}, "c": {Search: "no REP"}, "b": {Class: "outdated"}, "d": {Class: "draining"},
		"ba":   {Class: "healthy"},
		"bcad": {Sort: "created"}, "dacb": {Sort: "-created"}, "abcd": {Sort: "instance"}, "": {Search: "nothing"},
	} {
		v := groupView{List: f}
		v.count("s", instances, "")
		got := ""
		for _, r := range v.Instances {
			got += r.GetInstanceId()
		}
		if got != want || v.Total != 4 || v.Outdated != 1 || v.OnDemand != 1 || v.Found != len(want) {
			t.Errorf("%+v: %s of %d, want %s", f, got, v.Total, want)
		}
	}
}

// TestSquares checks that every instance of a large group is in the picture once.
func TestSquares(t *testing.T) {
	for _, n := range []int{1, maxSquares, maxSquares + 1, 5000, 1234} {
		var instances []*nstancev1.InstanceStatus
		for i := range n {
			health := "healthy"
			if i%100 == 7 {
				health = "silent"
			}
			instances = append(instances, &nstancev1.InstanceStatus{InstanceId: fmt.Sprint(i), Health: health,
				InfraDrift: i%3 == 0})
		}
		var v groupView
		v.count("s", instances, "")
		taken := map[[2]int]bool{}
		drawn := len(v.Squares)
		for _, s := range v.More {
			for x := int(s.X); x < int(s.X+s.Width); x++ {
				for y := int(s.Y); y < int(s.Y+s.Height); y++ {
					if taken[[2]int{x, y}] || x >= squaresPerLine || y >= v.Lines {
						t.Fatalf("%d instances: a square at %d, %d", n, x, y)
					}
					taken[[2]int{x, y}] = true
					drawn++
				}
			}
		}
		if drawn != n || len(v.Squares) > maxSquares || len(v.More) > 10 {
			t.Errorf("%d instances: %d are drawn, %d with a square each, %d shapes", n, drawn, len(v.Squares),
				len(v.More))
		}
	}
}

// TestSizePlot checks the path of a plot, which begins with the last size before the period.
func TestSizePlot(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	ago := func(minutes int, healthy uint32) sample {
		return sample{now.Add(-time.Duration(minutes) * time.Minute), 4, 4, healthy}
	}
	shapes, top := sizeShapes([]sample{ago(300, 1), ago(90, 4), ago(30, 2), ago(0, 4)}, now.Add(-time.Hour), now,
		plotColumns)
	if want := "M0 0H300V50H600V0H600"; shapes[1].Path != want || top != 4 {
		t.Errorf("%s up to %d, want %s", shapes[1].Path, top, want)
	}
	var week []sample
	for i := range 7 * 24 * 60 {
		week = append(week, ago(7*24*60-i, uint32(i%5)))
	}
	shapes, _ = sizeShapes(week, now.Add(-keepTime), now, plotColumns)
	for _, s := range shapes {
		if len(s.Path) > 8<<10 {
			t.Errorf("a path of a week has %d bytes", len(s.Path))
		}
	}
	c := sizeChart([]sample{ago(30, 2), ago(0, 4)}, plotPeriods[0], now)
	if len(c.Rows) != 2 || c.Rows[0][3] != "2" || c.Rows[1][3] != "4" {
		t.Errorf("%q", c.Rows)
	}
}
