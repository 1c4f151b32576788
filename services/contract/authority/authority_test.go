package authority_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

var update = flag.Bool("update", false, "write the golden documents again")

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// random returns a reader of bytes. The bytes depend only on the seed.
func random(seed byte) io.Reader { return rand.NewChaCha8([32]byte{seed}) }

func golden(t *testing.T, name string, got []byte) []byte {
	t.Helper()
	path := filepath.Join("..", "testdata", "v1", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-golden +now):\n%s", name, diff)
	}
	return want
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newCA(t testing.TB) authority.CA {
	t.Helper()
	return must[authority.CA](t)(authority.CreateCA("example", random(1), t0))
}

func key(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32))
}

func public(seed byte) ed25519.PublicKey { return key(seed).Public().(ed25519.PublicKey) }

func agent(t testing.TB) authority.Identity {
	id := must[ident.ID](t)(ident.ParseID("acc06bgm7733st2576nx5jht4ecjw"))
	return authority.Identity{Role: authority.RoleAgent, Cluster: "example", Tenant: "prod", ID: id}
}

func operator(t testing.TB) authority.Identity {
	id := must[ident.ID](t)(ident.ParseID("opr06bgm7733st2576nx5jht4ecjw"))
	return authority.Identity{Role: authority.RoleOperator, Cluster: "example", Tenant: "prod", ID: id}
}

func server() authority.Identity {
	return authority.Identity{Role: authority.RoleServer, Cluster: "example", Shard: "us-west-2a",
		Server: "i-0123456789abcdef0"}
}

func pool(ca authority.CA) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(ca.Certificate())
	return p
}

// issued returns one certificate of each kind, by the name of its kind.
func issued(t testing.TB, ca authority.CA) map[string]*x509.Certificate {
	cert := must[*x509.Certificate](t)
	return map[string]*x509.Certificate{
		"agent": cert(ca.IssueClient(authority.ClientSpec{Identity: agent(t), PublicKey: public(1)}, random(2), t0)),
		"operator": cert(ca.IssueClient(authority.ClientSpec{Identity: operator(t), PublicKey: public(1)}, random(3),
			t0)),
		"server": cert(ca.IssueServer(authority.ServerSpec{
			Identity: server(), PublicKey: public(1), Hosts: []string{"10.0.0.100", "2001:db8::1", "leader.internal",
				"10.0.0.100"},
		}, random(4), t0)),
		"instance": cert(ca.IssueInstance(authority.InstanceSpec{
			Kind: authority.KindServer, CommonName: "kubelet", Organization: []string{"system:nodes", ""},
			Country: []string{"DE"},
			DNS:     []string{"node-1.example.com", "*.node-1.example.com", ""}, IP: []string{"10.0.0.7", ""},
			URI: []string{"https://example.com/x"},
			TTL: 8760 * time.Hour, PublicKey: public(1),
		}, random(5), t0)),
	}
}

func TestGolden(t *testing.T) {
	ca := newCA(t)
	secret := must[[]byte](t)(ca.MarshalSecret())
	again := must[authority.CA](t)(authority.ParseCA(golden(t, "ca.key", secret)))
	if !again.Certificate().Equal(ca.Certificate()) {
		t.Error("ca.key holds another certificate")
	}
	certs := must[[]*x509.Certificate](t)(authority.ParseBundle(golden(t, "ca.crt",
		authority.EncodeBundle(ca.Certificate()))))
	if len(certs) != 1 || !certs[0].Equal(ca.Certificate()) {
		t.Error("ca.crt holds another certificate")
	}
	for name, cert := range issued(t, ca) {
		golden(t, name+".crt", authority.EncodeCertificate(cert))
	}
	key := must[authority.NonceKey](t)(authority.CreateNonceKey(random(6)))
	secret = must[[]byte](t)(key.MarshalSecret())
	parsed := must[authority.NonceKey](t)(authority.ParseNonceKey(golden(t, "registration-nonce.key", secret)))
	if !parsed.Public().Equal(key.Public()) {
		t.Error("registration-nonce.key holds another key")
	}
	for name, spec := range map[string]authority.NonceSpec{"agent": agentNonce(t), "operator": operatorNonce()} {
		nonce, claims, err := authority.MintNonce(key, spec, random(7), t0)
		if err != nil {
			t.Fatal(err)
		}
		text := golden(t, "nonce-"+name+".jwt", []byte(nonce.Reveal()))
		got, err := authority.ParseNonce(parsed.Accepted(), "example", string(text), t0, false)
		if err != nil || got != claims {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, claims)
		}
	}
}

