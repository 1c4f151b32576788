package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

func FuzzParseKey(f *testing.F) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	private, public := encodeKey(key)
	f.Add(private)
	f.Add(public)
	f.Add(append(private, private...))
	f.Fuzz(func(t *testing.T, text []byte) {
		key, err := authority.ParsePrivateKey(text)
		if err != nil {
			return
		}
		again, _ := encodeKey(key)
		if back, err := authority.ParsePrivateKey(again); err != nil || !back.Equal(key) {
			t.Errorf("%q changes when written: %v", text, err)
		}
	})
}

// FuzzAccept checks that only a certificate from the CA for this operator and this key is accepted.
func FuzzAccept(f *testing.F) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	ca, err := authority.CreateCA("example", rand.Reader, now)
	if err != nil {
		f.Fatal(err)
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	id, err := ident.NewID(ident.OperatorPrefix, now, rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	cert, err := ca.IssueClient(authority.ClientSpec{Identity: authority.Identity{Role: authority.RoleOperator,
		Cluster: "example", Tenant: "prod", ID: id},
		PublicKey: public}, rand.Reader, now)
	if err != nil {
		f.Fatal(err)
	}
	roots, err := parseTrust(authority.EncodeBundle(ca.Certificate()))
	if err != nil {
		f.Fatal(err)
	}
	k := New(Options{Cluster: "example", Tenant: "prod"})
	good := authority.EncodeCertificate(cert)
	if _, err := k.parseCertificate(key, roots, good); err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(roots.text)
	f.Add(append(good, good...))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := k.parseCertificate(key, roots, text)
		if err == nil && !bytes.Equal(got.Leaf.RawTBSCertificate, cert.RawTBSCertificate) {
			t.Errorf("%q is taken for %s", text, got)
		}
	})
}
