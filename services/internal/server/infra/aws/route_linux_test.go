package aws

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

// inNetwork is an environment variable. TestAnswers starts itself again in a process with a separate network, and sets
// the variable there.
const inNetwork = "NSTANCE_TEST_IN_NETWORK"

// TestAnswers gives a machine a second interface in the subnet of the first one. Both interfaces have routes in the
// main table, as DHCP leaves them. The second address answers only when it has its own routing table.
func TestAnswers(t *testing.T) {
	if os.Getenv(inNetwork) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAnswers$", "-test.v")
		cmd.Env = append(os.Environ(), inNetwork+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("in its own network: %v\n%s", err, out)
		}
		return
	}
	primary, leader := addInterface(t, "ens5"), addInterface(t, "ens6")
	up(t, "lo")
	for _, family := range []struct {
		name, primary, leader, gateway string
	}{
		{"IPv4", "10.0.1.20/24", "10.0.1.100/24", "10.0.1.1"},
		{"IPv6", "fd00:1::20/64", "fd00:1::100/64", "fd00:1::1"},
	} {
		addr := netip.MustParsePrefix(family.leader).Addr()
		if err := answers(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "on none of") {
			t.Errorf("%s: an address of no interface: %v", family.name, err)
		}
		addAddress(t, primary, family.primary)
		addAddress(t, leader, family.leader)
		gateway := net.ParseIP(family.gateway)
		add(t, netlink.RouteAdd(&netlink.Route{LinkIndex: primary.Attrs().Index, Gw: gateway, Priority: 100}))
		err := answers(t.Context(), addr)
		for tries := 0; tries < 5 && err != nil && strings.Contains(err.Error(), "does not answer"); tries++ {
			err = answers(t.Context(), addr) // The kernel adds the local route of an IPv6 address in the background.
		}
		if err == nil || !strings.Contains(err.Error(), "leave by ens5") || !strings.Contains(err.Error(), "of ens6") {
			t.Errorf("%s: without a routing table: %v", family.name, err)
		}
		add(t, netlink.RouteAdd(&netlink.Route{LinkIndex: leader.Attrs().Index, Gw: gateway, Table: 1000,
			Flags: int(netlink.FLAG_ONLINK)}))
		rule := netlink.NewRule()
		bits := addr.BitLen()
		rule.Src, rule.Table = &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, bits)}, 1000
		add(t, netlink.RuleAdd(rule))
		if err := answers(t.Context(), addr); err != nil {
			t.Errorf("%s: with a routing table: %v", family.name, err)
		}
	}
}

// addInterface adds a network interface and waits until it has a carrier. Until then, the kernel still changes the
// interface's routes. The other end of the interface's link is on the same machine, which does not affect the routes.
func addInterface(t *testing.T, name string) netlink.Link {
	t.Helper()
	updates, done := make(chan netlink.LinkUpdate), make(chan struct{})
	defer close(done)
	add(t, netlink.LinkSubscribe(updates, done))
	add(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}))
	up(t, name+"-peer")
	up(t, name)
	for update := range updates {
		if attrs := update.Attrs(); attrs.Name == name && attrs.OperState == netlink.OperUp {
			return update.Link
		}
	}
	t.Fatalf("%s does not come up", name)
	return nil
}

func up(t *testing.T, name string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	add(t, errors.Join(err, netlink.LinkSetUp(link)))
}

func addAddress(t *testing.T, link netlink.Link, address string) {
	t.Helper()
	addr, err := netlink.ParseAddr(address)
	add(t, err)
	if addr.IP.To4() == nil {
		addr.Flags = syscall.IFA_F_NODAD
	}
	add(t, netlink.AddrAdd(link, addr))
}

func add(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