func TestCreateWorkloadCA(t *testing.T) {
	start := t0.Add(24 * time.Hour)
	ca := must[authority.CA](t)(authority.CreateWorkloadCA("example", random(9), start))
	cert := ca.Certificate()
	if cert.Subject.CommonName != "example workloads" || len(cert.URIs) > 0 || !ca.Starts().Equal(start) {
		t.Errorf("workload CA: %v, URIs %v, starts %s", cert.Subject, cert.URIs, ca.Starts())
	}
	if ca.SignsDocuments() {
		t.Error("it may sign documents")
	}
	spec := authority.InstanceSpec{Kind: authority.KindServer, CommonName: "x", TTL: time.Hour, PublicKey: public(1)}
	if _, err := ca.IssueInstance(spec, random(1), t0); !errors.Is(err, authority.ErrCAValidity) {
		t.Errorf("before its start: %v", err)
	}
	if _, err := ca.IssueInstance(spec, random(1), ca.Starts()); err != nil {
		t.Errorf("at its start: %v", err)
	}
	if err := ca.CheckWorkload("example"); err != nil {
		t.Error(err)
	}
	if err := ca.CheckWorkload("other"); err == nil {
		t.Error("a workload CA of another cluster passes")
	}
	if err := newCA(t).CheckWorkload("example"); err == nil {
		t.Error("the cluster's CA passes as workload CA")
	}
}

func TestCreateCA(t *testing.T) {
	cert := newCA(t).Certificate()
	if !cert.IsCA || cert.MaxPathLen != 0 || !cert.MaxPathLenZero || cert.PublicKeyAlgorithm != x509.Ed25519 ||
		cert.Subject.CommonName != "example" {
		t.Errorf("CA: %+v", cert)
	}
	if got := cert.NotAfter; !got.Equal(time.Date(2036, 1, 2, 3, 4, 5, 0, time.UTC)) {
		t.Error("ends", got)
	}
	if err := newCA(t).CheckCluster("example"); err != nil {
		t.Error(err)
	}
	if err := newCA(t).CheckCluster("other"); err == nil {
		t.Error("it is of another cluster, too")
	}
	if _, err := authority.CreateCA("No", random(1), t0); err == nil {
		t.Error("a bad cluster name passes")
	}
	if _, err := authority.CreateCA("example", bytes.NewReader(make([]byte, 40)), t0); err == nil {
		t.Error("half a serial number passes")
	}
}

