package ec2

import (
	"crypto/rand"
	"net/netip"
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// network is the state of the network resources: VPCs, subnets, route tables, gateways and so on.
type network struct {
	vpcs           map[string]*vpc
	subnets        map[string]*subnet
	routeTables    map[string]*routeTable
	gateways       map[string]*internetGateway
	egressGateways map[string]*egressGateway
	natGateways    map[string]*natGateway
	groups         map[string]*securityGroup
	groupRules     map[string]*securityRule
	acls           map[string]*networkACL
	endpoints      map[string]*endpoint
	addresses      map[string]*address
	interfaces     map[string]*Interface
	prefixLists    map[string]*prefixList
	requests       map[string]request // by action and client token

	addressLimit int // limit of elastic IP addresses
	blocksGiven  int // number of IPv6 blocks given to VPCs
	publicGiven  int // number of public IPv4 addresses given
}

func newNetwork() network {
	return network{
		vpcs: map[string]*vpc{}, subnets: map[string]*subnet{}, routeTables: map[string]*routeTable{},
		gateways:       map[string]*internetGateway{},
		egressGateways: map[string]*egressGateway{}, natGateways: map[string]*natGateway{},
		groups:     map[string]*securityGroup{},
		groupRules: map[string]*securityRule{}, acls: map[string]*networkACL{}, endpoints: map[string]*endpoint{},
		addresses:  map[string]*address{},
		interfaces: map[string]*Interface{}, prefixLists: map[string]*prefixList{}, requests: map[string]request{},
		addressLimit: defaultAddressLimit,
	}
}

// networkKinds returns the kinds of network resources: their prefixes, types and error codes.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
func (s *Service) networkKinds() []kind {
	return []kind{
		{prefix: "vpc", name: "vpc", noun: "vpc ID", code: "InvalidVpcID.NotFound", find: finder(s.vpcs),
			context: s.vpcContext},
		{prefix: "subnet", name: "subnet", noun: "subnet ID", code: "InvalidSubnetID.NotFound", find: finder(s.subnets),
			context: s.subnetContext},
		{prefix: "rtb", name: "route-table", noun: "routeTable ID", code: "InvalidRouteTableID.NotFound",
			find: finder(s.routeTables),
			context: func(id string) policy.Context {
				return policy.Context{"ec2:RouteTableID": {id}, "ec2:Vpc": {s.arn("vpc", s.routeTables[id].vpc)}}
			}},
		{prefix: "igw", name: "internet-gateway", noun: "internetGateway ID", code: "InvalidInternetGatewayID.NotFound",
			find:    finder(s.gateways),
			context: func(id string) policy.Context { return policy.Context{"ec2:InternetGatewayID": {id}} }},
		{prefix: "eigw", name: "egress-only-internet-gateway", noun: "egress only internet gateway ID",
			code: "InvalidGatewayID.NotFound",
			find: finder(s.egressGateways)},
		{prefix: "nat", name: "natgateway", noun: "NAT gateway", code: "NatGatewayNotFound",
			find: finder(s.natGateways)},
		{prefix: "sg", name: "security-group", noun: "security group", code: "InvalidGroup.NotFound",
			find: finder(s.groups), context: s.groupContext},
		{prefix: "sgr", name: "security-group-rule", noun: "security group rule ID",
			code: "InvalidSecurityGroupRuleId.NotFound", find: finder(s.groupRules)},
		{prefix: "acl", name: "network-acl", noun: "networkAcl ID", code: "InvalidNetworkAclID.NotFound",
			find: finder(s.acls),
			context: func(id string) policy.Context {
				return policy.Context{"ec2:NetworkAclID": {id}, "ec2:Vpc": {s.arn("vpc", s.acls[id].vpc.id)}}
			}},
		{prefix: "vpce", name: "vpc-endpoint", noun: "Vpc Endpoint Id", code: "InvalidVpcEndpointId.NotFound",
			find: finder(s.endpoints),
			context: func(id string) policy.Context {
				return policy.Context{"ec2:VpceServiceName": {s.endpoints[id].service},
					"ec2:VpceServiceOwner": {"amazon"}}
			}},
		{prefix: "eipalloc", name: "elastic-ip", noun: "allocation ID", code: "InvalidAllocationID.NotFound",
			find: finder(s.addresses),
			context: func(id string) policy.Context {
				return policy.Context{"ec2:AllocationId": {id}, "ec2:Domain": {"vpc"},
					"ec2:PublicIpAddress": {s.addresses[id].public.String()}}
			}},
		{prefix: "eni", name: "network-interface", noun: "networkInterface ID",
			code: "InvalidNetworkInterfaceID.NotFound", find: finder(s.interfaces),
			context: s.interfaceContext},
		{prefix: "pl", name: "prefix-list", noun: "prefix list ID", code: "InvalidPrefixListID.NotFound",
			find: finder(s.prefixLists)},
	}
}

func finder[T resource](table map[string]T) func(id string) (resource, bool) {
	return func(id string) (resource, bool) {
		r, ok := table[id]
		return r, ok
	}
}

func (s *Service) networkOperations() map[string]wire.Handler {
	all := map[string]wire.Handler{
		"AllocateAddress":                    s.allocateAddress,
		"AssociateRouteTable":                s.associateRouteTable,
		"AttachInternetGateway":              s.attachInternetGateway,
		"AttachNetworkInterface":             s.attachInterface,
		"AuthorizeSecurityGroupEgress":       s.authorizeRules(true),
		"AuthorizeSecurityGroupIngress":      s.authorizeRules(false),
		"CreateEgressOnlyInternetGateway":    s.createEgressGateway,
		"CreateInternetGateway":              s.createInternetGateway,
		"CreateNatGateway":                   s.createNAT,
		"CreateNetworkInterface":             s.createInterface,
		"CreateRoute":                        s.createRoute,
		"CreateRouteTable":                   s.createRouteTable,
		"CreateSecurityGroup":                s.createGroup,
		"CreateSubnet":                       s.createSubnet,
		"CreateVpc":                          s.createVPC,
		"CreateVpcEndpoint":                  s.createEndpoint,
		"DeleteEgressOnlyInternetGateway":    s.deleteEgressGateway,
		"DeleteInternetGateway":              s.deleteInternetGateway,
		"DeleteNatGateway":                   s.deleteNAT,
		"DeleteNetworkInterface":             s.deleteInterface,
		"DeleteRoute":                        s.deleteRoute,
		"DeleteRouteTable":                   s.deleteRouteTable,
		"DeleteSecurityGroup":                s.deleteGroup,
		"DeleteSubnet":                       s.deleteSubnet,
		"DeleteVpc":                          s.deleteVPC,
		"DeleteVpcEndpoints":                 s.deleteEndpoints,
		"DescribeAddresses":                  s.describeAddresses,
		"DescribeAddressesAttribute":         s.describeAddressesAttribute,
		"DescribeAvailabilityZones":          s.describeZones,
		"DescribeEgressOnlyInternetGateways": s.describeEgressGateways,
		"DescribeInstanceTypeOfferings":      s.describeTypeOfferings,
		"DescribeInstanceTypes":              s.describeTypes,
		"DescribeInternetGateways":           s.describeInternetGateways,
		"DescribeNatGateways":                s.describeNATs,
		"DescribeNetworkAcls":                s.describeACLs,
		"DescribeNetworkInterfaces":          s.describeInterfaces,
		"DescribePrefixLists":                s.describePrefixLists,
		"DescribeRouteTables":                s.describeRouteTables,
		"DescribeSecurityGroupRules":         s.describeRules,
		"DescribeSecurityGroups":             s.describeGroups,
		"DescribeSubnets":                    s.describeSubnets,
		"DescribeVpcAttribute":               s.describeVPCAttribute,
		"DescribeVpcEndpoints":               s.describeEndpoints,
		"DescribeVpcs":                       s.describeVPCs,
		"DetachInternetGateway":              s.detachInternetGateway,
		"DetachNetworkInterface":             s.detachInterface,
		"DisassociateAddress":                s.disassociateAddress,
		"DisassociateRouteTable":             s.disassociateRouteTable,
		"ModifySubnetAttribute":              s.modifySubnetAttribute,
		"ModifyVpcAttribute":                 s.modifyVPCAttribute,
		"ModifyVpcEndpoint":                  s.modifyEndpoint,
		"ReleaseAddress":                     s.releaseAddress,
		"ReplaceRouteTableAssociation":       s.replaceRouteTableAssociation,
		"RevokeSecurityGroupEgress":          s.revokeRules(true),
		"RevokeSecurityGroupIngress":         s.revokeRules(false),
	}
	for action, handler := range all {
		all[action] = func(c *wire.Call) (any, error) {
			s.settle() // terminates instances that are due, which frees their interfaces
			s.settleInterfaces()
			if c.Form.Get("DryRun") == "true" {
				return nil, failf("UnsupportedOperation", "The fake does not rehearse %s", c.Action)
			}
			c.Form.Del("DryRun")
			return handler(c)
		}
	}
	return all
}

// request is a remembered call with a client token.
type request struct{ parameters, id string }

// replayed returns the ID of the resource that an earlier call with the same client token made, "" for a first call.
// The same token with other parameters is an error.
//
// https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
func (s *Service) replayed(c *wire.Call, token string) (id string, err error) {
	earlier, known := s.requests[c.Action+" "+token]
	switch {
	case len(token) > 64:
		return "", invalid("clientToken", token)
	case token == "" || !known:
		return "", nil
	case earlier.parameters != c.Form.Encode():
		return "",
			failf("IdempotentParameterMismatch",
				"The request with client token %s has other parameters than an earlier one with it", token)
	}
	return earlier.id, nil
}

func (s *Service) remember(c *wire.Call, token, id string) {
	if token != "" {
		s.requests[c.Action+" "+token] = request{parameters: c.Form.Encode(), id: id}
	}
}

// vpc is a virtual private cloud.
type vpc struct {
	entity
	blocks       []cidrBlock // IPv4: the first is primary and permanent
	blocks6      []cidrBlock
	tenancy      string
	dhcpOptions  string
	dnsSupport   bool
	dnsHostnames bool
	usageMetrics bool
	mainTable    string
	defaultACL   string
	defaultGroup string
}

// cidrBlock is an address block that is associated with a VPC or, for IPv6, with a subnet.
type cidrBlock struct {
	association string
	prefix      netip.Prefix
}

func (s *Service) vpcContext(id string) policy.Context {
	return policy.Context{"ec2:VpcID": {id}, "ec2:Tenancy": {s.vpcs[id].tenancy}}
}

// VPC reports whether a VPC exists.
func (s *Service) VPC(id string) bool { return s.vpcs[id] != nil }

func (s *Service) createVPC(c *wire.Call) (any, error) {
	var in struct {
		CidrBlock                       string
		AmazonProvidedIpv6CidrBlock     bool
		InstanceTenancy                 string
		Ipv6CidrBlockNetworkBorderGroup string
		TagSpecification                []TagSpecification
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	tags, err := specified(in.TagSpecification, "vpc")
	if err != nil {
		return nil, err
	}
	if err := s.allowNew(c, "CreateVpc", "vpc", tags, nil); err != nil {
		return nil, err
	}
	if err := required("cidrBlock", in.CidrBlock); err != nil {
		return nil, err
	}
	block, err := s.vpcBlock(in.CidrBlock)
	if err != nil {
		return nil, err
	}
	if in.InstanceTenancy == "" {
		in.InstanceTenancy = "default"
	}
	if !slices.Contains([]string{"default", "dedicated"}, in.InstanceTenancy) {
		return nil, invalid("instanceTenancy", in.InstanceTenancy)
	}
	if in.Ipv6CidrBlockNetworkBorderGroup != "" && in.Ipv6CidrBlockNetworkBorderGroup != s.cfg.Region {
		return nil, invalid("ipv6CidrBlockNetworkBorderGroup", in.Ipv6CidrBlockNetworkBorderGroup)
	}
	v := &vpc{
		entity: s.entity("vpc"), blocks: []cidrBlock{{newID("vpc-cidr-assoc"), block}}, tenancy: in.InstanceTenancy,
		dhcpOptions: "dopt-0fa4e5b6c7d8e9f01",
		dnsSupport:  true,
	}
	if in.AmazonProvidedIpv6CidrBlock {
		v.blocks6 = []cidrBlock{{newID("vpc-cidr-assoc"), s.newIPv6Block()}}
	}
	s.vpcs[v.id] = v
	s.SetTags(v.id, tags)
	table := s.newRouteTable(v)
	v.mainTable = table.id
	table.associations = []tableAssociation{{id: newID("rtbassoc"), main: true}}
	v.defaultACL = s.newACL(v).id
	group := s.newGroup(v, "default", "default VPC security group")
	v.defaultGroup = group.id
	s.addRule(group, securityRule{protocol: "-1", from: -1, to: -1, group: group.id, groupOwner: s.cfg.Account})
	return struct {
		VPC vpcXML `xml:"vpc"`
	}{s.vpcXML(v)}, nil
}

// vpcBlock reads an IPv4 block of a VPC, /16 to /28. It clears the host bits, as AWS does.
func (s *Service) vpcBlock(text string) (netip.Prefix, error) {
	block, err := netip.ParsePrefix(text)
	if err != nil || !block.Addr().Is4() {
		return netip.Prefix{},
			failf("InvalidParameterValue",
				"Value (%s) for parameter cidrBlock is invalid. This is not a valid CIDR block.", text)
	}
	if block.Bits() < 16 || block.Bits() > 28 {
		return netip.Prefix{}, failf("InvalidVpc.Range", "The CIDR '%s' is invalid.", text)
	}
	return block.Masked(), nil
}

// newIPv6Block returns the next free /56 of Amazon's addresses.
func (s *Service) newIPv6Block() netip.Prefix {
	s.blocksGiven++
	n := s.blocksGiven
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x26, 0x00, 0x1f, 0x14, byte(n >> 16), byte(n >> 8), byte(n), 0}),
		56)
}

