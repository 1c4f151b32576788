package bootscript

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// LeaderNetwork is the systemd-networkd configuration of the leader's interface, which moves from leader to leader. The
// zero value means that the image configures the interface.
//
// Without this configuration, replies from the interface's addresses leave by the machine's primary interface. A
// network that checks source addresses drops those replies, because the primary interface does not have these
// addresses.
type LeaderNetwork struct {
	MAC string
	// IPv4 and IPv6 are the addresses of the interface, or "".
	IPv4, IPv6 string
	// Gateway is the router of the interface's subnet. It is required with IPv4. The IPv6 router advertises itself.
	Gateway string
}

// networkFile is the path of the leader interface's configuration. systemd-networkd sorts files by name and uses the
// first one that matches an interface. The names of other tools' files begin with higher numbers: 10 for netplan, and
// 07 or more for the others.
const networkFile = "/etc/systemd/network/05-nstance-leader.network"

// leaderTable is the routing table for the packets that are sent from the leader's addresses.
const leaderTable = 1000

// validate adds the errors of l to errs. Each error names a field of the Terraform argument leader_network.
func (l LeaderNetwork) validate(errs *problems) {
	if l == (LeaderNetwork{}) {
		return
	}
	if mac, err := net.ParseMAC(l.MAC); err != nil || len(mac) != 6 || mac.String() != l.MAC {
		errs.add("leader_network.mac_address", fmt.Errorf("%q is not a MAC address, such as 02:00:00:ab:cd:ef", l.MAC))
	}
	address := func(field, text string, is func(netip.Addr) bool, family string) {
		if addr, err := netip.ParseAddr(text); text != "" && (err != nil || !is(addr) || addr.Zone() != "") {
			errs.add("leader_network."+field, fmt.Errorf("%q is not an %s address", text, family))
		}
	}
	address("ipv4", l.IPv4, netip.Addr.Is4, "IPv4")
	address("ipv4_gateway", l.Gateway, netip.Addr.Is4, "IPv4")
	address("ipv6", l.IPv6, netip.Addr.Is6, "IPv6")
	switch {
	case l.IPv4 == "" && l.IPv6 == "":
		errs.add("leader_network", errors.New("has neither ipv4 nor ipv6"))
	case (l.IPv4 == "") != (l.Gateway == ""):
		errs.add("leader_network.ipv4_gateway", errors.New("belongs to ipv4: set both or neither"))
	}
}

// commands returns the part of the script that writes the configuration. The file is readable by all users, because
// systemd-networkd does not run as root. The configuration also applies to an interface that is attached later.
//
// All replies go to the subnet's router. It forwards replies to VMs of the same subnet too.
// https://www.freedesktop.org/software/systemd/man/252/systemd.network.html
func (l LeaderNetwork) commands() string {
	if l == (LeaderNetwork{}) {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[Match]\nMACAddress=%s\n[Link]\nRequiredForOnline=no\n", l.MAC)
	if l.IPv6 == "" {
		b.WriteString("[Network]\nIPv6AcceptRA=no\n")
	} else {
		fmt.Fprintf(&b, "[Network]\nIPv6AcceptRA=yes\n[IPv6AcceptRA]\nDHCPv6Client=no\nRouteTable=%d\n"+
			"[Address]\nAddress=%s/128\nDuplicateAddressDetection=none\n[RoutingPolicyRule]\nFrom=%s/128\nTable=%d\n",
			leaderTable, l.IPv6, l.IPv6, leaderTable)
	}
	if l.IPv4 != "" {
		fmt.Fprintf(&b, "[Address]\nAddress=%s/32\n[Route]\nGateway=%s\nGatewayOnLink=yes\nTable=%d\n"+
			"[RoutingPolicyRule]\nFrom=%s/32\nTable=%d\n", l.IPv4, l.Gateway, leaderTable, l.IPv4, leaderTable)
	}
	return "# Replies from the leader's addresses leave by the leader's interface.\n" +
		"mkdir -p -m 755 /etc/systemd/network\nput " + networkFile + " " + quote(b.String()) + "\n" +
		"chmod 644 " + networkFile + "\n" +
		"networkctl reload || echo 'systemd-networkd does not run: the image must route the leader interface' >&2\n"
}
