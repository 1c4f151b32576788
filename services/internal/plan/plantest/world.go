// Package plantest is a small world around the planner for tests: one group, its VMs, their agents and a provider, on a
// clock that jumps from event to event. It applies what the planner decides, checks every decision against what must
// always hold, and keeps a transcript.
//
// Invariant: the same script gives the same transcript, byte for byte.
package plantest

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/plan"
)

// Epoch is when worlds begin.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// World is one group and everything around it. It is not safe for concurrent use.
type World struct {
	Now      time.Time
	Settings plan.Settings
	Group    config.Group
	// Write, Create, Boot, End and Ask are how long a bucket write, a create call, a boot until registration, the end
	// of a terminated VM and a question to the provider take.
	Write, Create, Boot, End, Ask time.Duration
	// Reserve is how long a create waits for an instance ID; zero: a reservation is at hand.
	Reserve time.Duration
	// DrainAfter is how long an operator takes to drain a node; zero: it never says so.
	DrainAfter time.Duration
	// Refuse makes create calls fail with that reason. Mute keeps agents of new VMs from registering.
	Refuse string
	Mute   bool
	// Broken makes every write fail, Deaf every question to the provider.
	Broken, Deaf bool
	// Spread: the agents of added instances report at different times; otherwise all together.
	Spread bool
	// Shard is what the rest of the shard adds to the guard's count.
	Shard plan.ShardHealth

	VMs []*VM // sorted by ID, until they are forgotten

	pending                  int // creates without an ID
	leaderSince, silenceFrom time.Time
	backoff                  plan.Backoff
	guardRaised              bool
	backoffRaised            bool
	Forgotten                bool // the group was
	effects                  []effect
	sequence, term, named    int
	rand                     *rand.Rand
	doubt                    *rand.Rand // of checkFirm
	scriptStart              time.Time
	log                      strings.Builder
	marks                    map[string]int
	// what was last asked about an instance, and why, if nothing else was done since
	asked map[ident.ID]string
	err   error
}

// VM is an instance as the leader sees it, and the truth about it.
type VM struct {
	plan.Instance
	Name string
	// State of the machine as it is: running, going, stopped or gone.
	Truth plan.ProviderState
	// Agent runs and Cut: the network between it and the server is cut.
	Agent, Cut bool
	Unwell     bool
	reportFrom time.Time // reports come every interval from then on
}

type effect struct {
	at       time.Time
	sequence int
	term     int // of the leader that waits for it; 0: nobody does
	run      func()
}

// New returns a world with default settings and an empty group of size zero.
func New(seed int64) *World {
	w := &World{
		Now: Epoch, scriptStart: Epoch, leaderSince: Epoch, term: 1,
		Settings: plan.Settings{HealthInterval: time.Minute, RegistrationTimeout: 5 * time.Minute,
			Retention:       30 * time.Minute,
			CollectInterval: 2 * time.Minute},
		Group: config.Group{GroupKey: config.GroupKey{Tenant: "default", Group: "workers"}, Static: true, MaxSurge: 1,
			Kind:         "knd",
			MaxUnhealthy: config.Limit{Value: 40, Percent: true}, DrainTimeout: config.Duration(5 * time.Minute),
			InfraHash: "v1", RuntimeHash: "r1"},
		Write: 20 * time.Millisecond, Create: 500 * time.Millisecond, Boot: 30 * time.Second, End: 20 * time.Second,
		Ask: 50 * time.Millisecond, rand: rand.New(rand.NewSource(seed)), doubt: rand.New(rand.NewSource(^seed)),
		marks: map[string]int{}, asked: map[ident.ID]string{},
	}
	w.after(w.Settings.CollectInterval, 0, w.list)
	return w
}

// Err is the first thing that went against a rule.
func (w *World) Err() error { return w.err }

// Transcript is what happened since [World.Begin].
func (w *World) Transcript() string { return w.log.String() }

// Marked counts the deletions that were decided, by cause.
func (w *World) Marked(cause string) int { return w.marks[cause] }

// Begin starts the transcript and its clock anew.
func (w *World) Begin() {
	w.log.Reset()
	w.scriptStart = w.Now
	w.marks = map[string]int{}
}

// Note writes a line into the transcript.
func (w *World) Note(format string, args ...any) {
	fmt.Fprintf(&w.log, "%-10s -- %s\n", w.stamp(w.Now), fmt.Sprintf(format, args...))
}

func (w *World) stamp(t time.Time) string {
	return "+" + t.Sub(w.scriptStart).Round(time.Millisecond).String()
}

