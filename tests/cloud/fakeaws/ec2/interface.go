package ec2

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
)

// maxGroups is the maximum number of security groups of a network interface.
const maxGroups = 5

// Interface is a network interface (ENI). Other packages only read it, with the lock held.
type Interface struct {
	entity
	Subnet, VPC, Zone string
	MAC, Description  string
	Type              string       // interface, nat_gateway, vpc_endpoint, network_load_balancer …
	IPv4              []netip.Addr // the first is primary; empty in an IPv6-only subnet
	IPv6              []netip.Addr // the first is primary if PrimaryIPv6 is set
	PrimaryIPv6       bool
	Public            netip.Addr // set by AWS at launch, not elastic; invalid: none
	Groups            []string   // IDs of security groups
	SourceDestCheck   bool
	Requester         string // the service that manages it: only it may change the interface; "": a user's interface
	Attachment        *Attachment
}

// Attachment attaches an interface to an instance.
type Attachment struct {
	ID                  string
	Instance            string // "" if a service uses the interface
	Index               int
	At                  time.Time
	DeleteOnTermination bool

	due       time.Time // end of attaching or detaching
	detaching bool
}

// InterfaceSpec describes a network interface to create.
type InterfaceSpec struct {
	Subnet      string
	Description string
	Type        string       // "" means interface
	Groups      []string     // empty: the VPC's default group, or none for a service's interface
	Addresses   []netip.Addr // requested IPv4 addresses, the primary first; empty: AWS chooses one
	Secondary   int          // number of additional IPv4 addresses that AWS chooses
	IPv6        []netip.Addr // requested IPv6 addresses
	IPv6Count   int          // number of IPv6 addresses that AWS chooses, if none is requested
	PrimaryIPv6 bool
	Public      *bool // assign a public IPv4 address; nil: no (a launch decides by its subnet)
	Requester   string
	Tags        map[string]string
}

func (s *Service) interfaceContext(id string) policy.Context {
	i := s.interfaces[id]
	return policy.Context{
		"ec2:NetworkInterfaceID": {id}, "ec2:AvailabilityZone": {i.Zone}, "ec2:Subnet": {s.arn("subnet", i.Subnet)},
		"ec2:Vpc": {s.arn("vpc", i.VPC)},
	}
}

// Interface returns a network interface.
func (s *Service) Interface(id string) (*Interface, bool) {
	s.settleInterfaces()
	i, ok := s.interfaces[id]
	return i, ok
}

// CreateInterface creates a network interface. It returns EC2's errors for an unknown subnet or group, for an address
// in use, and for a full subnet.
func (s *Service) CreateInterface(spec InterfaceSpec) (*Interface, error) {
	s.settleInterfaces()
	n, err := s.subnetByID(spec.Subnet)
	if err != nil {
		return nil, err
	}
	i := &Interface{
		Subnet: n.id, VPC: n.vpc, Zone: n.zone, Description: spec.Description, Type: cmp.Or(spec.Type, "interface"),
		Groups:          slices.Clone(spec.Groups),
		SourceDestCheck: spec.Type != "nat_gateway", Requester: spec.Requester, PrimaryIPv6: spec.PrimaryIPv6,
	}
	if len(i.Groups) == 0 && spec.Requester == "" {
		i.Groups = []string{s.vpcs[n.vpc].defaultGroup}
	}
	if err := s.CheckGroups(n.vpc, i.Groups); err != nil {
		return nil, err
	}
	taken := s.taken(n)
	if i.IPv4, err = n.reserve4(spec, taken); err != nil {
		return nil, err
	}
	if i.IPv6, err = n.reserve6(spec, taken); err != nil {
		return nil, err
	}
	if i.PrimaryIPv6 && len(i.IPv6) == 0 {
		return nil, failf("InvalidParameterCombination", "A primary IPv6 address needs an IPv6 address")
	}
	if spec.Public != nil && *spec.Public {
		if n.native {
			return nil,
				failf("InvalidParameterCombination", "A public IPv4 address cannot be had in the IPv6-only subnet '%s'",
					n.id)
		}
		i.Public = s.newPublicAddress()
	}
	i.entity = s.entity("eni")
	i.MAC = s.newMAC()
	s.interfaces[i.id] = i
	s.SetTags(i.id, spec.Tags)
	if i.Requester != "" {
		// If a service manages the interface, the interface is attached from its creation.
		i.Attachment = &Attachment{ID: newID("ela-attach"), Index: 1, At: s.now(), due: s.now()}
	}
	return i, nil
}

