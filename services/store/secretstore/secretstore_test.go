package secretstore_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/services/store/secretstore/secretstoretest"
)

func key(t testing.TB, fill byte) envelope.Key {
	t.Helper()
	k, err := envelope.NewKey(bytes.Repeat([]byte{fill}, envelope.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func noSleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func objects(bucket objstore.Store, cluster string, ring keyring.Ring) *secretstore.Objects {
	return secretstore.NewObjects(secretstore.Options{Bucket: bucket, Cluster: cluster, Ring: ring, Rand: rand.Reader,
		Sleep: noSleep})
}

func TestObjects(t *testing.T) {
	secretstoretest.Run(t, func(t *testing.T) (a, b secretstore.Store) {
		bucket, ring := mem.New(), keyring.Ring{Current: key(t, 1)}
		return objects(bucket, "example", ring), objects(bucket, "example", ring)
	})
}

// TestObjectsLoseAnswers runs the suite with a bucket that loses the answers to one third of all puts, and delays the
// effect of another third. Every writer must still learn the result of its write.
func TestObjectsLoseAnswers(t *testing.T) {
	secretstoretest.Run(t, func(t *testing.T) (a, b secretstore.Store) {
		bucket := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
			switch {
			case r.Op != mem.Put:
				return mem.Fault{}
			case r.Seq%3 == 0:
				return mem.Fault{Lost: true}
			case r.Seq%3 == 1:
				return mem.Fault{Late: 2}
			}
			return mem.Fault{}
		}})
		ring := keyring.Ring{Current: key(t, 1)}
		return objects(bucket, "example", ring), objects(bucket, "example", ring)
	})
}

