package plantest

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/plan"
)

// start begins one action, as the executor does: the work shows in the next snapshot, its result comes later.
func (w *World) start(a plan.Action) {
	vm := w.VM(a.Instance)
	switch a.Kind {
	case plan.Create:
		if w.Reserve == 0 {
			w.startCreate()
			return
		}
		w.pending++
		w.after(w.Reserve, w.term, func() {
			w.pending--
			w.startCreate()
		})
	case plan.Mark:
		w.work(vm, plan.MarkingDeleting, w.Write, func() {
			vm.State, vm.DeletingAt, vm.DeleteReason, vm.DeleteDeadline = record.Deleting, w.Now, a.Reason, a.Deadline
			if a.Cause == "unregistered" {
				w.backoff = w.backoff.Failed(w.Group.GroupKey, w.Now, a.Reason)
			}
		})
	case plan.Drain:
		w.work(vm, plan.Draining, w.Write, func() {
			vm.Announced, vm.InLoadBalancers = true, false
			if w.DrainAfter > 0 {
				w.after(w.DrainAfter, w.term, func() { vm.Drained = true })
			}
		})
	case plan.Terminate:
		w.work(vm, plan.Terminating, w.Write, func() {
			vm.TerminateRequested = w.Now
			w.EndVM(vm)
		})
	case plan.Forget:
		w.work(vm, plan.Forgetting, w.Write, func() { w.drop(vm) })
	case plan.Settle:
		w.work(vm, plan.Creating, w.Write, func() {
			if vm.Truth == plan.ProviderRunning {
				w.created(vm)
			} else {
				w.drop(vm)
			}
		})
	case plan.Ask:
		asked := w.Now
		vm.Asking = true
		w.after(w.Ask, w.term, func() {
			vm.Answered(w.Now, w.Deaf)
			if !w.Deaf {
				w.see(vm, asked)
			}
		})
	case plan.PushFiles:
		w.work(vm, plan.Tending, w.Write, func() { vm.FilesSent = w.Group.RuntimeHash })
	case plan.Register:
		w.work(vm, plan.Tending, w.Write, func() { vm.InLoadBalancers = true })
	case plan.ForgetGroup:
		w.Forgotten = true
	case plan.RaiseError, plan.ResolveError:
		raised := a.Kind == plan.RaiseError
		if a.ErrorKind == "backoff" {
			w.backoffRaised = raised
		} else {
			w.guardRaised = raised
		}
	default:
		w.fail("no such action for a group: %+v", a)
	}
}

func (w *World) work(vm *VM, work plan.Work, d time.Duration, done func()) {
	vm.Work = work
	w.after(d, w.term, func() {
		vm.Instance.End(w.Now, w.Broken)
		if !w.Broken {
			done()
		}
	})
}

func (w *World) startCreate() {
	vm := w.make()
	vm.State, vm.Work, vm.Truth = record.Reserved, plan.Creating, plan.ProviderUnknown
	// The provider acts whether or not the leader that asked is still there.
	w.after(w.Create, 0, func() {
		if w.Refuse != "" {
			w.drop(vm)
			w.backoff = w.backoff.Failed(w.Group.GroupKey, w.Now, w.Refuse)
			return
		}
		vm.Truth = plan.ProviderRunning
		w.created(vm)
	})
}

// created: the call was answered and recorded (or a later leader found the VM by its tag).
func (w *World) created(vm *VM) {
	vm.Work, vm.State, vm.LaunchedAt = plan.Idle, record.Created, w.Now
	w.see(vm, w.Now)
	if w.Mute {
		return
	}
	w.after(w.Boot, 0, func() {
		if vm.State == record.Created && vm.Truth == plan.ProviderRunning && vm.Work != plan.MarkingDeleting &&
			!vm.Cut {
			vm.State, vm.RegisteredAt, vm.reportFrom, vm.Agent = record.Registered, w.Now, w.Now, true
		}
	})
}

// see is an answer of the provider about one VM.
func (w *World) see(vm *VM, asked time.Time) {
	value := vm.Truth
	if value == plan.ProviderUnknown {
		value = plan.StateOfAbsent(&vm.Instance, asked)
	}
	vm.Provider = plan.Observed[plan.ProviderState]{Value: value, Complete: true, At: asked}
}

