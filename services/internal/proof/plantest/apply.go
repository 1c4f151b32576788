package plantest

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// start begins one action. As with the real executor, the next snapshot shows the work in progress, and the result
// follows later.
func (f *Fleet) start(a plan.Action) {
	vm := f.VM(a.Instance)
	switch a.Kind {
	case plan.Create:
		if f.Reserve == 0 {
			f.startCreate(a)
			return
		}
		count, spot := &f.pending, 0
		if a.Spare {
			count = &f.pendingSpares
		}
		if a.Spot {
			spot = 1
		}
		*count++
		f.pendingSpot += spot
		f.after(f.Reserve, f.term, func() {
			*count--
			f.pendingSpot -= spot
			f.startCreate(a)
		})
	case plan.Promote:
		f.work(vm, plan.Promoting, f.Write, func() {
			if !vm.Spare {
				f.fail("%s becomes a member twice", vm.Name)
			}
			vm.Spare, vm.PromotedAt, vm.Finishes = false, f.Now, a.Finishes()
			if vm.Waking() {
				vm.Healthy, vm.EverHealthy, vm.ChecksPending, vm.FailedCheck = false, false, false, ""
				vm.PowerOffAt, vm.RestartingAt, vm.MaintenanceFailed = time.Time{}, time.Time{}, plan.Failure{}
			}
			if a.Cause.Advised() {
				f.advised = plan.ApplyAdvisedCreate(f.advised, f.Group.GroupKey, "", f.Now)
			}
		})
	case plan.Mark:
		f.work(vm, plan.MarkingDeleting, f.Write, func() {
			if vm.State == record.Deleting { // rule 40
				vm.DeleteDeadline = a.Deadline
				return
			}
			vm.State, vm.DeletingAt, vm.DeleteReason, vm.DeleteDeadline = record.Deleting, f.Now, a.Why(), a.Deadline
			f.countFailure(vm, a)
		})
	case plan.Preserve:
		f.work(vm, plan.Preserving, f.Write, func() {
			vm.InLoadBalancers, vm.Deregistered = false, true
			if !vm.PreservedAt.IsZero() {
				return
			}
			vm.PreservedAt = f.Now
			f.countFailure(vm, a)
		})
	case plan.Sleep:
		f.try(vm, plan.Sleeping, f.Write, func() bool { return f.sleep(vm) })
	case plan.Wake:
		f.try(vm, plan.Waking, f.Write, func() bool { return f.wake(vm) })
	case plan.Drain:
		f.work(vm, plan.Draining, f.Write, func() {
			vm.Announced, vm.InLoadBalancers, vm.Operator = true, false, f.DrainAfter != 0
			vm.Hook = f.Group.Drain != nil
			if f.DrainAfter > 0 {
				f.after(f.DrainAfter, f.term, func() { vm.Drained = true })
			}
			if f.HookAfter > 0 {
				f.after(f.HookAfter, 0, func() { vm.HookEnded = true })
			}
		})
	case plan.Terminate:
		f.work(vm, plan.Terminating, f.Write, func() {
			vm.TerminateRequested = f.Now
			f.EndVM(vm)
		})
	case plan.Forget:
		f.work(vm, plan.Forgetting, f.Write, func() { f.drop(vm) })
	case plan.Settle:
		f.work(vm, plan.Creating, f.Write, func() {
			if vm.Truth == plan.ProviderRunning {
				f.created(vm)
			} else {
				f.drop(vm)
			}
		})
	case plan.Ask:
		asked := f.Now
		vm.Asking = true
		f.after(f.Ask, f.term, func() {
			vm.Instance = plan.ApplyAskResult(vm.Instance, f.Deaf, f.Now)
			if !f.Deaf {
				f.see(vm, asked)
			}
		})
	case plan.PushFiles:
		f.work(vm, plan.Maintaining, f.Write, func() { vm.FilesSent = f.Running().RuntimeHash })
	case plan.Register:
		f.work(vm, plan.Maintaining, f.Write, func() { vm.InLoadBalancers, vm.BalancedAt = true, f.Now })
	case plan.ForgetGroup:
		f.Forgotten = true
	case plan.Halt, plan.EndHalt, plan.KeepGood:
		f.storing = true
		f.after(f.Write, f.term, func() {
			f.storing, f.storeFailed = false, f.storeFailed.After(f.Broken, f.Now)
			if !f.Broken {
				f.store(a)
			}
		})
	case plan.RaiseError, plan.ResolveError:
		raised := a.Kind == plan.RaiseError
		switch a.Alert {
		case plan.AlertBackoff:
			f.backoffRaised = raised
		case plan.AlertRolloutHalted:
			if f.haltRaised = ""; raised {
				f.haltRaised = a.Why()
			}
		case plan.AlertLateRegistration:
			f.lateRaised = raised
		case plan.AlertFlaps:
			vm.FlapsRaised = raised
		default:
			f.guardRaised = raised
		}
	default:
		f.fail("no such action for a group: %+v", a)
	}
}

