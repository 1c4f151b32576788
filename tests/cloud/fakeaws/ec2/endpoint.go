package ec2

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// fullAccess is the default policy of an endpoint.
const fullAccess = "{\n  \"Version\": \"2008-10-17\",\n  \"Statement\": [\n    {\n      \"Effect\": \"Allow\",\n    " +
	"  \"Principal\": \"*\",\n      \"Action\": \"*\"," +
	"\n      \"Resource\": \"*\"\n    }\n  ]\n}"

// endpoint makes a service reachable in a VPC. A Gateway endpoint uses a prefix list in route tables. An Interface
// endpoint uses network interfaces.
type endpoint struct {
	entity
	vpc, service, kind string // kind is Gateway or Interface
	policy             string
	tables             []string          // Gateway: route tables
	interfaces         map[string]string // Interface: interface IDs by subnet
	groups             []string
	privateDNS         bool
	addressType        string // ipv4, dualstack, ipv6
	dnsType            string // ipv4, dualstack, ipv6, service-defined
	inboundOnly        *bool
}

// endpointSubnet is a SubnetConfiguration: the requested addresses in a subnet.
type endpointSubnet struct {
	SubnetID string `query:"SubnetId"`
	Ipv4     string
	Ipv6     string
}

type dnsInput struct {
	DNSRecordIPType                          string `query:"DnsRecordIpType"`
	PrivateDNSOnlyForInboundResolverEndpoint *bool  `query:"PrivateDnsOnlyForInboundResolverEndpoint"`
}

type endpointInput struct {
	VpcID               string `query:"VpcId"`
	ServiceName         string
	VpcEndpointType     string
	PolicyDocument      string
	RouteTableID        []string `query:"RouteTableId"`
	SubnetID            []string `query:"SubnetId"`
	SecurityGroupID     []string `query:"SecurityGroupId"`
	SubnetConfiguration []endpointSubnet
	PrivateDNSEnabled   *bool     `query:"PrivateDnsEnabled"`
	IPAddressType       string    `query:"IpAddressType"`
	DNSOptions          *dnsInput `query:"DnsOptions"`
	ServiceRegion       string
	ClientToken         string
	TagSpecification    []TagSpecification
}

func (s *Service) createEndpoint(c *wire.Call) (any, error) {
	var in endpointInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	tags, err := specified(in.TagSpecification, "vpc-endpoint")
	if err != nil {
		return nil, err
	}
	if err := s.allowNew(c, "CreateVpcEndpoint", "vpc-endpoint", tags,
		map[string][]string{"ec2:VpceServiceName": {in.ServiceName}}); err != nil {
		return nil, err
	}
	if err := s.allow(c, "CreateVpcEndpoint", slices.Concat([]string{in.VpcID}, in.RouteTableID, in.SubnetID,
		in.SecurityGroupID)...); err != nil {
		return nil, err
	}
	id, err := s.replayed(c, in.ClientToken)
	if err != nil {
		return nil, err
	}
	e := s.endpoints[id]
	state := "available"
	if e == nil {
		if e, err = s.newEndpoint(in); err != nil {
			return nil, err
		}
		s.SetTags(e.id, tags)
		s.remember(c, in.ClientToken, e.id)
		if e.kind == "Interface" {
			state = "pending"
		}
	}
	answer := s.endpointXML(e)
	answer.State = state
	return struct {
		Endpoint    endpointXML `xml:"vpcEndpoint"`
		ClientToken string      `xml:"clientToken,omitempty"`
	}{answer, in.ClientToken}, nil
}

