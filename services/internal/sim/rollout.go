package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// rolloutLag bounds the time between the decision to replace an outdated instance and the sign of it that the checks
// see: the event about the create call.
const rolloutLag = 4 * minute

// drawRollout draws how a group replaces its instances, and sizes that begin at certain times.
func (g *spec) drawRollout(d *dice) {
	g.rollout, g.disruption, g.schedules = config.Rollout{}, config.Disruption{}, nil
	if d.IntN(2) == 0 {
		g.rollout = config.Rollout{Paused: d.IntN(3) == 0, Canary: d.IntN(3),
			BakeTime:       config.Duration(d.between(0, 12*time.Minute)),
			HaltOnFailures: d.IntN(3), MaxUnavailable: d.IntN(3), OnImageChange: d.IntN(2) == 0}
	}
	if d.IntN(4) == 0 {
		g.disruption.MaxPerHour = 1 + d.IntN(8)
	}
	if d.IntN(4) == 0 {
		from := d.IntN(30)
		g.disruption.Windows = []string{fmt.Sprintf("Mon-Sun 00:%02d-00:%02d UTC", from, from+1+d.IntN(15))}
	}
	if d.IntN(6) == 0 {
		g.schedules = []config.Schedule{{Cron: "0 0 1 1 *", Size: d.IntN(5)},
			{Cron: fmt.Sprintf("%d 0 1 1 *", 3+d.IntN(35)), Size: d.IntN(5)}}
	}
}

// checkRollout checks that an outdated instance may be replaced now, from the configuration that its leader has had in
// force for longer than a decision takes.
func (w *World) checkRollout(t *term, key config.GroupKey, id ident.ID) {
	g, ok := t.groups[key]
	changed := t.rolloutAt[key]
	if !ok || changed.IsZero() || w.sched.now.Sub(changed) < rolloutLag || t.server.slowness() > 0 ||
		w.sched.now.Sub(t.server.pausedAt) < rolloutLag || t.server.fooled || w.recentlyFooled() {
		return
	}
	if g.Rollout.Paused {
		w.fail(rulePause, "%s of %s is replaced during a pause that began %v ago", id, key, w.sched.now.Sub(changed))
	}
	if !w.windowOpen(g) {
		w.fail(ruleWindows, "%s of %s is replaced outside the windows %v", id, key, g.Windows)
	}
	w.checkCanary(t, key, g, id)
	w.checkHalt(t, key, g, id)
	w.checkPerHour(key, g, id)
}

// windowOpen reports whether a window of the group was open at some time at which the decision may have been made.
func (w *World) windowOpen(g config.Group) bool {
	for at := wallSkew; at >= -rolloutLag-wallSkew; at -= 10 * time.Second {
		for _, window := range g.Windows {
			if open, _ := window.Open(w.sched.now.Add(at)); open {
				return true
			}
		}
	}
	return len(g.Windows) == 0
}

// checkCanary checks that no outdated instance is replaced while enough canaries run, but not for long enough.
func (w *World) checkCanary(t *term, key config.GroupKey, g config.Group, id ident.ID) {
	running, baked := 0, 0
	for _, d := range w.bucket.order {
		if !d.stays() || d.OnDemand || d.key() != key || !t.current(g, d) || d.RegisteredAt.IsZero() {
			continue
		}
		if w.sched.now.Sub(d.RegisteredAt) > rolloutLag+wallSkew {
			running++
		}
		if w.sched.now.Sub(d.RegisteredAt) >= time.Duration(g.Rollout.BakeTime)-2*wallSkew {
			baked++
		}
	}
	if canary := g.Rollout.Canary; running >= canary && baked < canary {
		w.fail(ruleCanary, "%s of %s is replaced, and only %d of %d canaries have run for %v", id, key, baked, canary,
			g.Rollout.BakeTime)
	}
}

// checkHalt checks that no outdated instance is replaced after too many instances with the new configuration failed. A
// leader counts only failures whose record it could write without a doubt.
func (w *World) checkHalt(t *term, key config.GroupKey, g config.Group, id ident.ID) {
	if g.Rollout.HaltOnFailures == 0 || w.rates.of[bucketLost]+w.rates.of[bucketLate]+w.rates.of[bucketRepeated] > 0 {
		return
	}
	failures := 0
	for _, d := range w.bucket.order {
		why := whyOf(d.Reason)
		failed := why == silence || why == unfit || why == failing ||
			strings.HasPrefix(d.Reason, "its agent did not register in time") ||
			strings.HasPrefix(d.Reason, "its VM ended before its agent registered")
		if failed && d.key() == key && t.current(g, d) && d.decided.term == t.number &&
			d.decided.at.After(t.rolloutAt[key]) && w.sched.now.Sub(d.decided.at) > rolloutLag {
			failures++
		}
	}
	if failures >= g.Rollout.HaltOnFailures {
		w.fail(ruleHalt, "%s of %s is replaced after %d failures with the new configuration", id, key, failures)
	}
}

// checkPerHour checks how many outdated instances are replaced in an hour. A replacement that ended since then does not
// count, because its record may be gone.
func (w *World) checkPerHour(key config.GroupKey, g config.Group, id ident.ID) {
	n := 0
	for _, other := range w.people.rolled[key] {
		if w.sched.now.Sub(other.at) < time.Hour-rolloutLag-2*wallSkew && w.bucket.byID[other.by].stays() {
			n++
		}
	}
	if most := g.MaxPerHour; most > 0 && n > most {
		w.fail(rulePerHour, "%s of %s is replaced as number %d within the hour, at most %d may be", id, key, n, most)
	}
}

// checkFirst checks an instance that is deleted before its replacement is healthy.
func (w *World) checkFirst(t *term, key config.GroupKey, d, next *document, least int) {
	unavailable := t.groups[key].Rollout.MaxUnavailable
	registered := w.remaining(t, key, func(other *document) bool { return other.State == "registered" })
	if before, ok := t.before[key]; ok && w.sched.now.Sub(t.beforeAt) < minute {
		unavailable = max(unavailable, before.Rollout.MaxUnavailable)
	}
	if d.State == "registered" && registered < least-unavailable { // a booting instance is not available
		w.fail(ruleReplaced, "%s is removed (%s), %d of %d others are left and %d may be unavailable: %s", d.ID,
			next.Reason, registered, least, unavailable, w.describe(key))
	}
	if strings.HasPrefix(next.Reason, "its infra configuration") || strings.HasPrefix(next.Reason, oldImage) {
		w.checkRollout(t, key, d.ID)
	}
}