// countFailure counts the failure of an instance, if it is deleted or preserved because it failed.
func (f *Fleet) countFailure(vm *VM, a plan.Action) {
	switch {
	case a.Cause == plan.CauseNotWoken:
		f.notWokenAt = f.Now
	case a.Cause == plan.CauseUnregistered && vm.Spare:
		f.spareBackoff = plan.ApplyCreateFailure(f.spareBackoff, f.Group.GroupKey, a.Reason, f.Now)
	case a.Cause == plan.CauseUnregistered:
		f.backoff = plan.ApplyCreateFailure(f.backoff, f.Group.GroupKey, a.Reason, f.Now)
	}
	running := f.Running()
	if (plan.Deletion{Cause: a.Cause}).FailsRollout(plan.Drifted(&running, f.image(), &vm.Instance)) {
		f.rolloutFailures++
		f.rolloutFailure = a.Fault()
	}
}

func (f *Fleet) work(vm *VM, work plan.Work, d time.Duration, done func()) {
	f.try(vm, work, d, func() bool { done(); return true })
}

// try is like work for what may fail. do returns false if it failed.
func (f *Fleet) try(vm *VM, work plan.Work, d time.Duration, do func() bool) {
	vm.Work = work
	f.after(d, f.term, func() {
		failed := f.Broken || !do()
		vm.Instance = plan.ApplyWorkResult(vm.Instance, failed, f.Now)
	})
}

// sleep records that a spare sleeps, and puts its VM to sleep.
func (f *Fleet) sleep(vm *VM) bool {
	if vm.AsleepAt.IsZero() {
		vm.AsleepAt = f.Now
	}
	if f.NoSleep || vm.Truth == plan.ProviderPending {
		return false
	}
	vm.SleepRequested = f.Now
	if vm.Truth == plan.ProviderRunning {
		vm.Truth = plan.ProviderStopping
		f.lose(vm)
		f.after(f.FallAsleep, 0, func() {
			if vm.Truth == plan.ProviderStopping {
				vm.Truth = plan.ProviderStopped
			}
		})
	}
	return true
}

// wake wakes the VM of a member.
func (f *Fleet) wake(vm *VM) bool {
	switch {
	case f.LostSleep, vm.Truth == plan.ProviderGone, vm.Truth == plan.ProviderGoing:
		vm.WakeFailed = "it is gone"
		return false
	case f.NoWake, vm.Truth == plan.ProviderStopping:
		return false
	case vm.Truth == plan.ProviderStopped:
		vm.Truth = plan.ProviderPending
		f.after(f.WakeUp, 0, func() {
			if vm.Truth == plan.ProviderPending {
				vm.Truth, vm.Agent, vm.reportFrom = plan.ProviderRunning, true, f.Now
			}
		})
	}
	vm.WakeRequested = f.Now
	return true
}

func (f *Fleet) startCreate(a plan.Action) {
	vm := f.make()
	vm.Spot, vm.Spare, vm.Finishes = a.Spot, a.Spare, a.Finishes()
	if vm.Spare {
		vm.Sleep = f.Group.Spares.Sleep()
	}
	if a.Spot && f.NoSpot {
		f.spotRefusedAt = f.Now
		vm.Spot = !a.Fallback
	}
	vm.State, vm.Work, vm.Truth = record.Reserved, plan.Creating, plan.ProviderUnknown
	// The provider makes the VM even if the leader that sent the create call is gone.
	f.after(f.Create, 0, func() {
		if vm.Spot && f.NoSpot {
			f.drop(vm)
			f.refused(a, "no spot capacity")
			return
		}
		if f.Refuse != "" {
			f.drop(vm)
			f.refused(a, f.Refuse)
			return
		}
		if a.Cause.Advised() {
			f.advised = plan.ApplyAdvisedCreate(f.advised, f.Group.GroupKey, "", f.Now)
		}
		vm.Truth = plan.ProviderRunning
		f.created(vm)
	})
}

