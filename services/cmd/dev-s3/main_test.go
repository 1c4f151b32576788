package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/s3"
)

func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "dev-s3")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

// start runs the dev-s3 program at the path "binary", with the storage directory dir. It returns the process and a
// store that uses it.
func start(t *testing.T, binary, dir string) (*exec.Cmd, objstore.Store) {
	t.Helper()
	cmd := exec.Command(binary, "--addr", "127.0.0.1:0", "--dir", dir, "--bucket", "dev")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // harmless when it has ended
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, url, found := strings.Cut(strings.TrimSpace(line), " at ")
	if !found {
		t.Fatalf("the first line of output is %q", line)
	}
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	store, err := s3.New(t.Context(), objstore.Location{Bucket: "dev", Endpoint: url, PathStyle: true},
		credentials.NewStaticCredentialsProvider("dev", "dev", ""))
	if err != nil {
		t.Fatal(err)
	}
	return cmd, store
}

// TestKill kills the process three times during many writes. Every acknowledged object must be in the directory.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Log("not in a short run, because it builds the binary")
		return
	}
	const writers, kills, acksBeforeKill = 16, 3, 500
	binary, dir := build(t), t.TempDir()
	acked := map[string]string{} // body by key; each writer overwrites one counter
	for round := range kills {
		cmd, store := start(t, binary, dir)
		check(t, store, acked)
		ctx, giveUp := context.WithCancel(t.Context())
		var mu sync.Mutex
		var done sync.WaitGroup
		acks, enough := 0, make(chan struct{})
		ack := func(key, body string) {
			mu.Lock()
			defer mu.Unlock()
			acked[key] = body
			if acks++; acks == acksBeforeKill {
				close(enough)
			}
		}
		for w := range writers {
			done.Go(func() {
				counter := fmt.Sprintf("counter/%d", w)
				for i := 0; ; i++ {
					key := fmt.Sprintf("round/%d/%d/%d", round, w, i)
					body := key + strings.Repeat(" padding", 500)
					if _, err := store.Put(ctx, key, []byte(body), objstore.IfAbsent()); err != nil {
						return
					}
					ack(key, body)
					// Fixed width, so that later values sort higher.
					value := fmt.Sprintf("%03d.%06d", round, i)
					if _, err := store.Put(ctx, counter, []byte(value), objstore.Always()); err != nil {
						return
					}
					ack(counter, value)
				}
			})
		}
		<-enough
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Error("the killed process has exit status 0")
		}
		giveUp() // ends the retries of the SDK
		done.Wait()
	}
	cmd, store := start(t, binary, dir)
	check(t, store, acked)

	// SIGTERM must end the process with status 0.
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

func check(t *testing.T, store objstore.Store, acked map[string]string) {
	t.Helper()
	for key, want := range acked {
		obj, err := store.Get(t.Context(), key)
		if err != nil {
			t.Errorf("an acknowledged object is lost: %v", err)
			continue
		}
		got := string(obj.Body)
		if strings.HasPrefix(key, "counter/") {
			// The value may be newer than the last acknowledged one: the process may have stored a value and died
			// before it acknowledged it.
			if got < want || len(got) != len(want) {
				t.Errorf("%s is %q, acknowledged was %q", key, got, want)
			}
		} else if got != want {
			t.Errorf("%s has %d bytes, want %d", key, len(got), len(want))
		}
	}
	entries, err := store.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) < len(acked) {
		t.Errorf("%d objects are listed, %d were acknowledged", len(entries), len(acked))
	}
	for _, e := range entries {
		if _, err := store.Get(t.Context(), e.Key); errors.Is(err, objstore.ErrNotFound) || e.Size == 0 {
			t.Errorf("%s is listed with %d bytes: %v", e.Key, e.Size, err)
		}
	}
	t.Logf("%d acknowledged, %d listed", len(acked), len(entries))
}
