package sim

import (
	"context"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
)

// hasFailed reports whether an instance has a configuration from which its group has returned to its good one. The
// unhealthy guard neither counts nor keeps such an instance (planning rule 71).
func (t *term) hasFailed(key config.GroupKey, d *document) bool {
	g, ok := t.groups[key]
	return ok && g.RolledBack() && !t.current(g, d)
}

// EndHalt implements execute.Groups. A halt may end only if the group's configuration has changed, or if no instance is
// outdated.
func (t *term) EndHalt(ctx context.Context, key config.GroupKey) error {
	w := t.server.world
	if g, ok := t.groups[key]; ok && g.Halt != nil && g.Rollout.HaltOnFailures > 0 && !t.server.fooled &&
		!w.recentlyFooled() && g.Wanted().Version(t.image).Is(g.Halt.Failed) {
		for _, d := range w.bucket.order {
			if d.counts() && !d.OnDemand && d.key() == key && !t.current(*g.Wanted(), d) && !t.protects(key, d) {
				w.fail(ruleHalt, "the halt of %s ends, and %s is outdated", key, d.ID)
			}
		}
	}
	return t.manage(func(m *shardconfig.Manager) error { return m.EndHalt(ctx, key) })
}

// protects reports whether people protect an instance, so that its configuration does not matter.
func (t *term) protects(key config.GroupKey, d *document) bool {
	for _, id := range t.groups[key].Protected {
		if id == d.ID {
			return true
		}
	}
	return false
}

// checkRolledBack checks that a group at rest that has returned to its good configuration has no other instances. It
// checks nothing if the good configuration fails too, or if the group's options delay the replacement.
func (w *World) checkRolledBack(t *term, g config.Group) {
	if !g.RolledBack() || !g.Halt.GoodFailedAt.IsZero() || g.Rollout.Paused || g.Rollout.Canary > 0 ||
		len(g.Windows) > 0 || g.MaxPerHour > 0 {
		return
	}
	for _, d := range w.bucket.order {
		if d.counts() && !d.OnDemand && d.key() == g.GroupKey && t.hasFailed(g.GroupKey, d) &&
			!t.protects(g.GroupKey, d) {
			w.fail(ruleAtRest, "%s has the configuration from which %s has returned: %s", d.ID, g.GroupKey,
				w.describe(g.GroupKey))
		}
	}
}
