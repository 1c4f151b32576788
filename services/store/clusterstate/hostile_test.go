package clusterstate_test

import (
	"bytes"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// In the tests of this file, an attacker can write to the bucket but does not have the encryption key.

func newCluster(t *testing.T) (bucket *mem.Store, s *clusterstate.State, ca authority.CA) {
	t.Helper()
	bucket = mem.New()
	s = open(t, bucket, 1)
	ca, _, err := s.EnsureCA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return bucket, s, ca
}

func overwrite(t *testing.T, bucket objstore.Store, key string, body []byte) {
	t.Helper()
	if _, err := bucket.Put(t.Context(), key, body, objstore.Always()); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, bucket objstore.Store, key string) []byte {
	t.Helper()
	object, err := bucket.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return object.Body
}

func TestHostileTrustBundle(t *testing.T) {
	bucket, s, ca := newCluster(t)
	evil, err := authority.CreateCA(cluster, random(66), t0)
	if err != nil {
		t.Fatal(err)
	}
	// The attacker also has another bucket, with another CA. It copies objects from there.
	evilBucket := mem.New()
	if _, err := open(t, evilBucket, 66).StoreCA(t.Context(), evil); err != nil {
		t.Fatal(err)
	}
	genuine := read(t, bucket, keys.ClusterCA())
	for name, body := range map[string][]byte{
		"the attacker's CA":         authority.EncodeBundle(evil.Certificate()),
		"the attacker's signature":  read(t, evilBucket, keys.ClusterCA()),
		"the attacker's CA as well": authority.EncodeBundle(evil.Certificate(), ca.Certificate()),
		"a genuine signature below another bundle": append(authority.EncodeBundle(evil.Certificate()),
			genuine...),
		"the former format": authority.EncodeBundle(ca.Certificate()),
	} {
		overwrite(t, bucket, keys.ClusterCA(), body)
		for process, state := range map[string]*clusterstate.State{"running": s, "new": open(t, bucket, 2)} {
			if bundle, err := state.CABundle(t.Context()); err == nil {
				t.Errorf("%s: a %s process trusts %d certificates", name, process, len(bundle))
			}
			if _, _, err := state.EnsureCA(t.Context()); err == nil {
				t.Errorf("%s: a %s process leads", name, process)
			}
		}
		if !bytes.Equal(read(t, bucket, keys.ClusterCA()), body) {
			t.Errorf("%s: it was repaired silently", name)
		}
	}
	overwrite(t, bucket, keys.ClusterCA(), genuine)
	if _, err := s.CABundle(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestHostileOperatorRecord(t *testing.T) {
	bucket, s, _ := newCluster(t)
	rec := operator(t, 1, "prod")
	token, err := s.PutOperator(t.Context(), rec, "")
	if err != nil {
		t.Fatal(err)
	}
	key := keys.ClusterOperator("prod", rec.ID.Storage())
	live := read(t, bucket, key)
	removed := rec
	removed.Revision, removed.RemovedAt = 2, t0
	if _, err := s.PutOperator(t.Context(), removed, token); err != nil {
		t.Fatal(err)
	}
	forged := rec
	forged.Revision = 3
	unsigned, err := forged.Encode()
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := mem.New()
	if _, err := open(t, elsewhere, 66).PutOperator(t.Context(), forged, ""); err != nil {
		t.Fatal(err)
	}
	evil := open(t, elsewhere, 66)
	if err := elsewhere.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if _, _, err := evil.EnsureCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := evil.PutOperator(t.Context(), forged, ""); err != nil {
		t.Fatal(err)
	}
	tampered := bytes.Replace(live, []byte(`"writer":"`), []byte(`"writer":"x`), 1)
	for name, body := range map[string][]byte{
		"without a signature": unsigned, "signed by another CA": read(t, elsewhere, key), "altered": tampered,
	} {
		overwrite(t, bucket, key, body)
		for process, state := range map[string]*clusterstate.State{"running": s, "new": open(t, bucket, 2)} {
			if rec, _, err := state.GetOperator(t.Context(), "prod", rec.ID); err == nil {
				t.Errorf("%s: a %s process accepts %+v", name, process, rec)
			}
			if _, err := state.ListOperators(t.Context(), ""); err == nil {
				t.Errorf("%s: a %s process lists it", name, process)
			}
		}
	}
	// Only a process that has read the tombstone can notice that the live record replaced it.
	overwrite(t, bucket, key, live)
	if rec, _, err := s.GetOperator(t.Context(), "prod", rec.ID); err == nil {
		t.Errorf("the record of a removed operator was rolled back to %+v", rec)
	}
	var stored record.Operator
	if stored, _, err = open(t, bucket, 2).GetOperator(t.Context(), "prod", rec.ID); err != nil || stored.Removed() {
		t.Errorf("a process without memory: %+v, %v", stored, err)
	}
}
