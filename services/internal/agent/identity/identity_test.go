package identity_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/agent/identity"
	"github.com/nstance-kit/nstance/services/internal/proof/foldertest"
)

type agentDir struct {
	ca  authority.CA
	id  ident.ID
	dir *foldertest.Memory
	now time.Time
}

func newAgentDir(t *testing.T) *agentDir {
	t.Helper()
	now := time.Now()
	id, err := ident.NewID("knc", now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w := &agentDir{ca: newCA(t, now), id: id, dir: &foldertest.Memory{}, now: now}
	w.write(t, identity.CAFile, authority.EncodeBundle(w.ca.Certificate()))
	w.write(t, identity.NonceFile, []byte("a.b.c\n"))
	return w
}

func newCA(t *testing.T, now time.Time) authority.CA {
	t.Helper()
	ca, err := authority.CreateCA("example", rand.Reader, now)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func (d *agentDir) write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := d.dir.Write(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (d *agentDir) store() *identity.Store { return identity.NewStore(d.dir, d.id, 0o600) }

func (d *agentDir) issue(t *testing.T, ca authority.CA, who authority.Identity, key ed25519.PrivateKey) []byte {
	t.Helper()
	cert, err := ca.IssueClient(authority.ClientSpec{Identity: who, PublicKey: key.Public().(ed25519.PublicKey)},
		rand.Reader, d.now)
	if err != nil {
		t.Fatal(err)
	}
	return authority.EncodeCertificate(cert)
}

func (d *agentDir) agent() authority.Identity {
	return authority.Identity{Role: authority.RoleAgent, Cluster: "example", Tenant: "default", ID: d.id}
}

func TestLife(t *testing.T) {
	w := newAgentDir(t)
	key, err := w.store().Key()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := w.store().Key(); err != nil || !again.Equal(key) {
		t.Fatalf("the key was made twice, or %v", err)
	}
	if cert, err := w.store().Certificate(key); cert != nil || err != nil {
		t.Fatalf("Certificate = %v, %v", cert, err)
	}
	if nonce, err := w.store().Nonce(); err != nil || string(nonce) != "a.b.c" {
		t.Fatalf("Nonce: %v", err)
	}
	// During a rotation the bundle holds both the new and the old CA.
	bundle := authority.EncodeBundle(newCA(t, w.now).Certificate(), w.ca.Certificate())
	text := w.issue(t, w.ca, w.agent(), key)
	got, err := w.store().Accept(key, text, bundle)
	if err != nil {
		t.Fatal(err)
	}
	if got.Cluster != "example" || got.Expired(w.now) || !got.Expired(got.Leaf.NotAfter) {
		t.Errorf("certificate: %+v", got)
	}
	if want := w.now.Add(authority.AgentTTL / 3 * 2); got.RenewAt().Sub(want).Abs() > 2*time.Second {
		t.Errorf("RenewAt %v, want %v", got.RenewAt(), want)
	}
	if stored, err := w.store().Certificate(key); err != nil || !bytes.Equal(stored.Leaf.Raw, got.Leaf.Raw) {
		t.Errorf("stored certificate: %v", err)
	}
	if stored, err := w.dir.Read(identity.CAFile); err != nil || !bytes.Equal(stored, bundle) {
		t.Errorf("stored bundle: %v", err)
	}
	if _, err := w.store().Nonce(); !errors.Is(err, identity.ErrIncomplete) {
		t.Errorf("the nonce is still there: %v", err)
	}
}

func TestAcceptRefuses(t *testing.T) {
	w := newAgentDir(t)
	key, err := w.store().Key()
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	otherID, err := ident.NewID("knc", w.now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	operatorID, err := ident.NewID("opr", w.now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stranger, operator := w.agent(), w.agent()
	stranger.ID = otherID
	operator.ID, operator.Role = operatorID, authority.RoleOperator
	good := w.issue(t, w.ca, w.agent(), key)
	for name, test := range map[string]struct{ certificate, bundle []byte }{
		"nothing":          {nil, nil},
		"not PEM":          {[]byte("x"), nil},
		"two certificates": {append(bytes.Clone(good), good...), nil},
		"text before":      {append([]byte("x\n"), good...), nil},
		"another key":      {w.issue(t, w.ca, w.agent(), other), nil},
		"another instance": {w.issue(t, w.ca, stranger, key), nil},
		"an operator":      {w.issue(t, w.ca, operator, key), nil},
		"another CA":       {w.issue(t, newCA(t, w.now), w.agent(), key), nil},
		"not in bundle":    {good, authority.EncodeBundle(newCA(t, w.now).Certificate())},
		"broken bundle":    {good, []byte("x")},
		"leaf as bundle":   {good, good},
	} {
		if cert, err := w.store().Accept(key, test.certificate, test.bundle); err == nil || cert != nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := w.dir.Read(identity.CertificateFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused certificate was stored: %v", err)
	}
	if nonce, err := w.store().Nonce(); err != nil || nonce == "" {
		t.Errorf("the nonce was consumed without a registration: %v", err)
	}
}

func TestDamagedFiles(t *testing.T) {
	w := newAgentDir(t)
	key, err := w.store().Key()
	if err != nil {
		t.Fatal(err)
	}
	w.write(t, identity.CertificateFile, []byte("x"))
	if cert, err := w.store().Certificate(key); cert != nil || err == nil {
		t.Errorf("Certificate = %v, %v", cert, err)
	}
	for _, nonce := range []string{"", " \n", strings.Repeat("x", 4097)} {
		w.write(t, identity.NonceFile, []byte(nonce))
		if _, err := w.store().Nonce(); err == nil {
			t.Errorf("a nonce of %d bytes was accepted", len(nonce))
		}
	}
	for _, bundle := range []string{"", "x"} {
		w.write(t, identity.CAFile, []byte(bundle))
		if _, err := w.store().Roots(); err == nil {
			t.Errorf("Roots of %q", bundle)
		}
	}
	// A damaged key is never replaced. The server may accept the nonce only with that key.
	w.write(t, identity.KeyFile, []byte("x"))
	if _, err := w.store().Key(); err == nil {
		t.Error("a damaged key was accepted")
	}
	if text, err := w.dir.Read(identity.KeyFile); err != nil || string(text) != "x" {
		t.Errorf("a damaged key was replaced: %v", err)
	}
}

func TestVerifyServer(t *testing.T) {
	w := newAgentDir(t)
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	server, err := w.ca.IssueServer(authority.ServerSpec{
		Identity:  authority.Identity{Role: authority.RoleServer, Cluster: "example", Shard: "a", Server: "one"},
		PublicKey: public,
		Hosts:     []string{"127.0.0.1"},
	}, rand.Reader, w.now)
	if err != nil {
		t.Fatal(err)
	}
	for cluster, want := range map[string]bool{"example": true, "": true, "other": false} {
		if err := identity.VerifyServer(server, cluster); (err == nil) != want {
			t.Errorf("cluster %q: %v", cluster, err)
		}
	}
	text := w.issue(t, w.ca, w.agent(), key)
	cert, err := identity.NewStore(w.dir, w.id, 0o600).Accept(key, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, leaf := range map[string]*x509.Certificate{"an agent": cert.Leaf, "the CA": w.ca.Certificate()} {
		if err := identity.VerifyServer(leaf, ""); err == nil {
			t.Errorf("%s passes as a server", name)
		}
	}
}

func TestNonceIsRedacted(t *testing.T) {
	nonce := identity.Nonce("hunter2")
	text, err := json.Marshal(map[string]any{"n": nonce})
	if err != nil {
		t.Fatal(err)
	}
	texts := fmt.Sprintf("%v %+v %#v %s %q %s %s", nonce, nonce, nonce, nonce, nonce, text, nonce.LogValue())
	if strings.Contains(texts, "hunter2") {
		t.Error(texts)
	}
}
