// Package networkd is the part of systemd-networkd that the machines need: it finds the .network file of a link and
// returns the commands of ip(8) that configure the link. It supports the directives that Debian's netplan and the boot
// scripts of this repository write, and no others.
//
// Invariant: a directive or a value that is not supported is an error. A link without a file is not configured.
package networkd

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/machine/unit"
)

// Netplan has the files that netplan generates at boot on Debian 12, as a map of paths to contents. The cloud images of
// Debian configure every interface by DHCP, from /etc/netplan/90-default.yaml.
// https://salsa.debian.org/cloud-team/debian-cloud-images
var Netplan = map[string]string{
	"/run/systemd/network/10-netplan-all-en.network":  netplan("en*"),
	"/run/systemd/network/10-netplan-all-eth.network": netplan("eth*"),
}

func netplan(name string) string {
	return "[Match]\nName=" + name + `

[Network]
DHCP=yes
LinkLocalAddressing=ipv6

[DHCP]
RouteMetric=100
UseMTU=true
UseDomains=true
`
}

// Link is a network interface of the machine, with the settings that the machine gets from DHCP and router
// advertisements.
type Link struct {
	Device, MAC string
	Index       int
	// Addresses have the prefix length of the subnet.
	Addresses []netip.Prefix
	// Router is the link-local address of the IPv6 router.
	Router netip.Addr
}

// gateway returns the router of an address. The first address of an IPv4 subnet belongs to its router.
// https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html
func (l Link) gateway(a netip.Prefix) netip.Addr {
	if a.Addr().Is6() {
		return l.Router
	}
	return a.Masked().Addr().Next()
}

// Network is the content of a .network file.
type Network struct {
	// Name is the file's name. If several files match a link, the first one in the order of names applies.
	Name string

	matchName, matchMAC string
	dhcp, noRA          bool
	metric              int
	raTable             int
	addresses           []netip.Prefix
	routes              []route
	rules               []rule
}

type route struct {
	gateway netip.Addr
	onLink  bool
	table   int
}

type rule struct {
	from  netip.Prefix
	table int
}

// directives maps the supported directives, by section and name, to their parsers. Some sections may be repeated. The
// parsers for such a section change the last element of the section's list.
var directives = map[string]func(n *Network, value string) error{
	"Match.Name": func(n *Network, value string) error {
		if n.matchName = value; strings.ContainsAny(value, " \t!") {
			return fmt.Errorf("%q is not supported, only one pattern", value)
		}
		_, err := path.Match(value, "")
		return err
	},
	"Match.MACAddress": func(n *Network, value string) error {
		n.matchMAC = strings.ToLower(value)
		return nil
	},
	"Link.RequiredForOnline":      only("no"), // Machines do not wait for their network: it is up before they boot.
	"Network.LinkLocalAddressing": only("ipv6"),
	"Network.DHCP": func(n *Network, value string) error {
		n.dhcp = value == "yes"
		return only("yes", "no")(n, value)
	},
	"Network.IPv6AcceptRA": func(n *Network, value string) error {
		n.noRA = value == "no"
		return only("yes", "no")(n, value)
	},
	"DHCP.RouteMetric":          func(n *Network, value string) error { return number(&n.metric, value) },
	"DHCP.UseMTU":               only("true"),
	"DHCP.UseDomains":           only("true"),
	"IPv6AcceptRA.DHCPv6Client": only("no"),
	"IPv6AcceptRA.RouteTable":   func(n *Network, value string) error { return table(&n.raTable, value) },
	"Address.Address": func(n *Network, value string) (err error) {
		n.addresses[len(n.addresses)-1], err = netip.ParsePrefix(value)
		return err
	},
	"Address.DuplicateAddressDetection": only("none"), // No machine detects duplicate addresses.
	"Route.Gateway": func(n *Network, value string) error {
		gateway, err := netip.ParseAddr(value)
		if gateway.Zone() != "" {
			err = fmt.Errorf("%q has a zone, which is not supported", value)
		}
		n.routes[len(n.routes)-1].gateway = gateway
		return err
	},
	"Route.GatewayOnLink": func(n *Network, value string) error {
		n.routes[len(n.routes)-1].onLink = true
		return only("yes")(n, value)
	},
	"Route.Table": func(n *Network, value string) error { return table(&n.routes[len(n.routes)-1].table, value) },
	"RoutingPolicyRule.From": func(n *Network, value string) (err error) {
		n.rules[len(n.rules)-1].from, err = netip.ParsePrefix(value)
		return err
	},
	"RoutingPolicyRule.Table": func(n *Network, value string) error {
		return table(&n.rules[len(n.rules)-1].table, value)
	},
}

func only(values ...string) func(*Network, string) error {
	return func(_ *Network, value string) error {
		if !slices.Contains(values, value) {
			return fmt.Errorf("%q is not supported, only %s", value, strings.Join(values, " and "))
		}
		return nil
	}
}

// number parses a metric or the number of a routing table. Both are 32-bit numbers.
func number(field *int, value string) error {
	n, err := strconv.ParseUint(value, 10, 32)
	*field = int(n)
	return err
}

