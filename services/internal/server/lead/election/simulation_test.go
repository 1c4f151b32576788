package election

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

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

var (
	seedFlag  = flag.Uint64("election.seed", 0, "run the electionSimulation of this seed only, and print what happens")
	seedCount = flag.Int("election.seeds", 2000, "number of worlds")

	stateCount = flag.Int("election.states", 60_000, "number of states that the model visits from each beginning")
)

// An electionSimulation runs several electors with one lock. Its own clock shows the true time. Each node's clock
// differs from the true time by an offset, and by up to 5 % in speed. The seed determines all faults: answers are lost,
// writes take effect late, processes pause, crash and restart, machines stop running, and a person deletes the lock.
type electionSimulation struct {
	rng    *rand.Rand
	trace  func(format string, args ...any)
	faults faults // the current rates of faults

	now    time.Duration
	events events
	seq    int

	lock     *stored
	history  []stored // every version of the lock, oldest first
	versions map[record.LockVersion]record.Lock
	recorded uint64        // the highest term that ever led
	removeAt time.Duration // the time at which a person deletes the lock
	idle     bool          // no confirmations are requested

	nodes  []*node
	births int
	err    error

	led, requests, confirms int
	lostAt                  time.Duration

	cuts map[way]time.Duration // until when messages in a direction are lost
	// These are counters: heirs counts versions of the lock that name an heir, inherited counts takeovers by heirs, and
	// yields counts handover messages.
	heirs, inherited, yields int
}

type faults struct {
	lose, late, slow, pause, crash, machine, lie, release float64
	drop, twice, lag, cut                                 float64 // of messages between servers
	blind                                                 float64 // cut off from the store
}

// stored is one version of the lock and the true time during which it was stored.
type stored struct {
	lock  record.Lock
	token objstore.Token
	from  time.Duration
	until time.Duration // negative: still stored
}

// node is one machine with one process. After the process has ended, either a new process starts on the same machine,
// or a new machine replaces the old one.
type node struct {
	name    string
	machine string
	state   MachineState
	offset  time.Duration
	rate    float64
	opt     Options

	life    int // number of the process; answers to earlier processes are dropped
	elector Elector
	alive   bool
	paused  bool
	inbox   []Input
	wake    int
	asked   []time.Duration // true time of each Confirm
	flying  []*WriteLock    // writes of this process that may still reach the store
	wire    *wire           // to the holder of the lock
	redial  time.Duration
	blind   time.Duration // until when the store is unreachable
}

func (n *node) clock(now time.Duration) Instant {
	return Instant(float64(now)*n.rate) + Instant(n.offset)
}

// trueTime returns the true time at which the node's clock shows t, rounded up.
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

func (sim *electionSimulation) after(d time.Duration, do func()) {
	sim.seq++
	heap.Push(&sim.events, event{at: sim.now + max(d, 0), seq: sim.seq, do: do})
}

func (sim *electionSimulation) fail(format string, args ...any) {
	if sim.err == nil {
		sim.err = fmt.Errorf("at %v: "+format, append([]any{sim.now}, args...)...)
	}
}

func (sim *electionSimulation) chance(p float64) bool { return p > 0 && sim.rng.Float64() < p }

// between returns a random duration. Short ones are more likely than long ones.
func (sim *electionSimulation) between(low, high time.Duration) time.Duration {
	f := sim.rng.Float64()
	return low + time.Duration(f*f*float64(high-low))
}

// runUntil runs the simulation until true time reaches end.
func (sim *electionSimulation) runUntil(end time.Duration) {
	for sim.err == nil && len(sim.events) > 0 && sim.events[0].at <= end {
		ev := heap.Pop(&sim.events).(event)
		sim.now = ev.at
		ev.do()
	}
	sim.now = end
}

