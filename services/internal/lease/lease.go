// Package lease owns the election of a shard's leader: a pure state machine, Elector, and Run, the thin shell that
// gives it a clock, the bucket and the provider's word about machines, and runs the leader's code under an Authority.
//
// Invariant: at no moment do two processes hold authority, as long as their clocks run at rates that differ by less
// than a tenth and count while the machine sleeps. It rests on a few inequalities and nothing else. The lock
// (record.Lock) is only ever replaced on condition of the token that was seen, and
//
//   - a leader acts until 0.95 leases after it *began* to send its last confirmed renewal; nobody else writes the lock before he has seen its token
//     unchanged for 1.06 leases, unless the holder released it or its machine is gone;
//   - while the lock names an heir, its leader acts until 0.95 promises after it *began* to send the last heartbeat that the heir answered, too. The
//     heir writes the lock no sooner than 1.1 promises after it *received* the last one that it answered, which was later, and answers none while its
//     write may still land. So for true time t, clock rates of 0.95 to 1.05, and a promise of length P: leader's end ≤ t(sent) + 0.95 P / 0.95 =
//     t(sent) + P < t(received) + 1.1 P / 1.05 ≤ heir's write;
//   - while a write of the leader is unsettled either version may be in the store: it acts as long as both leases and the promises of both heirs let it.
//
// The heir is the process, not the server: a restarted one has another incarnation, and waits like everybody else.
package lease

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

// Instant is a reading of one machine's clock, which counts while the machine is suspended and is never set:
// nanoseconds since an arbitrary origin. Instants of different machines have nothing to do with each other.
type Instant int64

// Never is later than every reading.
const Never Instant = math.MaxInt64

// Add returns the instant d after t.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Identity is what a process writes into the lock about itself.
type Identity struct {
	// ID is the server's --id.
	ID string
	// Incarnation is random for each start of the process.
	Incarnation string
	// Machine is the provider's ID of the machine, never used again after it; empty if there is none.
	Machine   string
	Addresses record.LockAddresses
}

// Options are the settings of `leader_election` that this stage has.
type Options struct {
	// Lease is how long others wait, and 6 % longer, after the last renewal that they saw. Whole milliseconds.
	Lease time.Duration
	// Renew is the time between renewals, at most half a lease so that a failed one can be tried again.
	Renew time.Duration

	// PeerLease is for how long the heir promises not to take over; 0: there is no heir.
	PeerLease time.Duration
	// PeerInterval is the time between the leader's questions for that, shortened to a quarter of PeerLease.
	PeerInterval time.Duration
	// HeirLease and HeirRenew are Lease and Renew of a lock with an heir. 0: 90 s and 30 s, and not less than without
	// an heir.
	HeirLease, HeirRenew time.Duration
	// Steady is for how long a follower answers before it becomes heir. 0: 10 s.
	Steady time.Duration
}

// minPeerLease leaves room for a few round trips and the pauses of a busy process.
const minPeerLease = 100 * time.Millisecond

// filled is the options with what was left out.
func (o Options) filled() Options {
	if o.HeirLease == 0 {
		o.HeirLease = max(90*time.Second, o.Lease)
	}
	if o.HeirRenew == 0 {
		o.HeirRenew = max(30*time.Second, o.Renew)
	}
	if o.Steady == 0 {
		o.Steady = 10 * time.Second
	}
	return o
}

// minRenew keeps the pauses that are derived from Renew above a timer's precision.
const minRenew = 10 * time.Millisecond

// Validate says what is wrong with the options.
func (o Options) Validate() error {
	switch {
	case o.Renew < minRenew:
		return fmt.Errorf("renew_interval %v: want at least %v", o.Renew, minRenew)
	case o.Lease > time.Hour:
		return fmt.Errorf("lease_duration %v: want at most an hour", o.Lease)
	case o.Renew > o.Lease/2:
		return fmt.Errorf("renew_interval %v: want at most half of lease_duration %v", o.Renew, o.Lease)
	case o.Lease%time.Millisecond != 0 || o.Renew%time.Millisecond != 0:
		return errors.New("renew_interval and lease_duration: want whole milliseconds")
	case o.PeerLease == 0:
		return nil
	case o.PeerLease < minPeerLease || o.PeerLease > time.Minute:
		return fmt.Errorf("peer_lease %v: want 0, or %v to a minute", o.PeerLease, minPeerLease)
	case o.PeerInterval <= 0:
		return fmt.Errorf("peer_interval %v: want more than nothing", o.PeerInterval)
	}
	if h := o.filled(); h.HeirLease < h.Lease || h.HeirLease > time.Hour || h.HeirRenew > h.HeirLease/2 ||
		h.HeirRenew < minRenew ||
		h.HeirLease%time.Millisecond != 0 || h.HeirRenew%time.Millisecond != 0 {
		return fmt.Errorf("renewals of a lock with an heir every %v for %v cannot be", h.HeirRenew, h.HeirLease)
	}
	return nil
}

// authority is how long a leader may act after it began to send a renewal.
func authority(lease time.Duration) time.Duration { return lease - lease/20 }

// patience is how long a candidate sees an unchanged token before it may write. 1.06/1.05 is more than 0.95/0.95: what
// two clocks need of which one is 5 % fast and the other 5 % slow.
func patience(lease time.Duration) time.Duration { return lease + lease*6/100 }

// faith is how long who has promised keeps it. Beside the room for clocks there are milliseconds in it for what is
// under way: a twentieth of a lease is long, one of a promise is not.
func faith(promise time.Duration) time.Duration { return promise + promise/10 }

// requestTimeout is when an answer of the store is given up. Three attempts fit between the time a renewal is due and
// the end of authority.
func requestTimeout(o Options) time.Duration { return o.Lease / 8 }
