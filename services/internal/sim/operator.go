package sim

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// operator watches the leader's instances, as nstance-operator does, and drains the nodes of those that are to go. Its stream ends with the
// leader, or is cut; then it lists what there is and watches anew.
type operator struct {
	world     *World
	term      *term     // of the leader that it watches; nil: none
	since     time.Time // it watches that one
	cutUntil  time.Time // it cannot
	idleUntil time.Time // it drains nothing
	told      map[ident.ID]bool
}

// run looks after the stream every few seconds.
func (o *operator) run() {
	o.told = map[ident.ID]bool{}
	o.world.every(3*time.Second, o.look)
}

func (o *operator) look() {
	w := o.world
	now := w.sched.now
	if o.term != nil && (o.term.server.term != o.term || !o.term.server.serving() || now.Before(o.cutUntil)) {
		o.term = nil
	}
	s := w.acting()
	if o.term != nil || s == nil || now.Before(o.cutUntil) || now.Before(s.deaf) {
		return
	}
	o.term, o.since = s.term, now
	for _, tenant := range []string{"default", "other"} {
		for _, view := range s.term.leader.World.Instances(tenant, "") {
			p := &view.Plan
			if p.State == record.Deleting && !p.Drained && p.TerminateRequested.IsZero() && now.Before(p.DeleteDeadline) {
				o.drain(view.Record.ID)
			}
		}
	}
}

// hear takes the announcement of a drain off the stream.
func (o *operator) hear(t *term, id ident.ID) {
	if o.term == t && !o.world.sched.now.Before(o.cutUntil) {
		o.drain(id)
	}
}

// drain drains a node, which may take longer than its deadline, or never end.
func (o *operator) drain(id ident.ID) {
	o.told[id] = true
	w := o.world
	d := w.dice("drain", hashText(id.String()))
	if d.IntN(3) == 0 || w.sched.now.Before(o.idleUntil) {
		return
	}
	w.sched.after(d.between(time.Second, 30*time.Second), func() { o.acknowledge(id, 5) })
}

func (o *operator) acknowledge(id ident.ID, tries int) {
	w := o.world
	s := w.acting()
	if s == nil || w.sched.now.Before(o.cutUntil) {
		if tries > 0 {
			w.sched.after(5*time.Second, func() { o.acknowledge(id, tries-1) })
		}
		return
	}
	w.trace("%s is drained", id)
	w.people.drained[id] = true
	s.term.leader.World.Drained(id)
}

// unaware says whether the operator watched all the time, and never heard that an instance was to be drained that had the time for it.
func (o *operator) unaware(t *term, d *document) bool {
	return o.term == t && t != nil && o.since.Before(d.since) && !o.told[d.ID] && d.Deadline.Sub(d.since) > 45*time.Second
}

func (o *operator) disturb(k Kind, d time.Duration) {
	until := o.world.sched.now.Add(d)
	if k == watchCut {
		o.cutUntil, o.term = until, nil
	} else {
		o.idleUntil = until
	}
}
