// Package sim owns a seeded world around the real planner, executor, elector and codecs: a bucket, a provider, a network and clocks that fail in
// every way that page "Reliability" of the documentation lists, on one thread, so that a seed says everything about a run.
//
// Invariant: it decides nothing for the code under test; it only withholds, delays, repeats and breaks. What must never happen is checked at
// every step, what must come about after the faults have stopped.
package sim

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/objstore/mem"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/observe"
)

const (
	clusterName = "sim"
	shardName   = "sim-a"
)

// Options of a world.
type Options struct {
	Seed uint64
	// Faulty is how long things go wrong; Quiet how long after that the world has to come to rest, plus the same time in which it
	// must stay so.
	Faulty, Quiet time.Duration
	// Log receives a line per event of note; nil for none.
	Log func(format string, args ...any)
}

// Result says what a run did.
type Result struct {
	Simulated                                 time.Duration
	Steps                                     uint64
	Terms, Creates, Deletes, Faults, Replaced int
}

// World is one shard in simulated time.
type World struct {
	opts     Options
	sched    *scheduler
	store    *mem.Store
	provider *mock.Provider
	servers  []*server
	agents   map[ident.ID]*agent
	outside  *process // what belongs to no server
	// background is the context of requests whose life no authority bounds.
	background context.Context

	lease  time.Duration
	shard  *config.Shard
	groups []config.Group // the configuration as it is now
	faults faults
	quiet  bool

	highestTerm uint64
	largest     map[config.GroupKey]int // the largest size each group was to have since the last settling, plus surge
	result      Result
	err         error
	restAt      time.Time // since when nothing may happen any more
}

// faults are the odds of each thing going wrong, drawn once per world.
type faults struct {
	storeError, storeLost, storeLate, storeSlow             float64
	providerError, providerLost, providerLate, providerSlow float64
	throttle, capacity                                      float64
}

// agent is the machine's side of one VM: it registers, reports and obeys.
type agent struct {
	vm         infra.VM
	public     ed25519.PublicKey
	registered bool
	hash       string
	stream     uint64
	leader     any // of which leader the stream is
	mute       time.Time
	powerOff   bool
	notice     bool
	next       time.Time
	busy       bool
	broken     bool // never registers
}

type rawKey struct{}

// errStop ends a run early: an invariant did not hold.
var errStop = errors.New("invariant broken")

// New makes a world of two or three servers, a handful of groups and some VMs that are not ours.
func New(opts Options) *World {
	w := &World{opts: opts, sched: newScheduler(opts.Seed), agents: map[ident.ID]*agent{}, outside: &process{name: "world"},
		background: context.Background(), largest: map[config.GroupKey]int{}}
	w.sched.log = opts.Log
	rng := w.sched.rng
	odds := func(most float64) float64 {
		if rng.IntN(3) == 0 {
			return 0
		}
		return rng.Float64() * most
	}
	w.faults = faults{storeError: odds(0.1), storeLost: odds(0.05), storeLate: odds(0.02), storeSlow: odds(0.05),
		providerError: odds(0.1), providerLost: odds(0.05), providerLate: odds(0.02), providerSlow: odds(0.1), throttle: odds(0.1), capacity: odds(0.2)}
	w.lease = 10 * time.Second
	w.store = mem.New(mem.Options{Inject: w.injectStore, Sleep: w.sleep, Now: func() time.Time { return w.sched.now }})
	w.provider = mock.New(mock.Config{Now: func() time.Time { return w.sched.now }, Sleep: w.sleep, Script: w.injectProvider,
		Boot: 2 * time.Second, Shutdown: 3 * time.Second, Remember: 10 * time.Minute})
	w.configure(rng)
	w.plantForeigners()
	for i := range 2 + rng.IntN(2) {
		s := &server{world: w, name: fmt.Sprintf("s%d", i+1), rate: 0.96 + 0.08*rng.Float64(), skew: time.Duration(rng.Int64N(int64(time.Hour)))}
		w.servers = append(w.servers, s)
	}
	return w
}

