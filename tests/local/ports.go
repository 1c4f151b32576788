package local

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

const loopback = "127.0.0.1"

// Ports are what a stack listens on, all on the loopback address. Health and election ports of server n are (n-1)*10
// higher; the other three belong to whichever server leads.
type Ports struct {
	Store, Health, Election, Registration, Operator, Agent int
}

// DefaultPorts are those of the development environment.
func DefaultPorts() Ports { return portsFrom(8989) }

func portsFrom(base int) Ports {
	return Ports{Store: base, Health: base + 1, Election: base + 2, Registration: base + 3, Operator: base + 4,
		Agent: base + 5}
}

// all lists the ports that a stack with that many servers needs.
func (p Ports) all(servers int) []int {
	ports := []int{p.Store, p.Registration, p.Operator, p.Agent}
	for n := range servers {
		ports = append(ports, p.Health+10*n, p.Election+10*n)
	}
	return ports
}

// Busy returns those of the stack's ports that somebody listens on.
func (p Ports) Busy(ctx context.Context, servers int) (busy []int) {
	for _, port := range p.all(servers) {
		if listener, err := listen(ctx, port); err != nil {
			busy = append(busy, port)
		} else {
			_ = listener.Close()
		}
	}
	return busy
}

func listen(ctx context.Context, port int) (net.Listener, error) {
	var c net.ListenConfig
	return c.Listen(ctx, "tcp", Address(port))
}

// ReservePorts finds free ports that no other stack on this machine takes meanwhile: the block's first port is a mutex,
// held by listening on it until release is called. Blocks lie below the range that the kernel takes outgoing ports
// from.
func ReservePorts(ctx context.Context, servers int) (ports Ports, release func(), err error) {
	const first, last = 10000, 30000
	size := 10 + 10*servers
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
	return Ports{}, nil, errors.New("no free block of ports found")
}

// Address is a port of this machine as host:port.
func Address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
