package layer2

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Address is the leader's IPv4 or IPv6 address, or one of each. It implements infra.LeaderNetwork. Its methods may be
// called concurrently.
type Address struct {
	mu    sync.Mutex
	holds []*hold // one for each address
}

// New returns an Address for the given addresses of the leader, but does not add them to this machine. It fails if this
// process lacks the permission to add them later.
func New(addrs ...netip.Addr) (*Address, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil, fmt.Errorf("read the capabilities of this process: %w", err)
	}
	const need = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
	if data[0].Effective&need != need {
		return nil, errCapability
	}
	a := &Address{}
	for _, addr := range addrs {
		a.holds = append(a.holds, &hold{addr: addr})
	}
	return a, nil
}

// Acquire adds the addresses to this machine, or renews their lifetimes, and sends the announcements that are due. It
// must be called every [Interval]. If another machine also has one of the addresses, Acquire keeps the address and
// returns an error.
func (a *Address) Acquire(context.Context, string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, h := range a.holds {
		errs = append(errs, h.acquire(time.Now()))
	}
	return errors.Join(errs...)
}

// Release removes the addresses from this machine.
func (a *Address) Release(context.Context, string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, h := range a.holds {
		errs = append(errs, h.release())
	}
	return errors.Join(errs...)
}

// hold is one address on an interface of this machine.
type hold struct {
	addr netip.Addr

	link     netlink.Link // nil: not held
	speaker  speaker
	began    time.Time
	renewed  time.Time
	schedule schedule
}

// speaker sends and receives the packets of ARP or NDP for one address on one interface.
type speaker interface {
	// announce tells the other machines that this machine has the address.
	announce() error
	// probe asks the other machines whether one of them has the address.
	probe() error
	// claims returns the MAC addresses of other machines that have claimed the address since the last call.
	claims() ([]net.HardwareAddr, error)
	close() error
}

func (h *hold) acquire(now time.Time) error {
	if h.link != nil && now.Sub(h.renewed) >= Lifetime {
		h.drop() // another machine may have taken the address since
	}
	if h.link == nil {
		if err := h.open(now); err != nil {
			return err
		}
	}
	if err := netlink.AddrReplace(h.link, h.kernelAddress()); err != nil {
		on := h.link.Attrs().Name
		h.drop()
		return fmt.Errorf("add %s to %s: %w", h.addr, on, explain(err))
	}
	h.renewed = now
	if err := h.speak(now.Sub(h.began)); err != nil {
		return fmt.Errorf("%s on %s: %w", h.addr, h.link.Attrs().Name, explain(err))
	}
	return nil
}

// open finds the interface of the address, opens a socket for ARP or NDP (the speaker), and starts the schedule of
// announcements and probes.
func (h *hold) open(now time.Time) (err error) {
	link, err := linkFor(h.addr)
	if err != nil {
		return err
	}
	if h.addr.Is4() {
		h.speaker, err = newARP(link.Attrs(), h.addr)
	} else {
		h.speaker, err = newNDP(link.Attrs(), h.addr)
	}
	if err != nil {
		return fmt.Errorf("announce %s on %s: %w", h.addr, link.Attrs().Name, explain(err))
	}
	h.link, h.began, h.schedule = link, now, schedule{}
	return nil
}

func (h *hold) drop() {
	_ = h.speaker.close()
	h.link, h.speaker = nil, nil
}

// speak sends the announcements and probes that are due. held is the time since this machine acquired the address.
func (h *hold) speak(held time.Duration) error {
	claims, err := h.speaker.claims()
	for _, mac := range claims {
		h.schedule.hear(held, mac.String())
	}
	errs := []error{err}
	if h.schedule.announce(held) {
		errs = append(errs, h.speaker.announce())
	}
	if h.schedule.probe(held) {
		errs = append(errs, h.speaker.probe())
	}
	if other := h.schedule.conflict(held); other != "" {
		errs = append(errs, conflictError(other))
	}
	return errors.Join(errs...)
}

// kernelAddress returns the address with its settings for the kernel. The address is deprecated, so that the machine
// does not use it for its own connections. Duplicate detection is off, because a former leader may still have the
// address for the time [Lifetime].
func (h *hold) kernelAddress() *netlink.Addr {
	bits := h.addr.BitLen()
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: h.addr.AsSlice(), Mask: net.CIDRMask(bits, bits)},
		ValidLft: int(Lifetime / time.Second), PreferedLft: 0}
	if h.addr.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}

func (h *hold) release() error {
	if h.link == nil {
		return nil
	}
	err := netlink.AddrDel(h.link, h.kernelAddress())
	on := h.link.Attrs().Name
	h.drop()
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove %s from %s: %w", h.addr, on, explain(err))
	}
	return nil
}

// linkFor returns the interface whose network contains the address.
func linkFor(addr netip.Addr) (netlink.Link, error) {
	family := netlink.FAMILY_V4
	if addr.Is6() {
		family = netlink.FAMILY_V6
	}
	known, err := netlink.AddrList(nil, family)
	if err != nil {
		return nil, fmt.Errorf("read the addresses of this machine: %w", err)
	}
	for _, one := range known {
		ip, ok := netip.AddrFromSlice(one.IP)
		bits, _ := one.Mask.Size()
		if !ok || bits == addr.BitLen() || !netip.PrefixFrom(ip.Unmap(), bits).Contains(addr) {
			continue
		}
		link, err := netlink.LinkByIndex(one.LinkIndex)
		switch {
		case err != nil:
			return nil, fmt.Errorf("describe the interface with %s: %w", ip, err)
		case len(link.Attrs().HardwareAddr) != macLength:
			return nil, fmt.Errorf("%s would be on %s, which has no MAC address: kind arp needs an Ethernet network",
				addr, link.Attrs().Name)
		}
		return link, nil
	}
	return nil, fmt.Errorf("no interface of this machine has a network with %s: the address must be one of the "+
		"servers' own network", addr)
}

// explain adds advice to the kernel's error if this process lacks a permission.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return errors.Join(err, errCapability)
	}
	return err
}
