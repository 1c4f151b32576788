package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
)

const (
	// ScalingEvery is the time between two computations of a group's size.
	ScalingEvery = 15 * time.Second
	// MaxScalingValue is the largest value of a metric, in the unit of its target, so that sums do not overflow.
	MaxScalingValue = 1e12
	// scalingPause is the least time between two changes of a group's size (rule 75).
	scalingPause = 10 * time.Second
)

// Reading is what is known of a metric. Values are in thousandths of the unit of its target, so that the results are
// those of Kubernetes, which computes with such integers.
type Reading struct {
	// Name is the metric's name in the configuration, and Target its target in thousandths.
	Name   string
	Target int64
	// Total means that Values has the one value of the whole group, and Target is what of it one instance can do.
	Total bool
	// Values are those of instances that take part in the work: they are healthy and have settled. Missing counts such
	// instances whose value is unknown. Settling counts those that became healthy so recently that the values may not
	// show it, and those whose value will be known soon. Unready counts the other instances of the group, which boot.
	Values                     []int64
	Missing, Settling, Unready int
	// Why says why most of the missing values are unknown; "": that is not known.
	Why string
	// Problem says why the metric cannot be read at all; "": it can.
	Problem string
}

// Asked is a size that the metrics asked for at a time.
type Asked struct {
	At   time.Time
	Size int
}

// ScalingInput is all that the choice of a group's size may use.
type ScalingInput struct {
	Now time.Time
	// Since is when this leader first read the group's metrics.
	Since  time.Time
	Policy *config.Scaling
	// Size is the present size, and ChangedAt when it last changed; zero: unknown. Least is the smallest permitted
	// size, which schedules may set.
	Size, Least int
	ChangedAt   time.Time
	Metrics     []Reading
	// Asked are the results of [ScalingDecision.Asked] of the previous choices, in order of time.
	Asked []Asked
}

// ScalingDecision is the size that a group should have now, and why.
type ScalingDecision struct {
	Size int
	// Why says in a sentence what the metrics ask for and what limits it. It has no time in it.
	Why string
	// Wanted is the size that the metrics ask for, before windows and steps. It is the present size if they are
	// unknown.
	Wanted int
	// LimitedBy is the field that keeps the size from Wanted: "min", "max", "up.max_step", "down.max_step",
	// "up.stabilization" or "down.stabilization"; "": none. Until is when that ends if the metrics stay the same.
	LimitedBy string
	Until     time.Time
	// Problem says why the size cannot be chosen, so that it stays; "": it can.
	Problem string
	// Metrics are the results for each metric.
	Metrics []ScaledMetric
	// Asked must be the Asked of the next choice.
	Asked []Asked
}

// ScaledMetric is what a metric asks for. Value is the average of the instances with a value, or the value of the whole
// group if Total is true, in the unit of Reading.
type ScaledMetric struct {
	Name          string
	Value, Target int64
	Total         bool
	Known         bool // whether Value is known
	// Wanted is the size that the metric asks for. It is the present size if Waits is true or there is a Problem.
	Wanted int
	// Waits means that no instance is ready to tell the value. Problem says why the value is unknown otherwise.
	Waits   bool
	Problem string
}

// Scale chooses the size of a group with a scaling policy (rules 73 to 76). It changes nothing that it gets.
func Scale(in ScalingInput) ScalingDecision {
	d := ScalingDecision{Size: in.Size, Wanted: in.Size, Asked: slices.Clone(in.Asked)}
	known, waits, why := false, "", ""
	for _, r := range in.Metrics {
		m := r.wanted(in.Size, float64(in.Policy.TolerancePercent())/100)
		d.Metrics = append(d.Metrics, m)
		switch {
		case m.Problem != "":
			if d.Problem == "" {
				d.Problem = m.Problem
			}
		case m.Waits:
			waits = "no instance is ready to tell its " + m.Name
		case !known || m.Wanted > d.Wanted:
			known, d.Wanted, why = true, m.Wanted, m.sentence()
		}
	}
	// As in Kubernetes, a metric that is unknown does not hinder the others from asking for more instances.
	if unknown := cmp.Or(d.Problem, waits); unknown != "" && (!known || d.Wanted < in.Size) {
		d.Wanted = in.Size
		d.Size = min(max(in.Size, in.Least), max(in.Policy.Max, in.Least))
		d.Why = unknown + ", so that the size stays (rule 76)"
		return d
	}
	d.Asked = append(d.Asked, Asked{in.Now, d.Wanted})
	d.window(&in)
	d.Why = why
	if d.LimitedBy != "" {
		d.Why += "; " + d.limit(&in)
	}
	return d
}