func (s *Service) deleteVPC(c *wire.Call) (any, error) {
	v, err := s.vpcOf(c, "DeleteVpc")
	if err != nil {
		return nil, err
	}
	for _, used := range []bool{
		some(s.subnets, func(n *subnet) bool { return n.vpc == v.id }),
		some(s.interfaces, func(i *Interface) bool { return i.VPC == v.id }),
		some(s.gateways, func(g *internetGateway) bool { return g.vpc == v.id }),
		some(s.egressGateways, func(g *egressGateway) bool { return g.vpc == v.id }),
		some(s.natGateways, func(g *natGateway) bool { return g.vpc == v.id && g.deleted.IsZero() }),
		some(s.endpoints, func(e *endpoint) bool { return e.vpc == v.id }),
		some(s.routeTables, func(t *routeTable) bool { return t.vpc == v.id && t.id != v.mainTable }),
		some(s.groups, func(g *securityGroup) bool { return g.vpc == v.id && g.id != v.defaultGroup }),
	} {
		if used {
			return nil, failf("DependencyViolation", "The vpc '%s' has dependencies and cannot be deleted.", v.id)
		}
	}
	s.dropRules(v.defaultGroup)
	drop(s, s.groups, v.defaultGroup)
	drop(s, s.acls, v.defaultACL)
	drop(s, s.routeTables, v.mainTable)
	drop(s, s.vpcs, v.id)
	return ok, nil
}

