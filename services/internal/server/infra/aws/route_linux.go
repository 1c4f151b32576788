package aws

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Addresses for documentation (RFC 5737, RFC 3849). A machine has no special route to them, so it sends packets to them
// by the same route as to any other subnet.
var (
	elsewhere4 = net.ParseIP("192.0.2.1")
	elsewhere6 = net.ParseIP("2001:db8::1")
)

// replyInterface returns the name of the interface through which this machine sends packets from one of its addresses
// to other subnets.
func replyInterface(from netip.Addr) (string, error) {
	to := elsewhere4
	if from.Is6() {
		to = elsewhere6
	}
	routes, err := netlink.RouteGetWithOptions(to, &netlink.RouteGetOptions{SrcAddr: from.AsSlice()})
	if err != nil {
		return "", fmt.Errorf("ask the kernel for the route: %w", err)
	}
	if len(routes) == 0 {
		return "", errors.New("the kernel names no route")
	}
	link, err := net.InterfaceByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", fmt.Errorf("find the interface of the route: %w", err)
	}
	return link.Name, nil
}
