package machine_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/bootscript"
	"github.com/nstance-kit/nstance/tests/cloud/machine/contract"
)

// answerer is a boot script that does not end. It sends the machine's name to every client of port 7.
const answerer = "#!/bin/sh\nexec answerer\n"

// who connects to an address and returns the name of the machine that answers.
func who(dial func(ctx context.Context, network, address string) (net.Conn, error), address string,
	patience time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), err
}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

func (w *testRunner) from(id string) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return w.Dial(ctx, id, network, address)
	}
}

func (w *testRunner) fromVPC(vpc string) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return w.DialVPC(ctx, vpc, network, address)
	}
}

// reaches asserts which machine answers at an address. want is the name of that machine, or "" if none may answer. An
// answer may take a few seconds: a lost IPv6 neighbor solicitation is repeated after a second (RFC 4861, section 10,
// RETRANS_TIMER).
func (w *testRunner) reaches(what string, dial dialer, address, want string) {
	w.t.Helper()
	patience := 10 * time.Second
	if want == "" {
		patience = time.Second
	}
	got, err := who(dial, address, patience)
	if got != want || (err == nil) != (want != "") {
		w.t.Errorf("%s reaches %q at %s (%v), not %q", what, got, address, err, want)
	}
}

func TestNetwork(t *testing.T) {
	w := newTestRunner(t, nil).with("answerer")
	one, two := w.start("vpc-a", 11, answerer), w.start("vpc-a", 12, answerer)
	other := w.start("vpc-b", 13, answerer)
	for _, id := range []string{one, two, other} {
		w.eventually(id, "ls /run/listening", "/run/listening")
	}
	w.reaches("a neighbour", w.from(one), "10.0.0.12:7", "ip-10-0-0-12")
	w.reaches("a neighbour", w.from(two), "[fd00:1::b]:7", "ip-10-0-0-11")
	w.reaches("the machine itself", w.from(two), "10.0.0.12:7", "ip-10-0-0-12")
	w.reaches("its VPC", w.fromVPC("vpc-a"), "10.0.0.11:7", "ip-10-0-0-11")
	w.reaches("its VPC", w.fromVPC("vpc-b"), "[fd00:1::d]:7", "ip-10-0-0-13")
	w.reaches("another VPC", w.fromVPC("vpc-b"), "10.0.0.11:7", "")
	w.reaches("a machine of another VPC", w.from(other), "10.0.0.11:7", "")
	if _, err := w.Dial(context.Background(), one, "tcp", "localhost:7"); err == nil {
		t.Error("a name was dialled, which is looked up on the host")
	}

	l, err := w.ListenVPC("vpc-a", netip.MustParsePrefix("10.0.200.200/24"), 7)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "balancer\n")
			_ = conn.Close()
		}
	}()
	w.reaches("a host in the VPC", w.from(two), "10.0.200.200:7", "balancer")
}

// leaderScript returns the boot script of a server VM whose leader interface is [movingNIC]. The script runs the
// program answerer instead of nstance-server.
func leaderScript(t *testing.T) string {
	t.Helper()
	n := movingNIC()
	script, err := bootscript.Server{Shard: "a", Storage: "s3", Bucket: "b",
		LeaderNetwork: bootscript.LeaderNetwork{MAC: n.MAC, IPv4: n.Addresses[0].Addr().String(), Gateway: "10.0.0.1",
			IPv6: n.Addresses[1].Addr().String()}}.Script()
	if err != nil {
		t.Fatal(err)
	}
	network, _, found := strings.Cut(script, "systemctl enable")
	if !found {
		t.Fatalf("the script starts nothing:\n%s", script)
	}
	return network + "exec answerer\n"
}

// movingNIC is a secondary interface in the subnet of the machines' primary interfaces.
func movingNIC() contract.NIC {
	n := nic("vpc-a", 9, 0)
	n.Index, n.MAC = 1, "02:00:00:00:01:09"
	return n
}

// inOtherSubnet gives a machine an address in another subnet of the VPC.
func inOtherSubnet(s *contract.Spec) {
	s.Primary.Addresses = nic("vpc-a", 14, 2).Addresses
}

func (w *testRunner) plug(id string, n contract.NIC) {
	w.t.Helper()
	m, _ := w.Machine(id)
	if err := m.Plug(n); err != nil {
		w.t.Fatal(err)
	}
}

