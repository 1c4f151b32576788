package ec2

import "net/netip"

// Machines runs instances for real. It is implemented outside this package; a Service without one keeps instances as
// records only.
type Machines interface {
	// Start boots a machine and returns at once. spec.Exited is called once when its init ended by itself (a
	// power-off), never after Stop.
	Start(spec MachineSpec) (Machine, error)
}

// Machine is one running machine. Its methods are called with the cloud locked, so they must not call back into the
// cloud.
type Machine interface {
	// Stop pulls the plug. It is idempotent and returns when no process of the machine is left.
	Stop()
	// Plug hot-plugs a network interface, Unplug takes one away again.
	Plug(nic NIC) error
	Unplug(mac string) error
}

// MachineSpec says what is booted.
type MachineSpec struct {
	ID       string
	Userdata []byte
	Image    string // AMI ID
	Primary  NIC
	// Metadata is the tree of the instance metadata service, called at each request with a path below
	// /latest/meta-data/ such as "instance-id" or "placement/availability-zone". It takes the cloud's lock itself.
	Metadata       func(path string) (value string, ok bool)
	TokensRequired bool // IMDSv2 only
	HopLimit       int
	Exited         func()
}

// NIC is a network interface as a machine sees it.
type NIC struct {
	MAC, VPC string
	// Addresses carry the prefix length of the VPC's block and not of the subnet's: a VPC is one flat network.
	Addresses []netip.Prefix
	Index     int
}
