package lease

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// way is a direction between two machines.
type way struct{ from, to *node }

// wire is a follower's connection to the process that holds the lock. It has one life; messages on it do not keep their
// order.
type wire struct {
	follower, leader         *node
	followerLife, leaderLife int
	peer                     Peer // the leader's process
	down                     bool
}

// dial has a process be connected to whoever it believes to hold the lock.
func (w *world) dial(n *node) {
	if !n.alive || w.err != nil {
		return
	}
	holder, ok := n.elector.Holder()
	peer := Peer{ID: holder.LeaderID, Incarnation: holder.Incarnation}
	follows := ok && !holder.Released && peer != n.elector.self.Peer() && n.elector.role == Candidate
	switch wire := n.wire; {
	case wire != nil && !wire.down && follows && wire.peer == peer:
		return
	case wire != nil:
		w.hangUp(wire, w.between(0, 50*time.Millisecond))
		n.wire = nil
	}
	if !follows || n.redial > w.now {
		return
	}
	n.redial = w.now + time.Second
	w.after(time.Second+time.Millisecond, w.ofLife(n, func() { w.dial(n) }))
	leader := w.process(peer)
	if leader == nil || w.cut(n, leader) || w.cut(leader, n) {
		return
	}
	wire := &wire{follower: n, leader: leader, followerLife: n.life, leaderLife: leader.life, peer: peer}
	n.wire = wire
	self := n.elector.self.Peer()
	w.after(w.between(time.Millisecond, 50*time.Millisecond), w.ofLife(leader, func() {
		if !wire.down {
			w.give(leader, LinkUp{Peer: self})
		}
	}))
}

// ofLife does something only if a node's process still is the one of now.
func (w *world) ofLife(n *node, do func()) func() {
	life := n.life
	return func() {
		if n.life == life {
			do()
		}
	}
}

// hangUp ends a connection; its leader notices after a while.
func (w *world) hangUp(wire *wire, after time.Duration) {
	if wire.down {
		return
	}
	wire.down = true
	self := wire.follower.elector.self.Peer()
	if wire.followerLife != wire.follower.life || wire.leaderLife != wire.leader.life {
		return // who asks has found a wire of an earlier life
	}
	if n := wire.follower; n.alive {
		w.after(0, w.ofLife(n, func() { w.give(n, LeaderGone{Leader: wire.peer}) }))
	}
	w.after(after, w.ofLife(wire.leader, func() {
		// A newer connection of the same process takes this one's place: nobody hears of its end.
		if newer := wire.follower.wire; newer == nil || newer == wire || newer.down || newer.peer != wire.peer ||
			wire.follower.life != wire.followerLife {
			w.give(wire.leader, LinkDown{Peer: self})
		}
	}))
}

// ended cuts the connections of a process that has ended. Its kernel says so to the others, unless the machine is gone.
func (w *world) ended(n *node, state Evidence) {
	after := w.between(0, 10*time.Millisecond)
	if state != MachineRunning {
		after = w.between(time.Second, 20*time.Second)
	}
	for _, other := range w.nodes {
		if wire := other.wire; wire != nil && !wire.down && wire.leader == n {
			wire.down = true
			w.after(after, w.ofLife(other, func() {
				w.give(other, LeaderGone{Leader: wire.peer})
				w.dial(other)
			}))
		}
	}
	if n.wire != nil {
		w.hangUp(n.wire, after)
		n.wire = nil
	}
}

func (w *world) process(peer Peer) *node {
	for _, n := range w.nodes {
		if n.alive && n.elector.self.Peer() == peer {
			return n
		}
	}
	return nil
}

func (w *world) cut(from, to *node) bool { return w.cuts[way{from, to}] > w.now }

// cutOff has messages between a node and another get lost for a while, one way or both, or ends their connection.
func (w *world) cutOff(n *node) {
	other := w.nodes[w.rng.IntN(len(w.nodes))]
	until := w.now + w.between(100*time.Millisecond, 30*time.Second)
	how := w.rng.IntN(4)
	w.trace("%v %s and %s are cut off until %v, how %d", w.now, n.name, other.name, until, how)
	if how != 1 {
		w.cuts[way{n, other}] = until
	}
	if how != 2 {
		w.cuts[way{other, n}] = until
	}
	if how == 3 && n.wire != nil {
		w.hangUp(n.wire, w.between(0, 15*time.Second))
	}
}

