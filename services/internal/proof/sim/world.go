// Package sim runs the real planner, executor, elector, configuration and codecs in a simulated shard. The bucket,
// provider, network, machines, people and clocks are simulated, and fail in all ways that docs/evidence/reliability.md
// lists. The whole simulation runs on one thread, so that a seed determines the run completely.
//
// Invariant: the simulation decides nothing for the code under test. It only withholds, delays, repeats and breaks
// things. There are two kinds of rules. What must never happen is checked during the whole run. What must happen
// eventually is checked after the faults have stopped.
package sim

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

const (
	clusterName = "sim"
	shardName   = "sim-a"
)

var ours = infra.Owner{Cluster: clusterName, Shard: shardName}

// Options configure a World.
type Options struct {
	Seed uint64
	// Faulty is the first part of the run, in which faults occur. Quiet is the second part, in which the shard must
	// converge. The shard must then stay converged for five minutes. If Quiet is zero, the run ends after Faulty.
	Faulty, Quiet time.Duration
	// Limited gives all groups windows and max_per_hour, and makes rollouts frequent. The promises of heirs are then
	// long, so that servers exchange only few messages.
	Limited bool
	// Log receives one line for each notable event. It may be nil.
	Log func(format string, args ...any)
	// Only, if not nil, holds the IDs of the faults that may occur. It changes nothing else in the run.
	Only map[uint64]bool
	// trap lets a test fail the run on purpose. Its argument has the number of faults of each kind so far. If trap
	// returns true, the run fails with ruleSimulator.
	trap func(counts map[Kind]int) bool
}

// Result describes a run.
type Result struct {
	Simulated                                          time.Duration
	Steps                                              uint64
	Terms, Creates, Batches, Deletes, Faults, Replaced int
	Inherited                                          int // number of takeovers by an heir
	Promotions                                         int // number of spares that became members
	Woken                                              int // number of calls that woke VMs
	// Kinds counts the faults of each kind.
	Kinds map[Kind]int
	// Injected are the faults of this run, in order.
	Injected []Injected
}

// Broken is the error of a run that broke a rule.
type Broken struct {
	Seed uint64
	Rule string
	At   time.Duration
	Text string
}

func (b *Broken) Error() string {
	return fmt.Sprintf("seed %d: after %v: rule %q: %s", b.Seed, b.At, b.Rule, b.Text)
}

// World is one shard in simulated time. It is not safe for concurrent use.
type World struct {
	opts     Options
	sched    *scheduler
	store    *mem.Store
	provider *mock.Provider
	servers  []*server
	stranger *server         // uses a copy of the bucket; nil: there is none
	outside  context.Context // for requests without faults

	bucket  bucket
	fleet   fleet
	people  people
	rates   rates
	faults  schedule
	operate operator
	quiet   bool
	// scarceUntil is when the provider has spot capacity again.
	scarceUntil time.Time
	// noSleepUntil and noWakeUntil are when the provider puts VMs to sleep and wakes them again.
	noSleepUntil, noWakeUntil time.Time
	crawl                     crawl
	lease                     time.Duration
	promise                   time.Duration // of an heir; 0: no server has an heir
	// reportInterval is the interval at which agents report.
	reportInterval time.Duration
	checksDown     time.Time // the health checks of all VMs fail until then
	refusing       time.Time // load balancers call all VMs unhealthy until then
	lock           storedLock
	reigns         []reign
	ways           [3][3]way // the network between servers
	restAt         time.Time // when the phase began in which nothing may happen
	result         Result
	err            error
	highest        uint64 // the highest term so far
	drawn          dice   // for decisions without a stream of their own
	// fooledAt is the time at which a leader last wrote a record while its clock stood still. lockRemovedAt is the time
	// of the last removal of the lock.
	fooledAt, lockRemovedAt time.Time
	doubted                 time.Time                // when a write of the groups last had no answer, or came late
	slowAnswers             map[uint64]time.Duration // by provider call
}

