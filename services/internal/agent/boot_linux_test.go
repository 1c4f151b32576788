package agent_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/internal/agent/folder"
)

// smallDisk mounts a file system of 64 KiB and returns functions that fill it and free it again.
func smallDisk(t *testing.T) (dir string, fill, free func()) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); errors.Is(err, syscall.EPERM) {
		t.Skip("mounting a file system needs root")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	filler := filepath.Join(dir, "filler")
	fill = func() {
		t.Helper()
		file, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Error(err)
			return
		}
		defer file.Close()
		for err == nil {
			_, err = file.Write(make([]byte, 512))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Error(err)
		}
	}
	return dir, fill, func() {
		t.Helper()
		if err := os.Remove(filler); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
}

// TestFullDiskAtRegistration fills the agent's disk before it makes its key, before it stores its certificate, and
// before it renews its certificate. The agent says that the disk is full, and continues when there is space again, with
// the same nonce.
func TestFullDiskAtRegistration(t *testing.T) {
	for _, when := range []string{"before the key is made", "before the certificate is stored", "before the renewal"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, fill, free := smallDisk(t)
				n := &network{}
				s := newFakeServer(t, newID(t))
				s.ttl, s.interval = 9*time.Hour, "10m"
				defer s.start(t, n.listen(address))()
				m := newMemories(t, s)
				disk, err := folder.Open(filepath.Join(dir, "identity"), 0o700)
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range []string{"ca.crt", "nonce.jwt"} {
					text, err := m.identity.Read(name)
					if err != nil {
						t.Fatal(err)
					}
					if err := disk.Write(name, text, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				o := m.options(s, n)
				o.Identity = disk
				wait, full := 5*time.Minute, atomic.Bool{}
				full.Store(true)
				switch when {
				case "before the key is made":
					fill()
				case "before the certificate is stored":
					o.Attest = func(context.Context) ([]byte, error) { // called when the key is on the disk
						if full.Load() {
							fill()
						}
						return []byte("proof"), nil
					}
				case "before the renewal":
					wait = 8 * time.Hour
				}
				client, stop := run(t, o)
				defer stop()
				if when == "before the renewal" {
					s.next(t, "sequence 1", first)
					fill()
				}
				for end := time.After(wait); end != nil; {
					select {
					case <-s.reports:
					case <-end:
						end = nil
					}
				}
				if err := client.Health(); when != "before the renewal" &&
					(err == nil || !strings.Contains(err.Error(), "no space left on device")) {
					t.Errorf("Health: %v", err)
				}
				if when == "before the certificate is stored" {
					if calls := get(s, func() int { return len(s.registrations) }); calls < 5 || calls > 60 {
						t.Errorf("%d registrations in %v", calls, wait)
					}
				}
				full.Store(false)
				free()
				if when == "before the renewal" {
					time.Sleep(time.Hour) // after the expiry of the first certificate
					if renewals := get(s, func() int { return len(s.renewals) }); renewals == 0 {
						t.Error("the certificate was not renewed")
					}
					return
				}
				time.Sleep(time.Minute)
				if err := client.Health(); err != nil {
					t.Errorf("after a minute with space: Health: %v", err)
				}
				if _, err := disk.Read("nonce.jwt"); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the nonce is still there: %v", err)
				}
			})
		})
	}
}
