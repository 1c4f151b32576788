package autoscaling

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
)

// reconcile makes one pass over all groups. The caller holds the lock.
func (s *Service) reconcile() {
	for _, g := range s.sorted() {
		s.observe(g)
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

// observe updates the members from EC2. Running instances come into service, terminated ones leave the group, and
// unhealthy ones are terminated.
func (s *Service) observe(g *group) {
	for _, m := range slices.Clone(g.members) {
		view, known := s.cfg.EC2.Instance(m.id)
		switch {
		case !known || view.State == "terminated":
			s.forget(g, m)
		case m.state == terminatingWait:
			if s.released(m) {
				s.terminate(g, m)
			}
		case m.state == terminating:
		default:
			s.updateMember(g, m, view)
		}
	}
}

// updateMember updates the state of a member from the state of its instance. It does not change the state of a member
// that is being terminated.
func (s *Service) updateMember(g *group, m *member, view ec2.InstanceView) {
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
	if m.unhealthy && m.counts() {
		s.retire(g, m, "instance was taken out of service in response to "+
			cmp.Or(s.sickness(g, m, view), "a user health-check")+".")
	}
}

// serve brings a member into service.
func (s *Service) serve(g *group, m *member) {
	m.state, m.since = inService, s.now()
	s.cfg.EC2.SetLifecycle(m.id, inService)
	s.finish(m.activity, nil)
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

// sickness returns the reason why a member is unhealthy, worded like the cause in a scaling activity. It returns "" for
// a healthy member.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-health-checks.html
func (s *Service) sickness(g *group, m *member, view ec2.InstanceView) string {
	// An instance that does not run is unhealthy even in the grace period.
	if view.State != "running" && view.State != "pending" {
		return "an EC2 health check indicating it has been terminated or stopped"
	}
	if m.state != inService || s.inGrace(g, m) {
		return ""
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

// scale launches or terminates members until the counted members match the desired capacity.
func (s *Service) scale(g *group) {
	count := 0
	for _, m := range g.members {
		if m.counts() {
			count++
		}
	}
	want := *g.DesiredCapacity + g.surge()
	for ; count < want && !g.deleting && !s.now().Before(g.retryAt); count++ {
		if !s.launch(g, fmt.Sprintf("increasing the capacity from %d to %d.", count, want)) {
			break
		}
	}
	for ; count > want; count-- {
		m := s.victim(g)
		s.retire(g, m, fmt.Sprintf("shrinking the capacity from %d to %d. instance %s was selected for termination.",
			count, want, m.id))
	}
}

// instanceLaunch returns the parameters for the launch of one instance of the group, except the subnet.
func (s *Service) instanceLaunch(g *group) ec2.Launch {
	return ec2.Launch{Template: g.LaunchTemplate.ref(), By: "autoscaling.amazonaws.com", Tags: g.propagated(),
		State: inService}
}

// launch launches one member. If the launch fails in one subnet, it tries the next. If all subnets fail, the group
// waits for Config.Retry and launch returns false.
func (s *Service) launch(g *group, cause string) bool {
	stamp := s.now().UTC().Format(time.RFC3339)
	a := s.begin(g, "Launching a new EC2 instance",
		fmt.Sprintf("At %s an instance was started in response to a difference between desired and actual capacity, %s",
			stamp, cause))
	var failure error
	l := s.instanceLaunch(g)
	for _, subnet := range s.subnetsInOrder(g) {
		l.Subnet = subnet
		id, err := s.cfg.EC2.Launch(l)
		if err != nil {
			failure = cmp.Or(failure, err)
			continue
		}
		view, _ := s.cfg.EC2.Instance(id)
		template, err := s.cfg.EC2.Template(l.Template)
		if err != nil {
			panic(err) // the launch above found the template, under the same lock
		}
		a.Description = "Launching a new EC2 instance: " + id
		a.Details = fmt.Sprintf(`{"Subnet ID":%q,"Availability Zone":%q}`, subnet, view.Zone)
		g.members = append(g.members, &member{
			id: id, zone: view.Zone, image: view.Image, kind: view.Type, state: pending, launched: s.now(), activity: a,
			template: &templateSpec{LaunchTemplateId: &template.ID, LaunchTemplateName: &template.Name,
				Version: &template.Version},
		})
		return true
	}
	s.finish(a, failure)
	g.retryAt = s.now().Add(s.cfg.Retry)
	return false
}

// subnetsInOrder returns the group's subnets. Subnets whose zones have the fewest members come first.
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

// victim returns the member to terminate when there are too many. It applies the policy Default, whose criteria are, in
// this order: the zone with the most members, the oldest launch template, and the nearest end of an instance hour. The
// caller checks that there is a member.
//
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-termination-policies.html
func (s *Service) victim(g *group) *member {
	count := map[string]int{}
	for _, m := range g.members {
		if m.counts() {
			count[m.zone]++
		}
	}
	now := s.now()
	nextHour := func(m *member) time.Duration { return time.Hour - now.Sub(m.launched)%time.Hour }
	candidates := slices.DeleteFunc(slices.Clone(g.members), func(m *member) bool { return !m.counts() })
	return slices.MinFunc(candidates, func(a, b *member) int {
		return cmp.Or(
			count[b.zone]-count[a.zone],
			cmp.Compare(len(*a.template.Version), len(*b.template.Version)),
			cmp.Compare(*a.template.Version, *b.template.Version),
			cmp.Compare(nextHour(a), nextHour(b)))
	})
}

// retire begins the termination of a member.
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
		s.forget(g, m)
	}
}

// released reports whether a hook's wait is over. The hook's result does not matter: a terminating instance is
// terminated in any case.
func (s *Service) released(m *member) bool { return m.hook == nil || !s.now().Before(m.wait) }

// forget removes a member from its group.
func (s *Service) forget(g *group, m *member) {
	if m.counts() { // terminated by something other than the group
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
