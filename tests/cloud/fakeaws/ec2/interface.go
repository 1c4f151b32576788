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

// maxGroups is how many security groups a network interface may have.
const maxGroups = 5

// Interface is a network interface: an ENI. Others than this package only read it, with the lock held.
type Interface struct {
	entity
	Subnet, VPC, Zone string
	MAC, Description  string
	Type              string       // interface, nat_gateway, vpc_endpoint, network_load_balancer …
	IPv4              []netip.Addr // the first is the primary one; empty in an IPv6-only subnet
	IPv6              []netip.Addr // the first is the primary one when PrimaryIPv6
	PrimaryIPv6       bool
	Public            netip.Addr // given by AWS at launch, not an elastic one; not valid: none
	Groups            []string   // IDs of security groups
	SourceDestCheck   bool
	Requester         string // the service that manages it: nobody else may change it. "": a user's own
	Attachment        *Attachment
}

// Attachment binds an interface to an instance.
type Attachment struct {
	ID                  string
	Instance            string // "" when a service holds the interface
	Index               int
	At                  time.Time
	DeleteOnTermination bool

	due       time.Time // until when it is attaching or detaching
	detaching bool
}

// InterfaceSpec says what interface is wanted.
type InterfaceSpec struct {
	Subnet      string
	Description string
	Type        string       // "": interface
	Groups      []string     // empty: the default group of the VPC; a service's interface then has none
	Addresses   []netip.Addr // wanted IPv4 addresses, the primary one first; empty: one of AWS's choice
	Secondary   int          // further IPv4 addresses of AWS's choice
	IPv6        []netip.Addr // wanted IPv6 addresses
	IPv6Count   int          // IPv6 addresses of AWS's choice, when none is wanted
	PrimaryIPv6 bool
	Public      *bool // a public IPv4 address; nil: none (an instance's launch decides by its subnet)
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

// Interface finds a network interface.
func (s *Service) Interface(id string) (*Interface, bool) {
	s.settleInterfaces()
	i, ok := s.interfaces[id]
	return i, ok
}

// CreateInterface makes a network interface. Errors are EC2's own: for an unknown subnet or group, for an address that
// is taken, for lack of room.
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
		// in use by its service from the beginning
		i.Attachment = &Attachment{ID: newID("ela-attach"), Index: 1, At: s.now(), due: s.now()}
	}
	return i, nil
}

// reserve4 finds the IPv4 addresses of a new interface.
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

// reserve6 finds the IPv6 addresses of a new interface: those wanted, or as many as the subnet says.
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

// newMAC is a locally administered address that no interface has.
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

// newPublicAddress is a public IPv4 address out of Amazon's.
func (s *Service) newPublicAddress() netip.Addr {
	s.publicGiven++
	n := s.publicGiven
	return netip.AddrFrom4([4]byte{44, byte(224 + n>>16&15), byte(n >> 8), byte(n)})
}

// DeleteInterface removes an interface, whoever holds it. One that is gone is no error.
func (s *Service) DeleteInterface(id string) {
	for _, a := range s.addresses {
		if a.iface == id {
			a.disassociate()
		}
	}
	drop(s, s.interfaces, id)
}

// attached are the interfaces of an instance, by device index. One that is being detached is still there.
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

// attach binds an interface to an instance, as part of its launch (at once) or for AttachNetworkInterface (attaching
// first). It checks nothing and plugs nothing.
func (s *Service) attach(i *Interface, instanceID string, index int, deleteOnTermination bool, takes time.Duration) {
	now := s.now()
	i.Attachment = &Attachment{
		ID: newID("eni-attach"), Instance: instanceID, Index: index, At: now, DeleteOnTermination: deleteOnTermination,
		due: now.Add(takes),
	}
}

// detachAll ends the attachments of an instance that is gone: interfaces that shall go with it are deleted, the others
// are available again.
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

// settleInterfaces ends detachments whose time has come.
func (s *Service) settleInterfaces() {
	now := s.now()
	for _, i := range s.interfaces {
		if a := i.Attachment; a != nil && a.detaching && !now.Before(a.due) {
			s.detached(i)
		}
	}
}

// state is attaching, attached or detaching.
func (a *Attachment) state(now time.Time) string {
	switch {
	case a.detaching:
		return "detaching"
	case now.Before(a.due):
		return "attaching"
	}
	return "attached"
}

// SetAttaching says how long interfaces stay attaching and detaching from now on. It takes the cloud's lock.
func (s *Service) SetAttaching(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Attaching = d
}

// nic is an interface as its machine sees it.
func (s *Service) nic(i *Interface) NIC {
	v := s.vpcs[i.VPC]
	out := NIC{MAC: i.MAC, VPC: i.VPC}
	if i.Attachment != nil {
		out.Index = i.Attachment.Index
	}
	for _, a := range slices.Concat(i.IPv4, i.IPv6) {
		for _, b := range slices.Concat(v.blocks, v.blocks6) {
			if b.prefix.Contains(a) {
				out.Addresses = append(out.Addresses, netip.PrefixFrom(a, b.prefix.Bits()))
			}
		}
	}
	return out
}

// domain is what names inside a VPC end with.
func (s *Service) domain() string {
	if s.cfg.Region == "us-east-1" {
		return "ec2.internal"
	}
	return s.cfg.Region + ".compute.internal"
}

// privateName is the private DNS name of an IPv4 address.
func (s *Service) privateName(a netip.Addr) string {
	return "ip-" + strings.ReplaceAll(a.String(), ".", "-") + "." + s.domain()
}

// publicName is the public DNS name of an IPv4 address, "" in a VPC without DNS host names.
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

// interfaceByID finds one for an operation on it. A service's own is found, and refused where it may not be changed:
// see own.
func (s *Service) interfaceByID(id string) (*Interface, error) {
	if id == "" {
		return nil, missing("networkInterfaceId")
	}
	if i := s.interfaces[id]; i != nil {
		return i, nil
	}
	return nil, failf("InvalidNetworkInterfaceID.NotFound", "The networkInterface ID '%s' does not exist", id)
}

// own refuses to let a caller change an interface that a service manages.
func (i *Interface) own() error {
	if i.Requester == "" {
		return nil
	}
	return failf("OperationNotPermitted", "You are not allowed to manage the network interface '%s' of %s", i.id,
		i.Requester)
}

// CheckGroups checks that the groups exist in the VPC, that they are not too many, and that none is named twice.
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
