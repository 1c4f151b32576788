package plan

import "time"

// Progress is how far the rollout of a group's present configuration is. The zero value means that none is under way.
type Progress struct {
	// Since is when the rollout began or was resumed, or when this leader took over. Done counts the instances that it
	// has replaced since then.
	Since time.Time
	Done  int
	// Left is the estimate of the time that the rest takes. It is zero before the first wave is done.
	Left time.Duration
}

// progress returns how far the rollout is. The estimate assumes that the rest takes as long per instance as the rollout
// has taken since it began, and at least as long as max_per_hour permits.
func (g *group) progress() Progress {
	t := &g.tally
	left := t.of[classDrifted] + t.of[classUnreadyDrifted]
	if left == 0 || g.ConfiguredAt.IsZero() {
		return Progress{}
	}
	p := Progress{Since: g.ConfiguredAt}
	for n := range g.Instances {
		i, c := &g.Instances[n], g.class(n)
		if (c == classWell || c == classAged || c == classReturning) && !i.joined().Before(p.Since) &&
			!Drifted(&g.Group, g.Image, i) {
			p.Done++
		}
	}
	wave := g.mayBeUnavailable()
	if wave == 0 {
		wave = g.surge
		// A replacement is done when the VM of the old instance ends.
		p.Done = max(0, p.Done-t.draining-t.marking-max(0, t.total()-g.desired))
		left += t.draining + t.marking
	}
	if p.Done < min(wave, g.desired) {
		return p
	}
	p.Left = g.Now.Sub(p.Since) / time.Duration(p.Done) * time.Duration(left)
	if most := g.Group.MaxPerHour; most > 0 {
		p.Left = max(p.Left, time.Duration((left-1)/most)*time.Hour)
	}
	return p
}
