package ec2

import (
	"encoding/binary"
	"net/netip"
)

// reserved is the number of unusable addresses of an IPv4 block: the first four and the last.
// https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html
const reserved = 5

// freeCount returns the number of free IPv4 addresses. It is zero in an IPv6-only subnet.
func (s *Service) freeCount(n *subnet) int {
	if !n.block.IsValid() {
		return 0
	}
	free := 1<<(32-n.block.Bits()) - reserved
	for _, i := range s.interfaces {
		if i.Subnet == n.id {
			free -= len(i.IPv4)
		}
	}
	return free
}

// taken returns the addresses of a subnet's interfaces.
func (s *Service) taken(n *subnet) map[netip.Addr]bool {
	taken := map[netip.Addr]bool{}
	for _, i := range s.interfaces {
		if i.Subnet != n.id {
			continue
		}
		for _, a := range i.IPv4 {
			taken[a] = true
		}
		for _, a := range i.IPv6 {
			taken[a] = true
		}
	}
	return taken
}

// isReserved reports whether AWS reserves an address of the block.
func isReserved(block netip.Prefix, a netip.Addr) bool {
	if a == last(block) {
		return true
	}
	first := block.Addr()
	for range reserved - 1 {
		if a == first {
			return true
		}
		first = first.Next()
	}
	return false
}

func last(block netip.Prefix) netip.Addr {
	b := block.Addr().AsSlice()
	for bit := block.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b) // b has the length of an address
	return a
}

// choose returns a free IPv4 address and marks it as taken.
func (n *subnet) choose(taken map[netip.Addr]bool) (netip.Addr, error) {
	if !n.block.IsValid() {
		return netip.Addr{}, failf("InvalidParameterValue", "The IPv6-only subnet '%s' has no IPv4 addresses", n.id)
	}
	if !n.next.IsValid() {
		n.next = n.block.Addr()
	}
	for range 1 << (32 - n.block.Bits()) {
		a := n.next
		if n.next = a.Next(); !n.block.Contains(n.next) {
			n.next = n.block.Addr()
		}
		if !taken[a] && !isReserved(n.block, a) {
			taken[a] = true
			return a, nil
		}
	}
	return netip.Addr{},
		failf("InsufficientFreeAddressesInSubnet",
			"The specified subnet does not have enough free addresses to satisfy the request.")
}

// choose6 returns a random free IPv6 address, as AWS does, and marks it as taken.
func (n *subnet) choose6(taken map[netip.Addr]bool) (netip.Addr, error) {
	if len(n.blocks6) == 0 {
		return netip.Addr{}, failf("InvalidParameterValue", "The subnet '%s' has no IPv6 CIDR block", n.id)
	}
	block := n.blocks6[0].prefix
	for {
		b := block.Addr().As16()
		var host [8]byte
		random(host[:])
		binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(host[:])&0x0000ffffffffffff) // /64 or shorter
		if a := netip.AddrFrom16(b); !taken[a] && !isReserved(block, a) {
			taken[a] = true
			return a, nil
		}
	}
}

// claim checks an address that a caller requests, and marks it as taken.
func (n *subnet) claim(a netip.Addr, taken map[netip.Addr]bool) error {
	block := n.block
	if a.Is6() {
		block = netip.Prefix{}
		if len(n.blocks6) > 0 {
			block = n.blocks6[0].prefix
		}
	}
	switch {
	case !block.IsValid() || !block.Contains(a):
		return failf("InvalidParameterValue", "Address %s does not fall within the subnet's address range", a)
	case isReserved(block, a):
		return failf("InvalidParameterValue", "Address %s is in subnet's reserved address range", a)
	case taken[a]:
		return failf("InvalidIPAddress.InUse", "Address %s is in use.", a)
	}
	taken[a] = true
	return nil
}

// parseAddress reads the address in a parameter: IPv6 if six is true, else IPv4.
func parseAddress(parameter, text string, six bool) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Is6() != six || a.Is4In6() || a.Zone() != "" {
		return netip.Addr{},
			failf("InvalidParameterValue", "Value (%s) for parameter %s is invalid. Invalid IPv%d address", text,
				parameter, map[bool]int{false: 4, true: 6}[six])
	}
	return a, nil
}
