package autoscaling

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// terminationPolicies are those that AWS knows.
var terminationPolicies = []string{
	"AllocationStrategy", "ClosestToNextInstanceHour", "Default", "NewestInstance", "OldestInstance",
	"OldestLaunchConfiguration", "OldestLaunchTemplate",
}

// check refuses settings that do not fit together or name what is not there. launches: the caller chose what is
// launched, so he must be one who may.
func (s *Service) check(c *wire.Call, g *group, launches bool) error {
	switch {
	case *g.MinSize < 0 || *g.MaxSize < 0:
		return invalid("Min and max size must not be negative")
	case *g.MinSize > *g.MaxSize:
		return invalid("Max bound, %d, must be greater than or equal to min bound, %d", *g.MaxSize, *g.MinSize)
	case *g.DesiredCapacity < *g.MinSize || *g.DesiredCapacity > *g.MaxSize:
		return invalid("Desired capacity:%d must be between the specified min size:%d and max size:%d",
			*g.DesiredCapacity, *g.MinSize, *g.MaxSize)
	case (g.LaunchTemplate == nil) == (g.MixedInstancesPolicy == nil):
		return invalid(
			"Valid requests must contain either LaunchTemplate, LaunchConfigurationName, InstanceId or " +
				"MixedInstancesPolicy parameter.")
	case g.template() == nil:
		return invalid("You must specify a launch template in the mixed instances policy.")
	case g.DesiredCapacityType != nil && *g.DesiredCapacityType != "units":
		return invalid("DesiredCapacityType %s needs attribute-based instance type selection", *g.DesiredCapacityType)
	}
	for kind := range strings.SplitSeq(*g.HealthCheckType, ",") {
		if !slices.Contains([]string{"EC2", "ELB", "EBS", "VPC_LATTICE"}, kind) {
			return invalid("Invalid health check type: %s", *g.HealthCheckType)
		}
	}
	for _, p := range g.TerminationPolicies {
		if !slices.Contains(terminationPolicies, p) {
			return invalid("Invalid termination policy: %s", p)
		}
	}
	if l := value(g.MaxInstanceLifetime); l != 0 && (l < 86400 || l > 31536000) {
		return invalid("Max instance lifetime must be 0 or between 86400 and 31536000 seconds")
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

// checkNetwork finds the subnets and, from them, the zones.
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

// checkTemplate finds the launch template and asks whether the caller might launch it.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-launch-template-permissions.html
func (s *Service) checkTemplate(c *wire.Call, g *group) error {
	specs := []*templateSpec{g.template()}
	if g.MixedInstancesPolicy != nil {
		for _, o := range g.MixedInstancesPolicy.LaunchTemplate.Overrides {
			if o.LaunchTemplateSpecification != nil {
				specs = append(specs, o.LaunchTemplateSpecification)
			}
		}
	}
	for _, spec := range specs {
		t, err := s.cfg.EC2.Template(spec.ref())
		if err != nil {
			return invalid("Invalid launch template: %s", message(err))
		}
		// Answers name both.
		spec.LaunchTemplateId, spec.LaunchTemplateName = &t.ID, &t.Name
	}
	for _, l := range s.launches(g) {
		l.Subnet = g.subnets()[0]
		err := s.cfg.EC2.CheckLaunch(c, l)
		var e *wire.Error
		switch {
		case err == nil:
		case errors.As(err, &e) && e.Status == http.StatusForbidden:
			return wire.Errorf(http.StatusForbidden, "AccessDenied",
				"You are not authorized to use launch template: %s (%s)", value(g.template().LaunchTemplateId),
				e.Message)
		default:
			return invalid("You must use a valid fully-formed launch template. %s", message(err))
		}
	}
	return nil
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
