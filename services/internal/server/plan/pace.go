package plan

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
)

const (
	paceFirst  = 250 * time.Millisecond // after the first throttled call
	paceMost   = 10 * time.Second
	paceWindow = time.Second // throttled answers within it count once
	paceMemory = time.Minute // after the last throttled answer
	// createsAhead is how many create calls of a group may wait for their turn. It is low, because a decision that is
	// made later uses newer information.
	createsAhead = 4

	reasonPaced = "the provider throttles creates"
)

// Pace is how fast a leader calls the provider to create VMs (rule 41). The zero value means no limit.
type Pace struct {
	Every  time.Duration // between two calls; 0: no limit
	Next   time.Time     // when the next call may start
	Slowed time.Time     // when a throttled answer last counted
}

// Limited reports whether calls must wait for their turn.
func (p Pace) Limited(now time.Time) bool { return p.Every > 0 && now.Before(p.Slowed.Add(paceMemory)) }

// ApplyCall returns the pace after a create call started.
func (p Pace) ApplyCall(now time.Time) Pace {
	p.Next = now.Add(p.Every)
	return p
}

// ApplyThrottled returns the pace after a throttled answer. The provider usually throttles concurrent calls together,
// so the throttled answers of such calls count only once.
func (p Pace) ApplyThrottled(now time.Time) Pace {
	switch {
	case !p.Limited(now):
		p.Every = paceFirst
	case now.Before(p.Slowed.Add(max(paceWindow, p.Every))):
		return p
	default:
		p.Every = min(p.Every*3/2, paceMost)
	}
	p.Slowed, p.Next = now, now.Add(p.Every)
	return p
}

// ApplyAccepted returns the pace after a create call that was not throttled and whose result is known.
func (p Pace) ApplyAccepted(now time.Time) Pace {
	if !p.Limited(now) {
		return Pace{}
	}
	p.Every -= p.Every / 20
	return p
}

// Turn is a create call that waits for its turn.
type Turn struct {
	Group     config.GroupKey
	Voluntary bool // see [Action]
}

// NextTurn is rule 42 (take turns): it returns the index of the waiting call whose turn is next. waiting is in the
// order of arrival. Turns have increasing numbers; served holds the number of the last turn of each group.
func NextTurn(waiting []Turn, served map[config.GroupKey]uint64) int {
	best := 0
	for n := range waiting {
		switch a, b := waiting[n], waiting[best]; {
		case a.Voluntary != b.Voluntary:
			if b.Voluntary {
				best = n
			}
		case served[a.Group] < served[b.Group]:
			best = n
		}
	}
	return best
}

// WaitingCreates are the create calls that wait for their turn.
type WaitingCreates struct {
	Pace Pace
	// Needed and Voluntary count the waiting calls of the group: those for instances that the group lacks, and those
	// for voluntary replacements. ShardNeeded counts the needed ones of all groups.
	Needed, Voluntary, ShardNeeded int
	// PerCall is how many instances of the group one call can create. 0 means one.
	PerCall int
}

// paced is rule 43 (create late). lacking is the number of instances that the group lacks, and voluntary the number of
// voluntary replacements that it wants. paced returns how many of each may be created now.
func (g *group) paced(lacking, voluntary int) (int, int, steps) {
	var out steps
	w := &g.Waiting
	if !w.Pace.Limited(g.Now) {
		return lacking, voluntary, out
	}
	ahead := func(waiting int) int { return max(0, createsAhead-waiting) * max(1, w.PerCall) }
	n, m := min(lacking, ahead(w.Needed)), min(voluntary, ahead(w.Voluntary))
	if n < lacking || w.Needed > 0 || w.ShardNeeded > 0 {
		m = 0
	}
	if n < lacking || m < voluntary {
		out.block(reasonPaced)
		out.wait(g.Now.Add(max(w.Pace.Every, paceFirst)))
	}
	return n, m, out
}
