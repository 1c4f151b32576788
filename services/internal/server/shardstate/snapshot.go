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
func (s *State) Snapshot(key config.GroupKey, instances []plan.Instance) (snapshot plan.Snapshot, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[key]
	if g == nil {
		return plan.Snapshot{}, false
	}
	return s.snapshot(g, s.settings, instances), true
}

// snapshot returns the snapshot of a group under the given settings. Call with mu held.
func (s *State) snapshot(g *group, settings plan.Settings, instances []plan.Instance) plan.Snapshot {
	key := g.GroupKey
	instances = instances[:0]
	for _, inst := range g.instances {
		instances = append(instances, inst.plan)
	}
	raised := func(kind plan.AlertKind) bool {
		_, ok := s.standing[GroupError(kind, key, ident.ID{})]
		return ok
	}
	pending := s.unsettled(key)
	pending.add(g.pending)
	return plan.Snapshot{
		Now:            s.opts.Now(),
		LeaderSince:    s.since,
		ServingSince:   s.servingSince,
		GuardRaised:    raised(plan.AlertUnhealthyGuard),
		BackoffRaised:  raised(plan.AlertBackoff),
		LateRaised:     raised(plan.AlertLateRegistration),
		HaltRaised:     s.standing[GroupError(plan.AlertRolloutHalted, key, ident.ID{})].Message,
		Term:           s.opts.Term,
		Settings:       settings,
		Group:          g.Group,
		SilenceFrom:    s.silenceFrom,
		Instances:      instances,
		PendingCreates: pending.Members,
		PendingSpot:    pending.Spot,
		PendingSpares:  pending.Spares,
		SpotRefusedAt:  g.spotRefusedAt,
		Backoff:        g.backoff,
		SpareBackoff:   g.spareBackoff,
		NotWokenAt:     g.notWokenAt,
		Guard:          g.guard,
		Notices:        g.notices,
		Advised:        g.advised,
		CreateBudget:   -1,
		Operators:      s.operators[key.Tenant] > 0,
		OperatorLeftAt: s.operatorLeftAt[key.Tenant],

		RolloutFailures: g.rolloutFailures, RolloutFailure: g.rolloutFailure, ConfiguredAt: g.configuredAt,
		StoringRollout: g.storing, StoreFailed: g.storeFailed,
		Image: g.currentImage(), WantedImage: g.wantedImage(),
	}
}

// Supposition is a change of a group that is planned but not made.
type Supposition struct {
	// Group is the group after the change; nil: the configuration no longer has it.
	Group *config.Group
	// Settings are those of the shard after the change.
	Settings plan.Settings
	// Deleted holds the requested deletions, by instance.
	Deleted map[ident.ID]plan.Deletion
	// Resumed means that the group's rollout is started again.
	Resumed bool
}

// Suppose returns the snapshot and the view that a group would have after a change. It changes nothing. It returns
// false if there would be no such group.
func (s *State) Suppose(key config.GroupKey, change Supposition) (plan.Snapshot, GroupView, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, g := s.opts.Now(), group{}
	if have := s.groups[key]; have != nil {
		g = *have
	} else if change.Group == nil {
		return plan.Snapshot{}, GroupView{}, false
	}
	g.instances = slices.Clone(g.instances)
	for n, inst := range g.instances {
		supposed := *inst
		supposed.group = &g
		if inst.plan.Work == plan.Maintaining { // it soon ends, and says nothing about the change
			supposed.plan.Work = plan.Idle
		}
		if d, ok := change.Deleted[inst.record.ID]; ok && plan.RequestDelete(&supposed.record, d, now) {
			supposed.plan = plan.ApplyRecord(supposed.plan, &inst.record, &supposed.record, now)
		}
		g.instances[n] = &supposed
	}
	if change.Group == nil {
		g.Deleted, g.Size = true, 0
	} else {
		g.configure(*change.Group, now)
	}
	if change.Resumed {
		g.endRollout(now)
	}
	g.blocked, g.blockedSince, g.blockedUntil, g.rollout = "", time.Time{}, time.Time{}, ""
	return s.snapshot(&g, change.Settings, nil), s.groupView(&g), true
}

// unsettled counts the VMs of a group whose records are still reservations from earlier leaders. Later, these VMs
// become instances of the group. Call with mu held.
func (s *State) unsettled(key config.GroupKey) (n Pending) {
	if len(s.leftovers) == 0 {
		return n
	}
	for _, stray := range s.strays {
		tags := &stray.vm.Tags
		if _, left := s.leftovers[tags.Instance]; left && stray.vm.State.Alive() && !tags.OnDemand &&
			tags.Tenant == key.Tenant && tags.Group == key.Group {
			n.add(PendingOf(plan.Action{Kind: plan.Create, Spare: tags.Spare, Spot: tags.Spot}))
		}
	}
	return n
}

