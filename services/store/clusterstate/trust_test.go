package clusterstate_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// formerCA returns a CA that an older version of Nstance made. That version did not sign documents.
func formerCA(t *testing.T) authority.CA {
	t.Helper()
	secret, err := os.ReadFile(filepath.Join("..", "..", "contract", "testdata", "v1", "ca-former.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := authority.ParseCA(secret)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// A cluster with unsigned documents of an older version of Nstance keeps working. The first leader signs the cluster's
// documents. From then on, unsigned documents are refused.
func TestFormerClusterIsSigned(t *testing.T) {
	bucket, ca := mem.New(), formerCA(t)
	secret, err := ca.MarshalSecret()
	if err != nil {
		t.Fatal(err)
	}
	if err := secrets(t, bucket, cluster, key(t, 1), random(1)).Put(t.Context(), secretstore.CAKey,
		secretstore.NewValue(secret), secretstore.IfAbsent); err != nil {
		t.Fatal(err)
	}
	rec := operator(t, 1, "prod")
	unsigned, err := rec.Encode()
	if err != nil {
		t.Fatal(err)
	}
	operatorKey, unsignedBundle := keys.ClusterOperator("prod", rec.ID.Storage()),
		authority.EncodeBundle(ca.Certificate())
	overwrite(t, bucket, operatorKey, unsigned)
	overwrite(t, bucket, keys.ClusterCA(), unsignedBundle)
	s, other := open(t, bucket, 1), open(t, bucket, 2)
	for _, state := range []*clusterstate.State{s, other} {
		if _, _, err := state.GetOperator(t.Context(), "prod", rec.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.WriteApplied(t.Context(), []byte("{}"), "etag", 1); err != nil {
		t.Fatal(err)
	}
	if authority.IsSigned(read(t, bucket, keys.Applied(shard))) {
		t.Error("a document is signed before the leader signs the cluster")
	}

	if _, created, err := s.EnsureCA(t.Context()); err != nil || created {
		t.Fatal(created, err)
	}
	if err := s.WriteApplied(t.Context(), []byte("{}"), "etag", 2); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{keys.ClusterCA(), operatorKey, keys.Applied(shard)} {
		if !authority.IsSigned(read(t, bucket, key)) {
			t.Errorf("%s is not signed", key)
		}
	}
	if _, err := other.CABundle(t.Context()); err != nil { // the other process learns of it
		t.Fatal(err)
	}
	overwrite(t, bucket, operatorKey, unsigned)
	for name, state := range map[string]*clusterstate.State{"leader": s, "other": other, "new": open(t, bucket, 3)} {
		if _, _, err := state.GetOperator(t.Context(), "prod", rec.ID); !errors.Is(err, authority.ErrUnsigned) {
			t.Errorf("%s: an unsigned record: %v", name, err)
		}
	}
	// A process that has read a signed `ca.crt` refuses an unsigned one, even if the other documents are unsigned too.
	overwrite(t, bucket, keys.ClusterCA(), unsignedBundle)
	if _, _, err := s.EnsureCA(t.Context()); !errors.Is(err, highwater.ErrRolledBack) {
		t.Errorf("the bundle's former format: %v", err)
	}
	if err := bucket.Delete(t.Context(), keys.ClusterCA()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.GetOperator(t.Context(), "prod", rec.ID); !errors.Is(err, authority.ErrUnsigned) {
		t.Errorf("an unsigned record without a bundle: %v", err)
	}
}

// TestRotatedBundle checks that both CAs sign the bundle while the CA is rotated. The certificate of either CA is
// enough to verify it.
func TestRotatedBundle(t *testing.T) {
	bucket, s, old := newCluster(t)
	first := read(t, bucket, keys.ClusterCA())
	rec := operator(t, 1, "prod")
	if _, err := s.PutOperator(t.Context(), rec, ""); err != nil {
		t.Fatal(err)
	}
	next, err := authority.CreateCA(cluster, random(9), t0.AddDate(1, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WriteCABundle(t.Context(), []authority.CA{old, next}, next.Certificate()); !errors.Is(err,
		clusterstate.ErrForeign) {
		t.Errorf("a bundle without a signer's certificate: %v", err)
	}
	if err := s.WriteCABundle(t.Context(), []authority.CA{old, next}, old.Certificate(),
		next.Certificate()); err != nil {
		t.Fatal(err)
	}
	secret, err := next.MarshalSecret()
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		for name, state := range map[string]*clusterstate.State{"running": s, "new": open(t, bucket, 2)} {
			if bundle, err := state.CABundle(t.Context()); err != nil || len(bundle) != 2 {
				t.Errorf("%s: %s: %d certificates, %v", when, name, len(bundle), err)
			}
			if _, _, err := state.GetOperator(t.Context(), "prod", rec.ID); err != nil {
				t.Errorf("%s: %s: %v", when, name, err)
			}
		}
	}
	check("before the key changes")
	if err := secrets(t, bucket, cluster, key(t, 1), random(3)).Put(t.Context(), secretstore.CAKey,
		secretstore.NewValue(secret), secretstore.Any); err != nil {
		t.Fatal(err)
	}
	check("after the key changed")
	if err := s.SignDocuments(t.Context()); err != nil {
		t.Fatal(err)
	}
	both := read(t, bucket, keys.ClusterCA())
	if err := s.WriteCABundle(t.Context(), []authority.CA{next}, next.Certificate()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := open(t, bucket, 4).GetOperator(t.Context(), "prod", rec.ID); err != nil {
		t.Errorf("after the old CA was removed: %v", err)
	}
	// A program that knows only the old CA, and cannot read the CA's key, must refuse a bundle that only the new CA
	// signed.
	if _, err := s.CABundleSignedBy(t.Context(), []*x509.Certificate{old.Certificate()}); !errors.Is(err,
		authority.ErrSignature) {
		t.Error(err)
	}
	if _, err := s.CABundleSignedBy(t.Context(), []*x509.Certificate{next.Certificate()}); err != nil {
		t.Error(err)
	}
	// The process has read the newer bundle without the old CA. So it refuses the earlier bundle, which trusts both
	// CAs.
	overwrite(t, bucket, keys.ClusterCA(), both)
	if _, err := s.CABundle(t.Context()); !errors.Is(err, highwater.ErrRolledBack) {
		t.Errorf("a rolled back bundle: %v", err)
	}
	overwrite(t, bucket, keys.ClusterCA(), first)
	for _, state := range []*clusterstate.State{s, open(t, bucket, 5)} {
		if _, err := state.CABundle(t.Context()); !errors.Is(err, authority.ErrSignature) {
			t.Errorf("the bundle of the old CA: %v", err)
		}
	}
}

func TestHostileAppliedConfiguration(t *testing.T) {
	bucket, s, _ := newCluster(t)
	applied := keys.Applied(shard)
	if err := s.WriteApplied(t.Context(), []byte("{\"first\":1}\n"), "a", 1); err != nil {
		t.Fatal(err)
	}
	first := read(t, bucket, applied)
	if err := s.WriteApplied(t.Context(), []byte("{\"second\":2}"), "b", 2); err != nil {
		t.Fatal(err)
	}
	second := read(t, bucket, applied)
	unsigned, err := authority.UnverifiedContent(second)
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{
		"without a signature": unsigned,
		"altered":             bytes.Replace(second, []byte("second"), []byte("evil"), 1),
	} {
		overwrite(t, bucket, applied, body)
		for process, state := range map[string]*clusterstate.State{"running": s, "new": open(t, bucket, 2)} {
			if got, err := state.ReadApplied(t.Context()); err == nil {
				t.Errorf("%s: a %s process accepts %s", name, process, got.Body)
			}
		}
	}
	overwrite(t, bucket, applied, first)
	if _, err := s.ReadApplied(t.Context()); !errors.Is(err, highwater.ErrRolledBack) {
		t.Errorf("rolled back: %v", err)
	}
	// WriteApplied replaces the stored document even if reading that document fails.
	if err := s.WriteApplied(t.Context(), []byte("{}"), "c", 3); err != nil {
		t.Fatal(err)
	}
	if got, err := s.ReadApplied(t.Context()); err != nil || got.Source != "c" || got.Revision < 3 {
		t.Errorf("%+v, %v", got, err)
	}
}
