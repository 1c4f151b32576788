package shardstate

import (
	"maps"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// Snapshot returns everything that planning one group may use. To save memory, it overwrites the slice instances with
// the group's instances. It returns ok false for a group that is gone.
func (w *State) Snapshot(key config.GroupKey, instances []plan.Instance) (s plan.Snapshot, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.groups[key]
	if g == nil {
		return plan.Snapshot{}, false
	}
	instances = instances[:0]
	for _, inst := range g.instances {
		instances = append(instances, inst.plan)
	}
	raised := func(kind plan.AlertKind) bool {
		_, ok := w.standing[GroupError(kind, key, ident.ID{})]
		return ok
	}
	unsettled, unsettledSpot := w.unsettled(key)
	return plan.Snapshot{
		Now:            w.opts.Now(),
		LeaderSince:    w.since,
		GuardRaised:    raised(plan.AlertUnhealthyGuard),
		BackoffRaised:  raised(plan.AlertBackoff),
		HaltRaised:     raised(plan.AlertRolloutHalted),
		Term:           w.opts.Term,
		Settings:       w.settings,
		Group:          g.Group,
		SilenceFrom:    w.silenceFrom,
		Instances:      instances,
		PendingCreates: g.pending + unsettled,
		PendingSpot:    g.pendingSpot + unsettledSpot,
		SpotRefusedAt:  g.spotRefusedAt,
		Backoff:        g.backoff,
		Guard:          g.guard,
		Notices:        g.notices,
		CreateBudget:   -1,

		RolloutFailures: g.rolloutFailures, Image: g.currentImage(),
	}, true
}

// unsettled counts the VMs of a group whose records are still reservations from earlier leaders. Later, these VMs
// become instances of the group. spot is the number of spot instances among them. Call with mu held.
func (w *State) unsettled(key config.GroupKey) (n, spot int) {
	if len(w.leftovers) == 0 {
		return 0, 0
	}
	for _, s := range w.strays {
		tags := &s.vm.Tags
		if _, left := w.leftovers[tags.Instance]; left && s.vm.State.Alive() && !tags.OnDemand &&
			tags.Tenant == key.Tenant && tags.Group == key.Group {
			n++
			if tags.Spot {
				spot++
			}
		}
	}
	return n, spot
}

// ShardSnapshot returns everything that planning garbage collection may use.
func (w *State) ShardSnapshot() plan.ShardSnapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, raised := w.standing[ErrorKey{Kind: plan.AlertOrphans}]
	s := plan.ShardSnapshot{
		Now:           w.opts.Now(),
		Settings:      w.settings,
		Listed:        plan.Observed[int]{Value: w.listedVMs, Complete: w.listedAll, At: w.listed},
		OrphansWait:   w.orphansWait,
		OrphansRaised: raised,
	}
	for _, stray := range w.sortedStrays() {
		id := stray.vm.Tags.Instance
		s.Strays = append(s.Strays, plan.Stray{ProviderID: stray.vm.ProviderID, Instance: id,
			State: providerStates[stray.vm.State], LaunchedAt: stray.vm.LaunchedAt, Tombstone: w.tombstoned(id),
			Claimed: w.instances[id] != nil, Reads: stray.reads, Busy: stray.busy, Confirmed: stray.confirmed})
	}
	for _, id := range slices.SortedFunc(maps.Keys(w.leftovers), ident.ID.Compare) {
		s.Leftovers = append(s.Leftovers, plan.Leftover{Instance: id, Busy: w.collecting[id]})
	}
	for _, id := range slices.SortedFunc(maps.Keys(w.tombstones), ident.ID.Compare) {
		s.Tombstones = append(s.Tombstones, plan.Tombstone{Instance: id, DeletedAt: w.tombstones[id].record.DeletedAt,
			Busy: w.collecting[id], Unused: w.tombstones[id].record.Group == ""})
	}
	return s
}

// BeginCollect marks a garbage collection action for an instance ID as started. It returns false if one is already
// running for that ID.
func (w *State) BeginCollect(id ident.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.collecting[id] {
		return false
	}
	w.collecting[id] = true
	return true
}

// EndCollect marks the end of a garbage collection action for an instance ID. After a success, garbage collection is
// due again, because the success may permit other actions. A failed action waits for the next scheduled garbage
// collection.
func (w *State) EndCollect(id ident.ID, ok bool) {
	w.mu.Lock()
	delete(w.collecting, id)
	w.collectionDue = w.collectionDue || ok
	w.mu.Unlock()
	if ok {
		w.opts.Wake()
	}
}

// Health counts the shard's running instances and the silent ones among them. The unhealthy guard has a limit for the
// silent ones. When their number no longer exceeds this limit, Health marks all groups as dirty.
func (w *State) Health(now time.Time) plan.ShardHealth {
	w.mu.Lock()
	var health plan.ShardHealth
	for _, inst := range w.instances {
		running, silent := plan.CountSilence(&inst.plan, w.settings, w.silenceFrom, now)
		if running {
			health.Running++
		}
		if silent {
			health.Silent++
		}
	}
	exceeds := health.Exceeds()
	fell := w.guard.Exceeded && !exceeds
	var recovery time.Duration
	if fell {
		for key, g := range w.groups {
			recovery = max(recovery, plan.RecoveryTime(w.settings, &g.Group))
			w.dirty[key] = struct{}{}
		}
	}
	w.guard = w.guard.After(exceeds, recovery, w.settings.RegistrationTimeout, now)
	health.HoldUntil = w.guard.HoldUntil
	w.mu.Unlock()
	if fell {
		w.opts.Wake()
	}
	return health
}

// Planned stores what the group's next plan needs from this plan: the state of the unhealthy guard, why the group has
// too few or too many instances, and why its rollout waits. It publishes an event if one of these reasons changed.
func (w *State) Planned(key config.GroupKey, d plan.Decision) {
	w.mu.Lock()
	g := w.groups[key]
	changed := g != nil && (g.blocked != d.Blocked || g.rollout != d.Rollout)
	if g != nil {
		g.guard, g.blockedUntil = d.Guard, d.BlockedUntil
	}
	if changed {
		switch {
		case d.Blocked == "":
			g.blockedSince = time.Time{}
		case g.blocked == "":
			g.blockedSince = w.opts.Now()
		}
		g.blocked, g.rollout = d.Blocked, d.Rollout
	}
	w.mu.Unlock()
	if changed {
		w.opts.Events.Group(key)
	}
}

// Plan marks a planned action as started, so that the next snapshot shows it. It returns false if the instance is gone
// or busy.
func (w *State) Plan(action plan.Action, work plan.Work) bool {
	if action.Kind == plan.Ask {
		w.mu.Lock()
		defer w.mu.Unlock()
		inst := w.instances[action.Instance]
		if inst == nil || inst.plan.Asking {
			return false
		}
		inst.plan.Asking = true
		return true
	}
	return w.Begin(action.Instance, work)
}

// Postpone moves a group's next plan to a later time. It does so only if the plan's sole purpose is to look for overdue
// reports, and no report is overdue. Otherwise ok is false.
func (w *State) Postpone(key config.GroupKey, schedule plan.Schedule, now time.Time) (later plan.Schedule, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.groups[key]
	if g == nil {
		return schedule, false
	}
	return schedule.Postpone(func(yield func(*plan.Instance) bool) {
		for _, inst := range g.instances {
			if !yield(&inst.plan) {
				return
			}
		}
	}, &w.settings, now)
}