// start starts a new process on a node.
func (sim *electionSimulation) start(n *node) {
	sim.births++
	n.life++
	n.alive, n.paused, n.inbox, n.asked, n.state, n.wire, n.flying = true, false, nil, nil, MachineRunning, nil, nil
	n.elector = New(Identity{ID: n.name, Incarnation: fmt.Sprintf("%s-%d", n.name, sim.births), Machine: n.machine},
		n.opt)
	sim.trace("%v %s starts as %s", sim.now, n.name, n.elector.self.Incarnation)
	sim.give(n, Tick{})
}

// end kills the process of a node. A new one starts after a while.
func (sim *electionSimulation) end(n *node, state MachineState) {
	sim.trace("%v %s ends, machine %d", sim.now, n.name, state)
	sim.ended(n, state)
	n.alive, n.state = false, state
	n.life++
	life := n.life
	sim.after(sim.between(100*time.Millisecond, 40*time.Second), func() {
		if n.life != life {
			return
		}
		if state == MachineTerminated && n.machine != "" {
			n.machine = fmt.Sprintf("m-%s-%d", n.name, sim.births)
		}
		sim.start(n)
	})
}

// give passes an input to a node's process. Inputs of a paused process wait.
func (sim *electionSimulation) give(n *node, in Input) {
	switch {
	case !n.alive || sim.err != nil:
		return
	case n.paused:
		n.inbox = append(n.inbox, in)
		return
	}
	now := n.clock(sim.now)
	next, decision := n.elector.Next(now, in)
	if sim.seq%32 == 0 {
		if again, repeated := n.elector.Next(now, in); fmt.Sprint(decision) != fmt.Sprint(repeated) || next != again {
			sim.fail("%s: Next is not a function of its arguments", n.name)
		}
	}
	n.elector = next
	sim.trace("%v %s %T%+v → %v", sim.now, n.name, in, in, decision.Actions)
	for _, action := range decision.Actions {
		sim.perform(n, action)
	}
	n.wake++
	if wake := n.wake; decision.Wake != Never && n.alive {
		life := n.life
		if decision.Wake <= now {
			sim.fail("%s is to wake in the past", n.name)
		}
		late := sim.between(0, 5*time.Millisecond)
		sim.after(n.trueTime(decision.Wake)-sim.now+late, func() {
			if n.life == life && n.wake == wake {
				sim.give(n, Tick{})
			}
		})
	}
	sim.checkAuthority()
	sim.dial(n)
}

// checkAuthority checks the invariant that at most one process has authority. A check after each step is enough,
// because between steps authority can only end.
func (sim *electionSimulation) checkAuthority() {
	var leader *node
	for _, n := range sim.nodes {
		if until, _ := n.elector.ActUntil(); !n.alive || until <= n.clock(sim.now) {
			continue
		}
		if leader != nil {
			_, a := leader.elector.ActUntil()
			_, b := n.elector.ActUntil()
			sim.fail("%s (term %d) and %s (term %d) both have authority", leader.name, a, n.name, b)
			return
		}
		leader = n
	}
}

// answer gives a process the answer to its request after the given time. If the process has ended by then, the answer
// is lost.
func (sim *electionSimulation) answer(n *node, life int, after time.Duration, in Input) {
	sim.after(after, func() {
		if n.life == life {
			sim.give(n, in)
		}
	})
}

func (sim *electionSimulation) latency() time.Duration {
	if sim.chance(sim.faults.slow) {
		return sim.between(0, 3*time.Second)
	}
	return sim.between(time.Millisecond, 80*time.Millisecond)
}

