package transport

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

const (
	// maxAnonymous is the largest number of open connections without a verified client certificate, over all ports. One
	// source address may have half of them.
	maxAnonymous = 16384
	// maxHandshakes is the number of handshakes that may run at the same time, and maxHandshakesPerAddress the number
	// for one address. Further handshakes wait for a slot.
	maxHandshakes, maxHandshakesPerAddress = 1024, 32
	// failurePenalty is the mean time for which a failed handshake still occupies one of the 32 slots of its address.
	// So about 16 handshakes per second can fail for one address. Other handshakes free their slot when they end.
	failurePenalty = 2 * time.Second
	// maxBuckets is the largest number of sources that a rateLimiter remembers.
	maxBuckets = 4096
)

// anonymousLimit returns the limit of connections without a verified client certificate. It leaves half of the
// process's file descriptors for other uses.
func anonymousLimit() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return maxAnonymous / 8
	}
	return int(min(maxAnonymous, max(64, files.Cur/2)))
}

// anonymous limits connections without a verified client certificate: connections in their handshake, connections to
// the registration port, and connections with a certificate for another port. It is safe for concurrent use.
type anonymous struct {
	limit      int
	handshakes chan struct{}

	mu        sync.Mutex
	conns     *list.List // of net.Conn, the oldest first
	addresses map[netip.Addr]*address
}

// address is a source address. uses counts its connections and the slots that its failed handshakes still occupy.
type address struct {
	uses       int
	handshakes chan struct{}
}

func newAnonymous(limit int) *anonymous {
	return &anonymous{limit: limit, handshakes: make(chan struct{}, maxHandshakes), conns: list.New(),
		addresses: map[netip.Addr]*address{}}
}

// add counts a connection until leave is called. At the limit, add refuses a connection from an address that has half
// of all connections. For other addresses, it closes the oldest connection. That one is the most suspicious: an honest
// client completes its handshake or registration within a moment.
func (a *anonymous) add(conn net.Conn) (leave func(), err error) {
	from := sourceOf(conn.RemoteAddr())
	a.mu.Lock()
	defer a.mu.Unlock()
	addr := a.addresses[from]
	if addr == nil {
		slots := maxHandshakesPerAddress
		if isLocal(from) {
			slots = maxHandshakes
		}
		addr = &address{handshakes: make(chan struct{}, slots)}
		a.addresses[from] = addr
	}
	if a.conns.Len() >= a.limit {
		if addr.uses >= a.limit/2 {
			return nil, fmt.Errorf("too many connections from %s", from)
		}
		a.conns.Remove(a.conns.Front()).(net.Conn).Close()
	}
	addr.uses++
	element := a.conns.PushBack(conn)
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.conns.Remove(element)
		a.release(from)
	}), nil
}

// release subtracts one from the uses of an address, and forgets an address without uses. Call with mu held.
func (a *anonymous) release(from netip.Addr) {
	addr := a.addresses[from]
	if addr.uses--; addr.uses == 0 {
		delete(a.addresses, from)
	}
}

// startHandshake waits for two free slots: one of the connection's address, and one of the server. Call add before
// startHandshake, and done before leave.
func (a *anonymous) startHandshake(conn net.Conn) (done func(failed bool), err error) {
	from := sourceOf(conn.RemoteAddr())
	a.mu.Lock()
	own := a.addresses[from].handshakes
	a.mu.Unlock()
	// Connections that arrived together must not all time out together.
	timeout := time.After(handshakeTimeout/2 + rand.N(handshakeTimeout/2))
	select {
	case own <- struct{}{}:
	case <-timeout:
		return nil, fmt.Errorf("too many handshakes from %s", from)
	}
	select {
	case a.handshakes <- struct{}{}:
	case <-timeout:
		<-own
		return nil, errors.New("too many handshakes at the same time")
	}
	return func(failed bool) {
		<-a.handshakes
		if !failed || isLocal(from) {
			<-own
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.addresses[from].uses++
		// Slots that were taken together must not become free together: the next handshakes would be a burst.
		time.AfterFunc(failurePenalty/2+rand.N(failurePenalty), func() {
			<-own
			a.mu.Lock()
			defer a.mu.Unlock()
			a.release(from)
		})
	}, nil
}

// clients limits the connections of each client certificate on one port. It is safe for concurrent use.
type clients struct {
	limit int
	mu    sync.Mutex
	conns map[authority.Identity][]net.Conn // the oldest first
}

// add counts a connection until leave is called. If the client has too many connections, add closes the oldest one. The
// oldest may be dead: a client whose network changed connects again before the server notices the change.
func (c *clients) add(client authority.Identity, conn net.Conn) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conns := append(c.conns[client], conn)
	if len(conns) > c.limit {
		conns[0].Close()
		conns = slices.Delete(conns, 0, 1)
	}
	c.conns[client] = conns
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		conns := slices.DeleteFunc(c.conns[client], func(other net.Conn) bool { return other == conn })
		if c.conns[client] = conns; len(conns) == 0 {
			delete(c.conns, client)
		}
	}
}

// rateLimiter has a token bucket for each source. A source is an address or a client. It is safe for concurrent use.
type rateLimiter[K comparable] struct {
	perSecond rate.Limit
	burst     int
	now       func() time.Time

	mu      sync.Mutex
	buckets map[K]*rate.Limiter
}

// bucket returns the token bucket of a source.
func (l *rateLimiter[K]) bucket(source K) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.buckets[source]; b != nil {
		return b
	}
	if len(l.buckets) >= maxBuckets {
		now := l.now()
		maps.DeleteFunc(l.buckets, func(_ K, b *rate.Limiter) bool { return b.TokensAt(now) >= float64(l.burst) })
	}
	if len(l.buckets) >= maxBuckets || l.buckets == nil {
		l.buckets = map[K]*rate.Limiter{}
	}
	b := rate.NewLimiter(l.perSecond, l.burst)
	l.buckets[source] = b
	return b
}

// allow takes a token of the source and reports whether there was one.
func (l *rateLimiter[K]) allow(source K) bool { return l.bucket(source).AllowN(l.now(), 1) }

// sourceOf returns the address that a connection comes from, or the /64 network of an IPv6 address. The result is
// invalid if the connection did not come over a network.
func sourceOf(from net.Addr) netip.Addr {
	port, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return netip.Addr{}
	}
	addr := port.Addr().Unmap().WithZone("")
	if addr.Is6() && !isLocal(addr) {
		prefix, _ := addr.Prefix(64) // cannot fail: an IPv6 address has 128 bits
		addr = prefix.Addr()
	}
	return addr
}

// isLocal reports whether a client connects from this machine with the default loopback address. Limits per address do
// not apply to such a client.
func isLocal(addr netip.Addr) bool {
	return !addr.IsValid() || addr == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || addr == netip.IPv6Loopback()
}

// following limits the open streams of each client. It is safe for concurrent use.
type following struct {
	limit int

	mu      sync.Mutex
	streams map[authority.Identity]int
}

// add counts a stream until leave is called.
func (f *following) add(ctx context.Context) (leave func(), err error) {
	client, err := PeerOf(ctx)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	id := client.Identity
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.streams[id] >= f.limit {
		return nil, status.Errorf(codes.ResourceExhausted,
			"%s already follows or watches in %d streams, which is the limit: end some of them", id.ID, f.limit)
	}
	f.streams[id]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.streams[id]--; f.streams[id] == 0 {
			delete(f.streams, id)
		}
	}, nil
}
