package transport

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Registrations of one source address: agents register once in their lives, and those of a site may share an address.
const (
	registrationRate  = 20 // a second
	registrationBurst = 400
	// maxSources is how many addresses are remembered; the one that was quiet for longest is forgotten first.
	maxSources = 4096
)

// Limiter limits what each source address may do. An IPv6 network of 64 bits counts as one address. This machine's own
// (127.0.0.1 and ::1) is not limited: whoever is on it needs no network to be a burden. It is safe for concurrent use.
type Limiter struct {
	rate  rate.Limit
	burst int
	size  int
	now   func() time.Time

	mu      sync.Mutex
	sources map[netip.Addr]*list.Element
	order   *list.List // of *source, the most recent first
}

type source struct {
	addr   netip.Addr
	bucket *rate.Limiter
}

// NewLimiter allows each address perSecond on average and burst at once, and remembers size addresses.
func NewLimiter(perSecond float64, burst, size int, now func() time.Time) *Limiter {
	return &Limiter{rate: rate.Limit(perSecond), burst: burst, size: size, now: now,
		sources: map[netip.Addr]*list.Element{}, order: list.New()}
}

// Allow counts one, and reports whether it is within the limit.
func (l *Limiter) Allow(from net.Addr) bool {
	addr := sourceOf(from)
	if !addr.IsValid() || local(addr) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	element, ok := l.sources[addr]
	if !ok {
		if l.order.Len() >= l.size {
			oldest := l.order.Remove(l.order.Back()).(*source)
			delete(l.sources, oldest.addr)
		}
		element = l.order.PushFront(&source{addr, rate.NewLimiter(l.rate, l.burst)})
		l.sources[addr] = element
	}
	l.order.MoveToFront(element)
	return element.Value.(*source).bucket.AllowN(l.now(), 1)
}

// sourceOf is the address, or the IPv6 network of 64 bits, that a connection comes from; invalid when it did not come
// over a network.
func sourceOf(from net.Addr) netip.Addr {
	port, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return netip.Addr{}
	}
	addr := port.Addr().Unmap().WithZone("")
	if addr.Is6() && !local(addr) {
		prefix, _ := addr.Prefix(64) // no error: 64 bits are there
		addr = prefix.Addr()
	}
	return addr
}

// local is what clients on this machine have unless they chose another.
func local(addr netip.Addr) bool {
	return addr == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || addr == netip.IPv6Loopback()
}
