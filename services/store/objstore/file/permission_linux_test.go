package file_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/services/store/objstore"
)

// withoutRights calls f in a thread that has no rights of root on files.
func withoutRights(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		var err error
		if os.Geteuid() == 0 {
			err = unix.Setfsuid(65534)
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestNoRights checks that no error of a directory is hidden, neither as success nor as a missing object.
func TestNoRights(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, "sub/k", "x")
	chmod := func(name string, mode os.FileMode) {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	chmod(".objstore", 0o777)
	write := func(key string, cond objstore.Condition) error {
		_, err := s.Put(t.Context(), key, []byte("y"), cond)
		return err
	}
	wantErr := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, fs.ErrPermission) || errors.Is(err, objstore.ErrNotFound) ||
			errors.Is(err, objstore.ErrConflict) || errors.Is(err, objstore.ErrIndeterminate) {
			t.Errorf("%s: %v", what, err)
		}
	}
	chmod("sub", 0o555)
	withoutRights(t, func() { wantErr("put", write("sub/new", objstore.Always())) })
	chmod("sub", 0)
	withoutRights(t, func() {
		wantErr("create", write("sub/k", objstore.IfAbsent()))
		wantErr("delete", s.Delete(t.Context(), "sub/k"))
		_, err := s.Get(t.Context(), "sub/k")
		wantErr("get", err)
		_, err = s.List(t.Context(), "sub/")
		wantErr("list", err)
	})
	chmod("sub", 0o700)
}