// New returns a World with two or three servers, a few groups, and some VMs of other owners.
func New(opts Options) *World {
	w := &World{opts: opts, outside: context.WithValue(context.Background(), outsideKey{}, true)}
	w.sched = newScheduler(func(why string) { w.fail(ruleNoPanic, "%s", why) })
	w.drawn = w.roll("world")
	w.slowAnswers = map[uint64]time.Duration{}
	w.faults = schedule{world: w, counts: map[Kind]int{}, only: opts.Only}
	w.promise = w.drawPromise()
	w.reportInterval = w.drawReportInterval()
	w.rates = w.drawRates()
	w.bucket = bucket{world: w, records: map[string]*document{}, byID: map[ident.ID]*document{},
		written: map[attempt]bool{}}
	w.fleet = fleet{world: w, byProvider: map[string]*machine{}, byInstance: map[ident.ID]*machine{},
		asked: map[ident.ID]*ask{}}
	now := func() time.Time { return w.sched.now }
	w.store = mem.New(mem.Options{Inject: w.injectStore, Sleep: w.latency, Now: now, Changed: w.changed})
	w.provider = mock.New(mock.Config{Now: now, Sleep: w.latency, Script: w.injectProvider, Yield: w.yield,
		Changed: w.fleet.changed, Health: w.memberHealth, Delay: w.deregistrationDelay,
		Boot: 2 * time.Second, Shutdown: 3 * time.Second, FallAsleep: 4 * time.Second, WakeUp: 3 * time.Second,
		Remember: 10 * time.Minute})
	rng := &w.drawn
	w.lease = []time.Duration{10 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second}[rng.IntN(4)]
	w.people = newPeople(w)
	w.people.apply()
	w.operate = operator{world: w}
	w.plantForeigners()
	for i := range 2 + rng.IntN(2) {
		w.servers = append(w.servers, &server{world: w, name: fmt.Sprintf("s%d", i+1), rate: 0.96 + 0.08*rng.Float64(),
			skew: rng.between(0, time.Hour), wall: rng.between(-wallSkew, wallSkew), index: i,
			options: w.electionOptions(i)})
	}
	return w
}

// heirLease is the lease of a lock with an heir.
const heirLease = 90 * time.Second

// drawPromise returns the length of an heir's promise in this World, or 0 if servers have no heirs. It draws long
// promises more often, because short promises make a run slow: the shortest takes 14,400 heartbeats per simulated hour.
func (w *World) drawPromise() time.Duration {
	d := w.dice("heir")
	if d.IntN(6) == 0 {
		return 0
	}
	const s = time.Second
	if w.opts.Limited {
		return 8 * s
	}
	return []time.Duration{s, 2 * s, 2 * s, 4 * s, 4 * s, 4 * s, 8 * s, 8 * s, 8 * s, 8 * s}[d.IntN(10)]
}

// mixed reports whether only some servers support heirs, as during the rollout of a configuration.
func (w *World) mixed() bool { return w.promise > 0 && w.dice("mixed").IntN(6) == 0 }

// electionOptions returns the options for the election of the server with the index i.
func (w *World) electionOptions(i int) election.Options {
	o := election.Options{Lease: w.lease, Renew: w.lease / 2}
	if w.promise == 0 || w.mixed() && w.dice("knows of heirs", uint64(i)).IntN(2) == 0 {
		return o
	}
	o.PeerLease, o.PeerInterval, o.HeirLease, o.HeirRenew = w.promise, w.promise/4, heirLease, heirLease/3
	return o
}

func (w *World) changed(key string, body []byte) {
	if key == lockKey {
		w.lockChanged(body)
		return
	}
	if key == groupsKey {
		w.groupsChanged(body)
		return
	}
	w.bucket.changed(key, body)
}

