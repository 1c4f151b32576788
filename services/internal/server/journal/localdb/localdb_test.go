package localdb

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

func instance(t testing.TB, n int64) ident.ID {
	t.Helper()
	id, err := ident.NewID("knd", time.UnixMilli(1_700_000_000_000+n), strings.NewReader("12345678"))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func open(t testing.TB, path string) *DB {
	t.Helper()
	c, err := Open(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// works fails the test unless the database stores and returns keys.
func works(t testing.TB, d *DB) {
	t.Helper()
	ctx := context.Background()
	keys := []Key{{"a.pub", []byte{1}}, {"b.pub", []byte{0, 2}}}
	if err := d.PutKeys(ctx, instance(t, 1), keys); err != nil {
		t.Fatal(err)
	}
	got, err := d.Keys(ctx, instance(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(keys, got); diff != "" {
		t.Fatal(diff)
	}
}

func TestKeysSurviveReopening(t *testing.T) {
	ctx := context.Background()
	path := Path(filepath.Join(t.TempDir(), "a b?c#d%e"))
	c := open(t, path)
	works(t, c)
	if err := c.PutKeys(ctx, instance(t, 1), []Key{{"b.pub", []byte{9}}}); err != nil {
		t.Fatal(err)
	}
	if err := c.PutKeys(ctx, instance(t, 2), []Key{{"b.pub", []byte{8}}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.PutKeys(ctx, instance(t, 1), nil); err == nil {
		t.Error("a closed database takes keys")
	}

	c = open(t, path)
	if err := c.DeleteKeys(ctx, instance(t, 2)); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int64][]Key{1: {{"a.pub", []byte{1}}, {"b.pub", []byte{9}}}, 2: nil} {
		got, err := c.Keys(ctx, instance(t, n))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("instance %d: %s", n, diff)
		}
	}
	if err := c.PutKeys(ctx, instance(t, 3), []Key{{"a.pub", []byte{3}}}); err != nil {
		t.Fatal(err)
	}
	if err := c.KeepKeys(ctx, func(id ident.ID) bool { return id == instance(t, 3) }); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int64]int{1: 0, 3: 1} {
		if got, err := c.Keys(ctx, instance(t, n)); err != nil || len(got) != want {
			t.Errorf("instance %d: %v (%v), want %d", n, got, err, want)
		}
	}
}

func TestDamagedFilesAreThrownAway(t *testing.T) {
	whole := Path(t.TempDir())
	c := open(t, whole)
	works(t, c)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	garbage := make([]byte, 10000)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range garbage {
		garbage[i] = byte(random.Uint32())
	}
	flipped := append([]byte(nil), good...)
	for i := 4096; i < len(flipped); i++ {
		flipped[i] ^= 0x55
	}
	for name, content := range map[string][]byte{
		"empty": {}, "garbage": garbage, "truncated": good[:len(good)/2], "cut in the header": good[:50],
		"flipped":            flipped,
		"header and garbage": append(append([]byte(nil), good[:100]...), garbage...),
	} {
		t.Run(name, func(t *testing.T) {
			path := Path(t.TempDir())
			if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
				t.Fatal(err)
			}
			for _, suffix := range []string{"", "-wal", "-shm"} {
				if err := os.WriteFile(path+suffix, content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			works(t, open(t, path))
		})
	}
}

func TestOtherVersionsAreThrownAway(t *testing.T) {
	for _, change := range []string{"PRAGMA user_version = 99", "PRAGMA user_version = 0"} {
		path := Path(t.TempDir())
		c := open(t, path)
		works(t, c)
		exec(t, c.db, change, "CREATE TABLE other (x)")
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		c = open(t, path)
		if keys, err := c.Keys(context.Background(), instance(t, 1)); err != nil || len(keys) > 0 {
			t.Errorf("%s: keys %v, error %v; want none", change, keys, err)
		}
		works(t, c)
	}
}

func exec(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.ExecContext(context.Background(), statement); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOtherFilesAreUnchanged(t *testing.T) {
	directory := Path(t.TempDir())
	if err := os.MkdirAll(filepath.Join(directory, "precious"), 0o750); err != nil {
		t.Fatal(err)
	}
	foreign := Path(t.TempDir())
	if err := os.MkdirAll(filepath.Dir(foreign), 0o750); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", foreign)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, db, "CREATE TABLE precious (x)")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{directory: "not a file", foreign: "another program's",
		Path(blocked): "not a directory"} {
		_, err := Open(context.Background(), path)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", path, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(directory, "precious")); err != nil {
		t.Error(err)
	}
}

// TestDeletedWhileRunning deletes the whole directory during reads and writes. The database continues to work.
func TestDeletedWhileRunning(t *testing.T) {
	dir := t.TempDir()
	path := Path(dir)
	c := open(t, path)
	for range 3 {
		works(t, c)
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		if keys, err := c.Keys(context.Background(), instance(t, 1)); err != nil || len(keys) > 0 {
			t.Fatalf("after the deletion: keys %v, error %v; want none", keys, err)
		}
		works(t, c)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		works(t, c)
	}
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for n := range 25 {
				if err := c.PutKeys(context.Background(), instance(t, int64(worker)+100),
					[]Key{{fmt.Sprintf("%d.pub", n), []byte{1}}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for range 10 {
			if err := os.RemoveAll(filepath.Dir(path)); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	works(t, c)
}

func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	c := open(f, Path(dir))
	works(f, c)
	if err := c.Close(); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(Path(dir))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{}, []byte{})
	f.Add(good, []byte("wal"))
	f.Add(good[:5000], []byte{})
	f.Add([]byte("SQLite format 3\x00"), []byte{0x37, 0x7f, 0x06, 0x82})
	f.Fuzz(func(t *testing.T, content, wal []byte) {
		path := Path(t.TempDir())
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+"-wal", wal, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Open(context.Background(), path)
		if err != nil {
			if !strings.Contains(err.Error(), "another program's") {
				t.Fatal(err)
			}
			return
		}
		defer c.Close()
		works(t, c)
	})
}
