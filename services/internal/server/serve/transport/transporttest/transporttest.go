// Package transporttest has test helpers: a cluster's certificate authority, and real TLS connections to the ports of
// its server.
package transporttest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
)

// Clock is a clock that tests set. It is safe for concurrent use.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// Now returns the time of the clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock forward.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Logs collects the log of a service, one line of text per record. It is safe for concurrent use.
type Logs struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *Logs) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// Logger returns a logger whose records are collected.
func (l *Logs) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Lines returns the lines that contain all of the given texts.
func (l *Logs) Lines(texts ...string) (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			lines = append(lines, line)
		}
	}
	return lines
}

// Cluster holds the CAs, the keys, the clock and the log of a test cluster with one server.
type Cluster struct {
	Name string
	CA   authority.CA
	// WorkloadCA signs the certificates in instances' files.
	WorkloadCA authority.CA
	NonceKey   authority.NonceKey
	Clock      *Clock
	Source     *transport.Source
	Log        *slog.Logger
}

// New returns a cluster "example" with the server "one" of shard "a" at the address 127.0.0.1.
func New(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{Name: "example", Clock: &Clock{now: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)},
		Log: slog.New(slog.DiscardHandler)}
	var err error
	if c.CA, err = authority.CreateCA(c.Name, rand.Reader, c.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	if c.WorkloadCA, err = authority.CreateWorkloadCA(c.Name, rand.Reader, c.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	if c.NonceKey, err = authority.CreateNonceKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	if c.Source, err = transport.NewSource(transport.Options{
		Identity: authority.Identity{Role: authority.RoleServer, Cluster: c.Name, Shard: "a", Server: "one"},
		Hosts:    []string{"127.0.0.1"}, CA: c.CA, Bundle: []*x509.Certificate{c.CA.Certificate()}, Rand: rand.Reader,
		Now: c.Clock.Now, Log: c.Log,
	}); err != nil {
		t.Fatal(err)
	}
	return c
}

// Issuer returns the issuer of client certificates.
func (c *Cluster) Issuer() transport.Issuer {
	return transport.Issuer{CA: c.CA, Bundle: authority.EncodeBundle(c.CA.Certificate()), Rand: rand.Reader,
		Now: c.Clock.Now}
}

// NewID returns a new ID.
func (c *Cluster) NewID(t testing.TB, prefix string) ident.ID {
	t.Helper()
	id, err := ident.NewID(prefix, c.Clock.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// NewKey returns a new key pair.
func NewKey(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Public returns the public key of a key pair.
func Public(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

// Certificate issues a client certificate, ready for TLS.
func (c *Cluster) Certificate(t testing.TB, identity authority.Identity, key ed25519.PrivateKey) *tls.Certificate {
	t.Helper()
	cert, _, err := c.Issuer().Issue(identity, Public(key))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// Serve serves one port on 127.0.0.1 until the test ends and returns its address.
func (c *Cluster) Serve(t testing.TB, role authority.Role, register func(*grpc.Server)) string {
	t.Helper()
	server := grpc.NewServer(transport.ServerOptions(c.Source, role, c.Log)...)
	register(server)
	var listening net.ListenConfig
	listener, err := listening.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// ClientTLS returns the TLS configuration of a client. certificate may be nil.
func (c *Cluster) ClientTLS(certificate *tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(c.CA.Certificate())
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "127.0.0.1", Time: c.Clock.Now}
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	return config
}

// Dial returns a connection to a port. It is closed when the test ends.
func (c *Cluster) Dial(t testing.TB, addr string, certificate *tls.Certificate,
	more ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{grpc.WithTransportCredentials(
		credentials.NewTLS(c.ClientTLS(certificate))),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithNoProxy()}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
