package ec2

import (
	"net/netip"
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func (s *Service) assignAddresses(c *wire.Call) (any, error) {
	var in struct {
		NetworkInterfaceID             string   `query:"NetworkInterfaceId"`
		PrivateIPAddress               []string `query:"PrivateIpAddress"`
		SecondaryPrivateIPAddressCount int      `query:"SecondaryPrivateIpAddressCount"`
		AllowReassignment              bool
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "AssignPrivateIpAddresses", in.NetworkInterfaceID); err != nil {
		return nil, err
	}
	i, err := s.interfaceByID(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	if (len(in.PrivateIPAddress) > 0) == (in.SecondaryPrivateIPAddressCount > 0) {
		return nil,
			failf("InvalidParameterCombination",
				"Exactly one of privateIpAddresses and secondaryPrivateIpAddressCount must be specified")
	}
	n := s.subnets[i.Subnet]
	taken := s.taken(n)
	var added []netip.Addr
	moved := map[netip.Addr]*Interface{}
	for _, text := range in.PrivateIPAddress {
		a, err := parseAddress("privateIpAddress", text, false)
		if err != nil {
			return nil, err
		}
		for _, other := range s.interfaces {
			if in.AllowReassignment && other.Subnet == n.id && slices.Index(other.IPv4, a) > 0 {
				moved[a] = other
				delete(taken, a)
			}
		}
		if err := n.claim(a, taken); err != nil {
			return nil, err
		}
		added = append(added, a)
	}
	for range in.SecondaryPrivateIPAddressCount {
		a, err := n.choose(taken)
		if err != nil {
			return nil, err
		}
		added = append(added, a)
	}
	type item struct {
		Address string `xml:"privateIpAddress"`
	}
	for a, from := range moved {
		from.IPv4 = slices.DeleteFunc(from.IPv4, func(b netip.Addr) bool { return a == b })
	}
	i.IPv4 = append(i.IPv4, added...)
	return struct {
		ID    string `xml:"networkInterfaceId"`
		Items []item `xml:"assignedPrivateIpAddressesSet>item"`
	}{i.id, each(added, func(a netip.Addr) item { return item{a.String()} })}, nil
}

func (s *Service) unassignAddresses(c *wire.Call) (any, error) {
	var in struct {
		NetworkInterfaceID string   `query:"NetworkInterfaceId"`
		PrivateIPAddress   []string `query:"PrivateIpAddress"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "UnassignPrivateIpAddresses", in.NetworkInterfaceID); err != nil {
		return nil, err
	}
	i, err := s.interfaceByID(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	var gone []netip.Addr
	for _, text := range in.PrivateIPAddress {
		a, err := parseAddress("privateIpAddress", text, false)
		if err != nil {
			return nil, err
		}
		if at := slices.Index(i.IPv4, a); at <= 0 {
			return nil,
				failf("InvalidParameterValue",
					"Some of the specified addresses are not assigned to interface %s, or are its primary one", i.id)
		}
		gone = append(gone, a)
	}
	i.IPv4 = slices.DeleteFunc(i.IPv4, func(a netip.Addr) bool { return slices.Contains(gone, a) })
	for _, e := range s.addresses {
		if e.iface == i.id && slices.Contains(gone, e.private) {
			e.disassociate()
		}
	}
	return ok, nil
}

// assigned6 is the answer of both operations on IPv6 addresses.
type assigned6 struct {
	ID         string   `xml:"networkInterfaceId"`
	Assigned   []string `xml:"assignedIpv6Addresses>item"`
	Unassigned []string `xml:"unassignedIpv6Addresses>item"`
}

func (s *Service) assignAddresses6(c *wire.Call) (any, error) {
	var in struct {
		NetworkInterfaceID string `query:"NetworkInterfaceId"`
		Ipv6Addresses      []string
		Ipv6AddressCount   int
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "AssignIpv6Addresses", in.NetworkInterfaceID); err != nil {
		return nil, err
	}
	i, err := s.interfaceByID(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	if (len(in.Ipv6Addresses) > 0) == (in.Ipv6AddressCount > 0) {
		return nil,
			failf("InvalidParameterCombination", "Exactly one of ipv6Addresses and ipv6AddressCount must be specified")
	}
	n := s.subnets[i.Subnet]
	taken := s.taken(n)
	var added []netip.Addr
	for _, text := range in.Ipv6Addresses {
		a, err := parseAddress("ipv6Addresses", text, true)
		if err != nil {
			return nil, err
		}
		if err := n.claim(a, taken); err != nil {
			return nil, err
		}
		added = append(added, a)
	}
	for range in.Ipv6AddressCount {
		a, err := n.choose6(taken)
		if err != nil {
			return nil, err
		}
		added = append(added, a)
	}
	i.IPv6 = append(i.IPv6, added...)
	return assigned6{ID: i.id, Assigned: each(added, netip.Addr.String)}, nil
}

func (s *Service) unassignAddresses6(c *wire.Call) (any, error) {
	var in struct {
		NetworkInterfaceID string `query:"NetworkInterfaceId"`
		Ipv6Addresses      []string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "UnassignIpv6Addresses", in.NetworkInterfaceID); err != nil {
		return nil, err
	}
	i, err := s.interfaceByID(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	var gone []netip.Addr
	for _, text := range in.Ipv6Addresses {
		a, err := parseAddress("ipv6Addresses", text, true)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(i.IPv6, a) {
			return nil, failf("InvalidParameterValue", "The address %s is not assigned to interface %s", a, i.id)
		}
		gone = append(gone, a)
	}
	i.IPv6 = slices.DeleteFunc(i.IPv6, func(a netip.Addr) bool { return slices.Contains(gone, a) })
	return assigned6{ID: i.id, Unassigned: each(gone, netip.Addr.String)}, nil
}
