package clusterstate_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// crashing is a bucket as seen by a process that dies at a write. If "late" is true, the write takes effect
// nevertheless. If die does nothing, only that write fails.
type crashing struct {
	*mem.Store
	writes int // until the one at which the process dies
	late   bool
	die    context.CancelFunc
}

func (c *crashing) step(ctx context.Context, write func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.writes--
	if c.writes != 0 {
		return write()
	}
	if c.late {
		_ = write() // the process never learns the result
	}
	c.die()
	return cmp.Or(ctx.Err(), errors.New("503"))
}

func (c *crashing) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (token objstore.Token,
	err error) {
	err = c.step(ctx, func() error {
		token, err = c.Store.Put(ctx, key, body, cond)
		return err
	})
	return token, err
}

func (c *crashing) Delete(ctx context.Context, key string) error {
	return c.step(ctx, func() error { return c.Store.Delete(ctx, key) })
}

// rotate runs all steps of a rotation, and calls check after each.
func rotate(ctx context.Context, s *clusterstate.State, check func(clusterstate.Rotation)) error {
	for _, step := range []func(context.Context) (clusterstate.Rotation, error){s.AnnounceCA, s.IssueFromNewCA,
		s.RemoveOldCA} {
		r, err := step(ctx)
		if err != nil {
			return err
		}
		check(r)
	}
	return nil
}

// TestInterruptedRotation stops a rotation before and after each of its writes. Then the cluster must still work, and
// another process must complete the same rotation of the CA and the nonce key.
func TestInterruptedRotation(t *testing.T) {
	for n, complete := 1, false; !complete; n++ {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d, late %t", n, late), func(t *testing.T) {
				bucket, reader, old := newCluster(t)
				oldNonces, _, err := reader.EnsureNonceKey(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				rec := operator(t, 1, "prod")
				if _, err := reader.PutOperator(t.Context(), rec, ""); err != nil {
					t.Fatal(err)
				}
				ctx, die := context.WithCancel(t.Context())
				defer die()
				if err := rotate(ctx, open(t, &crashing{bucket, n, late, die}, 2),
					func(clusterstate.Rotation) {}); err == nil {
					complete = true
				}
				usable := func(when string) {
					for name, state := range map[string]*clusterstate.State{"running": reader,
						"new": open(t, bucket, 3)} {
						if _, err := state.CABundle(t.Context()); err != nil {
							t.Errorf("%s: %s process: %v", when, name, err)
						}
						if _, _, err := state.GetOperator(t.Context(), "prod", rec.ID); err != nil {
							t.Errorf("%s: %s process: %v", when, name, err)
						}
						if _, err := state.LoadNonceKey(t.Context()); err != nil {
							t.Errorf("%s: %s process: %v", when, name, err)
						}
					}
				}
				usable("after the crash")
				s := open(t, bucket, 4)
				if complete {
					return
				}
				at, err := s.CARotation(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				next := at.Other
				if at.Step == clusterstate.RotationIssued || at.Step == clusterstate.RotationNone &&
					!at.Current.Equal(old.Certificate()) {
					next = at.Current
				}
				if at.Step == clusterstate.RotationNone && next != nil {
					return // it had ended
				}
				if err := rotate(t.Context(), s, func(r clusterstate.Rotation) {
					usable("after step " + r.Step.String())
				}); err != nil {
					t.Fatal(err)
				}
				bundle, err := s.CABundle(t.Context())
				if err != nil || len(bundle) != 1 || bundle[0].Equal(old.Certificate()) ||
					next != nil && !bundle[0].Equal(next) {
					t.Errorf("the rotation that was at step %s ended with %d CAs, want the one that was announced: %v",
						at.Step, len(bundle), err)
				}
				if key, err := s.LoadNonceKey(t.Context()); err != nil || len(key.Accepted()) != 1 ||
					key.Public().Equal(oldNonces.Public()) {
					t.Errorf("after the rotation the nonce key is the old one, or another one is accepted: %v", err)
				}
				names, err := secrets(t, bucket, cluster, key(t, 1), random(5)).List(t.Context())
				if err != nil || slices.Contains(names, secretstore.NextCAKey) {
					t.Errorf("secrets after the rotation: %v, %v", names, err)
				}
			})
		}
	}
}

