package transport

import (
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	bad  = netip.MustParseAddr("192.0.2.66")
	good = netip.MustParseAddr("192.0.2.1")
)

// stub is a connection from somewhere.
type stub struct {
	net.Conn
	from   netip.Addr
	closed bool
}

func (s *stub) RemoteAddr() net.Addr        { return net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.from, 1)) }
func (s *stub) Close() error                { s.closed = true; return nil }
func (s *stub) SetDeadline(time.Time) error { return nil }

// However many wait from one address, who comes from elsewhere has a turn at once, and none is lost.
func TestTurnsAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(8, 2)
		took := make(chan netip.Addr, 1000)
		take := func(from netip.Addr, hold time.Duration) {
			go func() {
				if _, ok := turns.take(from, time.Hour); ok {
					took <- from
					time.Sleep(hold) // fake time
					turns.giveBack(from, false)
				}
			}()
		}
		for range 100 {
			take(bad, time.Second)
		}
		synctest.Wait()
		if len(took) != 2 {
			t.Fatalf("%d turns for one address, want its share of 2", len(took))
		}
		began := time.Now()
		for n := range 12 { // of three other addresses, six turns are free
			take(good.Next().Next().Next(), 0)
			if n%2 == 0 {
				take(good, 0)
			}
		}
		synctest.Wait()
		if len(took) != 20 || time.Since(began) != 0 {
			t.Errorf("%d turns, %s later; want 20 at once", len(took), time.Since(began))
		}
		time.Sleep(50 * time.Second)
		synctest.Wait()
		if len(took) != 118 || turns.free != 8 || len(turns.sources) != 0 || turns.ready.Len() != 0 {
			t.Errorf("%d turns taken, %d free, %d sources, %d ready; want 118, 8, 0, 0", len(took), turns.free,
				len(turns.sources), turns.ready.Len())
		}
	})
}

// When all turns are taken, sources alternate; who has no more patience leaves the queue.
func TestTurnsAlternate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1, 1)
		var order []netip.Addr
		if busy, ok := turns.take(bad, time.Hour); !ok || !busy {
			t.Fatalf("first turn: busy %v, ok %v", busy, ok)
		}
		ask := func(from netip.Addr, patience time.Duration) {
			go func() {
				if _, ok := turns.take(from, patience); ok {
					order = append(order, from)
					turns.giveBack(from, false)
				}
			}()
			synctest.Wait()
		}
		for range 3 {
			ask(bad, time.Hour)
		}
		ask(good, time.Second)
		ask(good, time.Hour)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		turns.giveBack(bad, false)
		synctest.Wait()
		if len(order) != 4 || order[0] != good && order[1] != good || turns.free != 1 || len(turns.sources) != 0 {
			t.Errorf("order %v, %d free, %d sources", order, turns.free, len(turns.sources))
		}
	})
}

func TestGateCostsTheOldestOfItsSource(t *testing.T) {
	g := newGate(8, 8, 2)
	honest := &stub{from: good}
	g.enter(honest)
	var hostile []*stub
	for range 100 {
		hostile = append(hostile, &stub{from: bad})
		g.enter(hostile[len(hostile)-1])
	}
	open := func() (n int) {
		for _, s := range hostile {
			if !s.closed {
				n++
			}
		}
		return n
	}
	if honest.closed || open() != 7 || hostile[92].closed == hostile[93].closed {
		t.Errorf("honest closed: %v; %d of one address are open, want the newest 7", honest.closed, open())
	}
	// From everywhere at once: the oldest of all.
	from := good
	var leave []func()
	for range 8 {
		from = from.Next()
		leave = append(leave, g.enter(&stub{from: from}))
	}
	if !honest.closed || open() != 0 {
		t.Errorf("the oldest are still there: %v, %d", honest.closed, open())
	}
	for _, l := range slices.Concat(leave, leave) {
		l()
	}
	if g.unproven.len() != 0 || len(g.unproven.of) != 0 {
		t.Errorf("%d and %d are left", g.unproven.len(), len(g.unproven.of))
	}
}

