package lease

import (
	"container/heap"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
)

var (
	seedFlag  = flag.Uint64("lease.seed", 0, "run the world of this seed only, and print what happens")
	seedCount = flag.Int("lease.seeds", 2000, "number of worlds")

	stateCount = flag.Int("lease.states", 60_000, "number of states that the model visits from each beginning")
)

// A world is a few electors over one lock, in true time. Everything that goes wrong comes from its seed: answers are
// lost, writes land late, processes pause, crash and restart, machines end, clocks are offset and run up to 5 % fast or
// slow, people delete the lock.
type world struct {
	rng    *rand.Rand
	trace  func(format string, args ...any)
	faults faults // what goes wrong now

	now    time.Duration
	events events
	seq    int

	lock     *stored
	history  []stored // every version of the lock, oldest first
	versions map[record.LockVersion]record.Lock
	recorded uint64        // highest term that ever led
	removeAt time.Duration // a person deletes the lock
	idle     bool          // nobody asks for confirmation

	nodes  []*node
	births int
	err    error

	led, requests, confirms int
	lostAt                  time.Duration

	cuts map[way]time.Duration // until when messages get lost there
	// locks with an heir; leaderships of heirs; releases that became one by message
	heirs, inherited, yields int
}

type faults struct {
	lose, late, slow, pause, crash, machine, lie, release float64
	drop, twice, lag, cut                                 float64 // of messages between servers
	blind                                                 float64 // cut off from the store
}

// stored is one version of the lock and the true time in which it was there.
type stored struct {
	lock  record.Lock
	token objstore.Token
	from  time.Duration
	until time.Duration // negative: still there
}

// node is one machine with one process, restarted or replaced after its end.
type node struct {
	name    string
	machine string
	state   Evidence
	offset  time.Duration
	rate    float64
	opt     Options

	life    int // of the process; answers to an earlier one are dropped
	elector Elector
	alive   bool
	paused  bool
	inbox   []Input
	wake    int
	asked   []time.Duration // true time of each Confirm
	flying  []*WriteLock    // of this life, that may still reach the store
	wire    *wire           // to the holder of the lock
	redial  time.Duration
	blind   time.Duration // until when the store is out of reach
}

func (n *node) clock(now time.Duration) Instant {
	return Instant(float64(now)*n.rate) + Instant(n.offset)
}

// trueTime is the inverse of clock, rounded up.
func (n *node) trueTime(t Instant) time.Duration {
	return time.Duration(float64(t-Instant(n.offset))/n.rate) + 1
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	last := len(*q) - 1
	ev := (*q)[last]
	*q = (*q)[:last]
	return ev
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, event{at: w.now + max(d, 0), seq: w.seq, do: do})
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("at %v: "+format, append([]any{w.now}, args...)...)
	}
}

func (w *world) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

// between is a random duration, short ones more often than long ones.
func (w *world) between(low, high time.Duration) time.Duration {
	f := w.rng.Float64()
	return low + time.Duration(f*f*float64(high-low))
}

// runUntil plays the world to a true time.
func (w *world) runUntil(end time.Duration) {
	for w.err == nil && len(w.events) > 0 && w.events[0].at <= end {
		ev := heap.Pop(&w.events).(event)
		w.now = ev.at
		ev.do()
	}
	w.now = end
}

// start begins a new process on a node.
func (w *world) start(n *node) {
	w.births++
	n.life++
	n.alive, n.paused, n.inbox, n.asked, n.state, n.wire, n.flying = true, false, nil, nil, MachineRunning, nil, nil
	n.elector = New(Identity{ID: n.name, Incarnation: fmt.Sprintf("%s-%d", n.name, w.births), Machine: n.machine},
		n.opt)
	w.trace("%v %s starts as %s", w.now, n.name, n.elector.self.Incarnation)
	w.give(n, Tick{})
}

