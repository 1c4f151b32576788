package mtls

import (
	"container/list"
	"crypto/tls"
	"net"
	"sync"
)

// crowd bounds how many connections one client has, and how many there are of all. One more costs the oldest.
type crowd struct {
	each, all int

	mu      sync.Mutex
	members *list.List         // of *member, oldest first
	clients map[any]*list.List // the same, by client
}

type member struct {
	client       any
	conn         net.Conn
	place, among *list.Element // nil once it has left
}

// newCrowd: all is 0 for no bound.
func newCrowd(each, all int) *crowd {
	return &crowd{each: each, all: all, members: list.New(), clients: map[any]*list.List{}}
}

// enter takes in a connection of a client, which is any comparable value. leave may be called more than once.
func (c *crowd) enter(client any, conn net.Conn) (leave func()) {
	m := &member{client: client, conn: conn}
	c.mu.Lock()
	defer c.mu.Unlock()
	if own := c.clients[client]; own != nil && own.Len() >= c.each {
		c.evict(own.Front().Value.(*member))
	} else if c.all > 0 && c.members.Len() >= c.all {
		c.evict(c.members.Front().Value.(*member))
	}
	own := c.clients[client]
	if own == nil {
		own = list.New()
		c.clients[client] = own
	}
	m.place, m.among = c.members.PushBack(m), own.PushBack(m)
	return func() {
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
	if own.Remove(m.among); own.Len() == 0 {
		delete(c.clients, m.client)
	}
	m.place, m.among = nil, nil
}

// counted is a connection of a crowd. It leaves when it is closed, and when nothing can be read from it any more: gRPC does not close every
// connection whose client goes before it has said anything.
type counted struct {
	*tls.Conn
	leave func()
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.leave()
	}
	return n, err
}

func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}
