package ec2

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// subnet is an address range of a VPC in one zone.
type subnet struct {
	entity
	vpc, zone string
	block     netip.Prefix // invalid in an IPv6-only subnet
	blocks6   []cidrBlock  // at most one
	native    bool         // IPv6-only

	mapPublic    bool
	assignIPv6   bool
	dns64        bool
	hostnameType string // ip-name or resource-name
	nameA        bool
	nameAAAA     bool

	next netip.Addr // start of the next search for a free IPv4 address: delays reuse of freed ones
}

func (s *Service) subnetContext(id string) policy.Context {
	n := s.subnets[id]
	return policy.Context{"ec2:SubnetID": {id}, "ec2:AvailabilityZone": {n.zone}, "ec2:Vpc": {s.arn("vpc", n.vpc)}}
}

// SubnetView is the view of a subnet for other services.
type SubnetView struct {
	ID, VPC, Zone string
	IPv4, IPv6    netip.Prefix // invalid if the subnet has none
	Native        bool         // IPv6-only
	MapPublic     bool
	HostnameType  string // ip-name or resource-name
	Free          int    // number of free IPv4 addresses
}

// Subnet returns a subnet.
func (s *Service) Subnet(id string) (SubnetView, bool) {
	n := s.subnets[id]
	if n == nil {
		return SubnetView{}, false
	}
	s.settleInterfaces()
	view := SubnetView{
		ID: n.id, VPC: n.vpc, Zone: n.zone, IPv4: n.block, Native: n.native, MapPublic: n.mapPublic,
		HostnameType: n.hostnameType, Free: s.freeCount(n),
	}
	if len(n.blocks6) > 0 {
		view.IPv6 = n.blocks6[0].prefix
	}
	return view, true
}

// SubnetZone returns the zone of a subnet.
func (s *Service) SubnetZone(id string) (zone string, ok bool) {
	view, ok := s.Subnet(id)
	return view.Zone, ok
}

func (s *Service) subnetByID(id string) (*subnet, error) {
	if id == "" {
		return nil, missing("subnetId")
	}
	if n := s.subnets[id]; n != nil {
		return n, nil
	}
	return nil, failf("InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", id)
}

