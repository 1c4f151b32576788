package file_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/file"
	"github.com/nstance-kit/nstance/services/store/objstore/objstoretest"
)

func open(t *testing.T, dir string) *file.Store {
	t.Helper()
	s, err := file.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestConformance(t *testing.T) {
	objstoretest.Run(t, func(t *testing.T) objstore.Store { return open(t, t.TempDir()) })
}

// TestConformanceOfTwo runs the suite with two stores over one directory. For the lock they are like two processes,
// because flock belongs to the open file.
func TestConformanceOfTwo(t *testing.T) {
	objstoretest.Run(t, func(t *testing.T) objstore.Store {
		dir := t.TempDir()
		return &alternating{stores: [2]objstore.Store{open(t, dir), open(t, dir)}, turn: make(chan int, 1)}
	})
}

// alternating sends its requests to the stores in turn.
type alternating struct {
	stores [2]objstore.Store
	turn   chan int
}

func (a *alternating) next() objstore.Store {
	select {
	case <-a.turn:
		return a.stores[1]
	default:
		select {
		case a.turn <- 0:
		default:
		}
		return a.stores[0]
	}
}

func (a *alternating) Get(ctx context.Context, key string) (objstore.Object, error) {
	return a.next().Get(ctx, key)
}

func (a *alternating) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token,
	error) {
	return a.next().Put(ctx, key, body, cond)
}

func (a *alternating) Delete(ctx context.Context, key string) error { return a.next().Delete(ctx, key) }

func (a *alternating) List(ctx context.Context, prefix string) ([]objstore.Entry, error) {
	return a.next().List(ctx, prefix)
}

func put(t *testing.T, s objstore.Store, key, body string) objstore.Token {
	t.Helper()
	token, err := s.Put(t.Context(), key, []byte(body), objstore.Always())
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestKeysArePaths(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "on", "demand")
	s := open(t, dir)
	token := put(t, s, "cluster/ca.crt", "PEM")
	body, err := os.ReadFile(filepath.Join(dir, "cluster", "ca.crt"))
	if err != nil || string(body) != "PEM" {
		t.Errorf("file holds %q, %v", body, err)
	}
	// A file that a person puts into the directory is an object too.
	if err := os.WriteFile(filepath.Join(dir, "cluster", "ca.crt"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), "cluster/ca.crt", nil, objstore.IfToken(token)); !errors.Is(err,
		objstore.ErrConflict) {
		t.Errorf("put over a file that was edited: %v", err)
	}
	// A file whose name is no key is not an object.
	if err := os.WriteFile(filepath.Join(dir, "cluster", "line\nbreak"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if entries, err := s.List(t.Context(), ""); err != nil || len(entries) != 1 {
		t.Errorf("list = %v, %v", entries, err)
	}
	if err := os.Remove(filepath.Join(dir, "cluster", "line\nbreak")); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), "cluster/ca.crt"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cluster")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("empty directory stays: %v", err)
	}
}

func TestTokensSurviveRestart(t *testing.T) {
	dir := t.TempDir()
	before := put(t, open(t, dir), "k", "x")
	s := open(t, dir)
	if _, err := s.Put(t.Context(), "k", []byte("y"), objstore.IfToken(before)); err != nil {
		t.Error(err)
	}
}

func TestKeysCannotLeaveTheDirectory(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	s := open(t, dir)
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if obj, err := s.Get(t.Context(), "link/secret"); err == nil {
		t.Errorf("read %q from outside", obj.Body)
	}
	if _, err := s.Put(t.Context(), "link/new", nil, objstore.Always()); err == nil {
		t.Error("wrote outside")
	}
	if entries, err := s.List(t.Context(), ""); err != nil || len(entries) != 0 {
		t.Errorf("list = %v, %v", entries, err)
	}
	if entries, err := s.List(t.Context(), "link/"); err == nil {
		t.Errorf("a directory that cannot be read holds %v", entries)
	}
	for _, key := range []string{".objstore", ".objstore/lock", ".objstore/new"} {
		if _, err := s.Put(t.Context(), key, nil, objstore.Always()); !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("put %q: %v", key, err)
		}
		if err := s.Delete(t.Context(), key); !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("delete %q: %v", key, err)
		}
	}
}

func TestKeyCannotBeBelowAnotherKey(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, "a/b", "x")
	for _, key := range []string{"a", "a/b/c", "a/b/c/d"} {
		if _, err := s.Put(t.Context(), key, nil, objstore.IfAbsent()); !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("put %q: %v", key, err)
		}
		if _, err := s.Get(t.Context(), key); !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("get %q: %v", key, err)
		}
		if err := s.Delete(t.Context(), key); err != nil {
			t.Errorf("delete %q: %v", key, err)
		}
	}
	if obj, err := s.Get(t.Context(), "a/b"); err != nil || string(obj.Body) != "x" {
		t.Errorf("get = %q, %v", obj.Body, err)
	}
}

// TestLeftovers checks that a file or directory left by a crash does not block later writes.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := os.WriteFile(filepath.Join(dir, ".objstore", "new"), []byte("half an object that is longer"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, s, "a", "x")
	if obj, err := s.Get(t.Context(), "a"); err != nil || string(obj.Body) != "x" {
		t.Errorf("get = %q, %v", obj.Body, err)
	}
}

func TestClose(t *testing.T) {
	s, err := file.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "k", "x")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "k"); err == nil || errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if _, err := s.Put(t.Context(), "k", nil, objstore.Always()); err == nil {
		t.Error("put succeeds")
	}
}

func TestOpenFails(t *testing.T) {
	taken := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", taken} {
		if _, err := file.Open(dir); err == nil {
			t.Errorf("opened %q", dir)
		}
	}
}

func BenchmarkPut(b *testing.B) {
	s, err := file.Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for i := range b.N {
		if _, err := s.Put(b.Context(), fmt.Sprintf("dir/%d", i), []byte("x"), objstore.IfAbsent()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkList5000(b *testing.B) {
	dir := b.TempDir()
	s, err := file.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if err := os.Mkdir(filepath.Join(dir, "dir"), 0o700); err != nil {
		b.Fatal(err)
	}
	for i := range 5000 {
		if err := os.WriteFile(filepath.Join(dir, "dir", fmt.Sprint(i)), make([]byte, 1000), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if entries, err := s.List(b.Context(), "dir/"); err != nil || len(entries) != 5000 {
			b.Fatal(len(entries), err)
		}
	}
}
