package election

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

var defaults = Options{Lease: 10 * time.Second, Renew: 5 * time.Second}

// driver passes inputs to an elector at given seconds of the elector's clock, and compares the elector's actions with
// the wanted ones.
type driver struct {
	t    *testing.T
	e    Elector
	wake Instant
}

func newDriver(t *testing.T) *driver {
	return &driver{t: t, e: New(Identity{ID: "a", Incarnation: "a1", Machine: "m-a"}, defaults)}
}

func seconds(s float64) Instant { return Instant(math.Round(s * 1e9)) }

func (d *driver) at(s float64, in Input, want ...Action) {
	d.t.Helper()
	next, decision := d.e.Next(seconds(s), in)
	d.e, d.wake = next, decision.Wake
	if diff := cmp.Diff(want, decision.Actions, cmpopts.EquateComparable(objstore.Condition{}),
		cmpopts.EquateEmpty()); diff != "" {
		d.t.Fatalf("at %v s, after %T%+v (-want +got):\n%s", s, in, in, diff)
	}
}

func (d *driver) wakes(s float64) {
	d.t.Helper()
	if d.wake != seconds(s) {
		d.t.Fatalf("wakes at %v, want %v", time.Duration(d.wake), time.Duration(seconds(s)))
	}
}

func (d *driver) actsUntil(s float64, term uint64) {
	d.t.Helper()
	if until, got := d.e.ActUntil(); until != seconds(s) || got != term {
		d.t.Fatalf("acts until %v in term %d, want %v in term %d", time.Duration(until), got, time.Duration(seconds(s)),
			term)
	}
}

// own returns the lock that the driver's elector writes.
func own(term, revision uint64) record.Lock {
	return record.Lock{LeaderID: "a", Incarnation: "a1", Machine: "m-a", Term: term, Revision: revision,
		LeaseMS: 10_000, RenewMS: 5_000}
}

// other returns the lock of another process.
func other(term, revision uint64) record.Lock {
	return record.Lock{LeaderID: "b", Incarnation: "b1", Machine: "m-b", Term: term, Revision: revision,
		LeaseMS: 10_000, RenewMS: 5_000}
}

func (d *driver) leadFrom0() {
	d.t.Helper()
	d.at(0, Tick{}, ReadLock{})
	d.at(0, LockAbsent{}, WriteLock{own(1, 1), objstore.IfAbsent()})
	d.at(0.1, LockWritten{"t1"}, BecameLeader{1})
}

func TestFirstLeaderOfAShard(t *testing.T) {
	d := newDriver(t)
	d.leadFrom0()
	d.actsUntil(9.5, 1)
	d.wakes(5)
}

func TestAbsentLockAlthoughRecordsExist(t *testing.T) {
	d := newDriver(t)
	d.at(0, Tick{}, ReadLock{})
	d.at(1, LockAbsent{HighestTerm: 7})
	d.wakes(6)
	d.at(6, Tick{}, ReadLock{})
	d.at(6, LockAbsent{HighestTerm: 7})
	d.at(11, Tick{}, ReadLock{})
	d.at(11, LockAbsent{HighestTerm: 7})
	d.wakes(11.6)
	d.at(11.6, Tick{}, ReadLock{}) // absence has no token, so the elector reads again before it writes
	d.at(11.7, LockAbsent{HighestTerm: 7}, WriteLock{own(8, 1), objstore.IfAbsent()})
	d.at(11.8, LockWritten{"t1"}, BecameLeader{8})
}

func TestAbsenceInAHigherTermRestartsTheWait(t *testing.T) {
	d := newDriver(t)
	d.at(0, Tick{}, ReadLock{})
	d.at(1, LockAbsent{HighestTerm: 7})
	d.at(11.9, Tick{}, ReadLock{})
	d.at(12.1, LockAbsent{HighestTerm: 8}) // another process led, and its lock is gone again
	d.at(23, Tick{}, ReadLock{})
	d.at(23.2, LockAbsent{HighestTerm: 8}, WriteLock{own(9, 1), objstore.IfAbsent()})
	d.at(23.3, WriteUnknown{})
	d.at(24, Tick{}, ReadLock{})
	d.at(24.1, LockAbsent{HighestTerm: 9}) // not unchanged: term 9 was another process's
}

