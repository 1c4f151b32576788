package autoscaling

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
)

// reconcile looks at every group once, with the lock held.
func (s *Service) reconcile() {
	for _, g := range s.sorted() {
		s.observe(g)
		s.rebalance(g)
		s.advance(g)
		s.scale(g)
		if g.deleting && len(g.members) == 0 {
			delete(s.groups, g.name)
			for _, a := range s.activities {
				if a.GroupARN == s.arn(g, "") {
					a.GroupState = "Deleted"
				}
			}
		}
	}
}

// observe moves members on: those that run come into service, those that are gone leave, sick ones are taken out.
func (s *Service) observe(g *group) {
	for _, m := range slices.Clone(g.members) {
		view, known := s.cfg.EC2.Instance(m.id)
		switch {
		case !known || view.State == "terminated":
			s.gone(g, m)
		case m.state == terminatingWait:
			if s.released(m) {
				s.terminate(g, m)
			}
		case m.state == terminating:
		default:
			s.look(g, m, view)
		}
	}
}

// look is observe for a member that is not on its way out.
func (s *Service) look(g *group, m *member, view ec2.InstanceView) {
	if m.state == pending && view.State == "running" {
		if h := g.hookFor(launching); h != nil && m.hook == nil {
			m.state, m.hook, m.wait = pendingWait, h, s.now().Add(h.timeout())
		} else {
			s.serve(g, m)
		}
	}
	if m.state == pendingWait {
		switch {
		case m.hook == nil: // completed with CONTINUE
			s.serve(g, m)
		case s.now().Before(m.wait):
		case m.hook.DefaultResult == "CONTINUE":
			m.hook = nil
			s.serve(g, m)
		default:
			s.retire(g, m, "instance was terminated because its lifecycle action was abandoned.")
			return
		}
	}
	if why := s.sickness(g, m, view); why != "" {
		m.unhealthy = true
	}
	if _, suspended := g.suspended["ReplaceUnhealthy"]; m.unhealthy && !suspended && m.counts() {
		s.retire(g, m, "instance was taken out of service in response to "+
			cmp.Or(s.sickness(g, m, view), "a user health-check")+".")
		return
	}
	if l := value(g.MaxInstanceLifetime); l > 0 && m.state == inService &&
		s.now().Sub(m.launched) >= time.Duration(l)*time.Second {
		s.retire(g, m, "instance was taken out of service because it exceeded the maximum instance lifetime.")
	}
}

// serve brings a member into service.
func (s *Service) serve(g *group, m *member) {
	m.state, m.since = inService, s.now()
	s.cfg.EC2.SetLifecycle(m.id, inService)
	s.finish(m.activity, nil)
	if _, suspended := g.suspended["AddToLoadBalancer"]; suspended {
		return
	}
	for _, arn := range g.targets {
		s.register(m, arn)
	}
}

func (s *Service) register(m *member, arn string) {
	if s.cfg.Targets == nil || slices.Contains(m.registered, arn) {
		return
	}
	if err := s.cfg.Targets.Register(arn, m.id); err != nil {
		s.cfg.Log.Error("target not registered", "instance_id", m.id, "target_group", arn, "error", err)
		return
	}
	m.registered = append(m.registered, arn)
}

func (s *Service) deregister(m *member, arn string) {
	if i := slices.Index(m.registered, arn); i >= 0 {
		s.cfg.Targets.Deregister(arn, m.id)
		m.registered = slices.Delete(m.registered, i, i+1)
	}
}

func (s *Service) inGrace(g *group, m *member) bool {
	return m.since.IsZero() || s.now().Sub(m.since) < time.Duration(*g.HealthCheckGracePeriod)*time.Second
}

// sickness says in the words of a scaling activity's cause what is wrong with a member, "" for nothing.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-health-checks.html
func (s *Service) sickness(g *group, m *member, view ec2.InstanceView) string {
	if _, suspended := g.suspended["HealthCheck"]; suspended {
		return ""
	}
	// That an instance does not run is seen in the grace period too.
	if view.State != "running" && view.State != "pending" {
		return "an EC2 health check indicating it has been terminated or stopped"
	}
	if m.state != inService || s.inGrace(g, m) {
		return ""
	}
	if view.Impaired {
		return "an EC2 instance status checks failure"
	}
	if !strings.Contains(*g.HealthCheckType, "ELB") || s.cfg.Targets == nil {
		return ""
	}
	for _, arn := range m.registered {
		if s.cfg.Targets.Health(arn, m.id) == "unhealthy" {
			return "an ELB system health check failure"
		}
	}
	return ""
}

