package ec2

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

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

// publicOf returns the public address that belongs to a private address of an interface. That is an elastic address, or
// else the address that AWS assigned at launch. At launch, AWS assigns a public address only to the primary private
// address.
func (s *Service) publicOf(eni *Interface, private netip.Addr) *associationOfXML {
	for _, e := range s.addresses {
		if e.iface == eni.id && e.private == private {
			return &associationOfXML{OwnerID: s.cfg.Account, PublicName: s.publicName(eni.VPC, e.public),
				PublicIP: e.public.String()}
		}
	}
	if eni.Public.IsValid() && len(eni.IPv4) > 0 && eni.IPv4[0] == private {
		return &associationOfXML{OwnerID: "amazon", PublicName: s.publicName(eni.VPC, eni.Public),
			PublicIP: eni.Public.String()}
	}
	return nil
}

func (s *Service) interfaceOfXML(eni *Interface) interfaceOfXML {
	a := eni.Attachment
	out := interfaceOfXML{
		Attachment: attachmentOfXML{
			ID: a.ID, AttachTime: wire.Time{Time: a.At}, DeleteOnTermination: a.DeleteOnTermination,
			DeviceIndex: a.Index, Status: a.state(s.cfg.Now()),
		},
		Description: eni.Description, Groups: s.groupRefs(eni.Groups), InterfaceType: eni.Type, MAC: eni.MAC,
		ID: eni.id, OwnerID: s.cfg.Account,
		SourceDestCheck: eni.SourceDestCheck, Status: "in-use", SubnetID: eni.Subnet, VpcID: eni.VPC,
	}
	for n, ip := range eni.IPv4 {
		if n == 0 {
			out.PrivateIP, out.PrivateDNSName, out.Association = ip.String(), s.privateName(ip), s.publicOf(eni, ip)
		}
		out.PrivateIPs = append(out.PrivateIPs, privateIPOfXML{Association: s.publicOf(eni, ip), Primary: n == 0,
			PrivateDNSName: s.privateName(ip), PrivateIP: ip.String()})
	}
	for n, ip := range eni.IPv6 {
		out.Ipv6Addresses = append(out.Ipv6Addresses, ipv6Address{Ipv6Address: ptr(ip.String()),
			IsPrimaryIpv6: ptr(n == 0 && eni.PrimaryIPv6)})
	}
	return out
}

// networkOf sets the network fields in an answer about an instance.
func (s *Service) networkOf(i *instance, out *instanceXML) {
	out.SubnetID, out.VpcID = i.subnet, i.vpc
	options := nameOptions{HostnameType: ptr("ip-name"), EnableResourceNameDNSARecord: ptr(false),
		EnableResourceNameDNSAAAARecord: ptr(false)}
	if n := s.subnets[i.subnet]; n != nil {
		options = nameOptions{HostnameType: &n.hostnameType, EnableResourceNameDNSARecord: &n.nameA,
			EnableResourceNameDNSAAAARecord: &n.nameAAAA}
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

// interfacesFilters returns the filters of DescribeInstances that compare properties of the network interfaces.
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
		"network-interface.attachment.attachment-id": func(n interfaceOfXML) []string {
			return []string{n.Attachment.ID}
		},
		"network-interface.attachment.delete-on-termination": func(n interfaceOfXML) []string {
			return flag(n.Attachment.DeleteOnTermination)
		},
		"network-interface.attachment.device-index": func(n interfaceOfXML) []string {
			return []string{fmt.Sprint(n.Attachment.DeviceIndex)}
		},
		"network-interface.attachment.status": func(n interfaceOfXML) []string {
			return []string{n.Attachment.Status}
		},
		"network-interface.description": func(n interfaceOfXML) []string {
			return []string{n.Description}
		},
		"network-interface.group-id": func(n interfaceOfXML) []string {
			return each(n.Groups, func(g groupRefXML) string { return g.ID })
		},
		"network-interface.group-name": func(n interfaceOfXML) []string {
			return each(n.Groups, func(g groupRefXML) string { return g.Name })
		},
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
