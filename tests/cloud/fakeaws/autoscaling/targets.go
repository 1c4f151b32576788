package autoscaling

import (
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

type targetsInput struct {
	AutoScalingGroupName string
	TargetGroupARNs      []string
}

func (s *Service) attachTargets(c *wire.Call) (any, error) { return s.changeTargets(c, true) }

func (s *Service) detachTargets(c *wire.Call) (any, error) { return s.changeTargets(c, false) }

// changeTargets adds target groups to a group or removes them, and so the members that are in service.
func (s *Service) changeTargets(c *wire.Call, add bool) (any, error) {
	var in targetsInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.group(in.AutoScalingGroupName)
	if err != nil {
		return nil, s.unknown(c, in.AutoScalingGroupName, err)
	}
	if err := s.allow(c, g, (&group{targets: in.TargetGroupARNs}).conditions()); err != nil {
		return nil, err
	}
	for _, arn := range in.TargetGroupARNs {
		known := s.cfg.Targets != nil && s.cfg.Targets.Exists(arn)
		if !add {
			known = slices.Contains(g.targets, arn)
		}
		if !known {
			return nil, invalid("Provided Target Groups may not be valid. Please ensure they exist and try again.")
		}
	}
	for _, arn := range in.TargetGroupARNs {
		g.targets = slices.DeleteFunc(g.targets, func(other string) bool { return other == arn })
		if add {
			g.targets = append(g.targets, arn)
		}
		for _, m := range g.members {
			if !add {
				s.deregister(m, arn)
			} else if m.state == inService {
				s.register(m, arn)
			}
		}
	}
	return struct{}{}, nil
}

func (s *Service) describeTargets(c *wire.Call) (any, error) {
	var in struct {
		AutoScalingGroupName string
		MaxRecords           *int
		NextToken            string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := allowAny(c); err != nil {
		return nil, err
	}
	g, err := s.group(in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	items, next, err := page(g.targets, in.MaxRecords, in.NextToken)
	if err != nil {
		return nil, err
	}
	type stateXML struct{ LoadBalancerTargetGroupARN, State string }
	var out struct {
		Groups    []stateXML `xml:"LoadBalancerTargetGroups>member"`
		NextToken string     `xml:",omitempty"`
	}
	for _, arn := range items {
		out.Groups = append(out.Groups, stateXML{arn, "Added"})
	}
	out.NextToken = next
	return out, nil
}
