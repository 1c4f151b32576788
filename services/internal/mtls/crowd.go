package mtls

import (
	"container/list"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// crowd bounds how many connections one client has, and how many there are of all: one more costs the oldest. And it bounds how much a client says
// on all of its connections together: frames that cost much and hold little (SETTINGS, PING, RST_STREAM) are sent in floods or not at all.
type crowd struct {
	each, all int
	pace      pace

	mu      sync.Mutex
	members *list.List      // of *member, oldest first
	clients map[any]*client // the same, by client
}

// pace is how many bytes a client may say a second, and at once.
type pace struct{ second, burst int }

func (p pace) refill() time.Duration {
	return time.Duration(float64(p.burst) / float64(p.second) * float64(time.Second))
}

type client struct {
	members *list.List
	words   *rate.Limiter
}

type member struct {
	client       any
	conn         net.Conn
	place, among *list.Element // nil once it has left
}

// newCrowd: all is 0 for no bound.
func newCrowd(each, all int, pace pace) *crowd {
	return &crowd{each: each, all: all, pace: pace, members: list.New(), clients: map[any]*client{}}
}

// enter takes in a connection of a client, which is any comparable value. words is what all of the client's connections share; leave may be called
// more than once.
func (c *crowd) enter(who any, conn net.Conn) (words *rate.Limiter, leave func()) {
	m := &member{client: who, conn: conn}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.clients[who]
	if own == nil {
		own = &client{list.New(), rate.NewLimiter(rate.Limit(c.pace.second), c.pace.burst)}
		c.clients[who] = own
	}
	m.place, m.among = c.members.PushBack(m), own.members.PushBack(m)
	if own.members.Len() > c.each {
		c.evict(own.members.Front().Value.(*member))
	} else if c.all > 0 && c.members.Len() > c.all {
		c.evict(c.members.Front().Value.(*member))
	}
	return own.words, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.forget(m)
	}
}

// evict needs mu.
func (c *crowd) evict(m *member) {
	c.forget(m)
	m.conn.Close()
}

// forget needs mu.
func (c *crowd) forget(m *member) {
	if m.place == nil {
		return
	}
	c.members.Remove(m.place)
	own := c.clients[m.client]
	own.members.Remove(m.among)
	m.place, m.among = nil, nil
	if own.members.Len() > 0 {
		return
	}
	if own.words.Tokens() >= float64(c.pace.burst) {
		delete(c.clients, m.client)
		return
	}
	// Who comes back at once has said what it has said.
	time.AfterFunc(c.pace.refill(), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.clients[m.client] == own && own.members.Len() == 0 {
			delete(c.clients, m.client)
		}
	})
}

// counted is a connection of a crowd. It leaves when it is closed, and when nothing can be read from it any more: gRPC does not close every
// connection whose client goes before it has said anything.
type counted struct {
	*tls.Conn
	words *rate.Limiter
	leave func()
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.leave()
		return n, err
	}
	// Who says too much is read later: nobody but itself waits.
	if later := c.words.ReserveN(time.Now(), n); later.OK() {
		if wait := later.Delay(); wait > 0 {
			<-time.After(wait)
		}
	}
	return n, nil
}

func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}