// rebalance replaces spot instances that are about to be interrupted, before they are.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-capacity-rebalancing.html
func (s *Service) rebalance(g *group) {
	if !value(g.CapacityRebalance) {
		return
	}
	for _, m := range slices.Clone(g.members) {
		view, known := s.cfg.EC2.Instance(m.id)
		if !known || m.state != inService || view.Rebalance.IsZero() {
			continue
		}
		if !m.replaced {
			m.replaced = true
			continue
		}
		// The doomed one goes when as many others as it takes are in service.
		healthy := 0
		for _, other := range g.members {
			if other.state == inService && !other.replaced {
				healthy++
			}
		}
		if healthy >= *g.DesiredCapacity {
			s.retire(g, m, "instance was taken out of service in response to an EC2 instance rebalance recommendation.")
		}
	}
}

// scale launches or ends members until as many count as are desired.
func (s *Service) scale(g *group) {
	count := 0
	for _, m := range g.members {
		if m.counts() && !m.replaced {
			count++
		}
	}
	want := *g.DesiredCapacity + g.surge()
	if _, suspended := g.suspended["Launch"]; !suspended && !g.deleting {
		for ; count < want && !s.now().Before(g.retryAt); count++ {
			if !s.launch(g, fmt.Sprintf("increasing the capacity from %d to %d.", count, want)) {
				break
			}
		}
	}
	if _, suspended := g.suspended["Terminate"]; suspended {
		return
	}
	for ; count > want; count-- {
		m := s.victim(g)
		if m == nil {
			return
		}
		s.retire(g, m, fmt.Sprintf("shrinking the capacity from %d to %d. instance %s was selected for termination.",
			count, want, m.id))
	}
}

// launches are what a group may launch: one for each of its overrides, in their order, on demand and then spot as the
// policy says.
func (s *Service) launches(g *group) []ec2.Launch {
	base := ec2.Launch{Template: g.template().ref(), By: "autoscaling.amazonaws.com", Tags: g.propagated(),
		State: inService}
	m := g.MixedInstancesPolicy
	if m == nil {
		return []ec2.Launch{base}
	}
	spot := s.nextIsSpot(g)
	base.Spot, base.MaxPrice = &spot, value(m.InstancesDistribution.SpotMaxPrice)
	if len(m.LaunchTemplate.Overrides) == 0 {
		return []ec2.Launch{base}
	}
	var all []ec2.Launch
	for _, o := range m.LaunchTemplate.Overrides {
		l := base
		l.Type, l.Image = value(o.InstanceType), value(o.ImageId)
		if o.LaunchTemplateSpecification != nil {
			l.Template = o.LaunchTemplateSpecification.ref()
		}
		all = append(all, l)
	}
	return all
}

// nextIsSpot tells whether the next instance of a mixed group is a spot instance, from how many of each kind there are.
func (s *Service) nextIsSpot(g *group) bool {
	d := g.MixedInstancesPolicy.InstancesDistribution
	onDemand, total := 0, 0
	for _, m := range g.members {
		if view, known := s.cfg.EC2.Instance(m.id); known && m.counts() {
			total++
			if !view.Spot {
				onDemand++
			}
		}
	}
	above := max(0, total+1-*d.OnDemandBaseCapacity)
	wanted := min(total+1, *d.OnDemandBaseCapacity) + (above**d.OnDemandPercentageAboveBaseCapacity+99)/100
	return onDemand >= wanted
}

// launch launches one member. What fails in one zone or type is tried in the next; when all fail, the group waits.
func (s *Service) launch(g *group, cause string) bool {
	stamp := s.now().UTC().Format(time.RFC3339)
	a := s.begin(g, "Launching a new EC2 instance",
		fmt.Sprintf("At %s an instance was started in response to a difference between desired and actual capacity, %s",
			stamp, cause))
	var failure error
	for _, subnet := range s.subnetsInOrder(g) {
		for _, l := range s.launches(g) {
			l.Subnet = subnet
			id, err := s.cfg.EC2.Launch(l)
			if err != nil {
				failure = cmp.Or(failure, err)
				continue
			}
			view, _ := s.cfg.EC2.Instance(id)
			template, err := s.cfg.EC2.Template(l.Template)
			if err != nil { // it was found a moment ago, with the lock held
				panic(err)
			}
			a.Description = "Launching a new EC2 instance: " + id
			a.Details = fmt.Sprintf(`{"Subnet ID":%q,"Availability Zone":%q}`, subnet, view.Zone)
			g.members = append(g.members, &member{
				id: id, zone: view.Zone, image: view.Image, kind: view.Type, state: pending,
				protected: *g.NewInstancesProtectedFromScaleIn, launched: s.now(), activity: a,
				template: &templateSpec{LaunchTemplateId: &template.ID, LaunchTemplateName: &template.Name,
					Version: &template.Version},
			})
			return true
		}
	}
	s.finish(a, failure)
	g.retryAt = s.now().Add(s.cfg.Retry)
	return false
}