func TestLeaderCountsFromBeforeSending(t *testing.T) {
	d := newDriver(t)
	d.leadFrom0()
	d.at(5, Tick{}, WriteLock{own(1, 2), objstore.IfToken("t1")})
	d.wakes(9.5)
	d.actsUntil(9.5, 1)
	d.at(7, LockWritten{"t2"})
	d.actsUntil(14.5, 1)
	d.wakes(10)
}

func TestAmbiguousRenewal(t *testing.T) {
	renewal := WriteLock{own(1, 2), objstore.IfToken("t1")}
	start := func(t *testing.T) *driver {
		d := newDriver(t)
		d.leadFrom0()
		d.at(5, Tick{}, renewal)
		d.at(6, WriteUnknown{})
		d.wakes(6.25)
		d.at(6.25, Tick{}, ReadLock{})
		return d
	}
	t.Run("landed", func(t *testing.T) {
		d := start(t)
		d.at(6.5, LockRead{own(1, 2), "t2"})
		d.actsUntil(14.5, 1)
	})
	t.Run("unchanged, then landed late", func(t *testing.T) {
		d := start(t)
		d.at(6.5, LockRead{own(1, 1), "t1"}, renewal) // the same bytes
		d.actsUntil(9.5, 1)
		d.at(6.6, WriteConflict{}) // not the first attempt, so the conflict may be with this process's own write
		d.actsUntil(9.5, 1)
		d.at(7.2, Tick{}, ReadLock{})
		d.at(7.3, LockRead{own(1, 2), "t2"})
		d.actsUntil(14.5, 1) // counts from the first sending
	})
	t.Run("unchanged, then written", func(t *testing.T) {
		d := start(t)
		d.at(6.5, LockRead{own(1, 1), "t1"}, renewal)
		d.at(6.6, LockWritten{"t2"})
		d.actsUntil(14.5, 1)
	})
	t.Run("another's", func(t *testing.T) {
		d := start(t)
		d.at(6.5, LockRead{other(2, 2), "x"}, LostLeadership{1, ReasonTaken})
		d.actsUntil(0, 0)
	})
	t.Run("unsettled when authority ends", func(t *testing.T) {
		d := start(t)
		d.at(7.5, ReadFailed{})
		d.at(9.5, Tick{}, LostLeadership{1, ReasonExpired})
		d.at(9.6, LeaderStopped{}, ReadLock{})
		d.at(9.7, LockRead{own(1, 2), "t2"}, WriteLock{own(2, 3), objstore.IfToken("t2")})
	})
}

func TestFirstConflictEndsLeadership(t *testing.T) {
	d := newDriver(t)
	d.leadFrom0()
	d.at(5, Tick{}, WriteLock{own(1, 2), objstore.IfToken("t1")})
	d.at(5.1, WriteConflict{}, LostLeadership{1, ReasonTaken})
	d.at(5.2, Tick{}) // nothing happens before the leader's code has ended
	if d.wake != Never {
		t.Fatalf("wakes at %v", d.wake)
	}
	d.at(6, LeaderStopped{}, ReadLock{})
	d.at(6.1, LockRead{other(2, 2), "x"})
}

func TestUnrenewedLeaseEnds(t *testing.T) {
	d := newDriver(t)
	d.leadFrom0()
	d.at(5, Tick{}, WriteLock{own(1, 2), objstore.IfToken("t1")})
	d.at(9.5, LockWritten{"t2"}, LostLeadership{1, ReasonExpired}) // slightly too late, although the write landed
	d.at(10, LeaderStopped{}, WriteLock{own(2, 3), objstore.IfToken("t2")})
	d.at(10.1, LockWritten{"t3"}, BecameLeader{2})
}