func (s *Service) newEndpoint(in endpointInput) (*endpoint, error) {
	v, err := s.vpcByID(in.VpcID)
	if err != nil {
		return nil, err
	}
	if err := required("serviceName", in.ServiceName); err != nil {
		return nil, err
	}
	if in.ServiceRegion != "" && in.ServiceRegion != s.cfg.Region {
		return nil, invalid("serviceRegion", in.ServiceRegion)
	}
	e := &endpoint{vpc: v.id, service: in.ServiceName, kind: cmp.Or(in.VpcEndpointType, "Gateway"),
		interfaces: map[string]string{}}
	if !slices.ContainsFunc(s.endpointServices(), func(x endpointService) bool {
		return x.name == e.service && x.kind == e.kind
	}) {
		return nil, failf("InvalidServiceName", "The Vpc Endpoint Service '%s' does not exist", in.ServiceName)
	}
	if e.policy, err = endpointPolicy(in.PolicyDocument); err != nil {
		return nil, err
	}
	if e.kind == "Gateway" {
		return e, s.newGatewayEndpoint(e, in)
	}
	return e, s.newInterfaceEndpoint(e, v, in)
}

func endpointPolicy(document string) (string, error) {
	if document == "" {
		return fullAccess, nil
	}
	var any map[string]json.RawMessage
	if err := json.Unmarshal([]byte(document), &any); err != nil || any["Statement"] == nil {
		return "", failf("InvalidPolicyDocument", "Invalid Policy Document")
	}
	return document, nil
}

func (s *Service) newGatewayEndpoint(e *endpoint, in endpointInput) error {
	switch {
	case len(in.SubnetID)+len(in.SecurityGroupID)+len(in.SubnetConfiguration) > 0:
		return failf("InvalidParameter", "SubnetIds and SecurityGroupIds are not supported for Gateway Endpoints.")
	case in.PrivateDNSEnabled != nil && *in.PrivateDNSEnabled:
		return failf("InvalidParameter", "Private DNS is not supported for Gateway Endpoints.")
	case in.IPAddressType != "" && in.IPAddressType != "ipv4":
		return invalid("ipAddressType", in.IPAddressType)
	}
	e.addressType, e.dnsType = "ipv4", "service-defined"
	if err := s.addTables(e, in.RouteTableID); err != nil {
		return err
	}
	e.entity = s.entity("vpce")
	s.endpoints[e.id] = e
	return nil
}

// addTables adds a gateway endpoint's routes to route tables. A table has at most one route to each service.
func (s *Service) addTables(e *endpoint, ids []string) error {
	tables := slices.Clone(e.tables)
	for _, id := range ids {
		t, err := s.tableByID(id)
		if err != nil {
			return err
		}
		if t.vpc != e.vpc {
			return failf("InvalidParameter", "Route table %s and the endpoint belong to different networks", id)
		}
		if slices.Contains(tables, id) {
			continue
		}
		if some(s.endpoints, func(o *endpoint) bool {
			return o != e && o.service == e.service && slices.Contains(o.tables, id)
		}) {
			return failf("RouteAlreadyExists", "route table %s already has a route with destination-prefix-list-id %s",
				id, s.servicePrefixList(e.service).id)
		}
		tables = append(tables, id)
	}
	e.tables = tables
	return nil
}

func (s *Service) newInterfaceEndpoint(e *endpoint, v *vpc, in endpointInput) error {
	if len(in.RouteTableID) > 0 {
		return failf("InvalidParameter", "RouteTableIds are not supported for Interface Endpoints.")
	}
	e.addressType = cmp.Or(in.IPAddressType, "ipv4")
	if !slices.Contains([]string{"ipv4", "dualstack", "ipv6"}, e.addressType) {
		return invalid("ipAddressType", e.addressType)
	}
	e.dnsType = e.addressType
	if err := e.setDNS(in.DNSOptions); err != nil {
		return err
	}
	e.privateDNS = in.PrivateDNSEnabled == nil || *in.PrivateDNSEnabled
	if err := s.checkPrivateDNS(e, v); err != nil {
		return err
	}
	e.groups = in.SecurityGroupID
	if len(e.groups) == 0 {
		e.groups = []string{v.defaultGroup}
	}
	if err := s.CheckGroups(v.id, e.groups); err != nil {
		return err
	}
	e.entity = s.entity("vpce")
	if err := s.addSubnets(e, in.SubnetID, in.SubnetConfiguration); err != nil {
		return err
	}
	s.endpoints[e.id] = e
	return nil
}

