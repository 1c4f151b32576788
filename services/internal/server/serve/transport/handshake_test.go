package transport_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// A port limits three kinds of handshakes per address: those that fail, those with a certificate that the port does not
// accept, and those of a client that connects too often. Such handshakes do not block other clients, not even at the
// same address. Other handshakes are not limited.
func TestFailedHandshakesAreLimited(t *testing.T) {
	for name, role := range map[string]authority.Role{"TLS 1.2": authority.RoleAgent,
		"another role": authority.RoleOperator, "one agent again and again": authority.RoleAgent} {
		if testing.Short() && name != "another role" {
			continue // each takes six seconds
		}
		t.Run(name, func(t *testing.T) {
			c := transporttest.New(t)
			config := c.ClientTLS(certificateFor(t, c, role))
			config.NextProtos = []string{"h2"}
			if name == "TLS 1.2" {
				config.MinVersion, config.MaxVersion = tls.VersionTLS10, tls.VersionTLS12
			}
			inVain(t, c, config)
		})
	}
}

func inVain(t *testing.T, c *transporttest.Cluster, config *tls.Config) {
	addr, _ := serveAgents(t, c, authority.RoleAgent)
	connect := func(ctx context.Context) {
		conn, err := (&tls.Dialer{Config: config, NetDialer: &neighbour}).DialContext(ctx, "tcp", addr)
		if err == nil {
			_, _ = conn.Read(make([]byte, 1)) // wait until the server has checked the certificate
			_ = conn.Close()
		}
	}
	// comes measures how long n clients take to connect, one after the other. The test compares a limited address with
	// an unlimited one, because this machine may be slow.
	comes := func(what string, from *net.Dialer, n int) time.Duration {
		t.Helper()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		for range n {
			config := c.ClientTLS(certificateFor(t, c, authority.RoleAgent))
			conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(
				credentials.NewTLS(config)), grpc.WithNoProxy(), grpc.WithDisableRetry(),
				grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
					return from.DialContext(ctx, "tcp", addr)
				}))
			if err != nil {
				t.Fatal(err)
			}
			_, err = nstancev1.NewAgentServiceClient(conn).RenewCertificate(ctx,
				&nstancev1.AgentServiceRenewCertificateRequest{}, grpc.WaitForReady(true))
			if conn.Close(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		return time.Since(began)
	}
	const many = 150 // more than the limit of failed handshakes, which would take six seconds
	if unlimited, took := comes("from here", &net.Dialer{}, many), comes("before", &neighbour,
		many); took > 3*unlimited+4*time.Second {
		t.Errorf("%d took %s, want about %s as from an address without limits", many, took, unlimited)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var tries atomic.Int64
	began := time.Now()
	for range 40 {
		all.Go(func() {
			for ctx.Err() == nil {
				connect(ctx)
				tries.Add(1)
			}
		})
	}
	comes("beside them", &neighbour, 2)
	if _, err := renew(t, c.Dial(t, addr, certificateFor(t, c, authority.RoleAgent))); err != nil {
		t.Errorf("from elsewhere: %v", err)
	}
	<-time.After(5*time.Second - time.Since(began))
	// The limit is the sum of an initial burst (128), the failures of other clients at the address (40), and twenty
	// failures per second.
	if most := 128 + 40 + int64(20*time.Since(began).Seconds()); tries.Load() > most {
		t.Errorf("%d failed handshakes in %s, want at most %d", tries.Load(), time.Since(began), most)
	}
	cancel()
	all.Wait()
}

// Only the newest few connections with one certificate stay open.
func TestConnectionsOfOneClient(t *testing.T) {
	for role, want := range map[authority.Role]int{authority.RoleAgent: 4, authority.RoleOperator: 16} {
		c := transporttest.New(t)
		addr, w := serveAgents(t, c, role)
		cert, other := certificateFor(t, c, role), c.Dial(t, addr, certificateFor(t, c, role))
		if _, err := renew(t, other); err != nil {
			t.Fatal(err)
		}
		config := c.ClientTLS(cert)
		config.NextProtos = []string{"h2"}
		var raws []*transporttest.Raw
		for range want + 10 {
			raws = append(raws, (&port{addr: addr, config: config}).raw(t))
			if _, err := raws[len(raws)-1].ReadFrame(); err != nil { // the connection is established
				t.Fatal(err)
			}
		}
		for n, raw := range raws[:10] {
			if how := raw.End(10 * time.Second); how == "open" {
				t.Errorf("%s: connection %d of %d is still open", role, n, len(raws))
			}
		}
		for n, raw := range raws[10:] {
			if how := raw.End(20 * time.Millisecond); how != "open" {
				t.Errorf("%s: connection %d of %d is %s", role, n+10, len(raws), how)
			}
		}
		if _, err := renew(t, other); err != nil {
			t.Errorf("%s: another client: %v", role, err)
		}
		if last := w.peers[len(w.peers)-1]; w.peers[0] != last {
			t.Errorf("%s: the other client's connection was replaced too", role)
		}
	}
}