// end kills the process of a node; a new one comes after a while.
func (w *world) end(n *node, state Evidence) {
	w.trace("%v %s ends, machine %d", w.now, n.name, state)
	w.ended(n, state)
	n.alive, n.state = false, state
	n.life++
	life := n.life
	w.after(w.between(100*time.Millisecond, 40*time.Second), func() {
		if n.life != life {
			return
		}
		if state == MachineTerminated && n.machine != "" {
			n.machine = fmt.Sprintf("m-%s-%d", n.name, w.births)
		}
		w.start(n)
	})
}

// give hands an input to a node's process, or keeps it until a paused one goes on.
func (w *world) give(n *node, in Input) {
	switch {
	case !n.alive || w.err != nil:
		return
	case n.paused:
		n.inbox = append(n.inbox, in)
		return
	}
	now := n.clock(w.now)
	next, decision := n.elector.Next(now, in)
	if w.seq%32 == 0 {
		if again, repeated := n.elector.Next(now, in); fmt.Sprint(decision) != fmt.Sprint(repeated) || next != again {
			w.fail("%s: Next is not a function of its arguments", n.name)
		}
	}
	n.elector = next
	w.trace("%v %s %T%+v → %v", w.now, n.name, in, in, decision.Actions)
	for _, action := range decision.Actions {
		w.perform(n, action)
	}
	n.wake++
	if wake := n.wake; decision.Wake != Never && n.alive {
		life := n.life
		if decision.Wake <= now {
			w.fail("%s is to wake in the past", n.name)
		}
		late := w.between(0, 5*time.Millisecond)
		w.after(n.trueTime(decision.Wake)-w.now+late, func() {
			if n.life == life && n.wake == wake {
				w.give(n, Tick{})
			}
		})
	}
	w.checkAuthority()
	w.dial(n)
}

// checkAuthority is the invariant: clocks only end authority, so looking after each step is enough.
func (w *world) checkAuthority() {
	var leader *node
	for _, n := range w.nodes {
		if until, _ := n.elector.ActUntil(); !n.alive || until <= n.clock(w.now) {
			continue
		}
		if leader != nil {
			_, a := leader.elector.ActUntil()
			_, b := n.elector.ActUntil()
			w.fail("%s (term %d) and %s (term %d) both have authority", leader.name, a, n.name, b)
			return
		}
		leader = n
	}
}

// answer hands in the answer to a request of one life of the process, unless that ended in between.
func (w *world) answer(n *node, life int, after time.Duration, in Input) {
	w.after(after, func() {
		if n.life == life {
			w.give(n, in)
		}
	})
}

func (w *world) latency() time.Duration {
	if w.chance(w.faults.slow) {
		return w.between(0, 3*time.Second)
	}
	return w.between(time.Millisecond, 80*time.Millisecond)
}

