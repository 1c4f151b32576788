package transport

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// crowd bounds how many connections one client has, and how many there are of all: one more costs the oldest. And it
// bounds what the server spends on what a client says, on all of its connections together.
type crowd struct {
	each, all int
	pace      pace

	mu      sync.Mutex
	members arrivals[any]   // by client
	budgets map[any]*budget // likewise, and of those who have left with less than all
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
	return &crowd{each: each, all: all, pace: pace, members: newArrivals[any](), budgets: map[any]*budget{}}
}

// enter takes in a connection of a client, which is any comparable value. own is what all of the client's connections
// share; leave may be called more than once.
func (c *crowd) enter(who any, conn net.Conn) (own *budget, leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own = c.budgets[who]
	if own == nil {
		own = newBudget(c.pace)
		c.budgets[who] = own
	}
	m := c.members.add(who, conn)
	if c.members.count(who) > c.each {
		c.members.evictOf(who)
	} else if c.all > 0 && c.members.len() > c.all {
		c.forget(c.members.evict())
	}
	return own, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.members.remove(m) {
			c.forget(who)
		}
	}
}

// forget is for a client of which a connection has left. It needs mu.
func (c *crowd) forget(who any) {
	own := c.budgets[who]
	if own == nil || c.members.count(who) > 0 {
		return
	}
	if own.words.Tokens() >= float64(c.pace.burst) {
		delete(c.budgets, who)
		return
	}
	// Who comes back at once has said what it has said.
	time.AfterFunc(c.pace.refill(), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.budgets[who] == own && c.members.count(who) == 0 {
			delete(c.budgets, who)
		}
	})
}

// counted is a connection of a crowd. It leaves when it is closed, and when nothing can be read from it any more: gRPC
// does not close every connection whose client goes before it has said anything.
type counted struct {
	*tls.Conn
	own   *budget
	rush  *rate.Limiter
	said  frames
	leave func()
}

const (
	// patience is how long a client may wait before what it has said is read. Whoever comes there has said it on many
	// connections.
	patience = 20 * time.Second
	// nap is how long it waits at least: to wake up for every frame of a flood would cost more than the frame. Behind
	// others it may be shorter: all of them together do not wake up often.
	nap, shortNap = 50 * time.Millisecond, 5 * time.Millisecond
)

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	// Who says too much is read later: nobody waits but those who say much.
	switch wait, behind := c.own.spend(c.rush, c.said.price(p[:n]), time.Now()); {
	case wait > patience:
		err = errors.New("the client says too much")
	case wait >= nap || behind >= shortNap:
		<-time.After(max(wait, behind))
	}
	if err != nil {
		c.leave()
	}
	return n, err
}

// budget is what a client may still say.
type budget struct {
	words *rate.Limiter
	// calm is the same with less at once. Who has not that much takes the rest of what it may say at once from rush,
	// which it shares with all others that are in such a hurry: one flood is soon over, that of many clients at once
	// would keep everybody else waiting for as long as it takes.
	calm *rate.Limiter
}

func newBudget(p pace) *budget {
	return &budget{p.limiter(), pace{second: p.second, burst: min(p.burst, calmBurst)}.limiter()}
}

// spend takes a price, and says how long it is until the client has that much, and until those before it in rush have
// been served.
func (b *budget) spend(rush *rate.Limiter, price time.Duration, now time.Time) (wait, behind time.Duration) {
	if wait = spend(b.words, price, now); spend(b.calm, price, now) > 0 {
		behind = spend(rush, price, now)
	}
	return wait, behind
}

// spend is that of one limiter.
func spend(from *rate.Limiter, price time.Duration, now time.Time) (wait time.Duration) {
	for price > 0 {
		part := min(int(price), from.Burst())
		wait = from.ReserveN(now, part).DelayFrom(now)
		price -= time.Duration(part)
	}
	return wait
}

func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}
