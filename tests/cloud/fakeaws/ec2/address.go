package ec2

import (
	"net/netip"
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// defaultAddressLimit is the default number of elastic IP addresses of an account in a region.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/elastic-ip-addresses-eip.html
const defaultAddressLimit = 5

// address is an elastic IP address.
type address struct {
	entity
	public      netip.Addr
	association string // "": not associated
	iface       string
	private     netip.Addr // private address of the interface
	holder      string     // the NAT gateway that uses it, "" for associations of users
}

func (a *address) disassociate() {
	a.association, a.iface, a.private, a.holder = "", "", netip.Addr{}, ""
}

// associate associates an elastic address with a private address of an interface.
func (a *address) associate(i *Interface, private netip.Addr, holder string) {
	a.association, a.iface, a.private, a.holder = newID("eipassoc"), i.id, private, holder
}

// SetAddressLimit sets the account's limit of elastic IP addresses. The default is 5. It takes the cloud's lock.
func (s *Service) SetAddressLimit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addressLimit = n
}

func (s *Service) allocateAddress(c *wire.Call) (any, error) {
	var in struct {
		Domain             string
		PublicIpv4Pool     string
		NetworkBorderGroup string
		TagSpecification   []TagSpecification
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	tags, err := specified(in.TagSpecification, "elastic-ip")
	if err != nil {
		return nil, err
	}
	if err := s.allowNew(c, "AllocateAddress", "elastic-ip", tags, nil); err != nil {
		return nil, err
	}
	switch {
	case in.Domain != "" && in.Domain != "vpc":
		return nil, invalid("domain", in.Domain)
	case in.PublicIpv4Pool != "" && in.PublicIpv4Pool != "amazon":
		return nil, failf("InvalidPublicIpv4PoolID.NotFound", "The public IPv4 pool '%s' does not exist",
			in.PublicIpv4Pool)
	case in.NetworkBorderGroup != "" && in.NetworkBorderGroup != s.cfg.Region:
		return nil, invalid("networkBorderGroup", in.NetworkBorderGroup)
	case len(s.network.addresses) >= s.addressLimit:
		return nil, failf("AddressLimitExceeded", "The maximum number of addresses has been reached.")
	}
	a := &address{entity: s.entity("eipalloc"), public: s.newPublicAddress()}
	s.addresses[a.id] = a
	s.SetTags(a.id, tags)
	return struct {
		Public      string `xml:"publicIp"`
		Pool        string `xml:"publicIpv4Pool"`
		Domain      string `xml:"domain"`
		ID          string `xml:"allocationId"`
		BorderGroup string `xml:"networkBorderGroup"`
	}{a.public.String(), "amazon", "vpc", a.id, s.cfg.Region}, nil
}

// addressBy returns the elastic address with an allocation ID or a public address.
func (s *Service) addressBy(allocation, public string) (*address, error) {
	switch {
	case allocation == "" && public == "":
		return nil, missing("allocationId")
	case allocation != "" && public != "":
		return nil,
			failf("InvalidParameterCombination",
				"You may specify public IP or allocation id, but not both in the same call")
	case allocation != "":
		if a := s.addresses[allocation]; a != nil {
			return a, nil
		}
		return nil, failf("InvalidAllocationID.NotFound", "The allocation ID '%s' does not exist", allocation)
	}
	for _, a := range s.addresses {
		if a.public.String() == public {
			return a, nil
		}
	}
	return nil, failf("InvalidAddress.NotFound", "Address '%s' not found.", public)
}

// allowAddress checks that the caller may perform an action on an elastic address and on the resources in the parameter
// others. If the address does not exist, the parameter a is nil.
func (s *Service) allowAddress(c *wire.Call, action string, a *address, allocation string, others ...string) error {
	if a != nil {
		allocation = a.id
	}
	if allocation == "" {
		return s.allowAny(c, action)
	}
	return s.allow(c, action, append([]string{allocation}, others...)...)
}

func (s *Service) releaseAddress(c *wire.Call) (any, error) {
	var in struct {
		AllocationID       string `query:"AllocationId"`
		PublicIP           string `query:"PublicIp"`
		NetworkBorderGroup string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	a, wrong := s.addressBy(in.AllocationID, in.PublicIP)
	if err := s.allowAddress(c, "ReleaseAddress", a, in.AllocationID); err != nil {
		return nil, err
	}
	switch {
	case wrong != nil:
		return nil, wrong
	case in.NetworkBorderGroup != "" && in.NetworkBorderGroup != s.cfg.Region:
		return nil, invalid("networkBorderGroup", in.NetworkBorderGroup)
	case a.association != "":
		return nil, failf("InvalidIPAddress.InUse", "Address %s is in use.", a.public)
	}
	drop(s, s.addresses, a.id)
	return ok, nil
}

func (s *Service) disassociateAddress(c *wire.Call) (any, error) {
	var in struct {
		AssociationID string `query:"AssociationId"`
		PublicIP      string `query:"PublicIp"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	var a *address
	for _, other := range s.addresses {
		if other.association != "" && (other.association == in.AssociationID || other.public.String() == in.PublicIP) {
			a = other
		}
	}
	if a == nil {
		if err := s.allowAny(c, "DisassociateAddress"); err != nil {
			return nil, err
		}
		if in.AssociationID == "" && in.PublicIP == "" {
			return nil, missing("associationId")
		}
		return nil, noAssociation(in.AssociationID + in.PublicIP)
	}
	if err := s.allow(c, "DisassociateAddress", a.id, a.iface); err != nil {
		return nil, err
	}
	if a.holder != "" {
		return nil, failf("AuthFailure", "You do not have permission to access the specified resource.")
	}
	a.disassociate()
	return ok, nil
}

type addressXML struct {
	ID             string `xml:"allocationId"`
	Public         string `xml:"publicIp"`
	Domain         string `xml:"domain"`
	Pool           string `xml:"publicIpv4Pool"`
	BorderGroup    string `xml:"networkBorderGroup"`
	Association    string `xml:"associationId,omitempty"`
	Instance       string `xml:"instanceId,omitempty"`
	Interface      string `xml:"networkInterfaceId,omitempty"`
	InterfaceOwner string `xml:"networkInterfaceOwnerId,omitempty"`
	Private        string `xml:"privateIpAddress,omitempty"`
	Tags           []Tag  `xml:"tagSet>item"`
}

func (s *Service) addressXML(a *address) addressXML {
	out := addressXML{ID: a.id, Public: a.public.String(), Domain: "vpc", Pool: "amazon", BorderGroup: s.cfg.Region,
		Tags: s.tagList(a.id)}
	if a.association != "" {
		out.Association, out.Interface, out.InterfaceOwner, out.Private = a.association, a.iface, s.cfg.Account,
			a.private.String()
		if at := s.interfaces[a.iface].Attachment; at != nil {
			out.Instance = at.Instance
		}
	}
	return out
}

func (s *Service) describeAddresses(c *wire.Call) (any, error) {
	var in struct {
		AllocationID []string `query:"AllocationId"`
		PublicIP     []string `query:"PublicIp"`
		Filter       []Filter
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeAddresses"); err != nil {
		return nil, err
	}
	for _, public := range in.PublicIP {
		a, err := s.addressBy("", public)
		if err != nil {
			return nil, err
		}
		in.AllocationID = append(in.AllocationID, a.id)
	}
	field := func(value func(addressXML) string) func(*address) []string {
		return func(a *address) []string {
			return slices.DeleteFunc([]string{value(s.addressXML(a))}, func(v string) bool { return v == "" })
		}
	}
	found, _, err := find(s, s.addresses, query{ids: in.AllocationID, filters: in.Filter},
		map[string]func(*address) []string{
			"allocation-id":              field(func(x addressXML) string { return x.ID }),
			"association-id":             field(func(x addressXML) string { return x.Association }),
			"domain":                     field(func(x addressXML) string { return x.Domain }),
			"instance-id":                field(func(x addressXML) string { return x.Instance }),
			"network-border-group":       field(func(x addressXML) string { return x.BorderGroup }),
			"network-interface-id":       field(func(x addressXML) string { return x.Interface }),
			"network-interface-owner-id": field(func(x addressXML) string { return x.InterfaceOwner }),
			"private-ip-address":         field(func(x addressXML) string { return x.Private }),
			"public-ip":                  field(func(x addressXML) string { return x.Public }),
		})
	if err != nil {
		return nil, err
	}
	return struct {
		Items []addressXML `xml:"addressesSet>item"`
	}{each(found, s.addressXML)}, nil
}

func (s *Service) describeAddressesAttribute(c *wire.Call) (any, error) {
	var in struct {
		AllocationID []string `query:"AllocationId"`
		Attribute    string
		MaxResults   int
		NextToken    string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeAddressesAttribute"); err != nil {
		return nil, err
	}
	if in.Attribute != "" && in.Attribute != "domain-name" {
		return nil, invalid("attribute", in.Attribute)
	}
	found, _, err := find(s, s.addresses, query{ids: in.AllocationID}, nil)
	if err != nil {
		return nil, err
	}
	page, next, err := paged(found, in.MaxResults, in.NextToken)
	if err != nil {
		return nil, err
	}
	type item struct {
		ID     string `xml:"allocationId"`
		Public string `xml:"publicIp"`
	}
	return struct {
		Items []item `xml:"addressSet>item"`
		Next  string `xml:"nextToken,omitempty"`
	}{each(page, func(a *address) item { return item{a.id, a.public.String()} }), next}, nil
}
