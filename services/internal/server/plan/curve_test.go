package plan

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// curve is a life of a group in a closed loop: a load over time, spread over the instances that are healthy, which tell
// their numbers, by which the group is scaled. A seed determines it.
type curve struct {
	seed   uint64
	dice   *rand.Rand
	policy *config.Scaling
	name   string // of the load
	load   func(at time.Duration) float64
	// noise is the largest share by which each number differs from the load, and lies changes what the instances tell.
	noise    float64
	lies     lie
	schedule bool // the smallest size changes every 20 minutes
	// most is the largest number that an instance can tell, as 100 % of its processor; 0: any number.
	most        float64
	report      time.Duration
	boot        [2]time.Duration // shortest and longest
	start, now  time.Time
	size, least int
	changed     time.Time
	asked       []Asked
	instances   []*instanceOnCurve
	inputs      []ScalingInput
	sizes       []int // after each of the inputs
}

type instanceOnCurve struct {
	healthy, reports time.Time // from when on, and when it reports next
	told             bool
	value            int64
	reported         time.Time
}

type lie string

const (
	honest    lie = "honest"
	frozen    lie = "frozen"    // since the middle of the run
	zero      lie = "zero"      // from the middle on
	wild      lie = "wild"      // from the middle on, some numbers are as large as the leader accepts
	someQuiet lie = "some gone" // from the middle on, a third of the instances tells nothing
	allQuiet  lie = "all gone"
)

const onCurve = 4 * time.Hour

// newCurve draws a curve.
func newCurve(seed uint64) *curve {
	d := rand.New(rand.NewPCG(seed, 25))
	pick := func(all ...int) int { return all[d.IntN(len(all))] }
	minutes := func(all ...int) time.Duration { return time.Duration(pick(all...)) * time.Minute }
	c := &curve{seed: seed, dice: d, start: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		report: []time.Duration{5 * time.Second, 30 * time.Second, time.Minute}[d.IntN(3)], lies: honest}
	least, down := 1+d.IntN(4), config.Duration(minutes(0, 1, 5, 5, 5, 10))
	c.policy = &config.Scaling{Min: &least, Max: least + pick(0, 3, 20, 60, 200),
		Up:        config.ScaleUp{Stabilization: config.Duration(minutes(0, 0, 0, 1, 3))},
		Down:      config.ScaleDown{Stabilization: &down},
		Tolerance: fmt.Sprintf("%d%%", pick(10, 10, 10, 5, 20))}
	steps := []string{"100%", "100%", "50%", "25%", "75%", "1", "4", "20"}
	c.policy.Up.MaxStep, c.policy.Down.MaxStep = steps[d.IntN(len(steps))], steps[d.IntN(len(steps))]
	c.least, c.size = least, least+d.IntN(c.policy.Max-least+1)
	if shortest := []time.Duration{5 * time.Second, time.Minute, 4 * time.Minute}[d.IntN(3)]; true {
		c.boot = [2]time.Duration{shortest, min(2*shortest, 5*time.Minute)}
	}
	if d.IntN(2) == 0 {
		c.most = 100
	}
	c.drawLoad()
	switch d.IntN(3) {
	case 0:
		c.lies = []lie{frozen, zero, wild, someQuiet, allQuiet}[d.IntN(5)]
	case 1:
		c.schedule = d.IntN(3) == 0
	}
	return c
}

// target is the target of the metric of a curve.
const target = 50

// drawLoad draws how the load changes. Loads are sums over all instances, in the unit of the target.
func (c *curve) drawLoad() {
	d := c.dice
	high := target * (1 + d.Float64()*1.2*float64(c.policy.Max))
	low := high * d.Float64()
	period := time.Duration(10+d.IntN(80)) * time.Minute
	all := []struct {
		name string
		load func(at time.Duration) float64
	}{
		{"constant", func(time.Duration) float64 { return high }},
		{"step", func(at time.Duration) float64 {
			if at < onCurve/4 {
				return low
			}
			return high
		}},
		{"step down", func(at time.Duration) float64 {
			if at < onCurve/4 {
				return high
			}
			return low
		}},
		{"ramp", func(at time.Duration) float64 { return low + (high-low)*min(1, float64(at)/float64(onCurve/2)) }},
		{"sawtooth", func(at time.Duration) float64 {
			return low + (high-low)*math.Mod(float64(at), float64(period))/float64(period)
		}},
		{"waves", func(at time.Duration) float64 {
			return low + (high-low)*(1+math.Sin(2*math.Pi*float64(at)/float64(period)))/2
		}},
		{"flash crowd", func(at time.Duration) float64 {
			if at > onCurve/4 && at < onCurve/4+period/4 {
				return high
			}
			return low
		}},
	}
	chosen := all[d.IntN(len(all))]
	c.name, c.load = chosen.name, chosen.load
	if d.IntN(2) == 0 { // the whole band of the noise fits into the tolerance, whatever size the load asks for
		c.noise = 0.3 * float64(c.policy.TolerancePercent()) / 100
	}
}

