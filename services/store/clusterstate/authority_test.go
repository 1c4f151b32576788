package clusterstate_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

func TestEnsureCA(t *testing.T) {
	bucket := mem.New()
	s := open(t, bucket, 1)
	if _, err := s.LoadCA(t.Context()); !errors.Is(err, secretstore.ErrNotFound) {
		t.Fatal(err)
	}
	ca, created, err := s.EnsureCA(t.Context())
	if err != nil || !created {
		t.Fatal(created, err)
	}
	again, created, err := open(t, bucket, 2).EnsureCA(t.Context())
	if err != nil || created || !again.Certificate().Equal(ca.Certificate()) {
		t.Errorf("again: %v, %v, %v", again, created, err)
	}
	bundle, err := s.CABundle(t.Context())
	if err != nil || len(bundle) != 1 || !bundle[0].Equal(ca.Certificate()) {
		t.Errorf("bundle: %v, %v", bundle, err)
	}
	// ca.crt is derived again.
	if err := bucket.Delete(t.Context(), keys.ClusterCA()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CABundle(t.Context()); !errors.Is(err, objstore.ErrNotFound) {
		t.Fatal(err)
	}
	if _, created, err := s.EnsureCA(t.Context()); err != nil || created {
		t.Fatal(created, err)
	}
	if bundle, err = s.CABundle(t.Context()); err != nil || len(bundle) != 1 || !bundle[0].Equal(ca.Certificate()) {
		t.Errorf("bundle: %v, %v", bundle, err)
	}
}

func TestEnsureWorkloadCA(t *testing.T) {
	for name, c := range map[string]struct{ age, notice time.Duration }{
		"new cluster":    {time.Minute, 0},
		"cluster in use": {2 * time.Hour, 30 * 24 * time.Hour},
	} {
		bucket := mem.New()
		cluster, _, err := open(t, bucket, 1).EnsureCA(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		now := t0.Add(c.age)
		s := open(t, bucket, 2, func(o *clusterstate.Options) { o.Now = func() time.Time { return now } })
		ca, created, err := s.EnsureWorkloadCA(t.Context(), cluster)
		if err != nil || !created || len(ca) != 1 || !ca[0].Starts().Equal(now.Add(c.notice)) {
			t.Fatalf("%s: %v (%v), created %t", name, ca, err, created)
		}
		now = now.Add(time.Hour)
		again, created, err := s.EnsureWorkloadCA(t.Context(), cluster)
		if err != nil || created || !bytes.Equal(again.EncodeCertificates(), ca.EncodeCertificates()) {
			t.Errorf("%s, again: %v (%v), created %t", name, again, err, created)
		}
		// EnsureWorkloadCA must refuse a secret `workload-ca.key` that contains the cluster's CA.
		secret, err := cluster.MarshalSecret()
		if err != nil {
			t.Fatal(err)
		}
		if err := secrets(t, bucket, "example", key(t, 1), random(3)).Put(t.Context(), secretstore.WorkloadCAKey,
			secretstore.NewValue(secret), secretstore.Any); err != nil {
			t.Fatal(err)
		}
		if _, _, err := open(t, bucket, 4).EnsureWorkloadCA(t.Context(), cluster); !errors.Is(err,
			clusterstate.ErrForeign) {
			t.Errorf("%s: the cluster's CA as workload CA: %v", name, err)
		}
	}
}

// A cluster in use gets no second CA, even if some of its objects are lost.
func TestNoSecondCA(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, s *clusterstate.State, bucket objstore.Store) error{
		"bundle": func(t *testing.T, s *clusterstate.State, bucket objstore.Store) error {
			if _, _, err := s.EnsureCA(t.Context()); err != nil {
				return err
			}
			return bucket.Delete(t.Context(), keys.ClusterSecret(secretstore.CAKey))
		},
		"operator": func(t *testing.T, s *clusterstate.State, bucket objstore.Store) error {
			_, err := s.PutOperator(t.Context(), operator(t, 1, "prod"), "")
			return err
		},
		"instance": func(t *testing.T, s *clusterstate.State, bucket objstore.Store) error {
			_, err := s.PutInstance(t.Context(), reserved(t, 1), "")
			return err
		},
		"instance of another shard": func(t *testing.T, s *clusterstate.State, bucket objstore.Store) error {
			rec := reserved(t, 1)
			rec.Shard = "elsewhere"
			_, err := open(t, bucket, 1, func(o *clusterstate.Options) {
				o.ShardID = "elsewhere"
			}).PutInstance(t.Context(), rec, "")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bucket := mem.New()
			s := open(t, bucket, 1)
			if err := prepare(t, s, bucket); err != nil {
				t.Fatal(err)
			}
			if ca, created, err := s.EnsureCA(t.Context()); !errors.Is(err, clusterstate.ErrCALost) || created ||
				!ca.IsZero() {
				t.Errorf("%v, %v, %v", ca, created, err)
			}
			if _, err := bucket.Get(t.Context(), keys.ClusterSecret(secretstore.CAKey)); !errors.Is(err,
				objstore.ErrNotFound) {
				t.Error("a second CA is there:", err)
			}
		})
	}
	// Instance records in a separate bucket for the shard also show that the cluster is in use.
	clusterBucket, shardBucket := mem.New(), mem.New()
	s := open(t, clusterBucket, 1, func(o *clusterstate.Options) { o.Shard = shardBucket })
	if _, err := s.PutInstance(t.Context(), reserved(t, 1), ""); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.EnsureCA(t.Context()); !errors.Is(err, clusterstate.ErrCALost) {
		t.Error(err)
	}
}

