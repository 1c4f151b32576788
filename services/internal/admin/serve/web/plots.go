package web

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// plotsView shows plots of the journals of shards over one period.
type plotsView struct {
	Periods []plotPeriod
	Charts  []chart
	Stages  []stageView
	// Unread are the shards whose journals were not read yet.
	Unread []string
	// Begins is the time at which the journal of a shard begins, if that is later than the period.
	Begins time.Time
}

// plotPeriod is a period that a person can choose. A plot has one value for each step.
type plotPeriod struct {
	Name         string
	Length, step time.Duration
	// URL is the address of the page with this period. Chosen means that the page shows it.
	URL    string
	Chosen bool
}

var plotPeriods = []plotPeriod{{Name: "1 h", Length: time.Hour, step: time.Minute},
	{Name: "24 h", Length: day, step: 30 * time.Minute}, {Name: "7 d", Length: keepTime, step: 4 * time.Hour}}

// The size of a plot in the units of its picture, which the browser stretches.
const plotWidth, plotHeight = 600.0, 100.0

// plotColumns and sparkColumns are the numbers of columns in a plot of sizes, and in a small one.
const plotColumns, sparkColumns = 150, 30

// chart is a plot. A browser shows its picture, and a screen reader the table.
type chart struct {
	Title, Unit string
	// Note says what the plot lacks.
	Note   string
	Legend []segment // with Class, Name and, if it is not 0, Count
	// Lanes are the pictures, one below the other.
	Lanes   []lane
	Axis    []string // texts below the picture, from left to right
	Columns []string
	Rows    [][]string
}

// lane is one picture of a plot. Top is the value at its upper edge, and Label a text above it.
type lane struct {
	Name, Top, Label string
	Shapes           []shape
}

// shape is a part of a picture: a path, or a rectangle with a tooltip.
type shape struct {
	Class, Path, Title  string
	X, Y, Width, Height float64
}

// stageView describes a stage of replacements.
type stageView struct {
	Name     string
	Count    int
	P50, P99 time.Duration
	// Width50 and Width99 are thousandths of the picture. The scale is that of square roots, so that short stages are
	// visible beside long ones.
	Width50, Width99 float64
}

// choosePeriod returns the period that a request asks for, and all periods with their addresses. A request that asks
// for no period gets a day, or an hour if the journal is not older.
func choosePeriod(r *http.Request, journal time.Duration) (chosen plotPeriod, all []plotPeriod) {
	all = slices.Clone(plotPeriods)
	found := slices.IndexFunc(all, func(p plotPeriod) bool { return p.value() == r.FormValue("period") })
	switch {
	case found >= 0:
	case journal > all[0].Length:
		found = 1
	default:
		found = 0
	}
	query := r.URL.Query()
	query.Del("done")
	for i := range all {
		query.Set("period", all[i].value())
		all[i].URL, all[i].Chosen = "?"+query.Encode()+"#plots", i == found
	}
	return all[found], all
}

// value returns the period as it is in an address.
func (p plotPeriod) value() string { return strings.ReplaceAll(p.Name, " ", "") }

// axis returns the texts below a plot of the period.
func (p plotPeriod) axis() []string {
	return []string{p.Name + " ago", strings.TrimSuffix(took(p.Length/2), " 0 h") + " ago", "now"}
}

// plots returns the plots of shards, or of one group of a shard.
func (p *page) plots(r *http.Request, shards []shardView, group *groupView) plotsView {
	now := p.Now()
	var oldest time.Time
	for _, s := range shards {
		p.hub.read(s.Shard, func(h *history) {
			if oldest.IsZero() || h.begins.Before(oldest) {
				oldest = h.begins
			}
		})
	}
	period, all := choosePeriod(r, now.Sub(oldest))
	from := now.Add(-period.Length)
	v := plotsView{Periods: all}
	var done []*replacement
	leaders := chart{Title: "Leaders", Axis: period.axis(),
		Columns: []string{"Shard", "Term", "Leader", "Since", "Until", "Why it ended"}}
	for _, s := range shards {
		p.hub.read(s.Shard, func(h *history) {
			name := ""
			if group != nil {
				name = group.Group.GetGroup()
				v.Charts = append(v.Charts, sizeChart(append(slices.Clone(h.sizes[name]),
					presentSize(group.Group, now)), period, now))
				v.Charts = append(v.Charts, scalingChart(group.Scaling, period, now)...)
			}
			done = append(done, h.replacements(name, from)...)
			leaders.addLeaders(s, h.leaders, from, now)
			if !h.read {
				v.Unread = append(v.Unread, s.Shard)
			}
			if h.begins.After(from) && (v.Begins.IsZero() || h.begins.After(v.Begins)) {
				v.Begins = h.begins
			}
		})
	}
	v.Charts = append(v.Charts, replacementChart(done, period, now))
	if group == nil {
		v.Charts = append(v.Charts, leaders)
	}
	v.Stages = newStages(done)
	return v
}

