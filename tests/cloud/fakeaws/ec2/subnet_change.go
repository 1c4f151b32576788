package ec2

import (
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func (s *Service) modifySubnetAttribute(c *wire.Call) (any, error) {
	var in struct {
		SubnetID                                string `query:"SubnetId"`
		AssignIpv6AddressOnCreation             *attribute
		EnableDns64                             *attribute
		EnableResourceNameDnsARecordOnLaunch    *attribute
		EnableResourceNameDnsAAAARecordOnLaunch *attribute
		MapPublicIpOnLaunch                     *attribute
		PrivateDnsHostnameTypeOnLaunch          *string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "ModifySubnetAttribute", in.SubnetID); err != nil {
		return nil, err
	}
	n, err := s.subnetByID(in.SubnetID)
	if err != nil {
		return nil, err
	}
	flags := []struct {
		given *attribute
		set   *bool
	}{
		{in.AssignIpv6AddressOnCreation, &n.assignIPv6}, {in.EnableDns64, &n.dns64},
		{in.EnableResourceNameDnsARecordOnLaunch, &n.nameA},
		{in.EnableResourceNameDnsAAAARecordOnLaunch, &n.nameAAAA}, {in.MapPublicIpOnLaunch, &n.mapPublic},
	}
	given := 0
	for _, f := range flags {
		if f.given == nil {
			continue
		}
		if f.given.Value == nil {
			return nil, missing("value")
		}
		given++
	}
	if in.PrivateDnsHostnameTypeOnLaunch != nil {
		given++
	}
	on := func(a *attribute) bool { return a != nil && *a.Value }
	switch {
	case given == 0:
		return nil, missing("attribute")
	case given > 1: // "You can only modify one attribute at a time."
		return nil, failf("InvalidParameterCombination", "Only one subnet attribute can be modified at a time")
	case len(n.blocks6) == 0 && (on(in.AssignIpv6AddressOnCreation) || on(in.EnableDns64) ||
		on(in.EnableResourceNameDnsAAAARecordOnLaunch)):
		return nil, failf("InvalidParameterValue", "Invalid value for the subnet '%s': it has no IPv6 CIDR block", n.id)
	case n.native && (on(in.MapPublicIpOnLaunch) || on(in.EnableResourceNameDnsARecordOnLaunch)):
		return nil, failf("InvalidParameterValue", "Invalid value for the IPv6-only subnet '%s'", n.id)
	case n.native && in.AssignIpv6AddressOnCreation != nil && !*in.AssignIpv6AddressOnCreation.Value:
		return nil,
			failf("InvalidParameterValue", "AssignIpv6AddressOnCreation cannot be off in the IPv6-only subnet '%s'",
				n.id)
	}
	if kind := in.PrivateDnsHostnameTypeOnLaunch; kind != nil {
		if *kind != "ip-name" && *kind != "resource-name" || n.native && *kind == "ip-name" {
			return nil, invalid("privateDnsHostnameTypeOnLaunch", *kind)
		}
		n.hostnameType = *kind
	}
	for _, f := range flags {
		if f.given != nil {
			*f.set = *f.given.Value
		}
	}
	return ok, nil
}
