package transport_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// who is an AgentService that only returns the identity of its caller.
type who struct {
	nstancev1.UnimplementedAgentServiceServer
	mu    sync.Mutex
	peers []*transport.Peer
}

func (w *who) RenewCertificate(ctx context.Context, _ *nstancev1.AgentServiceRenewCertificateRequest) (
	*nstancev1.AgentServiceRenewCertificateResponse, error) {
	identity, err := transport.PeerIdentity(ctx)
	if err != nil {
		return nil, err
	}
	peer, err := transport.PeerOf(ctx)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.peers = append(w.peers, peer)
	w.mu.Unlock()
	return &nstancev1.AgentServiceRenewCertificateResponse{Certificate: []byte(identity.URI())}, nil
}

func (w *who) SubmitPublicKeys(ctx context.Context, req *nstancev1.SubmitPublicKeysRequest) (
	*nstancev1.SubmitPublicKeysResponse, error) {
	if req.GetInstanceId() == "panic" {
		panic("at the handler: " + req.GetInstanceId())
	}
	return &nstancev1.SubmitPublicKeysResponse{}, nil
}

func (w *who) ReceiveFiles(*nstancev1.ReceiveFilesRequest,
	grpc.ServerStreamingServer[nstancev1.ReceiveFilesResponse]) error {
	panic("in a stream")
}

func serveAgents(t testing.TB, c *transporttest.Cluster, role authority.Role) (string, *who) {
	w := &who{}
	return c.Serve(t, role, func(s *grpc.Server) { nstancev1.RegisterAgentServiceServer(s, w) }), w
}

func renew(t testing.TB, conn *grpc.ClientConn) (string, error) {
	t.Helper()
	resp, err := nstancev1.NewAgentServiceClient(conn).RenewCertificate(t.Context(),
		&nstancev1.AgentServiceRenewCertificateRequest{})
	return string(resp.GetCertificate()), err
}

func submit(t testing.TB, conn *grpc.ClientConn, id string) error {
	t.Helper()
	_, err := nstancev1.NewAgentServiceClient(conn).SubmitPublicKeys(t.Context(),
		&nstancev1.SubmitPublicKeysRequest{InstanceId: id})
	return err
}

func wants(t testing.TB, what string, err error, code codes.Code, message string) {
	t.Helper()
	if status.Code(err) != code || err != nil && !strings.Contains(err.Error(), message) {
		t.Errorf("%s: %v, want %s with %q", what, err, code, message)
	}
}

func agentOf(c *transporttest.Cluster, t testing.TB) authority.Identity {
	return authority.Identity{Role: authority.RoleAgent, Cluster: c.Name, Tenant: "prod", ID: c.NewID(t, "knd")}
}

func TestRoles(t *testing.T) {
	c := transporttest.New(t)
	agents, w := serveAgents(t, c, authority.RoleAgent)
	operators, _ := serveAgents(t, c, authority.RoleOperator)
	agent := agentOf(c, t)
	operator := authority.Identity{Role: authority.RoleOperator, Cluster: c.Name, Tenant: "prod", ID: c.NewID(t, "opr")}
	agentCert, operatorCert := c.Certificate(t, agent, transporttest.NewKey(t)),
		c.Certificate(t, operator, transporttest.NewKey(t))

	conn := c.Dial(t, agents, agentCert)
	for range 2 {
		if uri, err := renew(t, conn); err != nil || uri != agent.URI() {
			t.Errorf("agent: %q %v", uri, err)
		}
	}
	if uri, err := renew(t, c.Dial(t, agents, agentCert)); err != nil || uri != agent.URI() {
		t.Errorf("agent: %q %v", uri, err)
	}
	if len(w.peers) != 3 || w.peers[0] != w.peers[1] || w.peers[1].Number >= w.peers[2].Number || w.peers[0].Expired {
		t.Errorf("peers %v: want two of one connection and one of a later one", w.peers)
	}
	if !w.peers[0].PublicKey.Equal(agentCert.Leaf.PublicKey) {
		t.Error("another key")
	}
	if uri, err := renew(t, c.Dial(t, operators, operatorCert)); err != nil || uri != operator.URI() {
		t.Errorf("operator: %q %v", uri, err)
	}
	_, err := renew(t, c.Dial(t, operators, agentCert))
	wants(t, "an agent on the operator port", err, codes.PermissionDenied, "this port is for the role operator")
	_, err = renew(t, c.Dial(t, agents, operatorCert))
	wants(t, "an operator on the agent port", err, codes.PermissionDenied, "this port is for the role agent")
	_, err = renew(t, c.Dial(t, agents, nil))
	wants(t, "no certificate", err, codes.Unavailable, "certificate")

	// A server's certificate is valid for client authentication, but the agent port does not accept it.
	server, err := c.Source.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	_, err = renew(t, c.Dial(t, agents, server))
	wants(t, "a server on the agent port", err, codes.PermissionDenied, "role server")
}