// list is the collection's look at everything, every interval.
func (w *World) list() {
	for _, vm := range w.VMs {
		if !w.Deaf {
			w.see(vm, w.Now)
		}
	}
	w.after(w.Settings.CollectInterval, 0, w.list)
}

// EndVM is the provider ending a VM, asked or not.
func (w *World) EndVM(vm *VM) {
	if vm.Truth == plan.ProviderGone || vm.Truth == plan.ProviderGoing {
		return
	}
	vm.Truth = plan.ProviderGoing
	w.lose(vm)
	w.after(w.End, 0, func() { vm.Truth = plan.ProviderGone })
}

// Destroy is a VM that vanishes from one moment to the next: its stream closes and the provider knows it no more.
func (w *World) Destroy(vm *VM) {
	vm.Truth = plan.ProviderGone
	w.lose(vm)
}

func (w *World) lose(vm *VM) {
	if vm.Connected {
		vm.Connected, vm.LostAt = false, w.Now
	}
}

// Stop is a machine that stops by itself; the provider keeps it.
func (w *World) Stop(vm *VM) {
	vm.Truth = plan.ProviderStopped
	w.lose(vm)
}

// CutOff separates an agent from the server; Mend joins them again.
func (w *World) CutOff(vm *VM) {
	w.refresh(vm)
	vm.Cut = true
	w.lose(vm)
}

// Mend ends what [World.CutOff] began.
func (w *World) Mend(vm *VM) {
	vm.Cut = false
	vm.reportFrom = w.Now
}

// Notice is the cloud's word that it will take the VM away.
func (w *World) Notice(vm *VM, deadline time.Duration) {
	w.refresh(vm)
	vm.Notice, vm.NoticeDeadline = true, w.Now.Add(deadline)
	w.after(deadline, 0, func() { w.EndVM(vm) })
}

// PowerOff is an agent's word that its machine powers off, which it does after d.
func (w *World) PowerOff(vm *VM, d time.Duration) {
	w.refresh(vm)
	vm.PowerOffAt = w.Now
	w.after(d, 0, func() {
		if vm.Truth == plan.ProviderRunning {
			w.Stop(vm)
		}
	})
}

// Restart is an agent's word that it, or with reboot its machine, is back after d.
func (w *World) Restart(vm *VM, reboot bool, d time.Duration) {
	w.refresh(vm)
	vm.RestartingAt, vm.Reboot = w.Now, reboot
	vm.Agent = false
	w.lose(vm)
	w.after(d, 0, func() {
		vm.Agent, vm.reportFrom, vm.RestartingAt, vm.Reboot = true, w.Now, time.Time{}, false
	})
}

// Crash ends the leader and starts another: what it only remembered is gone, writes and calls under way have happened
// or, by landed, not.
func (w *World) Crash(landed func() bool) {
	term := w.term
	w.term++
	effects := w.effects
	w.effects = nil
	for _, e := range effects {
		if e.term != term {
			w.effects = append(w.effects, e)
		} else if landed() {
			e.run()
		}
	}
	w.leaderSince, w.silenceFrom = w.Now, time.Time{}
	w.pending, w.backoff, w.guardRaised, w.backoffRaised = 0, plan.Backoff{}, false, false
	for _, vm := range w.VMs {
		if vm.State != record.Reserved {
			vm.Work = plan.Idle // a call that is still open is settled by the next leader; here its answer does
		}
		vm.Failed, vm.TendFailed, vm.AskFailed, vm.Asking = plan.Failure{}, plan.Failure{}, plan.Failure{}, false
		vm.Healthy, vm.EverHealthy, vm.LastReport, vm.Connected, vm.LostAt = false, false, time.Time{}, false,
			time.Time{}
		vm.RuntimeHash, vm.FilesSent, vm.InLoadBalancers = "", "", false
		vm.Announced, vm.Drained, vm.TerminateRequested = false, false, time.Time{}
		vm.PowerOffAt = time.Time{}
		vm.reportFrom = w.Now.Add(time.Duration(w.rand.Int63n(int64(10 * time.Second)))) // agents reconnect
		w.see(vm, w.Now)
	}
}