// TestHostileRollback lets a hostile writer replace a secret in the bucket by an earlier version.
func TestHostileRollback(t *testing.T) {
	bucket, ring := mem.New(), keyring.Ring{Current: key(t, 1)}
	a, b := objects(bucket, "example", ring), objects(bucket, "example", ring)
	put := func(s *secretstore.Objects, text string) []byte {
		if err := s.Put(t.Context(), "db", secretstore.NewValue([]byte(text)), secretstore.Any); err != nil {
			t.Fatal(err)
		}
		object, err := bucket.Get(t.Context(), keys.ClusterSecret("db"))
		if err != nil {
			t.Fatal(err)
		}
		return object.Body
	}
	first, second := put(a, "stolen"), put(b, "new")
	if _, err := a.Get(t.Context(), "db"); err != nil {
		t.Fatal(err)
	}
	raised := bytes.Clone(first)
	raised[13]++ // the first byte of the version
	for name, c := range map[string]struct {
		body []byte
		want error
	}{
		"an earlier version": {first, highwater.ErrRolledBack},
		"a raised version":   {raised, envelope.ErrAuthentication},
		"the newest version": {second, nil},
	} {
		if _, err := bucket.Put(t.Context(), keys.ClusterSecret("db"), c.body, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		for process, s := range map[string]*secretstore.Objects{"reader": a, "writer": b} {
			if _, err := s.Get(t.Context(), "db"); !errors.Is(err, c.want) {
				t.Errorf("%s: the %s gets %v, want %v", name, process, err, c.want)
			}
		}
	}
	if _, err := bucket.Put(t.Context(), keys.ClusterSecret("db"), raised, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	put(b, "newest") // a forged version does not keep a program from writing
	if secret, err := a.Get(t.Context(), "db"); err != nil || string(secret.Value.Reveal()) != "newest" {
		t.Errorf("%s, %v", secret.Value.Reveal(), err)
	}
}

// TestVersions checks the version of a secret that replaces one with a version above the present time. A writer's clock
// may be ahead, and a hostile writer may forge a version.
func TestVersions(t *testing.T) {
	now := uint64(time.Now().UnixMilli())
	for there, want := range map[uint64]uint64{now + 3_600_000: now + 3_600_001, highwater.MaxVersion + 7: now} {
		bucket := mem.New()
		blob, err := envelope.Seal(key(t, 1), "example", "db", there, []byte("old"), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bucket.Put(t.Context(), keys.ClusterSecret("db"), blob, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		store := objects(bucket, "example", keyring.Ring{Current: key(t, 1)})
		if err := store.Put(t.Context(), "db", secretstore.NewValue([]byte("new")), secretstore.Any); err != nil {
			t.Fatal(err)
		}
		object, err := bucket.Get(t.Context(), keys.ClusterSecret("db"))
		if got := envelope.Version(object.Body); err != nil || got < want || got > want+60_000 {
			t.Errorf("version %d replaces %d, %v, want %d", got, there, err, want)
		}
	}
}

func TestObjectsAreSealed(t *testing.T) {
	bucket := mem.New()
	a := objects(bucket, "example", keyring.Ring{Current: key(t, 1)})
	if err := a.Put(t.Context(), "db", secretstore.NewValue([]byte("correct horse")), secretstore.Any); err != nil {
		t.Fatal(err)
	}
	object, err := bucket.Get(t.Context(), "cluster/secret/db")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(object.Body, []byte("horse")) {
		t.Error("it is in the clear")
	}
	secret, err := a.Get(t.Context(), "db")
	if err != nil || secret.KeyID != key(t, 1).ID().String() {
		t.Errorf("%+v, %v", secret, err)
	}
	for name, c := range map[string]struct {
		store *secretstore.Objects
		want  error
	}{
		"other key":     {objects(bucket, "example", keyring.Ring{Current: key(t, 2)}), envelope.ErrUnknownKey},
		"no key":        {objects(bucket, "example", keyring.Ring{}), envelope.ErrUnknownKey},
		"other cluster": {objects(bucket, "other", keyring.Ring{Current: key(t, 1)}), envelope.ErrAuthentication},
		"old key": {objects(bucket, "example", keyring.Ring{Current: key(t, 2), Old: []envelope.Key{key(t, 1)}}),
			nil},
	} {
		_, err := c.store.Get(t.Context(), "db")
		if !errors.Is(err, c.want) || errors.Is(err, secretstore.ErrNotFound) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, err := bucket.Put(t.Context(), keys.ClusterSecret("copy"), object.Body, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Get(t.Context(), "copy"); !errors.Is(err, envelope.ErrAuthentication) {
		t.Error("a copy under another name:", err)
	}
}

func TestNoKeyIsAnError(t *testing.T) {
	bucket := mem.New()
	a := objects(bucket, "example", keyring.Ring{Old: []envelope.Key{key(t, 1)}})
	for _, cond := range []secretstore.Condition{secretstore.Any, secretstore.IfAbsent} {
		if err := a.Put(t.Context(), "x", secretstore.NewValue([]byte("v")), cond); !errors.Is(err,
			secretstore.ErrNoKey) {
			t.Error(err)
		}
	}
	if entries, err := bucket.List(t.Context(), ""); err != nil || len(entries) != 0 {
		t.Errorf("stored %v, %v", entries, err)
	}
}

func TestListNamesStrays(t *testing.T) {
	bucket := mem.New()
	if _, err := bucket.Put(t.Context(), "cluster/secret/a/b", []byte("x"), objstore.Always()); err != nil {
		t.Fatal(err)
	}
	_, err := objects(bucket, "example", keyring.Ring{Current: key(t, 1)}).List(t.Context())
	if err == nil || !strings.Contains(err.Error(), "cluster/secret/a/b") {
		t.Error(err)
	}
}

func TestUnreadableIsNotMissing(t *testing.T) {
	denied := errors.New("denied")
	bucket := mem.New(mem.Options{Inject: func(context.Context, mem.Request) mem.Fault {
		return mem.Fault{Err: denied}
	}})
	_, err := objects(bucket, "example", keyring.Ring{Current: key(t, 1)}).Get(t.Context(), "x")
	if !errors.Is(err, denied) || errors.Is(err, secretstore.ErrNotFound) {
		t.Error(err)
	}
}

func TestReseal(t *testing.T) {
	// meddle simulates another writer. Reseal is called twice. After the first call has read the secret, and before it
	// writes, meddle stores a value under the old key.
	var meddle func()
	bucket := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
		if f := meddle; f != nil && r.Op == mem.Put {
			meddle = nil
			f()
		}
		return mem.Fault{}
	}})
	old := objects(bucket, "example", keyring.Ring{Current: key(t, 1)})
	put := func(content string) {
		if err := old.Put(t.Context(), "x", secretstore.NewValue([]byte(content)), secretstore.Any); err != nil {
			t.Fatal(err)
		}
	}
	put("first")
	meddle = func() { put("second") }
	both := objects(bucket, "example", keyring.Ring{Current: key(t, 2), Old: []envelope.Key{key(t, 1)}})
	for _, want := range []bool{true, false} {
		if changed, err := both.Reseal(t.Context(), "x"); err != nil || changed != want {
			t.Errorf("changed %v, %v, want %v", changed, err, want)
		}
	}
	secret, err := objects(bucket, "example", keyring.Ring{Current: key(t, 2)}).Get(t.Context(), "x")
	if err != nil || string(secret.Value.Reveal()) != "second" {
		t.Errorf("%q, %v", secret.Value.Reveal(), err)
	}
	if _, err := both.Reseal(t.Context(), "y"); !errors.Is(err, secretstore.ErrNotFound) {
		t.Error(err)
	}
}

func TestValueRedacts(t *testing.T) {
	secret := secretstore.Secret{Name: "x", Value: secretstore.NewValue([]byte("sesame"))}
	type holder struct {
		S secretstore.Secret
		s secretstore.Secret
		v secretstore.Value
	}
	var out bytes.Buffer
	for _, v := range []any{secret, &secret, secret.Value, &secret.Value, holder{secret, secret, secret.Value},
		&holder{secret, secret, secret.Value}, []secretstore.Value{secret.Value}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%t"} {
			fmt.Fprintf(&out, verb, v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "value", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "value", v)
		if err := json.NewEncoder(&out).Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	for _, leak := range []string{"sesame", "736573616d65", "115 101 115", "c2VzYW1l", "0x73, 0x65"} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("leaks %q", leak)
		}
	}
}
