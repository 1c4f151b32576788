// Package plantest simulates the surroundings of the planner for tests: one group, its VMs, their agents and a
// provider, on a clock that jumps from event to event. It applies the planner's decisions, checks each one against the
// rules that always hold, and writes a transcript.
//
// Invariant: the same script gives the same transcript, byte for byte.
package plantest

import (
	"cmp"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// Epoch is the time at which every simulation begins.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Fleet is one group and everything around it. It is not safe for concurrent use.
type Fleet struct {
	Now      time.Time
	Settings plan.Settings
	Group    config.Group
	// Write, Create, Boot, End and Ask are durations: of a bucket write, a create call, a boot until registration, a
	// VM's termination, and a question to the provider.
	Write, Create, Boot, End, Ask time.Duration
	// Reserve is how long a create action waits for an instance ID. Zero means that it gets an ID immediately.
	Reserve time.Duration
	// DrainAfter is how long an operator takes to drain a node. Zero means that there is no operator. A negative value
	// means that it never reports the node as drained.
	DrainAfter time.Duration
	// HookAfter is how long the drain hook of a VM runs, if the group has one.
	HookAfter time.Duration
	// FallAsleep and WakeUp are how long VMs take to fall asleep and to wake. NoSleep makes calls that put VMs to sleep
	// fail, and NoWake those that wake them. LostSleep means that VMs cannot wake at all.
	FallAsleep, WakeUp         time.Duration
	NoSleep, NoWake, LostSleep bool
	// Refuse, if not empty, makes create calls fail with that reason. Mute keeps agents of new VMs from registering.
	Refuse string
	Mute   bool
	// NoSpot means that the provider has no spot capacity.
	NoSpot bool
	// Fails, if not nil, returns the health check that fails on a VM, with its reason.
	Fails func(*VM) string
	// Refuses, if not nil, returns the load balancer that calls a VM unhealthy, with its reason. See
	// [Fleet.AskBalancers].
	Refuses func(*VM) string
	// NoAnswer makes every question to load balancers fail.
	NoAnswer bool
	// Broken makes every write fail. Deaf makes every question to the provider fail.
	Broken, Deaf bool
	// Spread makes the agents of instances from [Fleet.Add] report at different times. Otherwise they report together.
	Spread bool
	// Image is the ID of the group's image at the provider. New VMs get this image.
	Image string
	// Shard counts the instances of the shard's other groups for the unhealthy guard.
	Shard plan.ShardHealth

	VMs []*VM // sorted by ID, until they are forgotten

	pending, pendingSpot     int // creates without an ID
	pendingSpares            int
	spareBackoff             plan.Backoff
	notWokenAt               time.Time
	spotRefusedAt            time.Time
	leaderSince, silenceFrom time.Time
	backoff                  plan.Backoff
	notices, advised         plan.Notices
	guard, shardGuard        plan.Guard
	guardRaised              bool
	backoffRaised            bool
	lateRaised               bool
	haltRaised               string
	rolloutFailures          int
	rolloutFailure           string
	configuredAt             time.Time
	storing                  bool
	storeFailed              plan.Failure
	stored                   record.Rollout // what the bucket has about the group's rollouts
	good                     config.Group   // the group with its stored good configuration
	planned                  config.Group   // as of the last snapshot
	plannedImage             string
	Forgotten                bool // the group was forgotten
	effects                  []effect
	sequence, term, named    int
	rand                     *rand.Rand
	doubt                    *rand.Rand // for checkFirm
	advice                   *rand.Rand // for troubleOfAdvice
	spares                   *rand.Rand // for spares
	scriptStart              time.Time
	log                      strings.Builder
	marks                    map[plan.Cause]int
	// asked contains the reason of the last question about an instance. An instance has an entry only if its last
	// action was this question.
	asked map[ident.ID]string
	err   error
}

// VM is an instance as the leader knows it, together with its true state.
type VM struct {
	plan.Instance
	Name string
	// Truth is the true state of the machine: running, going (about to stop), stopped or gone.
	Truth plan.ProviderState
	// Agent means that the agent runs. Cut means that the network between it and the server is cut.
	Agent, Cut bool
	Unwell     bool
	// Fails is the health check that fails, with its reason; "": none.
	Fails string
	// Refused is the load balancer that calls the VM unhealthy, with its reason; "": none.
	Refused    string
	reportFrom time.Time // reports come once per interval from then on
}

type effect struct {
	at       time.Time
	sequence int
	term     int // of the leader that waits for it; 0: no leader waits
	run      func()
}

// New returns a Fleet with default settings and an empty group of size zero.
func New(seed int64) *Fleet {
	f := &Fleet{
		Now: Epoch, scriptStart: Epoch, leaderSince: Epoch, term: 1,
		Settings: plan.Settings{HealthInterval: time.Minute, RegistrationTimeout: 5 * time.Minute,
			Retention: 30 * time.Minute, RequestTimeout: 30 * time.Second,
			CollectInterval: 2 * time.Minute},
		Group: config.Group{GroupKey: config.GroupKey{Tenant: "default", Group: "workers"}, Static: true, MaxSurge: 1,
			Kind:         "knd",
			MaxUnhealthy: config.Limit{Value: 40, Percent: true}, DrainTimeout: config.Duration(5 * time.Minute),
			InfraHash: "v1", RuntimeHash: "r1"},
		Write: 20 * time.Millisecond, Create: 500 * time.Millisecond, Boot: 30 * time.Second, End: 20 * time.Second,
		Ask: 50 * time.Millisecond, FallAsleep: 5 * time.Second, WakeUp: 10 * time.Second, DrainAfter: -1,
		rand:  rand.New(rand.NewSource(seed)),
		doubt: rand.New(rand.NewSource(^seed)), advice: rand.New(rand.NewSource(seed + 1)),
		spares: rand.New(rand.NewSource(seed + 2)),
		marks:  map[plan.Cause]int{}, asked: map[ident.ID]string{},
	}
	f.after(f.Settings.CollectInterval, 0, f.list)
	return f
}

// Err returns the first violation of a rule, or nil.
func (f *Fleet) Err() error { return f.err }

// Transcript returns the events since [Fleet.Begin].
func (f *Fleet) Transcript() string { return f.log.String() }

// Marked returns the number of deletions that were decided for a cause.
func (f *Fleet) Marked(cause plan.Cause) int { return f.marks[cause] }

// Begin clears the transcript and restarts its clock.
func (f *Fleet) Begin() {
	f.log.Reset()
	f.scriptStart = f.Now
	f.marks = map[plan.Cause]int{}
}

// Note writes a line into the transcript.
func (f *Fleet) Note(format string, args ...any) {
	fmt.Fprintf(&f.log, "%-10s -- %s\n", f.stamp(f.Now), fmt.Sprintf(format, args...))
}

func (f *Fleet) stamp(t time.Time) string {
	return "+" + t.Sub(f.scriptStart).Round(time.Millisecond).String()
}

// Bought returns how many running VMs are spot instances, and how many are not.
func (f *Fleet) Bought() string {
	spot, others := 0, 0
	for _, vm := range f.VMs {
		switch {
		case vm.Truth != plan.ProviderRunning:
		case vm.Spot:
			spot++
		default:
			others++
		}
	}
	return fmt.Sprintf("%d spot instances and %d others", spot, others)
}

// Snapshot returns the planner's present input.
func (f *Fleet) Snapshot() plan.Snapshot {
	for _, vm := range f.VMs {
		f.refresh(vm)
	}
	running := f.Running()
	if plan.EndsRollout(&f.planned, &running) || f.Image != f.plannedImage && !running.RolledBack() {
		f.rolloutFailures, f.rolloutFailure, f.configuredAt = 0, "", f.Now
	}
	f.planned, f.plannedImage = running, f.Image
	s := plan.Snapshot{Now: f.Now, Term: uint64(f.term), Settings: f.Settings, Group: running,
		LeaderSince: f.leaderSince, SilenceFrom: f.silenceFrom,
		PendingCreates: f.pending, PendingSpot: f.pendingSpot, SpotRefusedAt: f.spotRefusedAt,
		PendingSpares: f.pendingSpares, SpareBackoff: f.spareBackoff, NotWokenAt: f.notWokenAt,
		Backoff: f.backoff, Notices: f.notices, Advised: f.advised, CreateBudget: -1,
		GuardRaised: f.guardRaised, BackoffRaised: f.backoffRaised, LateRaised: f.lateRaised, HaltRaised: f.haltRaised,
		Image: f.image(), WantedImage: f.Image,
		RolloutFailure: f.rolloutFailure, ConfiguredAt: f.configuredAt,
		StoringRollout: f.storing, StoreFailed: f.storeFailed,
		Operators:       f.DrainAfter != 0,
		ServingSince:    f.leaderSince,
		RolloutFailures: f.rolloutFailures, Shard: f.Shard, Guard: f.guard}
	for _, vm := range f.VMs {
		s.Instances = append(s.Instances, vm.Instance)
		running, silent := plan.CountSilence(&vm.Instance, f.Settings, f.silenceFrom, f.Now)
		if running {
			s.Shard.Running++
		}
		if silent {
			s.Shard.Silent++
		}
	}
	f.shardGuard = f.shardGuard.After(s.Shard.Exceeds(), plan.RecoveryTime(f.Settings, &running),
		f.Settings.RegistrationTimeout, f.Now)
	s.Shard.HoldUntil = f.shardGuard.HoldUntil
	return s
}

// Running returns the group as it runs: with its good configuration, if a halt has returned it to that.
func (f *Fleet) Running() config.Group {
	return f.Group.WithRollout(f.stored, func() (config.Group, error) {
		back := f.Group
		back.InfraHash, back.RuntimeHash, back.Subnets = f.good.InfraHash, f.good.RuntimeHash, f.good.Subnets
		return back, nil
	})
}

// image returns the ID of the image of new VMs.
func (f *Fleet) image() string {
	if running := f.Running(); running.RolledBack() {
		return running.Good.Image
	}
	return f.Image
}

// store applies an action that stores something about the group's rollouts.
func (f *Fleet) store(a plan.Action) {
	running := f.Running()
	if (a.Kind == plan.Halt || a.Kind == plan.KeepGood) && !running.Version(a.Version.Image).Is(a.Version) {
		return
	}
	switch {
	case a.Kind == plan.KeepGood:
		f.stored.Good, f.good = &record.Good{At: f.Now, Version: a.Version}, running
	case a.Kind == plan.EndHalt:
		f.stored.Halted = nil
	case running.RolledBack():
		again := *f.stored.Halted
		again.GoodFailedAt, again.GoodFailed = f.Now, a.Reason
		f.stored.Halted = &again
	default:
		f.stored.Halted = &record.Halted{At: f.Now, Reason: a.Reason, Failed: a.Version}
	}
}

// Resume starts a halted rollout again.
func (f *Fleet) Resume() {
	f.stored.Halted, f.rolloutFailures, f.rolloutFailure, f.configuredAt = nil, 0, "", f.Now
}

// refresh applies the reports that have arrived by now to the leader's state.
func (f *Fleet) refresh(vm *VM) {
	if vm.RegisteredAt.IsZero() || !vm.speaks() {
		return
	}
	if f.silenceFrom.IsZero() {
		f.silenceFrom = f.Now
	}
	elapsed := f.Now.Sub(vm.reportFrom)
	vm.Connected, vm.LostAt = true, time.Time{}
	vm.LastReport = f.Now.Add(-(elapsed % f.Settings.HealthInterval))
	if vm.Rests() && vm.WakeRequested.IsZero() {
		return // it falls asleep
	}
	vm.Instance = plan.ApplyWoken(vm.Instance, f.Now)
	if vm.Role = plan.RoleMember; vm.Spare {
		vm.Role = plan.RoleSpare
	}
	before := vm.FailedCheck
	vm.FailedCheck = vm.Fails
	if f.Fails != nil {
		vm.FailedCheck = cmp.Or(vm.Fails, f.Fails(vm))
	}
	vm.FailedCheck = cmp.Or(vm.FailedCheck, vm.Balancer.Failed)
	if vm.FailedCheck == "" {
		vm.CheckFailedAt = time.Time{}
	} else if before == "" {
		vm.CheckFailedAt = f.Now
	}
	if vm.FilesSent != "" {
		vm.RuntimeHash = vm.FilesSent
	}
	was := vm.Healthy
	vm.Healthy = !vm.Unwell && vm.FailedCheck == "" &&
		!plan.AwaitsFiles(&vm.Instance, vm.RuntimeHash, false, f.Running().RuntimeHash)
	if was && !vm.Healthy {
		vm.Lapses = vm.Lapses.After(f.Now)
	}
	if vm.Healthy && !vm.EverHealthy && vm.PreservedAt.IsZero() {
		f.backoff, f.spareBackoff = plan.Backoff{}, plan.Backoff{}
	}
	vm.EverHealthy = vm.EverHealthy || vm.Healthy
}

// AskBalancers gives the group a load balancer that is asked about its VMs every 20 s.
func (f *Fleet) AskBalancers() {
	f.Group.LoadBalancers, f.Group.LoadBalancerHealth = []string{"web"}, true
	f.after(20*time.Second, 0, f.askBalancers)
}

func (f *Fleet) askBalancers() {
	for _, vm := range f.VMs {
		if !vm.InLoadBalancers || f.NoAnswer {
			continue
		}
		verdict := plan.BalancerVerdict{Failed: vm.Refused}
		if f.Refuses != nil {
			verdict.Failed = cmp.Or(vm.Refused, f.Refuses(vm))
		}
		verdict.Healthy = verdict.Failed == ""
		vm.Instance, _ = plan.ApplyBalancerVerdict(vm.Instance, verdict, plan.StartGrace(f.Settings, &f.Group), f.Now)
	}
	f.after(20*time.Second, 0, f.askBalancers)
}

func (vm *VM) speaks() bool { return vm.Agent && !vm.Cut && vm.Truth == plan.ProviderRunning }

// Run repeatedly makes a plan, applies it and advances the clock to the next event, until d has passed. It stops at the
// first violation.
func (f *Fleet) Run(d time.Duration) {
	end := f.Now.Add(d)
	for f.err == nil {
		wake := f.Pass()
		next := end
		if !wake.IsZero() && wake.Before(next) {
			next = wake
		}
		if len(f.effects) > 0 && f.effects[0].at.Before(next) {
			next = f.effects[0].at
		}
		if !next.After(f.Now) && next.Equal(end) {
			return
		}
		f.Now = next
		for len(f.effects) > 0 && !f.effects[0].at.After(f.Now) {
			e := f.effects[0]
			f.effects = f.effects[1:]
			if e.term == 0 || e.term == f.term {
				e.run()
			}
		}
	}
}

// Pass plans once, checks the decision and starts its actions. It returns the time of the next plan.
func (f *Fleet) Pass() (wake time.Time) {
	if f.Forgotten {
		return
	}
	s := f.Snapshot()
	d := plan.Next(s)
	if err := Check(s, d); err != nil {
		f.fail("%v", err)
		return
	}
	f.apply(d)
	if f.Forgotten {
		return
	}
	// A second plan must not repeat work that is in progress. Until the wake-up time of the first plan, nothing new may
	// be planned.
	s = f.Snapshot()
	again := plan.Next(s)
	if onlyEvents(again.Actions) {
		// The second plan may contain new alerts and events, because actions have just started. A third plan must
		// contain no new ones.
		f.apply(again)
		s = f.Snapshot()
		again = plan.Next(s)
	}
	// The planner may choose another instance for removal in place of one whose deletion failed and is not due again,
	// or after one that would have finished a replacement, because the replaced instance then stays. The rules hold for
	// that plan, too. It happens at most once for each instance.
	for range f.VMs {
		if len(again.Actions) == 0 || !f.anyWaitsToTryAgain() && !f.abandonsReplacement() {
			break
		}
		if err := Check(s, again); err != nil {
			f.fail("%v", err)
			return
		}
		f.apply(again)
		s = f.Snapshot()
		again = plan.Next(s)
	}
	if len(again.Actions) > 0 {
		f.fail("planned again while under way: %+v", again.Actions[0])
	}
	if wake = again.NextPlan; f.err == nil {
		limit := wake
		if limit.IsZero() {
			limit = f.Now.Add(100 * 24 * time.Hour)
		}
		s.Now = f.Now.Add(time.Duration(f.rand.Int63n(int64(limit.Sub(f.Now)))))
		if early := plan.Next(s); len(early.Actions) > 0 {
			f.fail("asked to be woken at %s, but at %s there is: %+v", f.stamp(wake), f.stamp(s.Now), early.Actions[0])
		}
		f.checkFirm(s, again)
	}
	return wake
}

// checkFirm checks that no action is due before NextIfReporting if every expected report arrives in time. It overwrites
// the instances of s.
func (f *Fleet) checkFirm(s plan.Snapshot, d plan.Decision) {
	ahead := 3 * s.Settings.HealthInterval
	if !d.NextIfReporting.IsZero() {
		ahead = d.NextIfReporting.Sub(f.Now)
	}
	s.Now = f.Now.Add(time.Duration(f.doubt.Int63n(int64(ahead))))
	for n := range s.Instances {
		i := &s.Instances[n]
		if !i.Healthy || !i.Connected || i.LastReport.IsZero() {
			continue
		}
		late := s.Now.Add(-time.Duration(f.doubt.Int63n(int64(s.Settings.HealthInterval))))
		if late.After(i.LastReport) {
			i.LastReport = late
		}
	}
	if early := plan.Next(s); len(early.Actions) > 0 {
		f.fail("all reports came, and the firm wake-up was at %s, but at %s there is: %+v", f.stamp(d.NextIfReporting),
			f.stamp(s.Now), early.Actions[0])
	}
}

func (f *Fleet) apply(d plan.Decision) {
	f.guard = d.Guard
	for _, a := range d.Actions {
		f.write(a)
		f.start(a)
	}
}

// anyWaitsToTryAgain reports whether work for an instance failed, and is not under way.
func (f *Fleet) anyWaitsToTryAgain() bool {
	return slices.ContainsFunc(f.VMs, func(vm *VM) bool { return vm.Failed.Count > 0 && vm.Work == plan.Idle })
}

// abandonsReplacement reports whether an instance is being removed that would have finished a replacement (rule 62).
func (f *Fleet) abandonsReplacement() bool {
	return slices.ContainsFunc(f.VMs, func(vm *VM) bool {
		return vm.Work == plan.MarkingDeleting && !vm.Finishes.IsZero()
	})
}

func onlyEvents(actions []plan.Action) bool {
	return len(actions) > 0 && !slices.ContainsFunc(actions, func(a plan.Action) bool {
		return a.Kind != plan.RaiseError && a.Kind != plan.ResolveError
	})
}

func (f *Fleet) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf("at %s: %s", f.stamp(f.Now), fmt.Sprintf(format, args...))
	}
}