func TestIssuedCertificatesVerify(t *testing.T) {
	ca := newCA(t)
	certs := issued(t, ca)
	certs["client"] = must[*x509.Certificate](t)(ca.IssueInstance(authority.InstanceSpec{Kind: authority.KindClient,
		CommonName: "etcd", URI: []string{"https://example.com/~x"}, TTL: time.Hour, PublicKey: public(1)}, random(6),
		t0))
	client, serve := x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	for name, want := range map[string]struct {
		usages  map[x509.ExtKeyUsage]bool
		ttl     time.Duration
		subject string
	}{
		"agent": {map[x509.ExtKeyUsage]bool{client: true, serve: false}, 7 * 24 * time.Hour,
			"CN=acc06bgm7733st2576nx5jht4ecjw,O=prod"},
		"operator": {map[x509.ExtKeyUsage]bool{client: true, serve: false}, 30 * 24 * time.Hour,
			"CN=opr06bgm7733st2576nx5jht4ecjw,O=prod"},
		"server": {map[x509.ExtKeyUsage]bool{client: true, serve: true}, 24 * time.Hour, "CN=i-0123456789abcdef0"},
		"instance": {map[x509.ExtKeyUsage]bool{client: false, serve: true}, 8760 * time.Hour,
			"CN=kubelet,O=system:nodes,C=DE"},
		"client": {map[x509.ExtKeyUsage]bool{client: true, serve: false}, time.Hour, "CN=etcd"},
	} {
		cert := certs[name]
		for usage, ok := range want.usages {
			_, err := cert.Verify(x509.VerifyOptions{Roots: pool(ca), CurrentTime: t0,
				KeyUsages: []x509.ExtKeyUsage{usage}})
			if (err == nil) != ok {
				t.Errorf("%s, usage %d: %v", name, usage, err)
			}
		}
		if !cert.NotBefore.Equal(t0.Add(-5*time.Minute)) || !cert.NotAfter.Equal(t0.Add(want.ttl)) {
			t.Errorf("%s: from %s to %s", name, cert.NotBefore, cert.NotAfter)
		}
		if got := cert.Subject.String(); got != want.subject {
			t.Errorf("%s: subject %s", name, got)
		}
		if len(authority.Serial(cert)) != 32 || cert.IsCA {
			t.Errorf("%s: serial %s, CA %v", name, authority.Serial(cert), cert.IsCA)
		}
	}
	const want = "spiffe://example/tenant/prod/agent/acc06bgm7733st2576nx5jht4ecjw"
	if got := certs["agent"].URIs[0].String(); got != want {
		t.Error("agent URI", got)
	}
	if got := certs["server"].URIs[0].String(); got != "spiffe://example/shard/us-west-2a/server/i-0123456789abcdef0" {
		t.Error("server URI", got)
	}
	for _, host := range []string{"10.0.0.100", "2001:db8::1", "leader.internal"} {
		if err := certs["server"].VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if n := len(certs["server"].IPAddresses); n != 2 {
		t.Error("addresses of the server:", n)
	}
	if err := certs["instance"].VerifyHostname("a.node-1.example.com"); err != nil {
		t.Error(err)
	}
}

func TestIssueWithinCA(t *testing.T) {
	ca := newCA(t)
	end := ca.Certificate().NotAfter
	cert, err := ca.IssueClient(authority.ClientSpec{Identity: agent(t), PublicKey: public(1)}, random(1),
		end.Add(-time.Hour))
	if err != nil || !cert.NotAfter.Equal(end) {
		t.Errorf("ends %v, %v, want with the CA", cert, err)
	}
	for _, now := range []time.Time{end.Add(time.Second), t0.Add(-time.Hour)} {
		if _, err := ca.IssueClient(authority.ClientSpec{Identity: agent(t), PublicKey: public(1)}, random(1),
			now); !errors.Is(err, authority.ErrCAValidity) {
			t.Errorf("at %s: %v", now, err)
		}
	}
	if _, err := (authority.CA{}).IssueClient(authority.ClientSpec{Identity: agent(t), PublicKey: public(1)}, random(1),
		t0); err == nil {
		t.Error("issued without a CA")
	}
}

func TestIssueRefuses(t *testing.T) {
	ca := newCA(t)
	p384 := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P384(), cryptorand.Reader))
	client := func(change func(*authority.ClientSpec)) error {
		spec := authority.ClientSpec{Identity: agent(t), PublicKey: public(1)}
		change(&spec)
		_, err := ca.IssueClient(spec, random(1), t0)
		return err
	}
	serve := func(change func(*authority.ServerSpec)) error {
		spec := authority.ServerSpec{Identity: server(), PublicKey: public(1), Hosts: []string{"10.0.0.1"}}
		change(&spec)
		_, err := ca.IssueServer(spec, random(1), t0)
		return err
	}
	instance := func(change func(*authority.InstanceSpec)) error {
		spec := authority.InstanceSpec{Kind: authority.KindServer, CommonName: "x", TTL: time.Hour,
			PublicKey: public(1)}
		change(&spec)
		_, err := ca.IssueInstance(spec, random(1), t0)
		return err
	}
	longest := strings.Repeat("a.", 126) + "a" // name of a host
	if err := errors.Join(client(func(*authority.ClientSpec) {}), serve(func(*authority.ServerSpec) {}),
		instance(func(*authority.InstanceSpec) {}), instance(func(s *authority.InstanceSpec) {
			s.CommonName, s.DNS = "", []string{longest}
		}), instance(func(s *authority.InstanceSpec) { s.TTL = time.Second })); err != nil {
		t.Fatal(err)
	}
	unknown := agent(t)
	if unknown.Role = "guest"; unknown.Validate() == nil {
		t.Error("an identity of an unknown role is valid")
	}
	for name, err := range map[string]error{
		"short key":        client(func(s *authority.ClientSpec) { s.PublicKey = s.PublicKey[1:] }),
		"client as server": client(func(s *authority.ClientSpec) { s.Identity = server() }),
		"no tenant":        client(func(s *authority.ClientSpec) { s.Identity.Tenant = "" }),
		"operator's ID":    client(func(s *authority.ClientSpec) { s.Identity.ID = operator(t).ID }),
		"no ID":            client(func(s *authority.ClientSpec) { s.Identity.ID = ident.ID{} }),
		"negative ttl":     client(func(s *authority.ClientSpec) { s.TTL = -time.Hour }),
		"server as client": serve(func(s *authority.ServerSpec) { s.Identity = agent(t) }),
		"server ID":        serve(func(s *authority.ServerSpec) { s.Identity.Server = "a/b" }),
		"dotted server":    serve(func(s *authority.ServerSpec) { s.Identity.Server = ".." }),
		"server's tenant":  serve(func(s *authority.ServerSpec) { s.Identity.Tenant = "prod" }),
		"server's own ID":  serve(func(s *authority.ServerSpec) { s.Identity.ID = agent(t).ID }),
		"server's shard":   serve(func(s *authority.ServerSpec) { s.Identity.Shard = "" }),
		"agent's shard":    client(func(s *authority.ClientSpec) { s.Identity.Shard = "a" }),
		"host":             serve(func(s *authority.ServerSpec) { s.Hosts = []string{"a b"} }),
		"P-384":            serve(func(s *authority.ServerSpec) { s.PublicKey = p384.Public() }),
		"kind":             instance(func(s *authority.InstanceSpec) { s.Kind = "ca" }),
		"no name":          instance(func(s *authority.InstanceSpec) { s.CommonName = "" }),
		"long cn":          instance(func(s *authority.InstanceSpec) { s.CommonName = strings.Repeat("x", 65) }),
		"control":          instance(func(s *authority.InstanceSpec) { s.CommonName = "a\nb" }),
		"country":          instance(func(s *authority.InstanceSpec) { s.Country = []string{"Germany"} }),
		"dns":              instance(func(s *authority.InstanceSpec) { s.DNS = []string{"a..b"} }),
		"ip":               instance(func(s *authority.InstanceSpec) { s.IP = []string{"10.0.0"} }),
		"long dns":         instance(func(s *authority.InstanceSpec) { s.DNS = []string{longest + "a"} }),
		"ip with a zone":   instance(func(s *authority.InstanceSpec) { s.IP = []string{"fe80::1%eth0"} }),
		"uri with é":       instance(func(s *authority.InstanceSpec) { s.URI = []string{"https://example.com/é"} }),
		"malformed uri":    instance(func(s *authority.InstanceSpec) { s.URI = []string{"http://[::1"} }),
		"relative uri":     instance(func(s *authority.InstanceSpec) { s.URI = []string{"x/y"} }),
		"spiffe uri":       instance(func(s *authority.InstanceSpec) { s.URI = []string{agent(t).URI()} }),
		"spelt spiffe": instance(func(s *authority.InstanceSpec) {
			s.URI = []string{"SPIFFE://example/shard/a/server/b"}
		}),
		"no ttl":           instance(func(s *authority.InstanceSpec) { s.TTL = 0 }),
		"no key":           instance(func(s *authority.InstanceSpec) { s.PublicKey = nil }),
		"no key (typed)":   instance(func(s *authority.InstanceSpec) { s.PublicKey = (*ecdsa.PublicKey)(nil) }),
		"an untyped P-384": instance(func(s *authority.InstanceSpec) { s.PublicKey = p384.Public() }),
		"no randomness": func() error {
			_, err := ca.IssueInstance(authority.InstanceSpec{Kind: "client", CommonName: "x", TTL: time.Hour,
				PublicKey: public(1)}, bytes.NewReader(nil), t0)
			return err
		}(),
		"zeros for a serial": func() error {
			_, err := ca.IssueInstance(authority.InstanceSpec{Kind: "client", CommonName: "x", TTL: time.Hour,
				PublicKey: public(1)}, bytes.NewReader(make([]byte, 16)), t0)
			return err
		}(),
	} {
		if err == nil {
			t.Errorf("%s: issued", name)
		}
	}
}

