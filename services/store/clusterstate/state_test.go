package clusterstate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const (
	cluster = "example"
	shard   = "us-west-2a"
)

// chacha is a random source that may be used concurrently.
type chacha struct {
	mu  sync.Mutex
	src *rand.ChaCha8
}

func (c *chacha) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.src.Read(p)
}

func random(seed byte) io.Reader { return &chacha{src: rand.NewChaCha8([32]byte{seed})} }

func noSleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func key(t testing.TB, fill byte) envelope.Key {
	t.Helper()
	k, err := envelope.NewKey(bytes.Repeat([]byte{fill}, envelope.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// open returns a State for one of several processes. Every process has its own randomness.
func open(t testing.TB, bucket objstore.Store, process byte, change ...func(
	*clusterstate.Options)) *clusterstate.State {
	t.Helper()
	source := random(process)
	options := clusterstate.Options{
		Cluster: bucket, Shard: bucket, ClusterID: cluster, ShardID: shard, Now: func() time.Time {
			return t0
		}, Rand: source, Sleep: noSleep,
		Secrets: secrets(t, bucket, cluster, key(t, 1), source),
	}
	for _, f := range change {
		f(&options)
	}
	return clusterstate.New(options)
}

func secrets(t testing.TB, bucket objstore.Store, cluster string, k envelope.Key, source io.Reader) secretstore.Store {
	t.Helper()
	return secretstore.NewObjects(secretstore.Options{Bucket: bucket, Cluster: cluster, Ring: keyring.Ring{Current: k},
		Rand: source, Sleep: noSleep})
}

func newID(t testing.TB, prefix string, n int) ident.ID {
	t.Helper()
	id, err := ident.NewID(prefix, t0.Add(time.Duration(n)*time.Second), random(byte(n)))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func reserved(t testing.TB, n int) record.Instance {
	id := newID(t, "knd", n)
	return record.Instance{
		Schema: record.InstanceSchema, ID: id, State: record.Reserved, Revision: 1, Term: 3, ReservedTerm: 3,
		Writer: "w1", Cluster: cluster,
		Shard: shard, Tenant: "prod", Kind: "knd", CreatedAt: t0,
	}
}

func created(t testing.TB, from record.Instance, term uint64, writer string) record.Instance {
	t.Helper()
	next, err := from.Next(record.Created, term, writer)
	if err != nil {
		t.Fatal(err)
	}
	next.Group, next.Template, next.ProviderID = "workers", "worker", "i-"+writer
	return next
}

var sameID = cmp.Comparer(func(a, b ident.ID) bool { return a == b })

func TestInstance(t *testing.T) {
	bucket := mem.New()
	s := open(t, bucket, 1)
	rec := reserved(t, 1)
	if _, _, err := s.GetInstance(t.Context(), "prod", rec.ID); !errors.Is(err, objstore.ErrNotFound) {
		t.Fatal(err)
	}
	token, err := s.PutInstance(t.Context(), rec, "")
	if err != nil {
		t.Fatal(err)
	}
	got, gotToken, err := s.GetInstance(t.Context(), "prod", rec.ID)
	if err != nil || gotToken != token {
		t.Fatal(gotToken, err)
	}
	if diff := cmp.Diff(rec, got, sameID); diff != "" {
		t.Error(diff)
	}
	next := created(t, got, 4, "w2")
	nextToken, err := s.PutInstance(t.Context(), next, token)
	if err != nil {
		t.Fatal(err)
	}
	// A write fails if its token is not the current one. The error contains the current record.
	for name, stale := range map[string]objstore.Token{"an old version": token, "none": ""} {
		_, err = s.PutInstance(t.Context(), created(t, rec, 3, "w1"), stale)
		var superseded *clusterstate.SupersededError
		if !errors.As(err, &superseded) || !errors.Is(err, objstore.ErrConflict) {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(next, superseded.Record, sameID); diff != "" || superseded.Token != nextToken ||
			superseded.ID != rec.ID {
			t.Errorf("%s: %s", name, diff)
		}
		if !strings.Contains(err.Error(), "revision 2 of term 4, created") {
			t.Error(err)
		}
	}
	// A caller repeats a call if it did not get the answer. The repeated call returns the same token.
	if again, err := s.PutInstance(t.Context(), next, token); err != nil || again != nextToken {
		t.Errorf("again: %v, %v", again, err)
	}
	for range 2 {
		if err := s.DeleteInstance(t.Context(), "prod", rec.ID); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.PutInstance(t.Context(), created(t, rec, 4, "w3"), nextToken)
	var superseded *clusterstate.SupersededError
	if !errors.As(err, &superseded) || superseded.Token != "" || !strings.Contains(err.Error(), "gone") {
		t.Error(err)
	}
}

// TestInstanceRaces lets several leaders write the same version of a record at the same time. Exactly one must succeed,
// and all must learn which, even if answers of writes are lost.
func TestInstanceRaces(t *testing.T) {
	for seed := range byte(200) {
		dice := rand.New(rand.NewPCG(uint64(seed), 1))
		var mu sync.Mutex
		bucket := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
			mu.Lock()
			defer mu.Unlock()
			switch n := dice.IntN(10); {
			case r.Op == mem.Put && n < 2:
				return mem.Fault{Lost: true}
			case r.Op == mem.Put && n < 4:
				return mem.Fault{Late: 1 + dice.IntN(5)}
			case r.Op == mem.Put && n < 5:
				return mem.Fault{Err: objstore.ErrIndeterminate}
			case r.Op == mem.Get && n < 1:
				return mem.Fault{Err: errors.New("injected: read failed")}
			}
			return mem.Fault{}
		}})
		s := open(t, bucket, seed)
		rec := reserved(t, 1)
		token, err := s.PutInstance(t.Context(), rec, "")
		if err != nil {
			t.Fatal(err)
		}
		const writers = 3
		errs := make([]error, writers)
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				next := created(t, rec, uint64(4+i), fmt.Sprint("w", i))
				for {
					_, errs[i] = s.PutInstance(t.Context(), next, token)
					var superseded *clusterstate.SupersededError
					if errs[i] == nil || errors.As(errs[i], &superseded) {
						return
					}
				}
			})
		}
		wg.Wait()
		bucket.Land()
		var got record.Instance
		for {
			if got, _, err = s.GetInstance(t.Context(), "prod", rec.ID); err == nil {
				break
			}
		}
		for i, err := range errs {
			if won := got.Writer == fmt.Sprint("w", i); won != (err == nil) {
				t.Errorf("seed %d: writer %d: %v, but %s is there", seed, i, err, got.Writer)
			}
		}
	}
}

