package ec2

import (
	"net/netip"
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// maxVPCBlocks is how many IPv4 blocks, and how many IPv6 blocks, a VPC may have.
// https://docs.aws.amazon.com/vpc/latest/userguide/amazon-vpc-limits.html
const maxVPCBlocks = 5

// attribute is a boolean attribute in requests and answers.
type attribute struct {
	Value *bool `xml:"value"`
}

func (s *Service) describeVPCAttribute(c *wire.Call) (any, error) {
	var in struct {
		Attribute string
		VpcID     string `query:"VpcId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "DescribeVpcAttribute", in.VpcID); err != nil {
		return nil, err
	}
	v, err := s.vpcByID(in.VpcID)
	if err != nil {
		return nil, err
	}
	var out struct {
		ID        string     `xml:"vpcId"`
		Hostnames *attribute `xml:"enableDnsHostnames"`
		Support   *attribute `xml:"enableDnsSupport"`
		Metrics   *attribute `xml:"enableNetworkAddressUsageMetrics"`
	}
	out.ID = v.id
	switch in.Attribute {
	case "enableDnsHostnames":
		out.Hostnames = &attribute{&v.dnsHostnames}
	case "enableDnsSupport":
		out.Support = &attribute{&v.dnsSupport}
	case "enableNetworkAddressUsageMetrics":
		out.Metrics = &attribute{&v.usageMetrics}
	case "":
		return nil, missing("attribute")
	default:
		return nil, invalid("attribute", in.Attribute)
	}
	return out, nil
}

func (s *Service) modifyVPCAttribute(c *wire.Call) (any, error) {
	var in struct {
		VpcID                            string `query:"VpcId"`
		EnableDnsHostnames               *attribute
		EnableDnsSupport                 *attribute
		EnableNetworkAddressUsageMetrics *attribute
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "ModifyVpcAttribute", in.VpcID); err != nil {
		return nil, err
	}
	v, err := s.vpcByID(in.VpcID)
	if err != nil {
		return nil, err
	}
	// DNS support and host names cannot be changed in one request.
	given := 0
	for _, a := range []*attribute{in.EnableDnsHostnames, in.EnableDnsSupport, in.EnableNetworkAddressUsageMetrics} {
		if a != nil && a.Value != nil {
			given++
		}
	}
	switch {
	case given == 0:
		return nil, missing("attribute")
	case given > 1:
		return nil, failf("InvalidParameterCombination", "Fields for multiple attribute types specified")
	case in.EnableDnsHostnames != nil:
		if *in.EnableDnsHostnames.Value && !v.dnsSupport {
			return nil, failf("InvalidParameterCombination", "DNS hostnames need DNS support, which is off in '%s'",
				v.id)
		}
		v.dnsHostnames = *in.EnableDnsHostnames.Value
	case in.EnableDnsSupport != nil:
		v.dnsSupport = *in.EnableDnsSupport.Value
	default:
		v.usageMetrics = *in.EnableNetworkAddressUsageMetrics.Value
	}
	return ok, nil
}

func (s *Service) modifyVPCTenancy(c *wire.Call) (any, error) {
	var in struct {
		VpcID           string `query:"VpcId"`
		InstanceTenancy string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "ModifyVpcTenancy", in.VpcID); err != nil {
		return nil, err
	}
	v, err := s.vpcByID(in.VpcID)
	if err != nil {
		return nil, err
	}
	if in.InstanceTenancy != "default" { // the only change there is
		return nil, invalid("instanceTenancy", in.InstanceTenancy)
	}
	v.tenancy = "default"
	return ok, nil
}

func (s *Service) associateVPCBlock(c *wire.Call) (any, error) {
	var in struct {
		VpcID                           string `query:"VpcId"`
		CidrBlock                       string
		AmazonProvidedIpv6CidrBlock     bool
		Ipv6CidrBlockNetworkBorderGroup string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "AssociateVpcCidrBlock", in.VpcID); err != nil {
		return nil, err
	}
	v, err := s.vpcByID(in.VpcID)
	if err != nil {
		return nil, err
	}
	var out struct {
		ID     string        `xml:"vpcId"`
		Block  *vpcBlockXML  `xml:"cidrBlockAssociation"`
		Block6 *vpcBlock6XML `xml:"ipv6CidrBlockAssociation"`
	}
	out.ID = v.id
	switch {
	case in.CidrBlock != "" && in.AmazonProvidedIpv6CidrBlock:
		return nil,
			failf("InvalidParameterCombination",
				"Only one of CidrBlock and AmazonProvidedIpv6CidrBlock may be specified")
	case in.AmazonProvidedIpv6CidrBlock:
		if len(v.blocks6) >= maxVPCBlocks {
			return nil, failf("CidrLimitExceeded", "Network %s has met its maximum number of allowed CIDRs: %d", v.id,
				maxVPCBlocks)
		}
		block := cidrBlock{newID("vpc-cidr-assoc"), s.newIPv6Block()}
		v.blocks6 = append(v.blocks6, block)
		answer := s.vpcBlock6XML(block, "associating")
		out.Block6 = &answer
	case in.CidrBlock != "":
		prefix, err := s.vpcBlock(in.CidrBlock)
		if err != nil {
			return nil, err
		}
		if len(v.blocks) >= maxVPCBlocks {
			return nil, failf("CidrLimitExceeded", "Network %s has met its maximum number of allowed CIDRs: %d", v.id,
				maxVPCBlocks)
		}
		if slices.ContainsFunc(v.blocks, func(b cidrBlock) bool { return b.prefix.Overlaps(prefix) }) {
			return nil, failf("CidrConflict", "The CIDR '%s' conflicts with one of '%s'", prefix, v.id)
		}
		if restricted(v.blocks[0].prefix, prefix) {
			return nil,
				failf("InvalidVpc.Range",
					"The CIDR '%s' is restricted. Use a CIDR from the same private address range as the current VPC "+
						"CIDR, or use a "+
						"publicly-routable CIDR.", prefix)
		}
		block := cidrBlock{newID("vpc-cidr-assoc"), prefix}
		v.blocks = append(v.blocks, block)
		out.Block = &vpcBlockXML{block.association, block.prefix.String(), blockState{"associating"}}
	default:
		return nil, missing("cidrBlock")
	}
	return out, nil
}

// restricted tells whether a block may not be added to a VPC by the private range of its primary block.
// https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html#add-cidr-block-restrictions
func restricted(primary, added netip.Prefix) bool {
	private := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16")}
	home := slices.IndexFunc(private, func(p netip.Prefix) bool { return p.Overlaps(primary) })
	other := slices.IndexFunc(private, func(p netip.Prefix) bool { return p.Overlaps(added) })
	return home >= 0 && other >= 0 && home != other
}

func (s *Service) disassociateVPCBlock(c *wire.Call) (any, error) {
	var in struct {
		AssociationID string `query:"AssociationId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	var owner *vpc
	for _, v := range s.vpcs {
		if slices.Contains(associations(slices.Concat(v.blocks, v.blocks6)), in.AssociationID) {
			owner = v
		}
	}
	if owner == nil {
		if err := s.allowAny(c, "DisassociateVpcCidrBlock"); err != nil {
			return nil, err
		}
		return nil, failf("InvalidVpcCidrBlockAssociationID.NotFound",
			"The vpc CIDR block association ID '%s' does not exist", in.AssociationID)
	}
	if err := s.allow(c, "DisassociateVpcCidrBlock", owner.id); err != nil {
		return nil, err
	}
	is := func(b cidrBlock) bool { return b.association == in.AssociationID }
	if is(owner.blocks[0]) {
		return nil,
			failf("OperationNotPermitted",
				"The vpc CIDR block with association ID %s may not be disassociated. It is the primary IPv4 CIDR "+
					"block of the VPC",
				in.AssociationID)
	}
	block := owner.blockByAssociation(is)
	for _, n := range s.subnets {
		if n.vpc == owner.id && (n.block.IsValid() && n.block.Overlaps(block.prefix) ||
			slices.ContainsFunc(n.blocks6, func(b cidrBlock) bool { return b.prefix.Overlaps(block.prefix) })) {
			return nil, failf("InvalidCidrBlock.InUse", "The CIDR block '%s' is used by the subnet '%s'", block.prefix,
				n.id)
		}
	}
	var out struct {
		ID     string        `xml:"vpcId"`
		Block  *vpcBlockXML  `xml:"cidrBlockAssociation"`
		Block6 *vpcBlock6XML `xml:"ipv6CidrBlockAssociation"`
	}
	out.ID = owner.id
	if block.prefix.Addr().Is4() {
		out.Block = &vpcBlockXML{block.association, block.prefix.String(), blockState{"disassociating"}}
	} else {
		answer := s.vpcBlock6XML(block, "disassociating")
		out.Block6 = &answer
	}
	owner.blocks = slices.DeleteFunc(owner.blocks, is)
	owner.blocks6 = slices.DeleteFunc(owner.blocks6, is)
	return out, nil
}

func (v *vpc) blockByAssociation(is func(cidrBlock) bool) cidrBlock {
	all := slices.Concat(v.blocks, v.blocks6)
	return all[slices.IndexFunc(all, is)]
}
