package ec2

import (
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// routeTable holds the routes for the packets from its subnets.
type routeTable struct {
	entity
	vpc          string
	routes       []route // without local routes, which follow from the VPC's blocks
	associations []tableAssociation
}

// tableAssociation associates a table with a subnet, a gateway, or the VPC as its main table.
type tableAssociation struct {
	id      string
	subnet  string
	gateway string // an internet gateway: routes of incoming traffic
	main    bool
}

func (s *Service) newRouteTable(v *vpc) *routeTable {
	t := &routeTable{entity: s.entity("rtb"), vpc: v.id}
	s.routeTables[t.id] = t
	return t
}

func (s *Service) tableByID(id string) (*routeTable, error) {
	if id == "" {
		return nil, missing("routeTableId")
	}
	if t := s.routeTables[id]; t != nil {
		return t, nil
	}
	return nil, failf("InvalidRouteTableID.NotFound", "The routeTable ID '%s' does not exist", id)
}

func (s *Service) createRouteTable(c *wire.Call) (any, error) {
	var in struct {
		VpcID            string `query:"VpcId"`
		ClientToken      string
		TagSpecification []TagSpecification
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	tags, err := specified(in.TagSpecification, "route-table")
	if err != nil {
		return nil, err
	}
	if err := s.allowNew(c, "CreateRouteTable", "route-table", tags, policy.Context{
		"ec2:Vpc": {s.arn("vpc", in.VpcID)}}); err != nil {
		return nil, err
	}
	if err := s.allow(c, "CreateRouteTable", in.VpcID); err != nil {
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
	t := s.routeTables[id]
	if t == nil {
		t = s.newRouteTable(v)
		s.SetTags(t.id, tags)
		s.remember(c, in.ClientToken, t.id)
	}
	return struct {
		Table       routeTableXML `xml:"routeTable"`
		ClientToken string        `xml:"clientToken,omitempty"`
	}{s.routeTableXML(t), in.ClientToken}, nil
}

func (s *Service) deleteRouteTable(c *wire.Call) (any, error) {
	var in struct {
		RouteTableID string `query:"RouteTableId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "DeleteRouteTable", in.RouteTableID); err != nil {
		return nil, err
	}
	t, err := s.tableByID(in.RouteTableID)
	if err != nil {
		return nil, err
	}
	if len(t.associations) > 0 || t.id == s.vpcs[t.vpc].mainTable {
		return nil, failf("DependencyViolation", "The routeTable '%s' has dependencies and cannot be deleted.", t.id)
	}
	for _, e := range s.endpoints {
		e.tables = slices.DeleteFunc(e.tables, func(id string) bool { return id == t.id })
	}
	drop(s, s.routeTables, t.id)
	return ok, nil
}

type tableAssociationXML struct {
	ID      string     `xml:"routeTableAssociationId"`
	Table   string     `xml:"routeTableId"`
	Subnet  string     `xml:"subnetId,omitempty"`
	Gateway string     `xml:"gatewayId,omitempty"`
	Main    bool       `xml:"main"`
	State   blockState `xml:"associationState"`
}

type routeTableXML struct {
	ID           string                `xml:"routeTableId"`
	VPC          string                `xml:"vpcId"`
	Owner        string                `xml:"ownerId"`
	Routes       []routeXML            `xml:"routeSet>item"`
	Associations []tableAssociationXML `xml:"associationSet>item"`
	Tags         []Tag                 `xml:"tagSet>item"`
}

func (s *Service) routeTableXML(t *routeTable) routeTableXML {
	out := routeTableXML{ID: t.id, VPC: t.vpc, Owner: s.cfg.Account, Routes: each(s.allRoutes(t), s.routeXML),
		Tags: s.tagList(t.id)}
	for _, a := range t.associations {
		out.Associations = append(out.Associations, tableAssociationXML{a.id, t.id, a.subnet, a.gateway, a.main,
			blockState{"associated"}})
	}
	return out
}

func (s *Service) describeRouteTables(c *wire.Call) (any, error) {
	var in struct {
		RouteTableID []string `query:"RouteTableId"`
		Filter       []Filter
		MaxResults   int
		NextToken    string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeRouteTables"); err != nil {
		return nil, err
	}
	of := func(value func(tableAssociation) string) func(*routeTable) []string {
		return func(t *routeTable) []string { return each(t.associations, value) }
	}
	route := func(value func(routeXML) string) func(*routeTable) []string {
		return func(t *routeTable) []string { return each(each(s.allRoutes(t), s.routeXML), value) }
	}
	found, next, err := find(s, s.routeTables, query{in.RouteTableID, in.Filter, in.MaxResults, in.NextToken},
		map[string]func(*routeTable) []string{
			"association.gateway-id":                 of(func(a tableAssociation) string { return a.gateway }),
			"association.main":                       of(func(a tableAssociation) string { return flag(a.main)[0] }),
			"association.route-table-association-id": of(func(a tableAssociation) string { return a.id }),
			"association.route-table-id": func(t *routeTable) []string {
				return slices.Repeat([]string{t.id}, min(1, len(t.associations)))
			},
			"association.subnet-id":                 of(func(a tableAssociation) string { return a.subnet }),
			"owner-id":                              func(*routeTable) []string { return []string{s.cfg.Account} },
			"route-table-id":                        func(t *routeTable) []string { return []string{t.id} },
			"route.destination-cidr-block":          route(func(r routeXML) string { return r.Block }),
			"route.destination-ipv6-cidr-block":     route(func(r routeXML) string { return r.Block6 }),
			"route.destination-prefix-list-id":      route(func(r routeXML) string { return r.PrefixList }),
			"route.egress-only-internet-gateway-id": route(func(r routeXML) string { return r.EgressOnly }),
			"route.gateway-id":                      route(func(r routeXML) string { return r.Gateway }),
			"route.instance-id":                     route(func(r routeXML) string { return r.Instance }),
			"route.nat-gateway-id":                  route(func(r routeXML) string { return r.NAT }),
			"route.origin":                          route(func(r routeXML) string { return r.Origin }),
			"route.state":                           route(func(r routeXML) string { return r.State }),
			"route.transit-gateway-id":              func(*routeTable) []string { return nil },
			"route.vpc-peering-connection-id":       func(*routeTable) []string { return nil },
			"vpc-id":                                func(t *routeTable) []string { return []string{t.vpc} },
		})
	if err != nil {
		return nil, err
	}
	return struct {
		Items []routeTableXML `xml:"routeTableSet>item"`
		Next  string          `xml:"nextToken,omitempty"`
	}{each(found, s.routeTableXML), next}, nil
}

type associationAnswer struct {
	ID    string     `xml:"associationId,omitempty"`
	NewID string     `xml:"newAssociationId,omitempty"`
	State blockState `xml:"associationState"`
}

func (s *Service) associateRouteTable(c *wire.Call) (any, error) {
	var in struct {
		RouteTableID string `query:"RouteTableId"`
		SubnetID     string `query:"SubnetId"`
		GatewayID    string `query:"GatewayId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	target := in.SubnetID
	if target == "" {
		target = in.GatewayID
	}
	if err := s.allow(c, "AssociateRouteTable", in.RouteTableID, target); err != nil {
		return nil, err
	}
	t, err := s.tableByID(in.RouteTableID)
	if err != nil {
		return nil, err
	}
	switch {
	case in.SubnetID != "" && in.GatewayID != "":
		return nil, failf("InvalidParameterCombination", "Only one of SubnetId and GatewayId may be specified")
	case in.GatewayID != "":
		g := s.gateways[in.GatewayID]
		if g == nil {
			return nil, failf("InvalidGatewayID.NotFound", "The gateway ID '%s' does not exist", in.GatewayID)
		}
		if g.vpc != t.vpc {
			return nil, failf("Gateway.NotAttached", "The gateway %s is not attached to the VPC of %s", g.id, t.id)
		}
	default:
		n, err := s.subnetByID(in.SubnetID)
		if err != nil {
			return nil, err
		}
		if n.vpc != t.vpc {
			return nil, failf("InvalidParameterValue", "route table %s and subnet %s belong to different networks",
				t.id, n.id)
		}
	}
	for _, other := range s.routeTables {
		for _, a := range other.associations {
			if a.main || a.subnet+a.gateway != target {
				continue
			}
			if other == t { // idempotent
				return associationAnswer{ID: a.id, State: blockState{"associated"}}, nil
			}
			return nil,
				failf("Resource.AlreadyAssociated",
					"the specified association for route table %s conflicts with an existing association", t.id)
		}
	}
	a := tableAssociation{id: newID("rtbassoc"), subnet: in.SubnetID, gateway: in.GatewayID}
	t.associations = append(t.associations, a)
	return associationAnswer{ID: a.id, State: blockState{"associated"}}, nil
}

// association returns an association's table, and its index in that table.
func (s *Service) association(id string) (*routeTable, int) {
	for _, t := range s.routeTables {
		if at := slices.IndexFunc(t.associations, func(a tableAssociation) bool { return a.id == id }); at >= 0 {
			return t, at
		}
	}
	return nil, -1
}

func noAssociation(id string) error {
	return failf("InvalidAssociationID.NotFound", "The association ID '%s' does not exist", id)
}

// replaceRouteTableAssociation moves the association of a subnet to another route table. It gets a new ID.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ReplaceRouteTableAssociation.html
func (s *Service) replaceRouteTableAssociation(c *wire.Call) (any, error) {
	var in struct {
		AssociationID string `query:"AssociationId"`
		RouteTableID  string `query:"RouteTableId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	old, at := s.association(in.AssociationID)
	if old == nil {
		if err := s.allowAny(c, "ReplaceRouteTableAssociation"); err != nil {
			return nil, err
		}
		return nil, noAssociation(in.AssociationID)
	}
	if err := s.allow(c, "ReplaceRouteTableAssociation", in.RouteTableID); err != nil {
		return nil, err
	}
	next, err := s.tableByID(in.RouteTableID)
	if err != nil {
		return nil, err
	}
	moved := old.associations[at]
	if next.vpc != old.vpc {
		return nil, failf("InvalidParameterValue", "route table %s and subnet %s belong to different networks", next.id,
			moved.subnet)
	}
	moved.id = newID("rtbassoc")
	old.associations = slices.Delete(old.associations, at, at+1)
	next.associations = append(next.associations, moved)
	return struct {
		ID    string     `xml:"newAssociationId"`
		State blockState `xml:"associationState"`
	}{moved.id, blockState{"associated"}}, nil
}

func (s *Service) disassociateRouteTable(c *wire.Call) (any, error) {
	var in struct {
		AssociationID string `query:"AssociationId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	t, at := s.association(in.AssociationID)
	if t == nil {
		if err := s.allowAny(c, "DisassociateRouteTable"); err != nil {
			return nil, err
		}
		return nil, noAssociation(in.AssociationID)
	}
	if err := s.allow(c, "DisassociateRouteTable", t.id); err != nil {
		return nil, err
	}
	if t.associations[at].main {
		return nil, failf("InvalidParameterValue", "cannot disassociate the main route table association %s",
			in.AssociationID)
	}
	t.associations = slices.Delete(t.associations, at, at+1)
	return ok, nil
}
