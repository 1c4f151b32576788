package registerapi_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// TestKeyThatTheClusterHasSeen checks that no instance gets a certificate for a key with which another instance of the
// cluster has registered, even if that instance has been deleted, or is in another shard, or if another leader has
// registered it. The refused agent can register with another key and the same nonce.
func TestKeyThatTheClusterHasSeen(t *testing.T) {
	for name, test := range map[string]struct {
		shard string // of the first instance
		after func(t *testing.T, w *testLeader, rec record.Instance)
	}{
		"of a deleted instance": {"a", func(t *testing.T, w *testLeader, rec record.Instance) {
			w.Delete(t, rec.ID, true)
			if err := w.Bucket.DeleteInstance(t.Context(), rec.Tenant, rec.ID); err != nil {
				t.Fatal(err)
			}
			w.State.RemoveTombstone(rec.ID)
		}},
		"of an instance that an earlier leader registered": {"a", func(*testing.T, *testLeader, record.Instance) {}},
		"of an instance of another shard":                  {"b", func(*testing.T, *testLeader, record.Instance) {}},
	} {
		t.Run(name, func(t *testing.T) {
			earlier := newTestLeader(t)
			if test.shard != earlier.Shard {
				earlier = serveLeader(t, earlier.Lead(t, test.shard, workers))
			}
			first, key := earlier.Created(t), transporttest.NewKey(t)
			if _, err := earlier.register(earlier.nonce(t, first, nil), key); err != nil {
				t.Fatal(err)
			}
			test.after(t, earlier, earlier.Stored(t, first))

			w := serveLeader(t, earlier.Lead(t, "a", workers))
			id := w.Created(t)
			nonce := w.nonce(t, id, nil)
			_, err := w.register(nonce, key)
			for _, part := range []string{first.String(), "shard " + test.shard,
				"without the content of /opt/nstance-agent"} {
				wants(t, "the key of another instance", err, codes.AlreadyExists, part)
			}
			if view, _ := w.State.Instance(id); !strings.Contains(view.Plan.Refused, first.String()) {
				t.Errorf("the leader knows the refusal as %q", view.Plan.Refused)
			}
			if rec := w.Stored(t, id); rec.State != record.Created {
				t.Errorf("the record is %s, want created: the nonce was consumed", rec.State)
			}
			if _, err := w.register(nonce, transporttest.NewKey(t)); err != nil {
				t.Errorf("another key: %v", err)
			}
		})
	}
}

// TestKeyOfTheSameInstance checks that an instance whose registration failed half-way can register with the same key.
func TestKeyOfTheSameInstance(t *testing.T) {
	w := newTestLeader(t)
	id, key := w.Created(t), transporttest.NewKey(t)
	nonce := w.nonce(t, id, nil)
	w.Fault(func(r mem.Request) mem.Fault {
		if strings.Contains(r.Key, "/instance/") && r.Op == mem.Put {
			return mem.Fault{Err: objstore.ErrInvalid}
		}
		return mem.Fault{}
	})
	_, err := w.register(nonce, key)
	wants(t, "without a bucket", err, codes.Unavailable, "try again")
	w.Fault(nil)
	if _, err := w.register(nonce, key); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestKeysWhileTheBucketFails checks that a registration whose key cannot be recorded is not refused for good, and
// leaves no certificate.
func TestKeysWhileTheBucketFails(t *testing.T) {
	w := newTestLeader(t)
	id, key := w.Created(t), transporttest.NewKey(t)
	nonce := w.nonce(t, id, nil)
	w.Fault(func(r mem.Request) mem.Fault {
		if r.Op == mem.Put && strings.HasPrefix(r.Key, "cluster/") {
			return mem.Fault{Err: objstore.ErrInvalid}
		}
		return mem.Fault{}
	})
	_, err := w.register(nonce, key)
	wants(t, "without a bucket", err, codes.Unavailable, "try again")
	if n := len(w.log(t)); n != 0 {
		t.Errorf("%d certificates were issued", n)
	}
	w.Fault(nil)
	if _, err := w.register(nonce, key); err != nil {
		t.Errorf("again: %v", err)
	}
}