func TestLateRenewalAnswerDoesNotRestoreLeadership(t *testing.T) {
	d := newDriver(t)
	d.leadFrom0()
	d.at(5, Tick{}, WriteLock{own(1, 2), objstore.IfToken("t1")})
	d.at(5.1, TermSeen{3}, LostLeadership{1, ReasonTerm})
	d.at(5.2, LeaderStopped{})
	d.at(5.3, LockWritten{"t2"}, WriteLock{own(4, 3), objstore.IfToken("t2")}) // not term 1 again
}

// seenFirstAt3 returns a driver in which a candidate reads another process's lock for the first time at 3 s.
func seenFirstAt3(t *testing.T, lock record.Lock) *driver {
	t.Helper()
	d := newDriver(t)
	d.at(0, Tick{}, ReadLock{})
	if lock.Machine == "" || lock.Machine == "m-a" { // the elector does not ask about its own machine
		d.at(3, LockRead{lock, "x"})
		return d
	}
	// An elector that has just started does not know how old the lock is. So it asks immediately about the machine of
	// the lock's holder.
	d.at(3, LockRead{lock, "x"}, AskMachine{lock.Machine})
	d.at(3, MachineAnswer{MachineRunning})
	return d
}

func TestStartingServerReplacesDeadHolderImmediately(t *testing.T) {
	d := newDriver(t)
	d.at(0, Tick{}, ReadLock{})
	d.at(0.1, LockRead{other(4, 9), "x"}, AskMachine{"m-b"})
	d.at(0.2, MachineAnswer{MachineTerminated}, WriteLock{own(5, 10), objstore.IfToken("x")})
}

func TestCandidateWaitsForLeaseAndMargin(t *testing.T) {
	machineless := other(4, 9)
	machineless.Machine = ""
	long := machineless
	long.LeaseMS, long.RenewMS = 30_000, 10_000
	restarted := own(4, 9)
	restarted.Incarnation = "a0"
	heir := machineless
	heir.Heir = record.LockHeir{ID: "c", Incarnation: "c1"}
	for name, tc := range map[string]struct {
		lock   record.Lock
		takeAt float64
	}{
		"as configured":                            {machineless, 13.6},
		"lease of the lock counts":                 {long, 34.8},
		"own ID, own machine, another incarnation": {restarted, 13.6},
		"heir of another leader":                   {heir, 13.6},
	} {
		t.Run(name, func(t *testing.T) {
			d := seenFirstAt3(t, tc.lock)
			d.until(tc.takeAt, func() Input { return LockRead{tc.lock, "x"} })
			want := own(5, 10)
			d.at(tc.takeAt, Tick{}, WriteLock{want, objstore.IfToken("x")})
			d.at(tc.takeAt+0.1, LockWritten{"y"}, BecameLeader{5})
			d.actsUntil(tc.takeAt+9.5, 5)
		})
	}
	t.Run("from the last change", func(t *testing.T) {
		d := seenFirstAt3(t, machineless)
		d.at(13.5, Tick{}, ReadLock{})
		renewed := machineless
		renewed.Revision++
		d.at(13.55, LockRead{renewed, "x2"})
		d.until(24.15, func() Input { return LockRead{renewed, "x2"} })
		d.at(24.15, Tick{}, WriteLock{own(5, 11), objstore.IfToken("x2")})
	})
}

// until answers every read, and sends a Tick whenever the elector asks for one. It stops at the time `end`, for which
// the elector must ask for a Tick. Any action other than a read is a failure.
func (d *driver) until(end float64, answer func() Input) {
	d.t.Helper()
	for d.wake < seconds(end) {
		now := d.wake
		next, decision := d.e.Next(now, Tick{})
		d.e, d.wake = next, decision.Wake
		for _, action := range decision.Actions {
			if action != (ReadLock{}) {
				d.t.Fatalf("at %v: %T%+v", time.Duration(now), action, action)
			}
			d.e, decision = d.e.Next(now, answer())
			d.wake = decision.Wake
			if len(decision.Actions) > 0 {
				d.t.Fatalf("at %v: %v", time.Duration(now), decision.Actions)
			}
		}
	}
	d.wakes(end)
}

