package registration_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/registration"
)

func newState(t *testing.T) *clusterstate.State {
	t.Helper()
	return stateIn(t, mem.New())
}

func stateIn(t *testing.T, store *mem.Store) *clusterstate.State {
	t.Helper()
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
	first, err := registration.Register(t.Context(), state, "prod", public, time.Hour, "test")
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
	if _, err := registration.Register(t.Context(), state, "prod", public, time.Hour,
		"test"); !errors.Is(err, registration.ErrRegistered) || !strings.Contains(err.Error(), first.ID.String()) {
		t.Errorf("registered twice: %v", err)
	}
	if _, err := registration.Register(t.Context(), state, "other", public, time.Hour, "test"); err != nil {
		t.Errorf("another tenant's: %v", err)
	}
	if other, _, err := ed25519.GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	} else if _, err := registration.Register(t.Context(), state, "prod", other, time.Hour,
		"test"); err != nil {
		t.Errorf("another key of the same tenant: %v", err)
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
	if err := registration.Remove(t.Context(), state, "prod", nobody, "test"); err != nil {
		t.Errorf("removed nobody: %v", err)
	}
	if again, err := registration.Register(t.Context(), state, "prod", public, time.Hour,
		"test"); err != nil || again.ID == first.ID {
		t.Errorf("a removed operator's key, registered again: %+v, %v", again, err)
	}
}

// TestRemoveDuringARenewal removes an operator while another client renews its certificate.
func TestRemoveDuringARenewal(t *testing.T) {
	conflicts := 0
	state := stateIn(t, mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
		if r.Op == mem.Put && conflicts > 0 {
			conflicts--
			return mem.Fault{Err: objstore.ErrConflict}
		}
		return mem.Fault{}
	}}))
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	operator, err := registration.Register(t.Context(), state, "prod", public, time.Hour, "test")
	if err != nil {
		t.Fatal(err)
	}
	conflicts = 2
	if err := registration.Remove(t.Context(), state, "prod", operator.ID, "test"); err != nil || conflicts > 0 {
		t.Errorf("%v, with %d conflicts to come", err, conflicts)
	}
	if rec, _, err := state.GetOperator(t.Context(), "prod", operator.ID); err != nil || !rec.Removed() {
		t.Errorf("no tombstone: %+v, %v", rec, err)
	}
}

func TestParseTTL(t *testing.T) {
	for text, want := range map[string]time.Duration{"1h": time.Hour, "30d": 720 * time.Hour,
		"1m": time.Minute, "3650d": 3650 * 24 * time.Hour, "3651d": 0, "59s": 0, "": 0, "-1h": 0,
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
	encoded, err := authority.EncodePublicKey(public)
	if err != nil {
		f.Fatal(err)
	}
	good := string(encoded)
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
		again, err := authority.EncodePublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if other, err := registration.ParsePublicKey(string(again)); err != nil || !other.Equal(key) {
			t.Errorf("%v, %v", other, err)
		}
	})
}

func TestParsePublicKeyRefuses(t *testing.T) {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := authority.EncodePublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	good := string(encoded)
	for _, text := range []string{"\ufeff" + good, strings.TrimSpace(good), " \t" + good + "\n\n",
		strings.ReplaceAll(good, "\n", "\r\n")} {
		if key, err := registration.ParsePublicKey(text); err != nil || !key.Equal(public) {
			t.Errorf("%q: %v, %v", text, key, err)
		}
	}
	for _, text := range []string{good + good, "x" + good, strings.ReplaceAll(good, "PUBLIC", "PRIVATE"), good[:60],
		""} {
		if _, err := registration.ParsePublicKey(text); err == nil {
			t.Errorf("accepted: %q", text)
		}
	}
}

// TestNothingIsIssuedWithoutARecord checks that each request to the bucket that fails makes the call fail. No
// certificate is then returned.
func TestNothingIsIssuedWithoutARecord(t *testing.T) {
	down := errors.New("503")
	failing := mem.Op("")
	state := stateIn(t, mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
		if r.Op == failing {
			return mem.Fault{Err: down}
		}
		return mem.Fault{}
	}}))
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	operator, err := registration.Register(t.Context(), state, "prod", public, time.Hour, "test")
	if err != nil {
		t.Fatal(err)
	}
	for _, failing = range []mem.Op{mem.Put, mem.Get, mem.List} {
		got, err := registration.Register(t.Context(), state, "other", public, time.Hour, "test")
		if !errors.Is(err, down) || got.Certificate != nil {
			t.Errorf("registered while %s fails: %+v, %v", failing, got, err)
		}
		if failing == mem.List {
			continue // the rest lists nothing
		}
		got, err = registration.Renew(t.Context(), state, "prod", operator.ID, time.Hour, "test")
		if !errors.Is(err, down) || got.Certificate != nil {
			t.Errorf("renewed while %s fails: %+v, %v", failing, got, err)
		}
		if err := registration.Remove(t.Context(), state, "prod", operator.ID, "test"); !errors.Is(err, down) {
			t.Errorf("removed while %s fails: %v", failing, err)
		}
	}
	failing = mem.Get
	if _, err := registration.FindUnverified(t.Context(), state, "prod", operator.ID); !errors.Is(err, down) {
		t.Errorf("found while get fails: %v", err)
	}
	failing = ""
	if rec, err := registration.FindUnverified(t.Context(), state, "prod", operator.ID); err != nil ||
		rec.ID != operator.ID || rec.Certificate.Serial != authority.Serial(operator.Certificate) {
		t.Errorf("%+v, %v, want the record with the first certificate", rec, err)
	}
}
