package histories

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// relay is an unreliable path to one server's election port. It delays bytes, holds them back in one direction or both,
// and cuts and refuses connections. It never drops a part of a stream, because TCP sends lost packets again.
type relay struct {
	addr  string
	ended context.Context //nolint:containedctx // of the test: everything in here ends with it

	running sync.WaitGroup
	delay   atomic.Int64   // of every byte, in both directions
	held    [2]atomic.Bool // to the server, from it: nothing arrives until the end of the hold
	refuses atomic.Bool

	mu       sync.Mutex
	upstream string // "": connections are refused
	conns    []net.Conn
	counts   [weathers]int
}

// Weathers of a relay.
const (
	fair      = iota
	slowPeers // up to half a promise of delay in both directions
	deaf      // nothing arrives at the server
	mute      // nothing comes from the server
	silent    // both
	flaky     // cut repeatedly
	closed    // refused
	weathers  // number of weathers
)

var weatherNames = [...]string{"fair", "slow", "deaf", "mute", "silent", "flaky", "closed"}

func newRelay(t *testing.T) *relay {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &relay{addr: listener.Addr().String(), ended: ctx}
	r.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			r.running.Go(func() { r.serve(conn) })
		}
	})
	t.Cleanup(func() {
		end()
		_ = listener.Close()
		r.cut()
		r.running.Wait()
	})
	return r
}

// to makes the relay forward new connections to another process. Existing connections continue until one side ends
// them.
func (r *relay) to(addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.upstream = addr
}

// keep registers a connection, and returns false after the end of the test.
func (r *relay) keep(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended.Err() != nil {
		_ = conn.Close()
		return false
	}
	r.conns = append(r.conns, conn)
	return true
}

// cut ends all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		_ = conn.Close()
	}
	r.conns = nil
}

func (r *relay) forget(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = conn.Close()
	r.conns = slices.DeleteFunc(r.conns, func(c net.Conn) bool { return c == conn })
}

func (r *relay) serve(conn net.Conn) {
	r.mu.Lock()
	upstream := r.upstream
	r.mu.Unlock()
	if r.refuses.Load() || upstream == "" || !r.keep(conn) {
		_ = conn.Close()
		return
	}
	defer r.forget(conn)
	far, err := new(net.Dialer).DialContext(r.ended, "tcp", upstream)
	if err != nil || !r.keep(far) {
		return
	}
	defer r.forget(far)
	var both sync.WaitGroup
	both.Go(func() { r.carry(far, conn, &r.held[0]) })
	both.Go(func() { r.carry(conn, far, &r.held[1]) })
	both.Wait()
}

// carry forwards the bytes of one direction. The delay that is set when a piece arrives decides how late it is
// forwarded.
func (r *relay) carry(to, from net.Conn, held *atomic.Bool) {
	type piece struct {
		due   time.Time
		bytes []byte
	}
	pieces := make(chan piece, 1024)
	r.running.Go(func() {
		defer close(pieces)
		for {
			buffer := make([]byte, 16<<10)
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			select {
			case pieces <- piece{time.Now().Add(time.Duration(r.delay.Load())), buffer[:n]}:
			case <-r.ended.Done():
				return
			}
		}
	})
	for p := range pieces {
		within(time.Until(p.due), func() bool { return r.ended.Err() != nil })
		for held.Load() && r.ended.Err() == nil {
			within(5*time.Millisecond, func() bool { return false })
		}
		if _, err := to.Write(p.bytes); err != nil {
			break
		}
	}
	_ = to.Close() // bytes that follow in either direction have no receiver
	_ = from.Close()
	for range pieces { // until the reader has noticed
	}
}

// set gives the connections one kind of `weather`. With fair, they have no delay; with slowPeers, a random one. All
// other kinds leave the delay as it is.
func (r *relay) set(weather int, rng *rand.Rand, promise time.Duration) {
	switch weather {
	case fair:
		r.delay.Store(0)
	case slowPeers:
		r.delay.Store(rng.Int64N(int64(promise) / 2))
	}
	r.held[0].Store(weather == deaf || weather == silent)
	r.held[1].Store(weather == mute || weather == silent)
	r.refuses.Store(weather == closed)
	if weather == flaky || weather == closed {
		r.cut()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[weather]++
}