func (w *World) configure(rng *rand.Rand) {
	second := func(n int) *config.Duration { d := config.Duration(time.Duration(n) * time.Second); return &d }
	w.shard = &config.Shard{Server: config.Server{
		HealthCheckInterval: second(15), DefaultDrainTimeout: second(10), ShutdownGrace: second(0),
		GarbageCollection: config.GarbageCollection{Interval: second(30), RegistrationTimeout: second(90), DeletedRecordRetention: second(600)},
	}}
	for i := range 1 + rng.IntN(4) {
		tenant := "default"
		if rng.IntN(4) == 0 {
			tenant = "other"
		}
		g := config.Group{GroupKey: config.GroupKey{Tenant: tenant, Group: fmt.Sprintf("g%d", i+1)}, Static: true, Template: "t", Kind: "knd",
			Size: rng.IntN(7), InstanceType: "small", InstanceTypes: []string{"large"}, SubnetPool: "p", Subnets: []string{"a", "b"},
			MaxSurge: 1 + rng.IntN(2), RuntimeHash: "r1", InfraHash: "i1"}
		if rng.IntN(2) == 0 {
			g.DrainTimeout = config.Duration(10 * time.Second)
		}
		g.MaxUnhealthy, _ = config.ParseLimit("40%")
		w.groups = append(w.groups, g)
	}
	w.noteSizes()
}

// noteSizes remembers the largest size that each group may have had until things come to rest.
func (w *World) noteSizes() {
	for _, g := range w.groups {
		w.largest[g.GroupKey] = max(w.largest[g.GroupKey], g.Size+g.MaxSurge)
	}
}

func (w *World) merged() map[config.GroupKey]config.Group {
	merged := map[config.GroupKey]config.Group{}
	for _, g := range w.groups {
		merged[g.GroupKey] = g
	}
	return merged
}

// plantForeigners makes VMs that no server of this shard may touch.
func (w *World) plantForeigners() {
	for i, owner := range []infra.Owner{{Cluster: "else", Shard: shardName}, {Cluster: clusterName, Shard: "sim-b"}} {
		id, err := ident.NewID("knd", w.sched.now, randReader{w.sched.rng})
		if err != nil {
			panic(err)
		}
		err = w.provider.Plant(infra.VM{ProviderID: fmt.Sprintf("foreign-%d", i), State: infra.Running, LaunchedAt: w.sched.now,
			Tags: infra.Tags{Owner: owner, Tenant: "default", Instance: id}})
		if err != nil {
			panic(err)
		}
	}
}

func (w *World) trace(format string, args ...any) {
	if w.opts.Log != nil {
		w.opts.Log("%12v  %s", w.sched.now.Sub(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), fmt.Sprintf(format, args...))
	}
}

func (w *World) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("seed %d: %s", w.opts.Seed, fmt.Sprintf(format, args...))
		w.trace("BROKEN: %v", w.err)
	}
}

// sleep is the latency of an edge, in the task that called it.
func (w *World) sleep(ctx context.Context, d time.Duration) error {
	w.sched.sleep(d)
	return ctx.Err()
}

// caller is the server whose task is running, nil for the world's own.
func (w *World) caller() *server {
	if w.sched.current == nil {
		return nil
	}
	for _, s := range w.servers {
		if s.process == w.sched.current.process {
			return s
		}
	}
	return nil
}

var errCut = errors.New("network unreachable")

func (w *World) injectStore(ctx context.Context, r mem.Request) mem.Fault {
	if ctx.Value(rawKey{}) != nil {
		return mem.Fault{}
	}
	f := mem.Fault{Before: w.sched.between(time.Millisecond, 20*time.Millisecond), After: w.sched.between(time.Millisecond, 20*time.Millisecond)}
	if s := w.caller(); s != nil && s.cut {
		w.result.Faults++
		return mem.Fault{Before: 2 * time.Second, Err: ambiguous(r, errCut)}
	}
	if w.quiet {
		return f
	}
	odds := w.faults.storeError
	if r.Op == mem.Get || r.Op == mem.List {
		odds = odds * odds * odds // SDKs repeat reads by themselves, up to three times
	}
	switch rng := w.sched; {
	case rng.chance(odds):
		f.Err = ambiguous(r, errors.New("503 slow down"))
	case rng.chance(w.faults.storeLost) && (r.Op == mem.Put || r.Op == mem.Delete):
		f.Lost = true
	case rng.chance(w.faults.storeLate) && (r.Op == mem.Put || r.Op == mem.Delete):
		f.Late = 1 + w.sched.rng.IntN(20)
	case rng.chance(w.faults.storeSlow):
		f.After = rng.between(100*time.Millisecond, 3*time.Second)
		return f
	default:
		return f
	}
	w.result.Faults++
	return f
}

func ambiguous(r mem.Request, err error) error {
	if r.Op == mem.Put && r.Cond.Conditional() {
		return fmt.Errorf("%w: %w", objstore.ErrIndeterminate, err)
	}
	return err
}

