package machine

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/machine/contract"
	"github.com/nstance-kit/nstance/tests/cloud/machine/networkd"
)

// routerAddress is the link-local address of the VPC's router.
var routerAddress = netip.MustParseAddr("fe80::ec2:1")

// vpc is the network of one VPC: a bridge in its own namespace. The bridge also forwards packets between the VPC's
// subnets, as the router of a VPC does.
type vpc struct {
	ns *netns

	mu       sync.Mutex
	ports    int
	networks []netip.Prefix
	routes   map[netip.Addr]netip.Addr // Those of SetRoute.
}

// port is a network interface that is plugged into a machine.
type port struct {
	vpc  *vpc
	name string // Name of the bridge's end.
	nic  contract.NIC
}

// settings are the kernel settings of every namespace. New addresses are usable and announced immediately. Only the
// interface that has an address answers ARP requests for it. Packets follow the configured routes only.
var settings = map[string]string{
	"ipv4/conf/all/arp_notify": "1", "ipv4/conf/default/arp_notify": "1", "ipv4/conf/all/arp_ignore": "1",
	"ipv4/conf/all/arp_announce": "2",
	"ipv4/conf/all/rp_filter":    "0", "ipv4/conf/default/rp_filter": "0",
	"ipv6/conf/all/accept_dad": "0", "ipv6/conf/default/accept_dad": "0", "ipv6/conf/all/accept_ra": "0",
	"ipv6/conf/default/accept_ra": "0",
	"ipv6/conf/all/ndisc_notify":  "1", "ipv6/conf/default/ndisc_notify": "1",
	"ipv4/conf/all/send_redirects": "0", "ipv4/conf/default/send_redirects": "0",
	"ipv6/conf/all/accept_redirects": "0", "ipv6/conf/default/accept_redirects": "0",
}

// forwarding are the kernel settings for the namespace of a VPC's router, in addition to those in "settings".
var forwarding = map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"}

// network returns the network of a VPC. It creates the network on the first call.
func (r *Runner) network(id string) (*vpc, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.vpcs[id]; v != nil {
		return v, nil
	}
	ns, err := newNetns()
	if err != nil {
		return nil, err
	}
	v := &vpc{ns: ns, routes: map[netip.Addr]netip.Addr{}}
	if err = errors.Join(ns.set(settings), ns.set(forwarding)); err == nil {
		err = ns.ip("link set lo up", "link add br0 type bridge mcast_snooping 0", "link set br0 up",
			fmt.Sprintf("-6 addr add %s/64 dev br0 nodad", routerAddress))
	}
	if err != nil {
		_ = ns.close() // The error above is more useful.
		return nil, fmt.Errorf("network of %s: %w", id, err)
	}
	r.vpcs[id] = v
	return v, nil
}

// plug connects a machine's namespace to the network.
func (v *vpc) plug(ns *netns, nic contract.NIC) (*port, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ports++
	p := &port{vpc: v, name: fmt.Sprintf("port%d", v.ports), nic: nic}
	lines := []string{
		fmt.Sprintf("link add %s type veth peer name %s address %s netns %s", p.name, p.device(), nic.MAC, ns.path()),
		fmt.Sprintf("link set %s master br0", p.name), fmt.Sprintf("link set %s up", p.name),
	}
	for _, a := range nic.Addresses {
		if network := a.Masked(); !slices.Contains(v.networks, network) {
			// The first address of a network belongs to its router.
			// https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html
			line := fmt.Sprintf("addr add %s dev br0", netip.PrefixFrom(network.Addr().Next(), network.Bits()))
			if network.Addr().Is6() {
				line += " nodad"
			}
			lines = append(lines, line)
			v.networks = append(v.networks, network)
		}
	}
	if err := v.ns.ip(lines...); err != nil {
		return nil, fmt.Errorf("plug %s: %w", nic.MAC, err)
	}
	err := ns.ip(fmt.Sprintf("link set %s up", p.device()))
	if err == nil {
		err = v.forwards(p)
	}
	if err == nil && nic.SourceDestCheck {
		err = v.checkSources(p)
	}
	if err != nil {
		_ = v.ns.ip("link del " + p.name) // The error above is more useful.
		return nil, fmt.Errorf("plug %s: %w", nic.MAC, err)
	}
	return p, nil
}

