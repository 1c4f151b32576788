package transport

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// FuzzPeer checks that the server accepts only client certificates that the CA issued. An accepted client must have the
// identity in its certificate.
func FuzzPeer(f *testing.F) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	must := func(err error) {
		f.Helper()
		if err != nil {
			f.Fatal(err)
		}
	}
	ca, err := authority.CreateCA("example", rand.Reader, now)
	must(err)
	source, err := NewSource(Options{
		Identity: authority.Identity{Role: authority.RoleServer, Cluster: "example", Shard: "a", Server: "one"},
		Hosts:    []string{"127.0.0.1"}, CA: ca,
		Bundle: []*x509.Certificate{ca.Certificate()}, Rand: rand.Reader, Now: func() time.Time {
			return now
		}, Log: slog.New(slog.DiscardHandler),
	})
	must(err)
	public, _, err := ed25519.GenerateKey(rand.Reader)
	must(err)
	id, err := ident.NewID("knd", now, rand.Reader)
	must(err)
	known := map[string]authority.Identity{}
	for _, cluster := range []string{"example", "elsewhere"} {
		who := authority.Identity{Role: authority.RoleAgent, Cluster: cluster, Tenant: "prod", ID: id}
		cert, err := ca.IssueClient(authority.ClientSpec{Identity: who, PublicKey: public}, rand.Reader, now)
		must(err)
		if cluster == "example" {
			known[string(cert.RawTBSCertificate)] = who
		}
		f.Add(cert.Raw)
	}
	server, err := source.Certificate()
	must(err)
	known[string(server.Leaf.RawTBSCertificate)] = source.options.Identity
	f.Add(server.Leaf.Raw)
	f.Add(ca.Certificate().Raw)
	f.Fuzz(func(t *testing.T, der []byte) {
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			return
		}
		chain := []*x509.Certificate{leaf}
		p := source.identify(tls.ConnectionState{PeerCertificates: chain})
		if want := known[string(leaf.RawTBSCertificate)]; p.Identity != want {
			t.Errorf("%x is taken for %s, want %s", der, p.Identity.URI(), want.URI())
		}
		if (p.Identity == authority.Identity{}) != (p.problem != nil) {
			t.Errorf("%x: %v beside %v", der, p.Identity, p.problem)
		}
		if _, err := source.verify(append(chain, leaf)); err == nil {
			t.Errorf("%x: two certificates are taken", der)
		}
	})
}
