package layer2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	macLength = 6
	// arpLength is the length of an ARP packet for Ethernet and IPv4.
	arpLength = 28
)

// endpoint is the socket of a speaker.
type endpoint struct {
	socket int
	index  int // of the interface
	mac    net.HardwareAddr
	addr   netip.Addr
}

func (e *endpoint) close() error { return unix.Close(e.socket) }

// arp speaks ARP for an IPv4 address.
type arp struct{ endpoint }

func newARP(link *netlink.LinkAttrs, addr netip.Addr) (speaker, error) {
	protocol := networkOrder(unix.ETH_P_ARP)
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(protocol))
	if err != nil {
		return nil, fmt.Errorf("open a socket for ARP: %w", err)
	}
	a := &arp{endpoint{socket, link.Index, link.HardwareAddr, addr}}
	if err := unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind the socket for ARP: %w", err), a.close())
	}
	return a, nil
}

// networkOrder converts n to network byte order.
func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// announce implements speaker with a gratuitous request (RFC 5227, section 3).
func (a *arp) announce() error { return a.request(a.addr) }

// probe implements speaker with a request whose sender address is zero (RFC 5227, section 2.1.1).
func (a *arp) probe() error { return a.request(netip.IPv4Unspecified()) }

// request broadcasts a request for the address.
func (a *arp) request(from netip.Addr) error {
	packet := []byte{0, 1, 8, 0, macLength, net.IPv4len, 0, 1} // Ethernet, IPv4, request
	packet = slices.Concat(packet, a.mac, from.AsSlice(), make([]byte, macLength), a.addr.AsSlice())
	to := &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ARP), Ifindex: a.index, Halen: macLength,
		Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	if err := unix.Sendto(a.socket, packet, 0, to); err != nil {
		return fmt.Errorf("send ARP: %w", err)
	}
	return nil
}

// claims implements speaker. A machine claims the address if it sends any ARP packet with the address as the sender's
// address.
func (a *arp) claims() ([]net.HardwareAddr, error) {
	return receive(a.socket, func(packet []byte) net.HardwareAddr {
		if len(packet) < arpLength {
			return nil
		}
		sender := net.HardwareAddr(packet[8:14])
		if !bytes.Equal(packet[14:18], a.addr.AsSlice()) || bytes.Equal(sender, a.mac) {
			return nil
		}
		return sender
	})
}

// receive reads all packets that wait in a socket, and calls claim for each. claim returns the MAC address of the
// machine that claims the address, or nil if the packet contains no such claim.
func receive(socket int, claim func(packet []byte) net.HardwareAddr) (claims []net.HardwareAddr, err error) {
	packet := make([]byte, 1500)
	for {
		n, _, err := unix.Recvfrom(socket, packet, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return claims, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return claims, fmt.Errorf("receive: %w", err)
		}
		if mac := claim(packet[:n]); mac != nil {
			claims = append(claims, slices.Clone(mac))
		}
	}
}
