package mtls

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// maxUnproven is how many connections of one port may be before the end of their handshake. One more costs the oldest: an honest
	// client is through in a moment, so that the oldest is the least likely to be one.
	maxUnproven = 16384
	// maxHandshakes is how many of them may be in the handshake itself, which is what takes memory. The others wait.
	maxHandshakes = 1024
	// pressed is how long a handshake may take while more than half of those are taken.
	pressed = 3 * time.Second
)

// gate bounds what connections cost before it is known whose they are.
type gate struct {
	limit int
	turns chan struct{}

	mu       sync.Mutex
	unproven *list.List // of net.Conn, oldest first
}

func newGate(limit, handshakes int) *gate {
	return &gate{limit: limit, turns: make(chan struct{}, handshakes), unproven: list.New()}
}

// enter takes a connection in, at the cost of the oldest if there are too many.
func (g *gate) enter(conn net.Conn) (leave func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.unproven.Len() >= g.limit {
		g.unproven.Remove(g.unproven.Front()).(net.Conn).Close()
	}
	place := g.unproven.PushBack(conn)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.unproven.Remove(place) // no effect if it was removed before
	}
}

// turn waits for a connection's turn at the handshake.
func (g *gate) turn(conn net.Conn) (done func(), err error) {
	done = func() { <-g.turns }
	select {
	case g.turns <- struct{}{}:
	default:
		timer := time.NewTimer(handshakeTimeout)
		defer timer.Stop()
		select {
		case g.turns <- struct{}{}:
		case <-timer.C:
			return nil, errors.New("too many handshakes at once")
		}
	}
	if 2*len(g.turns) > cap(g.turns) {
		if err := conn.SetDeadline(time.Now().Add(pressed)); err != nil {
			done()
			return nil, err
		}
	}
	return done, nil
}

// Registrations of one source address: agents register once in their lives, and those of a site may share an address.
const (
	registrationRate  = 20 // a second
	registrationBurst = 400
	// maxSources is how many addresses are remembered; the one that was quiet for longest is forgotten first.
	maxSources = 4096
)

// Limiter limits what each source address may do. An IPv6 network of 64 bits counts as one address. This machine's own is not
// limited: whoever is on it needs no network to be a burden. It is safe for concurrent use.
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
	return &Limiter{rate: rate.Limit(perSecond), burst: burst, size: size, now: now, sources: map[netip.Addr]*list.Element{}, order: list.New()}
}

// Allow counts one, and reports whether it is within the limit.
func (l *Limiter) Allow(from net.Addr) bool {
	port, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return true // not a network's
	}
	addr := port.Addr().Unmap().WithZone("")
	if addr.IsLoopback() {
		return true
	}
	if addr.Is6() {
		prefix, _ := addr.Prefix(64) // no error: 64 bits are there
		addr = prefix.Addr()
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