// some reports whether fits is true for one of the table's values.
func some[T any](table map[string]T, fits func(T) bool) bool {
	for _, r := range table {
		if fits(r) {
			return true
		}
	}
	return false
}

// drop removes a resource and its tags.
func drop[T any](s *Service, table map[string]T, id string) {
	delete(table, id)
	s.setTags(id, nil)
}

// vpcOf decodes a call that has only a VpcId, and authorizes it.
func (s *Service) vpcOf(c *wire.Call, action string) (*vpc, error) {
	var in struct {
		ID string `query:"VpcId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, action, in.ID); err != nil {
		return nil, err
	}
	return s.vpcByID(in.ID)
}

func (s *Service) vpcByID(id string) (*vpc, error) {
	if id == "" {
		return nil, missing("vpcId")
	}
	if v := s.vpcs[id]; v != nil {
		return v, nil
	}
	return nil, failf("InvalidVpcID.NotFound", "The vpc ID '%s' does not exist", id)
}

// blockState is the state of a block's association.
type blockState struct {
	State string `xml:"state"`
}

type vpcBlockXML struct {
	Association string     `xml:"associationId"`
	Block       string     `xml:"cidrBlock"`
	State       blockState `xml:"cidrBlockState"`
}

type vpcBlock6XML struct {
	Association string     `xml:"associationId"`
	Block       string     `xml:"ipv6CidrBlock"`
	State       blockState `xml:"ipv6CidrBlockState"`
	BorderGroup string     `xml:"networkBorderGroup,omitempty"`
	Pool        string     `xml:"ipv6Pool,omitempty"`
	Attribute   string     `xml:"ipv6AddressAttribute"`
	Source      string     `xml:"ipSource"`
}

type vpcXML struct {
	ID          string         `xml:"vpcId"`
	Owner       string         `xml:"ownerId"`
	State       string         `xml:"state"`
	Block       string         `xml:"cidrBlock"`
	Blocks      []vpcBlockXML  `xml:"cidrBlockAssociationSet>item"`
	Blocks6     []vpcBlock6XML `xml:"ipv6CidrBlockAssociationSet>item"`
	DHCPOptions string         `xml:"dhcpOptionsId"`
	Tenancy     string         `xml:"instanceTenancy"`
	Default     bool           `xml:"isDefault"`
	Tags        []Tag          `xml:"tagSet>item"`
}

func (s *Service) vpcXML(v *vpc) vpcXML {
	out := vpcXML{
		ID: v.id, Owner: s.cfg.Account, State: "available", Block: v.blocks[0].prefix.String(),
		DHCPOptions: v.dhcpOptions, Tenancy: v.tenancy,
		Tags: s.tagList(v.id),
	}
	for _, b := range v.blocks {
		out.Blocks = append(out.Blocks, vpcBlockXML{b.association, b.prefix.String(), blockState{"associated"}})
	}
	for _, b := range v.blocks6 {
		out.Blocks6 = append(out.Blocks6, s.vpcBlock6XML(b, "associated"))
	}
	return out
}

func (s *Service) vpcBlock6XML(b cidrBlock, state string) vpcBlock6XML {
	return vpcBlock6XML{b.association, b.prefix.String(), blockState{state}, s.cfg.Region, "Amazon", "public", "amazon"}
}

func (s *Service) describeVPCs(c *wire.Call) (any, error) {
	var in struct {
		VpcID      []string `query:"VpcId"`
		Filter     []Filter
		MaxResults int
		NextToken  string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeVpcs"); err != nil {
		return nil, err
	}
	found, next, err := find(s, s.vpcs, query{in.VpcID, in.Filter, in.MaxResults, in.NextToken},
		map[string]func(*vpc) []string{
			"cidr": func(v *vpc) []string {
				return []string{v.blocks[0].prefix.String()}
			},
			"cidr-block": func(v *vpc) []string {
				return []string{v.blocks[0].prefix.String()}
			},
			"cidr-block-association.cidr-block":           func(v *vpc) []string { return prefixes(v.blocks) },
			"cidr-block-association.association-id":       func(v *vpc) []string { return associations(v.blocks) },
			"cidr-block-association.state":                func(v *vpc) []string { return states(v.blocks) },
			"dhcp-options-id":                             func(v *vpc) []string { return []string{v.dhcpOptions} },
			"ipv6-cidr-block-association.ipv6-cidr-block": func(v *vpc) []string { return prefixes(v.blocks6) },
			"ipv6-cidr-block-association.ipv6-pool": func(v *vpc) []string {
				return slices.Repeat([]string{"Amazon"}, len(v.blocks6))
			},
			"ipv6-cidr-block-association.association-id": func(v *vpc) []string { return associations(v.blocks6) },
			"ipv6-cidr-block-association.state":          func(v *vpc) []string { return states(v.blocks6) },
			"is-default":                                 func(*vpc) []string { return []string{"false"} },
			"isDefault":                                  func(*vpc) []string { return []string{"false"} },
			"owner-id":                                   func(*vpc) []string { return []string{s.cfg.Account} },
			"state":                                      func(*vpc) []string { return []string{"available"} },
			"vpc-id":                                     func(v *vpc) []string { return []string{v.id} },
		})
	if err != nil {
		return nil, err
	}
	return struct {
		Items []vpcXML `xml:"vpcSet>item"`
		Next  string   `xml:"nextToken,omitempty"`
	}{each(found, s.vpcXML), next}, nil
}

// each renders the results of a page.
func each[T, X any](list []T, render func(T) X) []X {
	out := make([]X, 0, len(list))
	for _, r := range list {
		out = append(out, render(r))
	}
	return out
}

func prefixes(blocks []cidrBlock) []string {
	return each(blocks, func(b cidrBlock) string { return b.prefix.String() })
}

func associations(blocks []cidrBlock) []string {
	return each(blocks, func(b cidrBlock) string { return b.association })
}

func states(blocks []cidrBlock) []string {
	return each(blocks, func(cidrBlock) string { return "associated" })
}

// random fills b with random bytes.
func random(b []byte) {
	_, _ = rand.Read(b) // never fails
}

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
	// DNS support and host names cannot be changed in the same request.
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
