package autoscaling

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// check refuses settings that contradict each other or name resources that do not exist. launches is true if the
// request sets the group's launch template. In that case, check also refuses a caller without permission to launch
// instances from the template.
func (s *Service) check(c *wire.Call, g *group, launches bool) error {
	switch {
	case *g.MinSize < 0 || *g.MaxSize < 0:
		return invalid("Min and max size must not be negative")
	case *g.MinSize > *g.MaxSize:
		return invalid("Max bound, %d, must be greater than or equal to min bound, %d", *g.MaxSize, *g.MinSize)
	case *g.DesiredCapacity < *g.MinSize || *g.DesiredCapacity > *g.MaxSize:
		return invalid("Desired capacity:%d must be between the specified min size:%d and max size:%d",
			*g.DesiredCapacity, *g.MinSize, *g.MaxSize)
	case g.LaunchTemplate == nil:
		return invalid("Valid requests must contain either LaunchTemplate, LaunchConfigurationName, InstanceId or " +
			"MixedInstancesPolicy parameter.")
	case *g.NewInstancesProtectedFromScaleIn:
		return invalid("fakeaws does not protect instances from scale in")
	case !slices.Equal(g.TerminationPolicies, []string{"Default"}):
		return invalid("fakeaws knows no termination policy but Default")
	}
	for kind := range strings.SplitSeq(*g.HealthCheckType, ",") {
		if !slices.Contains([]string{"EC2", "ELB"}, kind) {
			return invalid("Invalid health check type: %s", *g.HealthCheckType)
		}
	}
	if err := s.checkNetwork(g); err != nil {
		return err
	}
	for _, arn := range g.targets {
		if s.cfg.Targets == nil || !s.cfg.Targets.Exists(arn) {
			return invalid("Provided Target Groups may not be valid. Please ensure they exist and try again.")
		}
	}
	if launches {
		return s.checkTemplate(c, g)
	}
	return nil
}

// checkNetwork finds the group's subnets and sets the group's zones to the zones of the subnets.
func (s *Service) checkNetwork(g *group) error {
	subnets := g.subnets()
	if len(subnets) == 0 {
		if len(g.AvailabilityZones) == 0 {
			return invalid("At least one Availability Zone or VPC Subnet is required.")
		}
		return invalid("No default VPC for this user")
	}
	var zones []string
	for _, id := range subnets {
		zone, ok := s.cfg.EC2.SubnetZone(id)
		if !ok {
			return invalid("The subnet ID '%s' does not exist", id)
		}
		if !slices.Contains(zones, zone) {
			zones = append(zones, zone)
		}
	}
	slices.Sort(zones)
	g.AvailabilityZones = zones
	return nil
}

// checkTemplate finds the launch template and checks that the caller may launch it.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-launch-template-permissions.html
func (s *Service) checkTemplate(c *wire.Call, g *group) error {
	spec := g.LaunchTemplate
	t, err := s.cfg.EC2.Template(spec.ref())
	if err != nil {
		return invalid("Invalid launch template: %s", message(err))
	}
	// Answers contain both the ID and the name of the template.
	spec.LaunchTemplateId, spec.LaunchTemplateName = &t.ID, &t.Name
	launch := s.instanceLaunch(g)
	launch.Subnet = g.subnets()[0]
	err = s.cfg.EC2.CheckLaunch(c, launch)
	var e *wire.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e) && e.Status == http.StatusForbidden:
		return wire.Errorf(http.StatusForbidden, "AccessDenied",
			"You are not authorized to use launch template: %s (%s)", t.ID, e.Message)
	default:
		return invalid("You must use a valid fully-formed launch template. %s", message(err))
	}
}

func (t *templateSpec) ref() ec2.TemplateRef {
	id, name := value(t.LaunchTemplateId), value(t.LaunchTemplateName)
	if id != "" {
		name = ""
	}
	return ec2.TemplateRef{ID: id, Name: name, Version: value(t.Version)}
}

func message(err error) string {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}
