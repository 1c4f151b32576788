package ec2

import (
	"net/netip"
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// interfaceInput holds the parameters of CreateNetworkInterface.
type interfaceInput struct {
	SubnetID           string `query:"SubnetId"`
	Description        string
	InterfaceType      string
	PrivateIPAddress   string `query:"PrivateIpAddress"`
	PrivateIPAddresses []struct {
		Primary          bool
		PrivateIPAddress string `query:"PrivateIpAddress"`
	} `query:"PrivateIpAddresses"`
	SecondaryPrivateIPAddressCount int `query:"SecondaryPrivateIpAddressCount"`
	Ipv6Addresses                  []struct{ Ipv6Address string }
	Ipv6AddressCount               int
	EnablePrimaryIpv6              bool
	SecurityGroupID                []string `query:"SecurityGroupId"`
	ClientToken                    string
	TagSpecification               []TagSpecification
}

// addresses parses the addresses in the request. The primary IPv4 address comes first in v4.
func (in interfaceInput) addresses() (v4, v6 []netip.Addr, err error) {
	if in.PrivateIPAddress != "" {
		a, err := parseAddress("privateIpAddress", in.PrivateIPAddress, false)
		if err != nil {
			return nil, nil, err
		}
		v4 = append(v4, a)
	}
	primary := false
	for _, want := range in.PrivateIPAddresses {
		a, err := parseAddress("privateIpAddresses", want.PrivateIPAddress, false)
		switch {
		case err != nil:
			return nil, nil, err
		case want.Primary && (primary || in.PrivateIPAddress != "" && in.PrivateIPAddress != want.PrivateIPAddress):
			return nil, nil,
				failf("InvalidParameterCombination", "Only one primary private IP address can be specified")
		case want.Primary && in.PrivateIPAddress != "":
		case want.Primary:
			v4 = slices.Insert(v4, 0, a)
		default:
			v4 = append(v4, a)
		}
		primary = primary || want.Primary
	}
	if len(in.PrivateIPAddresses) > 0 && !primary && in.PrivateIPAddress == "" {
		return nil, nil, failf("InvalidParameterCombination", "One of the private IP addresses must be the primary one")
	}
	if len(in.PrivateIPAddresses) > 0 && in.SecondaryPrivateIPAddressCount > 0 {
		return nil, nil,
			failf("InvalidParameterCombination",
				"privateIpAddresses and secondaryPrivateIpAddressCount cannot be specified together")
	}
	for _, want := range in.Ipv6Addresses {
		a, err := parseAddress("ipv6Addresses", want.Ipv6Address, true)
		if err != nil {
			return nil, nil, err
		}
		v6 = append(v6, a)
	}
	if len(v6) > 0 && in.Ipv6AddressCount > 0 {
		return nil, nil,
			failf("InvalidParameterCombination", "ipv6Addresses and ipv6AddressCount cannot be specified together")
	}
	return v4, v6, nil
}

func (s *Service) createInterface(c *wire.Call) (any, error) {
	var in interfaceInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	tags, err := specified(in.TagSpecification, "network-interface")
	if err != nil {
		return nil, err
	}
	keys := policy.Context{"ec2:Subnet": {s.arn("subnet", in.SubnetID)}}
	if n := s.subnets[in.SubnetID]; n != nil {
		keys["ec2:AvailabilityZone"], keys["ec2:Vpc"] = []string{n.zone}, []string{s.arn("vpc", n.vpc)}
	}
	if err := s.allowNew(c, "CreateNetworkInterface", "network-interface", tags, keys); err != nil {
		return nil, err
	}
	if err := s.allow(c, "CreateNetworkInterface", append([]string{in.SubnetID},
		in.SecurityGroupID...)...); err != nil {
		return nil, err
	}
	if in.InterfaceType != "" && in.InterfaceType != "interface" {
		return nil, invalid("interfaceType", in.InterfaceType)
	}
	v4, v6, err := in.addresses()
	if err != nil {
		return nil, err
	}
	id, err := s.replayed(c, in.ClientToken)
	if err != nil {
		return nil, err
	}
	i := s.interfaces[id]
	if i == nil {
		i, err = s.CreateInterface(InterfaceSpec{
			Subnet: in.SubnetID, Description: in.Description, Groups: in.SecurityGroupID, Addresses: v4,
			Secondary: in.SecondaryPrivateIPAddressCount,
			IPv6:      v6, IPv6Count: in.Ipv6AddressCount, PrimaryIPv6: in.EnablePrimaryIpv6, Tags: tags,
		})
		if err != nil {
			return nil, err
		}
		s.remember(c, in.ClientToken, i.id)
	}
	return struct {
		Interface   interfaceXML `xml:"networkInterface"`
		ClientToken string       `xml:"clientToken,omitempty"`
	}{s.interfaceXML(i), in.ClientToken}, nil
}

func (s *Service) deleteInterface(c *wire.Call) (any, error) {
	i, err := s.interfaceOf(c, "DeleteNetworkInterface")
	if err != nil {
		return nil, err
	}
	if i.Attachment != nil {
		return nil, failf("InvalidParameterValue", "Network interface '%s' is currently in use.", i.id)
	}
	if err := i.own(); err != nil {
		return nil, err
	}
	s.DeleteInterface(i.id)
	return ok, nil
}

// interfaceOf decodes a call that has only a NetworkInterfaceId, and authorizes it.
func (s *Service) interfaceOf(c *wire.Call, action string) (*Interface, error) {
	var in struct {
		NetworkInterfaceID string `query:"NetworkInterfaceId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, action, in.NetworkInterfaceID); err != nil {
		return nil, err
	}
	return s.interfaceByID(in.NetworkInterfaceID)
}
