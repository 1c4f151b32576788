package ec2

import (
	"net/netip"
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

// route is one route. It has one destination and one target.
type route struct {
	block      netip.Prefix // invalid if the destination is a prefix list
	prefixList string
	target     target
	local      bool   // to the VPC itself
	origin     string // CreateRouteTable or CreateRoute
}

// target is the target of a route. Exactly one field is set. If the target is an instance, iface is its network
// interface. If the target is an endpoint, gateway is the endpoint's ID.
type target struct {
	gateway, egressOnly, nat, iface string
}

// maxRoutes is the default limit of routes per address family in a table.
const maxRoutes = 500

type routeXML struct {
	Block         string `xml:"destinationCidrBlock,omitempty"`
	Block6        string `xml:"destinationIpv6CidrBlock,omitempty"`
	PrefixList    string `xml:"destinationPrefixListId,omitempty"`
	Gateway       string `xml:"gatewayId,omitempty"`
	EgressOnly    string `xml:"egressOnlyInternetGatewayId,omitempty"`
	NAT           string `xml:"natGatewayId,omitempty"`
	Interface     string `xml:"networkInterfaceId,omitempty"`
	Instance      string `xml:"instanceId,omitempty"`
	InstanceOwner string `xml:"instanceOwnerId,omitempty"`
	State         string `xml:"state"`
	Origin        string `xml:"origin"`
}

// allRoutes returns all routes of a table: the local routes of the VPC's blocks unless they were replaced, the table's
// own routes, and the routes of gateway endpoints.
func (s *Service) allRoutes(t *routeTable) []route {
	var all []route
	v := s.vpcs[t.vpc]
	for _, b := range slices.Concat(v.blocks, v.blocks6) {
		if !slices.ContainsFunc(t.routes, func(r route) bool { return r.block == b.prefix }) {
			all = append(all, route{block: b.prefix, local: true, origin: "CreateRouteTable"})
		}
	}
	all = append(all, t.routes...)
	for _, e := range sorted(s.endpoints) {
		if slices.Contains(e.tables, t.id) {
			all = append(all, route{prefixList: s.servicePrefixList(e.service).id, target: target{gateway: e.id},
				origin: "CreateRoute"})
		}
	}
	return all
}

func (s *Service) routeXML(r route) routeXML {
	out := routeXML{
		PrefixList: r.prefixList, Gateway: r.target.gateway, EgressOnly: r.target.egressOnly, NAT: r.target.nat,
		Interface: r.target.iface,
		State:     "active", Origin: r.origin,
	}
	switch {
	case r.local:
		out.Gateway = "local"
	case !s.reaches(r.target):
		out.State = "blackhole"
	}
	if i := s.interfaces[r.target.iface]; i != nil && i.Attachment != nil && i.Attachment.Instance != "" {
		out.Instance, out.InstanceOwner = i.Attachment.Instance, s.cfg.Account
	}
	switch {
	case r.block.IsValid() && r.block.Addr().Is4():
		out.Block = r.block.String()
	case r.block.IsValid():
		out.Block6 = r.block.String()
	}
	return out
}

// reaches reports whether a route's target exists. A route to a target that does not exist is a black hole.
func (s *Service) reaches(t target) bool {
	switch {
	case t.gateway != "" && s.endpoints[t.gateway] == nil:
		return s.gateways[t.gateway] != nil && s.gateways[t.gateway].vpc != ""
	case t.egressOnly != "":
		return s.egressGateways[t.egressOnly] != nil
	case t.nat != "":
		g := s.natGateways[t.nat]
		return g != nil && g.deleted.IsZero()
	case t.iface != "":
		i := s.interfaces[t.iface]
		return i != nil && i.Attachment != nil
	}
	return true
}

// routeInput holds the parameters of CreateRoute and ReplaceRoute.
type routeInput struct {
	RouteTableID string `query:"RouteTableId"`
	destinationInput
	GatewayID                   string `query:"GatewayId"`
	EgressOnlyInternetGatewayID string `query:"EgressOnlyInternetGatewayId"`
	NatGatewayID                string `query:"NatGatewayId"`
	NetworkInterfaceID          string `query:"NetworkInterfaceId"`
	InstanceID                  string `query:"InstanceId"`
	VpcEndpointID               string `query:"VpcEndpointId"`
}

type destinationInput struct {
	DestinationCidrBlock     string
	DestinationIpv6CidrBlock string
	DestinationPrefixListID  string `query:"DestinationPrefixListId"`
}

func (in destinationInput) given() string {
	return in.DestinationCidrBlock + in.DestinationIpv6CidrBlock + in.DestinationPrefixListID
}

// destination reads the destination. Exactly one of the three parameters for it must be set.
func (s *Service) destination(in destinationInput) (block netip.Prefix, prefixList string, err error) {
	given := 0
	for _, text := range []string{in.DestinationCidrBlock, in.DestinationIpv6CidrBlock, in.DestinationPrefixListID} {
		if text != "" {
			given++
		}
	}
	switch {
	case given == 0:
		return block, "",
			failf("MissingParameter",
				"The request must contain exactly one of: destinationCidrBlock, destinationIpv6CidrBlock, "+
					"destinationPrefixListId")
	case given > 1:
		return block, "",
			failf("InvalidParameterCombination",
				"The request must contain exactly one of: destinationCidrBlock, destinationIpv6CidrBlock, "+
					"destinationPrefixListId")
	case in.DestinationPrefixListID != "":
		if s.prefixLists[in.DestinationPrefixListID] == nil {
			return block, "", failf("InvalidPrefixListID.NotFound", "The prefix list ID '%s' does not exist",
				in.DestinationPrefixListID)
		}
		return block, in.DestinationPrefixListID, nil
	}
	block, err = netip.ParsePrefix(in.given())
	if err != nil || block.Addr().Is4() != (in.DestinationCidrBlock != "") || block.Addr().Is4In6() {
		name := "destinationCidrBlock"
		if in.DestinationIpv6CidrBlock != "" {
			name = "destinationIpv6CidrBlock"
		}
		return block, "",
			failf("InvalidParameterValue", "Value (%s) for parameter %s is invalid. This is not a valid CIDR block.",
				in.given(), name)
	}
	return block.Masked(), "", nil
}

// routeTarget checks that a route has exactly one target, that the target is in the table's VPC, and that it fits the
// destination's address family.
func (s *Service) routeTarget(in routeInput, v *vpc, block netip.Prefix) (target, error) {
	none := target{}
	all := []string{in.GatewayID, in.EgressOnlyInternetGatewayID, in.NatGatewayID, in.NetworkInterfaceID, in.InstanceID,
		in.VpcEndpointID}
	switch given := len(all) - len(slices.DeleteFunc(slices.Clone(all), func(id string) bool { return id != "" })); {
	case given == 0:
		return none,
			failf("MissingParameter",
				"The request must contain exactly one of gatewayId, natGatewayId, networkInterfaceId, "+
					"vpcPeeringConnectionId, "+
					"egressOnlyInternetGatewayId, instanceId")
	case given > 1:
		return none, failf("InvalidParameterCombination", "The request must contain exactly one target")
	case in.GatewayID != "":
		g := s.gateways[in.GatewayID]
		if g == nil {
			return none, failf("InvalidGatewayID.NotFound", "The gateway ID '%s' does not exist", in.GatewayID)
		}
		if g.vpc != v.id {
			return none,
				failf("InvalidParameterValue", "route table of %s and network gateway %s belong to different networks",
					v.id, g.id)
		}
		return target{gateway: g.id}, nil
	case in.EgressOnlyInternetGatewayID != "":
		g := s.egressGateways[in.EgressOnlyInternetGatewayID]
		if g == nil || g.vpc != v.id {
			return none, failf("InvalidGatewayID.NotFound", "The eigw ID '%s' does not exist",
				in.EgressOnlyInternetGatewayID)
		}
		if block.IsValid() && block.Addr().Is4() {
			return none, failf("InvalidParameterValue", "An egress-only internet gateway takes IPv6 destinations only")
		}
		return target{egressOnly: g.id}, nil
	case in.NatGatewayID != "":
		g := s.natGateways[in.NatGatewayID]
		if g == nil || g.vpc != v.id || !g.deleted.IsZero() {
			return none, failf("InvalidNatGatewayID.NotFound", "The natGateway ID '%s' does not exist", in.NatGatewayID)
		}
		return target{nat: g.id}, nil
	case in.VpcEndpointID != "":
		return none, failf("InvalidParameterValue", "'%s' is no Gateway Load Balancer endpoint", in.VpcEndpointID)
	}
	i := s.interfaces[in.NetworkInterfaceID]
	if in.InstanceID != "" {
		attached := s.attached(in.InstanceID)
		if len(attached) > 1 {
			return none,
				failf("InvalidInstanceID",
					"There are multiple interfaces attached to instance '%s'. Please specify an interface ID for "+
						"the operation instead.",
					in.InstanceID)
		}
		if len(attached) == 0 {
			return none, failf("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", in.InstanceID)
		}
		i = attached[0]
	}
	if i == nil {
		return none, failf("InvalidNetworkInterfaceID.NotFound", "The networkInterface ID '%s' does not exist",
			in.NetworkInterfaceID)
	}
	if i.VPC != v.id {
		return none, failf("InvalidParameterValue", "route table of %s and interface %s belong to different networks",
			v.id, i.id)
	}
	return target{iface: i.id}, nil
}

// indexRoute returns the index of the table's own route to a destination.
func (t *routeTable) indexRoute(block netip.Prefix, prefixList string) int {
	return slices.IndexFunc(t.routes, func(r route) bool { return r.block == block && r.prefixList == prefixList })
}

func (s *Service) createRoute(c *wire.Call) (any, error) {
	var in routeInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "CreateRoute", in.RouteTableID); err != nil {
		return nil, err
	}
	t, err := s.tableByID(in.RouteTableID)
	if err != nil {
		return nil, err
	}
	block, prefixList, err := s.destination(in.destinationInput)
	if err != nil {
		return nil, err
	}
	to, err := s.routeTarget(in, s.vpcs[t.vpc], block)
	if err != nil {
		return nil, err
	}
	for _, r := range s.allRoutes(t) {
		if r.block != block || r.prefixList != prefixList {
			continue
		}
		if !r.local && r.target == to { // idempotent
			return ok, nil
		}
		return nil, failf("RouteAlreadyExists", "The route identified by %s already exists.", in.given())
	}
	if len(t.routes) >= maxRoutes {
		return nil, failf("RouteLimitExceeded", "The limit of routes in %s has been reached", t.id)
	}
	t.routes = append(t.routes, route{block: block, prefixList: prefixList, target: to, origin: "CreateRoute"})
	return ok, nil
}

func noRoute(destination, table string) error {
	return failf("InvalidRoute.NotFound", "no route with destination-cidr-block %s in route table %s", destination,
		table)
}

func (s *Service) deleteRoute(c *wire.Call) (any, error) {
	var in struct {
		RouteTableID string `query:"RouteTableId"`
		destinationInput
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "DeleteRoute", in.RouteTableID); err != nil {
		return nil, err
	}
	t, err := s.tableByID(in.RouteTableID)
	if err != nil {
		return nil, err
	}
	block, prefixList, err := s.destination(in.destinationInput)
	if err != nil {
		return nil, err
	}
	for _, r := range s.allRoutes(t) {
		if r.block != block || r.prefixList != prefixList {
			continue
		}
		if r.local || r.origin == "CreateRouteTable" {
			return nil, failf("InvalidParameterValue", "cannot remove local route %s in route table %s", in.given(),
				t.id)
		}
		if at := t.indexRoute(block, prefixList); at >= 0 {
			t.routes = slices.Delete(t.routes, at, at+1)
			return ok, nil
		}
		return nil, failf("InvalidParameterValue", "cannot remove the route to %s of a VPC endpoint", in.given())
	}
	return nil, noRoute(in.given(), t.id)
}
