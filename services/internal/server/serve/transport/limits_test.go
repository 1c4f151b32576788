package transport

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// fakeConn is a connection from a source address.
type fakeConn struct {
	net.Conn
	from   string
	closed bool
}

func (c *fakeConn) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.from), 1))
}
func (c *fakeConn) Close() error { c.closed = true; return nil }

func TestAnonymousConnectionsAreLimited(t *testing.T) {
	a := newAnonymous(10)
	var leaves []func()
	add := func(from string, want bool) *fakeConn {
		t.Helper()
		conn := &fakeConn{from: from}
		leave, err := a.add(conn)
		if (err == nil) != want {
			t.Fatalf("connection from %s: %v, want accepted: %v", from, err, want)
		}
		if err == nil {
			leaves = append(leaves, leave, leave)
		}
		return conn
	}
	honest := add("192.0.2.1", true)
	for range 9 {
		add("192.0.2.66", true)
	}
	add("192.0.2.66", false)
	if honest.closed {
		t.Error("an address that has more than half of the connections closed the connection of another")
	}
	add("192.0.2.2", true)
	if !honest.closed {
		t.Error("ten connections of ten were open: want the oldest closed for one of another address")
	}
	for _, leave := range leaves {
		leave()
	}
	if a.conns.Len() != 0 || len(a.addresses) != 0 {
		t.Errorf("%d connections and %d addresses are counted after all have left", a.conns.Len(), len(a.addresses))
	}
}

func TestHandshakesOfOneAddressAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnonymous(1000)
		handshake := func(from string) func(failed bool) {
			t.Helper()
			conn := &fakeConn{from: from}
			leave, err := a.add(conn)
			if err != nil {
				t.Fatal(err)
			}
			done, err := a.startHandshake(conn)
			if err != nil {
				leave()
				return nil
			}
			return func(failed bool) {
				done(failed)
				leave()
			}
		}
		began := time.Now()
		var running []func(bool)
		for range maxHandshakesPerAddress {
			running = append(running, handshake("192.0.2.66"))
		}
		if handshake("192.0.2.66") != nil || time.Since(began) < handshakeTimeout/2 {
			t.Errorf("one more handshake than the limit did not wait and fail: %s", time.Since(began))
		}
		began = time.Now()
		handshake("192.0.2.1")(false)
		for _, done := range running {
			done(false)
		}
		for range 1000 {
			handshake("192.0.2.66")(false)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("handshakes of another address, and ones that succeed, waited %s", took)
		}
		const rounds = 20
		starts := map[time.Time]int{}
		for range rounds * maxHandshakesPerAddress {
			done := handshake("192.0.2.66")
			starts[time.Now()]++
			done(true)
		}
		took, want := time.Since(began), (rounds-1)*failurePenalty
		if took < want*9/10 || took > want*11/10 {
			t.Errorf("%d failed handshakes of one address took %s, want about %s", rounds*maxHandshakesPerAddress,
				took, want)
		}
		delete(starts, began)
		if most := slices.Max(slices.Collect(maps.Values(starts))); most > maxHandshakesPerAddress/8 {
			t.Errorf("%d handshakes of an address that fails started together, want them spread", most)
		}
		for range 10_000 {
			handshake("127.0.0.1")(true)
		}
		if time.Since(began) != took {
			t.Errorf("failures on this machine took %s, want no limit", time.Since(began)-took)
		}
		time.Sleep(2 * failurePenalty) // synctest time
		synctest.Wait()
		if len(a.addresses) != 0 || len(a.handshakes) != 0 {
			t.Errorf("%d addresses and %d handshakes are left", len(a.addresses), len(a.handshakes))
		}
	})
}

func TestConnectionsOfOneCertificateAreLimited(t *testing.T) {
	c := clients{limit: 2, conns: map[authority.Identity][]net.Conn{}}
	one, two := authority.Identity{Server: "one"}, authority.Identity{Server: "two"}
	conns := [4]*fakeConn{{}, {}, {}, {}}
	leave := [4]func(){c.add(one, conns[0]), c.add(two, conns[1]), c.add(one, conns[2]), c.add(one, conns[3])}
	if !conns[0].closed || conns[1].closed || conns[2].closed || conns[3].closed {
		t.Errorf("want only the oldest of three connections of a client closed, limit 2: %v", conns)
	}
	leave[0]()
	leave[2]()
	leave[2]()
	fifth := &fakeConn{}
	last := c.add(one, fifth)
	if conns[3].closed || fifth.closed {
		t.Error("a connection was closed although one of two had left")
	}
	last()
	leave[1]()
	leave[3]()
	if len(c.conns) != 0 {
		t.Errorf("%d clients are counted after all have left", len(c.conns))
	}
}

func TestRateLimiter(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l := rateLimiter[string]{perSecond: rate.Limit(2), burst: 3, now: func() time.Time { return now }}
	allowed := func(source string, n int) (count int) {
		for range n {
			if l.allow(source) {
				count++
			}
		}
		return count
	}
	if got := allowed("a", 10); got != 3 {
		t.Errorf("%d in a row, want the burst of 3", got)
	}
	if got := allowed("b", 10); got != 3 {
		t.Errorf("%d of another source, want 3", got)
	}
	now = now.Add(time.Second)
	if got := allowed("a", 10); got != 2 {
		t.Errorf("%d after a second, want 2", got)
	}
	now = now.Add(500 * time.Millisecond)
	for n := range 2 * maxBuckets {
		allowed(fmt.Sprint(n), 1)
		if len(l.buckets) > maxBuckets {
			t.Fatalf("%d sources are remembered, want at most %d", len(l.buckets), maxBuckets)
		}
	}
}

func TestSourceOf(t *testing.T) {
	for from, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1", "[2001:db8::1]:80": "2001:db8::",
		"[2001:db8:0:0:ffff::1]:80": "2001:db8::", "[fe80::1%eth0]:80": "fe80::", "[::1]:80": "::1",
	} {
		if got := sourceOf(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))); got.String() != want {
			t.Errorf("%s counts as %s, want %s", from, got, want)
		}
	}
	for from, want := range map[string]bool{"127.0.0.1": true, "::1": true, "127.0.0.2": false, "192.0.2.1": false} {
		if isLocal(netip.MustParseAddr(from)) != want {
			t.Errorf("%s is local: %v, want %v", from, !want, want)
		}
	}
}