func (w *World) injectProvider(ctx context.Context, call mock.Call) mock.Outcome {
	out := mock.Outcome{Latency: w.sched.between(5*time.Millisecond, 100*time.Millisecond)}
	mutates := call.Kind == mock.Create || call.Kind == mock.Delete
	if mutates {
		w.checkCall(call)
	}
	s := w.caller()
	if s != nil && s.cut {
		w.result.Faults++
		return mock.Outcome{Latency: 2 * time.Second, Err: infra.Errorf(infra.Indeterminate, string(call.Kind), "network unreachable")}
	}
	if w.quiet {
		return out
	}
	switch rng := w.sched; {
	case rng.chance(w.faults.providerError):
		out.Err = infra.Errorf(infra.Indeterminate, string(call.Kind), "internal error")
	case rng.chance(w.faults.throttle):
		out.Err = infra.Errorf(infra.Throttled, string(call.Kind), "slow down")
	case mutates && rng.chance(w.faults.providerLost):
		out.Lost = true
	case mutates && rng.chance(w.faults.providerLate):
		out.Late = rng.between(time.Second, 40*time.Second)
	case call.Kind == mock.Create && call.Request.InstanceType == "small" && rng.chance(w.faults.capacity):
		out.Err = infra.Errorf(infra.Capacity, string(call.Kind), "no %s left", call.Request.InstanceType)
	case rng.chance(w.faults.providerSlow):
		out.Latency = rng.between(200*time.Millisecond, 8*time.Second)
		return out
	default:
		return out
	}
	w.result.Faults++
	return out
}

// Events of the leader are counted; nothing watches them here.
func (w *World) Instance(e observe.InstanceEvent) {
	w.trace("event %s %s/%s %s %s", e.Type, e.Tenant, e.Group, e.Instance, e.Reason)
	if e.Type == observe.EventCreating && !e.Replaces.IsZero() {
		w.result.Replaced++
	}
}

// Group implements observe.Events.
func (w *World) Group(config.GroupKey) {}

// Error implements observe.Events.
func (w *World) Error(e observe.ErrorEvent) {
	w.trace("error %s %s/%s %s resolved=%t: %s", e.Kind, e.Tenant, e.Group, e.Instance, e.Resolved, e.Message)
}

// Push implements execute.Files: the agent has its files a little later.
func (w *World) Push(_ context.Context, id ident.ID) error {
	a := w.agents[id]
	s := w.acting()
	if a == nil || s == nil {
		return nil
	}
	view, ok := s.leader.World.Instance(id)
	if !ok {
		return nil
	}
	group, _ := s.leader.World.Group(config.GroupKey{Tenant: view.Record.Tenant, Group: view.Record.Group})
	s.leader.World.FilesSent(id, group.RuntimeHash)
	w.sched.after(w.sched.between(10*time.Millisecond, time.Second), func() { a.hash, a.next = group.RuntimeHash, w.sched.now })
	return nil
}

// acting returns the server that leads, if it is ready to serve.
func (w *World) acting() *server {
	for _, s := range w.servers {
		if s.alive() && !s.process.paused && s.leader != nil && s.authority != nil && s.authority.Remaining() > 0 {
			return s
		}
	}
	return nil
}

// records reads the shard's instance records as they are, past every fault.
func (w *World) records() map[ident.ID]record.Instance {
	ctx := context.WithValue(w.background, rawKey{}, true)
	entries, err := w.store.List(ctx, keys.InstancePrefix(shardName))
	if err != nil {
		panic(err)
	}
	out := map[ident.ID]record.Instance{}
	for _, entry := range entries {
		object, err := w.store.Get(ctx, entry.Key)
		if err != nil {
			panic(err)
		}
		rec, err := record.DecodeInstance(object.Body)
		if err != nil {
			w.fail("%s cannot be read: %v", entry.Key, err)
			continue
		}
		out[rec.ID] = rec
	}
	return out
}

func (w *World) recordOf(tenant string, id ident.ID) (record.Instance, bool) {
	object, err := w.store.Get(context.WithValue(w.background, rawKey{}, true), keys.Instance(shardName, tenant, id.Storage()))
	if err != nil {
		return record.Instance{}, false
	}
	rec, err := record.DecodeInstance(object.Body)
	if err != nil {
		w.fail("record of %s cannot be read: %v", id, err)
	}
	return rec, true
}

// ours returns the VMs of this shard that have not ended, by group.
func (w *World) ours() []infra.VM {
	return slices.DeleteFunc(w.provider.VMs(), func(vm infra.VM) bool {
		return vm.Tags.Owner != infra.Owner{Cluster: clusterName, Shard: shardName} || vm.State == infra.Deleted
	})
}

func describe(vms []infra.VM) string {
	var b strings.Builder
	for _, vm := range vms {
		fmt.Fprintf(&b, " %s(%s %s %s)", vm.Tags.Instance, vm.Tags.Group, vm.State, vm.ProviderID)
	}
	return b.String()
}