// Snapshot is what the planner sees now.
func (w *World) Snapshot() plan.Snapshot {
	for _, vm := range w.VMs {
		w.refresh(vm)
	}
	s := plan.Snapshot{Now: w.Now, Term: uint64(w.term), Settings: w.Settings, Group: w.Group,
		LeaderSince: w.leaderSince, SilenceFrom: w.silenceFrom,
		PendingCreates: w.pending, Backoff: w.backoff, CreateBudget: -1, GuardRaised: w.guardRaised,
		BackoffRaised: w.backoffRaised, Shard: w.Shard}
	for _, vm := range w.VMs {
		s.Instances = append(s.Instances, vm.Instance)
		running, silent := plan.RunningSilent(&vm.Instance, w.Settings, w.silenceFrom, w.Now)
		if running {
			s.Shard.Running++
		}
		if silent {
			s.Shard.Silent++
		}
	}
	return s
}

// refresh folds the reports that have come in until now into the leader's view.
func (w *World) refresh(vm *VM) {
	if vm.RegisteredAt.IsZero() || !vm.speaks() {
		return
	}
	if w.silenceFrom.IsZero() {
		w.silenceFrom = w.Now
	}
	elapsed := w.Now.Sub(vm.reportFrom)
	vm.Connected, vm.LostAt = true, time.Time{}
	vm.LastReport = w.Now.Add(-(elapsed % w.Settings.HealthInterval))
	vm.Healthy = !vm.Unwell
	if vm.Healthy && !vm.EverHealthy {
		w.backoff = plan.Backoff{}
	}
	vm.EverHealthy = vm.EverHealthy || vm.Healthy
	if vm.FilesSent != "" {
		vm.RuntimeHash = vm.FilesSent
	}
}

func (vm *VM) speaks() bool { return vm.Agent && !vm.Cut && vm.Truth == plan.ProviderRunning }

// Run plans, applies and moves the clock from event to event for that long.
func (w *World) Run(d time.Duration) {
	end := w.Now.Add(d)
	for w.err == nil {
		wake := w.Pass()
		next := end
		if !wake.IsZero() && wake.Before(next) {
			next = wake
		}
		if len(w.effects) > 0 && w.effects[0].at.Before(next) {
			next = w.effects[0].at
		}
		if !next.After(w.Now) && next.Equal(end) {
			return
		}
		w.Now = next
		for len(w.effects) > 0 && !w.effects[0].at.After(w.Now) {
			e := w.effects[0]
			w.effects = w.effects[1:]
			if e.term == 0 || e.term == w.term {
				e.run()
			}
		}
	}
}

// Pass plans once, checks the decision and starts what it asks for. It returns when to look again.
func (w *World) Pass() (wake time.Time) {
	if w.Forgotten {
		return
	}
	s := w.Snapshot()
	d := plan.Next(s)
	if err := Check(s, d); err != nil {
		w.fail("%v", err)
		return
	}
	w.apply(d)
	if w.Forgotten {
		return
	}
	// What is under way is not planned again, and nothing changes before the time that was asked for.
	s = w.Snapshot()
	again := plan.Next(s)
	if onlyEvents(again.Actions) {
		// What was started can change what is to be said, once.
		w.apply(again)
		s = w.Snapshot()
		again = plan.Next(s)
	}
	if len(again.Actions) > 0 {
		w.fail("planned again while under way: %+v", again.Actions[0])
	}
	if wake = again.WakeAt; w.err == nil {
		limit := wake
		if limit.IsZero() {
			limit = w.Now.Add(100 * 24 * time.Hour)
		}
		s.Now = w.Now.Add(time.Duration(w.rand.Int63n(int64(limit.Sub(w.Now)))))
		if early := plan.Next(s); len(early.Actions) > 0 {
			w.fail("asked to be woken at %s, but at %s there is: %+v", w.stamp(wake), w.stamp(s.Now), early.Actions[0])
		}
		w.checkFirm(s, again)
	}
	return wake
}

// checkFirm looks whether something is to be done before the firm wake-up of a decision although every report that is
// owed comes in time. The snapshot's instances are changed.
func (w *World) checkFirm(s plan.Snapshot, d plan.Decision) {
	ahead := 3 * s.Settings.HealthInterval
	if !d.Firm.IsZero() {
		ahead = d.Firm.Sub(w.Now)
	}
	s.Now = w.Now.Add(time.Duration(w.doubt.Int63n(int64(ahead))))
	for n := range s.Instances {
		i := &s.Instances[n]
		if _, owes := i.Owes(&s.Settings); owes {
			if late := s.Now.Add(-time.Duration(w.doubt.Int63n(int64(s.Settings.HealthInterval)))); late.After(
				i.LastReport) {
				i.LastReport = late
			}
		}
	}
	if early := plan.Next(s); len(early.Actions) > 0 {
		w.fail("all reports came, and the firm wake-up was at %s, but at %s there is: %+v", w.stamp(d.Firm),
			w.stamp(s.Now), early.Actions[0])
	}
}

