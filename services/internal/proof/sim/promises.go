package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// storedLock is the lock as the bucket really holds it, regardless of the faults that clients see.
type storedLock struct {
	record.Lock
	there bool
	since time.Duration
	body  []byte
}

// token returns the token of the stored lock, or "" if the lock is missing.
func (l *storedLock) token() objstore.Token {
	if !l.there {
		return ""
	}
	return tokenOf(l.body)
}

// tokenOf computes a token in the same way as package mem. If package mem makes another token, the run fails with
// ruleSimulator.
func tokenOf(body []byte) objstore.Token {
	sum := sha256.Sum256(body)
	return objstore.Token(hex.EncodeToString(sum[:16]))
}

// reign is a period in which a process was the leader of a term, according to the lock. until is negative while the
// period lasts.
type reign struct {
	process     string
	term        uint64
	from, until time.Duration
}

// vow is the latest promise of a process: it does not write the lock before the time `until` on its own clock.
type vow struct {
	to    string
	term  uint64
	until election.Instant
}

// beats is the number of heartbeats whose sending times the checks remember. The code under test remembers fewer.
const beats = 64

// acts, waits and keeps are factors for the length of a lease or a promise. A leader may act for acts times that
// length. Other servers wait for waits times that length before a takeover. A server keeps its promise for keeps times
// that length. fastest is the speed of the fastest clock.
const (
	acts, waits, keeps = 0.95, 1.06, 1.1
	fastest            = 1.04
)

func fraction(d time.Duration, f float64) time.Duration { return time.Duration(float64(d) * f) }

// heir returns the living server that the lock names as its heir, or nil if there is none.
func (w *World) heir() *server {
	if w.lock.there && !w.lock.Released {
		if p := w.processOf(w.lock.Heir); p != nil {
			return p.server
		}
	}
	return nil
}

// lockChanged records a new version of the lock when the write of that version takes effect.
func (w *World) lockChanged(body []byte) {
	before := w.lock
	if body == nil {
		w.lock = storedLock{since: w.sched.elapsed} // the leader cannot know of the removal: its reign continues
		return
	}
	lock, err := record.DecodeLock(body)
	if err != nil {
		w.fail(ruleSimulator, "the lock cannot be read: %v", err)
		return
	}
	w.lock = storedLock{Lock: lock, there: true, since: w.sched.elapsed, body: slices.Clone(body)}
	if w.tracing() {
		w.trace("lock: %s, term %d, revision %d, heir %q, released: %t", lock.Incarnation, lock.Term, lock.Revision,
			lock.Heir.Incarnation, lock.Released)
	}
	if before.there && (lock.Term < before.Term || lock.Revision <= before.Revision) {
		w.fail(ruleRisingTerms, "the lock goes back from term %d, revision %d, to %d, %d", before.Term, before.Revision,
			lock.Term, lock.Revision)
	}
	if n := len(w.reigns); n > 0 && w.reigns[n-1].until < 0 {
		last := &w.reigns[n-1]
		if last.process == lock.Incarnation && last.term == lock.Term && !lock.Released {
			return
		}
		last.until = w.sched.elapsed
	}
	if !lock.Released {
		w.reigns = append(w.reigns, reign{process: lock.Incarnation, term: lock.Term, from: w.sched.elapsed, until: -1})
	}
	if before.there && before.Incarnation != lock.Incarnation {
		w.checkDeposed(&before)
	}
	if before.there && !before.Released && before.Heir.Incarnation == lock.Incarnation {
		w.result.Inherited++
	}
}

// checkDeposed checks that a leader cannot act after another server's write has taken over the lock. This must hold
// even before the new leader acts.
func (w *World) checkDeposed(before *storedLock) {
	p := w.processOf(election.Peer{ID: before.LeaderID, Incarnation: before.Incarnation})
	if p == nil || p.server.fooled {
		return
	}
	if until, term := p.server.elector.ActUntil(); until > p.server.clock() {
		w.fail(ruleOneLeader, "%s may act in term %d, and %s has taken its lock", p.name, term, w.lock.Incarnation)
	}
}

// says records a message when a process sends it, before the network can drop or delay it.
func (s *server) says(m election.Message) {
	switch m := m.(type) {
	case election.Heartbeat:
		s.beats[m.Beat%beats] = s.clock()
	case election.Promise:
		until := s.clock().Add(fraction(m.Length, keeps))
		s.vow = vow{to: m.Leader.Incarnation, term: m.Term, until: max(s.vow.until, until)}
		for _, condition := range s.flying {
			if lock := &s.world.lock; condition.Holds(lock.token(), lock.there) {
				s.world.fail(rulePromise, "%s promises not to take over, while its takeover may still succeed",
					s.process.name)
			}
		}
	}
}

// hears records a message that a process receives.
func (s *server) hears(in election.Input) {
	switch m := in.(type) {
	case election.Promise:
		if sent := s.beats[m.Beat%beats]; m.Leader.Incarnation == s.process.name && m.Length == s.options.PeerLease {
			s.promises[m.Standby.Incarnation] = max(s.promises[m.Standby.Incarnation], sent)
		}
	case election.Handover:
		if m.Leader.Incarnation == s.vow.to && m.Term == s.vow.term {
			s.vow.until = min(s.vow.until, s.clock())
		}
	}
}

