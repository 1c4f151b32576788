package plantest

import (
	"math/rand"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// Random returns a Fleet with random settings. Its group already has as many instances as its size.
func Random(rng *rand.Rand) *Fleet {
	f := New(rng.Int63())
	f.Spread = true
	pick := func(choices ...time.Duration) time.Duration { return choices[rng.Intn(len(choices))] }
	f.Settings.ShutdownGrace = pick(0, 0, 30*time.Second)
	f.Settings.ForcedAge = pick(0, 0, 3*time.Hour)
	f.Settings.EligibleAge = pick(0, 0, 90*time.Minute)
	f.Settings.OnDemandAge = pick(0, 2*time.Hour)
	f.Settings.RegistrationTimeout = pick(2*time.Minute, 5*time.Minute)
	f.Group.DrainTimeout = config.Duration(pick(0, 30*time.Second, 5*time.Minute))
	f.Group.MaxSurge = 1 + rng.Intn(3)
	f.Group.MaxUnhealthy = []config.Limit{{Value: 40, Percent: true}, {Value: 1}, {Value: 3}}[rng.Intn(3)]
	f.Write, f.Create, f.End = pick(time.Millisecond, 20*time.Millisecond, time.Second),
		pick(10*time.Millisecond, 2*time.Second),
		pick(time.Second, 45*time.Second)
	f.Boot, f.Ask = pick(5*time.Second, time.Minute), pick(time.Millisecond, 300*time.Millisecond)
	f.Reserve = pick(0, 0, 20*time.Millisecond)
	f.DrainAfter = pick(0, -1, 10*time.Second)
	if rng.Intn(2) == 0 {
		f.Group.LoadBalancers = []string{"www"}
	}
	f.Group.Size = []int{1, 1, 2, 3, 5, 8, 12}[rng.Intn(7)]
	for range f.Group.Size {
		f.Add()
	}
	if rng.Intn(3) == 0 {
		f.Add().OnDemand = true
	}
	if rng.Intn(2) == 0 {
		f.Group.Rollout = randomRollout(rng)
		disturbed(rng, &f.Group)
	}
	if rng.Intn(2) == 0 {
		f.Group.Preserve = randomPreserve(rng)
	}
	if rng.Intn(2) == 0 {
		f.Group.Drain, f.HookAfter = &config.DrainHook{Exec: []string{"drain"}}, pick(0, 5*time.Second, time.Minute)
	}
	if f.advice.Intn(2) == 0 {
		f.Group.Purchase.OnRecommendation = config.OnNoticeReplace
	}
	f.Group.IgnoreMaintenance = f.advice.Intn(4) == 0
	return f
}

// DrawSpares gives the group warm spares, in one of three cases.
func (f *Fleet) DrawSpares() {
	if f.spares.Intn(3) == 0 {
		f.Group.Spares = config.Spares{Count: 1 + f.spares.Intn(3),
			MaxAge: config.Duration(f.spares.Intn(3)) * config.Duration(time.Hour),
			State:  []string{config.SparesRunning, config.SparesStopped, config.SparesSuspended}[f.spares.Intn(3)]}
		f.FallAsleep = time.Duration(f.spares.Intn(90)) * time.Second
		f.WakeUp = time.Duration(f.spares.Intn(60)) * time.Second
		for range f.spares.Intn(f.Group.Spares.Count + 1) {
			f.AddSpare()
		}
	}
}

func randomPreserve(rng *rand.Rand) config.Preserve {
	return config.Preserve{Max: rng.Intn(4), For: config.Duration(1+rng.Intn(60)) * config.Duration(time.Minute)}
}

// Failure is a health check that fails, with its reason.
const Failure = "web: status 503, want 200"

// Refusal is the verdict of a load balancer that a VM is unhealthy, with its reason.
const Refusal = "load balancer web: Target.Timeout"

func randomRollout(rng *rand.Rand) config.Rollout {
	r := config.Rollout{Paused: rng.Intn(4) == 0, Canary: rng.Intn(4), HaltOnFailures: rng.Intn(4),
		BakeTime: config.Duration(rng.Intn(3)) * config.Duration(time.Minute), MaxUnavailable: rng.Intn(3),
		OnImageChange: rng.Intn(2) == 0}
	if r.HaltOnFailures > 1 {
		r.OnHalt = config.OnHaltRollback
	}
	return r
}

// disturbed sets random disruption limits for a group, and in some cases a schedule with random sizes.
func disturbed(rng *rand.Rand, g *config.Group) {
	g.MaxPerHour = rng.Intn(4)
	if rng.Intn(2) == 0 {
		w, err := config.ParseWindow("Mon-Sun 00:30-02:00 UTC")
		if err != nil {
			panic(err)
		}
		g.Windows = []config.Window{w}
	}
	if rng.Intn(4) == 0 {
		g.Schedules = []config.SizeSchedule{{Cron: "0 0 1 1 *", Zone: time.UTC, Size: rng.Intn(5)},
			{Cron: "30 1 1 1 *", Zone: time.UTC, Size: rng.Intn(5)}}
	}
}

// RandomSnapshot returns a random snapshot. It may combine states that never occur together.
func RandomSnapshot(rng *rand.Rand) plan.Snapshot {
	f := Random(rng)
	f.DrawSpares()
	f.Group.Size = rng.Intn(8)
	f.Group.Deleted = rng.Intn(10) == 0
	f.Group.Static = rng.Intn(2) == 0
	f.Settings.Terminating = rng.Intn(15) == 0
	s := f.Snapshot()
	s.Instances = s.Instances[:0]
	when := func(chance int) time.Time {
		if rng.Intn(chance) != 0 {
			return time.Time{}
		}
		return s.Now.Add(-time.Duration(rng.Intn(int(2*f.Settings.RegistrationTimeout))) - time.Duration(
			rng.Intn(2))*time.Hour)
	}
	maybe := func(chance int) bool { return rng.Intn(chance) == 0 }
	s.SilenceFrom, s.LeaderSince = when(1), when(2)
	if maybe(4) {
		s.SilenceFrom = time.Time{}
	}
	s.RolloutFailures, s.Image = rng.Intn(4), []string{"", "A", "B"}[rng.Intn(3)]
	s.PendingCreates, s.CreateBudget = rng.Intn(3)*rng.Intn(2), rng.Intn(4)-1
	s.GuardRaised, s.BackoffRaised = maybe(2), maybe(2)
	if maybe(2) {
		s.HaltRaised = "the rollout is halted"
	}
	s.PendingSpares = f.spares.Intn(2) * f.Group.Spares.Count
	if f.spares.Intn(4) == 0 {
		s.SpareBackoff = plan.Backoff{Failures: 1 + f.spares.Intn(5), Last: s.Now.Add(-time.Second), Reason: "refused"}
	}
	if f.spares.Intn(4) == 0 {
		s.NotWokenAt = s.Now.Add(-time.Duration(f.spares.Intn(15)) * time.Minute)
	}
	s.Guard = plan.Guard{Exceeded: maybe(2), HoldUntil: when(2).Add(10 * time.Minute), FellAt: when(2)}
	if maybe(3) {
		s.Backoff = plan.Backoff{Failures: rng.Intn(12), Last: when(1), Reason: "refused"}
	}
	if f.advice.Intn(4) == 0 {
		s.Advised = plan.Notices{Since: s.Now.Add(-time.Minute), Count: f.advice.Intn(8)}
	}
	for range rng.Intn(12) {
		vm := f.make()
		i := &vm.Instance
		i.State = []record.State{record.Reserved, record.Created, record.Registered, record.Registered,
			record.Registered, record.Deleting}[rng.Intn(6)]
		i.OnDemand = maybe(6)
		if maybe(3) {
			i.Work = plan.Work(rng.Intn(int(plan.Preserving) + 1))
		}
		if deleting := i.State == record.Deleting; !deleting && i.Work > plan.MarkingDeleting &&
			i.Work != plan.Maintaining && i.Work != plan.Preserving ||
			deleting && (i.Work <= plan.MarkingDeleting || i.Work == plan.Preserving) ||
			i.State == record.Reserved && i.Work != plan.Creating {
			i.Work = plan.Idle
		}
		if maybe(3) {
			i.Failed = plan.Failure{At: when(1), Count: 1 + rng.Intn(9)}
		}
		if maybe(5) {
			i.MaintenanceFailed, i.AskFailed = plan.Failure{At: when(1), Count: 1 + rng.Intn(9)},
				plan.Failure{At: when(1), Count: 1 + rng.Intn(9)}
		}
		i.CreatedAt, i.LaunchedAt = when(1), when(2)
		if i.State == record.Registered || i.State == record.Deleting && maybe(2) {
			i.RegisteredAt = when(1)
			i.LastReport, i.Healthy, i.EverHealthy, i.Connected, i.LostAt = when(2), maybe(2), maybe(2), maybe(2),
				when(3)
			i.EverHealthy = i.EverHealthy || i.Healthy
			if !i.Healthy && maybe(3) {
				i.FailedCheck, i.CheckFailedAt = Failure, when(1)
				if maybe(2) {
					i.Balancer = plan.BalancerHealth{Rounds: 2, Failed: i.FailedCheck}
				}
			} else if maybe(6) {
				i.Balancer.Rounds = 1
			}
			i.PowerOffAt, i.RestartingAt, i.Reboot = when(8), when(8), maybe(2)
			if maybe(6) {
				i.Lapses = plan.Lapses{Since: when(1), Count: 1 + rng.Intn(9)}
			}
			i.FlapsRaised = maybe(6)
			if maybe(6) {
				i.Finishes = f.VMs[rng.Intn(len(f.VMs))].ID
			}
			i.RuntimeHash, i.FilesSent, i.FilesFailed = []string{"", "r1"}[rng.Intn(2)],
				[]string{"", "r1"}[rng.Intn(2)], maybe(5)
		}
		i.InfraHash, i.Image = []string{"v1", "v1", "v0", ""}[rng.Intn(4)], []string{"", "A", "B"}[rng.Intn(3)]
		states := []plan.ProviderState{plan.ProviderUnknown, plan.ProviderPending, plan.ProviderRunning,
			plan.ProviderRunning, plan.ProviderRunning,
			plan.ProviderGoing, plan.ProviderStopped, plan.ProviderGone}
		i.Provider = plan.Observed[plan.ProviderState]{Value: states[rng.Intn(len(states))], Complete: !maybe(5),
			At: when(2)}
		i.Asking, i.Notice, i.NoticeDeadline = maybe(5), maybe(8), when(2)
		if i.Recommended = f.advice.Intn(6) == 0; f.advice.Intn(6) == 0 {
			i.Maintenance, i.MaintenanceAt = "system-reboot", s.Now.Add(time.Duration(f.advice.Intn(100))*time.Minute)
		}
		if i.State == record.Deleting {
			i.DeletingAt, i.DeleteDeadline, i.Announced, i.Drained = when(1), when(2), maybe(2), maybe(4)
			i.Operator, i.Hook, i.HookEnded, i.BalancersUntil = maybe(2), maybe(2), maybe(2), when(2)
			i.TerminateRequested, i.DeleteReason = when(3), "a reason"
			if !i.DeleteDeadline.IsZero() && maybe(2) {
				i.DeleteDeadline = s.Now.Add(time.Minute)
			}
		}
		i.InLoadBalancers = maybe(2)
		if i.State != record.Reserved && !i.OnDemand && maybe(5) {
			i.PreservedAt, i.Deregistered = when(1), maybe(2)
		}
		if f.Group.Spares.Count > 0 && !i.OnDemand && i.PreservedAt.IsZero() && i.Work != plan.Preserving &&
			f.spares.Intn(2) == 0 {
			i.Spare = true
			if i.State == record.Registered && i.Work == plan.Idle && f.spares.Intn(6) == 0 {
				i.Work = plan.Promoting
			}
			f.drawSleep(i)
		}
		s.Instances = append(s.Instances, *i)
	}
	return s
}

// Trouble causes one random fault and notes it in the transcript. Some faults last until [Fleet.Calm].
func (f *Fleet) Trouble(rng *rand.Rand) {
	var running []*VM
	for _, vm := range f.VMs {
		if vm.State == record.Registered && vm.Truth == plan.ProviderRunning && vm.Agent {
			running = append(running, vm)
		}
	}
	f.troubleOfAdvice(running)
	f.troubleOfSleep()
	some := func(what string, fn func(*VM)) {
		if len(running) == 0 {
			return
		}
		n := 1
		if rng.Intn(4) == 0 {
			n = 1 + rng.Intn(len(running))
		}
		for _, k := range rng.Perm(len(running))[:n] {
			f.Note("%s %s", what, running[k].Name)
			fn(running[k])
		}
	}
	minutes := func(n int) time.Duration { return time.Duration(rng.Intn(n*60)+1) * time.Second }
	switch rng.Intn(21) {
	case 0:
		some("destroy", f.Destroy)
	case 1:
		some("stop", f.Stop)
	case 2, 3:
		some("cut off", f.CutOff)
	case 4:
		f.Note("repair the network")
		for _, vm := range f.VMs {
			if vm.Cut {
				f.Mend(vm)
			}
		}
	case 5:
		some("notice for", func(vm *VM) { f.Notice(vm, 2*time.Minute) })
	case 6:
		some("power off", func(vm *VM) { f.PowerOff(vm, minutes(1)) })
	case 7:
		reboot := rng.Intn(2) == 0
		some("restart", func(vm *VM) { f.Restart(vm, reboot, minutes(6)) })
	case 8:
		f.Group.Size = rng.Intn(10)
		f.Note("size %d", f.Group.Size)
	case 9:
		f.Group.InfraHash = string(rune('a' + rng.Intn(3)))
		f.Note("infra %s", f.Group.InfraHash)
		if rng.Intn(2) == 0 {
			f.Image = string(rune('A' + rng.Intn(3)))
			f.Note("image %s", f.Image)
		}
	case 10:
		f.Group.RuntimeHash = string(rune('a' + rng.Intn(3)))
		f.Note("runtime %s", f.Group.RuntimeHash)
	case 11:
		f.Refuse = []string{"", "no capacity"}[rng.Intn(2)]
		f.Note("creates refused: %q", f.Refuse)
	case 12:
		f.Mute = !f.Mute
		f.Note("new agents mute: %v", f.Mute)
	case 13:
		f.Broken = !f.Broken
		f.Note("store broken: %v", f.Broken)
	case 14:
		f.Deaf = !f.Deaf
		f.Note("provider does not answer questions: %v", f.Deaf)
	case 15:
		f.Note("the leader crashes")
		f.Crash(func() bool { return rng.Intn(2) == 0 })
	case 16:
		f.Group.Rollout = randomRollout(rng)
		f.Note("rollout %+v", f.Group.Rollout)
	case 17, 18:
		some("a health check fails on", func(vm *VM) { vm.Fails = Failure })
	case 19:
		f.Fails = nil
		if rng.Intn(2) == 0 {
			f.Fails = func(*VM) string { return Failure }
		}
		for _, vm := range f.VMs {
			vm.Fails = ""
		}
		f.Note("a health check fails everywhere: %v", f.Fails != nil)
	case 20:
		f.Group.Preserve = randomPreserve(rng)
		f.Note("preserve %+v", f.Group.Preserve)
	}
}

// drawSleep draws the sleep of a spare for RandomSnapshot. Some of the spares that sleep are members now.
func (f *Fleet) drawSleep(i *plan.Instance) {
	i.Role = []plan.Role{"", plan.RoleSpare}[f.spares.Intn(2)]
	i.Sleep = []string{"", f.Group.Spares.Sleep(), f.Group.Spares.Sleep()}[f.spares.Intn(3)]
	if i.Sleep == "" || i.RegisteredAt.IsZero() || f.spares.Intn(2) == 0 {
		return
	}
	ago := func() time.Time { return f.Now.Add(-time.Duration(f.spares.Intn(int(10 * time.Minute)))) }
	i.AsleepAt, i.CertificateEnds = ago(), f.Now.Add(time.Duration(f.spares.Intn(20))*time.Minute)
	i.Provider.Value = []plan.ProviderState{plan.ProviderStopped, plan.ProviderStopped, plan.ProviderStopping,
		plan.ProviderRunning, plan.ProviderFailed}[f.spares.Intn(5)]
	if f.spares.Intn(2) == 0 {
		i.SleepRequested = ago()
	}
	if f.spares.Intn(2) == 0 && i.Work != plan.Promoting {
		i.Spare, i.PromotedAt, i.Woken = false, ago(), f.spares.Intn(3) == 0
		if f.spares.Intn(2) == 0 {
			i.WakeRequested = ago()
		}
		if f.spares.Intn(4) == 0 {
			i.WakeFailed = "it is gone"
		}
	}
}

// troubleOfSleep causes, in some cases, a fault of VMs that sleep.
func (f *Fleet) troubleOfSleep() {
	if f.Group.Spares.Sleep() == "" {
		return
	}
	switch f.spares.Intn(8) {
	case 0:
		f.NoSleep = !f.NoSleep
		f.Note("VMs cannot be put to sleep: %t", f.NoSleep)
	case 1:
		f.NoWake = !f.NoWake
		f.Note("VMs cannot be woken now: %t", f.NoWake)
	case 2:
		f.LostSleep = !f.LostSleep
		f.Note("VMs cannot be woken at all: %t", f.LostSleep)
	case 3:
		f.Group.Spares.State = []string{config.SparesRunning, config.SparesStopped,
			config.SparesSuspended}[f.spares.Intn(3)]
		f.Note("spares %s", f.Group.Spares.State)
	case 4:
		for _, vm := range f.VMs {
			if vm.Truth == plan.ProviderStopped && vm.Rests() {
				f.Note("destroy %s in its sleep", vm.Name)
				f.Destroy(vm)
				return
			}
		}
	}
}

// troubleOfAdvice lets the cloud recommend replacing a VM, or announce or withdraw maintenance, in some cases.
func (f *Fleet) troubleOfAdvice(running []*VM) {
	if len(running) == 0 || f.advice.Intn(3) != 0 {
		return
	}
	vm := running[f.advice.Intn(len(running))]
	if f.advice.Intn(2) == 0 {
		f.Recommend(vm, !vm.Recommended)
		f.Note("recommend replacing %s: %t", vm.Name, vm.Recommended)
		return
	}
	f.Maintain(vm, []string{"", "system-reboot"}[f.advice.Intn(2)], time.Duration(f.advice.Intn(60))*time.Minute)
	f.Note("maintenance of %s: %q", vm.Name, vm.Maintenance)
}

// Calm ends all faults that are still in effect.
func (f *Fleet) Calm() {
	f.Note("calm")
	f.Refuse, f.Mute, f.Broken, f.Deaf, f.Fails = "", false, false, false, nil
	f.NoSleep, f.NoWake, f.LostSleep = false, false, false
	f.Group.Rollout, f.Group.Windows, f.Group.MaxPerHour = config.Rollout{
		OnImageChange: f.Group.Rollout.OnImageChange}, nil, 0
	f.Group.Preserve = config.Preserve{}
	for _, vm := range f.VMs {
		vm.Fails = ""
		vm.Recommended, vm.Maintenance, vm.MaintenanceAt = false, "", time.Time{}
		if vm.Cut {
			f.Mend(vm)
		}
	}
}

// Settled describes what has not converged after the faults have ended. It returns "" if the group has as many
// instances as its size, every instance is healthy and current, and no work is in progress.
func (f *Fleet) Settled() (wrong string) {
	f.Snapshot()
	managed, spares := 0, 0
	for _, vm := range f.VMs {
		switch {
		case vm.OnDemand:
			continue
		case vm.State != record.Registered || vm.Work != plan.Idle:
			return vm.Name + " is in state " + string(vm.State)
		case vm.Spare && vm.Sleep != f.Group.Spares.Sleep():
			return vm.Name + " has the state of other spares"
		case vm.Spare && vm.Sleep != "" && vm.Truth != plan.ProviderStopped:
			return vm.Name + " does not sleep"
		case vm.Asleep() && vm.InfraHash == f.Group.InfraHash:
			spares++
			continue
		case vm.Truth != plan.ProviderRunning:
			return vm.Name + " is not running"
		case !vm.Healthy:
			return vm.Name + " is not healthy"
		case f.Group.Rollout.OnImageChange && vm.Image != "" && f.Image != "" && vm.Image != f.Image:
			return vm.Name + " has an outdated image"
		case vm.InfraHash != f.Group.InfraHash || vm.RuntimeHash != f.Group.RuntimeHash:
			return vm.Name + " is out of date"
		case vm.Spare:
			spares++
			continue
		case len(f.Group.LoadBalancers) > 0 && !vm.InLoadBalancers:
			return vm.Name + " is not in the load balancers"
		}
		managed++
	}
	switch size, _ := f.Group.SizeAt(f.Now); {
	case managed != size:
		return "the group is not at its size"
	case size > 0 && spares != f.Group.Spares.Count:
		return "the group has not its spares"
	}
	return ""
}
