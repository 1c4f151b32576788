package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// policy returns a scaling policy with the defaults of the configuration.
func policy(change func(*config.Scaling)) *config.Scaling {
	least, down := 1, config.Duration(5*time.Minute)
	p := &config.Scaling{Min: &least, Max: 100,
		Metrics: []config.ScalingMetric{{CPU: &config.ScalingShare{Target: "50%"}}},
		Up:      config.ScaleUp{MaxStep: "100%"}, Down: config.ScaleDown{Stabilization: &down, MaxStep: "25%"},
		Tolerance: "10%"}
	if change != nil {
		change(p)
	}
	return p
}

// percents returns shares in thousandths of a percent.
func percents(values ...float64) (out []int64) {
	for _, v := range values {
		out = append(out, int64(v*1000))
	}
	return out
}

func TestScale(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	same := func(n int, percent float64) []int64 { return slices.Repeat(percents(percent), n) }
	reading := func(values []int64) Reading { return Reading{Name: "cpu", Target: 50000, Values: values} }
	none := func(p *config.Scaling) { *p.Min = 0 }
	waits := Reading{Name: "cpu", Target: 50000}
	waiting := func(value int64) Reading {
		return Reading{Name: "waiting", Target: 30000, Total: true, Values: []int64{value}}
	}
	for _, test := range []struct {
		name    string
		size    int
		policy  func(*config.Scaling)
		metrics []Reading
		asked   []Asked
		since   time.Duration // before now
		want    int
		limited string
		why     string
	}{
		{name: "rule 73: in proportion", size: 4, metrics: []Reading{reading(same(4, 80))}, want: 7,
			why: "cpu is at 80 %, with a target of 50 %, which asks for 7 (rule 73)"},
		{name: "rule 73: within the tolerance", size: 4, metrics: []Reading{reading(same(4, 54))}, want: 4},
		{name: "rule 73: another tolerance", size: 4, policy: func(p *config.Scaling) { p.Tolerance = "1%" },
			metrics: []Reading{reading(same(4, 54))}, want: 5},
		{name: "rule 73: the largest wins", size: 4, metrics: []Reading{reading(same(4, 10)),
			{Name: "memory", Target: 50000, Values: same(4, 75)}}, want: 6,
			why: "memory is at 75 %, with a target of 50 %"},
		{name: "rule 73: booting instances count as idle for growing", size: 6, metrics: []Reading{
			{Name: "cpu", Target: 50000, Values: same(4, 95), Unready: 2}}, want: 8},
		{name: "rule 73: booting instances do not count for shrinking", size: 6, metrics: []Reading{
			{Name: "cpu", Target: 50000, Values: same(4, 48), Unready: 2}}, want: 6},
		{name: "rule 73: enough instances boot already", size: 8, metrics: []Reading{
			{Name: "cpu", Target: 50000, Values: same(4, 80), Unready: 4}}, want: 8},
		{name: "rule 73: an unknown value is idle for growing", size: 4, metrics: []Reading{
			{Name: "cpu", Target: 50000, Values: same(3, 60), Missing: 1}}, want: 4},
		{name: "rule 73: an unknown value is at the target for shrinking", size: 4, metrics: []Reading{
			{Name: "cpu", Target: 50000, Values: same(3, 20), Missing: 1}}, want: 3},
		{name: "rule 73: a total", size: 3, metrics: []Reading{waiting(120000)}, want: 4,
			why: "waiting is 120 in total, with a target of 30 for each, which asks for 4 (rule 73)"},
		{name: "rule 73: a total within the tolerance", size: 10, metrics: []Reading{waiting(325000)}, want: 10},
		{name: "rule 73: a total, and shares", size: 4, metrics: []Reading{reading(same(4, 75)), waiting(10000)},
			want: 6, why: "cpu is at 75 %"},
		{name: "rule 73: from zero", policy: none, metrics: []Reading{waits, waiting(1)}, want: 1,
			why: "waiting is 0.001 in total"},
		{name: "rule 75: from zero", policy: none, metrics: []Reading{waiting(120000)}, want: 1,
			limited: "up.max_step"},
		{name: "rule 75: a count from zero", policy: func(p *config.Scaling) { none(p); p.Up.MaxStep = "3" },
			metrics: []Reading{waiting(120000)}, want: 3,
			limited: "up.max_step"},
		{name: "rule 73: stays at zero", policy: none, metrics: []Reading{waiting(0)}, want: 0},
		{name: "rule 73: to zero", size: 1, policy: none, metrics: []Reading{waiting(0)}, want: 0,
			why: "waiting is 0 in total, with a target of 30 for each, which asks for 0"},
		{name: "rule 76: from zero without an answer", policy: none, metrics: []Reading{waits, {Name: "waiting",
			Target: 30000, Total: true, Problem: "no answer"}}, want: 0, why: "no answer, so that the size stays"},
		{name: "rule 73: an unknown value beside others at the target", size: 4, metrics: []Reading{
			{Name: "cpu", Target: 50000, Values: same(3, 50), Missing: 1}}, want: 4},
		{name: "rule 73: an instance that settles is at the target for shrinking", size: 5, metrics: []Reading{
			{Name: "cpu", Target: 50000, Values: same(4, 44), Settling: 1}}, want: 5},
		{name: "rule 74: the largest of the window", size: 8, metrics: []Reading{reading(same(8, 10))},
			asked: []Asked{{now.Add(-time.Minute), 7}}, want: 7, limited: "down.stabilization"},
		{name: "rule 74: out of the window", size: 8, metrics: []Reading{reading(same(8, 10))},
			asked: []Asked{{now.Add(-5 * time.Minute), 7}}, want: 6, limited: "down.max_step"},
		{name: "rule 74: a window for growing", size: 4,
			policy:  func(p *config.Scaling) { p.Up.Stabilization = config.Duration(time.Minute) },
			metrics: []Reading{reading(same(4, 100))}, asked: []Asked{{now.Add(-30 * time.Second), 5}}, want: 5,
			limited: "up.stabilization"},
		{name: "rule 74: a new leader shrinks nothing", size: 8, metrics: []Reading{reading(same(8, 10))},
			since: time.Minute, want: 8, limited: "down.stabilization"},
		{name: "rule 74: a new leader grows when the time up has passed", size: 8,
			policy:  func(p *config.Scaling) { p.Up.Stabilization = config.Duration(2 * time.Minute) },
			metrics: []Reading{reading(same(8, 100))}, since: time.Minute, want: 8, limited: "up.stabilization"},
		{name: "rule 74: a new leader grows", size: 8, metrics: []Reading{reading(same(8, 100))}, since: time.Minute,
			want: 16},
		{name: "rule 75: steps up", size: 3, metrics: []Reading{reading(percents(100, 200, 300))}, want: 6,
			limited: "up.max_step"},
		{name: "rule 75: a step of a count", size: 3, policy: func(p *config.Scaling) { p.Up.MaxStep = "2" },
			metrics: []Reading{reading(same(3, 200))}, want: 5, limited: "up.max_step"},
		{name: "rule 75: at least one down", size: 2, metrics: []Reading{reading(same(2, 1))}, want: 1},
		{name: "at most max", size: 60, metrics: []Reading{reading(same(60, 100))}, want: 100, limited: "max"},
		{name: "at least min", size: 4, policy: func(p *config.Scaling) { *p.Min = 4 },
			metrics: []Reading{reading(same(4, 1))}, want: 4, limited: "min"},
		{name: "rule 76: more than half is unknown", size: 5, metrics: []Reading{
			{Name: "cpu", Target: 50000, Values: same(2, 100), Missing: 3}}, want: 5,
			why: "the cpu of 3 of 5 instances is unknown, so that the size stays (rule 76)"},
		{name: "rule 76: a metric fails and the other would shrink", size: 5, metrics: []Reading{reading(same(5, 1)),
			{Name: "memory", Target: 50000, Problem: "no answer"}}, want: 5, why: "no answer, so that the size stays"},
		{name: "rule 76: a metric fails and the other grows", size: 5, metrics: []Reading{reading(same(5, 100)),
			{Name: "memory", Target: 50000, Problem: "no answer"}}, want: 10},
		{name: "rule 76: nobody is ready", size: 5, metrics: []Reading{{Name: "cpu", Target: 50000, Unready: 5}},
			want: 5,
			why:  "no instance is ready to tell its cpu, so that the size stays (rule 76)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := ScalingInput{Now: now, Since: now.Add(-max(test.since, 0)), Policy: policy(test.policy),
				Size:    test.size,
				Metrics: test.metrics, Asked: test.asked}
			if test.since == 0 {
				in.Since = now.Add(-time.Hour)
			}
			in.Least = *in.Policy.Min
			got := Scale(in)
			if got.Size != test.want || got.LimitedBy != test.limited || !strings.Contains(got.Why, test.why) {
				t.Errorf("got size %d limited by %q because %q, want %d limited by %q because %q", got.Size,
					got.LimitedBy, got.Why, test.want, test.limited, test.why)
			}
		})
	}
}

// BenchmarkScale measures the choice of the size of a group with 1,000 instances, some of which boot.
func BenchmarkScale(b *testing.B) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	in := ScalingInput{Now: now, Since: now.Add(-time.Hour), Policy: policy(nil), Size: 1000, Least: 1,
		Metrics: []Reading{{Name: "cpu", Target: 50000, Values: slices.Repeat(percents(55, 60, 65), 320), Unready: 40}}}
	in.Policy.Max = 2000
	for at := now.Add(-5 * time.Minute); at.Before(now); at = at.Add(ScalingEvery) {
		in.Asked = append(in.Asked, Asked{at, 1000})
	}
	b.ReportAllocs()
	for b.Loop() {
		Scale(in)
	}
}
