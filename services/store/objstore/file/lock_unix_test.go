//go:build unix

package file_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/services/store/objstore"
)

// holdLock is an environment variable with the path of a lock file. If it is set, the test binary holds that lock until
// its standard input ends.
const holdLock = "TEST_HOLD_LOCK"

func TestMain(m *testing.M) {
	path := os.Getenv(holdLock)
	if path == "" {
		os.Exit(m.Run())
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err == nil {
		fmt.Println("held")
		_, err = io.Copy(io.Discard, os.Stdin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestLockHeldElsewhere(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, "k", "x")
	// A real second process holds the lock.
	holder := exec.CommandContext(t.Context(), os.Args[0])
	holder.Env = append(os.Environ(), holdLock+"="+filepath.Join(dir, ".objstore", "lock"))
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 2)
	go func() {
		_, err := s.Put(ctx, "k", []byte("y"), objstore.Always())
		result <- err
	}()
	go func() {
		_, err := s.List(ctx, "")
		result <- err
	}()
	if obj, err := s.Get(t.Context(), "k"); err != nil || string(obj.Body) != "x" {
		t.Errorf("reads need no lock: %q, %v", obj.Body, err)
	}
	cancel()
	for range 2 {
		if err := <-result; !errors.Is(err, context.Canceled) || errors.Is(err, objstore.ErrIndeterminate) {
			t.Errorf("request that never had the lock: %v", err)
		}
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := holder.Wait(); err != nil {
		t.Fatal(err)
	}
	put(t, s, "k", "z")
}

// TestWaitEndsWithContext has one request that waits for another process, and one that waits for the first request.
func TestWaitEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir)
		held, err := os.Open(filepath.Join(dir, ".objstore", "lock"))
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := s.Put(ctx, "k", nil, objstore.Always())
				result <- err
			}()
		}
		synctest.Wait()
		cancel()
		for range 2 {
			if err := <-result; !errors.Is(err, context.Canceled) {
				t.Errorf("put = %v", err)
			}
		}
	})
}

// TestPutReportsWriteErrors lets the file system accept an object, but fail to put it on the disk.
func TestPutReportsWriteErrors(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, "k", "x")
	pipe := filepath.Join(dir, ".objstore", "new") // a pipe takes bytes, and has no fsync
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if _, err := s.Put(t.Context(), "k", []byte("y"), objstore.Always()); err == nil {
		t.Error("put succeeds")
	}
	if obj, err := s.Get(t.Context(), "k"); err != nil || string(obj.Body) != "x" {
		t.Errorf("get = %q, %v", obj.Body, err)
	}
}
