package layer2

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

const (
	// roleVariable is the environment variable with the role of a process that TestAddress starts. The role is "client"
	// or the name of a machine.
	roleVariable = "NSTANCE_TEST_LAYER2"
	client       = "client"

	leader4, leader6 = "10.77.0.100", "fd00:77::100"
	port             = "8994"
	// patience bounds the wait for a condition on a busy machine.
	patience = 30 * time.Second
)

// TestAddress moves addresses between machines, each of which is a process in a network namespace. A client in a third
// namespace connects to them all the time. Each subtest continues from the state that the previous subtest left.
func TestAddress(t *testing.T) {
	switch os.Getenv(roleVariable) {
	case "":
		runAgain(t)
	case client:
		testMoves(t)
	default:
		runMachine(os.Getenv(roleVariable))
	}
}

// runAgain runs TestAddress in a new process, which is root of a user namespace and has its own network namespace.
func runAgain(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAddress$", "-test.v")
	cmd.Env = append(os.Environ(), roleVariable+"="+client)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		Pdeathsig:   syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

func testMoves(t *testing.T) {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lan"}}
	must(t, netlink.LinkAdd(bridge))
	must(t, netlink.LinkSetUp(bridge))
	must(t, configure("lan", "10.77.0.9/24", "fd00:77::9/64"))
	first, second, third := startMachine(t, bridge, 11), startMachine(t, bridge, 12), startMachine(t, bridge, 13)

	first.order(t, "acquire")
	t.Logf("the first machine is reached after %v", reach(t, first.name))

	must(t, first.process.Process.Signal(syscall.SIGSTOP))
	second.order(t, "acquire")
	if took := reach(t, second.name); took > Lifetime+3*time.Second {
		t.Errorf("after SIGSTOP of the holder, the next one is reached after %v", took)
	} else {
		t.Logf("after SIGSTOP of the holder, the next one is reached after %v", took)
	}
	first.awaitNoAddress(t)

	must(t, first.process.Process.Signal(syscall.SIGCONT))
	first.order(t, "release") // what the leader does when its leadership has ended
	first.await(t, "released")
	reach(t, second.name)

	must(t, second.process.Process.Kill()) // its namespace stays, with the address
	first.order(t, "acquire")
	if took := reach(t, first.name); took > Lifetime+3*time.Second {
		t.Errorf("after SIGKILL of the holder, the next one is reached after %v", took)
	} else {
		t.Logf("after SIGKILL of the holder, the next one is reached after %v", took)
	}

	third.order(t, "claim")
	third.await(t, "claimed")
	for _, addr := range []string{leader4, leader6} {
		first.await(t, addr+" on eth0: the machine with the MAC address "+third.mac+" has this address too")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// configure gives addresses to an interface and brings the interface up.
func configure(name string, addrs ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, text := range addrs {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if addr.IP.To4() == nil {
			addr.Flags = syscall.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add %s: %w", text, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// machine is a process in a network namespace.
type machine struct {
	name, mac string
	process   *exec.Cmd
	kernel    *netlink.Handle // of its namespace
	orders    io.Writer
	lines     chan string
}

// startMachine starts a machine and connects it to the bridge.
func startMachine(t *testing.T, bridge netlink.Link, number int) *machine {
	t.Helper()
	m := &machine{name: fmt.Sprint(number), lines: make(chan string, 1000)}
	m.process = exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAddress$")
	m.process.Env = append(os.Environ(), roleVariable+"="+m.name)
	m.process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	m.process.Stderr = os.Stderr
	orders, err := m.process.StdinPipe()
	must(t, err)
	m.orders = orders
	lines, err := m.process.StdoutPipe()
	must(t, err)
	must(t, m.process.Start())
	t.Cleanup(func() {
		_ = m.process.Process.Kill() // also if it was stopped
		_ = m.process.Wait()
	})
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", m.process.Process.Pid))
	must(t, err)
	t.Cleanup(func() { _ = namespace.Close() })
	m.kernel, err = netlink.NewHandleAt(netns.NsHandle(namespace.Fd()))
	must(t, err)
	t.Cleanup(m.kernel.Close)
	go func() {
		for scanner := bufio.NewScanner(lines); scanner.Scan(); {
			select {
			case m.lines <- scanner.Text():
			default: // no receiver
			}
		}
	}()

	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "machine" + m.name, MasterIndex: bridge.Attrs().Index},
		PeerName: "eth0", PeerNamespace: netlink.NsFd(namespace.Fd())}
	must(t, netlink.LinkAdd(veth))
	must(t, netlink.LinkSetUp(veth))
	m.order(t, "start")
	m.mac = strings.TrimPrefix(m.await(t, "MAC "), "MAC ")
	return m
}

func (m *machine) order(t *testing.T, order string) {
	t.Helper()
	_, err := fmt.Fprintln(m.orders, order)
	must(t, err)
}

// await waits until the machine prints a line that begins with the given text.
func (m *machine) await(t *testing.T, begin string) string {
	t.Helper()
	timeout := time.After(patience)
	last := ""
	for {
		select {
		case line := <-m.lines:
			if strings.HasPrefix(line, begin) {
				return line
			}
			last = line
		case <-timeout:
			t.Fatalf("machine %s does not say %q; its last line is %q", m.name, begin, last)
		}
	}
}

// awaitNoAddress waits until the kernel has removed the leader's addresses from a machine whose process is stopped.
func (m *machine) awaitNoAddress(t *testing.T) {
	t.Helper()
	for began := time.Now(); ; {
		known, err := m.kernel.AddrList(nil, netlink.FAMILY_ALL)
		must(t, err)
		if !slices.ContainsFunc(known, func(a netlink.Addr) bool {
			return a.IP.String() == leader4 || a.IP.String() == leader6
		}) {
			return
		}
		if time.Since(began) > Lifetime+time.Second {
			t.Fatalf("machine %s, which is stopped, still has %v", m.name, known)
		}
	}
}

// runMachine is the main function of a machine.
func runMachine(name string) {
	err := errors.Join(configure("lo"), serve(name))
	for orders := bufio.NewScanner(os.Stdin); err == nil && orders.Scan(); {
		err = obey(name, orders.Text())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "machine %s: %v\n", name, err)
		os.Exit(1)
	}
}

// serve answers every connection with the name of the machine.
func serve(name string) error {
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintln(conn, name) // the client may have given up
			_ = conn.Close()
		}
	}()
	return nil
}

// stop is the function that ends the renewal of the addresses on this machine.
var stop = func() {}

func obey(name, order string) error {
	switch order {
	case "start":
		if err := configure("eth0", "10.77.0."+name+"/24", "fd00:77::"+name+"/64"); err != nil {
			return err
		}
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		fmt.Println("MAC " + link.Attrs().HardwareAddr.String())
	case "acquire":
		address, err := New(netip.MustParseAddr(leader4), netip.MustParseAddr(leader6))
		if err != nil {
			return err
		}
		stopped := make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		stop = func() {
			cancel()
			<-stopped
			if err := address.Release(ctx, ""); err != nil {
				fmt.Println(err)
			}
		}
		go func() {
			defer close(stopped)
			holdAddress(ctx, address)
		}()
	case "release":
		stop()
		fmt.Println("released")
	case "claim":
		if err := configure("eth0", leader4+"/32", leader6+"/128"); err != nil {
			return err
		}
		fmt.Println("claimed")
	}
	return nil
}

// holdAddress acquires the addresses again and again until ctx ends. It prints errors.
func holdAddress(ctx context.Context, address *Address) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := address.Acquire(ctx, ""); err != nil {
			fmt.Println(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// reach connects to both addresses again and again until, for a period of [Lifetime], the machine with the given name
// has answered every connection. It returns the time until the first answer in this period.
func reach(t *testing.T, name string) time.Duration {
	t.Helper()
	began := time.Now()
	since := time.Time{}
	last := ""
	for time.Since(began) < patience {
		ok := true
		for _, addr := range []string{leader4, leader6} {
			answer, err := ask(addr)
			if answer != name {
				ok, last = false, fmt.Sprintf("%s: %q, %v", addr, answer, err)
			}
		}
		switch {
		case !ok:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > Lifetime:
			return since.Sub(began)
		}
	}
	t.Fatalf("machine %s is not reached within %v: %s", name, patience, last)
	return 0
}

// ask returns the name of the machine that has an address.
func ask(addr string) (string, error) {
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(addr, port), 250*time.Millisecond)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(250 * time.Millisecond)); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return strings.TrimSpace(string(answer)), err
}
