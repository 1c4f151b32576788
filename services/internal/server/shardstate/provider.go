package shardstate

import (
	"cmp"
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
func (s *State) Listed(vms []infra.VM, unlisted []string, asked time.Time) {
	var events []InstanceEvent
	s.mu.Lock()
	if asked.Before(s.listed) {
		s.mu.Unlock() // a list that was asked for later has arrived first
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
		inst := s.instances[id]
		if id.IsZero() || inst == nil || (inst.record.ProviderID != "" && inst.record.ProviderID != vm.ProviderID) {
			if vm.State != infra.Deleted {
				known := s.strays[vm.ProviderID]
				if known == nil {
					known = &stray{}
				}
				known.vm = vm
				strays[vm.ProviderID] = known
			}
			continue
		}
		seen[id] = struct{}{}
		events = s.applyDescription(events, inst, vm, asked)
	}
	s.strays = strays
	for id, inst := range s.instances {
		if _, ok := seen[id]; ok || asked.Before(inst.plan.Provider.At) || !plan.Covered(inst.plan, unlisted) {
			continue
		}
		events = s.applyAnswer(events, inst, plan.ProviderAnswer{Asked: asked, Absent: true},
			"absent from the provider's list")
	}
	s.listed, s.listedVMs, s.listedAll = asked, live, len(unlisted) == 0
	s.collectionDue = true
	s.mu.Unlock()
	s.emit(events)
	s.opts.Wake()
}

// VMDeleted reports whether nothing is left of an instance's VM, according to the provider's last answer. It also
// returns true for an unknown instance.
func (s *State) VMDeleted(id ident.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	inst := s.instances[id]
	return inst == nil || inst.plan.Provider.Value == plan.ProviderGone && inst.plan.Provider.Complete
}

// Answered records the provider's description of one VM. `asked` is the time at which the call started.
func (s *State) Answered(id ident.ID, vm infra.VM, asked time.Time) {
	s.mu.Lock()
	var events []InstanceEvent
	if inst := s.instances[id]; inst != nil {
		events = s.applyDescription(nil, inst, vm, asked)
	}
	s.mu.Unlock()
	s.emit(events)
	s.opts.Wake()
}

// NotFound records the provider's answer that it does not know the instance's VM.
func (s *State) NotFound(id ident.ID, asked time.Time) {
	s.mu.Lock()
	var events []InstanceEvent
	if inst := s.instances[id]; inst != nil {
		events = s.applyAnswer(nil, inst, plan.ProviderAnswer{Asked: asked, Absent: true}, "not known to the provider")
	}
	s.mu.Unlock()
	s.emit(events)
	s.opts.Wake()
}

// applyDescription applies the provider's description of an instance's VM. Call with mu held.
func (s *State) applyDescription(events []InstanceEvent, inst *instance, vm infra.VM,
	asked time.Time) []InstanceEvent {
	if asked.Before(inst.plan.Provider.At) {
		return events
	}
	inst.vm = vm
	return s.applyAnswer(events, inst, plan.ProviderAnswer{Asked: asked, State: providerStates[vm.State],
		ProviderID: vm.ProviderID, LaunchedAt: vm.LaunchedAt, EndReason: vm.EndReason}, "provider says "+
		string(vm.State))
}

// applyAnswer applies a provider's answer to an instance and appends the events that follow. Call with mu held.
func (s *State) applyAnswer(events []InstanceEvent, inst *instance, answer plan.ProviderAnswer,
	reason string) []InstanceEvent {
	next, effect := plan.ApplyProviderAnswer(inst.plan, answer)
	if effect.Stale {
		return events
	}
	inst.plan = next
	s.touch(inst.group)
	if effect.Lost {
		events = append(events, s.event(inst, EventLost, reason))
	}
	return events
}

func (s *State) event(inst *instance, typ InstanceEventType, reason string) InstanceEvent {
	event := NewEvent(typ, &inst.record, reason)
	event.At = s.opts.Now()
	return event
}

func (s *State) emit(events []InstanceEvent) {
	slices.SortStableFunc(events, func(a, b InstanceEvent) int { return a.Instance.Compare(b.Instance) })
	for _, event := range events {
		s.Publish(event)
	}
}

// providerStates maps a VM's state to the planner's state. A state that is not listed here is unknown.
var providerStates = map[infra.State]plan.ProviderState{
	infra.Pending: plan.ProviderPending, infra.Running: plan.ProviderRunning,
	infra.Stopping: plan.ProviderStopping, infra.Deleting: plan.ProviderGoing,
	infra.Stopped: plan.ProviderStopped, infra.Failed: plan.ProviderFailed,
	infra.Deleted: plan.ProviderGone,
}

// ReadMissing records that a direct read of a stray's record from the bucket found no record.
func (s *State) ReadMissing(providerID string, at time.Time) {
	s.changeStray(providerID, func(v *stray) { v.reads, v.busy = append(v.reads, at), false })
}

// BeginStray marks work on a stray as started and returns its VM. It returns false if the stray is unknown or busy.
func (s *State) BeginStray(providerID string) (infra.VM, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.strays[providerID]
	if found == nil || found.busy {
		return infra.VM{}, false
	}
	found.busy = true
	return found.vm, true
}

// EndStray marks the end of work on a stray. If gone is true, it removes the stray.
func (s *State) EndStray(providerID string, deleted bool) {
	s.changeStray(providerID, func(v *stray) {
		v.busy = false
		if deleted {
			delete(s.strays, providerID)
		}
	})
}

// Orphans returns the strays with an instance ID for which there is no live record, no tombstone and no reservation.
// After a restore, those with a tombstone are among them.
func (s *State) Orphans() []infra.VM {
	s.mu.Lock()
	defer s.mu.Unlock()
	var vms []infra.VM
	for _, stray := range s.orphans() {
		vms = append(vms, stray.vm)
	}
	return vms
}

// orphans is Orphans with mu held.
func (s *State) orphans() []*stray {
	return slices.DeleteFunc(s.sortedStrays(), func(v *stray) bool {
		id := v.vm.Tags.Instance
		_, left := s.leftovers[id]
		return id.IsZero() || s.instances[id] != nil || s.tombstoned(id) && !s.orphansWait || left
	})
}

func (s *State) changeStray(providerID string, fn func(*stray)) {
	s.mu.Lock()
	if found := s.strays[providerID]; found != nil {
		fn(found)
	}
	s.mu.Unlock()
}

// ConfirmOrphans allows garbage collection to terminate all current orphans, and returns them. A person causes this
// call after the orphan alert stopped garbage collection. Orphans that appear later need another confirmation. If there
// is no orphan alert, ConfirmOrphans changes nothing.
func (s *State) ConfirmOrphans() []infra.VM {
	s.mu.Lock()
	var vms []infra.VM
	if _, raised := s.standing[ErrorKey{Kind: plan.AlertOrphans}]; raised {
		for _, stray := range s.orphans() {
			stray.confirmed = true
			vms = append(vms, stray.vm)
		}
		s.collectionDue, s.orphansWait = true, false
	}
	s.mu.Unlock()
	s.opts.Wake()
	return vms
}

// HoldOrphans stops garbage collection as long as there is any orphan. A call of ConfirmOrphans with an orphan alert
// ends that.
func (s *State) HoldOrphans() {
	s.mu.Lock()
	s.orphansWait = true
	s.mu.Unlock()
}

// VM returns the provider's last description of an instance's VM.
func (s *State) VM(id ident.ID) (infra.VM, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if inst := s.instances[id]; inst != nil {
		vm := inst.vm
		vm.ProviderID = cmp.Or(vm.ProviderID, inst.plan.ProviderID)
		return vm, true
	}
	return infra.VM{}, false
}

// sortedStrays returns the strays in the order of their provider IDs. Call with mu held.
func (s *State) sortedStrays() []*stray {
	return slices.SortedFunc(maps.Values(s.strays), func(a, b *stray) int {
		return strings.Compare(a.vm.ProviderID, b.vm.ProviderID)
	})
}
