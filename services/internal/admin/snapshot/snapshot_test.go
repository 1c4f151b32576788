package snapshot

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

func openDir(t testing.TB) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func put(t *testing.T, store objstore.Store, key, body string) {
	t.Helper()
	if _, err := store.Put(t.Context(), key, []byte(body), objstore.Always()); err != nil {
		t.Fatal(err)
	}
}

// filled returns a bucket with objects. A restore does not need the last two of them.
func filled(t *testing.T) objstore.Store {
	t.Helper()
	store := mem.New()
	for _, key := range []string{keys.ClusterCA(), keys.ClusterSecret("ca.key"), keys.Config("dev-1"),
		keys.Groups("dev-1"), keys.File("motd"), keys.File("a/" + strings.Repeat("long/", 60) + "name"),
		keys.Leader("dev-1"), keys.Journal("dev-1", now, 1, 1), keys.Probe("dev-1", "x"), "what/is/this"} {
		put(t, store, key, "content of "+key)
	}
	return store
}

var now = time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC)

func oneByOne(ctx context.Context, n, _ int, fn func(ctx context.Context, i int) error) error {
	for i := range n {
		if err := fn(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// archive copies a bucket into an archive.
func archive(t *testing.T, store objstore.Store) ([]byte, Manifest) {
	t.Helper()
	dir := openDir(t)
	m, err := Copy(t.Context(), store, Options{Dir: dir, Now: func() time.Time { return now }, ForEach: oneByOne})
	if err != nil {
		t.Fatal(err)
	}
	m.Cluster, m.Program = "example", "1.2.3"
	var out bytes.Buffer
	if err := Write(&out, m, dir); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), m
}

// TestRoundTrip checks that all objects except those of other programs come out of the archive unchanged.
func TestRoundTrip(t *testing.T) {
	store := filled(t)
	data, m := archive(t, store)
	if !m.Consistent || len(m.Objects) != 8 || !cmp.Equal(m.LeftOut, []string{"shard/dev-1/probe/x", "what/is/this"}) {
		t.Errorf("%+v", m)
	}
	dir := openDir(t)
	got, differences, err := Unpack(bytes.NewReader(data), dir, DefaultLimits)
	if err != nil || len(differences) > 0 {
		t.Fatal(differences, err)
	}
	if diff := cmp.Diff(m, got); diff != "" {
		t.Error(diff)
	}
	for _, object := range m.Objects {
		want, err := store.Get(t.Context(), object.Key)
		if err != nil {
			t.Fatal(err)
		}
		body, err := dir.ReadFile(object.Key)
		if err != nil || !bytes.Equal(body, want.Body) || object.ETag != string(want.Token) ||
			object.Size != int64(len(body)) {
			t.Errorf("%s: %q, %v, want %q", object.Key, body, err, want.Body)
		}
	}
}

// busy is a bucket that changes when it is listed or read.
type busy struct {
	objstore.Store
	lists int
	onGet func(key string)
	read  []string
}

func (b *busy) List(ctx context.Context, prefix string) ([]objstore.Entry, error) {
	entries, err := b.Store.List(ctx, prefix)
	b.lists++
	return entries, err
}

func (b *busy) Get(ctx context.Context, key string) (objstore.Object, error) {
	b.read = append(b.read, key)
	object, err := b.Store.Get(ctx, key)
	if b.onGet != nil {
		b.onGet(key)
	}
	return object, err
}

// TestChangesMeanwhile changes, adds and removes documents during a copy. The changed documents are copied again until
// no document changes. The lock is read only once, before the documents. If the bucket never stops changing, the
// archive records that.
func TestChangesMeanwhile(t *testing.T) {
	group, config := keys.Groups("dev-1"), keys.Config("dev-1")
	b := &busy{Store: filled(t)}
	b.onGet = func(key string) {
		if key != config || slices.Contains(b.read[:len(b.read)-1], config) {
			return
		}
		put(t, b.Store, group, "new groups") // it was read before, or is read after
		put(t, b.Store, config, "new configuration")
		put(t, b.Store, keys.Config("dev-2"), "added")
		put(t, b.Store, keys.Leader("dev-1"), "renewed")
		if err := b.Delete(t.Context(), keys.File("motd")); err != nil {
			t.Fatal(err)
		}
	}
	data, m := archive(t, b)
	dir := openDir(t)
	if _, differences, err := Unpack(bytes.NewReader(data), dir, DefaultLimits); err != nil || len(differences) > 0 {
		t.Fatal(differences, err)
	}
	if !m.Consistent || b.read[0] != keys.Leader("dev-1") {
		t.Errorf("consistent: %t, read %v", m.Consistent, b.read)
	}
	for key, want := range map[string]string{group: "new groups", config: "new configuration",
		keys.Config("dev-2"): "added", keys.Leader("dev-1"): "content of " + keys.Leader("dev-1"),
		keys.File("motd"): ""} {
		if body, _ := dir.ReadFile(key); string(body) != want {
			t.Errorf("%s: %q, want %q", key, body, want)
		}
	}
	for _, object := range m.Objects {
		if object.Changed != (object.Key == keys.Leader("dev-1")) {
			t.Errorf("%+v", object)
		}
	}

	restless := &busy{Store: filled(t)}
	restless.onGet = func(key string) {
		if key == group {
			put(t, restless.Store, group, strings.Repeat("x", len(restless.read)))
		}
	}
	_, m = archive(t, restless)
	changed := slices.DeleteFunc(m.Objects, func(o Object) bool { return !o.Changed })
	if m.Consistent || restless.lists != rounds+1 || len(changed) != 1 || changed[0].Key != group {
		t.Errorf("%d lists, %+v", restless.lists, m)
	}
}

// TestCopyFails checks that the snapshot fails if an object cannot be read.
func TestCopyFails(t *testing.T) {
	store := &failing{filled(t)}
	options := Options{Dir: openDir(t), Now: func() time.Time { return now }, ForEach: oneByOne}
	if _, err := Copy(t.Context(), store, options); !errors.Is(err, os.ErrPermission) ||
		!strings.Contains(err.Error(), keys.Groups("dev-1")) {
		t.Error(err)
	}
}

type failing struct{ objstore.Store }

func (f *failing) Get(ctx context.Context, key string) (objstore.Object, error) {
	if key == keys.Groups("dev-1") {
		return objstore.Object{}, os.ErrPermission
	}
	return f.Store.Get(ctx, key)
}

// entry is one entry of an archive that a test builds.
type entry struct {
	head tar.Header
	body string
}

func build(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	for _, e := range entries {
		e.head.Size = int64(len(e.body))
		if err := archive.WriteHeader(&e.head); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(archive.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func object(key, body string) entry {
	return entry{tar.Header{Name: "objects/" + key, Typeflag: tar.TypeReg}, body}
}

// manifest returns the archive entry of a manifest. All objects in the manifest have the content "x".
func manifest(names ...string) entry {
	m := Manifest{Schema: Schema, Cluster: "example"}
	for _, key := range names {
		m.Objects = append(m.Objects, Object{Key: key, Size: 1, SHA256: sum([]byte("x"))})
	}
	body, _ := encode(m) // a buffer takes everything
	return entry{tar.Header{Name: manifestName, Typeflag: tar.TypeReg}, string(body)}
}

// TestUnpackRefuses checks that hostile and broken archives are refused, and that nothing is written outside of the
// directory.
func TestUnpackRefuses(t *testing.T) {
	good := build(t, object("files/a", "x"), manifest("files/a"))
	if _, differences, err := Unpack(bytes.NewReader(good), openDir(t), DefaultLimits); err != nil ||
		len(differences) > 0 {
		t.Fatal(differences, err)
	}
	link := func(kind byte, name, target string) entry {
		return entry{tar.Header{Name: name, Linkname: target, Typeflag: kind}, ""}
	}
	other := manifest("files/a")
	other.body = strings.Replace(other.body, `"schema": 1`, `"schema": 2`, 1)
	unknown := manifest("files/a")
	unknown.body = strings.Replace(unknown.body, `"schema"`, `"more": 1, "schema"`, 1)
	limits := Limits{Object: 4, Manifest: 1 << 12, Total: 6, Count: 3}
	for name, data := range map[string][]byte{
		"empty":                nil,
		"no gzip":              []byte("hello"),
		"no tar":               gzipped(t, []byte(strings.Repeat("hello", 300))),
		"no manifest":          build(t, object("files/a", "x")),
		"path out":             build(t, object("../a", "x"), manifest()),
		"path out of files":    build(t, object("files/../../a", "x"), manifest()),
		"absolute path":        build(t, entry{tar.Header{Name: "/etc/a", Typeflag: tar.TypeReg}, "x"}, manifest()),
		"absolute key":         build(t, object("/etc/a", "x"), manifest()),
		"symbolic link":        build(t, link(tar.TypeSymlink, "objects/files/a", "/etc"), manifest()),
		"hard link":            build(t, link(tar.TypeLink, "objects/files/a", "/etc/passwd"), manifest()),
		"directory":            build(t, link(tar.TypeDir, "objects/files/", ""), manifest()),
		"device":               build(t, link(tar.TypeChar, "objects/files/a", ""), manifest()),
		"link as the manifest": build(t, link(tar.TypeSymlink, manifestName, "/etc/passwd")),
		"unknown key":          build(t, object("what/is/this", "x"), manifest()),
		"probe":                build(t, object("shard/dev-1/probe/x", "x"), manifest()),
		"other file":           build(t, entry{tar.Header{Name: "a", Typeflag: tar.TypeReg}, "x"}, manifest()),
		"twice":                build(t, object("files/a", "x"), object("files/a", "x"), manifest("files/a")),
		"two manifests":        build(t, manifest(), manifest()),
		"after the manifest":   build(t, manifest("files/a"), object("files/a", "x")),
		"newer manifest":       build(t, object("files/a", "x"), other),
		"unknown field":        build(t, object("files/a", "x"), unknown),
		"unsorted manifest":    build(t, manifest("files/b", "files/a")),
		"no cluster":           build(t, entry{tar.Header{Name: manifestName, Typeflag: tar.TypeReg}, `{"schema": 1}`}),
		"large object":         build(t, object("files/a", "12345"), manifest()),
		"large in all":         build(t, object("files/a", "1234"), object("files/b", "123"), manifest()),
		"many": build(t, object("files/a", ""), object("files/b", ""), object("files/c", ""),
			object("files/d", ""), manifest()),
		"large manifest": build(t, entry{tar.Header{Name: manifestName, Typeflag: tar.TypeReg},
			strings.Repeat(" ", 1<<13)}),
		"cut off":    good[:len(good)-10],
		"more":       append(slices.Clone(good), 0),
		"two parts":  append(slices.Clone(good), good...),
		"wrong byte": flip(good, len(good)-6),
	} {
		parent := t.TempDir()
		if err := os.Mkdir(filepath.Join(parent, "in"), 0o700); err != nil {
			t.Fatal(err)
		}
		dir, err := os.OpenRoot(filepath.Join(parent, "in"))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := Unpack(bytes.NewReader(data), dir, limits); !errors.Is(err, ErrArchive) {
			t.Errorf("%s: %v", name, err)
		}
		if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
			t.Errorf("%s: wrote outside: %v, %v", name, entries, err)
		}
		dir.Close()
	}
}

func gzipped(t *testing.T, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	if _, err := zip.Write(body); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func flip(data []byte, at int) []byte {
	data = slices.Clone(data)
	data[at] ^= 1
	return data
}

// TestDifferences checks that each difference between objects and manifest is named.
func TestDifferences(t *testing.T) {
	data := build(t, object("files/added", "x"), object("files/changed", "y"), object("files/good", "x"),
		object("files/longer", "xx"), manifest("files/changed", "files/good", "files/longer", "files/missing"))
	_, differences, err := Unpack(bytes.NewReader(data), openDir(t), DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range differences {
		names = append(names, strings.TrimPrefix(d.Key, "files/"))
	}
	if !cmp.Equal(names, []string{"added", "changed", "longer", "missing"}) {
		t.Errorf("%+v", differences)
	}
}

// FuzzUnpack unpacks arbitrary archives. Unpack must write only into the directory, stay within its limits, and make no
// link. If it reports no difference for an object, the object's checksum must be right. If raw is empty, the test
// builds a valid tar file with one entry, because random bytes seldom have the checksums that tar needs.
func FuzzUnpack(f *testing.F) {
	f.Add([]byte{}, "objects/files/a", "", byte(tar.TypeReg), []byte("x"))
	f.Add([]byte{}, "objects/../a", "", byte(tar.TypeReg), []byte("x"))
	f.Add([]byte{}, "objects/files/a", "/etc/passwd", byte(tar.TypeSymlink), []byte{})
	f.Add([]byte{}, "objects/files/b", "objects/files/a", byte(tar.TypeLink), []byte{})
	f.Add([]byte{}, "objects/files/a", "", byte(tar.TypeReg), []byte(strings.Repeat("x", 200)))
	f.Add([]byte{}, manifestName, "", byte(tar.TypeReg), []byte(`{"schema": 1, "cluster_id": "example"}`))
	f.Add([]byte("no tar"), "", "", byte(0), []byte{})
	limits := Limits{Object: 64, Manifest: 1 << 12, Total: 128, Count: 4}
	f.Fuzz(func(t *testing.T, raw []byte, name, link string, kind byte, body []byte) {
		data := gzipped(t, raw)
		if len(raw) == 0 {
			var ok bool
			if data, ok = wrap(t, tar.Header{Name: name, Linkname: link, Typeflag: kind}, body); !ok {
				return
			}
		}
		parent := t.TempDir()
		if err := os.Mkdir(filepath.Join(parent, "in"), 0o700); err != nil {
			t.Fatal(err)
		}
		dir, err := os.OpenRoot(filepath.Join(parent, "in"))
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		m, differences, err := Unpack(bytes.NewReader(data), dir, limits)
		checkUnpacked(t, parent, limits)
		if err != nil {
			return
		}
		for _, object := range m.Objects {
			if slices.ContainsFunc(differences, func(d Difference) bool { return d.Key == object.Key }) {
				continue
			}
			if body, err := dir.ReadFile(object.Key); err != nil || sum(body) != object.SHA256 {
				t.Errorf("%s: %v", object.Key, err)
			}
		}
		if _, err := json.Marshal(m); err != nil {
			t.Error(err)
		}
	})
}

// wrap returns an archive with the given entry and a manifest that lists files/a. If a tar file cannot contain the
// entry, wrap returns ok = false.
func wrap(t *testing.T, head tar.Header, body []byte) (data []byte, ok bool) {
	t.Helper()
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	head.Size = int64(len(body))
	if err := archive.WriteHeader(&head); err != nil {
		return nil, false
	}
	if _, err := archive.Write(body); err != nil {
		return nil, false
	}
	last := manifest("files/a")
	last.head.Size = int64(len(last.body))
	if err := archive.WriteHeader(&last.head); err != nil {
		return nil, false
	}
	if _, err := archive.Write([]byte(last.body)); err != nil {
		return nil, false
	}
	if err := archive.Close(); err != nil {
		return nil, false
	}
	return gzipped(t, out.Bytes()), true
}

// checkUnpacked checks that a directory contains only the directory "in". In "in", only directories and regular files
// are allowed. The number and the total size of the files must be within the limits.
func checkUnpacked(t *testing.T, parent string, limits Limits) {
	t.Helper()
	files, total := 0, int64(0)
	err := filepath.WalkDir(parent, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel, _ := filepath.Rel(parent, path); rel != "." && rel != "in" && !strings.HasPrefix(rel, "in/") {
				t.Errorf("made the directory %s", rel)
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() || !strings.HasPrefix(path, filepath.Join(parent, "in")+"/") {
			t.Errorf("made %s, %s", path, info.Mode())
		}
		files++
		total += info.Size()
		return nil
	})
	if err != nil || files > limits.Count || total > limits.Total {
		t.Errorf("%d files with %d bytes, %v", files, total, err)
	}
}
