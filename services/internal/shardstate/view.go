package shardstate

import (
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/plan"
)

// InstanceView is everything that is known of one instance, for showing.
type InstanceView struct {
	Record   record.Instance
	Plan     plan.Instance
	VM       infra.VM
	Report   Report
	Settings plan.Settings
	// InfraDrift: made from another infra configuration than the group's. RuntimeDrift: files not those of the group's.
	InfraDrift, RuntimeDrift bool
}

// GroupView is everything that is known of one group, for showing. Actual counts managed instances that are not on
// their way out; Healthy those of them that report healthy.
type GroupView struct {
	config.Group
	Actual, Healthy int
	ProviderIDs     []string
	Instances       []ident.ID
	Blocked         string
	Backoff         plan.Backoff
}

// Instance returns one instance, deleted ones included for as long as they are remembered.
func (w *State) Instance(id ident.ID) (InstanceView, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if inst := w.instances[id]; inst != nil {
		return w.view(inst), true
	}
	if t, ok := w.tombstones[id]; ok {
		return InstanceView{Record: t.record, Settings: w.settings}, true
	}
	return InstanceView{}, false
}

// Instances returns a tenant's live instances, of one group or (group "") of all, sorted by ID.
func (w *State) Instances(tenant, group string) []InstanceView {
	w.mu.Lock()
	defer w.mu.Unlock()
	var views []InstanceView
	for key, g := range w.groups {
		if key.Tenant != tenant || group != "" && key.Group != group {
			continue
		}
		for _, inst := range g.instances {
			views = append(views, w.view(inst))
		}
	}
	slices.SortFunc(views, func(a, b InstanceView) int { return a.Record.ID.Compare(b.Record.ID) })
	return views
}

func (w *State) view(inst *instance) InstanceView {
	g := inst.group
	v := InstanceView{Record: inst.record, Plan: inst.plan, VM: inst.vm, Report: inst.report, Settings: w.settings}
	v.InfraDrift = g.InfraHash != "" && inst.record.InfraHash != g.InfraHash
	v.RuntimeDrift = g.RuntimeHash != "" && !inst.plan.LastReport.IsZero() && inst.plan.RuntimeHash != g.RuntimeHash
	return v
}

// GroupView returns one group.
func (w *State) GroupView(key config.GroupKey) (GroupView, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.groups[key]
	if g == nil {
		return GroupView{}, false
	}
	return w.groupView(g), true
}

// GroupViews returns a tenant's groups, sorted by name.
func (w *State) GroupViews(tenant string) []GroupView {
	w.mu.Lock()
	defer w.mu.Unlock()
	var views []GroupView
	for key, g := range w.groups {
		if key.Tenant == tenant {
			views = append(views, w.groupView(g))
		}
	}
	slices.SortFunc(views, func(a, b GroupView) int { return compareKeys(a.GroupKey, b.GroupKey) })
	return views
}

func (w *State) groupView(g *group) GroupView {
	v := GroupView{Group: g.Group, Blocked: g.blocked, Backoff: g.backoff}
	now := w.opts.Now()
	for _, inst := range g.instances {
		p := &inst.plan
		v.Instances = append(v.Instances, p.ID)
		if p.OnDemand || !plan.Counts(p) {
			continue
		}
		v.Actual++
		if p.ProviderID != "" {
			v.ProviderIDs = append(v.ProviderIDs, p.ProviderID)
		}
		if p.Healthy && now.Sub(p.LastReport) < 3*w.settings.HealthInterval {
			v.Healthy++
		}
	}
	return v
}

// Settings returns the shard-wide settings in force.
func (w *State) Settings() plan.Settings {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.settings
}

// DrainTimeout returns how long the nodes of a group's instances have to drain.
func (w *State) DrainTimeout(key config.GroupKey) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if g := w.groups[key]; g != nil {
		return g.DrainTimeout.D()
	}
	return w.defaults.drain
}

// Numbers counts what the shard has, for metrics.
func (w *State) Numbers() (groups, instances, connected, reserved, tombstones int, silenceFrom time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, inst := range w.instances {
		if inst.plan.Connected {
			connected++
		}
	}
	for _, have := range w.reserved {
		reserved += len(have)
	}
	return len(w.groups), len(w.instances), connected, reserved, len(w.tombstones), w.silenceFrom
}
