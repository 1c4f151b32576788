package elbv2

import (
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// change finds a load balancer that the caller may do the call's action on.
func (s *Service) change(c *wire.Call, arn string, conditions policy.Context) (*balancer, error) {
	if err := s.allow(c, arn, conditions); err != nil {
		return nil, err
	}
	return s.balancer(arn)
}

func (s *Service) setSubnets(c *wire.Call) (any, error) {
	var in struct {
		LoadBalancerArn              string
		Subnets                      []string
		SubnetMappings               []SubnetMapping
		IpAddressType                string
		EnablePrefixForIpv6SourceNat string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	b, err := s.change(c, in.LoadBalancerArn, policy.Context{"elasticloadbalancing:Subnet": subnetIDs(in.Subnets,
		in.SubnetMappings)})
	if err != nil {
		return nil, err
	}
	zones, vpc, err := s.place(b, in.Subnets, in.SubnetMappings)
	if err != nil {
		return nil, err
	}
	if vpc != b.vpc {
		return nil,
			wire.Errorf(400, "InvalidConfigurationRequest",
				"The subnets must belong to the VPC of the load balancer, '%s'", b.vpc)
	}
	addresses := b.addresses
	if in.IpAddressType != "" {
		addresses = in.IpAddressType
	}
	if err := s.checkAddresses(b, zones, addresses); err != nil {
		return nil, err
	}
	if err := s.plug(b, zones); err != nil {
		return nil, err
	}
	b.addresses = addresses
	if in.EnablePrefixForIpv6SourceNat != "" {
		b.sourceNAT = in.EnablePrefixForIpv6SourceNat
	}
	return struct {
		AvailabilityZones []availabilityZone `xml:"AvailabilityZones>member"`
		IpAddressType     string
	}{zonesAnswer(b), b.addresses}, nil
}

func (s *Service) setSecurityGroups(c *wire.Call) (any, error) {
	var in struct {
		LoadBalancerArn                                      string
		SecurityGroups                                       []string
		EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	b, err := s.change(c, in.LoadBalancerArn, policy.Context{"elasticloadbalancing:SecurityGroup": in.SecurityGroups})
	if err != nil {
		return nil, err
	}
	switch {
	case len(in.SecurityGroups) == 0 && b.kind == typeApplication:
		return nil, invalid("At least one security group must be specified")
	case b.kind == typeNetwork && (len(in.SecurityGroups) == 0) != (len(b.securityGroup) == 0):
		// "You can't perform this operation on a Network Load Balancer unless you specified a security group when you
		// created it", and not remove the last.
		return nil, wire.Errorf(400, "InvalidConfigurationRequest",
			"You cannot add security groups to a load balancer that was created without any, nor remove them all")
	}
	if err := s.checkSecurityGroups(b.vpc, in.SecurityGroups); err != nil {
		return nil, err
	}
	if v := in.EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic; v != "" {
		if b.kind != typeNetwork || v != "on" && v != "off" {
			return nil,
				invalid(
					"EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic '%s' must be on or off, for a network "+
						"load balancer", v)
		}
		b.inbound = v
	}
	b.securityGroup = in.SecurityGroups
	for _, z := range b.zones {
		s.cfg.Network.SetInterfaceGroups(z.eni, b.securityGroup)
	}
	return struct {
		SecurityGroupIds []string `xml:"SecurityGroupIds>member"`
		Inbound          string   `xml:"EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic,omitempty"`
	}{slices.Clone(b.securityGroup), b.inbound}, nil
}

func (s *Service) setIPAddressType(c *wire.Call) (any, error) {
	var in struct{ LoadBalancerArn, IpAddressType string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	b, err := s.change(c, in.LoadBalancerArn, nil)
	if err != nil {
		return nil, err
	}
	if err := s.checkAddresses(b, b.zones, in.IpAddressType); err != nil {
		return nil, err
	}
	b.addresses = in.IpAddressType
	return struct{ IpAddressType string }{b.addresses}, nil
}

// capacityAnswer tells of reserved capacity units.
type capacityAnswer struct {
	LastModifiedTime            *wire.Time     `xml:",omitempty"`
	DecreaseRequestsRemaining   int            // a day
	MinimumLoadBalancerCapacity *capacity      `xml:",omitempty"`
	CapacityReservationState    []zoneCapacity `xml:"CapacityReservationState>member"`
}

type capacity struct{ CapacityUnits int }

type zoneCapacity struct {
	AvailabilityZone       string
	EffectiveCapacityUnits float64
	State                  struct{ Code string }
}

func describeCapacity(b *balancer) capacityAnswer {
	out := capacityAnswer{DecreaseRequestsRemaining: 2}
	if b.capacity == 0 {
		return out
	}
	out.LastModifiedTime, out.MinimumLoadBalancerCapacity = &wire.Time{Time: b.reserved}, &capacity{b.capacity}
	for _, z := range b.zones {
		zone := zoneCapacity{AvailabilityZone: z.zone, EffectiveCapacityUnits: float64(b.capacity) / float64(
			len(b.zones))}
		zone.State.Code = "provisioned"
		out.CapacityReservationState = append(out.CapacityReservationState, zone)
	}
	return out
}

func (s *Service) describeCapacityReservation(c *wire.Call) (any, error) {
	var in struct{ LoadBalancerArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "*", nil); err != nil {
		return nil, err
	}
	b, err := s.balancer(in.LoadBalancerArn)
	if err != nil {
		return nil, err
	}
	return describeCapacity(b), nil
}

func (s *Service) modifyCapacityReservation(c *wire.Call) (any, error) {
	var in struct {
		LoadBalancerArn             string
		MinimumLoadBalancerCapacity *capacity
		ResetCapacityReservation    bool
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	b, err := s.change(c, in.LoadBalancerArn, nil)
	if err != nil {
		return nil, err
	}
	if in.ResetCapacityReservation == (in.MinimumLoadBalancerCapacity != nil) {
		return nil, invalid("Either a minimum capacity or its reset must be specified")
	}
	units := 0
	if in.MinimumLoadBalancerCapacity != nil {
		if units = in.MinimumLoadBalancerCapacity.CapacityUnits; units < 1 {
			return nil, wire.Errorf(400, "InvalidConfigurationRequest", "The capacity units must be a positive number")
		}
	}
	b.capacity, b.reserved = units, c.Now
	return describeCapacity(b), nil
}