func TestReleasedLockIsTakenImmediately(t *testing.T) {
	released := other(4, 9)
	released.Released = true
	released.AppliedETag = "config-3"
	want := own(5, 10)
	want.AppliedETag = "config-3" // the applied configuration stays in the lock
	d := newDriver(t)
	d.at(0, Tick{}, ReadLock{})
	d.at(3, LockRead{released, "x"}, WriteLock{want, objstore.IfToken("x")})
	d.at(3.1, WriteConflict{}) // another process was faster
	d.at(4, Tick{}, ReadLock{})
	d.at(4, LockRead{other(5, 10), "y"})
}

func TestMachineEvidence(t *testing.T) {
	ask := AskMachine{"m-b"}
	take := WriteLock{own(5, 10), objstore.IfToken("x")}
	// start returns a driver that reads the lock for the first time at 3 s. At 9 s, the holder's renewal is overdue,
	// and the elector asks about the holder's machine.
	start := func(t *testing.T) *driver {
		d := seenFirstAt3(t, other(4, 9))
		d.at(9, Tick{}, ReadLock{}, ask)
		d.at(9, LockRead{other(4, 9), "x"})
		return d
	}
	t.Run("terminated", func(t *testing.T) {
		d := start(t)
		d.at(9.1, MachineAnswer{MachineTerminated}, take)
	})
	for _, state := range []MachineState{MachineUnknown, MachineRunning, MachineStopping, MachineSuspended,
		MachineNotFound} {
		t.Run("never counts", func(t *testing.T) {
			d := start(t)
			d.at(9.1, MachineAnswer{state})
			d.at(11.6, Tick{}, ReadLock{}, ask) // asked again after half a renewal interval
			d.at(11.6, LockRead{other(4, 9), "x"})
			d.at(11.7, MachineAnswer{state})
			d.at(13.5, Tick{}, ReadLock{})
			d.at(13.5, LockRead{other(4, 9), "x"})
			d.at(13.6, Tick{}, take)
		})
	}
	t.Run("stopped", func(t *testing.T) {
		lock := other(4, 9)
		lock.LeaseMS = 90_000
		d := seenFirstAt3(t, lock)
		d.at(9, Tick{}, ReadLock{}, ask)
		d.at(9, LockRead{lock, "x"})
		d.at(9.5, MachineAnswer{MachineStopped})
		d.at(14.9, Tick{}, ReadLock{})
		d.at(14.9, LockRead{lock, "x"})
		d.at(14.95, LeaderLinkDown{Peer{ID: "b", Incarnation: "b1"}}, ReadLock{})
		d.at(14.95, LockRead{lock, "x"})
		d.at(15, Tick{}, ask) // a renewal interval and a margin later
		d.at(15.1, MachineAnswer{MachineStopped}, take)
	})
	t.Run("stopped, then running", func(t *testing.T) {
		lock := other(4, 9)
		lock.LeaseMS = 90_000
		d := seenFirstAt3(t, lock)
		d.at(9, Tick{}, ReadLock{}, ask)
		d.at(9, LockRead{lock, "x"})
		d.at(9.5, MachineAnswer{MachineStopped})
		d.at(15, Tick{}, ReadLock{}, ask)
		d.at(15, LockRead{lock, "x"})
		d.at(15.1, MachineAnswer{MachineRunning})
		d.at(17.6, Tick{}, ReadLock{}, ask)
		d.at(17.6, LockRead{lock, "x"})
		d.at(17.7, MachineAnswer{MachineStopped}) // the answer counts from here
	})
	t.Run("asked before the token changed", func(t *testing.T) {
		d := start(t)
		d.at(10, Tick{}, ReadLock{})
		d.at(10.1, LockRead{other(4, 10), "x2"})
		d.at(10.2, MachineAnswer{MachineTerminated})
	})
	holder := Peer{ID: "b", Incarnation: "b1"}
	t.Run("link to the holder ends", func(t *testing.T) {
		d := seenFirstAt3(t, other(4, 9))
		d.at(4, LeaderLinkDown{Peer{ID: "b", Incarnation: "b0"}}, ReadLock{}) // of another incarnation
		d.at(4, LockRead{other(4, 9), "x"})
		d.at(4.1, LeaderLinkDown{holder}, ReadLock{}, ask)
		d.at(4.2, LockRead{other(4, 9), "x"})
		d.at(4.2, MachineAnswer{MachineStopping})
		d.at(4.45, Tick{}, ReadLock{}) // the lock may have been released
		d.at(4.45, LockRead{other(4, 9), "x"})
		d.at(5.2, Tick{}, ReadLock{}, ask) // a fifth of a renewal interval later
		d.at(5.3, MachineAnswer{MachineTerminated})
		d.at(5.3, LockRead{other(4, 9), "x"}, take)
	})
	t.Run("renewed right before the link ended", func(t *testing.T) {
		d := seenFirstAt3(t, other(4, 9))
		d.at(4, LeaderLinkDown{holder}, ReadLock{}, ask)
		d.at(4.1, LockRead{other(4, 10), "x2"})
		d.at(4.2, MachineAnswer{MachineTerminated}, ask) // the answer refers to another token
		d.at(4.3, MachineAnswer{MachineTerminated}, WriteLock{own(5, 11), objstore.IfToken("x2")})
	})
	t.Run("link ends, the holder goes on", func(t *testing.T) {
		d := seenFirstAt3(t, other(4, 9))
		d.at(4, LeaderLinkDown{holder}, ReadLock{}, ask)
		d.at(4.1, LockRead{other(4, 9), "x"})
		d.at(4.1, MachineAnswer{MachineRunning})
		d.at(5, Tick{}, ReadLock{})
		d.at(5.1, LockRead{other(4, 10), "x2"}, ask) // the renewal may have been in flight
		d.at(5.1, MachineAnswer{MachineRunning})
		d.at(10, Tick{}, ReadLock{}, ask)
		d.at(10.1, LockRead{other(4, 11), "x3"})
		d.at(10.1, MachineAnswer{MachineRunning})
		// After the second renewal since the link to the holder ended, the elector no longer takes that end as a sign
		// of failure. It asks about the machine again only when the next renewal is overdue.
		d.at(14.95, Tick{}, ReadLock{})
		d.at(15, LockRead{other(4, 11), "x3"})
		d.at(16.1, Tick{}, ReadLock{}, ask)
	})
	t.Run("own machine is not asked for", func(t *testing.T) {
		lock := other(4, 9)
		lock.Machine = "m-a"
		d := seenFirstAt3(t, lock)
		d.at(9, Tick{}, ReadLock{})
	})
}