func TestParseIdentity(t *testing.T) {
	certs := issued(t, newCA(t))
	for name, want := range map[string]authority.Identity{"agent": agent(t), "operator": operator(t),
		"server": server()} {
		got, err := authority.ParseIdentity(certs[name])
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, err := authority.ParseIdentity(certs["instance"]); err == nil {
		t.Errorf("a template's certificate is %+v", got)
	}
	if got, err := authority.ParseIdentity(newCA(t).Certificate()); err == nil {
		t.Errorf("the CA is %+v", got)
	}
}

// TestParseIdentityRefuses checks that ParseIdentity refuses every certificate that differs in form from those of
// IssueClient and IssueServer. The CA's key may have signed such certificates.
func TestParseIdentityRefuses(t *testing.T) {
	parent, signer := &x509.Certificate{Subject: pkix.Name{CommonName: "example"}}, key(1)
	build := func(base authority.Identity, change func(*x509.Certificate)) *x509.Certificate {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), NotBefore: t0, NotAfter: t0.Add(time.Hour),
			KeyUsage:              x509.KeyUsageDigitalSignature,
			BasicConstraintsValid: true, URIs: []*url.URL{must[*url.URL](t)(url.Parse(base.URI()))},
		}
		if base.Role == authority.RoleServer {
			template.Subject = pkix.Name{CommonName: base.Server}
			template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		} else {
			template.Subject = pkix.Name{CommonName: base.ID.String(), Organization: []string{base.Tenant}}
			template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		}
		change(template)
		der := must[[]byte](t)(x509.CreateCertificate(random(1), template, parent, public(2), signer))
		return must[*x509.Certificate](t)(x509.ParseCertificate(der))
	}
	uri := func(text string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.URIs = []*url.URL{must[*url.URL](t)(url.Parse(text))} }
	}
	for _, base := range []authority.Identity{agent(t), operator(t), server()} {
		if _, err := authority.ParseIdentity(build(base, func(*x509.Certificate) {})); err != nil {
			t.Fatal(err)
		}
		other := base
		other.Cluster = "elsewhere"
		for name, change := range map[string]func(*x509.Certificate){
			"no URI": func(c *x509.Certificate) { c.URIs = nil },
			"two URIs": func(c *x509.Certificate) {
				c.URIs = append(c.URIs, must[*url.URL](t)(url.Parse(other.URI())))
			},
			"scheme":       uri(strings.Replace(base.URI(), "spiffe", "https", 1)),
			"query":        uri(base.URI() + "?x"),
			"empty query":  uri(base.URI() + "?"),
			"fragment":     uri(base.URI() + "#x"),
			"slash":        uri(base.URI() + "/"),
			"port":         uri(strings.Replace(base.URI(), "example", "example:1", 1)),
			"user":         uri(strings.Replace(base.URI(), "example", "me@example", 1)),
			"escape":       uri(strings.Replace(base.URI(), "/us-west", "/%75s-west", 1) + "%20"),
			"no cluster":   uri(strings.Replace(base.URI(), "example", "", 1)),
			"other ID":     func(c *x509.Certificate) { c.Subject.CommonName += "x" },
			"other tenant": func(c *x509.Certificate) { c.Subject.Organization = []string{"dev"} },
			"two tenants":  func(c *x509.Certificate) { c.Subject.Organization = []string{"prod", "dev"} },
			"unit":         func(c *x509.Certificate) { c.Subject.OrganizationalUnit = []string{"x"} },
			"second CN": func(c *x509.Certificate) {
				c.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: []int{2, 5, 4, 3}, Value: "x"},
					{Type: []int{2, 5, 4, 3}, Value: c.Subject.CommonName}}
			},
			"mail":    func(c *x509.Certificate) { c.EmailAddresses = []string{"a@b"} },
			"usages":  func(c *x509.Certificate) { c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageCodeSigning) },
			"any":     func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} },
			"none":    func(c *x509.Certificate) { c.ExtKeyUsage = nil },
			"CA":      func(c *x509.Certificate) { c.IsCA = true; c.KeyUsage |= x509.KeyUsageCertSign },
			"encrypt": func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageKeyEncipherment },
		} {
			if got, err := authority.ParseIdentity(build(base, change)); err == nil {
				t.Errorf("%s with %s is %+v", base.Role, name, got)
			}
		}
	}
	// Roles cannot be exchanged.
	for name, cert := range map[string]*x509.Certificate{
		"agent with server URI": build(agent(t), uri(server().URI())),
		"agent as operator":     build(agent(t), uri(strings.Replace(agent(t).URI(), "/agent/", "/operator/", 1))),
		"operator as agent": build(operator(t), uri(strings.Replace(operator(t).URI(), "/operator/", "/agent/",
			1))),
		"agent as server":       build(agent(t), uri(strings.Replace(agent(t).URI(), "/agent/", "/server/", 1))),
		"agent in a team":       build(agent(t), uri(strings.Replace(agent(t).URI(), "/tenant/", "/team/", 1))),
		"server under a tenant": build(server(), uri(strings.Replace(server().URI(), "/shard/", "/tenant/", 1))),
		"agent with a name":     build(agent(t), func(c *x509.Certificate) { c.DNSNames = []string{"x"} }),
		"agent that serves": build(agent(t), func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		}),
		"server that only serves": build(server(), func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }),
		"server with a tenant": build(server(), func(c *x509.Certificate) {
			c.Subject.Organization = []string{"prod"}
		}),
	} {
		if got, err := authority.ParseIdentity(cert); err == nil {
			t.Errorf("%s is %+v", name, got)
		}
	}
}

