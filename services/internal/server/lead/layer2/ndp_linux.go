package layer2

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Types of ICMPv6 and of the options of NDP (RFC 4861, section 4).
const (
	neighborSolicitation  = 135
	neighborAdvertisement = 136
	sourceLinkLayer       = 1
	targetLinkLayer       = 2
	// override is the flag that lets an advertisement replace a known MAC address.
	override = 0x20
	// neighborLength is the length of a solicitation or an advertisement without options.
	neighborLength = 24
)

// ndp speaks NDP for an IPv6 address.
type ndp struct{ endpoint }

func newNDP(link *netlink.LinkAttrs, addr netip.Addr) (speaker, error) {
	socket, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return nil, fmt.Errorf("open a socket for NDP: %w", err)
	}
	n := &ndp{endpoint{socket, link.Index, link.HardwareAddr, addr}}
	filter := &unix.ICMPv6Filter{} // a set bit blocks a type
	for i := range filter.Data {
		filter.Data[i] = ^uint32(0)
	}
	filter.Data[neighborAdvertisement/32] &^= 1 << (neighborAdvertisement % 32)
	err = errors.Join(
		unix.SetsockoptICMPv6Filter(socket, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, filter),
		unix.BindToDevice(socket, link.Name),
		// The hop limit must be 255. Receivers drop messages of NDP with another hop limit, because a router may have
		// forwarded them.
		unix.SetsockoptInt(socket, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
		unix.SetsockoptInt(socket, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the socket for NDP: %w", err), n.close())
	}
	return n, nil
}

// announce implements speaker with an unsolicited advertisement (RFC 4861, section 7.2.6).
func (n *ndp) announce() error {
	allNodes := netip.MustParseAddr("ff02::1")
	return n.send(allNodes, neighborAdvertisement, override, targetLinkLayer)
}

// probe implements speaker with a solicitation. The solicitation comes from the interface's link-local address. If it
// came from the leader's address, another machine with that address would not answer it.
func (n *ndp) probe() error {
	group := netip.MustParseAddr("ff02::1:ff00:0").As16() // solicited-node address (RFC 4291, section 2.7.1)
	own := n.addr.As16()
	copy(group[13:], own[13:])
	return n.send(netip.AddrFrom16(group), neighborSolicitation, 0, sourceLinkLayer)
}

// send sends a message that contains the leader's address and this machine's MAC address. The kernel adds the checksum.
func (n *ndp) send(to netip.Addr, kind, flags, option byte) error {
	message := slices.Concat([]byte{kind, 0, 0, 0, flags, 0, 0, 0}, n.addr.AsSlice(), []byte{option, 1}, n.mac)
	zone := uint32(n.index) //nolint:gosec // the index of an interface
	if err := unix.Sendto(n.socket, message, 0, &unix.SockaddrInet6{Addr: to.As16(), ZoneId: zone}); err != nil {
		return fmt.Errorf("send NDP: %w", err)
	}
	return nil
}

// claims implements speaker. A machine claims the address by an advertisement with the address as its target. The
// advertisement contains the machine's MAC address.
func (n *ndp) claims() ([]net.HardwareAddr, error) {
	return receive(n.socket, func(message []byte) net.HardwareAddr {
		if len(message) < neighborLength || !bytes.Equal(message[8:neighborLength], n.addr.AsSlice()) {
			return nil
		}
		for options := message[neighborLength:]; len(options) >= 8; {
			length := int(options[1]) * 8
			if length == 0 || length > len(options) {
				return nil
			}
			mac := net.HardwareAddr(options[2 : 2+macLength])
			if options[0] == targetLinkLayer && !bytes.Equal(mac, n.mac) {
				return mac
			}
			options = options[length:]
		}
		return nil
	})
}