// steady returns since when the load stays the same apart from noise.
func (c *curve) steady() (since time.Duration, ok bool) {
	switch c.name {
	case "constant":
		return 0, true
	case "step", "step down":
		return onCurve / 4, true
	case "ramp":
		return onCurve / 2, true
	case "flash crowd":
		return onCurve/4 + 20*time.Minute, true
	}
	return 0, false
}

func (c *curve) String() string {
	return fmt.Sprintf("seed %d: %s, noise %.3f, %s, %d to %d, boots %v, reports %v, most %.0f, up %v %s, down %v %s, "+
		"tolerance %s, schedule %t", c.seed, c.name, c.noise, c.lies, c.least, c.policy.Max, c.boot, c.report, c.most,
		c.policy.Up.Stabilization, c.policy.Up.MaxStep, c.policy.Down.Stabilization, c.policy.Down.MaxStep,
		c.policy.Tolerance, c.schedule)
}

func (c *curve) at() time.Duration { return c.now.Sub(c.start) }

// boots adds instances until there are as many as the size, or removes the newest.
func (c *curve) boots(settled bool) {
	for len(c.instances) < c.size {
		healthy := c.now
		if !settled {
			healthy = healthy.Add(c.boot[0] + time.Duration(c.dice.Float64()*float64(c.boot[1]-c.boot[0])))
		}
		c.instances = append(c.instances, &instanceOnCurve{healthy: healthy,
			reports: healthy.Add(time.Duration(c.dice.Float64() * float64(c.report)))})
	}
	c.instances = c.instances[:c.size]
}

// live plays the curve, and calls check after each choice of the size.
func (c *curve) live(check func(d ScalingDecision, before int)) {
	c.now = c.start
	c.boots(true)
	for i := range c.instances { // they have been there for long
		c.instances[i].healthy = c.start.Add(-time.Hour)
	}
	for c.at() < onCurve {
		for until := c.now.Add(ScalingEvery); c.now.Before(until); {
			c.now = c.now.Add(5 * time.Second)
			c.reportAll()
		}
		if c.schedule {
			c.least = *c.policy.Min + int(c.at()/(20*time.Minute))%2*(c.policy.Max-*c.policy.Min)/2
		}
		in := ScalingInput{Now: c.now, Since: c.start.Add(ScalingEvery), Policy: c.policy, Size: max(c.size, c.least),
			Least: c.least, ChangedAt: c.changed, Metrics: []Reading{c.reading()}, Asked: c.asked}
		before := c.size
		d := Scale(in)
		c.inputs, c.asked = append(c.inputs, in), d.Asked
		if c.size = d.Size; c.size != before {
			c.changed = c.now
			c.boots(false)
		}
		c.sizes = append(c.sizes, c.size)
		check(d, before)
	}
}

func (c *curve) reportAll() {
	healthy := 0
	for _, i := range c.instances {
		if !i.healthy.After(c.now) {
			healthy++
		}
	}
	late := c.at() > onCurve/2
	for n, i := range c.instances {
		if i.healthy.After(c.now) || i.reports.After(c.now) {
			continue
		}
		i.reports = i.reports.Add(c.report)
		each := c.load(c.at()) / float64(healthy) * (1 + c.noise*(2*c.dice.Float64()-1))
		if c.most > 0 {
			each = min(each, c.most)
		}
		switch {
		case late && (c.lies == allQuiet || c.lies == someQuiet && n%3 == 0):
			continue
		case late && c.lies == frozen && i.told:
		case late && c.lies == zero:
			i.value = 0
		case late && c.lies == wild && c.dice.IntN(3) == 0:
			i.value = 1e15
		default:
			i.value = int64(math.Ceil(each * 1000))
		}
		i.told, i.reported = true, c.now
	}
}

func (c *curve) reading() Reading {
	r := Reading{Name: "cpu", Target: target * 1000}
	for _, i := range c.instances {
		switch {
		case i.healthy.After(c.now):
			r.Unready++
		case c.now.Sub(i.healthy) < c.report+ScalingEvery:
			r.Settling++
		case i.told && c.now.Sub(i.reported) < 3*c.report:
			r.Values = append(r.Values, i.value)
		case !i.told && c.at() < 3*c.report:
			r.Settling++
		default:
			r.Missing++
		}
	}
	return r
}

// curves returns how many curves a test plays.
func curves() uint64 {
	if testing.Short() {
		return 100
	}
	return 1500
}

