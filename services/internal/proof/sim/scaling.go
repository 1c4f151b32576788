package sim

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/act/scale"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// scaled is a group that its leaders scale by the processor time that its agents report. Its load is a sum of shares of
// processors, which changes about every `pace`.
type scaled struct {
	least, most int
	window      time.Duration // down.stabilization
	up, down    string        // the largest steps
	pace        time.Duration
	ramps       bool // the load changes steadily
	// stored is the group's size in the bucket, and changed is when a leader's choice last took effect.
	stored  storedSize
	changed time.Time
}

// storedSize is the group's entry in the bucket.
type storedSize struct {
	Size      *int `json:"size"`
	Overrides map[string]struct {
		By     string    `json:"by"`
		Until  time.Time `json:"until"`
		Pinned bool      `json:"pinned"`
	} `json:"overrides"`
}

// chosen returns the size that a leader has chosen.
func (s storedSize) chosen() (size int, ok bool) {
	if s.Size == nil || s.Overrides["size"].By != config.ByScaling {
		return 0, false
	}
	return *s.Size, true
}

const (
	// scalingTarget is the share of the processors at which scaled groups aim. They may miss it by scalingTolerance, a
	// share of it.
	scalingTarget, scalingTolerance = 0.5, 0.1
	// betweenChoices is the least time between two changes of a size by leaders.
	betweenChoices = 10 * time.Second
	// resizing is the name of the operation in which a leader stores a size.
	resizing = "resize"
	holder   = "operator"
)

// ofScaled are the faults and actions of a World with scaled groups. planScaled decides on them.
var ofScaled = []odds{{sizeHeld, 1}, {metricsLie, 1}, {metricsGone, 1}, {killedScaling, 2}}

// drawScaling draws whether leaders scale a group. In five of six Worlds, they scale none.
func (g *spec) drawScaling(d *dice) {
	if d.IntN(3) == 0 {
		return
	}
	least := 1 + d.IntN(2)
	g.scaling = &scaled{least: least, most: least + 1 + d.IntN(5), window: d.between(30*time.Second, 2*minute),
		up: []string{"100%", "1"}[d.IntN(2)], down: []string{"25%", "100%"}[d.IntN(2)],
		pace: d.between(2*minute, 10*minute), ramps: d.IntN(2) == 0}
	g.size = g.scaling.clamp(g.size)
}

func (s *scaled) clamp(size int) int { return min(max(size, s.least), s.most) }

// configure adds the policy to the group's configuration, and lets sizes and schedules keep its limits.
func (s *scaled) configure(spec *config.GroupSpec) {
	if s == nil {
		return
	}
	least, window := s.least, config.Duration(s.window)
	spec.Scaling = &config.Scaling{Min: &least, Max: s.most, Up: config.ScaleUp{MaxStep: s.up},
		Down:    config.ScaleDown{Stabilization: &window, MaxStep: s.down},
		Metrics: []config.ScalingMetric{{CPU: &config.ScalingShare{Target: "50%"}}}}
	size := s.clamp(*spec.Size)
	spec.Size, spec.Schedules = &size, slices.Clone(spec.Schedules)
	for i := range spec.Schedules {
		spec.Schedules[i].Size = s.clamp(spec.Schedules[i].Size)
	}
}

// load returns the load of a group. After the faults it stays the same.
func (w *World) load(key config.GroupKey, s *scaled) float64 {
	at := func(n uint64) float64 {
		return w.dice("load", hashText(key.String()), n).Float64() * 1.2 * float64(s.most) * scalingTarget
	}
	if w.quiet {
		return at(0)
	}
	n := uint64(w.sched.elapsed / s.pace)
	if !s.ramps {
		return at(1 + n)
	}
	part := float64(w.sched.elapsed%s.pace) / float64(s.pace)
	return at(1+n)*(1-part) + at(2+n)*part
}

// scales reports whether leaders scale a group of this World.
func (w *World) scales() bool {
	return slices.ContainsFunc(w.people.groups, func(g *spec) bool { return g.scaling != nil })
}