// TestFailedRotation lets one write of a rotation fail. The step must return the error, and the next call completes the
// rotation.
func TestFailedRotation(t *testing.T) {
	for n := 1; ; n++ {
		bucket, _, old := newCluster(t)
		store := &crashing{Store: bucket, writes: n, die: func() {}}
		s := open(t, store, 2)
		if _, _, err := s.EnsureNonceKey(t.Context()); err != nil {
			continue
		}
		last := clusterstate.RotationNone
		err := rotate(t.Context(), s, func(r clusterstate.Rotation) { last = r.Step })
		if store.writes > 0 {
			if n < 5 || err != nil {
				t.Errorf("a rotation has %d writes, %v", n-1, err)
			}
			return
		}
		if err == nil {
			t.Errorf("write %d of a rotation fails, and no step after %s has an error", n, last)
		}
		if err := rotate(t.Context(), s, func(clusterstate.Rotation) {}); err != nil {
			t.Errorf("after write %d failed: %v", n, err)
		}
		bundle, err := s.CABundle(t.Context())
		if err != nil || len(bundle) != 1 || bundle[0].Equal(old.Certificate()) {
			t.Errorf("after write %d failed, %d CAs are trusted, %v", n, len(bundle), err)
		}
	}
}

// TestEndlessConflicts rotates the CA in a bucket that answers each write of the CA bundle with a conflict.
func TestEndlessConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writes := 0
		bucket := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
			if r.Op == mem.Put && r.Key == keys.ClusterCA() {
				if writes++; writes > 1 { // EnsureCA writes the first bundle
					return mem.Fault{Err: objstore.ErrConflict}
				}
			}
			return mem.Fault{}
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := open(t, bucket, 1).AnnounceCA(ctx); !errors.Is(err, objstore.ErrConflict) || writes > 100 {
			t.Errorf("after %d writes: %v", writes, err)
		}
	})
}