func (s *Service) createSubnet(c *wire.Call) (any, error) {
	var in struct {
		VpcID              string `query:"VpcId"`
		AvailabilityZone   string
		AvailabilityZoneID string `query:"AvailabilityZoneId"`
		CidrBlock          string
		Ipv6CidrBlock      string
		Ipv6Native         bool
		TagSpecification   []TagSpecification
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	tags, err := specified(in.TagSpecification, "subnet")
	if err != nil {
		return nil, err
	}
	zone, err := s.subnetZone(in.AvailabilityZone, in.AvailabilityZoneID)
	if err != nil {
		return nil, err
	}
	keys := policy.Context{"ec2:AvailabilityZone": {zone}, "ec2:Vpc": {s.arn("vpc", in.VpcID)}}
	if err := s.allowNew(c, "CreateSubnet", "subnet", tags, keys); err != nil {
		return nil, err
	}
	if err := s.allow(c, "CreateSubnet", in.VpcID); err != nil {
		return nil, err
	}
	v, err := s.vpcByID(in.VpcID)
	if err != nil {
		return nil, err
	}
	n := &subnet{vpc: v.id, zone: zone, native: in.Ipv6Native, assignIPv6: in.Ipv6Native, hostnameType: "ip-name"}
	switch {
	case in.Ipv6Native && in.CidrBlock != "":
		return nil,
			failf("InvalidParameterCombination",
				"When specifying ipv4 parameters, cidrBlock or ipv4IpamPoolId, you cannot set ipv6Native to true.")
	case in.Ipv6Native && in.Ipv6CidrBlock == "":
		return nil, failf("MissingParameter", "Either 'ipv6CidrBlock' or 'ipv6IpamPoolId' should be provided.")
	case !in.Ipv6Native && in.CidrBlock == "":
		return nil, failf("MissingParameter", "Either 'cidrBlock' or 'ipv4IpamPoolId' should be provided.")
	case in.Ipv6Native:
		// Names of instances without IPv4 are derived from their IDs.
		n.hostnameType, n.nameAAAA = "resource-name", true
	default:
		if n.block, err = s.subnetBlock(v, in.CidrBlock); err != nil {
			return nil, err
		}
	}
	if in.Ipv6CidrBlock != "" {
		block, err := s.subnetBlock6(v, in.Ipv6CidrBlock)
		if err != nil {
			return nil, err
		}
		n.blocks6 = []cidrBlock{{newID("subnet-cidr-assoc"), block}}
	}
	n.entity = s.entity("subnet")
	s.subnets[n.id] = n
	s.SetTags(n.id, tags)
	s.acls[v.defaultACL].associate(n.id)
	return struct {
		Subnet subnetXML `xml:"subnet"`
	}{s.subnetXML(n)}, nil
}

// subnetZone returns the zone with the requested name or ID. If the request has neither, the fake chooses a zone, as
// AWS does.
func (s *Service) subnetZone(name, id string) (string, error) {
	if name != "" && id != "" {
		return "",
			failf("InvalidParameterCombination", "Only one of AvailabilityZone and AvailabilityZoneId may be specified")
	}
	for _, zone := range s.cfg.Zones {
		if zone == name || name == "" && (id == "" || s.zoneID(zone) == id) {
			return zone, nil
		}
	}
	if id != "" {
		return "", failf("InvalidParameterValue", "Value (%s) for parameter availabilityZoneId is invalid.", id)
	}
	return "",
		failf("InvalidParameterValue",
			"Value (%s) for parameter availabilityZone is invalid. Subnets can currently only be created in the "+
				"following "+
				"availability zones: %s.", name, strings.Join(s.cfg.Zones, ", "))
}

// subnetBlock reads the IPv4 block of a new subnet. The block must be inside a block of the VPC, have a length of /16
// to /28, and be free.
func (s *Service) subnetBlock(v *vpc, text string) (netip.Prefix, error) {
	block, err := netip.ParsePrefix(text)
	if err != nil || !block.Addr().Is4() {
		return netip.Prefix{},
			failf("InvalidParameterValue",
				"Value (%s) for parameter cidrBlock is invalid. This is not a valid CIDR block.", text)
	}
	block = block.Masked()
	if block.Bits() < 16 || block.Bits() > 28 || !within(v.blocks, block) {
		return netip.Prefix{}, failf("InvalidSubnet.Range", "The CIDR '%s' is invalid.", text)
	}
	if some(s.subnets, func(n *subnet) bool { return n.vpc == v.id && n.block.IsValid() && n.block.Overlaps(block) }) {
		return netip.Prefix{}, failf("InvalidSubnet.Conflict", "The CIDR '%s' conflicts with another subnet", text)
	}
	return block, nil
}

// subnetBlock6 reads an IPv6 block of a subnet. Its length must be /44 to /64 in steps of four.
func (s *Service) subnetBlock6(v *vpc, text string) (netip.Prefix, error) {
	block, err := netip.ParsePrefix(text)
	if err != nil || !block.Addr().Is6() || block.Addr().Is4In6() {
		return netip.Prefix{},
			failf("InvalidParameterValue",
				"Value (%s) for parameter ipv6CidrBlock is invalid. This is not a valid IPv6 CIDR block.", text)
	}
	block = block.Masked()
	if block.Bits() < 44 || block.Bits() > 64 || block.Bits()%4 != 0 || !within(v.blocks6, block) {
		return netip.Prefix{}, failf("InvalidSubnet.Range", "The CIDR '%s' is invalid.", text)
	}
	if some(s.subnets, func(n *subnet) bool {
		return n.vpc == v.id && slices.ContainsFunc(n.blocks6, func(b cidrBlock) bool {
			return b.prefix.Overlaps(block)
		})
	}) {
		return netip.Prefix{}, failf("InvalidSubnet.Conflict", "The CIDR '%s' conflicts with another subnet", text)
	}
	return block, nil
}

func within(blocks []cidrBlock, block netip.Prefix) bool {
	return slices.ContainsFunc(blocks, func(b cidrBlock) bool {
		return b.prefix.Bits() <= block.Bits() && b.prefix.Contains(block.Addr())
	})
}

func (s *Service) deleteSubnet(c *wire.Call) (any, error) {
	var in struct {
		SubnetID string `query:"SubnetId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "DeleteSubnet", in.SubnetID); err != nil {
		return nil, err
	}
	n, err := s.subnetByID(in.SubnetID)
	if err != nil {
		return nil, err
	}
	if some(s.interfaces, func(i *Interface) bool { return i.Subnet == n.id }) {
		return nil, failf("DependencyViolation", "The subnet '%s' has dependencies and cannot be deleted.", n.id)
	}
	for _, t := range s.routeTables {
		t.associations = slices.DeleteFunc(t.associations, func(a tableAssociation) bool { return a.subnet == n.id })
	}
	for _, a := range s.acls {
		a.associations = slices.DeleteFunc(a.associations, func(x aclAssociationXML) bool { return x.Subnet == n.id })
	}
	drop(s, s.subnets, n.id)
	return ok, nil
}

type subnetBlock6XML struct {
	Association string     `xml:"associationId"`
	Block       string     `xml:"ipv6CidrBlock"`
	State       blockState `xml:"ipv6CidrBlockState"`
	Attribute   string     `xml:"ipv6AddressAttribute"`
	Source      string     `xml:"ipSource"`
}

type subnetXML struct {
	ID           string            `xml:"subnetId"`
	ARN          string            `xml:"subnetArn"`
	VPC          string            `xml:"vpcId"`
	Owner        string            `xml:"ownerId"`
	State        string            `xml:"state"`
	Block        string            `xml:"cidrBlock,omitempty"`
	Blocks6      []subnetBlock6XML `xml:"ipv6CidrBlockAssociationSet>item"`
	Native       bool              `xml:"ipv6Native"`
	Free         int               `xml:"availableIpAddressCount"`
	Zone         string            `xml:"availabilityZone"`
	ZoneID       string            `xml:"availabilityZoneId"`
	DefaultForAZ bool              `xml:"defaultForAz"`
	MapPublic    bool              `xml:"mapPublicIpOnLaunch"`
	MapCustomer  bool              `xml:"mapCustomerOwnedIpOnLaunch"`
	AssignIPv6   bool              `xml:"assignIpv6AddressOnCreation"`
	DNS64        bool              `xml:"enableDns64"`
	HostnameType string            `xml:"privateDnsNameOptionsOnLaunch>hostnameType"`
	NameA        bool              `xml:"privateDnsNameOptionsOnLaunch>enableResourceNameDnsARecord"`
	NameAAAA     bool              `xml:"privateDnsNameOptionsOnLaunch>enableResourceNameDnsAAAARecord"`
	Tags         []Tag             `xml:"tagSet>item"`
}

func (s *Service) subnetXML(n *subnet) subnetXML {
	out := subnetXML{
		ID: n.id, ARN: s.ARN(n.id), VPC: n.vpc, Owner: s.cfg.Account, State: "available", Native: n.native,
		Free: s.freeCount(n), Zone: n.zone,
		ZoneID: s.zoneID(n.zone), MapPublic: n.mapPublic, AssignIPv6: n.assignIPv6, DNS64: n.dns64,
		HostnameType: n.hostnameType, NameA: n.nameA,
		NameAAAA: n.nameAAAA, Tags: s.tagList(n.id),
	}
	if n.block.IsValid() {
		out.Block = n.block.String()
	}
	for _, b := range n.blocks6 {
		out.Blocks6 = append(out.Blocks6, subnetBlock6XML{b.association, b.prefix.String(), blockState{"associated"},
			"public", "amazon"})
	}
	return out
}

func (s *Service) describeSubnets(c *wire.Call) (any, error) {
	var in struct {
		SubnetID   []string `query:"SubnetId"`
		Filter     []Filter
		MaxResults int
		NextToken  string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeSubnets"); err != nil {
		return nil, err
	}
	block := func(n *subnet) []string {
		if !n.block.IsValid() {
			return nil
		}
		return []string{n.block.String()}
	}
	zone := func(n *subnet) []string { return []string{n.zone} }
	found, next, err := find(s, s.subnets, query{in.SubnetID, in.Filter, in.MaxResults, in.NextToken},
		map[string]func(*subnet) []string{
			"availability-zone":          zone,
			"availabilityZone":           zone,
			"availability-zone-id":       func(n *subnet) []string { return []string{s.zoneID(n.zone)} },
			"availabilityZoneId":         func(n *subnet) []string { return []string{s.zoneID(n.zone)} },
			"available-ip-address-count": func(n *subnet) []string { return []string{strconv.Itoa(s.freeCount(n))} },
			"cidr":                       block,
			"cidr-block":                 block,
			"cidrBlock":                  block,
			"default-for-az":             func(*subnet) []string { return []string{"false"} },
			"defaultForAz":               func(*subnet) []string { return []string{"false"} },
			"enable-dns64":               func(n *subnet) []string { return flag(n.dns64) },
			"ipv6-cidr-block-association.association-id":  func(n *subnet) []string { return associations(n.blocks6) },
			"ipv6-cidr-block-association.ipv6-cidr-block": func(n *subnet) []string { return prefixes(n.blocks6) },
			"ipv6-cidr-block-association.state":           func(n *subnet) []string { return states(n.blocks6) },
			"ipv6-native":                                 func(n *subnet) []string { return flag(n.native) },
			"map-public-ip-on-launch":                     func(n *subnet) []string { return flag(n.mapPublic) },
			"owner-id":                                    func(*subnet) []string { return []string{s.cfg.Account} },
			"private-dns-name-options-on-launch.hostname-type": func(n *subnet) []string {
				return []string{n.hostnameType}
			},
			"private-dns-name-options-on-launch.enable-resource-name-dns-a-record": func(n *subnet) []string {
				return flag(n.nameA)
			},
			"private-dns-name-options-on-launch.enable-resource-name-dns-aaaa-record": func(n *subnet) []string {
				return flag(n.nameAAAA)
			},
			"state":      func(*subnet) []string { return []string{"available"} },
			"subnet-arn": func(n *subnet) []string { return []string{s.ARN(n.id)} },
			"subnet-id":  func(n *subnet) []string { return []string{n.id} },
			"vpc-id":     func(n *subnet) []string { return []string{n.vpc} },
		})
	if err != nil {
		return nil, err
	}
	return struct {
		Items []subnetXML `xml:"subnetSet>item"`
		Next  string      `xml:"nextToken,omitempty"`
	}{each(found, s.subnetXML), next}, nil
}

// flag formats a boolean for filters.
func flag(b bool) []string { return []string{strconv.FormatBool(b)} }

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
