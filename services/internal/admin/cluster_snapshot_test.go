package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/snapshot"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// populate makes a cluster with one shard and one instance in the bucket, and returns the instance's record.
func (b *bucket) populate(t *testing.T) record.Instance {
	t.Helper()
	b.init(t)
	b.must(t, b.args("config", "push", exampleConfig(t))...)
	b.must(t, b.args("cluster", "register-operator", "--output-dir", t.TempDir())...)
	state := b.state(t, encryptionKey)
	id, err := ident.NewID("wrk", fleettest.Now, fleettest.Rand(7))
	if err != nil {
		t.Fatal(err)
	}
	instance := record.Instance{Schema: record.InstanceSchema, ID: id, Kind: "wrk", State: record.Created, Revision: 1,
		Term: 1, ReservedTerm: 1, Writer: "w", Cluster: "example", Shard: "dev-1", Tenant: "default", Group: "workers",
		Template: "worker", ProviderID: "vm-1", CreatedAt: fleettest.Now, LaunchedAt: fleettest.Now}
	if _, err := state.PutInstance(t.Context(), instance, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := state.WriteGroups(t.Context(), config.Groups{Term: 1, Revision: 1}, ""); err != nil {
		t.Fatal(err)
	}
	if err := state.WriteApplied(t.Context(), mustGet(t, b.store, keys.Config("dev-1")), "etag", 1); err != nil {
		t.Fatal(err)
	}
	b.put(t, keys.File("motd"), []byte("hello"))
	lock, err := record.EncodeLock(record.Lock{LeaderID: "a", Incarnation: "f00d", Term: 1, Revision: 1, LeaseMS: 10000,
		RenewMS: 5000})
	if err != nil {
		t.Fatal(err)
	}
	b.put(t, keys.Leader("dev-1"), lock)
	return instance
}

func (b *bucket) put(t *testing.T, key string, body []byte) {
	t.Helper()
	if _, err := b.store.Put(t.Context(), key, body, objstore.Always()); err != nil {
		t.Fatal(err)
	}
}

// take makes a snapshot and returns its path.
func (b *bucket) take(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot.tar.gz")
	b.must(t, b.args("cluster", "snapshot", "--output", path)...)
	return path
}

// TestSnapshotAndRestore takes a snapshot, checks it, and unpacks it into an empty bucket. That bucket then holds the
// same cluster.
func TestSnapshotAndRestore(t *testing.T) {
	stores(t, func(t *testing.T, b *bucket) {
		b.fails(t, exitFailure, "there is no cluster in this bucket", b.args("cluster", "snapshot")...)
		b.populate(t)
		b.put(t, "what/is/this", nil)
		t.Setenv("NSTANCE_ENCRYPTION_KEY", "") // a snapshot needs no key
		t.Chdir(t.TempDir())
		stdout, stderr, code := b.run(t, b.args("cluster", "snapshot")...)
		path, _, _ := strings.Cut(stdout, ":")
		if code != exitOK || path != "nstance-snapshot-example-20260728T100000Z.tar.gz" ||
			!strings.Contains(stderr, "what/is/this") {
			t.Fatal(code, stdout, stderr)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Error(info, err)
		}
		if names, err := filepath.Glob(".*"); err != nil || len(names) > 0 {
			t.Error("temporary files are left:", names, err)
		}
		b.fails(t, exitFailure, "exists already", b.args("cluster", "snapshot", "--output", path)...)

		out := b.must(t, "cluster", "restore-check", path)
		if !strings.Contains(out, "skipped  keys of the cluster: also the signatures") ||
			!strings.Contains(out, "give the encryption key") {
			t.Error(out)
		}
		t.Setenv("NSTANCE_ENCRYPTION_KEY", encryptionKey)
		checked := parse[restoreCheck](t, b.must(t, "cluster", "restore-check", path, "-o", "json"))
		if !checked.KeysChecked || !checked.Consistent || len(checked.Objects) < 10 ||
			problemsIn(checked.Findings) > 0 {
			t.Errorf("%+v", checked)
		}

		again := newBucket(t, "file")
		again.restore(t, path)
		again.must(t, again.args("cluster", "verify")...)
		for _, object := range checked.Objects {
			if a, b := mustGet(t, b.store, object.Key), mustGet(t, again.store, object.Key); string(a) != string(b) {
				t.Errorf("%s differs", object.Key)
			}
		}
	})
}

// TestSnapshotOfASharedBucket checks that "cluster snapshot" lists only a few objects of other programs, even if the
// bucket holds many.
func TestSnapshotOfASharedBucket(t *testing.T) {
	b := newBucket(t, "file")
	b.populate(t)
	const foreign = 100
	for i := range foreign {
		b.put(t, fmt.Sprintf("other/%d", i), nil)
	}
	_, stderr, code := b.run(t, b.args("cluster", "snapshot", "--output", filepath.Join(t.TempDir(), "x.tar.gz"))...)
	if n := strings.Count(stderr, "other/"); code != exitOK || n < 1 || n > 20 ||
		!strings.Contains(stderr, strconv.Itoa(foreign-n)+" more") {
		t.Errorf("exit status %d, %d objects are named:\n%s", code, n, stderr)
	}
}

// restore unpacks an archive into the bucket, which is a directory.
func (b *bucket) restore(t *testing.T, path string) {
	t.Helper()
	source, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	root, err := os.OpenRoot(b.location.Bucket)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := root.MkdirAll(b.location.Prefix, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := root.OpenRoot(b.location.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, differences, err := snapshot.Unpack(source, dir, snapshot.DefaultLimits); err != nil || len(differences) > 0 {
		t.Fatal(differences, err)
	}
}

// TestSnapshotIsWhole checks that writeNewFile leaves no file after an error, and does not replace a file that another
// program has just made.
func TestSnapshotIsWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if _, err := writeNewFile(path, func(w io.Writer) error {
		_, err := io.WriteString(w, "half")
		return errors.Join(err, io.ErrUnexpectedEOF)
	}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Error(entries, err)
	}
	_, err := writeNewFile(path, func(io.Writer) error { return os.WriteFile(path, []byte("theirs"), 0o600) })
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file that appeared meanwhile is replaced: %v", err)
	}
	if body, err := os.ReadFile(path); err != nil || string(body) != "theirs" {
		t.Errorf("%q, %v", body, err)
	}
}

// TestRestoreCheckFindsFaults injects one fault into a bucket before its snapshot, or into the archive. It checks that
// restore-check names the fault, its meaning and the next step, and reports nothing else.
func TestRestoreCheckFindsFaults(t *testing.T) {
	remove := func(key string) func(*testing.T, *bucket, record.Instance) {
		return func(t *testing.T, b *bucket, _ record.Instance) {
			if err := b.store.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
	write := func(key, body string) func(*testing.T, *bucket, record.Instance) {
		return func(t *testing.T, b *bucket, _ record.Instance) { b.put(t, key, []byte(body)) }
	}
	for name, fault := range map[string]struct {
		inject  func(*testing.T, *bucket, record.Instance)
		checks  []string // the findings that are problems
		result  string
		next    string
		unkeyed bool // also found without the encryption key
	}{
		"nothing": {func(*testing.T, *bucket, record.Instance) {}, nil, "", "", true},
		"no configuration": {remove(keys.Config("dev-1")), []string{"groups/dev-1.jsonc", "shards"},
			"its VMs become orphans", "config push", true},
		"broken configuration": {write(keys.Config("dev-1"), "{"), []string{keys.Config("dev-1"), "shards"},
			"no valid configuration", "config push", true},
		"broken groups": {write(keys.Groups("dev-1"), "{"), []string{keys.Groups("dev-1")}, "overrides are lost",
			"another snapshot", true},
		"broken lock": {write(keys.Leader("dev-1"), "{}"), []string{keys.Leader("dev-1")}, "do not lead",
			"leave it out", true},
		"broken journal": {write(keys.Journal("dev-1", fleettest.Now, 1, 1), "{"),
			[]string{keys.Journal("dev-1", fleettest.Now, 1, 1)}, "history is lost", "leave it out", true},
		"newer document": {write(keys.ServerReport("dev-1"), `{"schema": 99}`), []string{keys.ServerReport("dev-1")},
			"newer version", "leave it out", true},
		"broken applied configuration": {write(keys.Applied("dev-1"), "x"), []string{keys.Applied("dev-1")},
			"writes it again", "leave it out", true},
		"broken record": {func(t *testing.T, b *bucket, rec record.Instance) {
			b.put(t, keys.Instance("dev-1", "default", rec.ID.Storage()), []byte("{"))
		}, []string{"shard/dev-1/instance/"}, "becomes an orphan", "leave it out", true},
		"record of no group": {func(t *testing.T, b *bucket, rec record.Instance) {
			rec.Group = "gone"
			body, err := rec.Encode()
			if err != nil {
				t.Fatal(err)
			}
			b.put(t, keys.Instance("dev-1", "default", rec.ID.Storage()), body)
		}, []string{"group default/gone of shard dev-1"}, "deletes their VMs", "restore config/ and groups/", true},
		"group without a template": {func(t *testing.T, b *bucket, _ record.Instance) {
			b.put(t, keys.Groups("dev-1"), []byte(`{"$version": 1, "$term": 1, "$revision": 2,
				"default": {"batch": {"template": "nobody"}}}`))
		}, []string{"groups of shard dev-1"}, "no new instances", "correct the configuration", true},
		"no trust bundle": {remove(keys.ClusterCA()), []string{keys.ClusterCA()}, "is missing", "another snapshot",
			true},
		"no nonce key": {remove(keys.ClusterSecret("registration-nonce.key")),
			[]string{"cluster/secret/registration-nonce.key"}, "is missing", "another snapshot", true},
		"moved secret": {func(t *testing.T, b *bucket, _ record.Instance) {
			b.put(t, keys.ClusterSecret("copy"), mustGet(t, b.store, keys.ClusterSecret("ca.key")))
		}, []string{"cluster/secret/copy"}, "what needs this secret fails", "--key-source", false},
		"no secret at all": {write(keys.ClusterSecret("db"), "hunter2"), []string{"cluster/secret/db"},
			"what needs this secret fails", "another snapshot", true},
		"unsigned operator": {func(t *testing.T, b *bucket, _ record.Instance) {
			entries, err := b.store.List(t.Context(), keys.OperatorPrefix())
			if err != nil || len(entries) != 1 {
				t.Fatal(entries, err)
			}
			content, _, _ := strings.Cut(string(mustGet(t, b.store, entries[0].Key)), "\n// nstance-signature")
			b.put(t, entries[0].Key, []byte(content))
		}, []string{"cluster/operator/"}, "this operator is refused", "register-operator", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBucket(t, "file")
			rec := b.populate(t)
			fault.inject(t, b, rec)
			path := filepath.Join(t.TempDir(), "snapshot.tar.gz")
			b.must(t, b.args("cluster", "snapshot", "--cluster-id", "example", "--output", path)...)
			for _, keyed := range []bool{true, false} {
				if !keyed {
					t.Setenv("NSTANCE_ENCRYPTION_KEY", "")
				}
				stdout, stderr, code := b.run(t, "cluster", "restore-check", path, "-o", "json")
				result := parse[restoreCheck](t, stdout)
				bad := slices.DeleteFunc(slices.Clone(result.Findings),
					func(f finding) bool { return f.Status != problem })
				want := fault.checks
				if !keyed && !fault.unkeyed {
					want = nil
				}
				if len(bad) != len(want) || (code == exitOK) != (len(want) == 0) || result.KeysChecked != keyed {
					t.Fatalf("keyed %t: exit code %d, %s, want problems of %q, there are:\n%+v", keyed, code, stderr,
						want, bad)
				}
				for i, f := range bad {
					if !strings.HasPrefix(f.Check, want[i]) || f.Next == "" || i == 0 && (!strings.Contains(f.Result,
						fault.result) || !strings.Contains(f.Next, fault.next)) {
						t.Errorf("%+v\nwant %q, %q, next %q", f, want[i], fault.result, fault.next)
					}
				}
			}
		})
	}
}

// TestRestoreCheckKeys checks what restore-check says about keys that are wrong, missing or not in the archive, and
// about archives that are changed, truncated or of another cluster.
func TestRestoreCheckKeys(t *testing.T) {
	b := newBucket(t, "file")
	b.populate(t)
	path := b.take(t)
	t.Setenv("NSTANCE_ENCRYPTION_KEY", strings.ToUpper(encryptionKey))
	stdout, _, code := b.run(t, "cluster", "restore-check", path)
	if code != exitFailure || strings.Count(stdout, "problem") != 1 || !strings.Contains(stdout, "no server leads") ||
		!strings.Contains(stdout, "--old-key") {
		t.Error(code, stdout)
	}
	b.fails(t, exitFailure, "NO_SUCH_KEY", "cluster", "restore-check", path, "--key-source", "NO_SUCH_KEY")
	t.Setenv("NSTANCE_ENCRYPTION_KEY", encryptionKey)
	b.fails(t, exitFailure, "is of cluster example, not of other", "cluster", "restore-check", path, "--cluster-id",
		"other")
	b.fails(t, exitUsage, "reads only the archive", b.args("cluster", "restore-check", path)...)
	b.fails(t, exitUsage, "want the arguments", "cluster", "restore-check")

	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut.tar.gz")
	writeFile(t, cut, body[:len(body)/2])
	b.fails(t, exitFailure, "no complete snapshot", "cluster", "restore-check", cut)
	changed := filepath.Join(t.TempDir(), "changed.tar.gz")
	b.rewrite(t, path, changed, keys.File("motd"), "other")
	stdout, _, code = b.run(t, "cluster", "restore-check", changed)
	if code != exitFailure || !strings.Contains(stdout, "files/motd: its content is not the one") ||
		!strings.Contains(stdout, "another copy of the archive") {
		t.Error(code, stdout)
	}

	elsewhere := newBucket(t, "file")
	elsewhere.init(t)
	elsewhere.must(t, elsewhere.args("config", "push", exampleConfig(t,
		`{"provider": "object-storage", "encryption_key": {"provider": "env", "source": "NSTANCE_ENCRYPTION_KEY"}}`,
		`{"provider": "aws-parameter-store"}`))...)
	for _, name := range []string{"ca.key", "registration-nonce.key"} {
		if err := elsewhere.store.Delete(t.Context(), keys.ClusterSecret(name)); err != nil {
			t.Fatal(err)
		}
	}
	if out := elsewhere.must(t, "cluster", "restore-check", elsewhere.take(t)); !strings.Contains(out,
		"skipped  keys of the cluster: they are in aws-parameter-store, and not in the") {
		t.Error(out)
	}
}

// rewrite copies an archive. In the copy, body is the content of the object with the given key, but the manifest is
// unchanged.
func (b *bucket) rewrite(t *testing.T, from, to, key, body string) {
	t.Helper()
	var entries []tarEntry
	for _, e := range readTar(t, from) {
		if e.name == "objects/"+key {
			e.body = []byte(body)
		}
		entries = append(entries, e)
	}
	writeTar(t, to, entries)
}

// TestNotConsistent checks that a snapshot of a bucket that keeps changing is marked as not consistent, and that
// restore-check reports this.
func TestNotConsistent(t *testing.T) {
	b := newBucket(t, "file")
	b.populate(t)
	a := newApp("1", Environment{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" },
		Now: fleettest.Clock, Rand: fleettest.Rand(1)})
	reads := 0
	restless := &meddling{Store: b.store, on: keys.File("motd"), do: func() {
		reads++
		b.put(t, keys.File("motd"), []byte(strings.Repeat("x", reads)))
	}}
	path := filepath.Join(t.TempDir(), "snapshot.tar.gz")
	if err := a.snapshot(t.Context(), &cluster{id: "example", bucket: &afterwards{restless}}, path); err != nil {
		t.Fatal(err)
	}
	stdout, _, code := b.run(t, "cluster", "restore-check", path)
	if code != exitFailure || !strings.Contains(stdout, "problem  one moment: documents changed") {
		t.Error(code, stdout)
	}
}

// afterwards is a bucket like [meddling]. But it calls the function `do` after the object with the key `on` was read.
type afterwards struct{ *meddling }

func (a *afterwards) Get(ctx context.Context, key string) (objstore.Object, error) {
	object, err := a.Store.Get(ctx, key)
	if key == a.on {
		a.do()
	}
	return object, err
}
