package system

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/services/dev/local"
)

// The network also has these machines, besides those of the object store and the servers.
const (
	vms      = "vms"      // all VMs
	observer = "observer" // this test
)

// numbers are the last bytes of the addresses of the machines. The address of [local.Leader] moves to the leader.
var numbers = map[string]byte{local.Store: 1, local.ServerName(1): 11, local.ServerName(2): 12, vms: 21, observer: 31,
	local.Leader: 100}

// network connects network namespaces. This process forwards the packets between them, so it can lose and delay
// packets. Each machine has a network namespace with a TUN device (Documentation/networking/tuntap.rst of the Linux
// kernel).
type network struct {
	addresses map[string]string
	hosts     map[string]*host
	clocks    map[string]*wallClock // of the servers
	ended     chan struct{}
	wg        sync.WaitGroup

	mu     sync.Mutex
	rng    *rand.Rand
	leader string             // machine with the address of the leader
	bad    map[[2]string]link // from, to
	lost   int                // packets
	// spoken, if not nil, has the TCP ports of the machine "vms" from which packets arrive. Others are dropped.
	spoken map[uint16]bool
	byAddr map[netip.Addr]string
}

// link defines which share of the packets from one machine to another is lost, and by how much the others are delayed.
type link struct {
	loss  float64 // share of lost packets, 0 to 1
	delay time.Duration
}

type host struct {
	name string
	ns   *os.File
	tun  *os.File
}

// thread runs a function on a new OS thread. The function changes the namespaces of its thread, so the thread must end
// with the function.
func thread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends
		result <- f()
	}()
	return <-result
}

// newNetwork makes a network and its machines. "number" is the third byte of the machines' addresses. The machine
// "observer" is in the namespace of this process.
func newNetwork(number byte, seed uint64) (n *network, err error) {
	n = &network{addresses: map[string]string{}, hosts: map[string]*host{}, clocks: map[string]*wallClock{},
		ended: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, 3)),
		bad: map[[2]string]link{}, byAddr: map[netip.Addr]string{}, leader: local.ServerName(1)}
	for i := 1; i <= servers; i++ {
		n.clocks[local.ServerName(i)] = &wallClock{}
	}
	for name, last := range numbers {
		address := netip.AddrFrom4([4]byte{10, 77, number, last})
		n.byAddr[address], n.addresses[name] = name, address.String()
	}
	for name := range numbers {
		if name == local.Leader {
			continue
		}
		h, err := n.newHost(name, fmt.Sprintf("chaos%d", number))
		if err != nil {
			n.close()
			return nil, fmt.Errorf("machine %s: %w", name, err)
		}
		n.hosts[name] = h
	}
	for _, h := range n.hosts {
		n.wg.Go(func() { n.carry(h) })
	}
	return n, nil
}

func (n *network) newHost(name, device string) (*host, error) {
	h := &host{name: name}
	err := thread(func() (err error) {
		if name != observer {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("make a network namespace: %w", err)
			}
		}
		if h.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		request, err := unix.NewIfreq(device)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return fmt.Errorf("make a TUN device: %w", err)
		}
		h.tun = os.NewFile(uintptr(fd), "tun") // after the ioctl, because a TUN file can be polled only then
		lines := []string{"link set lo up", "link set " + device + " up", "addr add " + n.addresses[name] + "/24 dev " +
			device}
		if strings.HasPrefix(name, "server-") {
			lines = append(lines, "addr add "+n.addresses[local.Leader]+"/32 dev lo")
		}
		for _, line := range lines {
			if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", line, err, out)
			}
		}
		return nil
	})
	return h, err
}

func (n *network) close() {
	close(n.ended)
	for _, h := range n.hosts {
		_ = h.tun.Close()
		_ = h.ns.Close()
	}
	n.wg.Wait()
}

