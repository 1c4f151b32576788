package mtls

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// crowd bounds how many connections one client has, and how many there are of all: one more costs the oldest. And it bounds what the server spends on
// what a client says, on all of its connections together.
type crowd struct {
	each, all int
	pace      pace

	mu      sync.Mutex
	members arrivals[any]         // by client
	words   map[any]*rate.Limiter // likewise, and of those who have left with less than all
}

// pace is how much of the server's time a client may take a second, and at once: see frames for the prices.
type pace struct{ second, burst time.Duration }

func (p pace) refill() time.Duration {
	return time.Duration(float64(p.burst) / float64(p.second) * float64(time.Second))
}

// limiter counts nanoseconds.
func (p pace) limiter() *rate.Limiter { return rate.NewLimiter(rate.Limit(p.second), int(p.burst)) }

// newCrowd: all is 0 for no bound.
func newCrowd(each, all int, pace pace) *crowd {
	return &crowd{each: each, all: all, pace: pace, members: newArrivals[any](), words: map[any]*rate.Limiter{}}
}

// enter takes in a connection of a client, which is any comparable value. words is what all of the client's connections share; leave may be called
// more than once.
func (c *crowd) enter(who any, conn net.Conn) (words *rate.Limiter, leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	words = c.words[who]
	if words == nil {
		words = c.pace.limiter()
		c.words[who] = words
	}
	m := c.members.add(who, conn)
	if c.members.count(who) > c.each {
		c.members.evictOf(who)
	} else if c.all > 0 && c.members.len() > c.all {
		c.forget(c.members.evict())
	}
	return words, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.members.remove(m) {
			c.forget(who)
		}
	}
}

// forget is for a client of which a connection has left. It needs mu.
func (c *crowd) forget(who any) {
	words := c.words[who]
	if words == nil || c.members.count(who) > 0 {
		return
	}
	if words.Tokens() >= float64(c.pace.burst) {
		delete(c.words, who)
		return
	}
	// Who comes back at once has said what it has said.
	time.AfterFunc(c.pace.refill(), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.words[who] == words && c.members.count(who) == 0 {
			delete(c.words, who)
		}
	})
}

// counted is a connection of a crowd. It leaves when it is closed, and when nothing can be read from it any more: gRPC does not close every
// connection whose client goes before it has said anything.
type counted struct {
	*tls.Conn
	words *rate.Limiter
	said  frames
	leave func()
}

const (
	// patience is how long a client may wait before what it has said is read. Whoever comes there has said it on many connections.
	patience = 20 * time.Second
	// nap is how long it waits at least: to wake up for every frame of a flood would cost more than the frame.
	nap = 50 * time.Millisecond
)

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	// Who says too much is read later: nobody but itself waits.
	if wait := spend(c.words, c.said.price(p[:n]), time.Now()); wait > patience {
		err = errors.New("the client says too much")
	} else if wait >= nap {
		<-time.After(wait)
	}
	if err != nil {
		c.leave()
	}
	return n, err
}

// spend takes a price from what a client has, and says how long it is until it has that much.
func spend(words *rate.Limiter, price time.Duration, now time.Time) (wait time.Duration) {
	for price > 0 {
		part := min(int(price), words.Burst())
		wait = words.ReserveN(now, part).DelayFrom(now)
		price -= time.Duration(part)
	}
	return wait
}

func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}