func TestParseCARefuses(t *testing.T) {
	secret := string(must[[]byte](t)(newCA(t).MarshalSecret()))
	other := string(must[[]byte](t)(must[authority.CA](t)(authority.CreateCA("example", random(9),
		t0)).MarshalSecret()))
	end := strings.Index(secret, "-----END CERTIFICATE-----\n") + len("-----END CERTIFICATE-----\n")
	cert, key := secret[:end], secret[end:]
	leaf := string(authority.EncodeCertificate(issued(t, newCA(t))["agent"]))
	for name, text := range map[string]string{
		"empty":         "",
		"no key":        cert,
		"no cert":       key,
		"wrong order":   key + cert,
		"another's key": cert + other[end:],
		"a third block": secret + cert,
		"text between":  cert + "x\n" + key,
		"text before":   "x\n" + secret,
		"text after":    secret + "x",
		"broken before": "-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n" + secret,
		"headers":       strings.Replace(cert, "-----\n", "-----\nProc-Type: 4,ENCRYPTED\n\n", 1) + key,
		"a leaf":        leaf + key,
		"too long":      secret + strings.Repeat("\n", 64<<10),
	} {
		_, err := authority.ParseCA([]byte(text))
		if err == nil {
			t.Errorf("%s: parsed", name)
			continue
		}
		for line := range strings.Lines(key) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-") && strings.Contains(err.Error(), line) {
				t.Errorf("%s: the error quotes the key", name)
			}
		}
	}
	if ca, err := authority.ParseCA([]byte(strings.ReplaceAll(secret, "\n", "\r\n") + "\n \n")); err != nil ||
		!ca.Certificate().Equal(newCA(t).Certificate()) {
		t.Error("line ends of Windows:", err)
	}
}

