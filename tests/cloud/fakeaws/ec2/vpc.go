package ec2

import "github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"

// network is the state of networks.
type network struct{}

func newNetwork() network { return network{} }

func (s *Service) networkKinds() []kind { return nil }

func (s *Service) networkOperations() map[string]wire.Handler { return nil }