// Run simulates the shard: first with faults, then without faults, and at last while it must stay converged. The error
// is a *Broken with the seed and the first rule that broke.
func (w *World) Run() (result Result, err error) {
	defer w.end()
	defer func() {
		if r := recover(); r != nil {
			w.fail(ruleNoPanic, "%v\n%s", r, debug.Stack())
			result, err = w.result, w.err
		}
	}()
	for _, s := range w.servers {
		w.sched.after(w.drawn.between(0, 5*time.Second), func() {
			if s.lives == 0 {
				s.start()
			}
		})
	}
	w.plan()
	w.planCopies()
	w.planPreserved()
	w.planScaled()
	w.planSpares()
	w.planTrial()
	w.operate.run()
	broken := func() bool { return w.err != nil }

	w.sched.runUntil(epoch.Add(w.opts.Faulty), broken)
	if w.opts.Quiet > 0 {
		w.converge(broken)
	}
	w.result.Simulated, w.result.Steps = w.sched.elapsed, w.sched.steps
	w.result.Kinds, w.result.Injected = w.faults.counts, w.faults.injected
	return w.result, w.err
}

// converge executes the part of a run in which there are no faults.
func (w *World) converge(broken func() bool) {
	if w.err == nil {
		w.calm()
		soon := w.takeOverTime()
		w.sched.runUntil(w.sched.now.Add(soon), broken)
		if w.err == nil && w.acting() == nil {
			w.fail(ruleLeads, "no server leads %v after the faults have stopped", soon)
		}
	}
	w.sched.runUntil(epoch.Add(w.opts.Faulty+w.opts.Quiet), broken)
	if w.err == nil {
		w.checkRest()
		w.restAt = w.sched.now
		w.sched.runUntil(w.sched.now.Add(settled), broken)
	}
	if w.err == nil {
		w.checkRest()
	}
	if w.err == nil {
		w.checkHeir()
	}
}

// settled is the length of the final phase of a run, in which nothing may happen.
const settled = 5 * time.Minute

// end cancels every coroutine.
func (w *World) end() {
	for _, s := range append(w.servers, w.stranger) {
		if s != nil && s.alive() {
			s.stopLeading()
			w.sched.kill(s.process)
		}
	}
}

func (w *World) every(d time.Duration, fn func()) {
	w.sched.after(d, func() {
		fn()
		w.every(d, fn)
	})
}

// plantForeigners adds VMs that no server of this shard may touch.
func (w *World) plantForeigners() {
	for i, owner := range []infra.Owner{{Cluster: "else", Shard: shardName}, {Cluster: clusterName, Shard: "sim-b"}} {
		w.plant(fmt.Sprintf("foreign-%d", i), owner, w.freshID(&w.drawn),
			config.GroupKey{Tenant: "default", Group: "g1"})
	}
}

// plant adds a VM that no server requested.
func (w *World) plant(providerID string, owner infra.Owner, id ident.ID, key config.GroupKey) {
	err := w.provider.Plant(infra.VM{ProviderID: providerID, State: infra.Running, LaunchedAt: w.sched.now,
		Tags: infra.Tags{Owner: owner, Tenant: key.Tenant, Group: key.Group, Template: template, Kind: kind,
			Instance: id}})
	if err != nil {
		panic(err)
	}
}

func (w *World) freshID(d *dice) ident.ID {
	id, err := ident.NewID(kind, w.sched.now, d)
	if err != nil {
		panic(err)
	}
	return id
}

// tracing reports whether the run has a log. Frequent callers of trace should call tracing first.
func (w *World) tracing() bool { return w.opts.Log != nil }

func (w *World) trace(format string, args ...any) {
	if w.opts.Log != nil {
		w.opts.Log("%12v  %s", w.sched.elapsed, fmt.Sprintf(format, args...))
	}
}

func (w *World) fail(broken rule, format string, args ...any) {
	if w.err == nil {
		w.err = &Broken{Seed: w.opts.Seed, Rule: string(broken), At: w.sched.elapsed,
			Text: fmt.Sprintf(format, args...)}
		w.trace("BROKEN: %v", w.err)
	}
}

// caller returns the server of the running task, or nil if there is none.
func (w *World) caller() *server {
	if w.sched.current == nil {
		return nil
	}
	return w.sched.current.process.server
}

// acting returns the server that leads, if it is ready to serve.
func (w *World) acting() *server {
	for _, s := range w.servers {
		if s.alive() && !s.process.paused && s.serving() {
			return s
		}
	}
	return nil
}
