package networkd_test

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/machine/networkd"
)

// parse parses a file, which must be valid.
func parse(t *testing.T, file, text string) *networkd.Network {
	t.Helper()
	n, err := networkd.Parse(file, text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

var link = networkd.Link{Device: "eth1", MAC: "02:00:00:00:01:09", Index: 1, Router: netip.MustParseAddr("fe80::1"),
	Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.9/24"), netip.MustParsePrefix("fd00:1::9/64")}}

func TestNetplan(t *testing.T) {
	var files []*networkd.Network
	for file, text := range networkd.Netplan {
		files = append(files, parse(t, file, text))
	}
	found := networkd.Find(files, link)
	if found == nil || found.Name != "10-netplan-all-eth.network" {
		t.Fatalf("found %+v", found)
	}
	want := []string{
		"-4 link set eth1 up",
		"-4 addr add 10.0.0.9/24 dev eth1 metric 100",
		"-4 route append default via 10.0.0.1 dev eth1 proto dhcp metric 101",
		"-6 route append default via fe80::1 dev eth1 proto ra metric 101",
		"-6 addr add fd00:1::9/128 dev eth1 nodad",
	}
	if diff := cmp.Diff(want, found.Up(link)); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	if lines := found.Down(); len(lines) > 0 {
		t.Errorf("commands without rules: %v", lines)
	}
}

func TestFirstFileApplies(t *testing.T) {
	late := parse(t, "/run/systemd/network/10-a.network", "[Match]\nName=eth*\n")
	early := parse(t, "/etc/systemd/network/05-b.network", "[Match]\nMACAddress=02:00:00:00:01:09\n")
	other := parse(t, "/etc/systemd/network/00-c.network", "[Match]\nMACAddress=02:00:00:00:01:08\nName=eth1\n")
	if got := networkd.Find([]*networkd.Network{late, early, other}, link); got != early {
		t.Errorf("found %+v", got)
	}
	if got := networkd.Find([]*networkd.Network{other}, link); got != nil {
		t.Errorf("found %+v", got)
	}
}

// TestRefusals checks that directives and values that this package does not implement are errors.
func TestRefusals(t *testing.T) {
	const match = "[Match]\nName=eth1\n"
	parse(t, "a.network", match)
	for _, text := range []string{
		"", "[Match]\n", "[Match]\nDriver=ena\n", match + "[Network]\nDNS=10.0.0.2\n", match + "[Network]\nDHCP=ipv4\n",
		match + "[Network]\nAddress=10.0.0.9/24\n", match + "[Address]\nAddress=10.0.0.9\n",
		match + "[Address]\nDuplicateAddressDetection=none\n", match + "[Route]\nTable=1000\n",
		match + "[Route]\nGateway=_dhcp4\n", match + "[Route]\nGateway=10.0.0.1\nTable=main\n",
		match + "[Route]\nGateway=10.0.0.1\nTable=254\n", match + "[RoutingPolicyRule]\nFrom=10.0.0.9/32\n",
		match + "[RoutingPolicyRule]\nTable=1000\n", match + "[Link]\nMTUBytes=9001\n",
		match + "[Route]\nGateway=fe80::1%eth0 table 5\n", match + "[DHCP]\nRouteMetric=-1\n",
		match + "[Route]\nGateway=10.0.0.1\nTable=4294967296\n", "[Match]\nName=eth* en*\n", "[Match]\nName=!lo\n",
	} {
		if _, err := networkd.Parse("a.network", text); err == nil || strings.Contains(text, "[") &&
			!strings.HasPrefix(err.Error(), "a.network") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// command matches the commands that Up and Down may return for link.
var command = regexp.MustCompile(`^-[46] (link set eth1 up|addr add (\S+) dev eth1( nodad| metric \d+)?|` +
	`route append default via (\S+) dev eth1 proto (ra|dhcp|static)( metric \d+)?( onlink)?( table \d+)?|` +
	`rule (add|del) from (\S+) lookup \d+)$`)

// FuzzParse checks that an accepted file yields only commands that ip(8) can read. No address in these commands may
// have an IPv6 zone (%eth0).
func FuzzParse(f *testing.F) {
	for _, text := range networkd.Netplan {
		f.Add(text)
	}
	f.Add("[Match]\nMACAddress=02:00:00:00:01:09\n[Link]\nRequiredForOnline=no\n[Network]\nDHCP=no\nIPv6AcceptRA=no\n" +
		"[Address]\nAddress=10.0.0.9/24\nDuplicateAddressDetection=none\n[Route]\nGateway=10.0.0.1\n" +
		"GatewayOnLink=yes\nTable=1000\n[RoutingPolicyRule]\nFrom=10.0.0.9/32\nTable=1000\n")
	f.Add("[Match]\nName=eth1\n[Route]\nGateway=fe80::1\n[IPv6AcceptRA]\nRouteTable=1000\n")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := networkd.Parse("a.network", text)
		if err != nil {
			return
		}
		for _, line := range append(n.Up(link), n.Down()...) {
			if !command.MatchString(line) || strings.Contains(line, "%") {
				t.Errorf("%q yields the command %q", text, line)
			}
			for _, number := range regexp.MustCompile(`(?:metric|table|lookup) (\d+)`).FindAllStringSubmatch(line, -1) {
				if _, err := strconv.ParseUint(number[1], 10, 32); err != nil {
					t.Errorf("%q yields the command %q: %v", text, line, err)
				}
			}
		}
	})
}