// numbers returns what an agent reports of its VM.
func (w *World) numbers(m *machine) shardstate.Metrics {
	g := w.people.spec(m.key)
	if g == nil || g.scaling == nil || w.sched.now.Before(m.agent.numberless) {
		return shardstate.Metrics{}
	}
	if w.sched.now.Before(m.agent.lying) {
		return shardstate.Metrics{CPU: m.agent.lie, MemoryTotal: 1}
	}
	share := 0
	for _, other := range w.fleet.order {
		if other.key == m.key && other.state == infra.Running && other.agent.wasHealthy && !other.onDemand &&
			!w.isSpare(other) && !w.isPreserved(other) {
			share++
		}
	}
	return shardstate.Metrics{CPU: float32(min(1, w.load(m.key, g.scaling)/float64(max(1, share)))), MemoryTotal: 1}
}

// scale chooses the sizes of groups until the term ends.
func (t *term) scale() {
	w := t.server.world
	scaler := &scale.Scaler{State: t.leader.State, Env: t.env, Log: slog.New(tracer{w, t.server.process.name}),
		Record: func(e record.Event) { w.trace("%s/%s: %s", e.Tenant, e.Group, e.Message) },
		Resize: func(ctx context.Context, key config.GroupKey, size int) error {
			t.server.spring(resizing)
			err := t.manage(func(m *shardconfig.Manager) error { return scale.Store(ctx, m, key, size, t.env.Now()) })
			var superseded *shardconfig.SupersededError
			if errors.As(err, &superseded) {
				t.Refuse(superseded.Term)
			}
			return err
		}}
	scaler.Run(t.scope)
}

// endHolds drops the sizes of operators that have ended, as the main package of the server does.
func (t *term) endHolds() {
	for t.env.Sleep(t.scope, 30*time.Second) == nil {
		_ = t.manage(func(m *shardconfig.Manager) error {
			m.DropEnded(t.scope, t.env.Now())
			return nil
		})
	}
}

// planScaled plans the faults of ofScaled. They have their own streams of random numbers, so that other Worlds do not
// depend on them.
func (w *World) planScaled() {
	if !w.scales() {
		return
	}
	d := w.dice("scaled timeline")
	for n, at := uint64(0), d.between(2*minute, 5*minute); at < w.opts.Faulty; n++ {
		moment := w.roll("scaled", n)
		own := dice{moment.state}
		k := pickOf(ofScaled, &own)
		w.sched.after(at, func() { w.strikeScaled(moment.state, k, &own) })
		at += d.between(10*time.Second, 4*minute)
	}
}

func (w *World) strikeScaled(moment uint64, k Kind, d *dice) {
	leader := w.acting()
	switch k {
	case sizeHeld:
		if leader != nil && w.faults.admit(moment, k) {
			w.people.hold(leader.term, d)
		}
	case metricsLie, metricsGone:
		if !w.faults.admit(moment, k) {
			return
		}
		until, all := w.sched.now.Add(d.between(30*time.Second, 6*minute)), d.IntN(2) == 0
		w.faults.about("until %v, all %t", until.Sub(epoch), all)
		lie := []float32{0, 1, 1e9, float32(d.Float64()), float32(math.NaN())}[d.IntN(5)]
		for _, m := range w.fleet.order {
			switch {
			case !all && d.IntN(2) == 0:
			case k == metricsGone:
				m.agent.numberless = until
			default:
				m.agent.lying, m.agent.lie = until, lie
			}
		}
	case killedScaling:
		w.killDuring(moment, k, resizing, d)
	}
}

// hold makes an operator hold the size of a scaled group for a while.
func (p *people) hold(t *term, d *dice) {
	w := p.world
	g := p.groups[d.IntN(len(p.groups))]
	if g.scaling == nil {
		return
	}
	size := g.scaling.clamp(d.IntN(9))
	by := config.Caller{Name: holder, At: t.env.Now(), Until: t.env.Now().Add(d.between(minute, 5*minute)),
		Sets: []string{"size"}}
	w.faults.about("%s has %d until %v", g.key, size, by.Until.Sub(epoch))
	t.env.Go("change a group", func() {
		err := t.manage(func(m *shardconfig.Manager) error {
			_, err := m.Upsert(t.scope, g.key, "", by, func(spec *config.GroupSpec, exists bool) error {
				if !exists {
					return shardconfig.ErrNoGroup
				}
				spec.Size = &size
				return nil
			})
			return err
		})
		w.trace("size %d of %s: %v", size, g.key, err)
	})
}

var groupsKey = keys.Groups(shardName)

