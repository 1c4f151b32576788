package shardstate

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// Listed records the provider's answer to a list call that started at the time `asked`. A VM without a record becomes a
// stray. An instance whose VM is not in the list is gone, with two exceptions: the instance is younger than the
// provider's consistency window, or its provider ID has a prefix in unlisted (see [infra.PartialError]). Garbage
// collection runs only after a list in which no VM can be missing. Listed ignores a list whose call started before that
// of an already recorded list.
func (w *State) Listed(vms []infra.VM, unlisted []string, asked time.Time) {
	var events []InstanceEvent
	w.mu.Lock()
	if asked.Before(w.listed) {
		w.mu.Unlock() // a list that was asked for later has arrived first
		return
	}
	seen := make(map[ident.ID]struct{}, len(vms))
	strays := map[string]*stray{}
	live := 0
	for _, vm := range vms {
		if vm.State != infra.Deleted {
			live++
		}
		id := vm.Tags.Instance
		inst := w.instances[id]
		if id.IsZero() || inst == nil || (inst.record.ProviderID != "" && inst.record.ProviderID != vm.ProviderID) {
			if vm.State != infra.Deleted {
				s := w.strays[vm.ProviderID]
				if s == nil {
					s = &stray{}
				}
				s.vm = vm
				strays[vm.ProviderID] = s
			}
			continue
		}
		seen[id] = struct{}{}
		events = w.applyDescription(events, inst, vm, asked)
	}
	w.strays = strays
	for id, inst := range w.instances {
		if _, ok := seen[id]; ok || asked.Before(inst.plan.Provider.At) || !plan.Covered(inst.plan, unlisted) {
			continue
		}
		events = w.applyAnswer(events, inst, plan.ProviderAnswer{Asked: asked, Absent: true},
			"absent from the provider's list")
	}
	w.listed, w.listedVMs, w.listedAll = asked, live, len(unlisted) == 0
	w.collectionDue = true
	w.mu.Unlock()
	w.emit(events)
	w.opts.Wake()
}

// Gone reports whether nothing is left of an instance's VM, according to the provider's last answer. It also returns
// true for an unknown instance.
func (w *State) Gone(id ident.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	inst := w.instances[id]
	return inst == nil || inst.plan.Provider.Value == plan.ProviderGone && inst.plan.Provider.Complete
}

// Answered records the provider's description of one VM. `asked` is the time at which the call started.
func (w *State) Answered(id ident.ID, vm infra.VM, asked time.Time) {
	w.mu.Lock()
	var events []InstanceEvent
	if inst := w.instances[id]; inst != nil {
		events = w.applyDescription(nil, inst, vm, asked)
	}
	w.mu.Unlock()
	w.emit(events)
	w.opts.Wake()
}

// NotFound records the provider's answer that it does not know the instance's VM.
func (w *State) NotFound(id ident.ID, asked time.Time) {
	w.mu.Lock()
	var events []InstanceEvent
	if inst := w.instances[id]; inst != nil {
		events = w.applyAnswer(nil, inst, plan.ProviderAnswer{Asked: asked, Absent: true}, "not known to the provider")
	}
	w.mu.Unlock()
	w.emit(events)
	w.opts.Wake()
}

// applyDescription applies the provider's description of an instance's VM. Call with mu held.
func (w *State) applyDescription(events []InstanceEvent, inst *instance, vm infra.VM,
	asked time.Time) []InstanceEvent {
	if asked.Before(inst.plan.Provider.At) {
		return events
	}
	inst.vm = vm
	return w.applyAnswer(events, inst, plan.ProviderAnswer{Asked: asked, State: providerStates[vm.State],
		ProviderID: vm.ProviderID, LaunchedAt: vm.LaunchedAt, EndReason: vm.EndReason}, "provider says "+
		string(vm.State))
}

// applyAnswer applies a provider's answer to an instance and appends the events that follow. Call with mu held.
func (w *State) applyAnswer(events []InstanceEvent, inst *instance, answer plan.ProviderAnswer,
	reason string) []InstanceEvent {
	next, effect := plan.ApplyProviderAnswer(inst.plan, answer)
	if effect.Stale {
		return events
	}
	inst.plan = next
	w.touch(inst.group)
	if effect.Lost {
		events = append(events, w.event(inst, EventLost, reason))
	}
	return events
}