// TestUnreadableObjectIsNotAbsent checks that EnsureCA makes no CA if any of its reads fails: an object that cannot be
// read may exist.
func TestUnreadableObjectIsNotAbsent(t *testing.T) {
	denied := errors.New("denied")
	questions := 0
	count := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
		if r.Op != mem.Put {
			questions++
		}
		return mem.Fault{}
	}})
	if _, _, err := open(t, count, 1).EnsureCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	if questions < 4 {
		t.Fatalf("only %d questions", questions)
	}
	for n := range 4 { // ca.key, ca.crt, operators, instances
		asked := 0
		bucket := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
			if r.Op != mem.Put {
				if asked++; asked == n+1 {
					return mem.Fault{Err: denied}
				}
			}
			return mem.Fault{}
		}})
		if _, created, err := open(t, bucket, 1).EnsureCA(t.Context()); !errors.Is(err, denied) || created {
			t.Errorf("question %d: %v, %v", n, created, err)
		}
		if entries, err := bucket.List(t.Context(), ""); err != nil || len(entries) != 0 {
			t.Errorf("question %d: wrote %v", n, entries)
		}
	}
}

func TestWrongEncryptionKey(t *testing.T) {
	bucket := mem.New()
	s := open(t, bucket, 1)
	if _, _, err := s.EnsureCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.EnsureNonceKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	wrong := open(t, bucket, 2, func(o *clusterstate.Options) {
		o.Secrets = secrets(t, bucket, cluster, key(t, 2), random(2))
	})
	_, _, caErr := wrong.EnsureCA(t.Context())
	_, _, nonceErr := wrong.EnsureNonceKey(t.Context())
	for _, err := range []error{caErr, nonceErr} {
		if !errors.Is(err, envelope.ErrUnknownKey) || !strings.Contains(err.Error(), key(t, 1).ID().String()) ||
			!strings.Contains(err.Error(), key(t, 2).ID().String()) {
			t.Error(err)
		}
	}
	other := open(t, bucket, 2, func(o *clusterstate.Options) {
		o.ClusterID, o.Secrets = "other", secrets(t, bucket, "other", key(t, 1), random(2))
	})
	if _, _, err := other.EnsureCA(t.Context()); !errors.Is(err, envelope.ErrAuthentication) {
		t.Error("another cluster:", err)
	}
}