// reserve4 chooses the IPv4 addresses of a new interface.
func (n *subnet) reserve4(spec InterfaceSpec, taken map[netip.Addr]bool) ([]netip.Addr, error) {
	var got []netip.Addr
	for _, a := range spec.Addresses {
		if err := n.claim(a, taken); err != nil {
			return nil, err
		}
		got = append(got, a)
	}
	more := spec.Secondary
	if len(got) == 0 && !n.native {
		more++
	}
	for range more {
		a, err := n.choose(taken)
		if err != nil {
			return nil, err
		}
		got = append(got, a)
	}
	return got, nil
}

// reserve6 chooses the IPv6 addresses of a new interface: the requested ones, or one if the subnet assigns addresses.
func (n *subnet) reserve6(spec InterfaceSpec, taken map[netip.Addr]bool) ([]netip.Addr, error) {
	var got []netip.Addr
	for _, a := range spec.IPv6 {
		if err := n.claim(a, taken); err != nil {
			return nil, err
		}
		got = append(got, a)
	}
	more := spec.IPv6Count
	if len(got)+more == 0 && (n.native || n.assignIPv6 || spec.PrimaryIPv6) {
		more = 1
	}
	for range more {
		a, err := n.choose6(taken)
		if err != nil {
			return nil, err
		}
		got = append(got, a)
	}
	return got, nil
}

// newMAC returns a locally administered address that no interface has.
func (s *Service) newMAC() string {
	for {
		var b [5]byte
		random(b[:])
		mac := fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4])
		if !some(s.interfaces, func(i *Interface) bool { return i.MAC == mac }) {
			return mac
		}
	}
}

// newPublicAddress returns a new public IPv4 address from Amazon's range.
func (s *Service) newPublicAddress() netip.Addr {
	s.publicGiven++
	n := s.publicGiven
	return netip.AddrFrom4([4]byte{44, byte(224 + n>>16&15), byte(n >> 8), byte(n)})
}

// DeleteInterface removes an interface, even if it is attached or managed by a service. An interface that does not
// exist is not an error.
func (s *Service) DeleteInterface(id string) {
	for _, a := range s.addresses {
		if a.iface == id {
			a.disassociate()
		}
	}
	drop(s, s.interfaces, id)
}