// sizeChart plots the counts of a group's instances. samples are in the order of their times.
func sizeChart(samples []sample, period plotPeriod, now time.Time) chart {
	from := now.Add(-period.Length)
	c := chart{Title: "Size", Unit: "instances", Axis: period.axis(), Columns: []string{"Time", "Desired", "Actual",
		"Healthy"}, Legend: []segment{{Class: "healthy", Name: "healthy"}, {Class: "actual", Name: "actual"},
		{Class: "desired", Name: "desired"}}}
	shapes, top := sizeShapes(samples, from, now, plotColumns)
	known := len(samples) - 1
	var last []string
	for at := from.Add(period.step); !at.After(now); at = at.Add(period.step) {
		i, found := slices.BinarySearchFunc(samples, at, func(s sample, t time.Time) int { return s.at.Compare(t) })
		if !found {
			i--
		}
		if i < 0 {
			continue
		}
		s := samples[min(i, known)]
		counts := []string{fmt.Sprint(s.desired), fmt.Sprint(s.actual), fmt.Sprint(s.healthy)}
		shapes = append(shapes, shape{Class: "hover", X: position(at.Add(-period.step), from, now), Height: plotHeight,
			Width: plotWidth * float64(period.step) / float64(period.Length), Title: fmt.Sprintf(
				"%s UTC: desired %s, actual %s, healthy %s", stamp(at), counts[0], counts[1], counts[2])})
		if !slices.Equal(counts, last) {
			c.Rows = append(c.Rows, append([]string{stamp(at)}, counts...))
		}
		last = counts
	}
	c.Lanes = []lane{{Top: fmt.Sprint(top), Shapes: shapes}}
	return c
}

// position returns the place of a time on the axis of a plot.
func position(at, from, to time.Time) float64 {
	return plotWidth * min(1, max(0, float64(at.Sub(from))/float64(to.Sub(from))))
}

// sizeShapes draws the counts of a group's instances in a picture that shows so many columns. top is the value at the
// upper edge of the picture.
func sizeShapes(samples []sample, from, to time.Time, columns int) (shapes []shape, top uint32) {
	samples, top = thin(samples, from, to, columns), 1
	for _, s := range samples {
		top = max(top, s.desired, s.actual)
	}
	var start float64
	path := func(count func(sample) uint32) string {
		var b strings.Builder
		for _, s := range samples {
			x, y := number(position(s.at, from, to)), number(plotHeight*(1-float64(count(s))/float64(top)))
			if b.Len() == 0 {
				start = position(s.at, from, to)
				fmt.Fprintf(&b, "M%s %s", x, y)
			} else {
				fmt.Fprintf(&b, "H%sV%s", x, y)
			}
		}
		return b.String() + "H" + number(plotWidth)
	}
	healthy := path(func(s sample) uint32 { return s.healthy })
	return []shape{
		{Class: "area healthy", Path: fmt.Sprintf("%sV%sH%sZ", healthy, number(plotHeight), number(start))},
		{Class: "line healthy", Path: healthy},
		{Class: "line actual", Path: path(func(s sample) uint32 { return s.actual })},
		{Class: "line desired", Path: path(func(s sample) uint32 { return s.desired })}}, top
}

// thin returns at most two samples for each column of a picture: one with the fewest healthy instances in the column,
// and one with the counts at its end. The first sample may be from before the picture.
func thin(samples []sample, from, to time.Time, columns int) (thinned []sample) {
	width := to.Sub(from) / time.Duration(columns)
	for i := 0; i < len(samples); {
		column := max(0, int(samples[i].at.Sub(from)/width))
		ends := from.Add(time.Duration(column+1) * width)
		begins, last, low := samples[i].at, samples[i], samples[i].healthy
		for i++; i < len(samples) && samples[i].at.Before(ends); i++ {
			if last = samples[i]; !last.at.After(from) {
				begins, low = last.at, last.healthy // only the last one from before the picture counts
			}
			low = min(low, last.healthy)
		}
		merged := last
		if merged.at, merged.healthy = begins, low; low != last.healthy {
			thinned = append(thinned, merged, last)
		} else {
			thinned = append(thinned, merged)
		}
	}
	return thinned
}

// number formats a coordinate.
func number(n float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(n, 'f', 1, 64), ".0")
}

// causeClasses maps the causes of replacements to the colours of a plot. Other causes have the last colour.
var causeClasses = map[string]string{"gone": "k1", "unhealthy": "k2", "health_check": "k2", "load_balancer": "k2",
	"flapping": "k2", "notice": "k3", "recommendation": "k3", "maintenance": "k3", "power_off": "k3",
	"unregistered": "k3", "drift": "k4", "expired": "k5",
	"return_to_spot": "k5", "not_woken": "k1"}