// TestForeignCA checks that a CA of another cluster is refused. Clusters may share a secrets service, so a CA contains
// the name of its cluster.
func TestForeignCA(t *testing.T) {
	bucket := mem.New()
	store := secrets(t, bucket, cluster, key(t, 1), random(1))
	foreign, err := authority.CreateCA("other", random(1), t0)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := foreign.MarshalSecret()
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Put(t.Context(), secretstore.CAKey, secretstore.NewValue(secret), secretstore.Any); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, bucket, 1).LoadCA(t.Context()); !errors.Is(err, clusterstate.ErrForeign) {
		t.Error(err)
	}
	if _, err := open(t, mem.New(), 1).StoreCA(t.Context(), foreign); err == nil {
		t.Error("stored a CA of another cluster")
	}
}

func TestStoreCA(t *testing.T) {
	bucket := mem.New()
	s := open(t, bucket, 1)
	ours, err := authority.CreateCA(cluster, random(7), t0)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		if created, err := s.StoreCA(t.Context(), ours); err != nil || created != want {
			t.Errorf("created %v, %v", created, err)
		}
	}
	if ca, created, err := s.EnsureCA(t.Context()); err != nil || created ||
		!ca.Certificate().Equal(ours.Certificate()) {
		t.Error(ca, created, err)
	}
	second, err := authority.CreateCA(cluster, random(8), t0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.StoreCA(t.Context(), second); !errors.Is(err, objstore.ErrConflict) {
		t.Error(err)
	}
}

// TestRacingCreators runs several processes that create a CA at the same time, while writes are lost, late or refused.
// All must get the same CA, bundle and nonce key.
func TestRacingCreators(t *testing.T) {
	for seed := range byte(60) {
		dice := rand.New(rand.NewPCG(uint64(seed), 2))
		var mu sync.Mutex
		bucket := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
			mu.Lock()
			defer mu.Unlock()
			switch n := dice.IntN(10); {
			case r.Op == mem.Put && n < 2:
				return mem.Fault{Lost: true}
			case r.Op == mem.Put && n < 4:
				return mem.Fault{Late: 1 + dice.IntN(6)}
			case r.Op == mem.Put && n < 5:
				return mem.Fault{Err: objstore.ErrIndeterminate}
			case r.Op != mem.Put && n < 1:
				return mem.Fault{Err: errors.New("injected: read failed")}
			}
			return mem.Fault{}
		}})
		const racers = 3
		var cas [racers]authority.CA
		var workloadCAs [racers]authority.CA
		var nonces [racers]authority.NonceKey
		var makers [racers]int
		var wg sync.WaitGroup
		for i := range racers {
			s := open(t, bucket, seed*racers+byte(i))
			wg.Go(func() {
				for {
					ca, created, err := s.EnsureCA(t.Context())
					if errors.Is(err, clusterstate.ErrCALost) {
						t.Errorf("seed %d: racer %d: %v", seed, i, err)
						return
					}
					if err != nil {
						continue // a read failed: the next try sees what is there
					}
					if created {
						makers[i]++
					}
					nonce, _, err := s.EnsureNonceKey(t.Context())
					if err != nil {
						continue
					}
					workloadCA, _, err := s.EnsureWorkloadCA(t.Context(), ca)
					if err != nil {
						continue
					}
					cas[i], workloadCAs[i], nonces[i] = ca, workloadCA[0], nonce
					return
				}
			})
		}
		wg.Wait()
		bucket.Land()
		for i := range racers {
			if cas[i].IsZero() || !cas[i].Certificate().Equal(cas[0].Certificate()) ||
				!workloadCAs[i].Certificate().Equal(workloadCAs[0].Certificate()) ||
				!nonces[i].Public().Equal(nonces[0].Public()) {
				t.Fatalf("seed %d: racers 0 and %d do not agree: %v, %v", seed, i, cas[0], cas[i])
			}
		}
		if made := makers[0] + makers[1] + makers[2]; made > 1 {
			t.Errorf("seed %d: made %d times", seed, made)
		}
		entries, err := bucket.List(t.Context(), "")
		for err != nil {
			entries, err = bucket.List(t.Context(), "")
		}
		if len(entries) != 4 {
			t.Errorf("seed %d: %v", seed, entries)
		}
	}
}