// blind cuts a node off from the store for a while, or all of them.
func (w *world) blind(n *node) {
	until := w.now + w.between(time.Second, 30*time.Second)
	all := w.rng.IntN(4) == 0
	w.trace("%v %s cannot reach the store until %v, all: %v", w.now, n.name, until, all)
	for _, other := range w.nodes {
		if other == n || all {
			other.blind = until
		}
	}
}

// send carries a message, or not.
func (w *world) send(n *node, a Send) {
	to := w.process(a.To)
	switch a.Message.(type) {
	case Farewell:
		w.yields++
	case Promise:
		w.checkPromise(n)
	}
	if to == nil || to == n {
		return
	}
	connected := n.wire != nil && !n.wire.down && n.wire.leader == to || to.wire != nil && !to.wire.down &&
		to.wire.leader == n
	if !connected || w.cut(n, to) || w.chance(w.faults.drop) {
		return
	}
	times := 1
	if w.chance(w.faults.twice) {
		times = 2
	}
	for range times {
		delay := w.between(100*time.Microsecond, 5*time.Millisecond)
		if w.chance(w.faults.lag) {
			delay = w.between(0, 3*time.Second)
		}
		w.answer(to, to.life, delay, a.Message)
	}
}

// checkPromise: whoever promises not to take over has no write under way that could.
func (w *world) checkPromise(n *node) {
	for _, f := range n.flying {
		if w.lock != nil && f.Condition.Holds(w.lock.token, true) {
			w.fail("%s promises not to take over while its take-over may still land", n.name)
		}
	}
}

// checkHeir: in peace, a leader that somebody follows has an heir.
func (w *world) checkHeir() {
	followers := 0
	for _, n := range w.nodes {
		if n.alive && n != w.leader() && n.opt.PeerLease > 0 {
			followers++
		}
	}
	if leader := w.leader(); followers > 0 && leader.opt.PeerLease > 0 && leader.elector.heir == (Peer{}) {
		w.fail("no heir after a minute of peace, although %d follow", followers)
	}
}

func TestHeirWorlds(t *testing.T) {
	if *seedFlag != 0 {
		if _, err := play(*seedFlag, true, t.Logf); err != nil {
			t.Fatal(err)
		}
		return
	}
	count := *seedCount / 2
	if testing.Short() {
		count /= 10
	}
	var led, heirs, inherited, confirms, yields int
	for seed := uint64(1); seed <= uint64(count); seed++ {
		w, err := play(seed, true, func(string, ...any) {})
		if err != nil {
			t.Fatalf("seed %d: %v\nrepeat: go test ./services/internal/lease -run TestHeirWorlds -v -lease.seed=%d",
				seed, err, seed)
		}
		led, heirs, inherited, confirms, yields = led+w.led, heirs+w.heirs, inherited+w.inherited, confirms+w.confirms,
			yields+w.yields
	}
	t.Logf("%d worlds: %d leaderships, %d of heirs, %d farewells, %d locks with an heir, %d confirmations", count, led,
		inherited, yields, heirs, confirms)
	if led < 3*count || heirs < 5*count || inherited < count/4 || yields < count/20 || confirms < count {
		t.Error("too little happens in these worlds")
	}
}

// withHeir are the settings of docs/concepts/election.md with an heir.
var withHeir = Options{Lease: 10 * time.Second, Renew: 5 * time.Second, PeerLease: time.Second,
	PeerInterval: 250 * time.Millisecond}

// pair is a world of two servers, of which the first leads and the second is its heir at a random moment after a minute
// or two.
func pair(t *testing.T, seed uint64, opt Options) (w *world, a, b *node) {
	t.Helper()
	w = newWorld(seed)
	w.idle = true
	a, b = &node{name: "a", rate: 1, opt: opt}, &node{name: "b", rate: 1, opt: opt}
	w.nodes = []*node{a, b}
	w.start(a)
	w.after(opt.Renew/3, func() { w.start(b) })
	w.runUntil(time.Minute + time.Duration(w.rng.Int64N(int64(time.Minute))))
	if w.err != nil {
		t.Fatal(w.err)
	}
	if w.leader() != a || a.elector.heir != b.elector.self.Peer() {
		t.Fatalf("seed %d: a does not lead with b as its heir", seed)
	}
	return w, a, b
}