// refused counts a create call that the provider refused, as the real executor does.
func (f *Fleet) refused(a plan.Action, why string) {
	switch {
	case a.Spare:
		f.spareBackoff = plan.ApplyCreateFailure(f.spareBackoff, f.Group.GroupKey, why, f.Now)
	case a.Cause == plan.CauseReturnToSpot && a.Spot:
	case a.Cause.Advised():
		f.advised = plan.ApplyAdvisedCreate(f.advised, f.Group.GroupKey, why, f.Now)
	default:
		f.backoff = plan.ApplyCreateFailure(f.backoff, f.Group.GroupKey, why, f.Now)
	}
}

// created updates the instance when its create call is answered, or when a later leader finds the VM by its tag.
func (f *Fleet) created(vm *VM) {
	vm.Work, vm.State, vm.LaunchedAt = plan.Idle, record.Created, f.Now
	f.see(vm, f.Now)
	if f.Mute {
		return
	}
	f.after(f.Boot, 0, func() {
		if vm.State == record.Created && vm.Truth == plan.ProviderRunning && vm.Work != plan.MarkingDeleting &&
			!vm.Cut {
			vm.State, vm.RegisteredAt, vm.reportFrom, vm.Agent = record.Registered, f.Now, f.Now, true
		}
	})
}

// see gives the leader the provider's answer about one VM.
func (f *Fleet) see(vm *VM, asked time.Time) {
	vm.Instance, _ = plan.ApplyProviderAnswer(vm.Instance, plan.ProviderAnswer{Asked: asked, State: vm.Truth,
		Absent: vm.Truth == plan.ProviderUnknown})
}

// list simulates the provider's list of all VMs, which garbage collection requests once per interval.
func (f *Fleet) list() {
	for _, vm := range f.VMs {
		if !f.Deaf {
			f.see(vm, f.Now)
		}
	}
	f.after(f.Settings.CollectInterval, 0, f.list)
}

// EndVM makes the provider end a VM, whether or not that was requested.
func (f *Fleet) EndVM(vm *VM) {
	if vm.Truth == plan.ProviderGone || vm.Truth == plan.ProviderGoing {
		return
	}
	vm.Truth = plan.ProviderGoing
	f.lose(vm)
	f.after(f.End, 0, func() { vm.Truth = plan.ProviderGone })
}

// Destroy removes a VM immediately: its stream closes and the provider does not know it any more.
func (f *Fleet) Destroy(vm *VM) {
	vm.Truth = plan.ProviderGone
	f.lose(vm)
}

func (f *Fleet) lose(vm *VM) {
	if vm.Connected {
		vm.Connected, vm.LostAt = false, f.Now
	}
}

// Stop stops a VM without a delete call. The stopped VM still exists at the provider.
func (f *Fleet) Stop(vm *VM) {
	vm.Truth = plan.ProviderStopped
	f.lose(vm)
}

// Release ends the preservation of an instance, as a person does.
func (f *Fleet) Release(vm *VM) {
	vm.State, vm.DeletingAt, vm.DeleteReason = record.Deleting, f.Now, "released"
	vm.DeleteDeadline = f.Now.Add(f.Group.DrainTimeout.D())
}

// CutOff separates an agent from the server. [Fleet.Mend] connects them again.
func (f *Fleet) CutOff(vm *VM) {
	f.refresh(vm)
	vm.Cut = true
	f.lose(vm)
}

// Mend ends what [Fleet.CutOff] began.
func (f *Fleet) Mend(vm *VM) {
	vm.Cut = false
	vm.reportFrom = f.Now
}

// Notice announces that the cloud will take the VM away after the duration `deadline`.
func (f *Fleet) Notice(vm *VM, deadline time.Duration) {
	f.refresh(vm)
	if !vm.Notice && (plan.Counts(&vm.Instance) || plan.CountsAsSpare(&vm.Instance)) {
		f.notices = plan.ApplyNotice(f.notices, &f.Group, f.Now)
	}
	vm.Notice, vm.NoticeDeadline = true, f.Now.Add(deadline)
	f.after(deadline, 0, func() { f.EndVM(vm) })
}