// attached returns the interfaces of an instance, sorted by device index. An interface that is detaching is included.
func (s *Service) attached(instanceID string) []*Interface {
	var list []*Interface
	for _, i := range s.interfaces {
		if instanceID != "" && i.Attachment != nil && i.Attachment.Instance == instanceID {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, func(a, b *Interface) int { return cmp.Compare(a.Attachment.Index, b.Attachment.Index) })
	return list
}

// attach attaches an interface to an instance. The parameter takes is the time for which the attachment stays in the
// state "attaching". In a launch, this time is zero. attach checks nothing and does not plug the interface into the
// machine.
func (s *Service) attach(i *Interface, instanceID string, index int, deleteOnTermination bool, takes time.Duration) {
	now := s.now()
	i.Attachment = &Attachment{
		ID: newID("eni-attach"), Instance: instanceID, Index: index, At: now, DeleteOnTermination: deleteOnTermination,
		due: now.Add(takes),
	}
}

// detachAll ends the attachments of a terminated instance. Interfaces with DeleteOnTermination are deleted; the others
// become available.
func (s *Service) detachAll(instanceID string) {
	for _, i := range s.attached(instanceID) {
		if i.Attachment.DeleteOnTermination {
			s.DeleteInterface(i.id)
			continue
		}
		s.detached(i)
	}
}

func (s *Service) detached(i *Interface) { i.Attachment, i.Public = nil, netip.Addr{} }

// settleInterfaces completes detachments that are due.
func (s *Service) settleInterfaces() {
	now := s.now()
	for _, i := range s.interfaces {
		if a := i.Attachment; a != nil && a.detaching && !now.Before(a.due) {
			s.detached(i)
		}
	}
}

// state returns attaching, attached or detaching.
func (a *Attachment) state(now time.Time) string {
	switch {
	case a.detaching:
		return "detaching"
	case now.Before(a.due):
		return "attaching"
	}
	return "attached"
}

// SetAttaching sets how long interfaces stay attaching and detaching from now on. It takes the cloud's lock.
func (s *Service) SetAttaching(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Attaching = d
}

// nic returns the machine's view of an interface.
func (s *Service) nic(i *Interface) NIC {
	n := s.subnets[i.Subnet]
	out := NIC{MAC: i.MAC, VPC: i.VPC, SourceDestCheck: i.SourceDestCheck}
	if i.Attachment != nil {
		out.Index = i.Attachment.Index
	}
	for _, a := range i.IPv4 {
		out.Addresses = append(out.Addresses, netip.PrefixFrom(a, n.block.Bits()))
	}
	for _, a := range i.IPv6 {
		out.Addresses = append(out.Addresses, netip.PrefixFrom(a, n.blocks6[0].prefix.Bits()))
	}
	return out
}

// domain returns the domain of the private DNS names in all VPCs of the region.
func (s *Service) domain() string {
	if s.cfg.Region == "us-east-1" {
		return "ec2.internal"
	}
	return s.cfg.Region + ".compute.internal"
}

// privateName returns the private DNS name of an IPv4 address.
func (s *Service) privateName(a netip.Addr) string {
	return "ip-" + strings.ReplaceAll(a.String(), ".", "-") + "." + s.domain()
}

// publicName returns the public DNS name of an IPv4 address, "" in a VPC without DNS host names.
func (s *Service) publicName(vpcID string, a netip.Addr) string {
	if v := s.vpcs[vpcID]; v == nil || !v.dnsHostnames || !v.dnsSupport {
		return ""
	}
	name := "ec2-" + strings.ReplaceAll(a.String(), ".", "-")
	if s.cfg.Region == "us-east-1" {
		return name + ".compute-1.amazonaws.com"
	}
	return name + "." + s.cfg.Region + ".compute.amazonaws.com"
}

// interfaceByID returns an interface for an operation on it. It also returns interfaces of services; [Interface.own]
// refuses changes to them.
func (s *Service) interfaceByID(id string) (*Interface, error) {
	if id == "" {
		return nil, missing("networkInterfaceId")
	}
	if i := s.interfaces[id]; i != nil {
		return i, nil
	}
	return nil, failf("InvalidNetworkInterfaceID.NotFound", "The networkInterface ID '%s' does not exist", id)
}

// own returns an error if a service manages the interface. Callers cannot change such an interface.
func (i *Interface) own() error {
	if i.Requester == "" {
		return nil
	}
	return failf("OperationNotPermitted", "You are not allowed to manage the network interface '%s' of %s", i.id,
		i.Requester)
}

// CheckGroups checks that the groups exist in the VPC, that their number is within the limit, and that none is
// repeated.
func (s *Service) CheckGroups(vpcID string, ids []string) error {
	if len(ids) > maxGroups {
		return failf("SecurityGroupsPerInterfaceLimitExceeded",
			"The maximum number of security groups per interface has been reached.")
	}
	seen := map[string]bool{}
	for _, id := range ids {
		g := s.groups[id]
		switch {
		case g == nil:
			return failf("InvalidGroup.NotFound", "The security group '%s' does not exist", id)
		case g.vpc != vpcID:
			return failf("InvalidParameter", "Security group %s and the subnet belong to different networks.", id)
		case seen[id]:
			return failf("InvalidParameterValue", "Duplicate security group: %s", id)
		}
		seen[id] = true
	}
	return nil
}