func (sim *electionSimulation) perform(n *node, action Action) {
	timeout := time.Duration(float64(n.elector.RequestTimeout(n.clock(sim.now))) / n.rate)
	life := n.life
	switch a := action.(type) {
	case ReadLock:
		sim.requests++
		there, back := sim.latency(), sim.latency()
		if n.blind > sim.now || sim.chance(sim.faults.lose) || there+back >= timeout {
			sim.answer(n, life, timeout, ReadFailed{})
			return
		}
		sim.after(there, func() {
			in := sim.read()
			sim.answer(n, life, back, in)
		})
	case WriteLock:
		sim.requests++
		sim.checkBytes(a.Lock)
		n.flying = append(n.flying, &a)
		landed := func() Input {
			n.flying = slices.DeleteFunc(n.flying, func(f *WriteLock) bool { return f == &a })
			return sim.write(a)
		}
		there, back := sim.latency(), sim.latency()
		switch lost := n.blind > sim.now || sim.chance(sim.faults.lose); {
		case sim.chance(sim.faults.late): // lands late, after the sender has given it up
			sim.after(timeout+sim.between(0, 20*time.Second), func() { landed() })
			sim.answer(n, life, sim.between(0, timeout), WriteUnknown{})
		case lost && sim.chance(0.5): // never arrives
			sim.answer(n, life, timeout, WriteUnknown{})
		case lost || there+back >= timeout: // the answer is lost
			sim.after(there, func() { landed() })
			sim.answer(n, life, timeout, WriteUnknown{})
		default:
			sim.after(there, func() {
				in := landed()
				sim.answer(n, life, back, in)
			})
		}
	case AskMachine:
		sim.after(sim.latency(), func() {
			in := MachineAnswer{State: sim.machineState(a.Machine)}
			sim.answer(n, life, sim.latency(), in)
		})
	case BecameLeader:
		sim.led++
		if a.Term <= sim.recorded {
			sim.fail("%s leads in term %d, but %d was led already", n.name, a.Term, sim.recorded)
		}
		sim.recorded = max(sim.recorded, a.Term)
		if !sim.idle {
			sim.askConfirm(n, life, a.Term)
		}
	case LostLeadership:
		sim.lostAt = sim.now
		if a.Reason != ReasonReleased {
			sim.answer(n, life, sim.between(0, 3*time.Second), LeaderStopped{})
		}
	case Confirmed:
		sim.checkConfirmed(n, a)
	case Send:
		sim.send(n, a)
	case Released:
		// If this process has led in the term of the lock, it must release the lock before it ends. A lock of another
		// term is from a takeover that the process gave up. That write may take effect after the process has ended, so
		// the process need not release that lock.
		if sim.lock != nil && sim.lock.lock.Incarnation == n.elector.self.Incarnation &&
			sim.lock.lock.Term == n.elector.term && !sim.lock.lock.Released {
			sim.fail("%s goes, and leaves its lock behind", n.name)
		}
		n.alive = false
		sim.end(n, MachineRunning)
	default:
		sim.fail("unknown action %T", action)
	}
}

// askConfirm makes the leader of a term request confirmations at random times.
func (sim *electionSimulation) askConfirm(n *node, life int, term uint64) {
	sim.after(sim.between(10*time.Millisecond, 20*time.Second), func() {
		if _, now := n.elector.ActUntil(); n.life != life || now != term || n.paused {
			return
		}
		n.asked = append(n.asked, sim.now)
		sim.give(n, Confirm{Seq: uint64(len(n.asked))})
		sim.askConfirm(n, life, term)
	})
}

// checkConfirmed checks that this leadership held the lock at some time between the request and its answer.
func (sim *electionSimulation) checkConfirmed(n *node, c Confirmed) {
	_, term := n.elector.ActUntil()
	asked := n.asked[c.Seq-1]
	sim.confirms++
	for i := len(sim.history) - 1; i >= 0; i-- {
		s := sim.history[i]
		if i == len(sim.history)-1 && s.until >= 0 && n.opt.PeerLease > 0 {
			s.until = -1 // a person deleted it; an heir's answer proves that no other process holds it
		}
		if s.until >= 0 && s.until < asked {
			break
		}
		if s.lock.Incarnation == n.elector.self.Incarnation && s.lock.Term == term && !s.lock.Released {
			return
		}
	}
	sim.fail("%s: confirmation asked at %v is not true", n.name, asked)
}

