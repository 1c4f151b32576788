// Package scale chooses the sizes of groups that have a scaling policy.
package scale

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// Scaler chooses the sizes of groups by their metrics, for one term.
type Scaler struct {
	State *shardstate.State
	// Resize stores a group's new size and puts it in force, as [Store] does.
	Resize func(ctx context.Context, key config.GroupKey, size int) error
	Record func(record.Event)
	Log    *slog.Logger
	Env    tasks.Env

	groups map[config.GroupKey]*scaledGroup
}

// scaledGroup is what a scaler remembers of a group. A new leader begins without it (rule 74).
type scaledGroup struct {
	since, changed time.Time
	asked          []plan.Asked
	// healthy is since when the scaler has seen each instance healthy.
	healthy map[ident.ID]time.Time
}

// maxNumber limits a metric, so that sums do not overflow.
const maxNumber = 1e12

// ErrHeld means that an operator has set a size that the leader must not change.
var ErrHeld = errors.New("an operator holds the size")

// Run chooses sizes until ctx ends.
func (s *Scaler) Run(ctx context.Context) {
	for s.Env.Sleep(ctx, plan.ScalingEvery) == nil {
		s.pass(ctx)
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

// pass chooses the size of each group that has a scaling policy.
func (s *Scaler) pass(ctx context.Context) {
	known := map[config.GroupKey]*scaledGroup{}
	for _, g := range s.State.ScaledGroups() {
		have := s.groups[g.GroupKey]
		if have == nil {
			have = &scaledGroup{since: s.Env.Now()}
		}
		known[g.GroupKey] = have
		s.scale(ctx, g, have)
	}
	for key := range s.groups {
		if known[key] == nil {
			s.State.ResolveError(shardstate.GroupError(plan.AlertScaling, key, ident.ID{}))
		}
	}
	s.groups = known
}

func (s *Scaler) scale(ctx context.Context, g shardstate.ScaledGroup, have *scaledGroup) {
	now, alert := s.Env.Now(), shardstate.GroupError(plan.AlertScaling, g.GroupKey, ident.ID{})
	d := plan.Scale(plan.ScalingInput{Now: now, Since: have.since, Policy: g.Scaling, Size: g.Size, Least: g.Least,
		ChangedAt: have.changed, Metrics: have.read(g, s.State.Settings().HealthInterval, now), Asked: have.asked})
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
		return
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
	}
}

// read returns the metrics of a group as its agents last reported them.
//
// An instance has settled when it has been healthy for longer than a report takes, so that the numbers of the others
// show what it does. Those that are healthy when the scaler begins have settled.
func (have *scaledGroup) read(g shardstate.ScaledGroup, interval time.Duration, now time.Time) (out []plan.Reading) {
	healthy := map[ident.ID]time.Time{}
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
	for _, metric := range g.Scaling.Metrics {
		r := plan.Reading{Name: metric.Name(), Target: int64(metric.Target()) * 1000, Total: metric.Total()}
		if r.Total {
			r.Problem = "the " + r.Name + " is not read yet"
			out = append(out, r)
			continue
		}
		for _, i := range g.Instances {
			since, isHealthy := healthy[i.ID]
			value, ok := number(metric, i.Metrics)
			switch fresh := now.Sub(i.LastReport) < 3*interval; {
			case !isHealthy:
				r.Unready++
			case now.Sub(since) < interval+plan.ScalingEvery,
				i.LastReport.IsZero() && now.Sub(have.since) < 3*interval:
				r.Settling++
			case fresh && ok:
				r.Values = append(r.Values, value)
			default:
				r.Missing++
			}
		}
		out = append(out, r)
	}
	return out
}

// number returns a metric of an instance in thousandths of the unit of its target.
func number(metric config.ScalingMetric, m shardstate.Metrics) (thousandths int64, ok bool) {
	var value float64
	switch {
	case metric.CPU != nil:
		value = 100 * float64(m.CPU)
	case metric.Memory != nil && m.MemoryTotal > 0:
		value = 100 * float64(m.MemoryUsed) / float64(m.MemoryTotal)
	case metric.Network != nil:
		value = float64(max(m.ReceiveRate, m.TransmitRate))
	default:
		return 0, false
	}
	return int64(math.Ceil(value * 1000)), m.MemoryTotal > 0 && value >= 0 && value < maxNumber
}