// A client that does not complete a registration is disconnected after a minute.
func TestSlowRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := transporttest.New(t)
		listener := bufconn.Listen(64 << 10)
		server := grpc.NewServer(transport.ServerOptions(c.Source, "", c.Log)...)
		nstancev1.RegisterAgentServiceServer(server, &who{})
		done := make(chan error, 1)
		go func() { done <- server.Serve(listener) }()
		defer func() {
			server.Stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		pipe, err := listener.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer pipe.Close()
		config := c.ClientTLS(nil)
		config.NextProtos = []string{"h2"}
		conn := tls.Client(pipe, config)
		raw, err := transporttest.NewRaw(conn)
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Call(1, submitKeys); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var slow sync.WaitGroup
		slow.Go(func() {
			// The client sends its message in small pieces. It also answers pings, so that the server keeps the
			// connection.
			for raw.Part(1, 10_000, []byte{1}) == nil && raw.WritePing(true, [8]byte{}) == nil {
				time.Sleep(5 * time.Second) // synctest time
			}
		})
		if how := raw.End(10 * time.Minute); how == "open" {
			t.Error("still there after ten minutes")
		}
		if took := time.Since(began); took > 80*time.Second || took < 50*time.Second {
			t.Errorf("ended after %s, want about a minute", took)
		}
		_ = conn.Close()
		slow.Wait()
	})
}

