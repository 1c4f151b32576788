// Package scale chooses the sizes of groups that have a scaling policy.
package scale

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// Scaler chooses the sizes of groups by their metrics, for one term.
type Scaler struct {
	State *shardstate.State
	// Resize stores a group's new size and puts it in force, as [Store] does.
	Resize func(ctx context.Context, key config.GroupKey, size int) error
	// Every is the time between two choices of a size; 0: plan.ScalingEvery.
	Every time.Duration
	// Read returns the value of a metric that is a total of the group. Its calls run in parallel, and end within
	// [plan.ScalingEvery]. The error is a sentence for people.
	Read   func(ctx context.Context, m config.ScalingMetric) (float64, error)
	Record func(record.Event)
	// Keep, if set, stores a point of a group's history.
	Keep func(context.Context, localdb.ScalingPoint) error
	Log  *slog.Logger
	Env  tasks.Env

	groups map[config.GroupKey]*scaledGroup
}

// scaledGroup is what a scaler remembers of a group. A new leader begins without it (rule 74).
type scaledGroup struct {
	since, changed time.Time
	asked          []plan.Asked
	// healthy is since when the scaler has seen each instance healthy.
	healthy map[ident.ID]time.Time
	// kept is the last point of the history.
	kept localdb.ScalingPoint
	// vm is since when the agents must read each number, by its ID.
	vm map[uint64]time.Time
}

// ErrHeld means that an operator has set a size that the leader must not change.
var ErrHeld = errors.New("an operator holds the size")

// Run chooses sizes until ctx ends.
func (s *Scaler) Run(ctx context.Context) {
	for took := time.Duration(0); s.Env.Sleep(ctx, cmp.Or(s.Every, plan.ScalingEvery)-took) == nil; {
		began := s.Env.Now()
		s.pass(ctx)
		took = s.Env.Now().Sub(began)
	}
}

// Store stores the size of a group that its leader has chosen. It returns ErrHeld if an operator has set a size
// meanwhile.
func Store(ctx context.Context, groups *shardconfig.Manager, key config.GroupKey, size int, at time.Time) error {
	by := config.Caller{Name: config.ByScaling, At: at, Pinned: true, Sets: []string{"size"}}
	_, err := groups.Upsert(ctx, key, "", by, func(spec *config.GroupSpec, exists bool) error {
		switch {
		case !exists:
			return shardconfig.ErrNoGroup
		case spec.SizeHeld():
			return ErrHeld
		}
		spec.Size = &size
		return nil
	})
	return err
}

// pass chooses the size of each group that has a scaling policy. Groups that need a number from a URL come after the
// others, each when its numbers are there.
func (s *Scaler) pass(ctx context.Context) {
	known := map[config.GroupKey]*scaledGroup{}
	var slow []shardstate.ScaledGroup
	for _, g := range s.State.ScaledGroups() {
		have := s.groups[g.GroupKey]
		if have == nil {
			have = &scaledGroup{since: s.Env.Now()}
		}
		known[g.GroupKey] = have
		if slices.ContainsFunc(g.Scaling.Metrics, config.ScalingMetric.Total) {
			slow = append(slow, g)
		} else {
			s.scale(ctx, g, have, nil)
		}
	}
	for key := range s.groups {
		if known[key] == nil {
			s.State.ResolveError(shardstate.GroupError(plan.AlertScaling, key, ident.ID{}))
		}
	}
	s.groups = known
	if len(slow) == 0 {
		return
	}
	_ = s.Env.ForEach(ctx, len(slow), len(slow), func(ctx context.Context, i int) error {
		before := slow[i]
		totals := s.totals(ctx, before)
		now, exists := s.State.ScaledGroup(before.GroupKey)
		if exists && ctx.Err() == nil && reflect.DeepEqual(before.Scaling, now.Scaling) {
			s.scale(ctx, now, known[now.GroupKey], totals)
		}
		return nil // a failure concerns only its group
	})
}

// totals returns the readings of the metrics that are totals of the group, by the names of the metrics.
func (s *Scaler) totals(ctx context.Context, g shardstate.ScaledGroup) map[string]plan.Reading {
	metrics := slices.Clone(g.Scaling.Metrics)
	metrics = slices.DeleteFunc(metrics, func(m config.ScalingMetric) bool { return !m.Total() })
	readings := make([]plan.Reading, len(metrics))
	_ = s.Env.ForEach(ctx, len(metrics), len(metrics), func(ctx context.Context, i int) error {
		r := plan.Reading{Name: metrics[i].Name(), Target: target(metrics[i]), Total: true}
		if !g.Static { // refused before: no tenant chooses what the leader reads
			r.Problem = r.Name + " is only for groups in the shard's configuration"
		} else if value, err := s.Read(ctx, metrics[i]); err != nil {
			r.Problem = err.Error()
		} else if n, ok := thousandths(value); ok {
			r.Values = []int64{n}
		} else {
			r.Problem = fmt.Sprintf("%s is %g, with which no size can be computed", r.Name, value)
		}
		readings[i] = r
		return nil
	})
	out := map[string]plan.Reading{}
	for _, r := range readings {
		out[r.Name] = r
	}
	return out
}

// scale chooses the size of a group, and keeps a point for its history when the size has changed, and otherwise once in
// localdb.ScalingInterval.
func (s *Scaler) scale(ctx context.Context, g shardstate.ScaledGroup, have *scaledGroup,
	totals map[string]plan.Reading) {
	size, d := s.choose(ctx, g, have, totals)
	now := s.Env.Now()
	if s.Keep == nil || size == have.kept.Size && now.Sub(have.kept.At) < localdb.ScalingInterval {
		return
	}
	have.kept = point(g.GroupKey, now, size, d)
	if err := s.Keep(ctx, have.kept); err != nil && ctx.Err() == nil {
		s.Log.Warn("what a group is scaled by is not stored on this machine", "group", g.GroupKey.String(), "error",
			err)
	}
}