func (w *State) event(inst *instance, typ InstanceEventType, reason string) InstanceEvent {
	event := NewEvent(typ, &inst.record, reason)
	event.At = w.opts.Now()
	return event
}

func (w *State) emit(events []InstanceEvent) {
	slices.SortStableFunc(events, func(a, b InstanceEvent) int { return a.Instance.Compare(b.Instance) })
	for _, event := range events {
		w.Publish(event)
	}
}

// providerStates maps a VM's state to the planner's state. A state that is not listed here is unknown.
var providerStates = map[infra.State]plan.ProviderState{
	infra.Pending: plan.ProviderPending, infra.Running: plan.ProviderRunning,
	infra.Stopping: plan.ProviderGoing, infra.Deleting: plan.ProviderGoing,
	infra.Stopped: plan.ProviderStopped, infra.Failed: plan.ProviderStopped,
	infra.Deleted: plan.ProviderGone,
}

// ReadMissing records that a direct read of a stray's record from the bucket found no record.
func (w *State) ReadMissing(providerID string, at time.Time) {
	w.changeStray(providerID, func(s *stray) { s.reads, s.busy = append(s.reads, at), false })
}

// BeginStray marks work on a stray as started and returns its VM. It returns false if the stray is unknown or busy.
func (w *State) BeginStray(providerID string) (infra.VM, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.strays[providerID]
	if s == nil || s.busy {
		return infra.VM{}, false
	}
	s.busy = true
	return s.vm, true
}

// EndStray marks the end of work on a stray. If gone is true, it removes the stray.
func (w *State) EndStray(providerID string, gone bool) {
	w.changeStray(providerID, func(s *stray) {
		s.busy = false
		if gone {
			delete(w.strays, providerID)
		}
	})
}

// Orphans returns the strays with an instance ID for which there is no live record, no tombstone and no reservation.
// After a restore, those with a tombstone are among them.
func (w *State) Orphans() []infra.VM {
	w.mu.Lock()
	defer w.mu.Unlock()
	var vms []infra.VM
	for _, s := range w.orphans() {
		vms = append(vms, s.vm)
	}
	return vms
}

// orphans is Orphans with mu held.
func (w *State) orphans() []*stray {
	return slices.DeleteFunc(w.sortedStrays(), func(s *stray) bool {
		id := s.vm.Tags.Instance
		_, left := w.leftovers[id]
		return id.IsZero() || w.instances[id] != nil || w.tombstoned(id) && !w.orphansWait || left
	})
}

func (w *State) changeStray(providerID string, fn func(*stray)) {
	w.mu.Lock()
	if s := w.strays[providerID]; s != nil {
		fn(s)
	}
	w.mu.Unlock()
}

// ConfirmOrphans allows garbage collection to terminate all current orphans, and returns them. A person causes this
// call after the orphan alert stopped garbage collection. Orphans that appear later need another confirmation. If there
// is no orphan alert, ConfirmOrphans changes nothing.
func (w *State) ConfirmOrphans() []infra.VM {
	w.mu.Lock()
	var vms []infra.VM
	if _, raised := w.standing[ErrorKey{Kind: plan.AlertOrphans}]; raised {
		for _, s := range w.orphans() {
			s.confirmed = true
			vms = append(vms, s.vm)
		}
		w.collectionDue, w.orphansWait = true, false
	}
	w.mu.Unlock()
	w.opts.Wake()
	return vms
}

// HoldOrphans stops garbage collection as long as there is any orphan. A call of ConfirmOrphans with an orphan alert
// ends that.
func (w *State) HoldOrphans() {
	w.mu.Lock()
	w.orphansWait = true
	w.mu.Unlock()
}

// VM returns the provider's last description of an instance's VM.
func (w *State) VM(id ident.ID) (infra.VM, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if inst := w.instances[id]; inst != nil {
		vm := inst.vm
		if vm.ProviderID == "" {
			vm.ProviderID = inst.plan.ProviderID
		}
		return vm, true
	}
	return infra.VM{}, false
}

// sortedStrays returns the strays in the order of their provider IDs. Call with mu held.
func (w *State) sortedStrays() []*stray {
	return slices.SortedFunc(maps.Values(w.strays), func(a, b *stray) int {
		return strings.Compare(a.vm.ProviderID, b.vm.ProviderID)
	})
}