// Recommend reports that the cloud recommends replacing a VM, or no longer does.
func (f *Fleet) Recommend(vm *VM, replace bool) {
	f.refresh(vm)
	vm.Recommended = replace
}

// Maintain reports that the cloud has announced maintenance of a VM, which begins after the duration `begins`. If kind
// is empty, the maintenance is withdrawn.
func (f *Fleet) Maintain(vm *VM, kind string, begins time.Duration) {
	f.refresh(vm)
	if vm.Maintenance, vm.MaintenanceAt = kind, f.Now.Add(begins); kind == "" {
		vm.MaintenanceAt = time.Time{}
	}
}

// PowerOff announces that a machine powers off, and stops it after d.
func (f *Fleet) PowerOff(vm *VM, d time.Duration) {
	f.refresh(vm)
	vm.PowerOffAt = f.Now
	f.after(d, 0, func() {
		if vm.Truth == plan.ProviderRunning {
			f.Stop(vm)
		}
	})
}

// Restart announces that a VM's agent restarts, or that the VM reboots if reboot is true. The agent runs again after d.
func (f *Fleet) Restart(vm *VM, reboot bool, d time.Duration) {
	f.refresh(vm)
	vm.Lapses = vm.Lapses.After(f.Now)
	vm.RestartingAt, vm.Reboot = f.Now, reboot
	vm.Agent = false
	f.lose(vm)
	f.after(d, 0, func() {
		vm.Agent, vm.reportFrom, vm.RestartingAt, vm.Reboot = true, f.Now, time.Time{}, false
	})
}

// Crash ends the leader and starts another one, without the state that was only in memory. For each write and call in
// progress, the function landed decides whether it takes effect.
func (f *Fleet) Crash(landed func() bool) {
	term := f.term
	f.term++
	effects := f.effects
	f.effects = nil
	for _, e := range effects {
		if e.term != term {
			f.effects = append(f.effects, e)
		} else if landed() {
			e.run()
		}
	}
	f.leaderSince, f.silenceFrom = f.Now, time.Time{}
	f.pending, f.backoff, f.notices, f.guardRaised, f.backoffRaised = 0, plan.Backoff{}, plan.Notices{}, false, false
	f.notWokenAt = time.Time{}
	f.advised, f.spareBackoff, f.pendingSpares = plan.Notices{}, plan.Backoff{}, 0
	f.guard, f.shardGuard = plan.Guard{}, plan.Guard{}
	f.lateRaised = false
	f.rolloutFailures, f.haltRaised, f.pendingSpot, f.spotRefusedAt = 0, "", 0, time.Time{}
	f.rolloutFailure, f.configuredAt, f.storing, f.storeFailed = "", f.Now, false, plan.Failure{}
	for _, vm := range f.VMs {
		if vm.State != record.Reserved {
			vm.Work = plan.Idle // a real new leader would settle the call; here the answer of the call does
		}
		vm.Failed, vm.MaintenanceFailed, vm.AskFailed, vm.Asking = plan.Failure{}, plan.Failure{}, plan.Failure{}, false
		vm.FailedCheck, vm.CheckFailedAt, vm.Balancer = "", time.Time{}, plan.BalancerHealth{}
		vm.Healthy, vm.EverHealthy, vm.LastReport, vm.Connected, vm.LostAt = false, false, time.Time{}, false,
			time.Time{}
		vm.RuntimeHash, vm.FilesSent, vm.InLoadBalancers, vm.Deregistered = "", "", false, false
		vm.Announced, vm.Operator, vm.Drained, vm.TerminateRequested = false, false, false, time.Time{}
		vm.Hook, vm.HookEnded = false, false
		vm.PowerOffAt = time.Time{}
		vm.SleepRequested, vm.WakeRequested, vm.WakeFailed, vm.Role = time.Time{}, time.Time{}, "", ""
		vm.Woken = vm.Waking() && !f.Now.Before(vm.PromotedAt.Add(10*time.Minute))
		vm.Lapses, vm.FlapsRaised, vm.Finishes = plan.Lapses{}, false, ident.ID{}
		vm.reportFrom = f.Now.Add(time.Duration(f.rand.Int63n(int64(10 * time.Second)))) // agents reconnect
		f.see(vm, f.Now)
	}
}
