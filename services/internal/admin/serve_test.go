package admin

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// TestServe shows that the command serves the API and the page until it is stopped, and then exits with 0. The log
// names the client of a change. Through tunnels, the same works for shards whose own addresses nothing answers.
func TestServe(t *testing.T) {
	cli, _, _, _ := shards(t)
	tokens := filepath.Join(t.TempDir(), "tokens")
	writeFile(t, tokens, []byte("alice alices-token-of-24-chars\n"))
	for _, test := range []struct {
		args   []string
		header string
		who    string
	}{
		{[]string{"serve", "--bind", "127.0.0.1:0"}, "", "local"},
		{[]string{"serve", "--bind", ":0", "--insecure", "--token-file", tokens},
			"Bearer alices-token-of-24-chars", "alice"},
		{[]string{"serve", "--bind", "127.0.0.1:0", "--servers", "us-a=127.0.0.1:1,us-b=127.0.0.1:1", "--via",
			cli.env[envServers]}, "", "local"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		listening := make(chan struct{})
		log := &until{texts: []string{"serves http://"}, end: func() {
			select {
			case <-listening:
			default:
				close(listening)
			}
		}}
		ended := make(chan int, 1)
		go func() {
			ended <- Run(ctx, test.args, "1", Environment{
				Stdout: io.Discard, Stderr: log, Getenv: func(name string) string {
					return cli.env[name]
				}, Now: fleettest.Clock, Rand: fleettest.Rand(1),
			})
		}()
		select {
		case <-listening:
		case code := <-ended:
			t.Fatal(code, log.String())
		}
		_, url, _ := strings.Cut(log.String(), "serves ")
		url = strings.Replace(strings.Fields(url)[0], "[::]", "127.0.0.1", 1)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			url+"/group?group=workers&must_exist=true&all_shards=true", strings.NewReader(`{"size": 4}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", test.header)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"size": 4`) {
			t.Error(resp.StatusCode, string(body), err)
		}
		page, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		page.Header.Set("Authorization", test.header)
		if resp, err = http.DefaultClient.Do(page); err != nil {
			t.Fatal(err)
		}
		body, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(body), "<title>Fleet") {
			t.Error("the page:", resp.StatusCode, string(body), err)
		}
		cancel()
		if code := <-ended; code != exitOK {
			t.Error(code)
		}
		if text := log.String(); !strings.Contains(text, "who="+test.who) ||
			!strings.Contains(text, "shards=us-a,us-b") {
			t.Error(text)
		}
	}
	if stdout, stderr, code := cli.run(t, "serve", "--bind", ":0", "--token-file",
		"/nonexistent"); code != exitFailure || stdout != "" || !strings.Contains(stderr, "read tokens") {
		t.Error(code, stderr)
	}
	if stdout, stderr, code := cli.run(t, "serve", "--bind", ":0", "--token-file", tokens); code != exitUsage ||
		stdout != "" || !strings.Contains(stderr, "in plain text") || !strings.Contains(stderr, "--insecure") {
		t.Errorf("plain HTTP on every address: exit code %d, %s%s", code, stdout, stderr)
	}
	if _, stderr, code := cli.run(t, "serve", "--bind", "8080"); code != exitUsage ||
		!strings.Contains(stderr, "host:port") {
		t.Error(code, stderr)
	}
}
