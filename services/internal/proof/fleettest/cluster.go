// Package fleettest provides a cluster for tests of nstance-admin: servers of shards on this machine. They use real
// mutual TLS and serve an operator API with state in memory.
//
// Invariant: the package fakes only the decisions of a leader. Connections, certificates, and messages are real.
package fleettest

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
)

// Now is the time of all clocks in the tests.
var Now = time.Date(2026, 7, 28, 10, 0, 0, 0, time.UTC)

// Clock returns Now.
func Clock() time.Time { return Now }

// Rand returns a source of the same bytes in every run. It is safe for concurrent use.
func Rand(seed byte) io.Reader { return &reader{from: rand.NewChaCha8([32]byte{seed})} }

type reader struct {
	mu   sync.Mutex
	from io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.from.Read(p)
}

// Cluster is a CA that issues the certificates of servers and operators.
type Cluster struct {
	ID   string
	CA   authority.CA
	rand io.Reader
}

// NewCluster creates the CA of a cluster.
func NewCluster(t testing.TB, id string) *Cluster {
	t.Helper()
	random := Rand(1)
	ca, err := authority.CreateCA(id, random, Now.AddDate(0, -3, 0))
	if err != nil {
		t.Fatal(err)
	}
	return &Cluster{ID: id, CA: ca, rand: random}
}

// Identity writes the identity of a tenant's operator to a new directory and returns the directory's path. The
// certificate is valid for ttl from the time `issued`.
func (c *Cluster) Identity(t testing.TB, tenant string, issued time.Time, ttl time.Duration) string {
	t.Helper()
	id, err := ident.NewID(ident.OperatorPrefix, Now, c.rand)
	if err != nil {
		t.Fatal(err)
	}
	return c.Write(t, authority.Identity{Role: authority.RoleOperator, Cluster: c.ID, Tenant: tenant, ID: id}, issued,
		ttl)
}

// Write writes the identity directory of a client with the given identity, and returns the directory's path.
func (c *Cluster) Write(t testing.TB, who authority.Identity, issued time.Time, ttl time.Duration) string {
	t.Helper()
	key := ed25519.NewKeyFromSeed(append(make([]byte, 31), 7))
	cert, err := c.CA.IssueClient(authority.ClientSpec{Identity: who, PublicKey: key.Public().(ed25519.PublicKey),
		TTL: ttl}, c.rand, issued)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"ca.crt":       authority.EncodeBundle(c.CA.Certificate()),
		"identity.crt": authority.EncodeCertificate(cert),
		"identity.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Serve starts a server of a shard with an operator API and returns its address. The server ends with the test, or when
// stop is called.
func (c *Cluster) Serve(t testing.TB, shard string, api nstancev1.OperatorServiceServer, hosts ...string) (addr string,
	stop func()) {
	t.Helper()
	return c.serve(t, shard, authority.RoleOperator, func(g *grpc.Server) {
		nstancev1.RegisterOperatorServiceServer(g, api)
	}, api, hosts)
}

// ServePort starts a port of a server without an API, for clients with a role. The role is empty for the registration
// port. The port is closed when the test ends.
func (c *Cluster) ServePort(t testing.TB, shard string, role authority.Role) (addr string) {
	t.Helper()
	addr, _ = c.serve(t, shard, role, func(*grpc.Server) {}, nil, nil)
	return addr
}

func (c *Cluster) serve(t testing.TB, shard string, role authority.Role, register func(*grpc.Server), api any,
	hosts []string) (addr string, stop func()) {
	t.Helper()
	if len(hosts) == 0 {
		hosts = []string{"127.0.0.1"}
	}
	source, err := transport.NewSource(transport.Options{
		Identity: authority.Identity{Role: authority.RoleServer, Cluster: c.ID, Shard: shard, Server: shard +
			"-server"},
		Hosts: hosts, CA: c.CA, Bundle: []*x509.Certificate{c.CA.Certificate()}, Rand: c.rand, Now: Clock,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	options := transport.ServerOptions(source, role, slog.New(slog.DiscardHandler))
	if shard, ok := api.(*Shard); ok {
		options = append(options, grpc.ChainUnaryInterceptor(shard.intercept))
	}
	server := grpc.NewServer(options...)
	register(server)
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) }) // ends with Stop
	stop = sync.OnceFunc(func() {
		server.Stop()
		wg.Wait()
	})
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}