func point(group config.GroupKey, now time.Time, size int, d plan.ScalingDecision) localdb.ScalingPoint {
	p := localdb.ScalingPoint{GroupKey: group, At: now, Size: size, Wanted: d.Wanted}
	for _, m := range d.Metrics {
		value := localdb.ScalingValue{Name: m.Name, Target: float64(m.Target) / 1000, Wanted: m.Wanted, Total: m.Total}
		if m.Known && m.Problem == "" {
			value.Value = new(float64(m.Value) / 1000)
		}
		p.Metrics = append(p.Metrics, value)
	}
	return p
}

// choose chooses the size of a group and stores it. It returns the size that the group has from now on.
func (s *Scaler) choose(ctx context.Context, g shardstate.ScaledGroup, have *scaledGroup,
	totals map[string]plan.Reading) (int, plan.ScalingDecision) {
	now, alert := s.Env.Now(), shardstate.GroupError(plan.AlertScaling, g.GroupKey, ident.ID{})
	d := plan.Scale(plan.ScalingInput{Now: now, Since: have.since, Policy: g.Scaling, Size: g.Size, Least: g.Least,
		ChangedAt: have.changed, Metrics: have.read(g, totals, s.State.Settings().HealthInterval, now),
		Asked: have.asked})
	have.asked = d.Asked
	if g.SizeHeld {
		d.Why, d.Size, d.LimitedBy = "an operator holds the size; "+d.Why, g.Size, ""
	}
	s.State.NoteScaling(g.GroupKey, d)
	if d.Problem != "" {
		s.State.RaiseError(alert, d.Problem)
	} else {
		s.State.ResolveError(alert)
	}
	if d.Size == g.Group.Size || g.SizeHeld {
		return d.Size, d
	}
	switch err := s.Resize(ctx, g.GroupKey, d.Size); {
	case errors.Is(err, ErrHeld), errors.Is(err, shardconfig.ErrNoGroup), ctx.Err() != nil:
	case err != nil: // the next pass tries again
		s.Log.Warn("the size of a group is not stored", "group", g.GroupKey.String(), "size", d.Size, "error", err)
	default:
		have.changed = s.Env.Now()
		s.Record(record.Event{Kind: record.EventGroupChanged, Tenant: g.Tenant, Group: g.GroupKey.Group,
			Actor:   "leader",
			Message: fmt.Sprintf("size %d instead of %d: %s", d.Size, g.Group.Size, d.Why)})
		return d.Size, d
	}
	return g.Size, d
}

// read returns the metrics of a group: as its agents last reported them, or from totals.
//
// An instance has settled when it has been healthy for longer than a report takes, so that the numbers of the others
// show what it does. Those that are healthy when the scaler begins have settled. Agents have some time to read a number
// for the first time.
func (have *scaledGroup) read(g shardstate.ScaledGroup, totals map[string]plan.Reading, interval time.Duration,
	now time.Time) (out []plan.Reading) {
	healthy := make(map[ident.ID]time.Time, len(g.Instances))
	for _, i := range g.Instances {
		if !i.Healthy {
			continue
		}
		since, known := have.healthy[i.ID]
		if !known && have.healthy != nil {
			since = now
		}
		healthy[i.ID] = since
	}
	have.healthy = healthy
	vm := map[uint64]time.Time{}
	for _, metric := range g.Scaling.Metrics {
		if metric.Total() {
			out = append(out, totals[metric.Name()])
			continue
		}
		r := plan.Reading{Name: metric.Name(), Target: target(metric)}
		asked, problems := now, map[string]int{}
		if metric.VM != nil {
			id := metric.VM.ID()
			if at, known := have.vm[id]; known {
				asked = at
			}
			vm[id] = asked
		}
		for _, i := range g.Instances {
			since, isHealthy := healthy[i.ID]
			value, problem, pending := i.Metrics.Number(&metric)
			n, _ := thousandths(value)
			if now.Sub(i.LastReport) >= 3*interval {
				problem, pending = "its agent is silent", false
			}
			switch {
			case !isHealthy:
				r.Unready++
			case now.Sub(since) < interval+plan.ScalingEvery,
				i.LastReport.IsZero() && now.Sub(have.since) < 3*interval,
				pending && now.Sub(asked) < 3*interval:
				r.Settling++
			case problem == "":
				r.Values = append(r.Values, n)
			default:
				r.Missing++
				problems[problem]++
			}
		}
		r.Why = mostFrequent(problems)
		out = append(out, r)
	}
	have.vm = vm
	return out
}

// target returns the target of a metric in thousandths of its unit.
func target(metric config.ScalingMetric) int64 { return int64(metric.Target()) * 1000 }

// thousandths returns a number in thousandths. ok is false for a number that cannot be that of a metric.
func thousandths(value float64) (n int64, ok bool) {
	if value >= 0 && value <= plan.MaxScalingValue {
		return int64(math.Ceil(value * 1000)), true
	}
	return 0, false
}

// mostFrequent returns the text with the highest count, and of several the first by name.
func mostFrequent(counts map[string]int) (text string) {
	for t, n := range counts {
		if most := counts[text]; n > most || n == most && t < text {
			text = t
		}
	}
	return text
}