// ShardSnapshot returns everything that planning garbage collection may use.
func (s *State) ShardSnapshot() plan.ShardSnapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, raised := s.standing[ErrorKey{Kind: plan.AlertOrphans}]
	snapshot := plan.ShardSnapshot{
		Now:           s.opts.Now(),
		Settings:      s.settings,
		Listed:        plan.Observed[int]{Value: s.listedVMs, Complete: s.listedAll, At: s.listed},
		OrphansWait:   s.orphansWait,
		OrphansRaised: raised,
	}
	for _, stray := range s.sortedStrays() {
		id := stray.vm.Tags.Instance
		snapshot.Strays = append(snapshot.Strays, plan.Stray{ProviderID: stray.vm.ProviderID, Instance: id,
			State: providerStates[stray.vm.State], LaunchedAt: stray.vm.LaunchedAt, Tombstone: s.tombstoned(id),
			Claimed: s.instances[id] != nil, Reads: stray.reads, Busy: stray.busy, Confirmed: stray.confirmed})
	}
	for _, id := range slices.SortedFunc(maps.Keys(s.leftovers), ident.ID.Compare) {
		snapshot.Leftovers = append(snapshot.Leftovers, plan.Leftover{Instance: id, Busy: s.collecting[id]})
	}
	for _, id := range slices.SortedFunc(maps.Keys(s.tombstones), ident.ID.Compare) {
		rec := s.tombstones[id].record
		snapshot.Tombstones = append(snapshot.Tombstones, plan.Tombstone{Instance: id, DeletedAt: rec.DeletedAt,
			Busy: s.collecting[id], Unused: rec.Group == ""})
	}
	return snapshot
}

// BeginCollect marks a garbage collection action for an instance ID as started. It returns false if one is already
// running for that ID.
func (s *State) BeginCollect(id ident.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.collecting[id] {
		return false
	}
	s.collecting[id] = true
	return true
}

// EndCollect marks the end of a garbage collection action for an instance ID. After a success, garbage collection is
// due again, because the success may permit other actions. A failed action waits for the next scheduled garbage
// collection.
func (s *State) EndCollect(id ident.ID, ok bool) {
	s.mu.Lock()
	delete(s.collecting, id)
	s.collectionDue = s.collectionDue || ok
	s.mu.Unlock()
	if ok {
		s.opts.Wake()
	}
}

// Health counts the shard's running instances and the silent ones among them. The unhealthy guard has a limit for the
// silent ones. When their number no longer exceeds this limit, Health marks all groups as dirty.
func (s *State) Health(now time.Time) plan.ShardHealth {
	s.mu.Lock()
	var health plan.ShardHealth
	for _, g := range s.groups { // in the order of IDs, because a map's order would miss the processor's cache
		for _, inst := range g.instances {
			running, silent := plan.CountSilence(&inst.plan, s.settings, s.silenceFrom, now)
			if running {
				health.Running++
			}
			if silent {
				health.Silent++
			}
		}
	}
	exceeds := health.Exceeds()
	fell := s.guard.Exceeded && !exceeds
	var recovery time.Duration
	if fell {
		for key, g := range s.groups {
			recovery = max(recovery, plan.RecoveryTime(s.settings, &g.Group))
			s.dirty[key] = struct{}{}
		}
	}
	s.guard = s.guard.After(exceeds, recovery, s.settings.RegistrationTimeout, now)
	health.HoldUntil = s.guard.HoldUntil
	s.mu.Unlock()
	if fell {
		s.opts.Wake()
	}
	return health
}

// Planned stores what the group's next plan needs from this plan: the state of the unhealthy guard, why the group has
// too few or too many instances, why its rollout waits, and what the group waits for. It publishes an event if one of
// these reasons changed.
func (s *State) Planned(key config.GroupKey, d plan.Decision) {
	s.mu.Lock()
	g := s.groups[key]
	changed := g != nil && (g.blocked != d.Blocked || g.rollout != d.Rollout || !g.wait.Same(d.Wait))
	if g != nil {
		g.guard, g.blockedUntil, g.wait = d.Guard, d.BlockedUntil, d.Wait
	}
	if changed {
		switch {
		case d.Blocked == "":
			g.blockedSince = time.Time{}
		case g.blocked == "":
			g.blockedSince = s.opts.Now()
		}
		g.blocked, g.rollout = d.Blocked, d.Rollout
	}
	s.mu.Unlock()
	if changed {
		s.opts.Events.Group(key)
	}
}

// Plan marks a planned action as started, so that the next snapshot shows it. It returns false if the instance is gone
// or busy.
func (s *State) Plan(action plan.Action, work plan.Work) bool {
	if action.Kind == plan.Ask {
		s.mu.Lock()
		defer s.mu.Unlock()
		inst := s.instances[action.Instance]
		if inst == nil || inst.plan.Asking {
			return false
		}
		inst.plan.Asking = true
		return true
	}
	return s.Begin(action.Instance, work)
}

// Postpone moves a group's next plan to a later time. It does so only if the plan's sole purpose is to look for overdue
// reports, and no report is overdue. Otherwise ok is false.
func (s *State) Postpone(key config.GroupKey, schedule plan.Schedule, now time.Time) (later plan.Schedule, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[key]
	if g == nil {
		return schedule, false
	}
	return schedule.Postpone(func(yield func(*plan.Instance) bool) {
		for _, inst := range g.instances {
			if !yield(&inst.plan) {
				return
			}
		}
	}, &s.settings, now)
}
