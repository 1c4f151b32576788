package elbv2

// Network is what load balancers need of EC2. Its methods are called with the cloud's lock held.
type Network interface {
	// VPC says whether there is such a VPC.
	VPC(id string) bool
	Subnet(id string) (Subnet, bool)
	// SecurityGroup names the VPC of a security group.
	SecurityGroup(id string) (vpc string, ok bool)
	// DefaultSecurityGroup is the group of a VPC that is used when none is named.
	DefaultSecurityGroup(vpc string) string
	Instance(id string) (Instance, bool)
	// CreateInterface makes a load balancer's network interface in a subnet; the address is the subnet's choice when
	// none is asked for.
	CreateInterface(Interface) (id string, err error)
	// SetInterfaceGroups changes the security groups of one, which were checked.
	SetInterfaceGroups(id string, groups []string)
	DeleteInterface(id string)
}

// Subnet is what a load balancer needs to know of a subnet.
type Subnet struct {
	VPC, Zone string
	IPv6      bool // it has an IPv6 block
}

// Instance is what a target group needs to know of an instance.
type Instance struct {
	State   string // "running", "terminated" …
	VPC     string
	Zone    string
	Address string // the private one
}

// Interface is a load balancer's node in one subnet.
type Interface struct {
	Subnet, Description, Kind string // Kind: network_load_balancer or interface
	Groups                    []string
	Address                   string // "" or the one wanted
	IPv6                      bool
}