// sizesIn returns the entries of scaled groups in a version of the groups.
func (w *World) sizesIn(body []byte) map[*spec]storedSize {
	var tenants map[string]json.RawMessage
	if err := json.Unmarshal(body, &tenants); err != nil {
		w.fail(ruleSimulator, "the groups cannot be read: %v", err)
		return nil
	}
	out := map[*spec]storedSize{}
	for _, g := range w.people.groups {
		var entries map[string]storedSize
		if raw := tenants[g.key.Tenant]; g.scaling != nil && raw != nil {
			if err := json.Unmarshal(raw, &entries); err != nil {
				w.fail(ruleSimulator, "the groups of %s cannot be read: %v", g.key.Tenant, err)
			}
			out[g] = entries[g.key.Group]
		}
	}
	return out
}

// checkChoice checks the sizes of scaled groups when a leader sends them: they are within their limits, and a new
// leader shrinks no group before its window has passed.
func (w *World) checkChoice(s *server, body []byte) {
	if s == nil || s.term == nil || s.fooled || !w.scales() {
		return
	}
	t := s.term
	next := w.sizesIn(body)
	for _, g := range w.people.groups {
		size, ok := next[g].chosen()
		before, known := g.scaling.storedChoice()
		if !ok || known && size == before {
			continue
		}
		if size < g.scaling.least || size > g.scaling.most {
			w.fail(ruleScaling, "%s gets the size %d, it has at least %d and at most %d", g.key, size, g.scaling.least,
				g.scaling.most)
		}
		group, inForce := t.groups[g.key]
		if led := w.sched.now.Sub(t.serving); inForce && led < g.scaling.window-2*wallSkew {
			if have, _ := group.SizeAt(t.env.Now()); size < have {
				w.fail(ruleScaling, "%s gets the size %d instead of %d, and its leader has led for only %v", g.key,
					size, have, led)
			}
		}
	}
}

// storedChoice returns the size in the bucket if a leader has chosen it.
func (s *scaled) storedChoice() (size int, ok bool) {
	if s == nil {
		return 0, false
	}
	return s.stored.chosen()
}

// groupsChanged checks a new version of the groups when its write takes effect: a choice of a size does not replace the
// size that an operator holds, nor does it follow too soon after another.
func (w *World) groupsChanged(body []byte) {
	if body == nil || !w.scales() {
		return
	}
	if w.restless() {
		w.fail(ruleQuiet, "the groups are written after everything had come to rest")
	}
	next := w.sizesIn(body)
	for _, g := range w.people.groups {
		if g.scaling == nil {
			continue
		}
		was := g.scaling.stored
		g.scaling.stored = next[g]
		size, ok := next[g].chosen()
		before, known := was.chosen()
		if !ok || known && size == before {
			continue
		}
		if held := was.Overrides["size"]; held.By == holder && held.Until.After(w.sched.now.Add(2*wallSkew)) {
			w.fail(ruleScaling, "%s gets the size %d, and an operator holds %d until %v", g.key, size, *was.Size,
				held.Until.Sub(epoch))
		}
		// A write that a leader believes to have failed, or that took effect late, may be the first of two.
		if since := w.sched.now.Sub(g.scaling.changed); since < betweenChoices && w.sched.now.Sub(w.doubted) > minute {
			w.fail(ruleScaling, "%s gets the size %d only %v after another", g.key, size, since)
		}
		g.scaling.changed = w.sched.now
	}
}

// checkScaled checks the size of a group at rest: it is right for the load. Numbers and loads are rounded, so that a
// load of almost exactly three instances may also be one for four. A group that protects more instances than its size
// has these instances, so that its numbers do not show its size.
func (w *World) checkScaled(t *term, g *spec, merged config.Group) {
	size, _ := merged.SizeAt(w.sched.now)
	load := w.load(g.key, g.scaling) / scalingTarget
	least, most := g.scaling.clamp(int(math.Ceil(load-0.01))), g.scaling.clamp(int(math.Ceil(load+0.01)))
	right := size >= least && size <= max(most, merged.LeastAt(w.sched.now)) ||
		math.Abs(load/float64(max(1, size))-1) <= scalingTolerance+0.01
	if !right && w.countProtected(merged) <= size {
		view, _ := t.leader.State.GroupView(g.key)
		w.fail(ruleScaling, "%s has the size %d at rest, its load is one for %.2f of %d to %d: %+v: %s", g.key, size,
			load, g.scaling.least, g.scaling.most, view.Scaled, w.describe(g.key))
	}
}
