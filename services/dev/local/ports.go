package local

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

const (
	loopback = "127.0.0.1"
	// portStep is the difference between a port of one server and the same port of the next server. The option
	// --instance of nstance-server uses the same difference.
	portStep = 10
)

// Ports are the ports of a stack: those of the object store, of the web page, and of the first server. Each further
// server's ports are ten higher than those of the server before it.
type Ports struct {
	Store, Health, Election, Registration, Operator, Agent, Page int
}

// DefaultPorts returns the ports of the development environment.
func DefaultPorts() Ports { return portsFrom(8989) }

func portsFrom(base int) Ports {
	return Ports{Store: base, Health: base + 1, Election: base + 2, Registration: base + 3, Operator: base + 4,
		Agent: base + 5, Page: base + 6}
}

// ofServer returns the ports of the n-th server, beginning with 1.
func (p Ports) ofServer(n int) Ports {
	by := portStep * (n - 1)
	return Ports{Store: p.Store, Health: p.Health + by, Election: p.Election + by, Registration: p.Registration + by,
		Operator: p.Operator + by, Agent: p.Agent + by, Page: p.Page}
}

// Busy returns those ports of the stack that are already in use. servers is the stack's number of servers.
func (p Ports) Busy(ctx context.Context, servers int) (busy []int) {
	ports := []int{p.Store, p.Page}
	for n := 1; n <= servers; n++ {
		s := p.ofServer(n)
		ports = append(ports, s.Health, s.Election, s.Registration, s.Operator, s.Agent)
	}
	for _, port := range ports {
		listener, err := listen(ctx, port)
		if err != nil {
			busy = append(busy, port)
			continue
		}
		_ = listener.Close() // nothing was written
	}
	return busy
}

func listen(ctx context.Context, port int) (net.Listener, error) {
	var c net.ListenConfig
	return c.Listen(ctx, "tcp", Address(port))
}

// ReservePorts finds free ports for a stack with the given number of servers. It also listens on the port just below
// the first one. So no other caller on this machine gets the same ports until `release` is called. The ports are below
// the range of ephemeral ports.
func ReservePorts(ctx context.Context, servers int) (ports Ports, release func(), err error) {
	const first, last = 10000, 30000
	size := portStep * (servers + 1)
	for range 200 {
		base := first + rand.IntN((last-first)/size)*size
		guard, err := listen(ctx, base)
		if err != nil {
			continue
		}
		ports = portsFrom(base + 1)
		if len(ports.Busy(ctx, servers)) == 0 {
			return ports, func() { _ = guard.Close() }, nil
		}
		_ = guard.Close()
	}
	return Ports{}, nil, errors.New("found no free block of ports")
}

// Address returns a port of the loopback address as host:port.
func Address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
