package ec2

import "net/netip"

// Machines runs instances as real machines. It is implemented outside this package. A Service without Machines keeps
// instances as records only.
type Machines interface {
	// Start boots a machine and returns immediately. The machine calls spec.Exited once if its init exits without Stop
	// (a power-off), and never after Stop.
	Start(spec MachineSpec) (Machine, error)
}

// Machine is one running machine. Its methods may be called with the cloud's lock held, so they must not call back into
// the cloud.
type Machine interface {
	// Stop powers the machine off. It is idempotent and returns when no process of the machine is left.
	Stop()
	// Plug hot-plugs a network interface. Unplug removes an interface.
	Plug(nic NIC) error
	Unplug(mac string) error
	// Console returns everything that the machine has written to its console, also after the machine has stopped.
	Console() []byte
}

// MachineSpec describes a machine to boot.
type MachineSpec struct {
	ID       string
	Userdata []byte
	Image    string // AMI ID
	Primary  NIC
	// Metadata answers requests to the instance metadata service. Its argument is a path below /latest/meta-data/, such
	// as "instance-id" or "placement/availability-zone". It takes the cloud's lock itself.
	Metadata       func(path string) (value string, ok bool)
	TokensRequired bool // IMDSv2 only
	HopLimit       int
	Exited         func()
}

// NIC is a machine's view of a network interface.
type NIC struct {
	MAC, VPC string
	// Addresses have the prefix length of the subnet.
	Addresses []netip.Prefix
	Index     int
	// SourceDestCheck reports whether the network drops packets of which the source is none of the addresses.
	SourceDestCheck bool
}
