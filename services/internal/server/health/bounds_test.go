package health

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestEveryPartOfARequestIsBounded sends requests with a path, a query, headers or a body that is much too large to
// each path of the endpoint. None changes an answer, and the server reads at most a part of it.
func TestEveryPartOfARequestIsBounded(t *testing.T) {
	const most = 512 << 10 // bytes that the kernel and the server may take of a request before they end it
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var probe Probe
	probe.Ready()
	numbers := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "numbers") })
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(t.Context(), listener, &probe, map[string]http.Handler{"/metrics": numbers, "/leader": numbers})
	}()
	t.Cleanup(func() { <-ended })
	huge := strings.Repeat("x", 7<<10)
	for _, path := range []string{"/", "/health", "/metrics", "/leader", "/other", "/" + huge} {
		for name, parts := range map[string]struct {
			query, header string
			body          int
			status        int // 0: the status of the path without the addition
		}{
			"7 KiB of query":     {query: huge},
			"7 KiB of header":    {header: huge},
			"1 MiB of query":     {query: strings.Repeat("x", 1<<20), status: http.StatusRequestHeaderFieldsTooLarge},
			"1 MiB of header":    {header: strings.Repeat("x", 1<<20), status: http.StatusRequestHeaderFieldsTooLarge},
			"100 MiB of content": {body: 100 << 20},
		} {
			want := http.StatusOK
			if path == "/other" || path == "/"+huge {
				want = http.StatusNotFound
			}
			if parts.status != 0 {
				want = parts.status
			}
			body := &counter{left: parts.body}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
				"http://"+listener.Addr().String()+path+"?name="+parts.query, nil)
			if err != nil {
				t.Fatal(err)
			}
			if parts.body > 0 {
				req.Body, req.ContentLength = io.NopCloser(body), int64(parts.body)
			}
			req.Header.Set("X-Test", parts.header)
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
			resp, err := client.Do(req)
			if err != nil {
				// The server may close the connection while the client still sends.
				if parts.body == 0 && parts.status == 0 {
					t.Errorf("%.20s with %s: %v", path, name, err)
				}
			} else {
				text, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != want || len(text) > 2048 || bytes.Contains(text, []byte("xxxxxxxx")) {
					t.Errorf("%.20s with %s: %d %.300q, want %d", path, name, resp.StatusCode, text, want)
				}
			}
			if sent := body.sent.Load(); sent > 8*most {
				t.Errorf("%.20s with %s: the server took %d bytes", path, name, sent)
			}
		}
	}
}

// counter is a body that counts the bytes that are sent of it.
type counter struct {
	left int
	sent atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), c.left)
	c.left -= n
	c.sent.Add(int64(n))
	return n, nil
}
