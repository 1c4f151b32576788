package plan

import (
	"slices"
	"time"
)

const (
	lateTimes = 10               // how many times the usual time makes a registration late
	lateFloor = 10 * time.Second // no registration is late before
	// lateDefault is when a registration is late in a group of which no instance has registered yet.
	lateDefault = 2 * time.Minute
	// usualOf is how many of the newest instances say what is usual.
	usualOf = 100
)

// usualRegistration returns how long it usually takes from the create call for an instance of the group until its agent
// has registered: the median of the newest instances. It returns 0 if none has registered.
func (g *group) usualRegistration() time.Duration {
	took := make([]time.Duration, 0, min(usualOf, len(g.Instances)))
	for n := len(g.Instances) - 1; n >= 0 && len(took) < usualOf; n-- {
		i := &g.Instances[n]
		if d := i.RegisteredAt.Sub(i.CreatedAt); !i.RegisteredAt.IsZero() && !i.CreatedAt.IsZero() && d > 0 {
			took = append(took, d)
		}
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// lateAfter returns when a registration is late: after ten times the usual time. If half of registration_timeout is
// over sooner, it is late then, but never before twice the usual time or ten seconds.
func lateAfter(usual, timeout time.Duration) time.Duration {
	if usual == 0 {
		return max(lateFloor, min(lateDefault, timeout/2))
	}
	return max(lateFloor, min(lateTimes*usual, max(timeout/2, 2*usual)))
}

// registersFrom returns from when the time that an instance has to register counts. This is the launch of its VM, but
// not before the first agent connects to this leader: the leader may have been unreachable. If no agent has connected,
// ok is false, unless no instance of the group is registered. Then the time counts at the earliest from the leader's
// term.
func (g *group) registersFrom(i *Instance) (from time.Time, ok bool) {
	from = g.SilenceFrom
	switch {
	case from.IsZero() && (g.LeaderSince.IsZero() || g.registered):
		return time.Time{}, false
	case from.IsZero():
		from = g.LeaderSince
	}
	return latest(i.launched(), from), true
}

// isLate reports whether an instance that has not registered is later than usual. until is when it will be.
func (g *group) isLate(n int) (yes bool, until time.Time) {
	const other = factLeaving | factPreserved | factCreating | factEnded
	i := &g.Instances[n]
	if from, ok := g.registersFrom(i); ok && g.facts[n]&(factUnregistered|other) == factUnregistered {
		return reached(from.Add(g.lateAfter), g.Now)
	}
	return false, time.Time{}
}

func (g *group) late(n int) bool {
	yes, _ := g.isLate(n)
	return yes
}

// planLateAlert raises the alert [AlertLateRegistration] while a VM of the group has not registered although others
// usually had by then, and resolves it.
func (g *group) planLateAlert(out *steps) {
	late := -1
	for n := range g.Instances {
		if !g.booting {
			break
		}
		yes, until := g.isLate(n)
		if out.wait(until); yes && late < 0 && g.class(n) != classFailed {
			late = n
		}
	}
	switch {
	case late >= 0 && !g.LateRaised:
		reason := "the VM of " + g.Instances[late].ID.String() + " has not registered within " + inWords(g.lateAfter)
		if g.usual > 0 {
			reason += " (usually " + inWords(g.usual) + ")"
		}
		out.add(Action{Kind: RaiseError, Alert: AlertLateRegistration, Reason: reason})
	case late < 0 && g.LateRaised:
		out.add(Action{Kind: ResolveError, Alert: AlertLateRegistration, Reason: "no VM is late any more"})
	}
}
