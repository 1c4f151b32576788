package ec2

import (
	"slices"
)

// nicPlan is one network interface of a launch, either an existing one or one to create.
type nicPlan struct {
	existing *Interface
	spec     InterfaceSpec
	index    int
	keep     bool // not deleted with the instance
	// Location of the interface.
	subnet, vpc, zone string
	groups            []string
}

// locate sets the zone of a launch to the zone of an interface, a subnet or the placement in the request. If the
// request contains none of them, the zone stays "".
func (s *Service) locate(l *launch) error {
	for _, nic := range l.data.NetworkInterface {
		if id := value(nic.NetworkInterfaceID); id != "" {
			i, err := s.interfaceByID(id)
			if err != nil {
				return err
			}
			l.zone = i.Zone
		} else if id := value(nic.SubnetID); id != "" {
			n, err := s.subnetByID(id)
			if err != nil {
				return err
			}
			l.zone = n.zone
		}
		if l.zone != "" {
			break
		}
	}
	p := l.data.Placement
	if p == nil {
		return nil
	}
	zone := value(p.AvailabilityZone)
	if p.AvailabilityZoneID != nil {
		for _, z := range s.cfg.Zones {
			if s.zoneID(z) == *p.AvailabilityZoneID {
				zone = z
			}
		}
	}
	switch {
	case zone == "":
	case !slices.Contains(s.cfg.Zones, zone):
		return failf("InvalidParameterValue", "Invalid availability zone: [%s]", zone)
	case l.zone != "" && l.zone != zone:
		return failf("InvalidParameterCombination", "The availability zone %s does not match the zone %s of the subnet",
			zone, l.zone)
	default:
		l.zone = zone
	}
	return nil
}

// planInterfaces sets l.net to the plans for the network interfaces of a launch, sorted by device index.
func (s *Service) planInterfaces(l *launch) error {
	l.net = nil
	seen := map[int]bool{}
	for _, nic := range l.data.NetworkInterface {
		p, err := s.planInterface(l, nic)
		if err != nil {
			return err
		}
		if seen[p.index] {
			return failf("InvalidParameterValue",
				"Each network interface requires a unique device index: %d appears twice", p.index)
		}
		seen[p.index] = true
		l.net = append(l.net, p)
	}
	slices.SortFunc(l.net, func(a, b nicPlan) int { return a.index - b.index })
	if len(l.net) == 0 || l.net[0].index != 0 {
		return failf("InvalidParameterCombination", "A network interface with device index 0 is required")
	}
	if len(l.net) > l.kind.interfaces {
		return failf("AttachmentLimitExceeded", "Interface count %d exceeds the limit for %s", len(l.net), l.kind.name)
	}
	for _, p := range l.net {
		switch {
		case p.vpc != l.net[0].vpc || p.zone != l.net[0].zone:
			return failf("InvalidParameterCombination",
				"All network interfaces of an instance must lie in the same VPC and availability zone")
		case len(p.spec.Addresses)+p.spec.Secondary > l.kind.addresses:
			return failf("InvalidInterface.IpAddressLimitExceeded",
				"Number of private addresses exceeds the limit of %d for %s", l.kind.addresses, l.kind.name)
		case l.max > 1 && (p.existing != nil || len(p.spec.Addresses) > 0 || len(p.spec.IPv6) > 0):
			return failf("InvalidParameterCombination",
				"A network interface or an address of one's choice can be given to one instance only")
		}
	}
	return nil
}

