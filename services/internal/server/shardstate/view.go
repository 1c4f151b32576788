package shardstate

import (
	"maps"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// InstanceView is all information about one instance, for display.
type InstanceView struct {
	Record   record.Instance
	Plan     plan.Instance
	VM       infra.VM
	Report   Report
	Settings plan.Settings
	// InfraDrift is true if the instance differs from its group's infrastructure configuration, image included. See
	// plan.Drifted. RuntimeDrift is true if the instance's files differ from those of its group.
	InfraDrift, RuntimeDrift bool
	// PreservedUntil is when the time of a preserved instance is over; zero: it is not preserved.
	PreservedUntil time.Time
	// Scaling are the metrics of the instance by which its group is scaled.
	Scaling []config.ScalingMetric
	// Protected lists the instances of this instance's group that people protect from removal.
	Protected []ident.ID
}

// UnhealthyReason says why an instance that reports in time is not healthy.
func (v *InstanceView) UnhealthyReason() string { return unhealthyReason(&v.Plan, &v.Report) }

// GroupView is all information about one group, for display. Actual counts managed instances that are not being
// deleted. Healthy counts those of them that report healthy. Preserved counts the preserved instances, which are not in
// Actual.
type GroupView struct {
	config.Group
	Actual, Healthy, Preserved int
	// SparesThere counts the spares, and SparesReady those that can become members now.
	SparesThere, SparesReady int
	Outdated                 int // instances of Actual that do not have the group's infra configuration
	ProviderIDs              []string
	Instances                []ident.ID
	Blocked                  string
	BlockedSince             time.Time // when the group became blocked; the reason may have changed since then
	BlockedUntil             time.Time // when the reason ends by time alone; zero: unknown
	RolloutWaits             string    // why outdated instances are not replaced now
	Backoff                  plan.Backoff
	Wait                     plan.Wait             // what the group waited for when it was planned last
	Scaled                   *plan.ScalingDecision // the last choice of the group's size; nil: none
	Halted                   bool                  // the alert about a halted rollout of the group is unresolved
}

// Instance returns one instance. It includes deleted instances while the State keeps their tombstones.
func (s *State) Instance(id ident.ID) (InstanceView, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if inst := s.instances[id]; inst != nil {
		return s.view(inst), true
	}
	if t, ok := s.tombstones[id]; ok {
		return InstanceView{Record: t.record, Settings: s.settings}, true
	}
	return InstanceView{}, false
}

// Instances returns the live instances of one group of a tenant, or of all its groups if group is "". They are sorted
// by ID.
func (s *State) Instances(tenant, group string) []InstanceView {
	s.mu.Lock()
	defer s.mu.Unlock()
	var views []InstanceView
	for key, g := range s.groups {
		if key.Tenant != tenant || group != "" && key.Group != group {
			continue
		}
		for _, inst := range g.instances {
			views = append(views, s.view(inst))
		}
	}
	slices.SortFunc(views, func(a, b InstanceView) int { return a.Record.ID.Compare(b.Record.ID) })
	return views
}

func (s *State) view(inst *instance) InstanceView {
	g := inst.group
	v := InstanceView{Record: inst.record, Plan: inst.plan, VM: inst.vm, Report: inst.report, Settings: s.settings,
		Protected: g.Protected}
	if g.Group.Scaling != nil && !inst.plan.OnDemand {
		v.Scaling = g.Group.Scaling.Metrics
	}
	v.InfraDrift = plan.Drifted(&g.Group, g.currentImage(), &inst.plan)
	v.PreservedUntil = plan.PreservedUntil(&g.Group, &inst.plan)
	v.RuntimeDrift = g.RuntimeHash != "" && !inst.plan.LastReport.IsZero() && inst.plan.RuntimeHash != g.RuntimeHash
	return v
}

// GroupView returns one group, and whether it exists.
func (s *State) GroupView(key config.GroupKey) (GroupView, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[key]
	if g == nil {
		return GroupView{}, false
	}
	return s.groupView(g), true
}

// GroupKeys returns the names of all groups, sorted.
func (s *State) GroupKeys() []config.GroupKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.groups), compareKeys)
}

// GroupViews returns the groups of a tenant, sorted by name.
func (s *State) GroupViews(tenant string) []GroupView {
	s.mu.Lock()
	defer s.mu.Unlock()
	var views []GroupView
	for key, g := range s.groups {
		if key.Tenant == tenant {
			views = append(views, s.groupView(g))
		}
	}
	slices.SortFunc(views, func(a, b GroupView) int { return compareKeys(a.GroupKey, b.GroupKey) })
	return views
}

func (s *State) groupView(g *group) GroupView {
	v := GroupView{Group: g.Group, Blocked: g.blocked, BlockedSince: g.blockedSince, BlockedUntil: g.blockedUntil,
		RolloutWaits: g.rollout, Backoff: g.backoff, Wait: g.wait}
	if g.Group.Scaling != nil {
		v.Scaled = g.scaling
	}
	_, v.Halted = s.standing[GroupError(plan.AlertRolloutHalted, g.GroupKey, ident.ID{})]
	now := s.opts.Now()
	v.Size, _ = g.SizeAt(now)
	for _, inst := range g.instances {
		p := &inst.plan
		v.Instances = append(v.Instances, p.ID)
		if !plan.PreservedUntil(&g.Group, p).IsZero() {
			v.Preserved++
		}
		if plan.CountsAsSpare(p) {
			v.SparesThere++
			ready := p.Asleep() || p.Healthy && now.Sub(p.LastReport) < 3*s.settings.HealthInterval
			if ready && p.Sleep == g.Spares.Sleep() && !plan.Drifted(&g.Group, g.currentImage(), p) {
				v.SparesReady++
			}
		}
		if !plan.Counts(p) {
			continue
		}
		v.Actual++
		if plan.Drifted(&g.Group, g.currentImage(), p) {
			v.Outdated++
		}
		if p.ProviderID != "" {
			v.ProviderIDs = append(v.ProviderIDs, p.ProviderID)
		}
		if p.Healthy && now.Sub(p.LastReport) < 3*s.settings.HealthInterval {
			v.Healthy++
		}
	}
	return v
}

// Settings returns the current settings of the shard.
func (s *State) Settings() plan.Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings
}

// DrainTimeout returns the longest time for which a Node of the group may be drained.
func (s *State) DrainTimeout(key config.GroupKey) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.groups[key]; g != nil {
		return g.DrainTimeout.D()
	}
	return s.defaults.drain
}

// Since returns when this leader began to load the shard's state.
func (s *State) Since() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since
}

// Counts are the numbers of a shard's objects. Connected counts the instances whose agents have an open health stream.
type Counts struct{ Groups, Instances, Connected, Reservations, Tombstones int }

// Count counts the shard's objects.
func (s *State) Count() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := Counts{Groups: len(s.groups), Instances: len(s.instances), Tombstones: len(s.tombstones)}
	for _, inst := range s.instances {
		if inst.plan.Connected {
			counts.Connected++
		}
	}
	for _, have := range s.reserved {
		counts.Reservations += len(have)
	}
	return counts
}
