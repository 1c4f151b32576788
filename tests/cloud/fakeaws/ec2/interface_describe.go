package ec2

import (
	"net/netip"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

type groupRefXML struct {
	ID   string `xml:"groupId"`
	Name string `xml:"groupName"`
}

func (s *Service) groupRefs(ids []string) []groupRefXML {
	return each(ids, func(id string) groupRefXML {
		out := groupRefXML{ID: id}
		if g := s.groups[id]; g != nil {
			out.Name = g.name
		}
		return out
	})
}

type attachmentXML struct {
	ID                  string `xml:"attachmentId"`
	Instance            string `xml:"instanceId,omitempty"`
	Owner               string `xml:"instanceOwnerId"`
	Index               int    `xml:"deviceIndex"`
	Card                int    `xml:"networkCardIndex"`
	State               string `xml:"status"`
	At                  string `xml:"attachTime"`
	DeleteOnTermination bool   `xml:"deleteOnTermination"`
}

func (s *Service) attachmentXML(i *Interface) *attachmentXML {
	a := i.Attachment
	if a == nil {
		return nil
	}
	owner := s.cfg.Account
	if a.Instance == "" {
		owner = "amazon-aws"
	}
	return &attachmentXML{
		ID: a.ID, Instance: a.Instance, Owner: owner, Index: a.Index, State: a.state(s.now()), At: timestamp(a.At),
		DeleteOnTermination: a.DeleteOnTermination,
	}
}

// associationXML is a public address that is associated with a private one.
type associationXML struct {
	Public     string `xml:"publicIp"`
	PublicName string `xml:"publicDnsName"`
	Owner      string `xml:"ipOwnerId"`
	Allocation string `xml:"allocationId,omitempty"`
	ID         string `xml:"associationId,omitempty"`
}

// publicAssociation returns the public address that belongs to a private address of an interface. An elastic address
// takes precedence over the address that AWS assigned at launch.
func (s *Service) publicAssociation(i *Interface, private netip.Addr) *associationXML {
	for _, e := range s.addresses {
		if e.iface == i.id && e.private == private {
			return &associationXML{e.public.String(), s.publicName(i.VPC, e.public), s.cfg.Account, e.id, e.association}
		}
	}
	if i.Public.IsValid() && private == i.IPv4[0] {
		return &associationXML{Public: i.Public.String(), PublicName: s.publicName(i.VPC, i.Public), Owner: "amazon"}
	}
	return nil
}

// PublicAddress returns the public address of an interface's primary address, elastic or not. It returns the zero Addr
// if there is no public address.
func (s *Service) PublicAddress(i *Interface) netip.Addr {
	if len(i.IPv4) == 0 {
		return netip.Addr{}
	}
	a := s.publicAssociation(i, i.IPv4[0])
	if a == nil {
		return netip.Addr{}
	}
	return netip.MustParseAddr(a.Public)
}

type privateAddressXML struct {
	Address     string          `xml:"privateIpAddress"`
	Name        string          `xml:"privateDnsName,omitempty"`
	Primary     bool            `xml:"primary"`
	Association *associationXML `xml:"association"`
}

type address6XML struct {
	Address string `xml:"ipv6Address"`
	Primary bool   `xml:"isPrimaryIpv6"`
}

type interfaceXML struct {
	ID               string              `xml:"networkInterfaceId"`
	Subnet           string              `xml:"subnetId"`
	VPC              string              `xml:"vpcId"`
	Zone             string              `xml:"availabilityZone"`
	ZoneID           string              `xml:"availabilityZoneId"`
	Description      string              `xml:"description"`
	Owner            string              `xml:"ownerId"`
	Requester        string              `xml:"requesterId,omitempty"`
	RequesterManaged bool                `xml:"requesterManaged"`
	Status           string              `xml:"status"`
	MAC              string              `xml:"macAddress"`
	Private          string              `xml:"privateIpAddress,omitempty"`
	PrivateName      string              `xml:"privateDnsName,omitempty"`
	Address6         string              `xml:"ipv6Address,omitempty"`
	SourceDestCheck  bool                `xml:"sourceDestCheck"`
	Groups           []groupRefXML       `xml:"groupSet>item"`
	Attachment       *attachmentXML      `xml:"attachment"`
	Association      *associationXML     `xml:"association"`
	Addresses        []privateAddressXML `xml:"privateIpAddressesSet>item"`
	Addresses6       []address6XML       `xml:"ipv6AddressesSet>item"`
	Type             string              `xml:"interfaceType"`
	Native           bool                `xml:"ipv6Native"`
	DenyAllIGW       bool                `xml:"denyAllIgwTraffic"`
	Tags             []Tag               `xml:"tagSet>item"`
}

func (s *Service) interfaceXML(i *Interface) interfaceXML {
	out := interfaceXML{
		ID: i.id, Subnet: i.Subnet, VPC: i.VPC, Zone: i.Zone, ZoneID: s.zoneID(i.Zone), Description: i.Description,
		Owner: s.cfg.Account, Requester: i.Requester,
		RequesterManaged: i.Requester != "", Status: i.status(), MAC: i.MAC, SourceDestCheck: i.SourceDestCheck,
		Groups:     s.groupRefs(i.Groups),
		Attachment: s.attachmentXML(i), Type: i.Type, Native: len(i.IPv4) == 0, Tags: s.tagList(i.id),
	}
	for at, a := range i.IPv4 {
		x := privateAddressXML{Address: a.String(), Primary: at == 0, Association: s.publicAssociation(i, a)}
		if v := s.vpcs[i.VPC]; v.dnsHostnames && v.dnsSupport {
			x.Name = s.privateName(a)
		}
		if at == 0 {
			out.Private, out.PrivateName, out.Association = x.Address, x.Name, x.Association
		}
		out.Addresses = append(out.Addresses, x)
	}
	for at, a := range i.IPv6 {
		out.Addresses6 = append(out.Addresses6, address6XML{a.String(), at == 0 && i.PrimaryIPv6})
		if at == 0 {
			out.Address6 = a.String()
		}
	}
	return out
}

// status returns available or in-use.
func (i *Interface) status() string {
	if i.Attachment == nil {
		return "available"
	}
	return "in-use"
}

func (s *Service) describeInterfaces(c *wire.Call) (any, error) {
	var in struct {
		NetworkInterfaceID      []string `query:"NetworkInterfaceId"`
		Filter                  []Filter
		IncludeManagedResources bool
		MaxResults              int
		NextToken               string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeNetworkInterfaces"); err != nil {
		return nil, err
	}
	q := query{in.NetworkInterfaceID, in.Filter, in.MaxResults, in.NextToken}
	found, next, err := find(s, s.interfaces, q, s.interfaceFilters())
	if err != nil {
		return nil, err
	}
	return struct {
		Items []interfaceXML `xml:"networkInterfaceSet>item"`
		Next  string         `xml:"nextToken,omitempty"`
	}{each(found, s.interfaceXML), next}, nil
}

// interfaceFilters returns the filters of DescribeNetworkInterfaces.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeNetworkInterfaces.html
func (s *Service) interfaceFilters() map[string]func(*Interface) []string {
	attachment := func(value func(*attachmentXML) string) func(*Interface) []string {
		return func(i *Interface) []string {
			if i.Attachment == nil {
				return nil
			}
			return []string{value(s.attachmentXML(i))}
		}
	}
	public := func(value func(*associationXML) string) func(*Interface) []string {
		return func(i *Interface) []string {
			var all []string
			for _, a := range i.IPv4 {
				if p := s.publicAssociation(i, a); p != nil {
					all = append(all, value(p))
				}
			}
			return all
		}
	}
	text := func(value func(interfaceXML) string) func(*Interface) []string {
		return func(i *Interface) []string { return []string{value(s.interfaceXML(i))} }
	}
	addresses := func(i *Interface) []string { return each(i.IPv4, netip.Addr.String) }
	return map[string]func(*Interface) []string{
		"addresses.association.owner-id":  public(func(a *associationXML) string { return a.Owner }),
		"addresses.association.public-ip": public(func(a *associationXML) string { return a.Public }),
		"addresses.primary": func(i *Interface) []string {
			return each(s.interfaceXML(i).Addresses, func(a privateAddressXML) string { return flag(a.Primary)[0] })
		},
		"addresses.private-ip-address": addresses,
		"association.allocation-id":    public(func(a *associationXML) string { return a.Allocation }),
		"association.association-id":   public(func(a *associationXML) string { return a.ID }),
		"association.ip-owner-id":      public(func(a *associationXML) string { return a.Owner }),
		"association.public-dns-name":  public(func(a *associationXML) string { return a.PublicName }),
		"association.public-ip":        public(func(a *associationXML) string { return a.Public }),
		"attachment.attach-time":       attachment(func(a *attachmentXML) string { return a.At }),
		"attachment.attachment-id":     attachment(func(a *attachmentXML) string { return a.ID }),
		"attachment.delete-on-termination": attachment(func(a *attachmentXML) string {
			return flag(a.DeleteOnTermination)[0]
		}),
		"attachment.device-index":      attachment(func(a *attachmentXML) string { return strconv.Itoa(a.Index) }),
		"attachment.instance-id":       attachment(func(a *attachmentXML) string { return a.Instance }),
		"attachment.instance-owner-id": attachment(func(a *attachmentXML) string { return a.Owner }),
		"attachment.status":            attachment(func(a *attachmentXML) string { return a.State }),
		"availability-zone":            func(i *Interface) []string { return []string{i.Zone} },
		"availability-zone-id":         func(i *Interface) []string { return []string{s.zoneID(i.Zone)} },
		"description":                  func(i *Interface) []string { return []string{i.Description} },
		"group-id":                     func(i *Interface) []string { return i.Groups },
		"group-name": func(i *Interface) []string {
			return each(s.groupRefs(i.Groups), func(g groupRefXML) string { return g.Name })
		},
		"interface-type":              func(i *Interface) []string { return []string{i.Type} },
		"ipv6-addresses.ipv6-address": func(i *Interface) []string { return each(i.IPv6, netip.Addr.String) },
		"mac-address":                 func(i *Interface) []string { return []string{i.MAC} },
		"network-interface-id":        func(i *Interface) []string { return []string{i.id} },
		"owner-id":                    text(func(x interfaceXML) string { return x.Owner }),
		"private-dns-name":            text(func(x interfaceXML) string { return x.PrivateName }),
		"private-ip-address":          text(func(x interfaceXML) string { return x.Private }),
		"requester-id":                func(i *Interface) []string { return []string{i.Requester} },
		"requester-managed":           func(i *Interface) []string { return flag(i.Requester != "") },
		"source-dest-check":           func(i *Interface) []string { return flag(i.SourceDestCheck) },
		"status":                      func(i *Interface) []string { return []string{i.status()} },
		"subnet-id":                   func(i *Interface) []string { return []string{i.Subnet} },
		"vpc-id":                      func(i *Interface) []string { return []string{i.VPC} },
	}
}