// carry forwards the packets that one machine sends, possibly delayed, or drops them.
func (n *network) carry(from *host) {
	packet := make([]byte, 65536)
	for {
		size, err := from.tun.Read(packet)
		if err != nil {
			return // closed
		}
		if size < 20 || packet[0]>>4 != 4 { // IPv6 router and neighbour discovery
			continue
		}
		address, _ := netip.AddrFromSlice(packet[16:20])
		to, delay := n.route(from.name, address)
		if from.name == vms && !n.speaks(packet[:size]) {
			to = nil
		}
		switch {
		case to == nil:
		case delay > 0:
			later := bytes.Clone(packet[:size])
			time.AfterFunc(delay, func() { _, _ = to.tun.Write(later) }) // fails if the device is closed
		default:
			_, _ = to.tun.Write(packet[:size]) // fails if the queue is full: the packet is lost
		}
	}
}

// route returns the machine that a packet must reach, and the delay of the packet. If the packet is lost, the machine
// is nil.
func (n *network) route(from string, address netip.Addr) (*host, time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	to := n.byAddr[address]
	if to == local.Leader {
		to = n.leader
	}
	l := n.bad[[2]string{from, to}]
	if n.rng.Float64() < l.loss {
		n.lost++
		return nil, 0
	}
	return n.hosts[to], l.delay
}

// speaks reports whether a packet of the VMs may pass.
func (n *network) speaks(packet []byte) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	header := int(packet[0]&0xf) * 4
	return n.spoken == nil || packet[9] != unix.IPPROTO_TCP || len(packet) < header+2 ||
		n.spoken[binary.BigEndian.Uint16(packet[header:])]
}

// speakOnly drops the packets of the VMs, except those from the given TCP ports. Nil ends that.
func (n *network) speakOnly(ports map[uint16]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.spoken = ports
}

// Host implements local.Network.
func (n *network) Host(name string) string { return n.addresses[name] }

// Start implements local.Network.
func (n *network) Start(name string, cmd *exec.Cmd) error {
	return thread(func() error {
		if err := unix.Setns(int(n.hosts[name].ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		if clock := n.clocks[name]; clock != nil {
			return clock.start(cmd)
		}
		return cmd.Start()
	})
}

// change sets what happens to packets from one machine to another.
func (n *network) change(from, to string, l link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bad[[2]string{from, to}] = l
}

// block drops all packets from one machine to another.
func (n *network) block(from, to string) { n.change(from, to, link{loss: 1}) }

// disconnect drops all packets between two machines.
func (n *network) disconnect(a, b string) {
	n.block(a, b)
	n.block(b, a)
}

// losePackets drops the given share of all packets, except those to and from the observer.
func (n *network) losePackets(share float64) {
	for from := range n.hosts {
		for to := range n.hosts {
			if from != observer && to != observer {
				n.change(from, to, link{loss: share})
			}
		}
	}
}

// repair ends all faults of the network and of the clocks. It returns the number of packets that were lost since the
// previous call of repair.
func (n *network) repair() (lost int) {
	for _, clock := range n.clocks {
		clock.step(0)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.bad)
	n.spoken = nil
	lost, n.lost = n.lost, 0
	return lost
}

// moveLeaderAddress gives the leader's address to the server that holds the lock, again and again until ctx ends. On a
// cloud, a network interface moves to that server instead.
func (n *network) moveLeaderAddress(ctx context.Context, holder func(context.Context) (string, error)) {
	for ctx.Err() == nil {
		if name, err := holder(ctx); err == nil && n.hosts[name] != nil {
			n.mu.Lock()
			n.leader = name
			n.mu.Unlock()
		}
		_ = local.Pause(ctx, 100*time.Millisecond) // the loop checks ctx
	}
}

// isolated is set in the environment of the isolated copy of this program.
const isolated = "NSTANCE_SYSTEM_ISOLATED"

// isolate runs this program again in new network and mount namespaces and returns the exit code of that copy. In the
// copy, isolate returns immediately, with done = false.
func isolate() (code int, done bool, err error) {
	if os.Getenv(isolated) != "" {
		return 0, false, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), isolated+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	if uid := os.Getuid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	err = cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), true, nil
	}
	return 0, true, err
}