func TestTakeoverSettledTooLateGivesNoAuthority(t *testing.T) {
	d := newDriver(t)
	d.at(0, Tick{}, ReadLock{})
	released := other(4, 9)
	released.Released = true
	take := WriteLock{own(5, 10), objstore.IfToken("x")}
	d.at(1, LockRead{released, "x"}, take)
	d.at(2, WriteUnknown{})
	d.at(3, Tick{}, ReadLock{})
	d.at(3, LockRead{released, "x"}, take)
	d.at(4, WriteUnknown{})
	d.at(6, Tick{}, ReadLock{})
	// The write succeeded. But the lease of that write counts from 1 s, when the write was sent, so another process may
	// be about to take over. The elector holds the lock without authority and writes the lock again.
	d.at(10.5, LockRead{own(5, 10), "y"}, WriteLock{own(6, 11), objstore.IfToken("y")})
	d.actsUntil(0, 0)
	d.at(10.6, LockWritten{"z"}, BecameLeader{6})
	d.actsUntil(20, 6)
}

// At 0 s, the elector sends a write that takes effect only after 9 s. In between, another process leads, and its lock
// is deleted. That process may not know yet that its lock is gone.
func TestTakeoverAfterTheLockWasRemoved(t *testing.T) {
	d := newDriver(t)
	d.at(0, Tick{}, ReadLock{})
	d.at(0, LockAbsent{}, WriteLock{own(1, 1), objstore.IfAbsent()})
	d.at(8, WriteUnknown{})
	d.at(9, Tick{}, ReadLock{})
	machineless := other(1, 2)
	machineless.Machine = ""
	d.at(9, LockRead{machineless, "x"})
	d.at(14, Tick{}, ReadLock{})
	d.at(14, LockRead{own(1, 1), "y"})
	d.until(24.6, func() Input { return LockRead{own(1, 1), "y"} })
	d.at(24.6, Tick{}, WriteLock{own(2, 3), objstore.IfToken("y")})
	d.at(24.7, LockWritten{"z"}, BecameLeader{2})
}

