package registration_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/clusterstate"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keyring"
	"github.com/nstance-kit/nstance/services/contract/objstore/mem"
	"github.com/nstance-kit/nstance/services/contract/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/registration"
)

func newState(t *testing.T) *clusterstate.State {
	t.Helper()
	store := mem.New(mem.Options{})
	key, err := envelope.NewKey([]byte(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}
	secrets := secretstore.NewObjects(secretstore.Options{Bucket: store, Cluster: "example",
		Ring: keyring.Ring{Current: key}, Rand: rand.Reader})
	state := clusterstate.New(clusterstate.Options{Cluster: store, Shard: store, ClusterID: "example",
		Secrets: secrets})
	if _, _, err := state.EnsureCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	return state
}

func TestLife(t *testing.T) {
	state := newState(t)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	first, err := registration.Register(t.Context(), state, "example", "prod", public, time.Hour, "test")
	if err != nil {
		t.Fatal(err)
	}
	who, err := authority.ParseIdentity(first.Certificate)
	if err != nil || who != (authority.Identity{Role: authority.RoleOperator, Cluster: "example", Tenant: "prod",
		ID: first.ID}) {
		t.Errorf("%+v, %v", who, err)
	}
	if pair := (tls.Certificate{Certificate: [][]byte{first.Certificate.Raw}, PrivateKey: private}); !public.Equal(
		first.Certificate.PublicKey) || pair.PrivateKey == nil {
		t.Error("the certificate is of another key")
	}
	if _, err := registration.Register(t.Context(), state, "example", "prod", public, time.Hour,
		"test"); !errors.Is(err, registration.ErrRegistered) || !strings.Contains(err.Error(), first.ID.String()) {
		t.Errorf("registered twice: %v", err)
	}
	if _, err := registration.Register(t.Context(), state, "example", "other", public, time.Hour, "test"); err != nil {
		t.Errorf("another tenant's: %v", err)
	}
	second, err := registration.Renew(t.Context(), state, "prod", first.ID, 2*time.Hour, "test")
	if err != nil || second.ID != first.ID || authority.Serial(second.Certificate) == authority.Serial(
		first.Certificate) {
		t.Errorf("%+v, %v", second, err)
	}
	rec, _, err := registration.Find(t.Context(), state, "prod", first.ID)
	if err != nil || rec.Certificate.Serial != authority.Serial(second.Certificate) || rec.Revision != 2 ||
		!public.Equal(ed25519.PublicKey(rec.PublicKey)) {
		t.Errorf("%+v, %v", rec, err)
	}
	for range 2 { // the second call has nothing to do
		if err := registration.Remove(t.Context(), state, "prod", first.ID, "test"); err != nil {
			t.Error(err)
		}
	}
	if rec, _, err := state.GetOperator(t.Context(), "prod", first.ID); err != nil || !rec.Removed() ||
		rec.Revision != 3 {
		t.Errorf("no tombstone: %+v, %v", rec, err)
	}
	if _, err := registration.Renew(t.Context(), state, "prod", first.ID, time.Hour, "test"); !errors.Is(err,
		registration.ErrRemoved) {
		t.Errorf("renewed after its removal: %v", err)
	}
	nobody, err := ident.NewID(ident.OperatorPrefix, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := registration.Find(t.Context(), state, "prod", nobody); !errors.Is(err, registration.ErrRemoved) {
		t.Errorf("%v", err)
	}
	if again, err := registration.Register(t.Context(), state, "example", "prod", public, time.Hour,
		"test"); err != nil || again.ID == first.ID {
		t.Errorf("a removed operator's key, registered again: %+v, %v", again, err)
	}
}

func TestParseTTL(t *testing.T) {
	for text, want := range map[string]time.Duration{"1h": time.Hour, "30d": 720 * time.Hour, "59s": 0, "": 0, "-1h": 0,
		"4000d": 0, "x": 0} {
		if got, err := registration.ParseTTL(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

func FuzzParsePublicKey(f *testing.F) {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	good, err := registration.EncodePublicKey(public)
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{good, "\n" + good + "\n\n", good + good, "x" + good,
		strings.ReplaceAll(good, "PUBLIC", "PRIVATE"), "",
		"-----BEGIN PUBLIC KEY-----\nA: b\n\n-----END PUBLIC KEY-----"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		key, err := registration.ParsePublicKey(text)
		if err != nil {
			return
		}
		again, err := registration.EncodePublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if other, err := registration.ParsePublicKey(again); err != nil || !other.Equal(key) {
			t.Errorf("%v, %v", other, err)
		}
	})
}

func TestParsePublicKeyRefuses(t *testing.T) {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good, err := registration.EncodePublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{good + good, "x" + good, strings.ReplaceAll(good, "PUBLIC", "PRIVATE"), good[:60],
		""} {
		if _, err := registration.ParsePublicKey(text); err == nil {
			t.Errorf("accepted: %q", text)
		}
	}
}
