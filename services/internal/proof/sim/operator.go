package sim

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// operator simulates nstance-operator. It watches the leader's instances over a stream, and drains the nodes of
// instances that are being deleted. The stream ends when the leader ends or when a fault cuts it. The operator then
// lists the instances and watches again.
type operator struct {
	world     *World
	term      *term     // of the leader that it watches; nil: none
	since     time.Time // start of the current watch
	leave     []func()  // tell that leader that the operator is disconnected
	cutUntil  time.Time // the watch is cut until then
	idleUntil time.Time // it drains nothing until then
	announced map[ident.ID]bool
}

// run checks the stream every three seconds.
func (o *operator) run() {
	o.announced = map[ident.ID]bool{}
	o.world.every(3*time.Second, o.pollShard)
}

func (o *operator) pollShard() {
	w := o.world
	now := w.sched.now
	if o.term != nil && (o.term.server.term != o.term || !o.term.server.serving() || now.Before(o.cutUntil)) {
		o.stopWatching()
	}
	s := w.acting()
	if o.term != nil || s == nil || now.Before(o.cutUntil) || now.Before(s.deaf) {
		return
	}
	o.term, o.since = s.term, now
	for _, tenant := range []string{"default", "other"} {
		o.leave = append(o.leave, s.term.leader.State.OperatorConnected(tenant))
		for _, view := range s.term.leader.State.Instances(tenant, "") {
			p := &view.Plan
			if p.State == record.Deleting && !p.Drained && p.TerminateRequested.IsZero() &&
				now.Before(p.DeleteDeadline) {
				o.drain(view.Record.ID)
			}
		}
	}
}

// stopWatching ends the watch. The operator keeps its part in the drains that were announced until now.
func (o *operator) stopWatching() {
	if o.term == nil {
		return
	}
	for _, leave := range o.leave {
		leave()
	}
	o.term.watched = append(o.term.watched, watched{o.since, o.world.sched.now})
	o.term, o.leave = nil, nil
}

// watched is a time in which the operator watched a leader.
type watched struct{ since, until time.Time }

// takesPart reports whether the leader must wait for the operator before it terminates an instance: the operator
// watched when the drain was announced, or it may still connect. An operator that connects later may be too late,
// because the termination may be under way.
func (o *operator) takesPart(t *term, id ident.ID) bool {
	now := o.world.sched.now
	times := t.watched
	if o.term == t {
		times = append(slices.Clip(times), watched{o.since, now.Add(1)})
	}
	announced, known := t.announcedAt[id]
	return now.Sub(t.serving) < operatorsReturn || slices.ContainsFunc(times, func(w watched) bool {
		return known && !w.since.After(announced) && w.until.After(announced) ||
			w.until.Before(now) && now.Sub(w.until) < operatorsReturn
	})
}

// operatorsReturn is how long a leader waits for operators, less the skew of clocks (docs/reference/planning-rules.md,
// rule 64).
const operatorsReturn = 30*time.Second - 2*wallSkew

// hear handles a drain event from the stream.
func (o *operator) hear(t *term, id ident.ID) {
	t.announcedAt[id] = o.world.sched.now
	if o.term == t && !o.world.sched.now.Before(o.cutUntil) {
		o.drain(id)
	}
}

// drain drains a node. The drain may exceed its deadline, or never end.
func (o *operator) drain(id ident.ID) {
	o.announced[id] = true
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
	s.term.leader.State.Drained(id)
}

// lesson records when a leader learned of a deletion, and how long it must wait for the drain. at is when the bucket
// first returned the record to the leader or acknowledged the leader's write. If nobody reports the node as drained,
// the leader may terminate the VM only after the time `until`. This is the drain deadline, or a later time if the
// leader learned of the deletion late. The leader must then wait for half of the drain time or for 30 s, whichever is
// less (docs/evidence/reliability.md).
type lesson struct{ at, until time.Time }

// learn records that the bucket returned a record to this server.
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

// hasty reports whether a termination would come too early for the drain of the instance's node. left is the time for
// which the leader must still wait.
func (t *term) hasty(d *document) (left time.Duration, hasty bool) {
	w := t.server.world
	l, ok := t.learnt[d.ID]
	left = l.until.Sub(w.sched.now)
	return left, ok && left > 2*wallSkew && !w.people.drained[d.ID]
}

// announceable is the shortest drain time for which operators certainly receive the drain event before the deadline.
const announceable = 2*wallSkew + time.Second

// unaware reports whether the operator has missed a drain event for an instance. It returns false if the operator was
// not watching when the leader learned of the deletion. It also returns false if the drain time was too short for an
// event, or if the leader was slow. An instance that never registered has no node, and needs no event.
func (o *operator) unaware(t *term, d *document) bool {
	if o.term != t || t == nil || o.announced[d.ID] || len(d.PublicKey) == 0 {
		return false
	}
	l, ok := t.learnt[d.ID]
	return ok && o.since.Before(l.at) && l.until.Sub(l.at) > announceable && t.server.slowAt.Before(l.at)
}

func (o *operator) disturb(k Kind, d time.Duration) {
	until := o.world.sched.now.Add(d)
	if k == watchCut {
		o.cutUntil = until
		o.stopWatching()
	} else {
		o.idleUntil = until
	}
}
