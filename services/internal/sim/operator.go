package sim

import (
	"bytes"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// operator watches the leader's instances, as nstance-operator does, and drains the nodes of those that are to go. Its
// stream ends with the leader, or is cut; then it lists what there is and watches anew.
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
			if p.State == record.Deleting && !p.Drained && p.TerminateRequested.IsZero() &&
				now.Before(p.DeleteDeadline) {
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

// lesson is what a leader has heard of a deletion: when the bucket first told it, as an answer to its write or because
// it read the record, and until when it has to leave the node alone then. Whoever hears of it late grants the rest of
// half the drain, at most 30 s (docs/evidence/reliability.md).
type lesson struct{ at, until time.Time }

// learn notes that the bucket tells a server of a record.
func (s *server) learn(key string, body []byte) {
	t := s.term
	if t == nil || !strings.HasPrefix(key, recordPrefix) || !bytes.Contains(body, []byte(record.Deleting)) {
		return
	}
	d, ok := s.world.bucket.parse(key, body)
	if _, known := t.learnt[d.ID]; !ok || known || d.State != record.Deleting {
		return
	}
	now := s.world.sched.now
	l := lesson{at: now, until: now.Add(min(d.Deadline.Sub(d.DeletingAt)/2, 30*time.Second))}
	if d.Deadline.After(l.until) {
		l.until = d.Deadline
	}
	t.learnt[d.ID] = l
}

// hasty says for how long a leader should still leave a node alone that nobody said was drained.
func (t *term) hasty(d *document) (left time.Duration, hasty bool) {
	w := t.server.world
	l, ok := t.learnt[d.ID]
	left = l.until.Sub(w.sched.now)
	return left, ok && left > 2*wallSkew && !w.people.drained[d.ID]
}

// announceable is how much time a leader has to have for a drain that operators hear of it for certain.
const announceable = 2*wallSkew + time.Second

// unaware says whether the operator watched since before the leader heard of a deletion, and never heard that the
// instance was to be drained, although there was time for that. A leader that stood still meanwhile may have had none;
// and whose agent never registered has no node (its create call may have taken all of the time).
func (o *operator) unaware(t *term, d *document) bool {
	if o.term != t || t == nil || o.told[d.ID] || len(d.PublicKey) == 0 {
		return false
	}
	l, ok := t.learnt[d.ID]
	return ok && o.since.Before(l.at) && l.until.Sub(l.at) > announceable && t.server.slowAt.Before(l.at)
}

func (o *operator) disturb(k Kind, d time.Duration) {
	until := o.world.sched.now.Add(d)
	if k == watchCut {
		o.cutUntil, o.term = until, nil
	} else {
		o.idleUntil = until
	}
}
