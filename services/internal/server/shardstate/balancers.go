package shardstate

import (
	"maps"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// Member is an instance that is registered with load balancers. The leader asks these load balancers about the
// instance's health.
type Member struct {
	Group     config.GroupKey
	VM        infra.VM
	Balancers []string
}

// Members returns the instances that are registered with their group's load balancers, for groups with
// load_balancer_health. Their VMs have a ProviderID and an instance tag. Other fields may be missing.
func (s *State) Members() (members []Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		for _, inst := range g.instances {
			if g.LoadBalancerHealth && inst.plan.InLoadBalancers && inst.plan.ProviderID != "" {
				vm := inst.vm
				vm.ProviderID, vm.Tags.Instance = inst.plan.ProviderID, inst.plan.ID
				members = append(members, Member{g.GroupKey, vm, g.LoadBalancers})
			}
		}
	}
	return members
}

// SetVerdicts records the verdicts of load balancers in one round of questions, which started at the time `asked`. It
// ignores a verdict if the leader has registered the instance with its load balancers after that time: the verdict may
// come from other load balancers. All verdicts of a round are recorded in one step, so that no plan uses only a part of
// them.
func (s *State) SetVerdicts(verdicts map[ident.ID]plan.BalancerVerdict, asked time.Time) {
	now := s.opts.Now()
	var events []InstanceEvent
	changed := false
	s.mu.Lock()
	for _, id := range slices.SortedFunc(maps.Keys(verdicts), ident.ID.Compare) {
		inst := s.instances[id]
		if inst == nil || !inst.group.LoadBalancerHealth || !inst.plan.InLoadBalancers ||
			inst.plan.BalancedAt.After(asked) {
			continue // its group or its load balancers were changed meanwhile
		}
		next, failed := plan.ApplyBalancerVerdict(inst.plan, verdicts[id],
			plan.StartGrace(s.settings, &inst.group.Group), now)
		if next == inst.plan {
			continue
		}
		inst.plan, changed = next, true
		s.touch(inst.group)
		if failed {
			events = append(events, s.event(inst, EventUnhealthy, unhealthyReason(&inst.plan, &inst.report)))
		}
	}
	s.mu.Unlock()
	if changed {
		s.opts.Wake()
	}
	s.emit(events)
}
