package s3

import (
	"bufio"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/store/objstore/file"
)

// FuzzRequest checks that the server answers every request, and that the bucket can be listed afterwards.
func FuzzRequest(f *testing.F) {
	store, err := file.Open(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	h := handler(store, "dev", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9000}, slog.New(slog.DiscardHandler))
	for _, seed := range []struct{ method, path, query, headers, body string }{
		{"PUT", "/dev/a/b", "", "If-None-Match: *", "x"}, {"PUT", "/dev/a/b", "", "If-Match: \"00\"", "y"},
		{"GET", "/dev/a/b", "", "Range: bytes=0-0", ""},
		{"GET", "/dev", "list-type=2&prefix=a/&delimiter=/&max-keys=1", "", ""}, {"HEAD", "/dev/a/b", "", "", ""},
		{"DELETE", "/dev/a/b", "", "", ""},
		{"POST", "/dev", "delete", "", "<Delete><Object><Key>a/b</Key></Object><Quiet>true</Quiet></Delete>"},
		{"POST", "/dev/a", "uploads", "", ""},
		{"PUT", "/dev/a", "partNumber=1&uploadId=x", "", "z"}, {"PUT", "/dev", "versioning", "",
			"<VersioningConfiguration/>"},
		{"PUT", "/dev/../../x", "", "X-Amz-Copy-Source: /dev/a/b", ""},
		{"GET", "/dev", "list-type=2&continuation-token=%ff", "Host: dev.localhost", ""},
	} {
		f.Add(seed.method, seed.path, seed.query, seed.headers, seed.body)
	}
	do := func(t testing.TB, method, target, headers, body string) *httptest.ResponseRecorder {
		req := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
		for line := range strings.Lines(headers) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
				req.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w
	}
	f.Fuzz(func(t *testing.T, method, path, query, headers, body string) {
		target := (&url.URL{Path: "/" + strings.TrimPrefix(path, "/"), RawQuery: query}).RequestURI()
		if _, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + target +
			" HTTP/1.0\r\n\r\n"))); err != nil || method == http.MethodConnect {
			return // net/http refuses the request
		}
		do(t, method, target, headers, body)
		if w := do(t, "GET", "/dev?list-type=2", "", ""); w.Code != http.StatusOK {
			t.Errorf("after %q %q %q %q the bucket cannot be listed: %d %s", method, target, headers, body, w.Code,
				w.Body)
		}
	})
}