// wanted is rule 73. It returns the size with which the metric would be at its target, as the Horizontal Pod Autoscaler
// (autoscaling/v2) computes the number of replicas for a metric of pods:
// https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details
func (r Reading) wanted(size int, tolerance float64) ScaledMetric {
	m := ScaledMetric{Name: r.Name, Target: r.Target, Total: r.Total, Wanted: size, Problem: r.Problem}
	ready := len(r.Values)
	if ready > 0 {
		m.Value, m.Known = average(r.Values, ready), true
	}
	switch {
	case m.Problem != "":
		return m
	case r.Total && ready > 0: // as for an external metric with an AverageValue
		if size == 0 || !within(float64(m.Value)/(float64(r.Target)*float64(size)), tolerance) {
			m.Wanted = int(math.Ceil(float64(m.Value) / float64(r.Target)))
		}
		return m
	case ready+r.Missing == 0:
		m.Waits = true
		return m
	case r.Missing > ready: // rule 76
		m.Problem = fmt.Sprintf("the %s of %d of %d instances is unknown", r.Name, r.Missing, ready+r.Missing)
		if r.Why != "" {
			m.Problem += ": " + r.Why
		}
		return m
	}
	ratio := float64(m.Value) / float64(r.Target)
	withUnready := r.Unready > 0 && ratio > 1
	missing := r.Missing + r.Settling // what they do is unknown, too
	if !withUnready && missing == 0 {
		if !within(ratio, tolerance) {
			m.Wanted = int(math.Ceil(ratio * float64(ready)))
		}
		return m
	}
	values := slices.Clone(r.Values)
	switch { // missing values count as the target when the group would shrink, and as nothing when it would grow
	case ratio < 1:
		values = append(values, slices.Repeat([]int64{r.Target}, missing)...)
	case ratio > 1:
		values = append(values, make([]int64, missing)...)
	}
	if withUnready {
		values = append(values, make([]int64, r.Unready)...)
	}
	again := float64(average(values, len(values))) / float64(r.Target)
	if within(again, tolerance) || ratio < 1 && again > 1 || ratio > 1 && again < 1 {
		return m
	}
	wanted := int(math.Ceil(again * float64(len(values))))
	if again < 1 && wanted > size || again > 1 && wanted < size {
		return m
	}
	m.Wanted = wanted
	return m
}

func within(ratio, tolerance float64) bool { return 1-tolerance <= ratio && ratio <= 1+tolerance }

func average(values []int64, n int) (average int64) {
	for _, v := range values {
		average += v
	}
	return average / int64(n)
}

