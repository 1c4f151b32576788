package ec2

import (
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func (s *Service) getInstanceUefiData(c *wire.Call) (any, error) {
	var in struct {
		DryRun     bool
		InstanceID string `query:"InstanceId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	i, err := s.instanceByID(in.InstanceID)
	if err != nil {
		return nil, err
	}
	if err := s.allow(c, c.Action, i.id); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	return struct {
		InstanceID string `xml:"instanceId"`
		UefiData   string `xml:"uefiData"`
	}{i.id, ""}, nil
}