func TestCrowd(t *testing.T) {
	c := newCrowd(2, 5, agentPace)
	enter := func(client string) (*stub, func()) {
		s := &stub{}
		_, leave := c.enter(client, s)
		return s, leave
	}
	a1, leave1 := enter("a")
	a2, leave2 := enter("a")
	b1, leave3 := enter("b")
	a3, leave4 := enter("a")
	if !a1.closed || a2.closed || a3.closed || b1.closed {
		t.Errorf("closed %v %v %v %v, want only the first of three of a client that may have two", a1.closed, a2.closed,
			a3.closed, b1.closed)
	}
	leave1()
	leave2()
	a4, leave5 := enter("a")
	if a3.closed || a4.closed {
		t.Error("one has left, and another was closed")
	}
	var leaves []func()
	for _, name := range []string{"c", "d", "e", "f"} {
		_, leave := enter(name)
		leaves = append(leaves, leave)
	}
	if !b1.closed || !a3.closed || a4.closed {
		t.Errorf("closed %v %v %v, want the two oldest of all", b1.closed, a3.closed, a4.closed)
	}
	for _, leave := range append(leaves, leave1, leave2, leave3, leave4, leave5) {
		leave()
	}
	if c.members.len() != 0 || len(c.budgets) != 0 {
		t.Errorf("%d and %d are left", c.members.len(), len(c.budgets))
	}
}

// A client that leaves and comes back does not begin anew with what it may say; it is forgotten when that would make no
// difference.
func TestCrowdRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(2, 5, pace{second: 10, burst: 100})
		own, leave := c.enter("a", &stub{})
		own.words.ReserveN(time.Now(), 80)
		leave()
		if again, leave := c.enter("a", &stub{}); again.words.Tokens() > 21 {
			t.Errorf("%v bytes after it came back, want 20", again.words.Tokens())
		} else {
			leave()
		}
		time.Sleep(time.Minute) // fake time
		synctest.Wait()
		if len(c.budgets) != 0 {
			t.Errorf("%d clients are remembered", len(c.budgets))
		}
	})
}

// Who fails again and again has twenty turns a second, and its honest neighbours get theirs, if later than others.
func TestTurnsInVain(t *testing.T) {
	// of the 200 turns in ten seconds, the neighbours' part
	for crowd, want := range map[int]struct{ served, of int64 }{40: {20, 20}, 1000: {5, 100}} {
		synctest.Test(t, func(t *testing.T) {
			turns := newTurns(1024, 128)
			var failed, served atomic.Int64
			stop := make(chan struct{})
			for range crowd { // each comes again as soon as it has failed
				go func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if _, ok := turns.take(bad, handshakeTimeout); ok {
							time.Sleep(2 * time.Millisecond) // fake time, here and below
							failed.Add(1)
							turns.giveBack(bad, true)
						}
					}
				}()
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if n := failed.Load(); n < 190 || n > 310 { // at first as many as there are turns, and twenty a second
				t.Errorf("%d of %d: %d handshakes failed in ten seconds", want.of, crowd, n)
			}
			for range want.of {
				go func() {
					if _, ok := turns.take(bad, handshakeTimeout); ok {
						time.Sleep(2 * time.Millisecond)
						served.Add(1)
						turns.giveBack(bad, false)
					}
				}()
			}
			began := time.Now()
			if busy, ok := turns.take(good, time.Minute); !ok || busy || time.Since(began) != 0 {
				t.Errorf("from elsewhere: busy %v, ok %v, after %s", busy, ok, time.Since(began))
			}
			turns.giveBack(good, false)
			time.Sleep(handshakeTimeout)
			synctest.Wait()
			if served.Load() < want.served {
				t.Errorf("%d of %d neighbours of %d had their turn, want %d", served.Load(), want.of, crowd,
					want.served)
			}
			close(stop)
			time.Sleep(time.Minute)
			synctest.Wait()
			if turns.free != 1024 || len(turns.sources) != 0 {
				t.Errorf("%d turns are free, %d sources remembered; want 1024 and none", turns.free, len(turns.sources))
			}
		})
	}
}

// A fail-over: thousands from one address at once wait for no more than their turns.
func TestTurnsOfAFailOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1024, 128)
		began, served := time.Now(), atomic.Int64{}
		for range 6400 {
			go func() {
				if _, ok := turns.take(good, handshakeTimeout); ok {
					time.Sleep(20 * time.Millisecond) // fake time
					served.Add(1)
					turns.giveBack(good, false)
				}
			}()
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if served.Load() != 6400 || len(turns.sources) != 0 {
			t.Errorf("%d of 6400 had their turns in %s", served.Load(), time.Since(began))
		}
	})
}
