package ec2

import (
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func (s *Service) modifyEndpoint(c *wire.Call) (any, error) {
	var in struct {
		VpcEndpointID         string `query:"VpcEndpointId"`
		PolicyDocument        string
		ResetPolicy           bool
		AddRouteTableID       []string `query:"AddRouteTableId"`
		RemoveRouteTableID    []string `query:"RemoveRouteTableId"`
		AddSubnetID           []string `query:"AddSubnetId"`
		RemoveSubnetID        []string `query:"RemoveSubnetId"`
		AddSecurityGroupID    []string `query:"AddSecurityGroupId"`
		RemoveSecurityGroupID []string `query:"RemoveSecurityGroupId"`
		SubnetConfiguration   []endpointSubnet
		PrivateDNSEnabled     *bool     `query:"PrivateDnsEnabled"`
		IPAddressType         string    `query:"IpAddressType"`
		DNSOptions            *dnsInput `query:"DnsOptions"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	touched := slices.Concat([]string{in.VpcEndpointID}, in.AddRouteTableID, in.RemoveRouteTableID, in.AddSubnetID,
		in.RemoveSubnetID, in.AddSecurityGroupID,
		in.RemoveSecurityGroupID)
	if err := s.allow(c, "ModifyVpcEndpoint", touched...); err != nil {
		return nil, err
	}
	e, err := s.endpointByID(in.VpcEndpointID)
	if err != nil {
		return nil, err
	}
	after := *e // changed first, and put in place when all is well
	after.policy = e.policy
	if in.ResetPolicy {
		after.policy = fullAccess
	} else if in.PolicyDocument != "" {
		if after.policy, err = endpointPolicy(in.PolicyDocument); err != nil {
			return nil, err
		}
	}
	if err := after.setDNS(in.DNSOptions); err != nil {
		return nil, err
	}
	network := len(in.AddSubnetID)+len(in.RemoveSubnetID)+len(in.AddSecurityGroupID)+len(in.RemoveSecurityGroupID)+
		len(in.SubnetConfiguration) > 0
	if e.kind == "Gateway" {
		if network || in.PrivateDNSEnabled != nil && *in.PrivateDNSEnabled {
			return nil,
				failf("InvalidParameter",
					"Modifying subnets, security groups and private DNS is not supported for Gateway Endpoints.")
		}
		after.tables = slices.DeleteFunc(slices.Clone(e.tables), func(id string) bool {
			return slices.Contains(in.RemoveRouteTableID, id)
		})
		if err := s.addTables(&after, in.AddRouteTableID); err != nil {
			return nil, err
		}
		*e = after
		return ok, nil
	}
	if len(in.AddRouteTableID)+len(in.RemoveRouteTableID) > 0 {
		return nil, failf("InvalidParameter", "RouteTableIds are not supported for Interface Endpoints.")
	}
	if in.IPAddressType != "" && in.IPAddressType != e.addressType {
		return nil, failf("UnsupportedOperation", "The fake does not change the IP address type of an endpoint")
	}
	if in.PrivateDNSEnabled != nil {
		after.privateDNS = *in.PrivateDNSEnabled
		if err := s.checkPrivateDNS(&after, s.vpcs[e.vpc]); err != nil {
			return nil, err
		}
	}
	after.groups = slices.DeleteFunc(slices.Clone(e.groups), func(id string) bool {
		return slices.Contains(in.RemoveSecurityGroupID, id)
	})
	for _, id := range in.AddSecurityGroupID {
		if !slices.Contains(after.groups, id) {
			after.groups = append(after.groups, id)
		}
	}
	if len(after.groups) == 0 {
		return nil, failf("InvalidParameter", "An interface endpoint needs a security group")
	}
	if err := s.CheckGroups(e.vpc, after.groups); err != nil {
		return nil, err
	}
	for _, id := range in.RemoveSubnetID {
		if e.interfaces[id] == "" {
			return nil, failf("InvalidParameter", "The subnet %s is not one of the endpoint's", id)
		}
	}
	add := slices.DeleteFunc(in.AddSubnetID, func(id string) bool { return slices.Contains(in.RemoveSubnetID, id) })
	if err := s.replaceSubnets(&after, in.RemoveSubnetID, add, in.SubnetConfiguration); err != nil {
		return nil, err
	}
	*e = after
	for _, id := range e.interfaces {
		s.interfaces[id].Groups = slices.Clone(e.groups)
	}
	return ok, nil
}

// replaceSubnets takes an endpoint out of subnets and puts it into others. The removals come first as zones become free
// by them, and are undone when the additions fail.
func (s *Service) replaceSubnets(e *endpoint, remove, add []string, wanted []endpointSubnet) error {
	removed := map[string]string{}
	for _, id := range remove {
		removed[id] = e.interfaces[id]
		delete(e.interfaces, id)
	}
	if err := s.addSubnets(e, add, wanted); err != nil {
		for id, i := range removed {
			e.interfaces[id] = i
		}
		return err
	}
	for _, i := range removed {
		s.DeleteInterface(i)
	}
	return nil
}

func (s *Service) deleteEndpoints(c *wire.Call) (any, error) {
	var in struct {
		VpcEndpointID []string `query:"VpcEndpointId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if len(in.VpcEndpointID) == 0 {
		if err := s.allowAny(c, "DeleteVpcEndpoints"); err != nil {
			return nil, err
		}
		return nil, missing("vpcEndpointIds")
	}
	if err := s.allow(c, "DeleteVpcEndpoints", in.VpcEndpointID...); err != nil {
		return nil, err
	}
	type problem struct {
		ID      string `xml:"resourceId"`
		Code    string `xml:"error>code"`
		Message string `xml:"error>message"`
	}
	var problems []problem
	for _, id := range in.VpcEndpointID {
		e := s.endpoints[id]
		if e == nil {
			problems = append(problems, problem{id, "InvalidVpcEndpoint.NotFound", "The Vpc Endpoint Id '" + id +
				"' does not exist"})
			continue
		}
		for _, i := range e.interfaces {
			s.DeleteInterface(i)
		}
		drop(s, s.endpoints, id)
	}
	return struct {
		Problems []problem `xml:"unsuccessful>item"`
	}{problems}, nil
}