func TestForeignCertificates(t *testing.T) {
	c, other := transporttest.New(t), transporttest.New(t)
	addr, _ := serveAgents(t, c, authority.RoleAgent)
	key := transporttest.NewKey(t)
	_, err := renew(t, c.Dial(t, addr, other.Certificate(t, agentOf(other, t), key)))
	wants(t, "another CA", err, codes.Unavailable, "bad certificate")

	// Another cluster may use the same CA, and instances get certificates of the CA in their files. The port must
	// refuse a certificate of the other cluster and one of an instance.
	foreign := agentOf(c, t)
	foreign.Cluster = "other"
	_, err = renew(t, c.Dial(t, addr, c.Certificate(t, foreign, key)))
	wants(t, "another cluster", err, codes.Unauthenticated, `of cluster "other", this is "example"`)
	leaf, err := c.CA.IssueInstance(authority.InstanceSpec{Kind: authority.KindClient,
		CommonName: c.NewID(t, "knd").String(), Organization: []string{"prod"},
		TTL: time.Hour, PublicKey: key.Public()}, rand.Reader, c.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	_, err = renew(t, c.Dial(t, addr, &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}))
	wants(t, "an instance's own certificate", err, codes.Unauthenticated, "URI")

	// A client refuses a server of another cluster.
	if _, err := renew(t, other.Dial(t, addr, other.Certificate(t, agentOf(other, t), key))); status.Code(
		err) != codes.Unavailable {
		t.Errorf("a client of another cluster: %v", err)
	}
}

func TestExpiredCertificates(t *testing.T) {
	c := transporttest.New(t)
	agents, w := serveAgents(t, c, authority.RoleAgent)
	operators, _ := serveAgents(t, c, authority.RoleOperator)
	agent := c.Certificate(t, agentOf(c, t), transporttest.NewKey(t))
	operator := c.Certificate(t, authority.Identity{Role: authority.RoleOperator, Cluster: c.Name, Tenant: "prod",
		ID: c.NewID(t, "opr")}, transporttest.NewKey(t))
	old := c.Dial(t, agents, agent)
	if err := submit(t, old, ""); err != nil {
		t.Fatal(err)
	}
	c.Clock.Advance(authority.AgentTTL + time.Hour)
	wants(t, "a connection made in time", submit(t, old, ""), codes.Unauthenticated, "expired at 2026-07-08T12:00:00Z")
	conn := c.Dial(t, agents, agent)
	wants(t, "expired", submit(t, conn, ""), codes.Unauthenticated, "expired at 2026-07-08T12:00:00Z")
	_, err := nstancev1.NewAgentServiceClient(conn).ReportHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := renew(t, conn); err != nil || !w.peers[0].Expired {
		t.Errorf("renewal of an expired certificate: %v", err)
	}
	c.Clock.Advance(transport.RenewalGrace - 2*time.Hour)
	if _, err := renew(t, c.Dial(t, agents, agent)); err != nil {
		t.Errorf("almost too late: %v", err)
	}
	_, err = renew(t, c.Dial(t, operators, operator))
	wants(t, "an expired operator", err, codes.Unauthenticated, "expired at")
	c.Clock.Advance(2 * time.Hour)
	// The handler refuses this renewal: see TestCertificateThatExpiredLongAgo in agentapi.
	tooLate := c.Dial(t, agents, agent)
	if _, err = renew(t, tooLate); err != nil || !w.peers[len(w.peers)-1].Expired {
		t.Errorf("too late: %v", err)
	}
	wants(t, "another call", submit(t, tooLate, ""), codes.Unauthenticated, "expired at")
	_, err = renew(t, c.Dial(t, operators, operator))
	wants(t, "an operator, too late", err, codes.Unauthenticated, "expired at")
}