func TestConfirm(t *testing.T) {
	t.Run("reads that began before do not count, later ones are shared", func(t *testing.T) {
		d := newDriver(t)
		d.leadFrom0()
		d.at(1, Confirm{1}, ReadLock{})
		d.at(1.1, Confirm{2})
		d.at(1.2, Confirm{3})
		d.at(1.3, LockRead{own(1, 1), "t1"}, Confirmed{1}, ReadLock{})
		d.at(1.4, LockRead{own(1, 1), "t1"}, Confirmed{3})
		d.wakes(5)
	})
	t.Run("renewals that began later count", func(t *testing.T) {
		d := newDriver(t)
		d.leadFrom0()
		d.at(5, Confirm{1}, WriteLock{own(1, 2), objstore.IfToken("t1")})
		d.at(5.1, LockWritten{"t2"}, Confirmed{1})
	})
	t.Run("failed reads are repeated", func(t *testing.T) {
		d := newDriver(t)
		d.leadFrom0()
		d.at(1, Confirm{1}, ReadLock{})
		d.at(2, ReadFailed{})
		d.at(2.25, Tick{}, ReadLock{})
		d.at(2.3, LockRead{own(1, 1), "t1"}, Confirmed{1})
	})
	for name, in := range map[string]Input{
		"another's lock":                 LockRead{other(2, 2), "x"},
		"no lock":                        LockAbsent{HighestTerm: 1},
		"unreadable lock":                LockUnreadable{"x"},
		"own, but of another leadership": LockRead{own(2, 2), "x"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(t)
			d.leadFrom0()
			d.at(1, Confirm{1}, ReadLock{})
			d.at(1.1, in, LostLeadership{1, ReasonTaken})
		})
	}
}

func TestAppliedConfigurationIsInTheNextRenewal(t *testing.T) {
	d := newDriver(t)
	d.leadFrom0()
	d.at(1, ConfigApplied{"config-4"}) // no separate write
	renewal := own(1, 2)
	renewal.AppliedETag = "config-4"
	d.at(5, Tick{}, WriteLock{renewal, objstore.IfToken("t1")})
}

func TestHigherTermEndsLeadership(t *testing.T) {
	d := newDriver(t)
	d.leadFrom0()
	d.at(1, TermSeen{1})
	d.at(2, TermSeen{8}, LostLeadership{1, ReasonTerm})
	d.at(3, LeaderStopped{}, WriteLock{own(9, 2), objstore.IfToken("t1")})
}