func sourceOf(t *testing.T, c *transporttest.Cluster, server string) *transport.Source {
	t.Helper()
	s, err := transport.NewSource(transport.Options{
		Identity: authority.Identity{Role: authority.RoleServer, Cluster: c.Name, Shard: "a", Server: server},
		Hosts:    []string{"127.0.0.1"},
		CA:       c.CA, Bundle: []*x509.Certificate{c.CA.Certificate()}, Rand: rand.Reader, Now: c.Clock.Now,
		Log: c.Log,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// certificateFor returns the certificate of a new agent or operator.
func certificateFor(t testing.TB, c *transporttest.Cluster, role authority.Role) *tls.Certificate {
	t.Helper()
	identity := authority.Identity{Role: role, Cluster: c.Name, Tenant: "prod", ID: c.NewID(t, "knd")}
	if role == authority.RoleOperator {
		identity.ID = c.NewID(t, "opr")
	}
	return c.Certificate(t, identity, transporttest.NewKey(t))
}

func certificateOf(t *testing.T, s *transport.Source) *tls.Certificate {
	t.Helper()
	cert, err := s.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// Thousands of unfinished handshakes from one address do not affect clients at other addresses.
func TestSlowHandshakesOfOneAddress(t *testing.T) {
	c := transporttest.New(t)
	addr, _ := serveAgents(t, c, authority.RoleAgent)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 66)}}
	for range 1500 { // more than the number of concurrent handshakes
		conn, err := dialer.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Write([]byte{22, 3, 1, 2, 0, 1}); err != nil { // the beginning of a handshake record
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // less than the timeout of a handshake
	defer cancel()
	conn := c.Dial(t, addr, c.Certificate(t, agentOf(c, t), transporttest.NewKey(t)))
	if _, err := nstancev1.NewAgentServiceClient(conn).RenewCertificate(ctx,
		&nstancev1.AgentServiceRenewCertificateRequest{}); err != nil {
		t.Errorf("from another address: %v", err)
	}
}

// The server works on after a client that is alone at its address has connected too often.
func TestLonelyClientConnectsTooOften(t *testing.T) {
	c := transporttest.New(t)
	addr, _ := serveAgents(t, c, authority.RoleAgent)
	config := c.ClientTLS(certificateFor(t, c, authority.RoleAgent))
	config.NextProtos = []string{"h2"}
	for range 30 { // a client may connect ten times at once, and then once a second
		conn, err := (&tls.Dialer{Config: config, NetDialer: &neighbour}).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Read(make([]byte, 1)) // wait until the server has checked the certificate
		_ = conn.Close()
	}
	if _, err := renew(t, c.Dial(t, addr, certificateFor(t, c, authority.RoleAgent))); err != nil {
		t.Error(err)
	}
}

// A client that disconnects before its first message is complete does not count against the limit of its address,
// because it used no CPU time. A client that only waits for the start of its handshake does not count either.
func TestAbortedHandshakesAreNotLimited(t *testing.T) {
	c := transporttest.New(t)
	addr, _ := serveAgents(t, c, authority.RoleAgent)
	for range 3 {
		var conns []net.Conn
		for range 100 {
			conn, err := neighbour.DialContext(t.Context(), "tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte{22, 3, 1, 2, 0, 1}); err != nil { // the beginning of a handshake record
				t.Fatal(err)
			}
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
	began := time.Now()
	config := c.ClientTLS(certificateFor(t, c, authority.RoleAgent))
	config.NextProtos = []string{"h2"}
	for range 10 {
		conn, err := (&tls.Dialer{Config: config, NetDialer: &neighbour}).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	// If the aborted handshakes counted, the address would have no free slot for a handshake for ten seconds.
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("ten handshakes took %s after 300 that were begun and left", took)
	}
}

// forgeIdentity returns a certificate that ca issues for the identity in the certificate `of`.
func forgeIdentity(t testing.TB, c *transporttest.Cluster, ca authority.CA, of *tls.Certificate) *tls.Certificate {
	t.Helper()
	identity, err := authority.ParseIdentity(of.Leaf)
	if err != nil {
		t.Fatal(err)
	}
	key := transporttest.NewKey(t)
	var leaf *x509.Certificate
	if identity.Role == authority.RoleServer {
		leaf, err = ca.IssueServer(authority.ServerSpec{Identity: identity, PublicKey: key.Public(),
			Hosts: []string{"127.0.0.1"}}, rand.Reader, c.Clock.Now())
	} else {
		leaf, err = ca.IssueClient(authority.ClientSpec{Identity: identity, PublicKey: transporttest.Public(key)},
			rand.Reader, c.Clock.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

// fileCertificate returns a certificate of ca, of the kind that instances get in their files.
func fileCertificate(t testing.TB, c *transporttest.Cluster, ca authority.CA) *tls.Certificate {
	t.Helper()
	key := transporttest.NewKey(t)
	leaf, err := ca.IssueInstance(authority.InstanceSpec{Kind: authority.KindClient,
		CommonName: c.NewID(t, "knd").String(), Organization: []string{"prod"}, TTL: time.Hour, PublicKey: key.Public(),
	}, rand.Reader, c.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

// No port accepts a certificate for a wrong role, tenant or cluster, even if the CA and the rest of the identity are
// right.
func TestNoPortTakesAnotherRole(t *testing.T) {
	c := transporttest.New(t)
	certs := map[authority.Role]*tls.Certificate{authority.RoleServer: certificateOf(t, c.Source),
		authority.RoleAgent:    certificateFor(t, c, authority.RoleAgent),
		authority.RoleOperator: certificateFor(t, c, authority.RoleOperator)}
	for port := range certs {
		addr, _ := serveAgents(t, c, port)
		for role, cert := range certs {
			_, err := renew(t, c.Dial(t, addr, cert))
			if role == port {
				wants(t, fmt.Sprintf("%s on its port", role), err, codes.OK, "")
			} else {
				wants(t, fmt.Sprintf("%s on the port of %s", role, port), err, codes.PermissionDenied,
					"this port is for the role "+string(port))
			}
		}
		// A certificate in an instance's file has no identity. No port accepts a certificate of the workload CA, not
		// even one with a forged identity.
		forged := forgeIdentity(t, c, c.WorkloadCA, certs[port])
		_, err := renew(t, c.Dial(t, addr, forged))
		wants(t, fmt.Sprintf("a forged %s of the workload CA on its port", port), err, codes.Unavailable,
			"bad certificate")
		for ca, want := range map[*authority.CA]codes.Code{&c.WorkloadCA: codes.Unavailable,
			&c.CA: codes.Unauthenticated} {
			_, err := renew(t, c.Dial(t, addr, fileCertificate(t, c, *ca)))
			wants(t, fmt.Sprintf("a file's certificate of %s on the port of %s", ca, port), err, want, "")
		}
		other := transporttest.New(t)
		foreign := certificateOf(t, other.Source)
		if port != authority.RoleServer {
			foreign = certificateFor(t, other, port)
		}
		_, err = renew(t, c.Dial(t, addr, foreign))
		wants(t, fmt.Sprintf("another CA on the port of %s", port), err, codes.Unavailable, "bad certificate")
		old := c.ClientTLS(certs[port])
		old.MinVersion, old.MaxVersion, old.NextProtos = tls.VersionTLS10, tls.VersionTLS12, []string{"h2"}
		dialer := tls.Dialer{Config: old}
		if conn, err := dialer.DialContext(t.Context(), "tcp", addr); err == nil {
			conn.Close()
			t.Errorf("TLS 1.2 on the port of %s: accepted", port)
		}
		_, err = renew(t, c.Dial(t, addr, nil))
		wants(t, fmt.Sprintf("no certificate on the port of %s", port), err, codes.Unavailable, "certificate")
	}
}