// window applies the limits of rules 74 and 75 to the size that the metrics ask for.
func (d *ScalingDecision) window(in *ScalingInput) {
	p := in.Policy
	up, down := p.Up.Stabilization.D(), p.Down.Stabilization.D()
	// Rule 74: no more than the smallest size of the time up, and no less than the largest of the time down.
	least, most := d.Wanted, d.Wanted
	var grows, shrinks time.Time
	d.Asked = slices.DeleteFunc(d.Asked, func(a Asked) bool { return !a.At.After(in.Now.Add(-max(up, down))) })
	for _, a := range d.Asked {
		if a.At.After(in.Now.Add(-up)) && a.Size <= least {
			least, grows = a.Size, a.At.Add(up)
		}
		if a.At.After(in.Now.Add(-down)) && a.Size >= most {
			most, shrinks = a.Size, a.At.Add(down)
		}
	}
	size := in.Size
	switch {
	case least > in.Size:
		size = least
	case most < in.Size:
		size = most
	}
	switch {
	case d.Wanted > in.Size && size < d.Wanted:
		d.LimitedBy, d.Until = "up.stabilization", grows
	case d.Wanted < in.Size && size > d.Wanted:
		d.LimitedBy, d.Until = "down.stabilization", shrinks
	}
	// A new leader does not know what was asked before.
	if opens := in.Since.Add(up); size > in.Size && in.Now.Before(opens) {
		size, d.LimitedBy, d.Until = in.Size, "up.stabilization", opens
	}
	if opens := in.Since.Add(down); size < in.Size && in.Now.Before(opens) {
		size, d.LimitedBy, d.Until = in.Size, "down.stabilization", opens
	}
	// Rule 75.
	if most := in.Size + largestStep(p.Up.MaxStep, in.Size); size > most {
		size, d.LimitedBy, d.Until = most, "up.max_step", in.Now.Add(ScalingEvery)
	}
	if least := in.Size - largestStep(p.Down.MaxStep, in.Size); size < least {
		size, d.LimitedBy, d.Until = least, "down.max_step", in.Now.Add(ScalingEvery)
	}
	if next := in.ChangedAt.Add(scalingPause); size != in.Size && in.Now.Before(next) && !in.ChangedAt.IsZero() {
		size, d.Until = in.Size, next
	}
	switch {
	case size < in.Least || size == in.Least && d.Wanted < in.Least:
		size, d.LimitedBy, d.Until = in.Least, "min", time.Time{}
	case size > p.Max || size == p.Max && d.Wanted > p.Max:
		size, d.LimitedBy, d.Until = max(p.Max, in.Least), "max", time.Time{}
	}
	d.Size = size
}

// largestStep returns by how many instances a size may change at once: at least one.
func largestStep(text string, size int) int {
	limit, err := config.ParseLimit(text) // validated before
	if err != nil {
		return math.MaxInt32
	}
	if limit.Percent {
		return max(1, (size*limit.Value+99)/100)
	}
	return limit.Value
}

// sentence says what a metric asks for.
func (m ScaledMetric) sentence() string {
	if m.Total {
		return fmt.Sprintf("%s is %s in total, with a target of %s for each, which asks for %d (rule 73)", m.Name,
			m.text(m.Value), m.text(m.Target), m.Wanted)
	}
	return fmt.Sprintf("%s is at %s, with a target of %s, which asks for %d (rule 73)", m.Name, m.text(m.Value),
		m.text(m.Target), m.Wanted)
}

// text returns a value of the metric for people.
func (m ScaledMetric) text(thousandths int64) string {
	n := float64(thousandths) / 1000
	if m.Name == "cpu" || m.Name == "memory" {
		return fmt.Sprintf("%.0f %%", n)
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", n), "0"), ".")
}

// limit says what keeps a group from the size that its metrics ask for.
func (d *ScalingDecision) limit(in *ScalingInput) string {
	switch d.LimitedBy {
	case "min":
		return fmt.Sprintf("the group has at least %d", in.Least)
	case "max":
		return fmt.Sprintf("the group has at most %d", in.Policy.Max)
	case "up.max_step":
		return fmt.Sprintf("at most %d now, by up.max_step (rule 75)",
			in.Size+largestStep(in.Policy.Up.MaxStep, in.Size))
	case "down.max_step":
		return fmt.Sprintf("at least %d now, by down.max_step (rule 75)",
			in.Size-largestStep(in.Policy.Down.MaxStep, in.Size))
	case "up.stabilization":
		return fmt.Sprintf("less may have been asked for within the last %s (rule 74)", in.Policy.Up.Stabilization)
	}
	return fmt.Sprintf("more may have been asked for within the last %s (rule 74)", in.Policy.Down.Stabilization)
}
