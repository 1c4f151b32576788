package libvirtd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/services/dev/local"
)

// Machines implements local.Network. Each server of a stack has a machine: a network namespace with an interface on the
// VMs' bridge. The namespace remains when the server's program ends. It ends with [Machines.Close] or with this
// process. Other programs run on the host, which also has an address on the bridge. The server that leads announces the
// leader's address by ARP.
type Machines struct {
	mu         sync.Mutex
	namespaces map[string]*os.File // by server
}

// hostNumbers are the last bytes of the addresses of the servers and the leader. DHCP does not assign them.
var hostNumbers = map[string]string{local.ServerName(1): "201", local.ServerName(2): "202", local.Leader: "250"}

// Host implements local.Network.
func (m *Machines) Host(name string) string {
	if number, ok := hostNumbers[name]; ok {
		return Free + number
	}
	return Gateway
}

// Start implements local.Network. Before the first start of a server, it makes the server's machine.
func (m *Machines) Start(name string, cmd *exec.Cmd) error {
	if _, ok := hostNumbers[name]; !ok {
		return cmd.Start()
	}
	namespace, err := m.namespace(name)
	if err != nil {
		return fmt.Errorf("machine %s: %w", name, err)
	}
	return inNamespace(namespace, cmd.Start)
}

// Close ends the namespaces in which no program runs. Each of the others ends with its program.
func (m *Machines) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, namespace := range m.namespaces {
		_ = namespace.Close()
	}
	m.namespaces = nil
}

func (m *Machines) namespace(name string) (*os.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if namespace := m.namespaces[name]; namespace != nil {
		return namespace, nil
	}
	namespace, err := newMachine(name, m.Host(name))
	if err != nil {
		return nil, err
	}
	if m.namespaces == nil {
		m.namespaces = map[string]*os.File{}
	}
	m.namespaces[name] = namespace
	return namespace, nil
}

// newMachine makes a network namespace with an address on the bridge.
func newMachine(name, address string) (namespace *os.File, err error) {
	bridge, err := netlink.LinkByName(Bridge)
	if err != nil {
		return nil, fmt.Errorf("find the bridge %s: %w", Bridge, err)
	}
	link := "nst-" + name
	if old, err := netlink.LinkByName(link); err == nil { // of a machine whose programs have just ended
		_ = netlink.LinkDel(old) // the kernel may have been faster
	}
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		namespace, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return nil, err
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: link, MasterIndex: bridge.Attrs().Index},
		PeerName: "eth0", PeerNamespace: netlink.NsFd(namespace.Fd())}
	err = errors.Join(netlink.LinkAdd(veth), netlink.LinkSetUp(veth))
	if err == nil {
		err = inNamespace(namespace, func() error {
			return ip("link set lo up", "addr add "+address+"/24 dev eth0", "link set eth0 up")
		})
	}
	if err != nil {
		return nil, errors.Join(err, namespace.Close())
	}
	return namespace, nil
}

func ip(lines ...string) error {
	for _, line := range lines {
		cmd := exec.CommandContext(context.Background(), "ip", strings.Fields(line)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	return nil
}

func inNamespace(namespace *os.File, f func() error) error {
	return onThread(func() error {
		if err := netns.Set(netns.NsHandle(namespace.Fd())); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return f()
	})
}

// onThread runs f on a new OS thread, because f changes the namespaces of its thread. The thread ends when f returns.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends
		result <- f()
	}()
	return <-result
}