func (w *World) apply(d plan.Decision) {
	for _, a := range d.Actions {
		w.write(a)
		w.start(a)
	}
}

func onlyEvents(actions []plan.Action) bool {
	return len(actions) > 0 && !slices.ContainsFunc(actions, func(a plan.Action) bool {
		return a.Kind != plan.RaiseError && a.Kind != plan.ResolveError
	})
}

func (w *World) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("at %s: %s", w.stamp(w.Now), fmt.Sprintf(format, args...))
	}
}

// write adds an action to the transcript; a question that is only repeated is left out.
func (w *World) write(a plan.Action) {
	if a.Kind == plan.Ask && w.asked[a.Instance] == a.Reason {
		return
	}
	delete(w.asked, a.Instance)
	if a.Kind == plan.Ask {
		w.asked[a.Instance] = a.Reason
	}
	parts := []string{string(a.Kind)}
	if vm := w.VM(a.Instance); vm != nil {
		parts = append(parts, vm.Name)
	}
	if a.Cause != "" {
		parts = append(parts, a.Cause)
	}
	if a.ErrorKind != "" {
		parts = append(parts, a.ErrorKind)
	}
	if !a.Deadline.IsZero() {
		parts = append(parts, "until "+w.stamp(a.Deadline))
	}
	if vm := w.VM(a.Replaces); vm != nil {
		parts = append(parts, "in place of "+vm.Name)
	}
	fmt.Fprintf(&w.log, "%-10s %s: %s\n", w.stamp(w.Now), strings.Join(parts, " "), a.Reason)
	if a.Kind == plan.Mark {
		w.marks[a.Cause]++
	}
}

// after runs fn once d has passed; for a leader of that term, or whoever leads if it is zero.
func (w *World) after(d time.Duration, term int, fn func()) {
	w.sequence++
	e := effect{at: w.Now.Add(d), sequence: w.sequence, term: term, run: fn}
	at, _ := slices.BinarySearchFunc(w.effects, e, func(a, b effect) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return a.sequence - b.sequence
	})
	w.effects = slices.Insert(w.effects, at, e)
}

// VM returns the VM of an instance, nil if there is none.
func (w *World) VM(id ident.ID) *VM {
	for _, vm := range w.VMs {
		if vm.ID == id {
			return vm
		}
	}
	return nil
}

// Named returns a VM by its name in the transcript; it panics if there is none.
func (w *World) Named(name string) *VM {
	for _, vm := range w.VMs {
		if vm.Name == name {
			return vm
		}
	}
	panic("no VM named " + name)
}

func (w *World) drop(vm *VM) {
	w.VMs = slices.DeleteFunc(w.VMs, func(other *VM) bool { return other == vm })
}

// Add puts an instance into the group that has been running healthily for an hour.
func (w *World) Add() *VM {
	vm := w.make()
	launched := w.Now.Add(-time.Hour)
	vm.State, vm.Truth, vm.Agent = record.Registered, plan.ProviderRunning, true
	vm.CreatedAt, vm.LaunchedAt, vm.RegisteredAt = launched, launched, launched.Add(w.Boot)
	vm.reportFrom = w.Now.Add(-w.phase())
	vm.Provider = plan.Observed[plan.ProviderState]{Value: plan.ProviderRunning, Complete: true, At: w.Now}
	vm.FilesSent, vm.RuntimeHash, vm.InLoadBalancers = w.Group.RuntimeHash, w.Group.RuntimeHash, true
	w.refresh(vm)
	return vm
}

// phase spreads reports over their interval.
func (w *World) phase() time.Duration {
	if !w.Spread {
		return 0
	}
	return time.Duration(w.rand.Int63n(int64(w.Settings.HealthInterval)))
}

func (w *World) make() *VM {
	w.named++
	id, err := ident.NewID("knd", w.Now.Add(time.Duration(w.named)*time.Microsecond), w.rand)
	if err != nil {
		panic(err)
	}
	vm := &VM{Instance: plan.Instance{ID: id, ProviderID: fmt.Sprintf("vm-%d", w.named), InfraHash: w.Group.InfraHash,
		CreatedAt: w.Now},
		Name: fmt.Sprintf("i%d", w.named)}
	at, _ := slices.BinarySearchFunc(w.VMs, vm, func(a, b *VM) int { return a.ID.Compare(b.ID) })
	w.VMs = slices.Insert(w.VMs, at, vm)
	return vm
}
