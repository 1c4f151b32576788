package ec2

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// nicPlan is one network interface of a launch: an existing one, or what is made anew.
type nicPlan struct {
	existing *Interface
	spec     InterfaceSpec
	index    int
	keep     bool // not deleted with the instance
	// Where it lies, of both kinds.
	subnet, vpc, zone string
	groups            []string
}

// locate finds the zone that a request names, by its primary interface's subnet or its placement: "" when it leaves it open.
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
		return failf("InvalidParameterCombination", "The availability zone %s does not match the zone %s of the subnet", zone, l.zone)
	default:
		l.zone = zone
	}
	return nil
}

// planInterfaces resolves the network interfaces of a launch.
func (s *Service) planInterfaces(l *launch) error {
	l.net = nil
	seen := map[int]bool{}
	for _, nic := range l.data.NetworkInterface {
		p, err := s.planInterface(l, nic)
		if err != nil {
			return err
		}
		if seen[p.index] {
			return failf("InvalidParameterValue", "Each network interface requires a unique device index: %d appears twice", p.index)
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
			return failf("InvalidParameterCombination", "All network interfaces of an instance must lie in the same VPC and availability zone")
		case len(p.spec.Addresses)+p.spec.Secondary > l.kind.addresses:
			return failf("InvalidInterface.IpAddressLimitExceeded", "Number of private addresses exceeds the limit of %d for %s", l.kind.addresses, l.kind.name)
		case l.max > 1 && (p.existing != nil || len(p.spec.Addresses) > 0 || len(p.spec.IPv6) > 0):
			return failf("InvalidParameterCombination", "A network interface or an address of one's choice can be given to one instance only")
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
			return p, failf("InvalidParameterCombination", "deleteOnTermination cannot be true for an existing network interface")
		case nic.SubnetID != nil || len(nic.SecurityGroupID) > 0 || nic.PrivateIPAddress != nil || nic.AssociatePublicIPAddress != nil:
			return p, failf("InvalidParameterCombination", "An existing network interface has its own subnet, groups and addresses")
		}
		p.existing, p.keep, p.subnet, p.vpc, p.zone, p.groups = i, true, i.Subnet, i.VPC, i.Zone, i.Groups
		return p, nil
	}
	if nic.SubnetID == nil {
		return p, failf("VPCIdNotSpecified", "No default VPC for this user. GroupName is only supported for EC2-Classic and default VPC.")
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
	// A subnet's own setting holds for the primary interface only.
	public := p.index == 0 && n.mapPublic && !n.native
	if nic.AssociatePublicIPAddress != nil {
		if *nic.AssociatePublicIPAddress && len(l.data.NetworkInterface) > 1 {
			return p, failf("InvalidParameterCombination", "The associatePublicIPAddress parameter cannot be specified when launching with multiple network interfaces.")
		}
		public = *nic.AssociatePublicIPAddress
	}
	p.spec = InterfaceSpec{
		Subnet: n.id, Description: value(nic.Description), Groups: p.groups, Secondary: int(value(nic.SecondaryPrivateIPAddressCount)),
		IPv6Count: int(value(nic.Ipv6AddressCount)), PrimaryIPv6: value(nic.PrimaryIpv6), Public: &public, Tags: l.tags["network-interface"],
	}
	if t := value(nic.InterfaceType); t != "" && t != "interface" {
		return p, failf("InvalidParameterValue", "The interface type '%s' is not supported for the instance type %s", t, l.kind.name)
	}
	return p, p.addresses(nic)
}

// addresses reads the addresses that a request wants an interface to have.
func (p *nicPlan) addresses(nic launchInterface) error {
	in := interfaceInput{PrivateIPAddress: value(nic.PrivateIPAddress), SecondaryPrivateIPAddressCount: p.spec.Secondary, Ipv6AddressCount: p.spec.IPv6Count}
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

// roomInSubnets is how many of count instances the subnets have addresses for.
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
		return 0, failf("InsufficientFreeAddressesInSubnet", "There are not enough free addresses in subnet '%s' to satisfy the requested number of instances.", l.net[0].subnet)
	}
	return count, nil
}

// createInterfaces makes and attaches the interfaces of a new instance.
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

// releaseInterfaces ends the attachments of an instance that ended.
func (s *Service) releaseInterfaces(i *instance) { s.detachAll(i.id) }

// nics are the interfaces that a machine starts with.
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

// hostName is an instance's private DNS name. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-naming.html
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