func TestRelease(t *testing.T) {
	released := own(1, 2)
	released.Released = true
	t.Run("leader", func(t *testing.T) {
		d := newDriver(t)
		d.leadFrom0()
		d.at(1, Release{}, LostLeadership{1, ReasonReleased}, WriteLock{released, objstore.IfToken("t1")})
		d.actsUntil(0, 0)
		d.at(1.1, LockWritten{"t2"}, Released{})
		d.at(100, Tick{})
	})
	t.Run("answer unknown", func(t *testing.T) {
		d := newDriver(t)
		d.leadFrom0()
		d.at(1, Release{}, LostLeadership{1, ReasonReleased}, WriteLock{released, objstore.IfToken("t1")})
		d.at(2, WriteUnknown{})
		d.at(3, Tick{}, ReadLock{})
		d.at(3, LockRead{own(1, 1), "t1"}, WriteLock{released, objstore.IfToken("t1")})
		d.at(4, WriteConflict{})
		d.at(6, Tick{}, ReadLock{})
		d.at(6, LockRead{released, "t2"}, Released{})
	})
	t.Run("with a renewal under way", func(t *testing.T) {
		d := newDriver(t)
		d.leadFrom0()
		d.at(5, Tick{}, WriteLock{own(1, 2), objstore.IfToken("t1")})
		d.at(5.1, Release{}, LostLeadership{1, ReasonReleased})
		after := own(1, 3)
		after.Released = true
		d.at(5.2, LockWritten{"t2"}, WriteLock{after, objstore.IfToken("t2")})
		d.at(5.3, LockWritten{"t3"}, Released{})
	})
	t.Run("taken by another meanwhile", func(t *testing.T) {
		d := newDriver(t)
		d.leadFrom0()
		d.at(1, Release{}, LostLeadership{1, ReasonReleased}, WriteLock{released, objstore.IfToken("t1")})
		d.at(2, WriteConflict{})
		d.at(3, Tick{}, ReadLock{})
		d.at(3, LockRead{other(2, 2), "x"}, Released{})
	})
	t.Run("candidate", func(t *testing.T) {
		d := seenFirstAt3(t, other(4, 9))
		d.at(3.1, Release{}, Released{})
	})
	t.Run("takeover under way", func(t *testing.T) {
		d := newDriver(t)
		d.at(0, Tick{}, ReadLock{})
		d.at(0, LockAbsent{}, WriteLock{own(1, 1), objstore.IfAbsent()})
		d.at(0.1, Release{})
		d.at(0.2, LockWritten{"t1"}, WriteLock{released, objstore.IfToken("t1")})
		d.at(0.3, LockWritten{"t2"}, Released{})
	})
}

func TestUnreadableLockIsNeverTaken(t *testing.T) {
	d := newDriver(t)
	d.at(0, Tick{}, ReadLock{})
	d.at(0, LockUnreadable{"x"})
	d.until(3600, func() Input { return LockUnreadable{"x"} })
}

func TestFailedRequestsBackOff(t *testing.T) {
	d := newDriver(t)
	d.at(0, Tick{}, ReadLock{})
	now := Instant(0)
	var waits []time.Duration
	for range 8 {
		next, decision := d.e.Next(now, ReadFailed{})
		waits = append(waits, decision.Wake.Sub(now))
		now = decision.Wake
		d.e, decision = next.Next(now, Tick{})
		if len(decision.Actions) != 1 || decision.Actions[0] != (ReadLock{}) {
			t.Fatalf("at %v: %v", time.Duration(now), decision.Actions)
		}
	}
	for i, wait := range waits {
		base := min(defaults.Renew/20<<i, defaults.Renew)
		if wait < base || wait > base*3/2 {
			t.Errorf("wait %d is %v, want %v to half as much again", i, wait, base)
		}
	}
}

func TestOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		o    Options
		want string
	}{
		"defaults":       {defaults, ""},
		"zero":           {Options{}, "renew_interval 0s"},
		"too rare":       {Options{Lease: 10 * time.Second, Renew: 6 * time.Second}, "at most half"},
		"too long":       {Options{Lease: 2 * time.Hour, Renew: time.Second}, "at most an hour"},
		"not whole":      {Options{Lease: time.Second + 1, Renew: 100 * time.Millisecond}, "whole milliseconds"},
		"faster than us": {Options{Lease: time.Second, Renew: time.Millisecond}, "at least"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.o.Validate()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// documented are the settings in the table of docs/concepts/election.md.
var documented = []Options{
	{Lease: 2 * time.Second, Renew: time.Second},
	{Lease: 6 * time.Second, Renew: 2 * time.Second},
	defaults,
	{Lease: 30 * time.Second, Renew: 10 * time.Second},
	{Lease: 90 * time.Second, Renew: 30 * time.Second},
}

// TestRequestsPerHourWithoutFaults checks the numbers of requests in docs/concepts/election.md.
func TestRequestsPerHourWithoutFaults(t *testing.T) {
	for _, opt := range documented {
		renewals := int(time.Hour / opt.Renew)
		for followers := range 3 {
			sim := newSimulation(uint64(followers) + 7)
			sim.idle = true
			for i := range followers + 1 {
				n := &node{name: string(rune('a' + i)), rate: 1, opt: opt}
				sim.nodes = append(sim.nodes, n)
				sim.after(time.Duration(i)*time.Second, func() { sim.start(n) })
			}
			sim.runUntil(10 * time.Minute)
			before := sim.requests
			sim.runUntil(70 * time.Minute)
			if sim.err != nil {
				t.Fatal(sim.err)
			}
			got, least, most := sim.requests-before, renewals*99/100*(followers+1), renewals+1+renewals*14/10*followers
			t.Logf("renewal %v, %d followers: %d requests an hour", opt.Renew, followers, got)
			if got > most || got < least {
				t.Errorf("renewal %v, %d followers: %d requests an hour, want %d to %d", opt.Renew, followers, got,
					least, most)
			}
			if sim.led != 1 {
				t.Errorf("%d leaderships in an hour of peace", sim.led)
			}
		}
	}
}

// TestFailoverTimes checks the failover times in docs/concepts/election.md. A failover begins when a leader is killed
// or stops, at a random time. It ends when a follower has authority.
func TestFailoverTimes(t *testing.T) {
	kill := func(sim *electionSimulation, a *node, state MachineState) {
		a.state = state
		sim.ended(a, MachineRunning) // the kernel closes the connections
		a.alive = false
		a.life++
	}
	const told = 500 * time.Millisecond // the end of a connection, three message times of a question, and a write
	for _, opt := range documented {
		for _, tc := range []struct {
			name        string
			stop        func(sim *electionSimulation, a *node)
			least, most time.Duration
		}{
			// The longest failover is the sum of the lease with its margin, the wait for the next read, the latency of
			// the last renewal, and the latencies of a read and a write.
			{"killed", func(sim *electionSimulation, a *node) {
				kill(sim, a, MachineRunning)
			}, takeoverWait(opt.Lease) - opt.Renew - 200*time.Millisecond,
				takeoverWait(opt.Lease) + opt.Renew/20 + 5*80*time.Millisecond},
			{"machine terminated", func(sim *electionSimulation, a *node) { kill(sim, a, MachineTerminated) }, 0, told},
			{"released", func(sim *electionSimulation, a *node) { sim.give(a, Release{}) }, 0, told + opt.Renew/20},
		} {
			var waits []time.Duration
			for seed := range uint64(200) {
				sim := newSimulation(seed)
				sim.idle = true
				a := &node{name: "a", machine: "m-a", state: MachineRunning, rate: 1, opt: opt}
				b := &node{name: "b", machine: "m-b", state: MachineRunning, rate: 1, opt: opt}
				sim.nodes = []*node{a, b}
				sim.start(a)
				sim.after(opt.Renew/3, func() { sim.start(b) })
				sim.runUntil(20*opt.Renew + time.Duration(sim.rng.Int64N(int64(opt.Renew))))
				if sim.leader() != a {
					t.Fatalf("seed %d: a does not lead", seed)
				}
				before := sim.now
				tc.stop(sim, a)
				for sim.leader() != b && sim.now < before+3*opt.Lease {
					sim.runUntil(sim.now + time.Millisecond)
					if !a.alive {
						a.life++ // not restarted
					}
				}
				if sim.err != nil {
					t.Fatal(sim.err)
				}
				waits = append(waits, sim.now-before)
			}
			slices.Sort(waits)
			t.Logf("renewal %v, lease %v, %s: p50 %v, p95 %v, most %v", opt.Renew, opt.Lease, tc.name, waits[99],
				waits[189], waits[199])
			if waits[199] > tc.most {
				t.Errorf("lease %v, %s: fail-over took %v, want at most %v", opt.Lease, tc.name, waits[199], tc.most)
			}
			if waits[0] < tc.least {
				t.Errorf("lease %v, %s: fail-over took only %v, cannot be less than %v", opt.Lease, tc.name, waits[0],
					tc.least)
			}
		}
	}
}
