package admin

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// mainContext returns the context for nstance-admin when TestMain runs it in a separate process.
func mainContext() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}

// TestTop prints the table three times: when both shards answer, when one does not answer, and after a change.
func TestTop(t *testing.T) {
	cli, a, b, _ := shards(t)
	var out bytes.Buffer
	app := newApp("1", Environment{Stdout: &out, Stderr: io.Discard, Stdin: strings.NewReader(""),
		Getenv: func(name string) string { return cli.env[name] }, Now: fleettest.Clock, Rand: fleettest.Rand(1)})
	ctx, cancel := context.WithCancel(t.Context())
	pictures := 0
	app.sleep = func(ctx context.Context, d time.Duration) error {
		switch pictures++; pictures {
		case 1:
			b.Do(func() { b.Before = func(string) error { return status.Error(codes.Unavailable, "no leader") } })
		case 2:
			a.Do(func() { a.Groups[0].ActualSize = 17 })
		default:
			cancel()
		}
		return tasks.Sleep(ctx, 0)
	}
	cmd := app.command()
	cmd.SetArgs([]string{"top"})
	if err := cmd.ExecuteContext(ctx); err != nil || pictures != 3 {
		t.Fatal(pictures, err)
	}
	drawn := strings.Split(out.String(), "2026-07-28T10:00:00Z\n")[1:]
	if len(drawn) != 3 || strings.Count(drawn[0], "us-b-server") != 1 || !strings.Contains(drawn[1], "shard us-b: ") ||
		!strings.Contains(drawn[1], "no leader") || !strings.Contains(drawn[1], "us-a-server") ||
		strings.Contains(drawn[1], " 17 ") || !strings.Contains(drawn[2], " 17 ") {
		t.Errorf("%q", drawn)
	}
	if _, stderr, code := cli.run(t, "top", "--interval", "1ms"); code != exitUsage ||
		!strings.Contains(stderr, "second") {
		t.Error(code, stderr)
	}
}

// TestUI opens the page in the browser that $BROWSER names.
func TestUI(t *testing.T) {
	cli, _, _, _ := shards(t)
	dir := t.TempDir()
	browser, opened := filepath.Join(dir, "browser"), filepath.Join(dir, "opened")
	script := "#!/bin/sh\nprintf '%s' \"$1\" >" + opened + ".new && mv " + opened + ".new " + opened + "\n"
	if err := os.WriteFile(browser, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	cli.env["BROWSER"] = browser
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read, write := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- Run(ctx, []string{"ui"}, "1", Environment{Stdout: write, Stderr: io.Discard,
			Getenv: func(name string) string { return cli.env[name] }, Now: fleettest.Clock, Rand: fleettest.Rand(1)})
		write.Close()
	}()
	line := make([]byte, 200)
	n, err := read.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSpace(string(line[:n]))
	if !strings.HasPrefix(url, "http://127.0.0.1:") || !strings.HasSuffix(url, "/ui/") {
		t.Error(url)
	}
	for {
		text, err := os.ReadFile(opened)
		if err == nil {
			if string(text) != url {
				t.Errorf("the browser got %q, want %q", text, url)
			}
			break
		}
		if err := tasks.Sleep(t.Context(), 10*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if code := <-ended; code != exitOK {
		t.Error(code)
	}
}
