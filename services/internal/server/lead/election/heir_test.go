package election

import (
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

var (
	peerA = Peer{ID: "a", Incarnation: "a1"}
	peerB = Peer{ID: "b", Incarnation: "b1"}
)

func newHeirDriver(t *testing.T) *driver {
	opt := withHeir
	opt.HeirProbation = 10100 * time.Millisecond // so that probation ends at a heartbeat
	return &driver{t: t, e: New(Identity{ID: "a", Incarnation: "a1"}, opt)}
}

// lockOf returns the lock that process a or b writes.
func lockOf(p Peer, term, revision uint64, heir Peer) record.Lock {
	lock := record.Lock{LeaderID: p.ID, Incarnation: p.Incarnation, Term: term, Revision: revision, LeaseMS: 10_000,
		RenewMS: 5_000, Heir: heir}
	if heir != (Peer{}) {
		lock.LeaseMS, lock.RenewMS = 90_000, 30_000
	}
	return lock
}

func beatOf(leader, follower Peer, beat uint64, lock record.Lock, token objstore.Token) Heartbeat {
	return Heartbeat{Leader: leader, Standby: follower, Term: lock.Term, Beat: beat, Length: time.Second, Lock: lock,
		Token: token}
}

func (h Heartbeat) promise() Promise {
	return Promise{Leader: h.Leader, Standby: h.Standby, Term: h.Term, Beat: h.Beat, Length: h.Length}
}

// v returns a revision of the lock that process a holds in term 1. The lock is renewed at 5 s and at 10 s. From
// revision 4 on, process b is the heir.
func v(revision uint64) (record.Lock, objstore.Token) {
	heir := peerB
	if revision < 4 {
		heir = Peer{}
	}
	return lockOf(peerA, 1, revision, heir), objstore.Token("t" + string(rune('0'+revision)))
}

// beatAt returns a heartbeat that process a sends when the given revision is the newest that process a knows.
func beatAt(beat, revision uint64) Heartbeat {
	lock, token := v(revision)
	return beatOf(peerA, peerB, beat, lock, token)
}

func writeOf(lock record.Lock, token objstore.Token) WriteLock {
	return WriteLock{Lock: lock, Condition: objstore.IfToken(token)}
}

// named returns a driver in which process a leads from 0 s. Its follower, process b, answers each heartbeat within 10
// ms. The driver stops at 10.25 s. At that time, heartbeat 42 is due, and so is the write of a lock that names b as
// heir.
func named(t *testing.T) *driver {
	t.Helper()
	d := newHeirDriver(t)
	d.at(0, Tick{}, ReadLock{})
	first, _ := v(1)
	d.at(0, LockAbsent{}, WriteLock{first, objstore.IfAbsent()})
	d.at(0, LockWritten{"t1"}, BecameLeader{1})
	revision := uint64(1)
	d.at(0, LinkUp{peerB}, Send{peerB, beatAt(1, 1)})
	for beat := uint64(1); ; beat++ {
		at := float64(beat-1) / 4
		d.at(at+0.01, beatAt(beat, revision).promise())
		next := Send{peerB, beatAt(beat+1, revision)}
		switch at + 0.25 {
		case 5, 10:
			_, token := v(revision)
			revision++
			lock, renewed := v(revision)
			d.at(at+0.25, Tick{}, next, writeOf(lock, token))
			d.at(at+0.255, LockWritten{renewed})
		case 10.25:
			return d
		default:
			d.at(at+0.25, Tick{}, next)
		}
	}
}

// inherited returns a driver in which process a leads with process b as its heir. Beat 43, which contains the lock with
// the heir, was sent at 10.3125 s and answered at 10.32 s.
func inherited(t *testing.T) *driver {
	t.Helper()
	d := named(t)
	lock, token := v(4)
	d.at(10.25, Tick{}, Send{peerB, beatAt(42, 3)}, writeOf(lock, "t3"))
	d.at(10.26, beatAt(42, 3).promise())
	d.at(10.3, LockWritten{token})
	d.actsUntil(11.2, 1)
	d.wakes(10.3125) // to notify the heir, a sixteenth of the promise after the last beat
	d.at(10.3125, Tick{}, Send{peerB, beatAt(43, 4)})
	d.at(10.32, beatAt(43, 4).promise())
	d.actsUntil(11.2625, 1)
	return d
}

func TestFollowerBecomesHeir(t *testing.T) {
	d := named(t)
	d.actsUntil(19.5, 1) // by the lease alone
	lock, token := v(4)
	d.at(10.25, Tick{}, Send{peerB, beatAt(42, 3)}, writeOf(lock, "t3"))
	d.actsUntil(10.95, 1) // the write may have landed; the promise counts from heartbeat 41, sent at 10 s
	d.at(10.26, beatAt(42, 3).promise())
	d.actsUntil(11.2, 1)
	d.at(10.3, LockWritten{token})
	d.actsUntil(11.2, 1)
}

func TestUnsettledHeirNeedsBothLeases(t *testing.T) {
	d := named(t)
	lock, token := v(4)
	d.at(10.25, Tick{}, Send{peerB, beatAt(42, 3)}, writeOf(lock, "t3"))
	// The heir keeps promising, but the leader's write gets no answer. The leader's authority from the last confirmed
	// renewal ends at 19.5 s.
	for beat := uint64(42); beat < 79; beat++ {
		at := 10.25 + float64(beat-42)/4
		d.at(at+0.01, beatAt(beat, 3).promise())
		if beat < 78 {
			d.at(at+0.25, Tick{}, Send{peerB, beatAt(beat+1, 3)})
		}
	}
	d.actsUntil(19.5, 1)
	d.at(19.5, LockWritten{token}, LostLeadership{1, ReasonExpired})
}

func TestSilentHeirIsRemovedBeforeItsPromiseEnds(t *testing.T) {
	d := inherited(t)
	without := lockOf(peerA, 1, 5, Peer{})
	d.at(10.5625, Tick{}, Send{peerB, beatAt(44, 4)})
	d.at(10.8125, Tick{}, Send{peerB, beatAt(45, 4)})
	d.wakes(10.9625)
	d.at(10.9625, Tick{}, writeOf(without, "t4")) // 0.65 of the promise that counts from 10.3125 s
	d.actsUntil(11.2625, 1)
	story := func(name string, tell func(d *driver)) {
		t.Run(name, func(t *testing.T) {
			fork := *d
			fork.t = t
			tell(&fork)
		})
	}
	story("in time", func(d *driver) {
		d.at(11, LockWritten{"t5"}, Send{peerB, beatOf(peerA, peerB, 46, without, "t5")})
		d.actsUntil(20.4625, 1) // the lease without an heir counts from the sending
	})
	story("too late", func(d *driver) {
		d.at(11.0625, Tick{}, Send{peerB, beatAt(46, 4)})
		d.at(11.2625, LockWritten{"t5"}, LostLeadership{1, ReasonPromise})
	})
	story("it answers again", func(d *driver) {
		d.at(10.97, beatAt(44, 4).promise())
		d.actsUntil(11.5125, 1) // the promise is still needed: the lock may name the heir
		d.at(10.98, LockWritten{"t5"}, Send{peerB, beatOf(peerA, peerB, 46, without, "t5")})
		d.actsUntil(20.4625, 1)
	})
	story("the heir was faster", func(d *driver) { d.at(11, WriteConflict{}, LostLeadership{1, ReasonTaken}) })
}

func TestUnsettledRemovalCountsTheShortLease(t *testing.T) {
	d := inherited(t)
	d.at(10.33, LinkDown{peerB}, writeOf(lockOf(peerA, 1, 5, Peer{}), "t4"))
	d.at(10.34, LinkUp{peerB})
	for beat := uint64(44); ; beat++ { // the heir promises again, but its removal from the lock gets no answer
		at := 10.375 + float64(beat-44)/4
		if at >= 19.83 {
			break
		}
		d.at(at, Tick{}, Send{peerB, beatAt(beat, 4)})
		d.at(at+0.01, beatAt(beat, 4).promise())
	}
	d.actsUntil(19.83, 1) // 0.95 of 10 s, not of 90 s: others may have read the new lock
	d.at(19.83, Tick{}, LostLeadership{1, ReasonExpired})
}

func TestLostLinkRemovesTheHeirImmediately(t *testing.T) {
	d := inherited(t)
	d.at(10.33, LinkDown{peerB}, writeOf(lockOf(peerA, 1, 5, Peer{}), "t4"))
	d.actsUntil(11.2625, 1) // its last promise still counts
}

func TestInvalidPromisesAreIgnored(t *testing.T) {
	for name, change := range map[string]func(*Promise){
		"of another term":       func(p *Promise) { p.Term = 2 },
		"to another process":    func(p *Promise) { p.Leader.Incarnation = "a0" },
		"of another process":    func(p *Promise) { p.Standby.Incarnation = "b0" },
		"of nobody":             func(p *Promise) { p.Standby = Peer{} },
		"shorter":               func(p *Promise) { p.Length -= time.Millisecond },
		"upon no heartbeat":     func(p *Promise) { p.Beat = 0 },
		"upon one of tomorrow":  func(p *Promise) { p.Beat = 45 },
		"upon a forgotten one":  func(p *Promise) { p.Beat = 44 - maxHeartbeats },
		"upon one of long ago":  func(p *Promise) { p.Beat = 40 },
		"repeated, arrives now": func(p *Promise) { p.Beat = 43 },
	} {
		d := inherited(t)
		d.at(10.5625, Tick{}, Send{peerB, beatAt(44, 4)})
		p := beatAt(44, 4).promise()
		change(&p)
		d.at(10.6, p)
		if until, _ := d.e.ActUntil(); until != seconds(11.2625) {
			t.Errorf("%s: acts until %v", name, time.Duration(until))
		}
	}
}

func TestHeirsAnswerProvesLeadership(t *testing.T) {
	d := inherited(t)
	d.at(10.4, Confirm{1}, Send{peerB, beatAt(44, 4)}) // no read
	d.at(10.41, beatAt(43, 4).promise())               // a promise for a heartbeat before the request
	d.at(10.42, Confirm{2})
	d.at(10.43, beatAt(44, 4).promise(), Confirmed{1})
	d.at(10.4625, Tick{}, Send{peerB, beatAt(45, 4)})
	d.at(10.47, beatAt(45, 4).promise(), Confirmed{2})
}

func TestFarewellHandsOverToTheHeir(t *testing.T) {
	farewell := Send{peerB, Handover{Leader: peerA, Standby: peerB, Term: 1}}
	t.Run("the heir takes over", func(t *testing.T) {
		d := inherited(t)
		d.at(10.4, Release{}, LostLeadership{1, ReasonReleased}, farewell)
		d.at(10.41, TookOver{Leader: Peer{ID: "a", Incarnation: "a0"}, Standby: peerB, Term: 9}) // for another process
		d.at(10.42, TookOver{Leader: peerA, Standby: peerB, Term: 1})                            // of a past takeover
		d.at(10.45, TookOver{Leader: peerA, Standby: peerB, Term: 2}, Released{})
	})
	t.Run("the heir is silent", func(t *testing.T) {
		d := inherited(t)
		d.at(10.4, Release{}, LostLeadership{1, ReasonReleased}, farewell)
		d.wakes(11.4)
		d.at(11.4, Tick{}, ReadLock{})
		lock, token := v(4)
		released := lockOf(peerA, 1, 5, Peer{})
		released.Released = true
		d.at(11.45, LockRead{lock, token}, writeOf(released, token))
		d.at(11.5, LockWritten{"t5"}, Released{})
	})
	t.Run("the link breaks", func(t *testing.T) {
		d := inherited(t)
		d.at(10.4, Release{}, LostLeadership{1, ReasonReleased}, farewell)
		d.at(10.5, LinkDown{peerB}, ReadLock{})
		d.at(10.6, LockRead{lockOf(peerB, 2, 5, Peer{}), "x"}, Released{})
	})
}

// following returns the driver of process a at 3 s. Process b leads with a as its heir. Process a has read the lock and
// has answered heartbeat 7 with its promise.
func following(t *testing.T) *driver {
	t.Helper()
	d := newHeirDriver(t)
	lock := lockOf(peerB, 4, 9, peerA)
	d.at(0, Tick{}, ReadLock{})
	d.at(1, LockRead{lock, "x"})
	h := beatOf(peerB, peerA, 7, lock, "x")
	d.at(3, h, Send{peerB, h.promise()})
	return d
}

func TestHeirTakesOverWhenItsPromiseHasEnded(t *testing.T) {
	d := following(t)
	d.wakes(4.1) // 1.1 times the promise, without a read before
	d.at(4.1, Tick{}, WriteLock{lockOf(peerA, 5, 10, Peer{}), objstore.IfToken("x")})
	late := beatOf(peerB, peerA, 8, lockOf(peerB, 4, 9, peerA), "x")
	d.at(4.15, late) // no promise any more
	d.at(4.2, LockWritten{"y"}, BecameLeader{5})
	d.actsUntil(13.6, 5)
}

func TestHeirWithAnUnsettledTakeoverMakesNoPromise(t *testing.T) {
	d := following(t)
	take := WriteLock{lockOf(peerA, 5, 10, Peer{}), objstore.IfToken("x")}
	d.at(4.1, Tick{}, take)
	d.at(5, WriteUnknown{})
	late := beatOf(peerB, peerA, 8, lockOf(peerB, 4, 9, peerA), "x")
	d.at(5.1, late)
	d.at(6, Tick{}, ReadLock{})
	d.at(6.1, LockRead{lockOf(peerB, 4, 9, peerA), "x"}, take)
	d.at(6.15, late)
	d.at(7, WriteUnknown{})
	d.at(8, Tick{}, ReadLock{})
	renewed := lockOf(peerB, 4, 10, Peer{})
	d.at(8.1, LockRead{renewed, "x2"}) // the write can no longer land, so it is settled
	after := beatOf(peerB, peerA, 9, renewed, "x2")
	d.at(8.2, after, Send{peerB, after.promise()})
}

func TestRestartedHeirWaitsForTheLease(t *testing.T) {
	for name, heir := range map[string]Peer{"the process before": {ID: "a", Incarnation: "a0"},
		"this process, which knows of no promise": peerA} {
		t.Run(name, func(t *testing.T) {
			d := newHeirDriver(t)
			lock := lockOf(peerB, 4, 9, heir)
			d.at(0, Tick{}, ReadLock{})
			d.at(1, LockRead{lock, "x"})
			d.until(96.4, func() Input { return LockRead{lock, "x"} }) // 1 s and 1.06 leases of 90 s
		})
	}
}

func TestHeirLearnsOfRenewalsFromItsLeader(t *testing.T) {
	d := following(t)
	h := beatOf(peerB, peerA, 8, lockOf(peerB, 4, 12, peerA), "x4")
	d.at(3.2, h, Send{peerB, h.promise()})
	old := beatOf(peerB, peerA, 7, lockOf(peerB, 4, 9, peerA), "x") // a repeated or late heartbeat
	d.at(3.3, old, Send{peerB, old.promise()})
	d.at(4.4, Tick{}, WriteLock{lockOf(peerA, 5, 13, Peer{}), objstore.IfToken("x4")})
}

func TestUnansweredHeartbeats(t *testing.T) {
	lock := lockOf(peerB, 4, 9, peerA)
	for name, change := range map[string]func(*Heartbeat){
		"to another process":             func(h *Heartbeat) { h.Standby.Incarnation = "a0" },
		"with another's lock":            func(h *Heartbeat) { h.Lock.Incarnation = "c1" },
		"with the lock of another term":  func(h *Heartbeat) { h.Term = 5 },
		"in an earlier term":             func(h *Heartbeat) { h.Term, h.Lock.Term = 3, 3 },
		"that ask for nothing":           func(h *Heartbeat) { h.Length = 0 },
		"of one who has taken his leave": nil,
	} {
		t.Run(name, func(t *testing.T) {
			d := following(t)
			h := beatOf(peerB, peerA, 8, lock, "x")
			if change == nil {
				d.at(3.1, Handover{Leader: peerB, Standby: peerA, Term: 4},
					WriteLock{lockOf(peerA, 5, 10, Peer{}), objstore.IfToken("x")})
				d.at(3.2, WriteConflict{}, ReadLock{}) // the leader's last renewal; the heir reads immediately
				d.at(3.3, LockRead{lockOf(peerB, 4, 10, peerA), "x2"},
					WriteLock{lockOf(peerA, 5, 11, Peer{}), objstore.IfToken("x2")})
				d.at(3.4, WriteConflict{}, ReadLock{})
			} else {
				change(&h)
			}
			d.at(3.5, h)
		})
	}
}

func TestTakeoverAnswersTheFarewell(t *testing.T) {
	d := following(t)
	d.at(3.05, Handover{Leader: peerB, Standby: Peer{ID: "a", Incarnation: "a0"}, Term: 4}) // for another process
	d.at(3.06, Handover{Leader: peerB, Standby: peerA, Term: 3})                            // of an earlier term
	d.at(3.1, Handover{Leader: peerB, Standby: peerA, Term: 4}, WriteLock{lockOf(peerA, 5, 10, Peer{}),
		objstore.IfToken("x")})
	d.at(3.2, LockWritten{"y"}, BecameLeader{5}, Send{peerB, TookOver{Leader: peerB, Standby: peerA, Term: 5}})
}

func TestLeaderStopsAtAHigherTerm(t *testing.T) {
	d := inherited(t)
	d.at(10.4, beatOf(peerB, peerA, 1, lockOf(peerB, 2, 5, Peer{}), "x"), LostLeadership{1, ReasonTerm})
}

func TestHeirOptions(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"":              func(*Options) {},
		"peer_lease":    func(o *Options) { o.PeerLease = time.Millisecond },
		"peer_interval": func(o *Options) { o.PeerInterval = 0 },
		"not allowed":   func(o *Options) { o.HeirLease, o.HeirRenew = 20*time.Second, 15*time.Second },
		"every 30s":     func(o *Options) { o.HeirLease = 5 * time.Second },
	} {
		o := withHeir
		change(&o)
		err := o.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}
