package ec2

import "github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"

// fleet is the state of instances and what they are started from.
type fleet struct{}

func newFleet() fleet { return fleet{} }

func (s *Service) machineKinds() []kind { return nil }

func (s *Service) machineOperations() map[string]wire.Handler { return nil }
