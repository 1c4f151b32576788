package ec2

import (
	"slices"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// internetGateway connects a VPC to the internet.
type internetGateway struct {
	entity
	vpc string // "": not attached
}

// egressGateway allows IPv6 traffic out of a VPC, but not into it.
type egressGateway struct {
	entity
	vpc string
}

type gatewayAttachmentXML struct {
	State string `xml:"state"`
	VPC   string `xml:"vpcId"`
}

type internetGatewayXML struct {
	ID          string                 `xml:"internetGatewayId"`
	Owner       string                 `xml:"ownerId"`
	Attachments []gatewayAttachmentXML `xml:"attachmentSet>item"`
	Tags        []Tag                  `xml:"tagSet>item"`
}

func (s *Service) internetGatewayXML(g *internetGateway) internetGatewayXML {
	out := internetGatewayXML{ID: g.id, Owner: s.cfg.Account, Tags: s.tagList(g.id)}
	if g.vpc != "" {
		// The state of an attached internet gateway is "available", never "attached".
		out.Attachments = []gatewayAttachmentXML{{"available", g.vpc}}
	}
	return out
}

func (s *Service) createInternetGateway(c *wire.Call) (any, error) {
	var in struct{ TagSpecification []TagSpecification }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	tags, err := specified(in.TagSpecification, "internet-gateway")
	if err != nil {
		return nil, err
	}
	if err := s.allowNew(c, "CreateInternetGateway", "internet-gateway", tags, nil); err != nil {
		return nil, err
	}
	g := &internetGateway{entity: s.entity("igw")}
	s.gateways[g.id] = g
	s.SetTags(g.id, tags)
	return struct {
		Gateway internetGatewayXML `xml:"internetGateway"`
	}{s.internetGatewayXML(g)}, nil
}

// gatewayAndVPC decodes and authorizes a call about an internet gateway and, if withVPC is true, about a VPC.
func (s *Service) gatewayAndVPC(c *wire.Call, action string, withVPC bool) (*internetGateway, *vpc, error) {
	var in struct {
		InternetGatewayID string `query:"InternetGatewayId"`
		VpcID             string `query:"VpcId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, nil, err
	}
	ids := []string{in.InternetGatewayID}
	if withVPC {
		ids = append(ids, in.VpcID)
	}
	if err := s.allow(c, action, ids...); err != nil {
		return nil, nil, err
	}
	if err := required("internetGatewayId", in.InternetGatewayID); err != nil {
		return nil, nil, err
	}
	g := s.gateways[in.InternetGatewayID]
	if g == nil {
		return nil, nil, failf("InvalidInternetGatewayID.NotFound", "The internetGateway ID '%s' does not exist",
			in.InternetGatewayID)
	}
	if !withVPC {
		return g, nil, nil
	}
	v, err := s.vpcByID(in.VpcID)
	return g, v, err
}

func (s *Service) deleteInternetGateway(c *wire.Call) (any, error) {
	g, _, err := s.gatewayAndVPC(c, "DeleteInternetGateway", false)
	if err != nil {
		return nil, err
	}
	if g.vpc != "" {
		return nil, failf("DependencyViolation", "The internetGateway '%s' has dependencies and cannot be deleted.",
			g.id)
	}
	drop(s, s.gateways, g.id)
	return ok, nil
}

func (s *Service) attachInternetGateway(c *wire.Call) (any, error) {
	g, v, err := s.gatewayAndVPC(c, "AttachInternetGateway", true)
	if err != nil {
		return nil, err
	}
	if g.vpc != "" {
		return nil, failf("Resource.AlreadyAssociated", "resource %s is already attached to network %s", g.id, g.vpc)
	}
	if some(s.gateways, func(o *internetGateway) bool { return o.vpc == v.id }) {
		return nil, failf("InvalidParameterValue", "Network %s already has an internet gateway attached", v.id)
	}
	g.vpc = v.id
	return ok, nil
}

func (s *Service) detachInternetGateway(c *wire.Call) (any, error) {
	g, v, err := s.gatewayAndVPC(c, "DetachInternetGateway", true)
	if err != nil {
		return nil, err
	}
	if g.vpc != v.id {
		return nil, failf("Gateway.NotAttached", "resource %s is not attached to network %s", g.id, v.id)
	}
	if some(s.interfaces, func(i *Interface) bool { return i.VPC == v.id && s.PublicAddress(i).IsValid() }) {
		return nil,
			failf("DependencyViolation",
				"Network %s has some mapped public address(es). Please unmap those public address(es) before "+
					"detaching the gateway.", v.id)
	}
	for _, t := range s.routeTables {
		t.associations = slices.DeleteFunc(t.associations, func(a tableAssociation) bool { return a.gateway == g.id })
	}
	g.vpc = ""
	return ok, nil
}

func (s *Service) describeInternetGateways(c *wire.Call) (any, error) {
	var in struct {
		InternetGatewayID []string `query:"InternetGatewayId"`
		Filter            []Filter
		MaxResults        int
		NextToken         string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeInternetGateways"); err != nil {
		return nil, err
	}
	q := query{in.InternetGatewayID, in.Filter, in.MaxResults, in.NextToken}
	attached := func(value func(*internetGateway) string) func(*internetGateway) []string {
		return func(g *internetGateway) []string {
			if g.vpc == "" {
				return nil
			}
			return []string{value(g)}
		}
	}
	found, next, err := find(s, s.gateways, q, map[string]func(*internetGateway) []string{
		"attachment.state":    attached(func(*internetGateway) string { return "available" }),
		"attachment.vpc-id":   attached(func(g *internetGateway) string { return g.vpc }),
		"internet-gateway-id": func(g *internetGateway) []string { return []string{g.id} },
		"owner-id":            func(*internetGateway) []string { return []string{s.cfg.Account} },
	})
	if err != nil {
		return nil, err
	}
	return struct {
		Items []internetGatewayXML `xml:"internetGatewaySet>item"`
		Next  string               `xml:"nextToken,omitempty"`
	}{each(found, s.internetGatewayXML), next}, nil
}

type egressGatewayXML struct {
	ID          string                 `xml:"egressOnlyInternetGatewayId"`
	Attachments []gatewayAttachmentXML `xml:"attachmentSet>item"`
	Tags        []Tag                  `xml:"tagSet>item"`
}

func (s *Service) egressGatewayXML(g *egressGateway) egressGatewayXML {
	return egressGatewayXML{g.id, []gatewayAttachmentXML{{"attached", g.vpc}}, s.tagList(g.id)}
}

func (s *Service) createEgressGateway(c *wire.Call) (any, error) {
	var in struct {
		VpcID            string `query:"VpcId"`
		ClientToken      string
		TagSpecification []TagSpecification
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	tags, err := specified(in.TagSpecification, "egress-only-internet-gateway")
	if err != nil {
		return nil, err
	}
	if err := s.allowNew(c, "CreateEgressOnlyInternetGateway", "egress-only-internet-gateway", tags,
		policy.Context{}); err != nil {
		return nil, err
	}
	if err := s.allow(c, "CreateEgressOnlyInternetGateway", in.VpcID); err != nil {
		return nil, err
	}
	v, err := s.vpcByID(in.VpcID)
	if err != nil {
		return nil, err
	}
	id, err := s.replayed(c, in.ClientToken)
	if err != nil {
		return nil, err
	}
	g := s.egressGateways[id]
	if g == nil {
		g = &egressGateway{entity: s.entity("eigw"), vpc: v.id}
		s.egressGateways[g.id] = g
		s.SetTags(g.id, tags)
		s.remember(c, in.ClientToken, g.id)
	}
	return struct {
		Gateway     egressGatewayXML `xml:"egressOnlyInternetGateway"`
		ClientToken string           `xml:"clientToken,omitempty"`
	}{s.egressGatewayXML(g), in.ClientToken}, nil
}

func (s *Service) deleteEgressGateway(c *wire.Call) (any, error) {
	var in struct {
		ID string `query:"EgressOnlyInternetGatewayId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "DeleteEgressOnlyInternetGateway", in.ID); err != nil {
		return nil, err
	}
	if err := required("egressOnlyInternetGatewayId", in.ID); err != nil {
		return nil, err
	}
	if s.egressGateways[in.ID] == nil {
		return nil, s.notFound(in.ID)
	}
	drop(s, s.egressGateways, in.ID)
	return struct {
		Done bool `xml:"returnCode"`
	}{true}, nil
}

func (s *Service) describeEgressGateways(c *wire.Call) (any, error) {
	var in struct {
		IDs        []string `query:"EgressOnlyInternetGatewayId"`
		Filter     []Filter
		MaxResults int
		NextToken  string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeEgressOnlyInternetGateways"); err != nil {
		return nil, err
	}
	found, _, err := find(s, s.egressGateways, query{filters: in.Filter}, nil)
	if err != nil {
		return nil, err
	}
	// In DescribeEgressOnlyInternetGateways, an unknown ID is not an error: the answer is empty.
	if len(in.IDs) > 0 {
		found = slices.DeleteFunc(found, func(g *egressGateway) bool { return !slices.Contains(in.IDs, g.id) })
	}
	page, next, err := paged(found, in.MaxResults, in.NextToken)
	if err != nil {
		return nil, err
	}
	return struct {
		Items []egressGatewayXML `xml:"egressOnlyInternetGatewaySet>item"`
		Next  string             `xml:"nextToken,omitempty"`
	}{each(page, s.egressGatewayXML), next}, nil
}

// natVisible is the time that a deleted NAT gateway is still described: "usually about an hour".
// https://docs.aws.amazon.com/vpc/latest/userguide/nat-gateway-working-with.html
const natVisible = time.Hour

// natGateway translates the private addresses of a VPC.
type natGateway struct {
	entity
	vpc, subnet string
	private     bool // the connectivity type is private, not public
	iface       string
	final       []natAddressXML // its addresses at the time of deletion
	deleted     time.Time       // time of deletion; zero: not deleted
}

func (s *Service) natByID(id string) (*natGateway, error) {
	s.forgetNATs()
	if g := s.natGateways[id]; g != nil {
		return g, nil
	}
	if id == "" {
		return nil, missing("natGatewayId")
	}
	return nil, failf("NatGatewayNotFound", "The Nat Gateway %s was not found", id)
}

// forgetNATs removes the NAT gateways whose deletion was at least natVisible ago.
func (s *Service) forgetNATs() {
	for id, g := range s.natGateways {
		if !g.deleted.IsZero() && s.now().Sub(g.deleted) >= natVisible {
			drop(s, s.natGateways, id)
		}
	}
}

// natInput holds the parameters of CreateNatGateway.
type natInput struct {
	SubnetID                       string   `query:"SubnetId"`
	AllocationID                   string   `query:"AllocationId"`
	SecondaryAllocationID          []string `query:"SecondaryAllocationId"`
	ConnectivityType               string
	PrivateIPAddress               string   `query:"PrivateIpAddress"`
	SecondaryPrivateIPAddress      []string `query:"SecondaryPrivateIpAddress"`
	SecondaryPrivateIPAddressCount int      `query:"SecondaryPrivateIpAddressCount"`
	ClientToken                    string
	TagSpecification               []TagSpecification
}

func (s *Service) createNAT(c *wire.Call) (any, error) {
	var in natInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	tags, err := specified(in.TagSpecification, "natgateway")
	if err != nil {
		return nil, err
	}
	if err := s.allowNew(c, "CreateNatGateway", "natgateway", tags, nil); err != nil {
		return nil, err
	}
	ids := slices.DeleteFunc(append([]string{in.SubnetID, in.AllocationID}, in.SecondaryAllocationID...),
		func(id string) bool {
			return id == ""
		})
	if err := s.allow(c, "CreateNatGateway", ids...); err != nil {
		return nil, err
	}
	id, err := s.replayed(c, in.ClientToken)
	if err != nil {
		return nil, err
	}
	g := s.natGateways[id]
	if g == nil {
		if g, err = s.newNAT(in); err != nil {
			return nil, err
		}
		s.SetTags(g.id, tags)
		s.remember(c, in.ClientToken, g.id)
	}
	answer := s.natXML(g)
	answer.State = "pending"
	return struct {
		Gateway     natXML `xml:"natGateway"`
		ClientToken string `xml:"clientToken,omitempty"`
	}{answer, in.ClientToken}, nil
}

func (s *Service) newNAT(in natInput) (*natGateway, error) {
	n, err := s.subnetByID(in.SubnetID)
	if err != nil {
		return nil, err
	}
	private := in.ConnectivityType == "private"
	switch {
	case !slices.Contains([]string{"", "public", "private"}, in.ConnectivityType):
		return nil, invalid("connectivityType", in.ConnectivityType)
	case private && in.AllocationID != "":
		return nil, failf("InvalidParameterCombination", "AllocationId is not supported with connectivityType private")
	case !private && in.AllocationID == "":
		return nil, missing("AllocationId")
	case !n.block.IsValid():
		return nil, failf("InvalidParameterValue", "The IPv6-only subnet '%s' cannot have a NAT gateway", n.id)
	}
	var elastic []*address
	if !private {
		for _, id := range append([]string{in.AllocationID}, in.SecondaryAllocationID...) {
			a, err := s.addressBy(id, "")
			if err != nil {
				return nil, err
			}
			if a.association != "" || slices.Contains(elastic, a) {
				return nil, failf("Resource.AlreadyAssociated", "Elastic IP address [%s] is already associated", a.id)
			}
			elastic = append(elastic, a)
		}
		if !some(s.gateways, func(g *internetGateway) bool { return g.vpc == n.vpc }) {
			return nil, failf("Gateway.NotAttached", "Network %s has no Internet gateway attached", n.vpc)
		}
	}
	spec := InterfaceSpec{Subnet: n.id, Type: "nat_gateway", Requester: "amazon-nat",
		Secondary: in.SecondaryPrivateIPAddressCount}
	for _, text := range append([]string{in.PrivateIPAddress}, in.SecondaryPrivateIPAddress...) {
		if text == "" {
			continue
		}
		a, err := parseAddress("privateIpAddress", text, false)
		if err != nil {
			return nil, err
		}
		spec.Addresses = append(spec.Addresses, a)
	}
	// Each elastic address needs its own private address.
	if wanted := max(1, len(spec.Addresses)) + spec.Secondary; len(elastic) > wanted {
		spec.Secondary += len(elastic) - wanted
	}
	i, err := s.CreateInterface(spec)
	if err != nil {
		return nil, err
	}
	g := &natGateway{entity: s.entity("nat"), vpc: n.vpc, subnet: n.id, private: private, iface: i.id}
	i.Description = "Interface for NAT Gateway " + g.id
	for at, a := range elastic {
		a.associate(i, i.IPv4[at], g.id)
	}
	s.natGateways[g.id] = g
	return g, nil
}

func (s *Service) deleteNAT(c *wire.Call) (any, error) {
	var in struct {
		NatGatewayID string `query:"NatGatewayId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "DeleteNatGateway", in.NatGatewayID); err != nil {
		return nil, err
	}
	g, err := s.natByID(in.NatGatewayID)
	if err != nil {
		return nil, err
	}
	if g.deleted.IsZero() {
		g.final = s.natAddresses(g)
		g.deleted = s.now()
		s.DeleteInterface(g.iface)
	}
	return struct {
		ID string `xml:"natGatewayId"`
	}{g.id}, nil
}

type natAddressXML struct {
	Allocation  string `xml:"allocationId,omitempty"`
	Association string `xml:"associationId,omitempty"`
	Public      string `xml:"publicIp,omitempty"`
	Private     string `xml:"privateIp"`
	Interface   string `xml:"networkInterfaceId"`
	Primary     bool   `xml:"isPrimary"`
	Status      string `xml:"status"`
}

type natXML struct {
	ID           string          `xml:"natGatewayId"`
	VPC          string          `xml:"vpcId"`
	Subnet       string          `xml:"subnetId"`
	State        string          `xml:"state"`
	Connectivity string          `xml:"connectivityType"`
	Created      string          `xml:"createTime"`
	Deleted      string          `xml:"deleteTime,omitempty"`
	Addresses    []natAddressXML `xml:"natGatewayAddressSet>item"`
	Tags         []Tag           `xml:"tagSet>item"`
}

func (s *Service) natAddresses(g *natGateway) []natAddressXML {
	if !g.deleted.IsZero() {
		return g.final
	}
	i := s.interfaces[g.iface]
	var list []natAddressXML
	for at, private := range i.IPv4 {
		x := natAddressXML{Private: private.String(), Interface: i.id, Primary: at == 0, Status: "succeeded"}
		if p := s.publicAssociation(i, private); p != nil {
			x.Allocation, x.Association, x.Public = p.Allocation, p.ID, p.Public
		}
		list = append(list, x)
	}
	return list
}

func (g *natGateway) connectivity() string {
	if g.private {
		return "private"
	}
	return "public"
}

func (g *natGateway) state() string {
	if g.deleted.IsZero() {
		return "available"
	}
	return "deleted"
}

func (s *Service) natXML(g *natGateway) natXML {
	out := natXML{
		ID: g.id, VPC: g.vpc, Subnet: g.subnet, State: g.state(), Connectivity: g.connectivity(),
		Created: timestamp(g.created), Addresses: s.natAddresses(g),
		Tags: s.tagList(g.id),
	}
	if !g.deleted.IsZero() {
		out.Deleted = timestamp(g.deleted)
	}
	return out
}

func (s *Service) describeNATs(c *wire.Call) (any, error) {
	var in struct {
		NatGatewayID []string `query:"NatGatewayId"`
		Filter       []Filter
		MaxResults   int
		NextToken    string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeNatGateways"); err != nil {
		return nil, err
	}
	s.forgetNATs()
	q := query{in.NatGatewayID, in.Filter, in.MaxResults, in.NextToken}
	found, next, err := find(s, s.natGateways, q, map[string]func(*natGateway) []string{
		"connectivity-type": func(g *natGateway) []string { return []string{g.connectivity()} },
		"nat-gateway-id":    func(g *natGateway) []string { return []string{g.id} },
		"state":             func(g *natGateway) []string { return []string{g.state()} },
		"subnet-id":         func(g *natGateway) []string { return []string{g.subnet} },
		"vpc-id":            func(g *natGateway) []string { return []string{g.vpc} },
	})
	if err != nil {
		return nil, err
	}
	return struct {
		Items []natXML `xml:"natGatewaySet>item"`
		Next  string   `xml:"nextToken,omitempty"`
	}{each(found, s.natXML), next}, nil
}