// TestCurves plays loads. Whatever the metrics tell, sizes stay within their limits, steps and the pause.
func TestCurves(t *testing.T) {
	for seed := range curves() {
		c := newCurve(seed)
		last := c.start.Add(-time.Hour)
		c.live(func(d ScalingDecision, before int) {
			before = max(before, c.least) // since the schedule says so
			up, down := largestStep(c.policy.Up.MaxStep, before), largestStep(c.policy.Down.MaxStep, before)
			switch {
			case c.size < c.least || c.size > c.policy.Max:
				t.Fatalf("%v\nafter %v: size %d, at least %d, at most %d", c, c.at(), c.size, c.least, c.policy.Max)
			case c.size > before+up || c.size < before-down:
				t.Fatalf("%v\nafter %v: from %d to %d at once", c, c.at(), before, c.size)
			case c.size != before && c.now.Sub(last) < scalingPause:
				t.Fatalf("%v\nafter %v: changed twice within %v", c, c.at(), c.now.Sub(last))
			case d.Why == "" || d.Problem != "" && c.size < before:
				t.Fatalf("%v\nafter %v: from %d to %d because %q, problem %q", c, c.at(), before, c.size, d.Why,
					d.Problem)
			case c.size < before && c.at() < ScalingEvery+c.policy.Down.Stabilization.D():
				t.Fatalf("%v\nafter %v: from %d to %d before a window has passed", c, c.at(), before, c.size)
			case c.lies == allQuiet && c.at() > onCurve/2+5*time.Minute && d.Problem == "":
				t.Fatalf("%v\nafter %v: no problem without any number", c, c.at())
			}
			if c.size != before {
				last = c.now
			}
		})
		if c.lies == allQuiet && c.sizes[len(c.sizes)-1] != c.sizes[len(c.sizes)/2+20] && !c.schedule {
			t.Fatalf("%v\nwithout any number: %v", c, c.sizes)
		}
	}
}

// TestCurvesSettle checks that a load that stays the same, apart from noise, ends in a size that is right for it,
// within the time that boots, reports and steps take, and that the size does not oscillate meanwhile: it changes its
// direction at most once in a stabilization window.
func TestCurvesSettle(t *testing.T) {
	played := 0
	for seed := range curves() {
		c := newCurve(seed)
		from, steady := c.steady()
		if !steady || c.lies != honest || c.schedule {
			continue
		}
		played++
		load, tolerance := c.load(onCurve), float64(c.policy.TolerancePercent())/100
		ideal := min(max(int(math.Ceil(load/target)), c.least), c.policy.Max)
		right := func() bool {
			ratio := load / float64(c.size) / target
			return c.size == ideal || 1-tolerance-c.noise <= ratio && ratio <= 1+tolerance+c.noise ||
				math.Abs(float64(c.size)-load/target) < 1+load/target*c.noise
		}
		var turned, wrong time.Time
		direction := 0
		c.live(func(_ ScalingDecision, before int) {
			if c.at() < from {
				return
			}
			if !right() {
				wrong = c.now
			}
			turn := cmp.Compare(c.size, before)
			if window := max(c.policy.Down.Stabilization.D(), minWindow); turn*direction < 0 {
				if c.now.Sub(turned) < window {
					t.Fatalf("%v\nchanges its direction at %v and %v: %v", c, turned.Sub(c.start), c.at(), c.sizes)
				}
				turned = c.now
			}
			direction = cmp.Or(turn, direction)
		})
		switch {
		case !right():
			t.Fatalf("%v\nends with %d instances, %d are right: %v", c, c.size, ideal, c.sizes)
		case wrong.Sub(c.start.Add(from)) > c.longest():
			t.Fatalf("%v\ntook until %v to settle at %d, and had %v: %v", c, wrong.Sub(c.start), ideal, c.longest(),
				c.sizes)
		}
	}
	if played < 30 {
		t.Errorf("only %d curves", played)
	}
}

// minWindow is the least time between two changes of direction, without a stabilization window: the numbers of an
// instance that has just become healthy show only then what it does.
const minWindow = time.Minute

// longest returns how long a group may take to settle. Numbers that are limited, as the share of a processor, show at
// most twice the target, so that the group can only double before the next instances have booted.
func (c *curve) longest() time.Duration {
	steps := func(text string, from, to int) (n int) {
		for size := from; size != to; n++ {
			if step := largestStep(text, size); size < to {
				size = min(to, size+step)
			} else {
				size = max(to, size-step)
			}
		}
		return n
	}
	round := c.boot[1] + c.report + 3*ScalingEvery
	up := time.Duration(steps(c.policy.Up.MaxStep, *c.policy.Min, c.policy.Max)) * ScalingEvery
	if c.most > 0 {
		up += time.Duration(math.Ceil(math.Log2(float64(c.policy.Max)/float64(*c.policy.Min)))+1) * round
	}
	down := time.Duration(steps(c.policy.Down.MaxStep, c.policy.Max, *c.policy.Min)) * ScalingEvery
	return up + down + 2*round + 2*(c.policy.Up.Stabilization.D()+c.policy.Down.Stabilization.D()) + 2*ScalingEvery
}
