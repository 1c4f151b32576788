package agent_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// TestWrongClockAtBoot boots an agent whose clock is hours behind or weeks ahead, so that the certificates of the
// server and of the CA are not valid by its clock. The agent says so and tries again. It registers with the same nonce
// when the clock is right.
func TestWrongClockAtBoot(t *testing.T) {
	for name, test := range map[string]struct {
		lag, ca time.Duration // how far the server's clock and the birth of the CA are behind the agent's clock
	}{
		"behind":                     {lag: -3 * time.Hour, ca: 24 * time.Hour},
		"behind the birth of the CA": {lag: -3 * time.Hour, ca: -2 * time.Hour},
		"ahead":                      {lag: 40 * 24 * time.Hour, ca: 50 * 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{}
				s := newFakeServer(t, newID(t))
				ca, err := authority.CreateCA("example", rand.Reader, time.Now().Add(-test.ca))
				if err != nil {
					t.Fatal(err)
				}
				s.ca, s.lag = ca, test.lag
				stopServer := s.start(t, n.listen(address))
				client, stop := run(t, newMemories(t, s).options(s, n))
				defer stop()
				if tries := n.delays(10 * time.Minute); len(tries) < 20 || len(tries) > 60 {
					t.Errorf("%d tries in ten minutes", len(tries))
				}
				if err := client.Health(); err == nil ||
					!strings.Contains(err.Error(), "certificate has expired or is not yet valid: current time") ||
					strings.Contains(err.Error(), "refused") {
					t.Errorf("Health: %v", err)
				}
				if test.lag < 0 {
					time.Sleep(-test.lag - 20*time.Minute)
					s.set(func() { s.lag = 0 })
					time.Sleep(10 * time.Minute) // the certificate of the server becomes valid
				} else {
					stopServer()
					s.set(func() { s.lag = 0 })
					stopServer = s.start(t, n.listen(address))
				}
				defer func() { stopServer() }()
				time.Sleep(time.Minute)
				s.next(t, "sequence 1", first)
			})
		})
	}
}

// resolver is a DNS server in memory.
type resolver struct {
	code dnsmessage.RCode
	mute bool
}

// serve answers one query on a stream.
func (r resolver) serve(conn net.Conn) {
	defer conn.Close()
	for {
		length := make([]byte, 2)
		if _, err := io.ReadFull(conn, length); err != nil {
			return
		}
		text := make([]byte, int(length[0])<<8|int(length[1]))
		var m dnsmessage.Message
		if _, err := io.ReadFull(conn, text); err != nil || m.Unpack(text) != nil || r.mute {
			return
		}
		m.Response, m.RCode, m.Authoritative, m.Additionals = true, r.code, true, nil
		if q := m.Questions[0]; r.code == dnsmessage.RCodeSuccess && q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type,
				Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}}}
		}
		answer, err := m.Pack()
		if err != nil {
			return
		}
		if _, err := conn.Write(append([]byte{byte(len(answer) >> 8), byte(len(answer))}, answer...)); err != nil {
			return
		}
	}
}

// TestNameServerFailsAtBoot boots an agent that knows its server by a name. At first the name server does not know the
// name, has a failure, does not answer, or cannot be reached. The agent asks again for each try, so it registers when
// the name is known.
func TestNameServerFailsAtBoot(t *testing.T) {
	for name, fault := range map[string]struct {
		resolver
		away bool
		want string
	}{
		"unknown name":  {resolver{code: dnsmessage.RCodeNameError}, false, "no such host"},
		"failure":       {resolver{code: dnsmessage.RCodeServerFailure}, false, "server misbehaving"},
		"silence":       {resolver{mute: true}, false, "lookup leader.example.com"},
		"not reachable": {resolver{}, true, "network is unreachable"},
	} {
		t.Run(name, func(t *testing.T) {
			n := &network{}
			s := newFakeServer(t, newID(t))
			defer s.startAs(t, n.listen(address), authority.Identity{Role: authority.RoleServer, Cluster: "example",
				Shard: "a", Server: "one"}, "leader.example.com")()
			var fixed atomic.Bool
			names := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
				now := fault.resolver
				if fixed.Load() {
					now = resolver{}
				} else if fault.away {
					return nil, errors.New("network is unreachable")
				}
				client, server := net.Pipe()
				go now.serve(server)
				return client, nil
			}}
			o := newMemories(t, s).options(s, n)
			o.RegistrationAddrs = []string{"leader.example.com:8994"}
			o.AgentAddrs = o.RegistrationAddrs
			o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				host, port, err := net.SplitHostPort(addr)
				if err != nil {
					return nil, err
				}
				found, err := names.LookupHost(ctx, host)
				if err != nil {
					return nil, err
				}
				return n.dial(ctx, net.JoinHostPort(found[0], port))
			}
			client, stop := run(t, o)
			defer stop()
			for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				err := client.Health()
				if err != nil && strings.Contains(err.Error(), fault.want) {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("Health: %v", err)
				}
			}
			fixed.Store(true)
			s.next(t, "sequence 1", first)
		})
	}
}