func TestParseBundle(t *testing.T) {
	var certs []*x509.Certificate
	for year := range 3 {
		ca := must[authority.CA](t)(authority.CreateCA("example", random(byte(year)), t0.AddDate(year, 0, 0)))
		certs = append(certs, ca.Certificate())
	}
	want := []*x509.Certificate{certs[2], certs[1], certs[0]}
	for name, text := range map[string][]byte{
		"encoded": authority.EncodeBundle(certs...),
		"by hand": bytes.Join([][]byte{authority.EncodeCertificate(certs[1]), authority.EncodeCertificate(certs[2]),
			authority.EncodeCertificate(certs[0])}, []byte("\n")),
	} {
		got := must[[]*x509.Certificate](t)(authority.ParseBundle(text))
		if len(got) != 3 || !got[0].Equal(want[0]) || !got[1].Equal(want[1]) || !got[2].Equal(want[2]) {
			t.Errorf("%s: not newest first", name)
		}
	}
	one := authority.EncodeCertificate(certs[0])
	for name, text := range map[string][]byte{
		"empty":    nil,
		"twice":    append(bytes.Clone(one), one...),
		"leaf":     authority.EncodeCertificate(issued(t, newCA(t))["server"]),
		"key":      must[[]byte](t)(newCA(t).MarshalSecret()),
		"trailing": append(bytes.Clone(one), "x"...),
		"damaged":  bytes.Replace(one, []byte("MII"), []byte("AAA"), 1),
	} {
		if _, err := authority.ParseBundle(text); err == nil {
			t.Errorf("%s: parsed", name)
		}
	}
}

