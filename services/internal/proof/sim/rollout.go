package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// rolloutLag is the longest time between a leader's decision to replace an instance and the event of the create call.
// The checks learn of the decision from this event.
const rolloutLag = 4 * minute

// countedBy is how long a leader may take to count a failed instance, after the record of its deletion is durable.
const countedBy = 10 * time.Second

// drawRollout draws the options of a group's rollouts, and its scheduled sizes. If limited is true, the group gets
// windows and max_per_hour.
func (g *spec) drawRollout(d *dice, limited bool) {
	g.rollout, g.disruption, g.schedules = config.Rollout{}, config.Disruption{}, nil
	if d.IntN(2) == 0 {
		g.rollout = config.Rollout{Paused: d.IntN(3) == 0, Canary: d.IntN(3),
			BakeTime:       config.Duration(d.between(0, 12*time.Minute)),
			HaltOnFailures: d.IntN(3), MaxUnavailable: d.IntN(3), OnImageChange: d.IntN(2) == 0}
		if g.rollout.HaltOnFailures == 1 {
			g.rollout.OnHalt = config.OnHaltRollback
		}
	}
	if d.IntN(4) == 0 || limited {
		g.disruption.MaxPerHour = 1 + d.IntN(8)
	}
	if d.IntN(4) == 0 || limited {
		from := d.IntN(30)
		g.disruption.Windows = []string{fmt.Sprintf("Mon-Sun 00:%02d-00:%02d UTC", from, from+1+d.IntN(15))}
	}
	if d.IntN(6) == 0 {
		g.schedules = []config.Schedule{{Cron: "0 0 1 1 *", Size: d.IntN(5)},
			{Cron: fmt.Sprintf("%d 0 1 1 *", 3+d.IntN(35)), Size: d.IntN(5)}}
	}
}

// checkRollout checks that an outdated instance may be replaced. decided is when the leader decided on the replacement.
// wave is the number of replacements that are known to belong to the same decision. If the configuration has changed
// since the decision, checkRollout checks nothing.
func (w *World) checkRollout(t *term, key config.GroupKey, id ident.ID, wave int, decided time.Time) {
	g, ok := t.groups[key]
	changed := t.rolloutAt[key]
	if !ok || changed.IsZero() || !decided.After(changed) || !decided.After(t.beforeAt) ||
		decided.Before(t.server.pausedUntil.Add(time.Second)) || t.server.fooled || w.recentlyFooled() {
		return
	}
	if g.Rollout.Paused {
		w.fail(rulePause, "%s of %s is replaced during a pause that began %v ago", id, key, w.sched.now.Sub(changed))
	}
	if !windowOpen(g, decided) {
		w.fail(ruleWindows, "%s of %s is replaced outside the windows %v", id, key, g.Windows)
	}
	w.checkCanary(t, key, g, id, decided)
	w.checkHalt(t, key, g, id, decided)
	w.checkPerHour(t, key, g, id, wave, decided)
}

// windowOpen reports whether a window of the group was open at a time. The leader's clock may be wrong, so windowOpen
// also returns true if a window was open up to wallSkew earlier or later.
func windowOpen(g config.Group, at time.Time) bool {
	for skew := -wallSkew; skew <= wallSkew; skew += wallSkew / 4 {
		for _, window := range g.Windows {
			if open, _ := window.Open(at.Add(skew)); open {
				return true
			}
		}
	}
	return len(g.Windows) == 0
}

// checkCanary checks that an outdated instance is replaced only after the bake time of the canaries. It checks nothing
// until the rollout has all its canaries. A wave begins only while all instances are healthy, so the leader knows all
// registrations when it decides.
func (w *World) checkCanary(t *term, key config.GroupKey, g config.Group, id ident.ID, decided time.Time) {
	running, baked := 0, 0
	for _, d := range w.bucket.order {
		if d.OnDemand || d.isSpare() || d.key() != key || !t.current(g, d) || !d.RegisteredAt.Before(decided) ||
			d.RegisteredAt.IsZero() {
			continue
		}
		if m := w.fleet.byInstance[d.ID]; d.counts() && t.marked[d.ID] <= d.Revision && m != nil && m.alive() &&
			!m.doomed() {
			running++
		}
		if stayed := d.counts() || d.since.After(decided) || d.decided.at.After(decided); stayed &&
			decided.Sub(d.RegisteredAt) >= time.Duration(g.Rollout.BakeTime)-2*wallSkew {
			baked++
		}
	}
	if canary := g.Rollout.Canary; running >= canary && baked < canary {
		w.fail(ruleCanary, "%s of %s is replaced, and only %d of %d canaries have run for %v", id, key, baked, canary,
			g.Rollout.BakeTime)
	}
}

// checkHalt checks that no outdated instance is replaced after too many instances with the new configuration failed. It
// ignores a failed instance if the leader does not know whether the bucket has its decision to delete the instance. The
// leader does not count such a failure.
func (w *World) checkHalt(t *term, key config.GroupKey, g config.Group, id ident.ID, decided time.Time) {
	if g.Rollout.HaltOnFailures == 0 {
		return
	}
	failures := 0
	for _, d := range w.bucket.order {
		reason := d.failure()
		why := whyOf(reason)
		failed := why == silence || why == unfit || why == failing ||
			strings.HasPrefix(reason, notRegistered) ||
			strings.HasPrefix(reason, "its VM ended before its agent registered")
		if failed && !d.doubtful && !d.OnDemand && d.key() == key && t.current(g, d) && d.decided.term == t.number &&
			d.decided.at.After(t.rolloutAt[key]) && decided.Sub(d.decided.at) > countedBy {
			failures++
		}
	}
	if failures >= g.Rollout.HaltOnFailures {
		w.fail(ruleHalt, "%s of %s is replaced after %d failures with the new configuration", id, key, failures)
	}
}

// checkPerHour checks a wave against max_per_hour. It adds the instances that were created in the hour before the wave
// and those that the wave replaces. It leaves out created instances that the leader may not know.
func (w *World) checkPerHour(t *term, key config.GroupKey, g config.Group, id ident.ID, wave int, decided time.Time) {
	n := 0
	for _, d := range w.bucket.order {
		joined := d.CreatedAt
		if d.Spare != nil {
			joined = d.Spare.PromotedAt
		}
		age := decided.Sub(joined)
		known := d.ReservedTerm == t.number || d.since.Before(t.began) && w.rates.of[bucketStale] == 0
		if d.stays() && !d.OnDemand && !d.isSpare() && d.key() == key && known &&
			age > 2*wallSkew && age < time.Hour-2*wallSkew {
			n++
		}
	}
	if most := g.MaxPerHour; most > 0 && n+wave > most {
		w.fail(rulePerHour, "%s of %s is replaced as one of %d, and %d were created within the hour, at most %d may be",
			id, key, wave, n, most)
	}
}

// waveOf notes a replacement of an outdated instance. It returns how many such replacements the leader decided on at
// the same time.
func (p *people) waveOf(key config.GroupKey, decided time.Time) (n int) {
	p.rolled[key] = append(p.rolled[key], decided)
	for _, other := range p.rolled[key] {
		if decided.Sub(other).Abs() < time.Millisecond {
			n++
		}
	}
	return n
}

// checkFirst checks the removal of an instance before it has a healthy replacement. At most max_unavailable of the
// group may be unavailable. If the instance is outdated, the group's rollout must also permit its replacement.
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
		w.checkRollout(t, key, d.ID, 1, w.sched.now)
	}
}