func table(field *int, value string) error {
	err := number(field, value)
	if err == nil && (*field < 1 || 252 < *field && *field < 256) {
		err = fmt.Errorf("%q is no routing table of a user", value)
	}
	return err
}

// Parse parses a .network file with the given path.
func Parse(file, text string) (*Network, error) {
	entries, err := unit.Parse(file, text)
	if err != nil {
		return nil, err
	}
	n := &Network{Name: path.Base(file)}
	number := 0
	for _, e := range entries {
		if e.Number != number {
			number = e.Number
			switch e.Section {
			case "Address":
				n.addresses = append(n.addresses, netip.Prefix{})
			case "Route":
				n.routes = append(n.routes, route{})
			case "RoutingPolicyRule":
				n.rules = append(n.rules, rule{})
			}
		}
		set, ok := directives[e.Section+"."+e.Key]
		if !ok {
			return nil, fmt.Errorf("%s: [%s] %s= is not supported", e.Where, e.Section, e.Key)
		}
		if err := set(n, e.Value); err != nil {
			return nil, fmt.Errorf("%s: %s=: %w", e.Where, e.Key, err)
		}
	}
	if err := n.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// check returns an error for settings that networkd would ignore with a warning.
func (n *Network) check() error {
	switch {
	case n.matchName == "" && n.matchMAC == "":
		return errors.New("there is no Name= or MACAddress= in [Match]")
	case slices.Contains(n.addresses, netip.Prefix{}):
		return errors.New("there is an [Address] without Address=")
	case slices.ContainsFunc(n.routes, func(r route) bool { return !r.gateway.IsValid() }):
		return errors.New("there is a [Route] without Gateway=")
	case slices.ContainsFunc(n.rules, func(r rule) bool { return !r.from.IsValid() || r.table == 0 }):
		return errors.New("there is a [RoutingPolicyRule] without From= or Table=")
	}
	return nil
}

// Matches reports whether the file is for the link.
func (n *Network) Matches(l Link) bool {
	byName, err := path.Match(n.matchName, l.Device)
	return (n.matchName == "" || err == nil && byName) && (n.matchMAC == "" || n.matchMAC == strings.ToLower(l.MAC))
}

// Find returns the file that applies to the link, or nil.
func Find(files []*Network, l Link) *Network {
	var found *Network
	for _, n := range files {
		if n.Matches(l) && (found == nil || n.Name < found.Name) {
			found = n
		}
	}
	return found
}

// Up returns the commands of ip(8) that configure the link. It adds the link's index to the metrics of default routes,
// so that the first interface's default route has priority. If metrics were equal, the kernel's choice would depend on
// which routers are reachable (fib_select_default of Linux). The tests' results would then vary.
func (n *Network) Up(l Link) (lines []string) {
	metric := n.metric + l.Index
	add := func(a netip.Addr, format string, args ...any) {
		family := "-4 "
		if a.Is6() {
			family = "-6 "
		}
		lines = append(lines, family+fmt.Sprintf(format, args...))
	}
	add(netip.Addr{}, "link set %s up", l.Device)
	for _, a := range n.addresses {
		add(a.Addr(), "addr add %s dev %s%s", a, l.Device, nodad(a.Addr()))
	}
	routed := false
	for _, a := range l.Addresses {
		gateway := l.gateway(a)
		if a.Addr().Is6() && !n.noRA && !routed {
			routed = true // One router sends one advertisement.
			line := fmt.Sprintf("route append default via %s dev %s proto ra", gateway, l.Device)
			if n.metric != 0 {
				line += fmt.Sprintf(" metric %d", metric)
			}
			add(gateway, "%s", line+inTable(n.raTable))
		}
		switch {
		case !n.dhcp:
		case a.Addr().Is6():
			add(a.Addr(), "addr add %s/128 dev %s%s", a.Addr(), l.Device, nodad(a.Addr()))
		default:
			add(a.Addr(), "addr add %s dev %s metric %d", a, l.Device, n.metric)
			add(a.Addr(), "route append default via %s dev %s proto dhcp metric %d", gateway, l.Device, metric)
		}
	}
	for _, r := range n.routes {
		onLink := ""
		if r.onLink {
			onLink = " onlink"
		}
		add(r.gateway, "route append default via %s dev %s proto static%s%s", r.gateway, l.Device, onLink,
			inTable(r.table))
	}
	for _, r := range n.rules {
		add(r.from.Addr(), "rule add from %s lookup %d", r.from, r.table)
	}
	return lines
}

// Down returns the commands of ip(8) that remove the rules of a removed link. The kernel removes the link's addresses
// and routes, but not the rules.
func (n *Network) Down() (lines []string) {
	for _, r := range n.rules {
		family := "-4"
		if r.from.Addr().Is6() {
			family = "-6"
		}
		lines = append(lines, fmt.Sprintf("%s rule del from %s lookup %d", family, r.from, r.table))
	}
	return lines
}

func nodad(a netip.Addr) string {
	if a.Is6() {
		return " nodad" // The address is unique, and must work immediately.
	}
	return ""
}

func inTable(table int) string {
	if table == 0 {
		return ""
	}
	return fmt.Sprintf(" table %d", table)
}