// subnetsInOrder are the group's subnets, those of the zone with the fewest members first.
func (s *Service) subnetsInOrder(g *group) []string {
	count := map[string]int{}
	for _, m := range g.members {
		if m.counts() {
			count[m.zone]++
		}
	}
	subnets := g.subnets()
	zone := func(subnet string) string {
		z, _ := s.cfg.EC2.SubnetZone(subnet)
		return z
	}
	slices.SortStableFunc(subnets, func(a, b string) int { return count[zone(a)] - count[zone(b)] })
	return subnets
}

// victim is the member that goes when there are too many: of the zone with the most members, by the termination policies. nil: all are protected.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-termination-policies.html
func (s *Service) victim(g *group) *member {
	count := map[string]int{}
	for _, m := range g.members {
		if m.counts() {
			count[m.zone]++
		}
	}
	var candidates []*member
	for _, m := range g.members {
		if m.counts() && (!m.protected || g.deleting) {
			candidates = append(candidates, m)
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	largest := 0
	for _, m := range candidates {
		largest = max(largest, count[m.zone])
	}
	candidates = slices.DeleteFunc(candidates, func(m *member) bool { return count[m.zone] < largest })
	for _, policy := range g.TerminationPolicies {
		candidates = s.narrow(g, candidates, policy)
	}
	return candidates[rand.IntN(
		len(candidates))] //nolint:gosec // AWS leaves the choice open here; nothing secret hangs on it
}

// narrow keeps those of the candidates that a termination policy would end first.
func (s *Service) narrow(g *group, candidates []*member, policy string) []*member {
	least := func(less func(a, b *member) int) []*member {
		first := slices.MinFunc(candidates, less)
		return slices.DeleteFunc(slices.Clone(candidates), func(m *member) bool { return less(m, first) != 0 })
	}
	oldestTemplate := func(a, b *member) int {
		// One of another template than the group's goes before all of the group's own.
		own := func(m *member) int {
			if *m.template.LaunchTemplateId == value(g.template().LaunchTemplateId) {
				return 1
			}
			return 0
		}
		return cmp.Or(own(a)-own(b), cmp.Compare(len(*a.template.Version), len(*b.template.Version)),
			cmp.Compare(*a.template.Version, *b.template.Version))
	}
	now := s.now() // once: compared with itself at two moments a member would differ
	hour := func(m *member) time.Duration { return time.Hour - now.Sub(m.launched)%time.Hour }
	switch policy {
	case "OldestInstance":
		return least(func(a, b *member) int { return a.launched.Compare(b.launched) })
	case "NewestInstance":
		return least(func(a, b *member) int { return b.launched.Compare(a.launched) })
	case "OldestLaunchTemplate":
		return least(oldestTemplate)
	case "ClosestToNextInstanceHour":
		return least(func(a, b *member) int { return cmp.Compare(hour(a), hour(b)) })
	case "Default":
		candidates = least(oldestTemplate)
		return least(func(a, b *member) int { return cmp.Compare(hour(a), hour(b)) })
	}
	return candidates
}

// retire begins the end of a member.
func (s *Service) retire(g *group, m *member, cause string) {
	s.finish(m.activity, nil)
	m.activity = s.begin(g, "Terminating EC2 instance: "+m.id, fmt.Sprintf("At %s an %s",
		s.now().UTC().Format(time.RFC3339), strings.TrimPrefix(cause, "an ")))
	for _, arn := range slices.Clone(m.registered) {
		s.deregister(m, arn)
	}
	s.cfg.EC2.SetLifecycle(m.id, "Terminated")
	view, known := s.cfg.EC2.Instance(m.id)
	if h := g.hookFor(ending); h != nil && known && view.State == "running" {
		m.state, m.hook, m.wait = terminatingWait, h, s.now().Add(h.timeout())
		return
	}
	s.terminate(g, m)
}

func (s *Service) terminate(g *group, m *member) {
	m.state, m.hook = terminating, nil
	s.cfg.EC2.Terminate(m.id)
	if view, known := s.cfg.EC2.Instance(m.id); !known || view.State == "terminated" {
		s.gone(g, m)
	}
}

// released tells whether a hook's wait is over, either way: an instance that is to end ends.
func (s *Service) released(m *member) bool { return m.hook == nil || !s.now().Before(m.wait) }

// gone takes a member out of its group.
func (s *Service) gone(g *group, m *member) {
	if m.counts() { // it ended behind the group's back
		s.retire(g, m,
			"instance was taken out of service in response to an EC2 health check indicating it has been terminated "+
				"or stopped.")
		return
	}
	for _, arn := range slices.Clone(m.registered) {
		s.deregister(m, arn)
	}
	s.finish(m.activity, nil)
	g.members = slices.DeleteFunc(g.members, func(other *member) bool { return other == m })
}