// checkBytes checks that each version of the lock has only one content.
func (sim *electionSimulation) checkBytes(lock record.Lock) {
	if before, ok := sim.versions[lock.Version()]; ok && before != lock {
		sim.fail("two bodies for one version:\n%+v\n%+v", before, lock)
	}
	sim.versions[lock.Version()] = lock
}

func (sim *electionSimulation) read() Input {
	if sim.lock == nil {
		return LockAbsent{HighestTerm: sim.recorded}
	}
	return LockRead{Lock: sim.lock.lock, Token: sim.lock.token}
}

// write executes one conditional put in the store. The token depends only on the content, as in S3.
func (sim *electionSimulation) write(a WriteLock) Input {
	current := objstore.Token("")
	if sim.lock != nil {
		current = sim.lock.token
	}
	if !a.Condition.Holds(current, sim.lock != nil) {
		return WriteConflict{}
	}
	next := stored{lock: a.Lock, token: objstore.Token(fmt.Sprint(a.Lock)), from: sim.now, until: -1}
	if before := sim.lock; before != nil {
		if a.Lock.Term < before.lock.Term || a.Lock.Revision <= before.lock.Revision {
			sim.fail("the lock goes back: %+v after %+v", a.Lock, before.lock)
		}
		if before.lock.Heir == (Peer{ID: a.Lock.LeaderID, Incarnation: a.Lock.Incarnation}) && !before.lock.Released {
			sim.inherited++
		}
	}
	sim.remove()
	sim.history = append(sim.history, next)
	sim.lock = &next
	if next.lock.Heir != (Peer{}) {
		sim.heirs++
	}
	sim.trace("%v lock: %s term %d revision %d released %v", sim.now, next.lock.Incarnation, next.lock.Term,
		next.lock.Revision, next.lock.Released)
	return LockWritten{Token: next.token}
}

func (sim *electionSimulation) remove() {
	if sim.lock != nil {
		sim.history[len(sim.history)-1].until = sim.now
		sim.lock = nil
	}
}

func (sim *electionSimulation) machineState(id string) MachineState {
	for _, n := range sim.nodes {
		if n.machine != id {
			continue
		}
		if n.state == MachineRunning && sim.chance(sim.faults.lie) {
			lies := []MachineState{MachineUnknown, MachineStopping, MachineSuspended, MachineNotFound}
			return lies[sim.rng.IntN(len(lies))]
		}
		return n.state
	}
	return MachineTerminated // the machine was replaced
}

// disturb causes faults on a random node, and schedules its own next run.
func (sim *electionSimulation) disturb(until time.Duration) {
	if sim.now >= until {
		return
	}
	sim.after(sim.between(0, 4*time.Second), func() { sim.disturb(until) })
	n := sim.nodes[sim.rng.IntN(len(sim.nodes))]
	if sim.now > sim.removeAt {
		sim.trace("%v a person deletes the lock", sim.now)
		sim.remove()
		sim.removeAt = math.MaxInt64
	}
	if !n.alive {
		return
	}
	switch {
	case sim.chance(sim.faults.crash):
		sim.end(n, MachineRunning)
	case sim.chance(sim.faults.machine):
		sim.end(n, []MachineState{MachineTerminated, MachineStopped}[sim.rng.IntN(2)])
	case sim.chance(sim.faults.release) && n.elector.role != Stopping:
		sim.give(n, Release{})
	case sim.chance(sim.faults.pause) && !n.paused:
		sim.pause(n, sim.between(0, 30*time.Second))
	case sim.chance(sim.faults.blind):
		sim.blind(n)
	case sim.chance(sim.faults.cut):
		sim.cutOff(n)
	case sim.chance(0.02):
		sim.give(n, TermSeen{Term: sim.recorded})
	}
}