func TestForeignInstance(t *testing.T) {
	bucket := mem.New()
	rec := reserved(t, 1)
	if _, err := open(t, bucket, 1).PutInstance(t.Context(), rec, ""); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*clusterstate.State{
		"other cluster": open(t, bucket, 1, func(o *clusterstate.Options) { o.ClusterID = "other" }),
		"other shard":   open(t, bucket, 1, func(o *clusterstate.Options) { o.ShardID = "elsewhere" }),
	} {
		if _, err := s.PutInstance(t.Context(), rec, ""); !errors.Is(err, clusterstate.ErrForeign) {
			t.Errorf("%s: write: %v", name, err)
		}
	}
	other := open(t, bucket, 1, func(o *clusterstate.Options) { o.ClusterID = "other" })
	if _, _, err := other.GetInstance(t.Context(), "prod", rec.ID); !errors.Is(err, clusterstate.ErrForeign) ||
		errors.Is(err, objstore.ErrNotFound) {
		t.Error("read:", err)
	}
	if err := other.LoadInstances(t.Context(), func(record.Instance, objstore.Token) {
		t.Error("a foreign record")
	}); !errors.Is(err, clusterstate.ErrForeign) {
		t.Error("load:", err)
	}
	// Copy a record to another tenant's key.
	body, err := rec.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Put(t.Context(), keys.Instance(shard, "dev", rec.ID.Storage()), body,
		objstore.Always()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := open(t, bucket, 1).GetInstance(t.Context(), "dev", rec.ID); !errors.Is(err,
		clusterstate.ErrForeign) || !strings.Contains(err.Error(), `tenant is "prod"`) {
		t.Error(err)
	}
}

func TestLoadInstances(t *testing.T) {
	vanishing := ""
	bucket := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
		if r.Op == mem.Get && r.Key == vanishing {
			return mem.Fault{Err: objstore.ErrNotFound}
		}
		return mem.Fault{}
	}})
	// backwards makes all calls concurrently, and starts the last call first. It stores its parameter "limit" in
	// "most".
	most := 0
	backwards := func(ctx context.Context, n, limit int, fn func(context.Context, int) error) error {
		most = limit
		var wg sync.WaitGroup
		errs := make([]error, n)
		for i := n - 1; i >= 0; i-- {
			wg.Go(func() { errs[i] = fn(ctx, i) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	s := open(t, bucket, 1, func(o *clusterstate.Options) { o.ForEach = backwards })
	var want []string
	for n := range 100 {
		rec := reserved(t, n)
		if n%10 == 0 {
			rec.Tenant = "dev"
		}
		if _, err := s.PutInstance(t.Context(), rec, ""); err != nil {
			t.Fatal(err)
		}
		if n == 55 {
			vanishing = keys.Instance(shard, "prod", rec.ID.Storage())
		}
	}
	for _, tenant := range []string{"dev", "prod"} {
		for n := range 100 {
			if n != 55 && (n%10 == 0) == (tenant == "dev") {
				want = append(want, tenant+" "+reserved(t, n).ID.String())
			}
		}
	}
	var got []string
	err := s.LoadInstances(t.Context(), func(rec record.Instance, token objstore.Token) {
		got = append(got, rec.Tenant+" "+rec.ID.String())
		if token == "" {
			t.Error("no token")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if most < 40 {
		t.Errorf("%d at a time: 5000 records at 20 ms each take too long", most)
	}
	listed, err := s.ListInstances(t.Context())
	if err != nil || len(listed) != 100 {
		t.Errorf("%d listed, %v", len(listed), err)
	}
	all, err := s.ListAllInstances(t.Context())
	if err != nil || len(all) != 100 {
		t.Errorf("%d in all shards, %v", len(all), err)
	}
	// Records that cannot be read are an error. They do not count as absent.
	for n := range 8 {
		if _, err := bucket.Put(t.Context(), keys.Instance(shard, "prod", newID(t, "knd", 1000+n).Storage()),
			[]byte("{}"), objstore.Always()); err != nil {
			t.Fatal(err)
		}
	}
	err = s.LoadInstances(t.Context(), func(record.Instance, objstore.Token) {
		t.Error("removed objects after an incomplete read")
	})
	if err == nil || strings.Count(err.Error(), "no schema version") != 5 ||
		!strings.Contains(err.Error(), "and 3 more") {
		t.Error(err)
	}
}

func TestStrayKeysAreErrors(t *testing.T) {
	bucket := mem.New()
	if _, err := bucket.Put(t.Context(), "shard/"+shard+"/instance/prod.json", []byte("{}"),
		objstore.Always()); err != nil {
		t.Fatal(err)
	}
	s := open(t, bucket, 1)
	if _, err := s.ListInstances(t.Context()); err == nil || !strings.Contains(err.Error(), "prod.json") {
		t.Error(err)
	}
	if _, _, err := s.EnsureCA(t.Context()); err == nil {
		t.Error("a CA was made although not everything there is understood")
	}
}

func TestLoadEndsWithItsContext(t *testing.T) {
	bucket := mem.New()
	s := open(t, bucket, 1)
	for n := range 3 {
		if _, err := s.PutInstance(t.Context(), reserved(t, n), ""); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	reads := 0
	counting := open(t, bucket, 1, func(o *clusterstate.Options) {
		o.ForEach = func(ctx context.Context, n, _ int, fn func(context.Context, int) error) error {
			for i := range n {
				if reads++; reads == 2 {
					cancel()
				}
				if err := fn(ctx, i); err != nil {
					return err
				}
			}
			return nil
		}
	})
	err := counting.LoadInstances(ctx, func(record.Instance, objstore.Token) {
		t.Error("removed objects after an incomplete read")
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func operator(t testing.TB, n int, tenant string) record.Operator {
	return record.Operator{
		Schema: record.OperatorSchema, Revision: 1, ID: newID(t, ident.OperatorPrefix, n), Cluster: cluster,
		Tenant: tenant, Writer: "w1",
		PublicKey: bytes.Repeat([]byte{byte(n)}, 32), Certificate: record.CertificateRef{Serial: strings.Repeat("0f",
			16), NotAfter: t0.Add(time.Hour)},
		CreatedAt: t0,
	}
}

func TestOperators(t *testing.T) {
	s := open(t, mem.New(), 1)
	first := operator(t, 1, "prod")
	token, err := s.PutOperator(t.Context(), first, "")
	if err != nil {
		t.Fatal(err)
	}
	// The first registration consumed the nonce. A registration with another key fails, and its error contains the
	// record of the first one.
	second := operator(t, 1, "prod")
	second.PublicKey = bytes.Repeat([]byte{9}, 32)
	_, err = s.PutOperator(t.Context(), second, "")
	var superseded *clusterstate.SupersededOperatorError
	if !errors.As(err, &superseded) || !bytes.Equal(superseded.Record.PublicKey, first.PublicKey) ||
		superseded.Token != token {
		t.Fatal(err)
	}
	if _, err := s.PutOperator(t.Context(), operator(t, 2, "dev"), ""); err != nil {
		t.Fatal(err)
	}
	removed := first
	removed.Revision, removed.RemovedAt = 2, t0.Add(time.Minute)
	if _, err := s.PutOperator(t.Context(), removed, token); err != nil {
		t.Fatal(err)
	}
	for tenant, want := range map[string][]record.Operator{"": {operator(t, 2, "dev"), removed}, "prod": {removed},
		"none": nil} {
		got, err := s.ListOperators(t.Context(), tenant)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, sameID); diff != "" {
			t.Errorf("tenant %q: %s", tenant, diff)
		}
	}
	if got, _, err := s.GetOperator(t.Context(), "prod", first.ID); err != nil || !got.Removed() {
		t.Errorf("%+v, %v", got, err)
	}
	if err := s.DeleteOperator(t.Context(), "prod", first.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.GetOperator(t.Context(), "prod", first.ID); !errors.Is(err, objstore.ErrNotFound) {
		t.Error(err)
	}
	foreign := operator(t, 3, "prod")
	foreign.Cluster = "other"
	if _, err := s.PutOperator(t.Context(), foreign, ""); !errors.Is(err, clusterstate.ErrForeign) {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	s := open(t, mem.New(mem.Options{Now: func() time.Time { return t0 }}), 1)
	if _, _, err := s.ReadConfig(t.Context(), shard); !errors.Is(err, objstore.ErrNotFound) {
		t.Fatal(err)
	}
	if _, err := s.ConfigModified(t.Context(), shard); !errors.Is(err, objstore.ErrNotFound) {
		t.Fatal(err)
	}
	token, err := s.WriteConfig(t.Context(), shard, []byte("1"), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.WriteConfig(t.Context(), shard, []byte("2"), ""); !errors.Is(err, objstore.ErrConflict) {
		t.Error("a second creation:", err)
	}
	next, err := s.WriteConfig(t.Context(), shard, []byte("2"), token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.WriteConfig(t.Context(), shard, []byte("3"), token); !errors.Is(err, objstore.ErrConflict) {
		t.Error("over a newer version:", err)
	}
	body, got, err := s.ReadConfig(t.Context(), shard)
	if err != nil || string(body) != "2" || got != next {
		t.Errorf("%q, %v, %v", body, got, err)
	}
	if at, err := s.ConfigModified(t.Context(), shard); err != nil || !at.Equal(t0) {
		t.Error(at, err)
	}
	if _, err := s.WriteConfig(t.Context(), "../x", []byte("3"), ""); err == nil {
		t.Error("wrote elsewhere")
	}
	if err := s.DeleteConfig(t.Context(), shard); err != nil {
		t.Error(err)
	}
	if _, _, err := s.ReadConfig(t.Context(), shard); !errors.Is(err, objstore.ErrNotFound) {
		t.Error(err)
	}
}

func TestGroups(t *testing.T) {
	bucket := mem.New()
	s := open(t, bucket, 1)
	if _, _, _, err := s.ReadGroups(t.Context()); !errors.Is(err, objstore.ErrNotFound) {
		t.Fatal(err)
	}
	size := 3
	groups := config.Groups{Term: 1, Revision: 1, Tenants: map[string]map[string]config.GroupSpec{
		"prod": {"workers": {Size: &size}}}}
	token, err := s.WriteGroups(t.Context(), groups, "")
	if err != nil {
		t.Fatal(err)
	}
	got, gotToken, problems, err := s.ReadGroups(t.Context())
	if err != nil || len(problems) > 0 || gotToken != token {
		t.Fatal(problems, err)
	}
	if diff := cmp.Diff(groups, got); diff != "" {
		t.Error(diff)
	}
	groups.Revision = 2
	if _, err := s.WriteGroups(t.Context(), groups, ""); !errors.Is(err, objstore.ErrConflict) {
		t.Error(err)
	}
	if _, err := s.WriteGroups(t.Context(), groups, token); err != nil {
		t.Error(err)
	}
	if _, err := bucket.Put(t.Context(), keys.Groups(shard), []byte(`{"prod": 1}`), objstore.Always()); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := s.ReadGroups(t.Context()); err == nil || errors.Is(err, objstore.ErrNotFound) {
		t.Error("unreadable groups:", err)
	}
}

func TestApplied(t *testing.T) {
	// meddle lets another leader write between the read and the write of s.
	var meddle func()
	bucket := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
		if f := meddle; f != nil && r.Op == mem.Put {
			meddle = nil
			f()
		}
		return mem.Fault{}
	}})
	s := open(t, bucket, 1)
	want := func(body string, term, revision uint64) {
		t.Helper()
		got, err := s.ReadApplied(t.Context())
		if err != nil || string(got.Body) != body || got.Term != term || got.Revision != revision ||
			got.Source != "etag" {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if _, err := s.ReadApplied(t.Context()); !errors.Is(err, objstore.ErrNotFound) {
		t.Fatal(err)
	}
	if err := s.WriteApplied(t.Context(), []byte("{}\n"), "etag", 2); err != nil {
		t.Fatal(err)
	}
	want("{}\n", 2, 1)
	if err := s.WriteApplied(t.Context(), []byte("{}\n"), "etag", 2); err != nil {
		t.Fatal(err)
	}
	want("{}\n", 2, 2)
	meddle = func() {
		if err := s.WriteApplied(t.Context(), []byte("[2]"), "etag", 2); err != nil {
			t.Error(err)
		}
	}
	if err := s.WriteApplied(t.Context(), []byte("[3]"), "etag", 3); err != nil {
		t.Fatal(err)
	}
	want("[3]", 3, 4)
	meddle = func() {
		if err := s.WriteApplied(t.Context(), []byte("[5]"), "etag", 5); err != nil {
			t.Error(err)
		}
	}
	if err := s.WriteApplied(t.Context(), []byte("[4]"), "etag", 4); !errors.Is(err, objstore.ErrConflict) ||
		!strings.Contains(err.Error(), "term 5") {
		t.Error(err)
	}
	want("[5]", 5, 5)
}

func TestHighestTerm(t *testing.T) {
	s := open(t, mem.New(), 1)
	want := func(term uint64) {
		t.Helper()
		if got, err := s.HighestTerm(t.Context()); err != nil || got != term {
			t.Errorf("%d, %v, want %d", got, err, term)
		}
	}
	want(0)
	if _, err := s.PutInstance(t.Context(), reserved(t, 1), ""); err != nil {
		t.Fatal(err)
	}
	want(3)
	if _, err := s.WriteGroups(t.Context(), config.Groups{Term: 5, Revision: 1}, ""); err != nil {
		t.Fatal(err)
	}
	want(5)
	if err := s.WriteApplied(t.Context(), []byte("{}"), "etag", 7); err != nil {
		t.Fatal(err)
	}
	want(7)
}

func TestCertLog(t *testing.T) {
	s := open(t, mem.New(), 1)
	entry := func(tenant string, n int) record.CertLog {
		return record.CertLog{
			Schema: record.CertLogSchema, Cluster: cluster, Shard: shard, Tenant: tenant, Instance: newID(t, "knd", 1),
			Term: 1, Writer: "w", IssuedAt: t0,
			Issued: []record.Issued{{Name: fmt.Sprint("n", n), Kind: record.CertServer,
				Serial: strings.Repeat("0f", 16), NotAfter: t0.Add(time.Hour)}},
		}
	}
	for n := range 3 { // all at the same time, as a coarse clock says
		if err := s.AppendCertLog(t.Context(), entry("prod", n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.AppendCertLog(t.Context(), entry("dev", 3)); err != nil {
		t.Fatal(err)
	}
	for tenant, want := range map[string]string{"": "n3 n0 n1 n2 ", "prod": "n0 n1 n2 ", "pro": ""} {
		entries, err := s.ListCertLog(t.Context(), tenant)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, e := range entries {
			got += e.Issued[0].Name + " "
		}
		if got != want {
			t.Errorf("tenant %q: %q, want %q", tenant, got, want)
		}
	}
	foreign := entry("prod", 1)
	foreign.Shard = "elsewhere"
	if err := s.AppendCertLog(t.Context(), foreign); !errors.Is(err, clusterstate.ErrForeign) {
		t.Error(err)
	}
}

func TestReadLockAndFile(t *testing.T) {
	bucket := mem.New()
	s := open(t, bucket, 1)
	if _, _, err := s.ReadLock(t.Context(), shard); !errors.Is(err, objstore.ErrNotFound) {
		t.Error(err)
	}
	lock := record.Lock{LeaderID: "a", Incarnation: "f00d", Term: 1, Revision: 1, LeaseMS: 10000, RenewMS: 5000}
	body, err := record.EncodeLock(lock)
	if err != nil {
		t.Fatal(err)
	}
	token, err := bucket.Put(t.Context(), keys.Leader(shard), body, objstore.Always())
	if err != nil {
		t.Fatal(err)
	}
	if got, gotToken, err := s.ReadLock(t.Context(), shard); err != nil || got.LeaderID != "a" || gotToken != token {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := s.ReadFile(t.Context(), "a/b"); !errors.Is(err, objstore.ErrNotFound) {
		t.Error(err)
	}
	if _, err := bucket.Put(t.Context(), "files/a/b", []byte("x"), objstore.Always()); err != nil {
		t.Fatal(err)
	}
	if got, err := s.ReadFile(t.Context(), "a/b"); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}

// A program without a shard must not touch `shard//…`.
func TestNoShard(t *testing.T) {
	bucket := mem.New()
	s := open(t, bucket, 1, func(o *clusterstate.Options) { o.ShardID = "" })
	_, put := s.PutInstance(t.Context(), reserved(t, 1), "")
	_, list := s.ListInstances(t.Context())
	_, groups := s.WriteGroups(t.Context(), config.Groups{Term: 1, Revision: 1}, "")
	_, log := s.ListCertLog(t.Context(), "")
	for name, err := range map[string]error{
		"put": put, "list": list, "load": s.LoadInstances(t.Context(), nil), "groups": groups, "log": log,
		"applied": s.WriteApplied(t.Context(), []byte("{}"), "etag", 1),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if entries, err := bucket.List(t.Context(), ""); err != nil || len(entries) != 0 {
		t.Errorf("wrote %v, %v", entries, err)
	}
}
