package plan

import (
	"fmt"
	"time"
)

const (
	lapseWindow  = time.Hour // in which lapses are counted
	flappingFrom = 5         // lapses in an hour

	reasonRecovered = "it recovered, but its replacement is under way"
)

// After returns the count after one more lapse.
func (l Lapses) After(now time.Time) Lapses {
	if l.Count == 0 || !now.Before(l.Since.Add(lapseWindow)) {
		l = Lapses{Since: now}
	}
	l.Count++
	return l
}

// isFlapping is rule 63: the instance restarted or became unhealthy too often within an hour.
func (g *group) isFlapping(i *Instance) (bool, time.Time) {
	if i.Lapses.Count < flappingFrom || i.RegisteredAt.IsZero() || !i.PreservedAt.IsZero() || g.isProtected(i) {
		return false, time.Time{}
	}
	over, until := reached(i.Lapses.Since.Add(lapseWindow), g.Now)
	return !over, until
}

// findReplaced is rule 62: it marks the instances with a replacement that must be finished. A replacement counts until
// its VM ends, or until it fails to register in time.
func (g *group) findReplaced() {
	for n := range g.Instances {
		i := &g.Instances[n]
		if i.Finishes.IsZero() || g.facts[n]&(factLeaving|factPreserved|factEnded|factNoticed|factPoweringOff) != 0 {
			continue
		}
		if g.facts[n].has(factUnregistered) {
			overdue, until := reached(i.launched().Add(g.Settings.RegistrationTimeout), g.Now)
			g.planAgainAt(until)
			if overdue {
				continue
			}
		}
		if at, found := g.find(i.Finishes); found && g.facts[at]&(factLeaving|factPreserved|factUnregistered) == 0 {
			g.facts[at] |= factReplaced | factUnwell
		}
	}
}

// planFlaps raises the alert [AlertFlaps] about an instance when it is flapping, or recovers while its replacement is
// under way. It resolves the alert when neither is true any more.
func (g *group) planFlaps(out *steps) {
	for n := range g.Instances {
		i, f := &g.Instances[n], g.facts[n]
		recovered := f.has(factReplaced) && i.reportsInTime(&g.Settings, g.Now)
		switch flaps := f.has(factFlapping) || recovered; {
		case flaps && !i.FlapsRaised && !f.has(factLeaving):
			row := 62
			if f.has(factFlapping) {
				row = 63
			}
			out.add(Action{Kind: RaiseError, Alert: AlertFlaps, Instance: i.ID, Reason: g.flapsReason(i), Rule: row})
		case i.FlapsRaised && !f.has(factReplaced) && !f.has(factFlapping) && !f.has(factLeaving):
			out.add(Action{Kind: ResolveError, Alert: AlertFlaps, Instance: i.ID, Reason: "it no longer flaps"})
		}
	}
}

// flapsReason says why an instance counts as flapping.
func (g *group) flapsReason(i *Instance) string {
	if flaps, _ := g.isFlapping(i); flaps {
		return fmt.Sprintf("it restarted or became unhealthy %d times within an hour", flappingFrom)
	}
	return reasonRecovered
}