func TestImportCA(t *testing.T) {
	ec := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader))
	large := must[*rsa.PrivateKey](t)(rsa.GenerateKey(cryptorand.Reader, 2048))
	build := func(signer crypto.Signer, change func(*x509.Certificate)) []byte {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "Acme Root"}, NotBefore: t0.Add(-time.Hour),
			NotAfter: t0.AddDate(1, 0, 0),
			KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
		}
		change(template)
		der := must[[]byte](t)(x509.CreateCertificate(cryptorand.Reader, template, template, signer.Public(), signer))
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	pkcs8 := func(signer crypto.Signer) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must[[]byte](t)(
			x509.MarshalPKCS8PrivateKey(signer))})
	}
	sec1 := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: must[[]byte](t)(x509.MarshalECPrivateKey(ec))})
	same := func(*x509.Certificate) {}
	for name, c := range map[string]struct{ cert, key []byte }{
		"Ed25519": {build(key(1), same), pkcs8(key(1))},
		"SEC 1":   {build(ec, same), sec1},
		"RSA":     {build(large, same), pkcs8(large)},
	} {
		ca, err := authority.ImportCA("example", c.cert, c.key, cryptorand.Reader, t0)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := ca.CheckCluster("example"); err != nil {
			t.Error(err)
		}
		again, err := authority.ParseCA(must[[]byte](t)(ca.MarshalSecret()))
		if err != nil || !again.Certificate().Equal(ca.Certificate()) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		cert, key []byte
		want      string
	}{
		"expired": {build(ec, func(c *x509.Certificate) {
			c.NotAfter = t0.Add(-time.Minute)
		}), sec1, "not valid now"},
		"no CA": {build(ec, func(c *x509.Certificate) { c.IsCA = false }), sec1, "no CA"},
		"cannot sign": {build(ec, func(c *x509.Certificate) {
			c.KeyUsage = x509.KeyUsageDigitalSignature
		}), sec1, "may not sign"},
		"another's key": {build(ec, same), pkcs8(key(1)), "not for this key"},
		"constrained": {build(ec, func(c *x509.Certificate) {
			c.PermittedURIDomains = []string{".acme.com"}
			c.PermittedDNSDomainsCritical = true
		}), sec1, "does not verify"},
		"servers only": {build(ec, func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}), sec1, "does not verify"},
		"two": {append(build(ec, same), build(ec, same)...), sec1, "exactly one"},
		"encrypted": {build(ec, same),
			[]byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"), "encrypted"},
		"malformed key": {build(ec, same), []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
			"malformed"},
		"swapped":         {sec1, build(ec, same), "want \"CERTIFICATE\" only"},
		"certificate key": {build(ec, same), build(ec, same), "no private key"},
	} {
		_, err := authority.ImportCA("example", c.cert, c.key, cryptorand.Reader, t0)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestParsePublicKey(t *testing.T) {
	ec := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader))
	p384 := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P384(), cryptorand.Reader))
	for _, key := range []crypto.PublicKey{public(1), ec.Public()} {
		der := must[[]byte](t)(x509.MarshalPKIXPublicKey(key))
		got, err := authority.ParsePublicKey(der)
		if err != nil || !got.(interface{ Equal(crypto.PublicKey) bool }).Equal(key) {
			t.Errorf("%T: %v", key, err)
		}
		if _, err := authority.ParsePublicKey(append(der, 0)); err == nil {
			t.Error("trailing data passes")
		}
	}
	if _, err := authority.ParsePublicKey(must[[]byte](t)(x509.MarshalPKIXPublicKey(p384.Public()))); err == nil {
		t.Error("P-384 passes")
	}
	if _, err := authority.ParsePublicKey(public(1)); err == nil {
		t.Error("a raw key passes")
	}
}