func TestMoveAddress(t *testing.T) {
	w := newTestRunner(t, nil).with("answerer")
	one, two := w.start("vpc-a", 11, leaderScript(t)), w.start("vpc-a", 12, leaderScript(t))
	near, far := w.start("vpc-a", 13, ""), w.start("vpc-a", 14, "", inOtherSubnet)
	for _, id := range []string{one, two} {
		w.eventually(id, "ls /run/listening", "/run/listening")
	}
	moving := movingNIC()
	v4, v6 := "10.0.0.9:7", "[fd00:1::9]:7"
	w.reaches("nobody", w.from(near), v4, "")
	for round := range 2 {
		for id, name := range map[string]string{one: "ip-10-0-0-11", two: "ip-10-0-0-12"} {
			w.plug(id, moving)
			machine, _ := w.Machine(id)
			if err := machine.Plug(moving); err == nil {
				t.Error("the same interface was plugged twice")
			}
			begun := time.Now()
			for _, from := range []string{near, far} {
				w.reaches(fmt.Sprintf("round %d: %s", round, from), w.from(from), v4, name)
				w.reaches(fmt.Sprintf("round %d: %s", round, from), w.from(from), v6, name)
			}
			w.reaches(fmt.Sprintf("round %d: the VPC", round), w.fromVPC("vpc-a"), v4, name)
			t.Logf("reached after %v", time.Since(begun))
			if got := w.run(id,
				"cat /sys/class/net/eth1/address; ip -o route get 10.0.0.13 from 10.0.0.9 | grep -o 'dev eth.'; ip "+
					"-o route get 10.0.0.13 | grep -o 'dev eth.'"); got != moving.MAC+"\ndev eth1\ndev eth0" {
				t.Errorf("%s has it as\n%s", id, got)
			}
			if err := machine.Unplug(moving.MAC); err != nil {
				t.Fatal(err)
			}
			if err := machine.Unplug(moving.MAC); err == nil {
				t.Error("an interface was unplugged twice")
			}
			w.reaches("nobody", w.from(near), v4, "")
			if got := w.run(id, "ip rule | grep -c 10.0.0.9; ls /sys/class/net"); got != "0\neth0\nlo" {
				t.Errorf("of the interface stays\n%s", got)
			}
		}
	}
	// When a machine stops, the interface that was plugged into it can be plugged into another machine.
	w.plug(one, moving)
	holder, _ := w.Machine(one)
	holder.Stop()
	w.plug(two, moving)
	w.reaches("the heir", w.from(far), v4, "ip-10-0-0-12")
	if err := holder.Plug(nic("vpc-a", 8, 2)); err == nil {
		t.Error("something was plugged into a machine that has ended")
	}
}

// TestSourceDestCheck plugs a secondary interface into a machine. The machine configures this interface by DHCP, like
// every interface. Replies from the secondary interface's address leave by the primary interface. If the network checks
// sources, it drops these replies.
func TestSourceDestCheck(t *testing.T) {
	w := newTestRunner(t, nil).with("answerer")
	id, far := w.start("vpc-a", 11, answerer), w.start("vpc-a", 14, "", inOtherSubnet)
	w.eventually(id, "ls /run/listening", "/run/listening")
	w.reaches("a machine in another subnet", w.from(far), "10.0.0.11:7", "ip-10-0-0-11")
	moving := movingNIC()
	w.plug(id, moving)
	if got := w.run(id, "ip -4 -o addr show dev eth1 | grep -o 10.0.0.9/24; ip -6 -o addr show dev eth1 | grep -o "+
		"fd00:1::9/128"); got != "10.0.0.9/24\nfd00:1::9/128" {
		t.Errorf("the secondary interface has the addresses\n%s", got)
	}
	w.reaches("a machine in another subnet", w.from(far), "10.0.0.9:7", "")
	machine, _ := w.Machine(id)
	if err := machine.Unplug(moving.MAC); err != nil {
		t.Fatal(err)
	}
	// If the source check of a primary interface is off, the network must let all packets from the interface pass.
	open := w.start("vpc-a", 12, answerer, func(s *contract.Spec) { s.Primary.SourceDestCheck = false })
	w.eventually(open, "ls /run/listening", "/run/listening")
	w.plug(open, moving)
	w.reaches("a machine in another subnet", w.from(far), "10.0.0.9:7", "ip-10-0-0-12")
}

// TestMetadata sends requests from inside a machine to the metadata service and the API of the cloud.
func TestMetadata(t *testing.T) {
	w := newTestRunner(t, nil)
	id := w.start("vpc-a", 11, "", func(s *contract.Spec) {
		s.Metadata = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "metadata "+r.URL.Path)
		})
	})
	w.run(id, "true")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: w.from(id)}}
	for address, want := range map[string]string{"169.254.169.254": "metadata /some/path",
		"169.254.170.1": "api /some/path"} {
		answer, err := client.Get("http://" + address + "/some/path")
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if string(text) != want {
			t.Errorf("%s answers %q", address, text)
		}
	}
}

// TestForwardedAddress sends packets to an address that no interface has. The network forwards the address first to one
// machine, then to another, then to none.
func TestForwardedAddress(t *testing.T) {
	w := newTestRunner(t, nil).with("answerer")
	unchecked := func(s *contract.Spec) { s.Primary.SourceDestCheck = false }
	address, text := netip.MustParseAddr("10.9.0.5"), "10.9.0.5:7"
	client := w.start("vpc-a", 13, "", unchecked)
	for _, octet := range []int{11, 12} {
		name := fmt.Sprintf("ip-10-0-0-%d", octet)
		id := w.start("vpc-a", octet, answerer, unchecked)
		w.eventually(id, "ls /run/listening", "/run/listening")
		i, _ := w.Machine(id)
		if err := i.SetLocal([]netip.Addr{address}); err != nil {
			t.Fatal(err)
		}
		if err := w.SetRoute("vpc-a", address, netip.AddrFrom4([4]byte{10, 0, 0, byte(octet)})); err != nil {
			t.Fatal(err)
		}
		w.reaches("a machine", w.from(client), text, name)
		w.reaches("the network", w.fromVPC("vpc-a"), text, name)
	}
	if err := w.SetRoute("vpc-a", address, netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	w.reaches("no machine", w.from(client), text, "")
}
