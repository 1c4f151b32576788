package elbv2

// Network is the part of EC2 that load balancers use. The caller holds the cloud's lock.
type Network interface {
	// VPC reports whether the VPC exists.
	VPC(id string) bool
	Subnet(id string) (Subnet, bool)
	// SecurityGroup returns the VPC of a security group.
	SecurityGroup(id string) (vpc string, ok bool)
	Instance(id string) (Instance, bool)
	// CreateInterface creates a network interface of a load balancer.
	CreateInterface(Interface) (id string, err error)
	DeleteInterface(id string)
}

// Subnet describes a subnet.
type Subnet struct {
	VPC, Zone string
	IPv6      bool // the subnet has an IPv6 block
}

// Instance describes an instance.
type Instance struct {
	State   string // "running", "terminated" …
	VPC     string
	Zone    string
	Address string // private address
}

// Interface describes the network interface of a load balancer in one subnet.
type Interface struct {
	Subnet, Description string
	Groups              []string
	IPv6                bool
}