// flies records a write of the lock when a server sends it, and checks that the server may take the lock at that time.
// The check does not use the code under test. It contains the rules of docs/concepts/election.md itself.
func (s *server) flies(a election.WriteLock) {
	w := s.world
	v := &w.lock
	s.flying = slices.DeleteFunc(s.flying, func(c objstore.Condition) bool { return !c.Holds(v.token(), v.there) })
	// Remember the write only if it replaces the lock. A write that creates the lock does not depend on a version of
	// the lock (docs/concepts/election.md).
	if a.Condition != objstore.IfAbsent() {
		s.flying = append(s.flying, a.Condition)
	}
	if !v.there || v.Released || v.Incarnation == s.process.name || !a.Condition.Holds(w.lock.token(), true) {
		return
	}
	if state, _ := w.provider.MachineState(w.outside, v.Machine); state == infra.Deleted {
		return
	}
	switch age := w.sched.elapsed - v.since; {
	case s.vow.until > s.clock():
		w.fail(rulePromise, "%s takes the lock over %v before the end of its promise", s.process.name,
			s.vow.until.Sub(s.clock()))
	case v.Heir.Incarnation == s.process.name && s.vow.to == v.Incarnation && s.vow.term == v.Term:
	case age < fraction(v.Lease(), waits/fastest):
		w.fail(rulePromise, "%s takes over %v after the renewal of a lock with a lease of %v, and is not its heir",
			s.process.name, age, v.Lease())
	}
}

// checkPromise checks that a leader with an heir may act only as long as its heir has promised not to take over.
func (w *World) checkPromise(s *server) {
	v := &w.lock
	if s.fooled || !v.there || v.Heir == (record.LockHeir{}) || v.Incarnation != s.process.name {
		return
	}
	const rounding = time.Microsecond
	until, _ := s.elector.ActUntil()
	if end := s.promises[v.Heir.Incarnation].Add(fraction(s.options.PeerLease, acts) + rounding); until > max(end,
		s.clock()) {
		w.fail(rulePromise, "%s would act for %v, and the promise of its heir %s ends in %v", s.process.name,
			until.Sub(s.clock()), v.Heir.Incarnation, end.Sub(s.clock()))
	}
}

// checkProof checks a proof of leadership that a server requested at the time `asked`. The server must have led at some
// moment after that.
func (w *World) checkProof(s *server, asked time.Duration) {
	if s.term == nil {
		return
	}
	for i := len(w.reigns) - 1; i >= 0; i-- {
		r := &w.reigns[i]
		if r.until >= 0 && r.until < asked {
			break
		}
		if r.process == s.process.name && r.term == s.term.number {
			return
		}
	}
	w.fail(ruleProof, "%s asked at %v whether it leads in term %d, and was told that it does", s.process.name, asked,
		s.term.number)
}

// takeOverTime returns the longest permitted time from the end of all faults until a server leads and has loaded its
// shard. It is two short leases plus the time that the new leader must wait before it takes the lock. That time depends
// on the current lock, and is shorter for the heir.
func (w *World) takeOverTime() time.Duration {
	soon := 2*w.lease + 30*time.Second
	if v := &w.lock; v.there && !v.Released {
		// If the leader was killed before the faults ended, its heir takes over first, unless the heir is stopping.
		if s := w.heir(); s != nil && !s.stopping && s.vow.to == v.Incarnation && s.vow.term == v.Term {
			return soon + 2*w.promise
		}
		lease := v.Lease()
		if w.sched.now.Before(w.crawl.until.Add(w.longest())) {
			lease = w.longest() // a server to which the bucket was slow writes the long lease, and may be killed then
		}
		return soon + fraction(lease, waits*fastest) - w.lease
	}
	return soon + w.longest() - w.lease // servers wait for the longest lease if the lock was removed
}

// longest returns the longest lease that a lock of this World contains.
func (w *World) longest() time.Duration {
	if w.promise > 0 {
		return max(w.lease, heirLease)
	}
	return w.lease
}

// checkHeir runs without faults. It checks that a leader with followers has an heir, and then stops or kills the
// leader. Another server must lead within one second. After a kill, the time limit is longer by the length of a
// promise. The new leader is the heir, or, with long promises, a server that learns from the provider that the leader's
// machine is gone. The shard must then converge again.
func (w *World) checkHeir() {
	leader := w.acting()
	if leader == nil || leader.options.PeerLease == 0 {
		return
	}
	followed := slices.ContainsFunc(w.servers, func(s *server) bool {
		return s != leader && s.alive() && s.options.PeerLease > 0
	})
	heir := w.heir()
	switch {
	case !followed:
		return
	case heir == nil || w.lock.Incarnation != leader.process.name:
		w.fail(ruleHeir, "%s leads in peace, is followed, and has no heir", leader.process.name)
		return
	}
	most := time.Second
	if w.drawn.IntN(2) == 0 {
		leader.stop()
	} else {
		leader.kill(w.drawn.IntN(2) == 0)
		most += fraction(w.promise, keeps*fastest)
	}
	w.restAt = time.Time{}
	broken := func() bool { return w.err != nil }
	leads := func(s *server) bool {
		until, _ := s.elector.ActUntil()
		return s != leader && s.alive() && until > s.clock()
	}
	w.sched.runUntil(w.sched.now.Add(most), func() bool { return broken() || slices.ContainsFunc(w.servers, leads) })
	if !broken() && !slices.ContainsFunc(w.servers, leads) {
		w.fail(ruleHeir, "%s ended, and no server leads %v later, not even its heir %s", leader.name, most,
			heir.process.name)
	}
	if w.sched.runUntil(w.sched.now.Add(2*minute), broken); !broken() {
		w.checkRest()
	}
}
