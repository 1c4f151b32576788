package sim

import (
	"context"
	"math"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// gate is a mutex for coroutines: it lets one task at a time through. It guards code that holds a real mutex while it
// waits for requests.
type gate struct {
	busy    bool
	waiting []*task
}

func (g *gate) do(s *scheduler, fn func()) {
	for g.busy {
		s.wait(func(t *task) { g.waiting = append(g.waiting, t) })
	}
	g.busy = true
	fn()
	g.busy = false
	if len(g.waiting) > 0 {
		next := g.waiting[0]
		g.waiting = g.waiting[1:]
		s.wakeAfter(0, next)
	}
}

// manage calls fn with the server's configuration manager. One task at a time may use the manager.
func (t *term) manage(fn func(m *shardconfig.Manager) error) error {
	var err error
	t.server.config.do(t.server.world.sched, func() {
		if err = t.scope.Err(); err == nil {
			err = fn(t.server.manager)
		}
	})
	return err
}

// configure reads the configuration again at the start of a term. A leader must not use data that was read before it
// won the lock.
func (t *term) configure(ctx context.Context) error {
	return t.manage(func(m *shardconfig.Manager) error { return m.Lead(ctx, t.number, t) })
}

// refresh checks for a newer configuration. It runs every three minutes, and after about half of the changes that
// people make.
func (t *term) refresh() {
	w := t.server.world
	asked := w.people.version
	sound := w.people.sound
	err := t.manage(func(m *shardconfig.Manager) error {
		result, _, err := m.Refresh(t.scope)
		if w.tracing() {
			w.trace("%s looks for a newer configuration: %d, %v", t.server.process.name, result, err)
		}
		return err
	})
	if err == nil && sound && w.people.version == asked && t.version < asked {
		w.fail(ruleNewest, "a refresh begun at version %d of the configuration was answered with version %d in force",
			asked, t.version)
	}
}

// ApplyConfig implements shardconfig.Applier.
func (t *term) ApplyConfig(shard *config.Shard, groups map[config.GroupKey]config.Group) {
	t.noteApplied(groups)
	t.leader.State.Configure(shard, groups)
	t.noteImage()
}

// ApplyGroups implements shardconfig.Applier.
func (t *term) ApplyGroups(groups map[config.GroupKey]config.Group, changed []config.GroupKey) {
	t.noteApplied(groups)
	t.leader.State.ConfigureGroups(groups, changed)
	t.noteImage()
}

// OverridesEnded implements shardconfig.Applier.
func (t *term) OverridesEnded(config.GroupKey, []string) {}

// noteApplied checks that the configuration in force is not older than one that was applied before. It stores the
// groups for later checks.
func (t *term) noteApplied(groups map[config.GroupKey]config.Group) {
	w := t.server.world
	version, ok := w.people.versions[objstore.Token(t.server.manager.Status().ETag)]
	if !ok {
		w.fail(ruleNewest, "term %d applies a configuration that was never written", t.number)
	}
	// A server that was paused until after the end of its lease may still apply an older version of the configuration.
	// That is harmless, because the server can no longer act.
	acts := t.Remaining() > 0 && !t.server.fooled
	if acts && version < w.people.applied {
		w.fail(ruleNewest, "term %d applies version %d of the configuration, version %d was applied before", t.number,
			version, w.people.applied)
	}
	w.trace("%s applies version %d", t.server.process.name, version)
	if !t.server.fooled { // the next leader may have read an older version
		w.people.applied = max(w.people.applied, version)
	}
	t.version = version
	if !t.server.fooled {
		w.people.trial.applied(groups)
	}
	for key, g := range groups {
		if before, ok := t.groups[key]; !ok || plan.EndsRollout(&before, &g) {
			t.rolloutAt[key] = w.sched.now
		}
	}
	t.before, t.beforeAt, t.groups = t.groups, w.sched.now, groups
}

// Forget implements execute.Groups.
func (t *term) Forget(ctx context.Context, key config.GroupKey) error {
	w := t.server.world
	for _, d := range w.bucket.order {
		if d.stays() && d.Tenant == key.Tenant && d.Group == key.Group {
			w.fail(ruleAcked, "group %s is forgotten, %s of it is %s", key, d.ID, d.State)
		}
	}
	return t.manage(func(m *shardconfig.Manager) error { return m.Forget(ctx, key) })
}

// Halt implements execute.Groups.
func (t *term) Halt(ctx context.Context, key config.GroupKey, version record.GroupVersion, reason string,
	at time.Time) error {
	return t.manage(func(m *shardconfig.Manager) error { return m.Halt(ctx, key, version, reason, at) })
}

// KeepGood implements execute.Groups.
func (t *term) KeepGood(ctx context.Context, key config.GroupKey, version record.GroupVersion,
	images map[string]string, at time.Time) error {
	t.server.world.checkGood(t, key)
	return t.manage(func(m *shardconfig.Manager) error { return m.KeepGood(ctx, key, version, images, at) })
}

// size returns the smallest and the largest size of a group in the last minute, by the configurations that this leader
// had in that time. Actions from the previous configuration may still be in progress.
func (t *term) size(key config.GroupKey) (least, most int) {
	now := t.server.world.sched.now
	sizes := func(groups map[config.GroupKey]config.Group) {
		g, ok := groups[key]
		for _, at := range []time.Duration{-minute - wallSkew, -wallSkew, wallSkew} {
			n := 0
			if ok && !g.Deleted {
				n, _ = g.SizeAt(now.Add(at))
			}
			least, most = min(least, n), max(most, n)
		}
	}
	least = math.MaxInt
	sizes(t.groups)
	if t.before != nil && now.Sub(t.beforeAt) < minute {
		sizes(t.before)
	}
	return least, most
}
