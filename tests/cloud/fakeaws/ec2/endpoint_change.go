package ec2

import (
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// modifyEndpoint changes the route tables of a gateway endpoint. It refuses every other parameter.
func (s *Service) modifyEndpoint(c *wire.Call) (any, error) {
	var in struct {
		VpcEndpointID      string   `query:"VpcEndpointId"`
		AddRouteTableID    []string `query:"AddRouteTableId"`
		RemoveRouteTableID []string `query:"RemoveRouteTableId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "ModifyVpcEndpoint", append(append([]string{in.VpcEndpointID}, in.AddRouteTableID...),
		in.RemoveRouteTableID...)...); err != nil {
		return nil, err
	}
	e := s.endpoints[in.VpcEndpointID]
	if e == nil {
		return nil, failf("InvalidVpcEndpointId.NotFound", "The Vpc Endpoint Id '%s' does not exist", in.VpcEndpointID)
	}
	if e.kind != "Gateway" {
		return nil, failf("InvalidParameter", "RouteTableIds are not supported for Interface Endpoints.")
	}
	if err := s.addTables(e, in.AddRouteTableID); err != nil {
		return nil, err
	}
	e.tables = slices.DeleteFunc(e.tables, func(id string) bool { return slices.Contains(in.RemoveRouteTableID, id) })
	return ok, nil
}

func (s *Service) deleteEndpoints(c *wire.Call) (any, error) {
	var in struct {
		VpcEndpointID []string `query:"VpcEndpointId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if len(in.VpcEndpointID) == 0 {
		if err := s.allowAny(c, "DeleteVpcEndpoints"); err != nil {
			return nil, err
		}
		return nil, missing("vpcEndpointIds")
	}
	if err := s.allow(c, "DeleteVpcEndpoints", in.VpcEndpointID...); err != nil {
		return nil, err
	}
	type problem struct {
		ID      string `xml:"resourceId"`
		Code    string `xml:"error>code"`
		Message string `xml:"error>message"`
	}
	var problems []problem
	for _, id := range in.VpcEndpointID {
		e := s.endpoints[id]
		if e == nil {
			problems = append(problems, problem{id, "InvalidVpcEndpoint.NotFound", "The Vpc Endpoint Id '" + id +
				"' does not exist"})
			continue
		}
		for _, i := range e.interfaces {
			s.DeleteInterface(i)
		}
		drop(s, s.endpoints, id)
	}
	return struct {
		Problems []problem `xml:"unsuccessful>item"`
	}{problems}, nil
}
