package ec2

import "github.com/nstance-kit/nstance/tests/cloud/machine/contract"

// Machines runs instances as real machines. A Service without Machines keeps instances as records only.
type Machines = contract.Machines

// Machine is one running machine.
type Machine = contract.Machine

// MachineSpec describes a machine to boot.
type MachineSpec = contract.Spec

// NIC is a machine's view of a network interface.
type NIC = contract.NIC