func (e *endpoint) setDNS(in *dnsInput) error {
	if in == nil {
		return nil
	}
	if in.DNSRecordIPType != "" {
		if !slices.Contains([]string{"ipv4", "dualstack", "ipv6", "service-defined"}, in.DNSRecordIPType) {
			return invalid("dnsRecordIpType", in.DNSRecordIPType)
		}
		e.dnsType = in.DNSRecordIPType
	}
	if in.PrivateDNSOnlyForInboundResolverEndpoint != nil {
		e.inboundOnly = in.PrivateDNSOnlyForInboundResolverEndpoint
	}
	return nil
}

func (s *Service) checkPrivateDNS(e *endpoint, v *vpc) error {
	if !e.privateDNS {
		return nil
	}
	if !v.dnsSupport || !v.dnsHostnames {
		return failf("InvalidParameter",
			"Enabling private DNS requires both enableDnsSupport and enableDnsHostnames VPC attributes set to true "+
				"for %s", v.id)
	}
	if some(s.endpoints, func(o *endpoint) bool {
		return o != e && o.vpc == v.id && o.service == e.service && o.privateDNS
	}) {
		return failf("InvalidParameter",
			"private-dns-enabled cannot be set because there is already a conflicting DNS domain for %s in the VPC %s",
			s.privateServiceName(e.service), v.id)
	}
	return nil
}

// addSubnets creates an interface endpoint's network interfaces in subnets, at most one per zone. On an error it
// creates none.
func (s *Service) addSubnets(e *endpoint, ids []string, wanted []endpointSubnet) error {
	specs := map[string]InterfaceSpec{}
	zones := map[string]bool{}
	for id := range e.interfaces {
		zones[s.subnets[id].zone] = true
	}
	for _, w := range wanted {
		if !slices.Contains(ids, w.SubnetID) && e.interfaces[w.SubnetID] == "" {
			ids = append(ids, w.SubnetID)
		}
	}
	for _, id := range ids {
		n, err := s.subnetByID(id)
		switch {
		case err != nil:
			return err
		case n.vpc != e.vpc:
			return failf("InvalidParameter", "The subnet %s and the endpoint belong to different networks", id)
		case e.interfaces[id] != "":
			continue
		case zones[n.zone]:
			return failf("DuplicateSubnetsInSameZone",
				"Found another VPC endpoint subnet in the availability zone of %s", id)
		case e.addressType != "ipv4" && len(n.blocks6) == 0, e.addressType != "ipv6" && n.native:
			return failf("InvalidParameter", "The subnet %s does not support the IP address type %s", id, e.addressType)
		}
		zones[n.zone] = true
		spec := InterfaceSpec{
			Subnet: id, Type: "vpc_endpoint", Requester: "amazon-vpce", Groups: e.groups,
			Description: "VPC Endpoint Interface " + e.id,
		}
		if e.addressType != "ipv4" {
			spec.IPv6Count = 1
		}
		for _, w := range wanted {
			if w.SubnetID != id {
				continue
			}
			if w.Ipv4 != "" {
				a, err := parseAddress("ipv4", w.Ipv4, false)
				if err != nil {
					return err
				}
				spec.Addresses = []netip.Addr{a}
			}
			if w.Ipv6 != "" {
				a, err := parseAddress("ipv6", w.Ipv6, true)
				if err != nil {
					return err
				}
				spec.IPv6, spec.IPv6Count = []netip.Addr{a}, 0
			}
		}
		specs[id] = spec
	}
	var made []string
	for id, spec := range specs {
		i, err := s.CreateInterface(spec)
		if err != nil {
			for _, subnetID := range made {
				s.DeleteInterface(e.interfaces[subnetID])
				delete(e.interfaces, subnetID)
			}
			return err
		}
		e.interfaces[id] = i.id
		made = append(made, id)
	}
	return nil
}

type dnsEntryXML struct {
	Name string `xml:"dnsName"`
	Zone string `xml:"hostedZoneId"`
}

type dnsOptionsXML struct {
	Type        string `xml:"dnsRecordIpType"`
	InboundOnly *bool  `xml:"privateDnsOnlyForInboundResolverEndpoint"`
}

