package ec2

import (
	"slices"

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
