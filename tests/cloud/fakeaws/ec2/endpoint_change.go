package ec2

import (
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

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
