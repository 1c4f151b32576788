package server

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// TestHostileWorkloadCA checks that no port of a leader accepts a client certificate that the workload CA has signed.
// The certificate may even name an agent, an operator or a server.
func TestHostileWorkloadCA(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	p := r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	ca, err := p.server.state.LoadCA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	workloadCA, created, err := p.server.state.EnsureWorkloadCA(t.Context(), ca)
	if err != nil || created {
		t.Fatalf("the leader made no workload CA: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate())
	newID := func(prefix string) ident.ID {
		id, err := ident.NewID(prefix, time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	for name, port := range map[string]struct {
		addr     string
		identity authority.Identity
	}{
		"election": {r.ports[1], authority.Identity{Role: authority.RoleServer, Cluster: "test", Shard: "a",
			Server: "other"}},
		"operators": {r.ports[3], authority.Identity{Role: authority.RoleOperator, Cluster: "test", Tenant: "default",
			ID: newID("opr")}},
		"agents": {r.ports[4], authority.Identity{Role: authority.RoleAgent, Cluster: "test", Tenant: "default",
			ID: newID("tst")}},
	} {
		for issuer, ca := range map[string]authority.CA{"cluster": ca, "workload": workloadCA[0]} {
			key := transporttest.NewKey(t)
			var leaf *x509.Certificate
			if port.identity.Role == authority.RoleServer {
				leaf, err = ca.IssueServer(authority.ServerSpec{Identity: port.identity, PublicKey: key.Public()},
					rand.Reader, time.Now())
			} else {
				leaf, err = ca.IssueClient(authority.ClientSpec{Identity: port.identity,
					PublicKey: transporttest.Public(key)}, rand.Reader, time.Now())
			}
			if err != nil {
				t.Fatal(err)
			}
			conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: "127.0.0.1",
				NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13,
				Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}},
			}}).DialContext(t.Context(), "tcp", port.addr)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			// In TLS 1.3, the server verifies the client after the client's handshake is done, so the first read gets
			// the error.
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
			switch refused := err != nil && strings.Contains(err.Error(), "certificate"); {
			case issuer == "cluster" && err != nil:
				t.Errorf("%s: a certificate of the cluster's CA: %v", name, err)
			case issuer == "workload" && !refused:
				t.Errorf("%s: a certificate of the workload CA: %v, want a refusal", name, err)
			}
		}
	}
}
