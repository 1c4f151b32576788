package plan

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// hpaSeries and the types below are the input of the program tests/tools/hpa.
type hpaSeries struct {
	Min, Max  int
	Tolerance float64
	Up, Down  hpaLimits
	Targets   []int64
	Steps     []hpaStep
}

type hpaLimits struct {
	Window         int
	Percent, Count int
}

type hpaStep struct {
	Size, Ready, Unready int
	Values               [][]int64
	Totals               map[int]int64
	Failed               []int
}

func limitsOf(window time.Duration, step string) hpaLimits {
	l := hpaLimits{Window: int(window.Seconds())}
	text, percent := strings.CutSuffix(step, "%")
	n, _ := strconv.Atoi(text)
	if percent {
		l.Percent = n
	} else {
		l.Count = n
	}
	return l
}

// seriesOf returns what a Horizontal Pod Autoscaler would have seen.
func seriesOf(inputs []ScalingInput) hpaSeries {
	p := inputs[0].Policy
	s := hpaSeries{Min: *p.Min, Max: p.Max, Tolerance: float64(p.TolerancePercent()) / 100,
		Up:   limitsOf(p.Up.Stabilization.D(), p.Up.MaxStep),
		Down: limitsOf(p.Down.Stabilization.D(), p.Down.MaxStep)}
	for _, r := range inputs[0].Metrics {
		s.Targets = append(s.Targets, r.Target)
	}
	for _, in := range inputs {
		step := hpaStep{Size: in.Size, Values: make([][]int64, len(in.Metrics)), Totals: map[int]int64{}}
		for i, r := range in.Metrics {
			if r.Total {
				step.Totals[i] = r.Values[0]
			} else {
				step.Ready, step.Unready = len(r.Values)+r.Missing+r.Settling, r.Unready
				step.Values[i] = r.Values
			}
			if r.Problem != "" || r.Missing > len(r.Values) { // Kubernetes has no rule 76
				step.Failed = append(step.Failed, i)
			}
		}
		s.Steps = append(s.Steps, step)
	}
	return s
}

// hpa returns the sizes that the controller of Kubernetes chooses for each series.
func hpa(t *testing.T, all []hpaSeries) (sizes [][]int) {
	t.Helper()
	tool := exec.CommandContext(t.Context(), "../../../../scripts/tool.sh", "hpa")
	tool.Stderr = t.Output()
	path, err := tool.Output()
	if err != nil {
		t.Fatal(err)
	}
	var in bytes.Buffer
	for _, s := range all {
		if err := json.NewEncoder(&in).Encode(s); err != nil {
			t.Fatal(err)
		}
	}
	play := exec.CommandContext(t.Context(), strings.TrimSpace(string(path)))
	play.Stdin, play.Stderr = &in, t.Output()
	out, err := play.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<26)
	for range all {
		var one []int
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &one) != nil {
			t.Fatalf("the program tells the sizes of %d series", len(sizes))
		}
		sizes = append(sizes, one)
	}
	return sizes
}

// randomSeries returns choices for readings that have nothing to do with each other, with one to three metrics.
func randomSeries(seed uint64) (inputs []ScalingInput, sizes []int) {
	d := rand.New(rand.NewPCG(seed, 26))
	c := newCurve(seed)
	now := c.start
	size, asked := c.size, []Asked(nil)
	var targets []int64
	total := d.IntN(2) == 0 // the second and the third
	for range 1 + d.IntN(3) {
		targets = append(targets, int64(1+d.IntN(200000)))
	}
	for range 40 {
		now = now.Add(ScalingEvery)
		in := ScalingInput{Now: now, Since: c.start.Add(ScalingEvery), Policy: c.policy, Size: size,
			Least: *c.policy.Min, Asked: asked}
		unready := d.IntN(2) * d.IntN(size+1)
		ready := size - unready
		level := math.Exp(2 * d.NormFloat64())
		if d.IntN(3) == 0 {
			level = 1
		}
		for i, target := range targets {
			r := Reading{Name: fmt.Sprint(i), Target: target, Unready: unready, Missing: d.IntN(2) * d.IntN(ready+1)}
			r.Settling = d.IntN(2) * d.IntN(r.Missing+1)
			r.Missing -= r.Settling
			for range ready - r.Missing - r.Settling {
				value := float64(target) * level
				if d.IntN(2) == 0 {
					value *= 0.8 + 0.4*d.Float64()
				}
				r.Values = append(r.Values, int64(value))
			}
			if i > 0 && total {
				r = Reading{Name: r.Name, Target: target, Total: true,
					Values: []int64{int64(float64(target) * level * float64(size))}}
			}
			if d.IntN(10) == 0 {
				r.Problem = "no answer"
			}
			in.Metrics = append(in.Metrics, r)
		}
		out := Scale(in)
		asked, size = out.Asked, out.Size
		inputs, sizes = append(inputs, in), append(sizes, size)
	}
	return inputs, sizes
}

// TestScaleAsKubernetes plays curves and random readings to the Horizontal Pod Autoscaler's own controller, which must
// choose the same sizes. The series avoid what differs by intent: rule 76, sizes outside of their limits, numbers that
// overflow the 32 bits of Kubernetes, and steps of 10 %, of which Kubernetes computes that 50 may grow to 56.
func TestScaleAsKubernetes(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the controller of Kubernetes")
	}
	var all []hpaSeries
	var want [][]int
	var names []string
	add := func(name string, inputs []ScalingInput, sizes []int) {
		all, want, names = append(all, seriesOf(inputs)), append(want, sizes), append(names, name)
	}
	for seed := range uint64(1500) {
		inputs, sizes := randomSeries(seed)
		add(fmt.Sprintf("random %d", seed), inputs, sizes)
	}
	for seed := range uint64(80) {
		if c := newCurve(seed); !c.schedule && c.lies != wild && c.policy.Max < 70 {
			c.live(func(ScalingDecision, int) {})
			add(c.String(), c.inputs, c.sizes)
		}
	}
	choices, different := 0, 0
	for i, sizes := range hpa(t, all) {
		choices += len(sizes)
		if at := firstDifference(sizes, want[i]); at >= 0 {
			different++
			step, _ := json.Marshal(all[i].Steps[at])
			t.Errorf("%s: %+v %+v to %d, tolerance %v, choice %d of %d: Kubernetes chooses %d, we %d, for %s and %v",
				names[i], all[i].Up, all[i].Down, all[i].Max, all[i].Tolerance, at, len(sizes), sizes[at], want[i][at],
				step, all[i].Targets)
		}
		if different == 5 {
			break
		}
	}
	t.Logf("%d series, %d choices of a size", len(all), choices)
}

func firstDifference(a, b []int) int {
	for i := range b {
		if i >= len(a) || a[i] != b[i] {
			return i
		}
	}
	return -1
}