func (w *world) perform(n *node, action Action) {
	timeout := time.Duration(float64(requestTimeout(n.opt)) / n.rate)
	life := n.life
	switch a := action.(type) {
	case ReadLock:
		w.requests++
		there, back := w.latency(), w.latency()
		if n.blind > w.now || w.chance(w.faults.lose) || there+back >= timeout {
			w.answer(n, life, timeout, ReadFailed{})
			return
		}
		w.after(there, func() {
			in := w.read()
			w.answer(n, life, back, in)
		})
	case WriteLock:
		w.requests++
		w.checkBytes(a.Lock)
		n.flying = append(n.flying, &a)
		landed := func() Input {
			n.flying = slices.DeleteFunc(n.flying, func(f *WriteLock) bool { return f == &a })
			return w.write(a)
		}
		there, back := w.latency(), w.latency()
		switch lost := n.blind > w.now || w.chance(w.faults.lose); {
		case w.chance(w.faults.late): // lands late, after its answer was given up
			w.after(timeout+w.between(0, 20*time.Second), func() { landed() })
			w.answer(n, life, w.between(0, timeout), WriteUnknown{})
		case lost && w.chance(0.5): // never arrives
			w.answer(n, life, timeout, WriteUnknown{})
		case lost || there+back >= timeout: // answer lost
			w.after(there, func() { landed() })
			w.answer(n, life, timeout, WriteUnknown{})
		default:
			w.after(there, func() {
				in := landed()
				w.answer(n, life, back, in)
			})
		}
	case AskMachine:
		w.after(w.latency(), func() {
			in := MachineAnswer{State: w.machineState(a.Machine)}
			w.answer(n, life, w.latency(), in)
		})
	case BecameLeader:
		w.led++
		if a.Term <= w.recorded {
			w.fail("%s leads in term %d, but %d was led already", n.name, a.Term, w.recorded)
		}
		w.recorded = max(w.recorded, a.Term)
		if !w.idle {
			w.askConfirm(n, life, a.Term)
		}
	case LostLeadership:
		w.lostAt = w.now
		if a.Reason != ReasonReleased {
			w.answer(n, life, w.between(0, 3*time.Second), LeaderStopped{})
		}
	case Confirmed:
		w.checkConfirmed(n, a)
	case Send:
		w.send(n, a)
	case Released:
		// A take-over that was given up may still land when nobody is there any more. What was led is given back.
		if w.lock != nil && w.lock.lock.Incarnation == n.elector.self.Incarnation &&
			w.lock.lock.Term == n.elector.term && !w.lock.lock.Released {
			w.fail("%s goes, and leaves its lock behind", n.name)
		}
		n.alive = false
		w.end(n, MachineRunning)
	default:
		w.fail("unknown action %T", action)
	}
}

// askConfirm lets the leader of a term ask for confirmation now and then.
func (w *world) askConfirm(n *node, life int, term uint64) {
	w.after(w.between(10*time.Millisecond, 20*time.Second), func() {
		if _, now := n.elector.ActUntil(); n.life != life || now != term || n.paused {
			return
		}
		n.asked = append(n.asked, w.now)
		w.give(n, Confirm{Seq: uint64(len(n.asked))})
		w.askConfirm(n, life, term)
	})
}

// checkConfirmed: between the question and its answer there was a moment when the lock was this leadership's.
func (w *world) checkConfirmed(n *node, c Confirmed) {
	_, term := n.elector.ActUntil()
	asked := n.asked[c.Seq-1]
	w.confirms++
	for i := len(w.history) - 1; i >= 0; i-- {
		s := w.history[i]
		if i == len(w.history)-1 && s.until >= 0 && n.opt.PeerLease > 0 {
			s.until = -1 // a person deleted it; an heir's answer proves that nobody else has it
		}
		if s.until >= 0 && s.until < asked {
			break
		}
		if s.lock.Incarnation == n.elector.self.Incarnation && s.lock.Term == term && !s.lock.Released {
			return
		}
	}
	w.fail("%s: confirmation asked at %v is not true", n.name, asked)
}

// checkBytes: one version, one body.
func (w *world) checkBytes(lock record.Lock) {
	if before, ok := w.versions[lock.Version()]; ok && before != lock {
		w.fail("two bodies for one version:\n%+v\n%+v", before, lock)
	}
	w.versions[lock.Version()] = lock
}

func (w *world) read() Input {
	if w.lock == nil {
		return LockAbsent{HighestTerm: w.recorded}
	}
	return LockRead{Lock: w.lock.lock, Token: w.lock.token}
}