// write adds an action to the transcript. A question is omitted if the instance's previous action was the same
// question.
func (f *Fleet) write(a plan.Action) {
	if a.Kind == plan.Ask && f.asked[a.Instance] == a.Reason {
		return
	}
	delete(f.asked, a.Instance)
	if a.Kind == plan.Ask {
		f.asked[a.Instance] = a.Reason
	}
	parts := []string{string(a.Kind)}
	if a.Spot {
		parts = append(parts, "spot")
	}
	if a.Spare {
		parts = append(parts, "spare")
	}
	if vm := f.VM(a.Instance); vm != nil {
		parts = append(parts, vm.Name)
	}
	if a.Cause != "" && a.Kind != plan.Create && a.Kind != plan.Promote {
		parts = append(parts, string(a.Cause))
	}
	if a.Alert != "" {
		parts = append(parts, string(a.Alert))
	}
	if !a.Deadline.IsZero() {
		parts = append(parts, "until "+f.stamp(a.Deadline))
	}
	if vm := f.VM(a.Replaces); vm != nil {
		parts = append(parts, "in place of "+vm.Name)
	}
	fmt.Fprintf(&f.log, "%-10s %s: %s\n", f.stamp(f.Now), strings.Join(parts, " "), a.Why())
	if a.Kind == plan.Mark {
		f.marks[a.Cause]++
	}
}