// TestNonceKeyRotation checks that leaders accept each other's nonces in each step of a rotation, even if one leader
// does not know of the step yet. When the rotation has ended, nonces of the old key are refused.
func TestNonceKeyRotation(t *testing.T) {
	_, s, _ := newCluster(t)
	first, _, err := s.EnsureNonceKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	accepts := func(leader, minting authority.NonceKey) error {
		nonce, _, err := authority.MintNonce(minting, authority.NonceSpec{Role: authority.RoleOperator,
			Cluster: cluster, Tenant: "default"}, rand.Reader, t0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = authority.ParseNonce(leader.Accepted(), cluster, nonce.Reveal(), t0, false)
		return err
	}
	before := first
	if err := rotate(t.Context(), s, func(r clusterstate.Rotation) {
		now, err := s.LoadNonceKey(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := accepts(now, before); err != nil {
			t.Errorf("step %s: a nonce of the step before: %v", r.Step, err)
		}
		if err := accepts(before, now); err != nil {
			t.Errorf("step %s: a leader of the step before: %v", r.Step, err)
		}
		before = now
	}); err != nil {
		t.Fatal(err)
	}
	if err := accepts(before, first); !errors.Is(err, authority.ErrNonceSignature) {
		t.Errorf("a nonce of the old key after the rotation: %v, want %v", err, authority.ErrNonceSignature)
	}
}

// TestConcurrentRotations checks that two processes that rotate the CA at the same time make one new CA.
func TestConcurrentRotations(t *testing.T) {
	bucket, s, _ := newCluster(t)
	first, err := s.AnnounceCA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other := open(t, bucket, 2)
	second, err := other.AnnounceCA(t.Context())
	if err != nil || !second.Other.Equal(first.Other) || second.Trust != first.Trust || first.Trust == "" {
		t.Fatalf("%+v and %+v, %v", first, second, err)
	}
	if _, err := s.RemoveOldCA(t.Context()); err == nil {
		t.Error("the CA that still issues was removed")
	}
	for _, state := range []*clusterstate.State{s, other} {
		issued, err := state.IssueFromNewCA(t.Context())
		if err != nil || issued.Step != clusterstate.RotationIssued || !issued.Current.Equal(first.Other) ||
			issued.Trust == first.Trust {
			t.Errorf("%+v, %v", issued, err)
		}
	}
	for _, state := range []*clusterstate.State{s, other} {
		if r, err := state.RemoveOldCA(t.Context()); err != nil || r.Step != clusterstate.RotationNone ||
			r.Trust != "" {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// TestDocumentSignedWhileTheCAChanges ends a rotation after a leader that did not know the new CA yet has signed a
// record with the old one. Processes that trust only the new CA must accept the record.
func TestDocumentSignedWhileTheCAChanges(t *testing.T) {
	bucket, s, old := newCluster(t)
	for _, step := range []func(context.Context) (clusterstate.Rotation, error){s.AnnounceCA, s.IssueFromNewCA} {
		if _, err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	rec := operator(t, 1, "prod")
	content, err := rec.Encode()
	if err != nil {
		t.Fatal(err)
	}
	at := keys.ClusterOperator("prod", rec.ID.Storage())
	body, err := authority.SignDocument(authority.Document{Cluster: cluster, Key: at, Version: rec.Revision,
		Content: content}, old)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, bucket, at, body)
	if _, err := s.RemoveOldCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := open(t, bucket, 2).GetOperator(t.Context(), "prod", rec.ID); err != nil {
		t.Errorf("after the old CA was removed: %v", err)
	}
}

func TestFollowers(t *testing.T) {
	_, s, _ := newCluster(t)
	announced, err := s.AnnounceCA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	trust := announced.Trust
	followers := s.Followers(announced)
	check := func(when string, leader bool, instances, behind, operators int) {
		t.Helper()
		got, err := followers.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Shards) != 1 || got.Shards[0].Leader != leader || got.Shards[0].Instances != instances ||
			len(got.Shards[0].Behind) != behind || len(got.Operators) != operators ||
			got.Done() != (leader && behind == 0 && operators == 0) {
			t.Errorf("%s: %+v", when, got)
		}
	}
	if got, err := followers.Check(t.Context()); err != nil || len(got.Shards) > 0 || !got.Done() {
		t.Errorf("an empty cluster: %+v, %v", got, err)
	}
	if _, err := s.WriteConfig(t.Context(), shard, []byte("{}"), ""); err != nil {
		t.Fatal(err)
	}
	if got, err := followers.Check(t.Context()); err != nil || len(got.Shards) > 0 {
		t.Errorf("a shard that never had a leader: %+v, %v", got, err)
	}
	ref := func(trust string, life time.Duration) *record.CertificateRef {
		return &record.CertificateRef{Serial: strings.Repeat("0f", 16), NotAfter: t0.Add(life), Trust: trust}
	}
	tokens := map[ident.ID]objstore.Token{}
	put := func(rec record.Instance) record.Instance {
		t.Helper()
		token, err := s.PutInstance(t.Context(), rec, tokens[rec.ID])
		if err != nil {
			t.Fatal(err)
		}
		tokens[rec.ID] = token
		return rec
	}
	registered := func(n int, ref *record.CertificateRef) record.Instance {
		rec, err := created(t, reserved(t, n), 3, "w1").Next(record.Registered, 3, "w1")
		if err != nil {
			t.Fatal(err)
		}
		rec.PublicKey, rec.Certificate, rec.RegisteredAt, rec.NonceID = bytes.Repeat([]byte{byte(n)}, 32), ref, t0, "n"
		rec.Revision = 1
		return rec
	}
	if err := s.WriteApplied(t.Context(), []byte("{}"), "etag", 3); err != nil {
		t.Fatal(err)
	}
	check("a shard without instances", true, 0, 0, 0)
	put(registered(1, ref(trust, time.Hour)))
	check("one that has followed", true, 1, 0, 0)
	put(registered(2, ref("", -time.Hour)))
	check("an expired certificate", true, 1, 0, 0)
	late := put(registered(3, ref("", time.Hour)))
	check("one with a certificate of before", true, 2, 1, 0)
	late.Revision, late.Certificate, late.PreviousKey = 2, ref(trust, 2*time.Hour), late.PublicKey
	late.PublicKey = bytes.Repeat([]byte{9}, 32)
	put(late)
	check("one that may not have got its certificate", true, 2, 1, 0)
	late.Revision, late.PreviousKey = 3, nil
	put(late)
	check("one that has used its certificate", true, 2, 0, 0)
	starting := created(t, reserved(t, 4), 3, "w1")
	starting.Revision = 1
	put(starting)
	check("one that started with the former bundle and may still register", true, 3, 1, 0)
	starting.Revision, starting.CreatedAt = 2, t0.Add(time.Hour)
	put(starting)
	check("one that started with the new bundle", true, 2, 0, 0)
	put(reserved(t, 5))
	check("a reservation of the leader", true, 2, 0, 0)
	rec := operator(t, 1, "prod")
	token, err := s.PutOperator(t.Context(), rec, "")
	if err != nil {
		t.Fatal(err)
	}
	check("an operator of before", true, 2, 0, 1)
	rec.Revision, rec.Certificate.Trust = 2, trust
	if _, err = s.PutOperator(t.Context(), rec, token); err != nil {
		t.Fatal(err)
	}
	check("an operator that has followed", true, 2, 0, 0)
	// The next step begins. No leader, instance or operator uses the CAs of this step yet.
	issued, err := s.IssueFromNewCA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	followers = s.Followers(issued)
	check("after the next step", false, 3, 3, 1)
	if err := s.WriteApplied(t.Context(), []byte("{}"), "etag", 4); err != nil {
		t.Fatal(err)
	}
	check("the leader has followed, and finds a reservation of another term", true, 3, 3, 1)
}

// TestFollowersWaitForFiles checks that the old CA is not removed while files of instances hold certificates that it
// issued before the workload CA started.
func TestFollowersWaitForFiles(t *testing.T) {
	for name, test := range map[string]struct {
		age  time.Duration // of the cluster when its workload CA was made
		want time.Time
	}{
		"a cluster older than its workload CA": {2 * time.Hour, t0.Add(120 * 24 * time.Hour)},
		"a cluster with its own workload CA":   {time.Minute, time.Time{}},
	} {
		s := open(t, mem.New(mem.Options{Now: func() time.Time { return t0 }}), 1)
		ca, err := authority.CreateCA(cluster, rand.Reader, t0.Add(-test.age))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.StoreCA(t.Context(), ca); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.EnsureWorkloadCA(t.Context(), ca); err != nil {
			t.Fatal(err)
		}
		announced, err := s.AnnounceCA(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Followers(announced).Check(t.Context()); err != nil || !got.Done() {
			t.Errorf("%s: the new CA is announced: %+v, %v", name, got, err)
		}
		issued, err := s.IssueFromNewCA(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Followers(issued).Check(t.Context())
		if err != nil || got.FilesUntil.Sub(test.want).Abs() > time.Hour || got.Done() != test.want.IsZero() {
			t.Errorf("%s: certificates in files until %v, want %v; done: %t, %v", name, got.FilesUntil, test.want,
				got.Done(), err)
		}
	}
}

func TestTrust(t *testing.T) {
	one, err := authority.CreateCA(cluster, random(1), t0)
	if err != nil {
		t.Fatal(err)
	}
	two, err := authority.CreateCA(cluster, random(2), t0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := one.Certificate(), two.Certificate()
	if got := authority.Trust(a, certs(a)); got != "" {
		t.Errorf("a single CA has trust %q, want none", got)
	}
	seen := map[string]bool{"": true}
	for _, trust := range []string{authority.Trust(a, certs(a, b)), authority.Trust(b, certs(a, b)),
		authority.Trust(a, certs(b))} {
		if seen[trust] || len(trust) != 16 {
			t.Errorf("trust %q: want 16 characters, and another one for each CA and bundle", trust)
		}
		seen[trust] = true
	}
	if keys.ConfigPrefix()+shard+".jsonc" != keys.Config(shard) {
		t.Error("the prefix of configurations is not that of their keys")
	}
}

func certs(list ...*x509.Certificate) []*x509.Certificate { return list }