func (sim *electionSimulation) pause(n *node, d time.Duration) {
	sim.trace("%v %s pauses for %v", sim.now, n.name, d)
	n.paused = true
	life := n.life
	sim.after(d, func() {
		if n.life != life {
			return
		}
		n.paused = false
		inbox := n.inbox
		n.inbox = nil
		sim.give(n, Tick{})
		for _, in := range inbox {
			if n.life == life {
				sim.give(n, in)
			}
		}
	})
}

func newSimulation(seed uint64) *electionSimulation {
	return &electionSimulation{
		rng:      rand.New(rand.NewPCG(seed, 1)),
		trace:    func(string, ...any) {},
		versions: map[record.LockVersion]record.Lock{},
		removeAt: math.MaxInt64,
		cuts:     map[way]time.Duration{},
	}
}

// play runs a simulation with the given seed. After a period of faults, the faults stop. A leader must then appear in
// bounded time and stay.
func play(seed uint64, heirs bool, trace func(string, ...any)) (*electionSimulation, error) {
	sim := newSimulation(seed)
	sim.trace = trace
	rng := sim.rng
	some := func(most float64) float64 { // each kind of fault occurs in half of the simulations
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
			leases[i].PeerLease, leases[i].PeerInterval, leases[i].HeirProbation = time.Second, 250*time.Millisecond,
				2*time.Second
			leases[i].HeirLease, leases[i].HeirRenew = 3*leases[i].Lease, 3*leases[i].Renew
		}
		leases[1].PeerLease, leases[1].HeirLease = 3*time.Second, 5*time.Second
		if rng.IntN(4) == 0 {
			leases[2].PeerLease = 0 // some processes, or all, have no support for heirs
		}
	}
	mixed := rng.IntN(3) == 0
	common := leases[rng.IntN(len(leases))]
	if !mixed { // a process that never read the deleted lock cannot know its lease
		// Delete the lock only once. Do not delete it while a write may be in flight that requires the absence of a
		// lock. Such a write would succeed after the deletion, because its condition names no token.
		sim.removeAt = time.Duration(40+rng.IntN(100)) * time.Second
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
		sim.nodes = append(sim.nodes, n)
		sim.after(sim.between(0, 3*time.Second), func() { sim.start(n) })
	}
	sim.faults = trouble
	peace := time.Duration(60+rng.IntN(120)) * time.Second
	sim.disturb(peace)
	sim.runUntil(peace)
	sim.faults = faults{}
	sim.trace("%v peace", sim.now)

	// 45 s after the last fault, late writes have taken effect (at most 20 s), pauses have ended (30 s), and new
	// processes have started (40 s). Then a standby waits for the longest lease, and its clock may be slow. The former
	// leader's code may take up to 3 s to stop.
	settled := peace + 45*time.Second + time.Duration(float64(takeoverWait(longest))/0.95) + 10*time.Second
	sim.runUntil(settled)
	if sim.err == nil && sim.leader() == nil {
		sim.fail("no leader, %v after the last trouble", settled-peace)
	}
	sim.runUntil(settled + time.Minute)
	if sim.err == nil && (sim.leader() == nil || sim.lostAt > settled) {
		sim.fail("the leader does not stay, lost at %v", sim.lostAt)
	}
	if sim.err == nil && heirs {
		sim.checkHeir()
	}
	return sim, sim.err
}

func (sim *electionSimulation) leader() *node {
	for _, n := range sim.nodes {
		if until, _ := n.elector.ActUntil(); n.alive && until > n.clock(sim.now) {
			return n
		}
	}
	return nil
}

func TestSimulation(t *testing.T) {
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
		sim, err := play(seed, false, func(string, ...any) {})
		if err != nil {
			t.Fatalf("seed %d: %v\nrepeat: go test ./services/internal/server/lead/election -run TestSimulation -v "+
				"-election.seed=%d", seed, err, seed)
		}
		led, confirms = led+sim.led, confirms+sim.confirms
	}
	t.Logf("%d worlds: %d leaderships, %d confirmations", count, led, confirms)
	if led < 3*count || confirms < count {
		t.Error(errors.New("too little happens in these worlds"))
	}
}