// after runs fn when the time d has passed. fn does not run if the leader of the given term no longer leads. With term
// 0, it runs under any leader.
func (f *Fleet) after(d time.Duration, term int, fn func()) {
	f.sequence++
	e := effect{at: f.Now.Add(d), sequence: f.sequence, term: term, run: fn}
	at, _ := slices.BinarySearchFunc(f.effects, e, func(a, b effect) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return a.sequence - b.sequence
	})
	f.effects = slices.Insert(f.effects, at, e)
}

// VM returns the VM of an instance, or nil if there is none.
func (f *Fleet) VM(id ident.ID) *VM {
	for _, vm := range f.VMs {
		if vm.ID == id {
			return vm
		}
	}
	return nil
}

// Named returns a VM by its name in the transcript. It panics if there is none.
func (f *Fleet) Named(name string) *VM {
	for _, vm := range f.VMs {
		if vm.Name == name {
			return vm
		}
	}
	panic("no VM named " + name)
}

func (f *Fleet) drop(vm *VM) {
	f.VMs = slices.DeleteFunc(f.VMs, func(other *VM) bool { return other == vm })
}

// Add adds to the group an instance that has been running and healthy for one hour.
func (f *Fleet) Add() *VM {
	vm := f.make()
	launched := f.Now.Add(-time.Hour)
	vm.State, vm.Truth, vm.Agent = record.Registered, plan.ProviderRunning, true
	vm.CreatedAt, vm.LaunchedAt, vm.RegisteredAt = launched, launched, launched.Add(f.Boot)
	vm.reportFrom = f.Now.Add(-f.phase())
	vm.Provider = plan.Observed[plan.ProviderState]{Value: plan.ProviderRunning, Complete: true, At: f.Now}
	hash := f.Running().RuntimeHash
	vm.FilesSent, vm.RuntimeHash, vm.InLoadBalancers = hash, hash, true
	f.refresh(vm)
	return vm
}

// AddSpare adds a spare to the group that has been running and healthy for one hour.
func (f *Fleet) AddSpare() *VM {
	vm := f.Add()
	vm.Spare, vm.Sleep, vm.InLoadBalancers = true, f.Group.Spares.Sleep(), false
	return vm
}

// phase returns a random offset that spreads reports over their interval.
func (f *Fleet) phase() time.Duration {
	if !f.Spread {
		return 0
	}
	return time.Duration(f.rand.Int63n(int64(f.Settings.HealthInterval)))
}

func (f *Fleet) make() *VM {
	f.named++
	id, err := ident.NewID("knd", f.Now.Add(time.Duration(f.named)*time.Microsecond), f.rand)
	if err != nil {
		panic(err)
	}
	vm := &VM{Instance: plan.Instance{ID: id, ProviderID: fmt.Sprintf("vm-%d", f.named),
		InfraHash: f.Running().InfraHash, Image: f.image(), CreatedAt: f.Now},
		Name: fmt.Sprintf("i%d", f.named)}
	at, _ := slices.BinarySearchFunc(f.VMs, vm, func(a, b *VM) int { return a.ID.Compare(b.ID) })
	f.VMs = slices.Insert(f.VMs, at, vm)
	return vm
}