type endpointXML struct {
	ID               string        `xml:"vpcEndpointId"`
	Type             string        `xml:"vpcEndpointType"`
	VPC              string        `xml:"vpcId"`
	Service          string        `xml:"serviceName"`
	ServiceRegion    string        `xml:"serviceRegion"`
	State            string        `xml:"state"`
	Policy           string        `xml:"policyDocument"`
	Tables           []string      `xml:"routeTableIdSet>item"`
	Subnets          []string      `xml:"subnetIdSet>item"`
	Groups           []groupRefXML `xml:"groupSet>item"`
	AddressType      string        `xml:"ipAddressType"`
	DNS              dnsOptionsXML `xml:"dnsOptions"`
	PrivateDNS       bool          `xml:"privateDnsEnabled"`
	RequesterManaged bool          `xml:"requesterManaged"`
	Interfaces       []string      `xml:"networkInterfaceIdSet>item"`
	Entries          []dnsEntryXML `xml:"dnsEntrySet>item"`
	Created          string        `xml:"creationTimestamp"`
	Owner            string        `xml:"ownerId"`
	Tags             []Tag         `xml:"tagSet>item"`
}

func (s *Service) endpointXML(e *endpoint) endpointXML {
	out := endpointXML{
		ID: e.id, Type: e.kind, VPC: e.vpc, Service: e.service, ServiceRegion: s.cfg.Region, State: "available",
		Policy: e.policy, Tables: e.tables,
		Groups: s.groupRefs(e.groups), AddressType: e.addressType, DNS: dnsOptionsXML{e.dnsType, e.inboundOnly},
		PrivateDNS: e.privateDNS,
		Created:    timestamp(e.created), Owner: s.cfg.Account, Tags: s.tagList(e.id),
	}
	if e.kind != "Interface" {
		return out
	}
	base := e.id + "-" + e.id[len(e.id)-8:]
	service := e.service[strings.LastIndex(e.service, ".")+1:] + "." + s.cfg.Region + ".vpce.amazonaws.com"
	out.Entries = []dnsEntryXML{{base + "." + service, "Z1YSA3EXCYUU9Z"}}
	for _, n := range sorted(s.subnets) {
		if i := e.interfaces[n.id]; i != "" {
			out.Subnets, out.Interfaces = append(out.Subnets, n.id), append(out.Interfaces, i)
			out.Entries = append(out.Entries, dnsEntryXML{base + "-" + n.zone + "." + service, "Z1YSA3EXCYUU9Z"})
		}
	}
	if e.privateDNS {
		out.Entries = append(out.Entries, dnsEntryXML{s.privateServiceName(e.service), "Z0" +
			strings.ToUpper(e.id[len(e.id)-12:])})
	}
	return out
}

func (s *Service) describeEndpoints(c *wire.Call) (any, error) {
	var in struct {
		VpcEndpointID []string `query:"VpcEndpointId"`
		Filter        []Filter
		MaxResults    int
		NextToken     string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeVpcEndpoints"); err != nil {
		return nil, err
	}
	found, next, err := find(s, s.endpoints, query{in.VpcEndpointID, in.Filter, in.MaxResults, in.NextToken},
		map[string]func(*endpoint) []string{
			"ip-address-type":    func(e *endpoint) []string { return []string{e.addressType} },
			"service-name":       func(e *endpoint) []string { return []string{e.service} },
			"service-region":     func(*endpoint) []string { return []string{s.cfg.Region} },
			"vpc-endpoint-id":    func(e *endpoint) []string { return []string{e.id} },
			"vpc-endpoint-state": func(*endpoint) []string { return []string{"available"} },
			"vpc-endpoint-type":  func(e *endpoint) []string { return []string{e.kind} },
			"vpc-id":             func(e *endpoint) []string { return []string{e.vpc} },
		})
	if err != nil {
		return nil, err
	}
	return struct {
		Items []endpointXML `xml:"vpcEndpointSet>item"`
		Next  string        `xml:"nextToken,omitempty"`
	}{each(found, s.endpointXML), next}, nil
}