// replacementChart plots finished replacements by their cause.
func replacementChart(done []*replacement, period plotPeriod, now time.Time) chart {
	from := now.Add(-period.Length)
	c := chart{Title: "Replacements", Unit: "finished", Axis: period.axis(),
		Columns: []string{"Time", "Cause", "Replacements"}}
	steps := int(period.Length / period.step)
	counts, totals := make([]map[string]int, steps), map[string]int{}
	most := 1
	for _, r := range done {
		i := int(r.healthy.Sub(from) / period.step)
		if i < 0 || i >= steps {
			continue
		}
		if counts[i] == nil {
			counts[i] = map[string]int{}
		}
		cause := cmp.Or(r.Cause, "unknown")
		counts[i][cause]++
		totals[cause]++
		sum := 0
		for _, n := range counts[i] {
			sum += n
		}
		most = max(most, sum)
	}
	causes := slices.SortedFunc(maps.Keys(totals), func(a, b string) int {
		return cmp.Or(cmp.Compare(totals[b], totals[a]), cmp.Compare(a, b))
	})
	class := func(cause string) string { return cmp.Or(causeClasses[cause], "k6") }
	for _, cause := range causes {
		c.Legend = append(c.Legend, segment{Class: class(cause), Name: spaced(cause), Count: totals[cause]})
	}
	width := plotWidth / float64(steps)
	var shapes []shape
	for i, of := range counts {
		begins, y := from.Add(time.Duration(i)*period.step), plotHeight
		for _, cause := range causes {
			n := of[cause]
			if n == 0 {
				continue
			}
			height := plotHeight * float64(n) / float64(most)
			y -= height
			shapes = append(shapes, shape{Class: class(cause), X: float64(i)*width + width/10, Y: y,
				Width: width * 8 / 10, Height: height,
				Title: fmt.Sprintf("%d × %s from %s UTC on, within %s", n, spaced(cause), stamp(begins),
					took(period.step))})
			c.Rows = append(c.Rows, []string{stamp(begins), spaced(cause), fmt.Sprint(n)})
		}
	}
	c.Lanes = []lane{{Top: fmt.Sprint(most), Shapes: shapes}}
	return c
}

// addLeaders adds the lane of a shard to the plot of leaders.
func (c *chart) addLeaders(s shardView, leaders []leadership, from, now time.Time) {
	if s.Err == nil && s.Status.GetLeaderSince() != nil &&
		(len(leaders) == 0 || leaders[len(leaders)-1].term < s.Status.GetTerm()) {
		// The journal does not have its beginning any more.
		leaders = append(slices.Clone(leaders), leadership{term: s.Status.GetTerm(), server: s.Status.GetLeaderId(),
			started: s.Status.GetLeaderSince().AsTime()})
	}
	var shapes []shape
	for i, l := range leaders {
		ended, until, why := l.ended, stamp(l.ended), l.why
		switch {
		case !ended.IsZero():
		case i+1 < len(leaders):
			ended, why = leaders[i+1].started, "not recorded"
		case s.Err == nil:
			ended, until = now, "now"
		default:
			ended, why = cmp.Or(s.LostSince, now), "the shard does not answer"
		}
		if ended.Before(from) {
			continue
		}
		x := position(l.started, from, now)
		server := cmp.Or(l.server, "unknown")
		shapes = append(shapes, shape{Class: fmt.Sprintf("k%d", 4+l.term%2), X: x, Height: plotHeight,
			Width: max(1, position(ended, from, now)-x), Title: fmt.Sprintf("%s, term %d, from %s UTC", server, l.term,
				stamp(l.started))})
		c.Rows = append(c.Rows, []string{s.Shard, fmt.Sprint(l.term), server, stamp(l.started), until, why})
	}
	c.Lanes = append(c.Lanes, lane{Name: s.Shard, Shapes: shapes})
}

// newStages describes the stages of replacements.
func newStages(done []*replacement) (stages []stageView) {
	took := make([][]time.Duration, len(stageNames)+1)
	for _, r := range done {
		for i, d := range r.stages() {
			if d >= 0 {
				took[i] = append(took[i], d)
			}
		}
		took[len(stageNames)] = append(took[len(stageNames)], r.Took())
	}
	var longest time.Duration
	for i, name := range append(slices.Clone(stageNames), "in all") {
		slices.Sort(took[i])
		s := stageView{Name: name, Count: len(took[i]), P50: quantile(took[i], 50), P99: quantile(took[i], 99)}
		stages, longest = append(stages, s), max(longest, s.P99)
	}
	for i := range stages {
		s := &stages[i]
		s.Width50 = 1000 * math.Sqrt(float64(s.P50)/float64(max(longest, 1)))
		s.Width99 = 1000 * math.Sqrt(float64(s.P99)/float64(max(longest, 1)))
	}
	return stages
}
