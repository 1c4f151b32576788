package ec2

import (
	"maps"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// authorizeLaunch checks that the caller has every permission that a launch needs: RunInstances on each resource,
// CreateTags on each resource that is tagged during creation, and PassRole for the profile's role. A snapshot needs
// permission only if the launch names it. KMS keys are checked later, see mayEncrypt.
//
// https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html and
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ExamplePolicies_EC2.html#iam-example-runinstances
func (s *Service) authorizeLaunch(c *wire.Call, l *launch) error {
	if l.image == nil { // a repeated request; its resources may no longer exist and are then not checked
		if err := s.resolve(l); err != nil {
			return s.allowNew(c, "RunInstances", "instance", nil, nil)
		}
	}
	ask := func(id string, overridden bool) error {
		return s.allowLaunch(c, l, s.ARN(id), s.conditions(id), overridden)
	}
	network := l.subnet != "" || len(l.asked.NetworkInterface)+len(l.asked.SecurityGroupID) > 0
	if err := ask(l.image.id, l.asked.ImageID != nil); err != nil {
		return err
	}
	if l.templateID != "" {
		if err := ask(l.templateID, false); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	for _, p := range l.net {
		for _, id := range append([]string{p.subnet}, p.groups...) {
			if !seen[id] {
				if err := ask(id, network); err != nil {
					return err
				}
			}
			seen[id] = true
		}
		keys := policy.Context{
			"ec2:AvailabilityZone": {p.zone}, "ec2:Subnet": {s.arn("subnet", p.subnet)},
			"ec2:Vpc": {s.arn("vpc", p.vpc)},
		}
		if p.existing != nil {
			if err := ask(p.existing.id, network); err != nil {
				return err
			}
			continue
		}
		if p.spec.Public != nil {
			keys["ec2:AssociatePublicIpAddress"] = []string{strconv.FormatBool(*p.spec.Public)}
		}
		if err := s.allowMade(c, l, "network-interface", keys, network); err != nil {
			return err
		}
	}
	for _, d := range l.disks {
		if d.named {
			if err := s.allowLaunch(c, l, s.arn("snapshot", d.snapshot), policy.Context{"ec2:Region": {s.cfg.Region},
				"ec2:Owner": {s.snapshots[d.snapshot]}}, len(l.asked.BlockDeviceMapping) > 0); err != nil {
				return err
			}
		}
		if err := s.allowMade(c, l, "volume", d.context(l.net[0].zone),
			len(l.asked.BlockDeviceMapping) > 0); err != nil {
			return err
		}
	}
	if err := s.allowMade(c, l, "instance", l.context(), l.asked.InstanceType != nil); err != nil {
		return err
	}
	if err := s.allowSpotRole(c, l); err != nil {
		return err
	}
	// AWS checks the permission for the spot request only if the request is tagged during creation.
	if l.spot && len(l.tags["spot-instances-request"]) > 0 {
		if err := s.allowMade(c, l, "spot-instances-request", nil, l.asked.InstanceMarketOptions != nil); err != nil {
			return err
		}
	}
	for _, license := range l.data.LicenseSpecification {
		if err := s.allowLaunch(c, l, value(license.LicenseConfigurationARN), nil,
			len(l.asked.LicenseSpecification) > 0); err != nil {
			return err
		}
	}
	if target := l.data.reservation(); target != nil {
		arn := value(target.CapacityReservationResourceGroupARN)
		if target.CapacityReservationID != nil {
			arn = s.arn("capacity-reservation", *target.CapacityReservationID)
		}
		if err := s.allowLaunch(c, l, arn, nil, l.asked.CapacityReservationSpecification != nil); err != nil {
			return err
		}
	}
	if err := s.allowPlacement(c, l); err != nil {
		return err
	}
	return s.allowProfile(c, l)
}

// allowSpotRole checks that the caller may make the service-linked role of spot instances, if the account has none. The
// first launch of a spot instance makes it.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/service-linked-roles-spot-instance-requests.html
func (s *Service) allowSpotRole(c *wire.Call, l *launch) error {
	if !l.spot || s.spotRole {
		return nil
	}
	const service = "spot.amazonaws.com"
	if c.Authorize("iam:CreateServiceLinkedRole", "arn:aws:iam::"+s.cfg.Account+":role/aws-service-role/"+service+
		"/AWSServiceRoleForEC2Spot", policy.Context{"iam:AWSServiceName": {service}}) != nil {
		return failf("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "The provided credentials do not have "+
			"permission to create the service-linked role for EC2 Spot Instances.")
	}
	return nil
}

// allowPlacement checks that the caller may use the placement group or the group of hosts. AWS checks no permission for
// a dedicated host: policies can only test that the instance's tenancy is "host".
func (s *Service) allowPlacement(c *wire.Call, l *launch) error {
	p := l.data.Placement
	if p == nil {
		return nil
	}
	overridden := l.asked.Placement != nil
	if p.GroupName != nil {
		if err := s.allowLaunch(c, l, s.arn("placement-group", *p.GroupName), policy.Context{
			"ec2:Region": {s.cfg.Region}, "ec2:PlacementGroupName": {*p.GroupName}}, overridden); err != nil {
			return err
		}
	}
	if p.HostResourceGroupARN != nil {
		return s.allowLaunch(c, l, *p.HostResourceGroupARN, nil, overridden)
	}
	return nil
}

// allowMade checks that the caller may create a resource during the launch, and tag it.
func (s *Service) allowMade(c *wire.Call, l *launch, resourceType string, keys policy.Context, overridden bool) error {
	context := s.templateContext(l, overridden)
	maps.Copy(context, keys)
	return s.allowNew(c, "RunInstances", resourceType, l.tags[resourceType], context)
}

// allowLaunch checks that the caller may use an existing resource in a launch.
func (s *Service) allowLaunch(c *wire.Call, l *launch, arn string, context policy.Context, overridden bool) error {
	all := s.templateContext(l, overridden)
	maps.Copy(all, context)
	return c.Authorize("ec2:RunInstances", arn, all)
}

// templateContext returns the condition keys about the launch template. One key is the template's ARN. The other is
// true if a resource comes from the template and the request does not override it.
func (s *Service) templateContext(l *launch, overridden bool) policy.Context {
	c := policy.Context{"ec2:IsLaunchTemplateResource": {strconv.FormatBool(l.templateID != "" && !overridden)}}
	if l.templateID != "" {
		c["ec2:LaunchTemplate"] = []string{s.arn("launch-template", l.templateID)}
	}
	return c
}

// allowProfile checks that the caller may pass the role of the launch's instance profile to EC2.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_use_passrole.html
func (s *Service) allowProfile(c *wire.Call, l *launch) error {
	if l.profile == nil {
		return nil
	}
	return c.Authorize("iam:PassRole", l.profile.RoleARN, policy.Context{"iam:PassedToService": {"ec2.amazonaws.com"}})
}

// context returns the condition keys of an instance that is being launched.
func (l *launch) context() policy.Context {
	d := &l.data
	c := policy.Context{
		"ec2:InstanceType": {l.kind.name}, "ec2:AvailabilityZone": {l.net[0].zone}, "ec2:RootDeviceType": {"ebs"},
		"ec2:EbsOptimized": {boolText(d.EbsOptimized)},
		"ec2:Tenancy":      {d.Placement.tenancy()}, "ec2:InstanceMarketType": {"on-demand"},
	}
	if m := d.InstanceMarketOptions; m != nil {
		c["ec2:InstanceMarketType"] = []string{value(m.MarketType)}
	}
	if l.profile != nil {
		c["ec2:InstanceProfile"] = []string{l.profile.ARN}
	}
	maps.Copy(c, metadataContext(l.metadata()))
	return c
}

// metadataContext returns the condition keys of metadata options.
func metadataContext(m *metadataOptions) policy.Context {
	c := policy.Context{}
	if m == nil {
		return c
	}
	if m.HTTPEndpoint != nil {
		c["ec2:MetadataHttpEndpoint"] = []string{*m.HTTPEndpoint}
	}
	if m.HTTPTokens != nil {
		c["ec2:MetadataHttpTokens"] = []string{*m.HTTPTokens}
	}
	if m.HTTPPutResponseHopLimit != nil {
		c["ec2:MetadataHttpPutResponseHopLimit"] = []string{strconv.Itoa(int(*m.HTTPPutResponseHopLimit))}
	}
	return c
}
