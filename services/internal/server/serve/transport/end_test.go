package transport_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// pipes is a listener in memory, because a connection over the network does not work in a synctest bubble.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accept:
		return conn, nil
	case <-p.closed:
		return nil, errors.New("closed")
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// streaming is an AgentService with streams that end only with their connection.
type streaming struct {
	who
	ended chan time.Time
}

func (s *streaming) ReceiveFiles(_ *nstancev1.ReceiveFilesRequest,
	stream grpc.ServerStreamingServer[nstancev1.ReceiveFilesResponse]) error {
	<-stream.Context().Done()
	s.ended <- time.Now()
	return stream.Context().Err()
}

// TestConnectionEndsWithItsCertificate checks for each role that a stream ends in the same second in which the client
// certificate expires.
func TestConnectionEndsWithItsCertificate(t *testing.T) {
	for _, role := range []authority.Role{authority.RoleAgent, authority.RoleOperator, authority.RoleServer} {
		t.Run(string(role), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testConnectionEnds(t, role) })
		})
	}
}

func testConnectionEnds(t *testing.T, role authority.Role) {
	ca, err := authority.CreateCA("example", rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	source, err := transport.NewSource(transport.Options{
		Identity: authority.Identity{Role: authority.RoleServer, Cluster: "example", Shard: "a", Server: "s1"},
		Hosts:    []string{"server"}, CA: ca, Bundle: []*x509.Certificate{ca.Certificate()}, Rand: rand.Reader,
		Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	const life = 36 * time.Hour
	key := transporttest.NewKey(t)
	who := authority.Identity{Role: role, Cluster: "example"}
	var leaf *x509.Certificate
	if role == authority.RoleServer {
		who.Shard, who.Server = "a", "s2"
		leaf, err = ca.IssueServer(authority.ServerSpec{Identity: who, PublicKey: key.Public(), TTL: life}, rand.Reader,
			time.Now())
	} else {
		prefix := map[authority.Role]string{authority.RoleAgent: "knd", authority.RoleOperator: ident.OperatorPrefix}
		who.Tenant = "prod"
		if who.ID, err = ident.NewID(prefix[role], time.Now(), rand.Reader); err != nil {
			t.Fatal(err)
		}
		leaf, err = ca.IssueClient(authority.ClientSpec{Identity: who, PublicKey: transporttest.Public(key), TTL: life},
			rand.Reader, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}

	listener := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
	server := grpc.NewServer(transport.ServerOptions(source, role, slog.New(slog.DiscardHandler))...)
	service := &streaming{ended: make(chan time.Time, 1)}
	nstancev1.RegisterAgentServiceServer(server, service)
	go func() { _ = server.Serve(listener) }() // returns when the server stops
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:///server", grpc.WithIdleTimeout(0),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			near, far := net.Pipe()
			listener.accept <- far
			return near, nil
		}),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, ServerName: "server",
			RootCAs:      authority.NewPool([]*x509.Certificate{ca.Certificate()}),
			Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}}})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := nstancev1.NewAgentServiceClient(conn).ReceiveFiles(t.Context(), &nstancev1.ReceiveFilesRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	wants(t, "the stream at the end of the certificate", err, codes.Unavailable, "")
	if at := <-service.ended; at.Before(leaf.NotAfter) || at.After(leaf.NotAfter.Add(time.Second)) {
		t.Errorf("the stream ended at %s, the certificate at %s", at, leaf.NotAfter)
	}
}