// write is one conditional put at the store. The token is the content, as in S3.
func (w *world) write(a WriteLock) Input {
	current := objstore.Token("")
	if w.lock != nil {
		current = w.lock.token
	}
	if !a.Condition.Holds(current, w.lock != nil) {
		return WriteConflict{}
	}
	next := stored{lock: a.Lock, token: objstore.Token(fmt.Sprint(a.Lock)), from: w.now, until: -1}
	if before := w.lock; before != nil {
		if a.Lock.Term < before.lock.Term || a.Lock.Revision <= before.lock.Revision {
			w.fail("the lock goes back: %+v after %+v", a.Lock, before.lock)
		}
		if before.lock.Heir == (Peer{ID: a.Lock.LeaderID, Incarnation: a.Lock.Incarnation}) && !before.lock.Released {
			w.inherited++
		}
	}
	w.remove()
	w.history = append(w.history, next)
	w.lock = &next
	if next.lock.Heir != (Peer{}) {
		w.heirs++
	}
	w.trace("%v lock: %s term %d revision %d released %v", w.now, next.lock.Incarnation, next.lock.Term,
		next.lock.Revision, next.lock.Released)
	return LockWritten{Token: next.token}
}

func (w *world) remove() {
	if w.lock != nil {
		w.history[len(w.history)-1].until = w.now
		w.lock = nil
	}
}

func (w *world) machineState(id string) Evidence {
	for _, n := range w.nodes {
		if n.machine != id {
			continue
		}
		if n.state == MachineRunning && w.chance(w.faults.lie) {
			lies := []Evidence{MachineUnknown, MachineStopping, MachineSuspended, MachineNotFound}
			return lies[w.rng.IntN(len(lies))]
		}
		return n.state
	}
	return MachineTerminated // replaced
}

// disturb is one round of trouble for a random node, then the next one.
func (w *world) disturb(until time.Duration) {
	if w.now >= until {
		return
	}
	w.after(w.between(0, 4*time.Second), func() { w.disturb(until) })
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	if w.now > w.removeAt {
		w.trace("%v a person deletes the lock", w.now)
		w.remove()
		w.removeAt = math.MaxInt64
	}
	if !n.alive {
		return
	}
	switch {
	case w.chance(w.faults.crash):
		w.end(n, MachineRunning)
	case w.chance(w.faults.machine):
		w.end(n, []Evidence{MachineTerminated, MachineStopped}[w.rng.IntN(2)])
	case w.chance(w.faults.release) && n.elector.role != Stopping:
		w.give(n, Release{})
	case w.chance(w.faults.pause) && !n.paused:
		w.pause(n, w.between(0, 30*time.Second))
	case w.chance(w.faults.blind):
		w.blind(n)
	case w.chance(w.faults.cut):
		w.cutOff(n)
	case w.chance(0.02):
		w.give(n, TermMet{Term: w.recorded})
	}
}

func (w *world) pause(n *node, d time.Duration) {
	w.trace("%v %s pauses for %v", w.now, n.name, d)
	n.paused = true
	life := n.life
	w.after(d, func() {
		if n.life != life {
			return
		}
		n.paused = false
		inbox := n.inbox
		n.inbox = nil
		w.give(n, Tick{})
		for _, in := range inbox {
			if n.life == life {
				w.give(n, in)
			}
		}
	})
}

func newWorld(seed uint64) *world {
	return &world{
		rng:      rand.New(rand.NewPCG(seed, 1)),
		trace:    func(string, ...any) {},
		versions: map[record.LockVersion]record.Lock{},
		removeAt: math.MaxInt64,
		cuts:     map[way]time.Duration{},
	}
}