type interfaceOfXML struct {
	Association     *associationOfXML `xml:"association"`
	Attachment      attachmentOfXML   `xml:"attachment"`
	Description     string            `xml:"description"`
	Groups          []groupRefXML     `xml:"groupSet>item"`
	InterfaceType   string            `xml:"interfaceType"`
	Ipv6Addresses   []ipv6Address     `xml:"ipv6AddressesSet>item"`
	MAC             string            `xml:"macAddress"`
	ID              string            `xml:"networkInterfaceId"`
	OwnerID         string            `xml:"ownerId"`
	PrivateDNSName  string            `xml:"privateDnsName,omitempty"`
	PrivateIP       string            `xml:"privateIpAddress,omitempty"`
	PrivateIPs      []privateIPOfXML  `xml:"privateIpAddressesSet>item"`
	SourceDestCheck bool              `xml:"sourceDestCheck"`
	Status          string            `xml:"status"`
	SubnetID        string            `xml:"subnetId"`
	VpcID           string            `xml:"vpcId"`
}

type associationOfXML struct {
	OwnerID    string `xml:"ipOwnerId"`
	PublicName string `xml:"publicDnsName"`
	PublicIP   string `xml:"publicIp"`
}

type attachmentOfXML struct {
	ID                  string    `xml:"attachmentId"`
	AttachTime          wire.Time `xml:"attachTime"`
	DeleteOnTermination bool      `xml:"deleteOnTermination"`
	DeviceIndex         int       `xml:"deviceIndex"`
	NetworkCardIndex    int       `xml:"networkCardIndex"`
	Status              string    `xml:"status"`
}

type privateIPOfXML struct {
	Association    *associationOfXML `xml:"association"`
	Primary        bool              `xml:"primary"`
	PrivateDNSName string            `xml:"privateDnsName"`
	PrivateIP      string            `xml:"privateIpAddress"`
}

// publicOf is the public address that a private one of an interface has: an elastic one, or AWS's own for the primary address.
func (s *Service) publicOf(eni *Interface, private netip.Addr) *associationOfXML {
	for _, e := range s.addresses {
		if e.iface == eni.id && e.private == private {
			return &associationOfXML{OwnerID: s.cfg.Account, PublicName: s.publicName(eni.VPC, e.public), PublicIP: e.public.String()}
		}
	}
	if eni.Public.IsValid() && len(eni.IPv4) > 0 && eni.IPv4[0] == private {
		return &associationOfXML{OwnerID: "amazon", PublicName: s.publicName(eni.VPC, eni.Public), PublicIP: eni.Public.String()}
	}
	return nil
}

func (s *Service) interfaceOfXML(eni *Interface) interfaceOfXML {
	a := eni.Attachment
	out := interfaceOfXML{
		Attachment: attachmentOfXML{
			ID: a.ID, AttachTime: wire.Time{Time: a.At}, DeleteOnTermination: a.DeleteOnTermination, DeviceIndex: a.Index, Status: a.state(s.cfg.Now()),
		},
		Description: eni.Description, Groups: s.groupRefs(eni.Groups), InterfaceType: eni.Type, MAC: eni.MAC, ID: eni.id, OwnerID: s.cfg.Account,
		SourceDestCheck: eni.SourceDestCheck, Status: "in-use", SubnetID: eni.Subnet, VpcID: eni.VPC,
	}
	for n, ip := range eni.IPv4 {
		if n == 0 {
			out.PrivateIP, out.PrivateDNSName, out.Association = ip.String(), s.privateName(ip), s.publicOf(eni, ip)
		}
		out.PrivateIPs = append(out.PrivateIPs, privateIPOfXML{Association: s.publicOf(eni, ip), Primary: n == 0, PrivateDNSName: s.privateName(ip), PrivateIP: ip.String()})
	}
	for n, ip := range eni.IPv6 {
		out.Ipv6Addresses = append(out.Ipv6Addresses, ipv6Address{Ipv6Address: ptr(ip.String()), IsPrimaryIpv6: ptr(n == 0 && eni.PrimaryIPv6)})
	}
	return out
}

// networkOf fills in what an answer about an instance tells of its network.
func (s *Service) networkOf(i *instance, out *instanceXML) {
	out.SubnetID, out.VpcID = i.subnet, i.vpc
	options := nameOptions{HostnameType: ptr("ip-name"), EnableResourceNameDNSARecord: ptr(false), EnableResourceNameDNSAAAARecord: ptr(false)}
	if n := s.subnets[i.subnet]; n != nil {
		options = nameOptions{HostnameType: &n.hostnameType, EnableResourceNameDNSARecord: &n.nameA, EnableResourceNameDNSAAAARecord: &n.nameAAAA}
	}
	if o := i.data.PrivateDNSNameOptions; o != nil {
		options = replaceFields(options, *o)
	}
	out.NameOptions = &options
	for n, eni := range s.attached(i.id) {
		x := s.interfaceOfXML(eni)
		out.Interfaces = append(out.Interfaces, x)
		if n > 0 {
			continue
		}
		out.Groups, out.PrivateIP, out.SourceDestCheck = x.Groups, x.PrivateIP, &x.SourceDestCheck
		if x.Association != nil {
			out.PublicIP, out.PublicDNSName = x.Association.PublicIP, x.Association.PublicName
		}
		if len(x.Ipv6Addresses) > 0 {
			out.Ipv6Address = value(x.Ipv6Addresses[0].Ipv6Address)
		}
	}
}

