package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/proof/foldertest"
)

// FuzzParse checks that parse accepts only a certificate of this agent. parse does not check the chain. The two ends of
// a TLS connection check it.
func FuzzParse(f *testing.F) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	ca, err := authority.CreateCA("example", rand.Reader, now)
	if err != nil {
		f.Fatal(err)
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	id, err := ident.NewID("knd", now, rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	cert, err := ca.IssueClient(authority.ClientSpec{Identity: authority.Identity{Role: authority.RoleAgent,
		Cluster: "example", Tenant: "prod", ID: id},
		PublicKey: public}, rand.Reader, now)
	if err != nil {
		f.Fatal(err)
	}
	store := NewStore(&foldertest.Memory{}, id, 0o600)
	good := authority.EncodeCertificate(cert)
	if _, err := store.parse(key, good); err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(authority.EncodeBundle(ca.Certificate()))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := store.parse(key, text)
		if err != nil {
			return
		}
		who, err := authority.ParseIdentity(got.Leaf)
		if err != nil || who.ID != id || who.Role != authority.RoleAgent ||
			!got.Leaf.PublicKey.(ed25519.PublicKey).Equal(public) {
			t.Errorf("%q is taken for %s (%v)", text, who.URI(), err)
		}
	})
}
