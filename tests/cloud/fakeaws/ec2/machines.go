package ec2

import "github.com/nstance-kit/nstance/tests/cloud/machine/contract"

// The contract with the machines that run the instances. A Service without Machines keeps instances as records only.
type (
	Machines    = contract.Machines
	Machine     = contract.Machine
	MachineSpec = contract.Spec
	NIC         = contract.NIC
)