func (s *Service) planInterface(l *launch, nic launchInterface) (nicPlan, error) {
	if nic.DeviceIndex == nil {
		return nicPlan{}, failf("MissingParameter", "The request must contain the parameter deviceIndex")
	}
	p := nicPlan{index: int(*nic.DeviceIndex)}
	if card := value(nic.NetworkCardIndex); card != 0 {
		return p, invalid("networkCardIndex", card)
	}
	if nic.Ipv4PrefixCount != nil || nic.Ipv6PrefixCount != nil || len(nic.Ipv4Prefix)+len(nic.Ipv6Prefix) > 0 {
		return p, failf("UnsupportedOperation", "The fake delegates no prefixes")
	}
	if id := value(nic.NetworkInterfaceID); id != "" {
		i, err := s.interfaceByID(id)
		switch {
		case err != nil:
			return p, err
		case i.own() != nil:
			return p, i.own()
		case i.Attachment != nil:
			return p, failf("InvalidNetworkInterface.InUse", "Interface: [%s] in use.", i.id)
		case value(nic.DeleteOnTermination):
			return p,
				failf("InvalidParameterCombination",
					"deleteOnTermination cannot be true for an existing network interface")
		case nic.SubnetID != nil || len(nic.SecurityGroupID) > 0 || nic.PrivateIPAddress != nil ||
			nic.AssociatePublicIPAddress != nil:
			return p,
				failf("InvalidParameterCombination",
					"An existing network interface has its own subnet, groups and addresses")
		}
		p.existing, p.keep, p.subnet, p.vpc, p.zone, p.groups = i, true, i.Subnet, i.VPC, i.Zone, i.Groups
		return p, nil
	}
	if nic.SubnetID == nil {
		return p,
			failf("VPCIdNotSpecified",
				"No default VPC for this user. GroupName is only supported for EC2-Classic and default VPC.")
	}
	n, err := s.subnetByID(*nic.SubnetID)
	if err != nil {
		return p, err
	}
	p.subnet, p.vpc, p.zone, p.keep = n.id, n.vpc, n.zone, !orElse(nic.DeleteOnTermination, true)
	p.groups = nic.SecurityGroupID
	if len(p.groups) == 0 {
		p.groups = []string{s.vpcs[n.vpc].defaultGroup}
	}
	if err := s.CheckGroups(n.vpc, p.groups); err != nil {
		return p, err
	}
	// A subnet's default for public addresses applies only to the primary interface.
	public := p.index == 0 && n.mapPublic && !n.native
	if nic.AssociatePublicIPAddress != nil {
		if *nic.AssociatePublicIPAddress && len(l.data.NetworkInterface) > 1 {
			return p,
				failf("InvalidParameterCombination",
					"The associatePublicIPAddress parameter cannot be specified when launching with multiple "+
						"network interfaces.")
		}
		public = *nic.AssociatePublicIPAddress
	}
	p.spec = InterfaceSpec{
		Subnet: n.id, Description: value(nic.Description), Groups: p.groups,
		Secondary: int(value(nic.SecondaryPrivateIPAddressCount)),
		IPv6Count: int(value(nic.Ipv6AddressCount)), PrimaryIPv6: value(nic.PrimaryIpv6), Public: &public,
		Tags: l.tags["network-interface"],
	}
	if t := value(nic.InterfaceType); t != "" && t != "interface" {
		return p, failf("InvalidParameterValue", "The interface type '%s' is not supported for the instance type %s", t,
			l.kind.name)
	}
	return p, p.addresses(nic)
}

// addresses reads the addresses that a launch request contains for one interface.
func (p *nicPlan) addresses(nic launchInterface) error {
	in := interfaceInput{PrivateIPAddress: value(nic.PrivateIPAddress),
		SecondaryPrivateIPAddressCount: p.spec.Secondary, Ipv6AddressCount: p.spec.IPv6Count}
	for _, a := range nic.PrivateIPAddresses {
		in.PrivateIPAddresses = append(in.PrivateIPAddresses, struct {
			Primary          bool
			PrivateIPAddress string `query:"PrivateIpAddress"`
		}{value(a.Primary), value(a.PrivateIPAddress)})
	}
	for _, a := range nic.Ipv6Addresses {
		in.Ipv6Addresses = append(in.Ipv6Addresses, struct{ Ipv6Address string }{value(a.Ipv6Address)})
	}
	var err error
	p.spec.Addresses, p.spec.IPv6, err = in.addresses()
	return err
}

// roomInSubnets returns the number of instances, at most count, for which the subnets have enough free addresses.
func (s *Service) roomInSubnets(l *launch, count int) (int, error) {
	need := map[string]int{}
	for _, p := range l.net {
		if n := s.subnets[p.subnet]; p.existing == nil && !n.native {
			need[p.subnet] += max(1, len(p.spec.Addresses)) + p.spec.Secondary
		}
	}
	for id, each := range need {
		count = min(count, s.freeCount(s.subnets[id])/each)
	}
	if count < int(l.min) {
		return 0,
			failf("InsufficientFreeAddressesInSubnet",
				"There are not enough free addresses in subnet '%s' to satisfy the requested number of instances.",
				l.net[0].subnet)
	}
	return count, nil
}

// createInterfaces creates and attaches the interfaces of a new instance.
func (s *Service) createInterfaces(l *launch, i *instance) error {
	for _, p := range l.net {
		eni := p.existing
		if eni == nil {
			var err error
			if eni, err = s.CreateInterface(p.spec); err != nil {
				return err
			}
		}
		s.attach(eni, i.id, p.index, !p.keep, 0)
	}
	return nil
}

// releaseInterfaces ends the attachments of a terminated instance.
func (s *Service) releaseInterfaces(i *instance) { s.detachAll(i.id) }

// nics returns the interfaces that a machine starts with.
func (s *Service) nics(i *instance) (primary NIC, others []NIC) {
	for n, eni := range s.attached(i.id) {
		if n == 0 {
			primary = s.nic(eni)
		} else {
			others = append(others, s.nic(eni))
		}
	}
	return primary, others
}

// hostName returns an instance's private DNS name.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-naming.html
func (s *Service) hostName(i *instance) string {
	kind := "ip-name"
	if n := s.subnets[i.subnet]; n != nil {
		kind = n.hostnameType
	}
	if o := i.data.PrivateDNSNameOptions; o != nil {
		kind = orElse(o.HostnameType, kind)
	}
	attached := s.attached(i.id)
	if kind == "resource-name" || len(attached) == 0 || len(attached[0].IPv4) == 0 {
		return i.id + "." + s.domain()
	}
	return s.privateName(attached[0].IPv4[0])
}
