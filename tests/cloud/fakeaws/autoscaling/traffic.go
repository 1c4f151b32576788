package autoscaling

import (
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func (s *Service) trafficOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"AttachLoadBalancerTargetGroups":   s.attachTargetGroups,
		"DetachLoadBalancerTargetGroups":   s.detachTargetGroups,
		"DescribeLoadBalancerTargetGroups": s.describeTargetGroups,
		"DescribeLoadBalancers":            s.describeLoadBalancers,
		"AttachTrafficSources":             s.attachTrafficSources,
		"DetachTrafficSources":             s.detachTrafficSources,
		"DescribeTrafficSources":           s.describeTrafficSources,
	}
}

// attach adds target groups to a group and registers its members with them.
func (s *Service) attach(g *group, arns []string) error {
	for _, arn := range arns {
		if s.cfg.Targets == nil || !s.cfg.Targets.Exists(arn) {
			return invalid("Provided Target Groups may not be valid. Please ensure they exist and try again.")
		}
	}
	for _, arn := range arns {
		if slices.Contains(g.targets, arn) {
			continue
		}
		g.targets = append(g.targets, arn)
		for _, m := range g.members {
			if m.state == inService {
				s.register(m, arn)
			}
		}
	}
	return nil
}

// detach takes target groups away again.
func (s *Service) detach(g *group, arns []string) error {
	for _, arn := range arns {
		if !slices.Contains(g.targets, arn) {
			return invalid("The target group %s is not attached to the group", arn)
		}
	}
	g.targets = slices.DeleteFunc(slices.Clone(g.targets), func(arn string) bool { return slices.Contains(arns, arn) })
	for _, m := range g.members {
		for _, arn := range arns {
			s.deregister(m, arn)
		}
	}
	return nil
}

type targetsInput struct {
	AutoScalingGroupName string
	TargetGroupARNs      []string
}

func (s *Service) attachTargetGroups(c *wire.Call) (any, error) {
	var in targetsInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	return nil, s.attach(g, in.TargetGroupARNs)
}

func (s *Service) detachTargetGroups(c *wire.Call) (any, error) {
	var in targetsInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	return nil, s.detach(g, in.TargetGroupARNs)
}

type sourcesInput struct {
	AutoScalingGroupName     string
	TrafficSources           []trafficSource
	SkipZonalShiftValidation *bool
}

// arns are the target groups among traffic sources: nothing else is known here.
func (in sourcesInput) arns() ([]string, error) {
	var out []string
	for _, t := range in.TrafficSources {
		if t.Type != "" && t.Type != "elbv2" {
			return nil, invalid("The traffic source type '%s' is not supported by the fake", t.Type)
		}
		out = append(out, t.Identifier)
	}
	return out, nil
}

func (s *Service) attachTrafficSources(c *wire.Call) (any, error) {
	return s.changeSources(c, s.attach)
}

func (s *Service) detachTrafficSources(c *wire.Call) (any, error) {
	return s.changeSources(c, s.detach)
}

func (s *Service) changeSources(c *wire.Call, do func(*group, []string) error) (any, error) {
	var in sourcesInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	arns, err := in.arns()
	if err != nil {
		return nil, err
	}
	return nil, do(g, arns)
}

// stateOf is how a target group stands to a group.
func (s *Service) stateOf(g *group, arn string) string {
	for _, m := range g.members {
		if slices.Contains(m.registered, arn) && s.cfg.Targets.Health(arn, m.id) == "healthy" {
			return "InService"
		}
	}
	return "Added"
}

type describeTargetsInput struct {
	AutoScalingGroupName string
	MaxRecords           *int
	NextToken            string
	TrafficSourceType    string
}

// targetsOf reads a request to describe what is attached to a group.
func (s *Service) targetsOf(c *wire.Call) (*group, []string, string, error) {
	var in describeTargetsInput
	if err := c.Decode(&in); err != nil {
		return nil, nil, "", err
	}
	if err := allowAny(c); err != nil {
		return nil, nil, "", err
	}
	g, err := s.group(in.AutoScalingGroupName)
	if err != nil {
		return nil, nil, "", err
	}
	var all []string
	if in.TrafficSourceType == "" || in.TrafficSourceType == "elbv2" {
		all = g.targets
	}
	items, next, err := page(all, in.MaxRecords, in.NextToken)
	return g, items, next, err
}

func (s *Service) describeTargetGroups(c *wire.Call) (any, error) {
	g, items, next, err := s.targetsOf(c)
	if err != nil {
		return nil, err
	}
	type item struct{ LoadBalancerTargetGroupARN, State string }
	var out struct {
		Items     []item `xml:"LoadBalancerTargetGroups>member"`
		NextToken string `xml:",omitempty"`
	}
	for _, arn := range items {
		out.Items = append(out.Items, item{arn, s.stateOf(g, arn)})
	}
	out.NextToken = next
	return out, nil
}

func (s *Service) describeTrafficSources(c *wire.Call) (any, error) {
	g, items, next, err := s.targetsOf(c)
	if err != nil {
		return nil, err
	}
	type item struct{ Identifier, State, TrafficSource, Type string }
	var out struct {
		Items     []item `xml:"TrafficSources>member"`
		NextToken string `xml:",omitempty"`
	}
	for _, arn := range items {
		out.Items = append(out.Items, item{arn, s.stateOf(g, arn), arn, "elbv2"})
	}
	out.NextToken = next
	return out, nil
}

// describeLoadBalancers tells of Classic Load Balancers: there are none.
func (s *Service) describeLoadBalancers(c *wire.Call) (any, error) {
	var in describeTargetsInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := allowAny(c); err != nil {
		return nil, err
	}
	_, err := s.group(in.AutoScalingGroupName)
	return nil, err
}