// forwards waits until the bridge forwards packets to the port. The bridge is ready a moment after the interface inside
// the machine is up.
func (v *vpc) forwards(p *port) error {
	for end := time.Now().Add(forwardTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
		state, err := v.ns.show("-d", "link", "show", p.name)
		if err != nil {
			return err
		}
		if strings.Contains(state, "state forwarding") {
			return nil
		}
	}
	return errors.New("the bridge does not forward")
}

// forwardTime limits how long the method forwards waits. The kernel needs far less.
const forwardTime = 10 * time.Second

// checkSources drops each packet from the machine unless its source is one of the interface's own addresses.
// Destinations need no such check, because the bridge delivers a packet only to the port of its destination.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-eni.html#eni-basics
func (v *vpc) checkSources(p *port) error {
	program, err := sourceFilter(p.nic.Addresses)
	if err != nil {
		return err
	}
	if err := v.ns.tc("qdisc", "add", "dev", p.name, "clsact"); err != nil {
		return err
	}
	return v.ns.tc("filter", "add", "dev", p.name, "ingress", "bpf", "direct-action", "bytecode", program)
}

// connect connects the bridge's end of a port to the bridge, or disconnects it.
func (v *vpc) connect(p *port, up bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !up {
		return v.ns.ip(fmt.Sprintf("link set %s down", p.name))
	}
	if err := v.ns.ip(fmt.Sprintf("link set %s up", p.name)); err != nil {
		return err
	}
	return v.forwards(p)
}

// remove deletes both ends of a port.
func (v *vpc) remove(p *port) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.ns.ip("link del " + p.name); err != nil {
		return fmt.Errorf("unplug %s: %w", p.nic.MAC, err)
	}
	return nil
}

func (p *port) device() string { return fmt.Sprintf("eth%d", p.nic.Index) }

// link returns the machine's view of the port.
func (p *port) link() networkd.Link {
	return networkd.Link{Device: p.device(), MAC: p.nic.MAC, Index: p.nic.Index, Addresses: p.nic.Addresses,
		Router: routerAddress}
}

// announce makes the machine announce its addresses, because neighbors may have cached failed lookups of them. Setting
// the MAC address again has this effect.
func (p *port) announce(ns *netns) error {
	return ns.ip(fmt.Sprintf("link set %s address %s", p.device(), p.nic.MAC))
}

// SetRoute makes the router of a VPC send packets for an IPv4 address to the machine that has the address "via". If via
// is invalid, SetRoute removes the route.
func (r *Runner) SetRoute(vpc string, address, via netip.Addr) error {
	v, err := r.network(vpc)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.routes[address] == via {
		return nil
	}
	line := fmt.Sprintf("route replace %s/32 via %s dev br0", address, via)
	if !via.IsValid() {
		line = fmt.Sprintf("route del %s/32 dev br0", address)
	}
	if err := v.ns.ip(line); err != nil {
		return fmt.Errorf("route of %s in %s: %w", address, vpc, err)
	}
	if v.routes[address] = via; !via.IsValid() {
		delete(v.routes, address)
	}
	return nil
}

// SetLocal makes the given IPv4 addresses local to the machine, in addition to those of its interfaces. It replaces the
// addresses of the previous call. A cloud's guest agent does this for addresses that the network forwards to the
// machine.
func (i *Instance) SetLocal(addresses []netip.Addr) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ns == nil {
		return nil // It has ended.
	}
	// Google's guest agent marks its routes with the protocol number 66.
	const format = "route %s local %s/32 dev eth0 scope host proto 66"
	var lines []string
	for _, a := range addresses {
		lines = append(lines, fmt.Sprintf(format, "replace", a))
	}
	for _, a := range i.local {
		if !slices.Contains(addresses, a) {
			lines = append(lines, fmt.Sprintf(format, "del", a))
		}
	}
	if err := i.ns.ip(lines...); err != nil {
		return fmt.Errorf("local addresses of %s: %w", i.spec.ID, err)
	}
	i.local = slices.Clone(addresses)
	return nil
}