// TestHeirTimes holds the figures of docs/concepts/election.md: from the kill of the leader, or the release of its lock, to the
// authority of its heir.
func TestHeirTimes(t *testing.T) {
	vanish := func(state Evidence) func(w *world, a *node) {
		return func(w *world, a *node) {
			w.ended(a, state)
			a.alive = false
			a.life++
		}
	}
	kills := 200
	if testing.Short() {
		kills = 40
	}
	for _, lease := range []time.Duration{500 * time.Millisecond, time.Second, 3 * time.Second} {
		opt := withHeir
		opt.PeerLease, opt.PeerInterval = lease, lease/4
		for _, tc := range []struct {
			name string
			stop func(w *world, a *node)
			most time.Duration
		}{
			// The promise and its margin, the ways of a write, and those of another and a read when the last renewal
			// was too new to be told.
			{"killed", vanish(MachineRunning), faith(lease) + 400*time.Millisecond},
			{"machine vanished", vanish(MachineTerminated), faith(lease) + 400*time.Millisecond},
			{"released", func(w *world, a *node) { w.give(a, Release{}) }, 250 * time.Millisecond},
		} {
			var waits []time.Duration
			for seed := range uint64(kills) {
				w, a, b := pair(t, seed, opt)
				before, writes := w.now, len(w.history)
				tc.stop(w, a)
				for w.leader() != b && w.now < before+time.Minute {
					w.runUntil(w.now + time.Millisecond)
				}
				if w.err != nil {
					t.Fatal(w.err)
				}
				if len(w.history) != writes+1 {
					t.Errorf("seed %d: %d writes, want the heir's alone", seed, len(w.history)-writes)
				}
				waits = append(waits, w.now-before)
			}
			slices.Sort(waits)
			t.Logf("promises of %v, %s: p50 %v, p95 %v, p99 %v, most %v", lease, tc.name, waits[kills/2-1],
				waits[kills*95/100-1], waits[kills*99/100-1], waits[kills-1])
			if waits[kills-1] > tc.most {
				t.Errorf("promises of %v, %s: took up to %v, want at most %v", lease, tc.name, waits[kills-1], tc.most)
			}
		}
	}
}

// TestRequestsOfAnHourWithHeir holds the numbers of requests in docs/concepts/election.md.
func TestRequestsOfAnHourWithHeir(t *testing.T) {
	for _, followers := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(followers), func(t *testing.T) {
			w := newWorld(7)
			w.idle = true
			for i := range followers + 1 {
				n := &node{name: string(rune('a' + i)), rate: 1, opt: withHeir}
				w.nodes = append(w.nodes, n)
				w.after(time.Duration(i)*time.Second, func() { w.start(n) })
			}
			w.runUntil(10 * time.Minute)
			before := w.requests
			w.runUntil(70 * time.Minute)
			if w.err != nil {
				t.Fatal(w.err)
			}
			if got := w.requests - before; got < 119 || got > 122 || w.led != 1 {
				t.Errorf("%d requests an hour and %d leaderships, want 120 and 1", got, w.led)
			}
		})
	}
}

// A follower's end costs its leader no leadership: it is out of the lock before its promise has ended.
func TestHeirEnds(t *testing.T) {
	for _, state := range []Evidence{MachineRunning, MachineTerminated} {
		for seed := range uint64(50) {
			w, a, b := pair(t, seed, withHeir)
			w.ended(b, state)
			b.alive = false
			b.life++
			w.runUntil(w.now + time.Minute)
			if w.err != nil {
				t.Fatal(w.err)
			}
			if w.leader() != a || w.led != 1 || a.elector.heir != (Peer{}) {
				t.Fatalf("seed %d: %d leaderships, heir %v", seed, w.led, a.elector.heir)
			}
		}
	}
}