func TestPanicsAreErrors(t *testing.T) {
	c := transporttest.New(t)
	addr, _ := serveAgents(t, c, authority.RoleAgent)
	conn := c.Dial(t, addr, c.Certificate(t, agentOf(c, t), transporttest.NewKey(t)))
	wants(t, "unary", submit(t, conn, "panic"), codes.Internal, "internal error")
	stream, err := nstancev1.NewAgentServiceClient(conn).ReceiveFiles(t.Context(), &nstancev1.ReceiveFilesRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	wants(t, "stream", err, codes.Internal, "internal error")
	if err := submit(t, conn, ""); err != nil {
		t.Errorf("after the panics: %v", err)
	}
}

func TestMessagesAreBounded(t *testing.T) {
	c := transporttest.New(t)
	agents, _ := serveAgents(t, c, authority.RoleAgent)
	conn := c.Dial(t, agents, c.Certificate(t, agentOf(c, t), transporttest.NewKey(t)))
	if err := submit(t, conn, strings.Repeat("x", 1<<20-100)); err != nil {
		t.Error(err)
	}
	wants(t, "agent", submit(t, conn, strings.Repeat("x", 1<<20)), codes.ResourceExhausted, "larger than max")
	registration, _ := serveAgents(t, c, "")
	wants(t, "registration", submit(t, c.Dial(t, registration, nil), strings.Repeat("x", 17<<10)),
		codes.ResourceExhausted, "larger than max")
	if err := submit(t, conn, ""); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Connections without a completed handshake do not block other clients.
func TestHalfOpenConnections(t *testing.T) {
	c := transporttest.New(t)
	addr, _ := serveAgents(t, c, authority.RoleAgent)
	cert := c.Certificate(t, agentOf(c, t), transporttest.NewKey(t))
	var dialer net.Dialer
	for n := range 600 {
		conn, err := dialer.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if n%3 == 0 { // the beginning of a handshake record
			if _, err := conn.Write([]byte{22, 3, 1, 2, 0, 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 5 {
		if _, err := renew(t, c.Dial(t, addr, cert)); err != nil {
			t.Error(err)
		}
	}
	// The server disconnects a client that sends plain HTTP instead of TLS.
	conn, err := dialer.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\n\r\n")
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 100)
	for {
		if _, err := conn.Read(buffer); err != nil {
			var netErr net.Error
			if errors.As(err, &netErr) && netErr.Timeout() {
				t.Error("the connection stays open")
			}
			break
		}
	}
}

func TestTLSVersionAndNames(t *testing.T) {
	c := transporttest.New(t)
	addr, _ := serveAgents(t, c, "")
	for name, change := range map[string]func(*tls.Config){
		"TLS 1.2": func(config *tls.Config) {
			config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		},
		"no HTTP/2":  func(config *tls.Config) { config.NextProtos = []string{"spdy/3"} },
		"other name": func(config *tls.Config) { config.ServerName = "127.0.0.2" },
	} {
		config := c.ClientTLS(nil)
		config.NextProtos = []string{"h2"}
		change(config)
		dialer := tls.Dialer{Config: config}
		if conn, err := dialer.DialContext(t.Context(), "tcp", addr); err == nil {
			conn.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestServerCertificate(t *testing.T) {
	c := transporttest.New(t)
	first, err := c.Source.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	if got := first.Leaf.NotAfter.Sub(c.Clock.Now()); got != authority.ServerTTL {
		t.Errorf("lasts %s", got)
	}
	c.Clock.Advance(authority.ServerTTL/2 - time.Second)
	if again, err := c.Source.Certificate(); err != nil || again != first {
		t.Errorf("renewed before half of its life (%v)", err)
	}
	c.Clock.Advance(2 * time.Second)
	second, err := c.Source.Certificate()
	if err != nil || second == first || !second.Leaf.NotAfter.After(first.Leaf.NotAfter) {
		t.Errorf("not renewed after half of its life (%v)", err)
	}
	// No certificate is valid for longer than its CA, and an expired CA issues none.
	end := c.CA.Certificate().NotAfter
	c.Clock.Advance(end.Sub(c.Clock.Now()) - time.Hour)
	last, err := c.Source.Certificate()
	if err != nil || !last.Leaf.NotAfter.Equal(end) {
		t.Fatalf("%v", err)
	}
	c.Clock.Advance(2 * time.Hour)
	if _, err := c.Source.Certificate(); err == nil {
		t.Error("a certificate after the CA's end")
	}
}

// A new CA is added before the old one is removed, without a restart.
func TestNewCA(t *testing.T) {
	c := transporttest.New(t)
	addr, _ := serveAgents(t, c, authority.RoleAgent)
	identity, key := agentOf(c, t), transporttest.NewKey(t)
	oldCert := c.Certificate(t, identity, key)
	newCA, err := authority.CreateCA(c.Name, rand.Reader, c.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	oldCA := c.CA
	if err := c.Source.SetCA(newCA, []*x509.Certificate{newCA.Certificate(), oldCA.Certificate()}); err != nil {
		t.Fatal(err)
	}
	c.CA = newCA // clients trust the new CA
	newCert := c.Certificate(t, identity, key)
	for name, cert := range map[string]*tls.Certificate{"old": oldCert, "new": newCert} {
		if _, err := renew(t, c.Dial(t, addr, cert)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Source.SetCA(newCA, []*x509.Certificate{newCA.Certificate()}); err != nil {
		t.Fatal(err)
	}
	if _, err := renew(t, c.Dial(t, addr, oldCert)); err == nil {
		t.Error("the old CA is still trusted")
	}
}

func TestReissue(t *testing.T) {
	c := transporttest.New(t)
	for _, identity := range []authority.Identity{agentOf(c, t), {Role: authority.RoleOperator, Cluster: c.Name,
		Tenant: "prod", ID: c.NewID(t, "opr")}} {
		key := transporttest.Public(transporttest.NewKey(t))
		first, ref, err := c.Issuer().Issue(identity, key)
		if err != nil {
			t.Fatal(err)
		}
		life := first.NotAfter.Sub(c.Clock.Now())
		c.Clock.Advance(life/2 - time.Hour)
		again, ok := c.Issuer().Reissue(identity, key, ref)
		if !ok || !again.Equal(first) {
			t.Errorf("%s: not the same certificate again", identity.Role)
		}
		other, ok := c.Issuer().Reissue(identity, transporttest.Public(transporttest.NewKey(t)), ref)
		if ok && other.PublicKey.(ed25519.PublicKey).Equal(key) {
			t.Error("the certificate is for a key that was not asked for")
		}
		c.Clock.Advance(2 * time.Hour)
		if _, ok := c.Issuer().Reissue(identity, key, ref); ok {
			t.Errorf("%s: again in the second half of its life", identity.Role)
		}
		if _, ok := c.Issuer().Reissue(identity, key, record.CertificateRef{Serial: "xyz",
			NotAfter: c.Clock.Now().Add(life)}); ok {
			t.Error("again without a serial")
		}
	}
}

func BenchmarkHandshake(b *testing.B) {
	c := transporttest.New(b)
	addr, _ := serveAgents(b, c, authority.RoleAgent)
	config := c.ClientTLS(c.Certificate(b, agentOf(c, b), transporttest.NewKey(b)))
	config.NextProtos = []string{"h2"}
	dialer := tls.Dialer{Config: config}
	for b.Loop() {
		conn, err := dialer.DialContext(b.Context(), "tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		conn.Close()
	}
}