// interfacesFilters are the filters of DescribeInstances that look at network interfaces.
func interfacesFilters() map[string]func(instanceXML) []string {
	texts := map[string]func(interfaceOfXML) []string{
		"network-interface.addresses.association.public-ip": func(n interfaceOfXML) []string {
			var all []string
			for _, a := range n.PrivateIPs {
				if a.Association != nil {
					all = append(all, a.Association.PublicIP)
				}
			}
			return all
		},
		"network-interface.addresses.primary": func(n interfaceOfXML) []string {
			return each(n.PrivateIPs, func(a privateIPOfXML) string { return strconv.FormatBool(a.Primary) })
		},
		"network-interface.addresses.private-ip-address": func(n interfaceOfXML) []string {
			return each(n.PrivateIPs, func(a privateIPOfXML) string { return a.PrivateIP })
		},
		"network-interface.association.public-ip": func(n interfaceOfXML) []string {
			if n.Association == nil {
				return nil
			}
			return []string{n.Association.PublicIP}
		},
		"network-interface.attachment.attachment-id":         func(n interfaceOfXML) []string { return []string{n.Attachment.ID} },
		"network-interface.attachment.delete-on-termination": func(n interfaceOfXML) []string { return flag(n.Attachment.DeleteOnTermination) },
		"network-interface.attachment.device-index":          func(n interfaceOfXML) []string { return []string{fmt.Sprint(n.Attachment.DeviceIndex)} },
		"network-interface.attachment.status":                func(n interfaceOfXML) []string { return []string{n.Attachment.Status} },
		"network-interface.description":                      func(n interfaceOfXML) []string { return []string{n.Description} },
		"network-interface.group-id":                         func(n interfaceOfXML) []string { return each(n.Groups, func(g groupRefXML) string { return g.ID }) },
		"network-interface.group-name":                       func(n interfaceOfXML) []string { return each(n.Groups, func(g groupRefXML) string { return g.Name }) },
		"network-interface.ipv6-addresses.ipv6-address": func(n interfaceOfXML) []string {
			return each(n.Ipv6Addresses, func(a ipv6Address) string { return value(a.Ipv6Address) })
		},
		"network-interface.mac-address":          func(n interfaceOfXML) []string { return []string{n.MAC} },
		"network-interface.network-interface-id": func(n interfaceOfXML) []string { return []string{n.ID} },
		"network-interface.owner-id":             func(n interfaceOfXML) []string { return []string{n.OwnerID} },
		"network-interface.private-dns-name":     func(n interfaceOfXML) []string { return []string{n.PrivateDNSName} },
		"network-interface.private-ip-address":   func(n interfaceOfXML) []string { return []string{n.PrivateIP} },
		"network-interface.source-dest-check":    func(n interfaceOfXML) []string { return flag(n.SourceDestCheck) },
		"network-interface.status":               func(n interfaceOfXML) []string { return []string{n.Status} },
		"network-interface.subnet-id":            func(n interfaceOfXML) []string { return []string{n.SubnetID} },
		"network-interface.vpc-id":               func(n interfaceOfXML) []string { return []string{n.VpcID} },
	}
	out := map[string]func(instanceXML) []string{}
	for name, values := range texts {
		out[name] = func(x instanceXML) []string {
			var all []string
			for _, n := range x.Interfaces {
				all = append(all, values(n)...)
			}
			return all
		}
	}
	return out
}

// setSourceDestCheck and setInstanceGroups change the primary interface: AWS refuses the short form when there are several.
func (s *Service) setSourceDestCheck(i *instance, on bool) error {
	attached := s.attached(i.id)
	if len(attached) != 1 {
		return failf("InvalidInstanceID", "There are multiple interfaces attached to instance '%s'. Please specify an interface ID for the operation instead.", i.id)
	}
	attached[0].SourceDestCheck = on
	return nil
}

func (s *Service) setInstanceGroups(i *instance, groups []string) error {
	attached := s.attached(i.id)
	if len(attached) != 1 {
		return failf("InvalidInstanceID", "There are multiple interfaces attached to instance '%s'. Please specify an interface ID for the operation instead.", i.id)
	}
	if err := s.CheckGroups(i.vpc, groups); err != nil {
		return err
	}
	attached[0].Groups, i.groups = groups, groups
	return nil
}