// play runs one seed: a time of trouble, then peace, in which a leader must appear in bounded time and stay.
func play(seed uint64, heirs bool, trace func(string, ...any)) (*world, error) {
	w := newWorld(seed)
	w.trace = trace
	rng := w.rng
	some := func(most float64) float64 { // each kind of trouble is there in half of the worlds
		if rng.IntN(2) == 0 {
			return 0
		}
		return rng.Float64() * most
	}
	leases := []Options{
		{Lease: 10 * time.Second, Renew: 5 * time.Second},
		{Lease: 4 * time.Second, Renew: time.Second},
		{Lease: 30 * time.Second, Renew: 10 * time.Second},
	}
	trouble := faults{lose: some(0.5), late: some(0.5), slow: some(0.5), pause: some(0.7), crash: some(0.3),
		machine: some(0.3),
		lie:     some(1), release: some(0.3)}
	if heirs {
		trouble.drop, trouble.twice, trouble.lag, trouble.cut, trouble.blind = some(0.4), some(0.3), some(0.4),
			some(0.4), some(0.4)
		for i := range leases {
			leases[i].PeerLease, leases[i].PeerInterval, leases[i].Steady = time.Second, 250*time.Millisecond,
				2*time.Second
			leases[i].HeirLease, leases[i].HeirRenew = 3*leases[i].Lease, 3*leases[i].Renew
		}
		leases[1].PeerLease, leases[1].HeirLease = 3*time.Second, 5*time.Second
		if rng.IntN(4) == 0 {
			leases[2].PeerLease = 0 // some, or all, know of no heirs
		}
	}
	mixed := rng.IntN(3) == 0
	common := leases[rng.IntN(len(leases))]
	if !mixed { // who never saw the deleted lock cannot know its lease
		// Once, and not while writes on condition of absence may be under way: absence has no token.
		w.removeAt = time.Duration(40+rng.IntN(100)) * time.Second
	}
	longest := max(common.Lease, common.HeirLease)
	for i := range 2 + rng.IntN(3) {
		n := &node{name: fmt.Sprintf("n%d", i), offset: time.Duration(rng.Int64N(int64(24 * time.Hour))), rate: 0.95 +
			0.1*rng.Float64(), opt: common}
		if rng.IntN(4) > 0 {
			n.machine = fmt.Sprintf("m-n%d", i)
		}
		if mixed {
			n.opt = leases[rng.IntN(len(leases))]
			longest = max(longest, n.opt.Lease, n.opt.HeirLease)
		}
		w.nodes = append(w.nodes, n)
		w.after(w.between(0, 3*time.Second), func() { w.start(n) })
	}
	w.faults = trouble
	peace := time.Duration(60+rng.IntN(120)) * time.Second
	w.disturb(peace)
	w.runUntil(peace)
	w.faults = faults{}
	w.trace("%v peace", w.now)

	// Late writes land within 20 s, pauses end within 30 s, processes are back within 40 s; then the longest lease is
	// waited for, by a slow clock, and the leader's code takes up to 3 s to end.
	settled := peace + 45*time.Second + time.Duration(float64(patience(longest))/0.95) + 10*time.Second
	w.runUntil(settled)
	if w.err == nil && w.leader() == nil {
		w.fail("no leader, %v after the last trouble", settled-peace)
	}
	w.runUntil(settled + time.Minute)
	if w.err == nil && (w.leader() == nil || w.lostAt > settled) {
		w.fail("the leader does not stay, lost at %v", w.lostAt)
	}
	if w.err == nil && heirs {
		w.checkHeir()
	}
	return w, w.err
}

func (w *world) leader() *node {
	for _, n := range w.nodes {
		if until, _ := n.elector.ActUntil(); n.alive && until > n.clock(w.now) {
			return n
		}
	}
	return nil
}

func TestWorlds(t *testing.T) {
	if *seedFlag != 0 {
		if _, err := play(*seedFlag, false, t.Logf); err != nil {
			t.Fatal(err)
		}
		return
	}
	count := *seedCount
	if testing.Short() {
		count /= 10
	}
	var led, confirms int
	for seed := uint64(1); seed <= uint64(count); seed++ {
		w, err := play(seed, false, func(string, ...any) {})
		if err != nil {
			t.Fatalf("seed %d: %v\nrepeat: go test ./services/internal/lease -run TestWorlds -v -lease.seed=%d", seed,
				err, seed)
		}
		led, confirms = led+w.led, confirms+w.confirms
	}
	t.Logf("%d worlds: %d leaderships, %d confirmations", count, led, confirms)
	if led < 3*count || confirms < count {
		t.Error(errors.New("too little happens in these worlds"))
	}
}
