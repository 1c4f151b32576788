package ec2

import (
	"net/netip"
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func (s *Service) interfaceOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreateNetworkInterface":            s.createInterface,
		"DeleteNetworkInterface":            s.deleteInterface,
		"DescribeNetworkInterfaces":         s.describeInterfaces,
		"DescribeNetworkInterfaceAttribute": s.describeInterfaceAttribute,
		"ModifyNetworkInterfaceAttribute":   s.modifyInterfaceAttribute,
		"AttachNetworkInterface":            s.attachInterface,
		"DetachNetworkInterface":            s.detachInterface,
		"AssignPrivateIpAddresses":          s.assignAddresses,
		"UnassignPrivateIpAddresses":        s.unassignAddresses,
		"AssignIpv6Addresses":               s.assignAddresses6,
		"UnassignIpv6Addresses":             s.unassignAddresses6,
	}
}

// interfaceInput is the parameters of CreateNetworkInterface.
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

// addresses reads the wanted addresses, the primary IPv4 one first.
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

// interfaceOf reads a call that has a NetworkInterfaceId alone and authorizes it.
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

func (s *Service) describeInterfaceAttribute(c *wire.Call) (any, error) {
	var in struct {
		NetworkInterfaceID string `query:"NetworkInterfaceId"`
		Attribute          string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "DescribeNetworkInterfaceAttribute", in.NetworkInterfaceID); err != nil {
		return nil, err
	}
	i, err := s.interfaceByID(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	type text struct {
		Value string `xml:"value"`
	}
	var out struct {
		ID              string         `xml:"networkInterfaceId"`
		Attachment      *attachmentXML `xml:"attachment"`
		Description     *text          `xml:"description"`
		Groups          []groupRefXML  `xml:"groupSet>item"`
		SourceDestCheck *attribute     `xml:"sourceDestCheck"`
		Public          *bool          `xml:"associatePublicIpAddress"`
	}
	out.ID = i.id
	switch in.Attribute {
	case "description":
		out.Description = &text{i.Description}
	case "groupSet":
		out.Groups = s.groupRefs(i.Groups)
	case "sourceDestCheck":
		out.SourceDestCheck = &attribute{&i.SourceDestCheck}
	case "attachment":
		out.Attachment = s.attachmentXML(i)
	case "associatePublicIpAddress":
		out.Public = new(i.Public.IsValid())
	case "":
		return nil, missing("attribute")
	default:
		return nil, invalid("attribute", in.Attribute)
	}
	return out, nil
}

func (s *Service) modifyInterfaceAttribute(c *wire.Call) (any, error) {
	var in struct {
		NetworkInterfaceID string `query:"NetworkInterfaceId"`
		Description        *struct{ Value string }
		SourceDestCheck    *attribute
		SecurityGroupID    []string `query:"SecurityGroupId"`
		EnablePrimaryIpv6  *bool
		Attachment         *struct {
			AttachmentID        string `query:"AttachmentId"`
			DeleteOnTermination *bool
		}
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "ModifyNetworkInterfaceAttribute", append([]string{in.NetworkInterfaceID},
		in.SecurityGroupID...)...); err != nil {
		return nil, err
	}
	i, err := s.interfaceByID(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	if err := i.own(); err != nil {
		return nil, err
	}
	given := 0
	for _, has := range []bool{in.Description != nil, in.SourceDestCheck != nil, len(in.SecurityGroupID) > 0,
		in.EnablePrimaryIpv6 != nil, in.Attachment != nil} {
		if has {
			given++
		}
	}
	switch {
	case given == 0:
		return nil, missing("attribute")
	case given > 1: // "You can specify only one attribute at a time."
		return nil, failf("InvalidParameterCombination", "Fields for multiple attribute types specified")
	case in.Description != nil:
		i.Description = in.Description.Value
	case in.SourceDestCheck != nil:
		if in.SourceDestCheck.Value == nil {
			return nil, missing("value")
		}
		i.SourceDestCheck = *in.SourceDestCheck.Value
	case len(in.SecurityGroupID) > 0:
		if err := s.CheckGroups(i.VPC, in.SecurityGroupID); err != nil {
			return nil, err
		}
		i.Groups = in.SecurityGroupID
	case in.EnablePrimaryIpv6 != nil:
		if !*in.EnablePrimaryIpv6 && i.PrimaryIPv6 {
			return nil, failf("InvalidParameterValue", "A primary IPv6 address cannot be disabled")
		}
		if *in.EnablePrimaryIpv6 && len(i.IPv6) == 0 {
			return nil, failf("InvalidParameterCombination", "A primary IPv6 address needs an IPv6 address")
		}
		i.PrimaryIPv6 = *in.EnablePrimaryIpv6
	default:
		if i.Attachment == nil || i.Attachment.ID != in.Attachment.AttachmentID {
			return nil, noAttachment(in.Attachment.AttachmentID)
		}
		if in.Attachment.DeleteOnTermination == nil {
			return nil, missing("deleteOnTermination")
		}
		i.Attachment.DeleteOnTermination = *in.Attachment.DeleteOnTermination
	}
	return ok, nil
}
