package transport

import (
	"errors"
	"net"
	"net/netip"
	"time"
)

// peeked is a connection in its handshake: its first byte was read ahead, and its client has a place at the desk only
// while it does not wait for the network.
type peeked struct {
	net.Conn
	first [1]byte
	ahead bool

	desk    *desk // nil before the handshake, and after it
	from    netip.Addr
	working bool // has a place
	greeted bool // the client has said all of its first message, and is answered
	paid    bool // of the desk's allowance
}

func (c *peeked) peek() error {
	n, err := c.Conn.Read(c.first[:])
	c.ahead = n == 1
	if c.ahead {
		return nil
	}
	return err
}

// greet waits for a place at the desk, which the client has from its first complete message on.
func (c *peeked) greet() error {
	if c.desk == nil || c.greeted {
		return nil
	}
	began := time.Now()
	paid, ok := c.desk.take(c.from, handshakeTimeout)
	if !ok {
		return errCrowded
	}
	c.working, c.greeted, c.paid = true, true, paid
	if time.Since(began) > pressed/2 { // it was not the client who took so long
		return c.Conn.SetDeadline(time.Now().Add(pressed))
	}
	return nil
}

// rest gives the place at the desk back.
func (c *peeked) rest() {
	if c.working {
		c.working = false
		c.desk.give()
	}
}

func (c *peeked) Read(p []byte) (int, error) {
	if c.ahead && len(p) > 0 {
		c.ahead = false
		return copy(p, c.first[:]), nil
	}
	c.rest()
	n, err := c.Conn.Read(p)
	if err == nil && c.desk != nil && c.greeted {
		if c.working = c.desk.takeAgain(handshakeTimeout); !c.working {
			err = errCrowded
		}
	}
	return n, err
}

func (c *peeked) Write(p []byte) (int, error) {
	c.rest()
	return c.Conn.Write(p)
}

// CloseWrite says that nothing more will be sent.
func (c *peeked) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.New("cannot be closed by halves")
}