func TestSecretsRedact(t *testing.T) {
	ca, nonceKey := newCA(t), must[authority.NonceKey](t)(authority.CreateNonceKey(random(1)))
	nonce, _, err := authority.MintNonce(nonceKey, agentNonce(t), random(7), t0)
	if err != nil {
		t.Fatal(err)
	}
	type holder struct {
		CA   authority.CA
		K    authority.NonceKey
		N    authority.Nonce
		ca   authority.CA
		k    authority.NonceKey
		n    authority.Nonce
		list []any
	}
	h := holder{ca, nonceKey, nonce, ca, nonceKey, nonce, []any{ca, nonceKey, nonce}}
	var out bytes.Buffer
	for _, v := range []any{ca, &ca, nonceKey, &nonceKey, nonce, &nonce, h, &h} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%t"} {
			fmt.Fprintf(&out, verb, v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "value", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "value", v)
		if err := json.NewEncoder(&out).Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	// The CA's key and the nonce key were both made from random(1), so this is the seed of both. It must not leak.
	seed := must[[]byte](t)(io.ReadAll(io.LimitReader(random(1), 32)))
	for _, leak := range []string{nonce.Reveal(), nonce.Reveal()[60:90], fmt.Sprintf("%x", seed[:8]),
		strings.Trim(fmt.Sprint(seed[:8]), "[]"), strings.Trim(fmt.Sprintf("%#v", seed[:8]), "[]byte{}")} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("leaks %q", leak)
		}
	}
}

func FuzzParseBundle(f *testing.F) {
	f.Add(authority.EncodeBundle(newCA(f).Certificate()))
	f.Fuzz(func(t *testing.T, data []byte) {
		certs, err := authority.ParseBundle(data)
		if err != nil {
			return
		}
		again, err := authority.ParseBundle(authority.EncodeBundle(certs...))
		if err != nil || len(again) != len(certs) {
			t.Errorf("%d of %d certificates: %v", len(again), len(certs), err)
		}
	})
}

func FuzzParseCA(f *testing.F) {
	f.Add(must[[]byte](f)(newCA(f).MarshalSecret()))
	f.Fuzz(func(t *testing.T, data []byte) {
		ca, err := authority.ParseCA(data)
		if err != nil {
			return
		}
		secret := must[[]byte](t)(ca.MarshalSecret())
		if again, err := authority.ParseCA(secret); err != nil || !again.Certificate().Equal(ca.Certificate()) {
			t.Error(err)
		}
	})
}

func FuzzParseIdentity(f *testing.F) {
	for _, cert := range issued(f, newCA(f)) {
		f.Add(cert.Raw)
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return
		}
		identity, err := authority.ParseIdentity(cert)
		if err == nil && identity.URI() != cert.URIs[0].String() {
			t.Errorf("%+v is not %s", identity, cert.URIs[0])
		}
	})
}

func FuzzParsePublicKey(f *testing.F) {
	f.Add(must[[]byte](f)(x509.MarshalPKIXPublicKey(public(1))))
	ec := must[*ecdsa.PrivateKey](f)(ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader))
	f.Add(must[[]byte](f)(x509.MarshalPKIXPublicKey(ec.Public())))
	ca := newCA(f)
	f.Fuzz(func(t *testing.T, der []byte) {
		key, err := authority.ParsePublicKey(der)
		if err != nil {
			return
		}
		spec := authority.InstanceSpec{Kind: authority.KindClient, CommonName: "x", TTL: time.Hour, PublicKey: key}
		if _, err := ca.IssueInstance(spec, random(1), t0); err != nil {
			t.Error("a key that parses gets no certificate:", err)
		}
	})
}
