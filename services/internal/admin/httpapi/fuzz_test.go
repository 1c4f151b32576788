package httpapi_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// FuzzRequest sends arbitrary requests. No request may cause an internal error, and an error answer in JSON must be
// valid JSON.
func FuzzRequest(f *testing.F) {
	x := newAPI(f, "")
	for _, seed := range []struct{ method, path, query, body string }{
		{"GET", "/v1/groups", "shard=a", ""}, {"GET", "/v1/instances", "all_shards=true&group=workers", ""},
		{"GET", "/v1/status", "shard=c", ""},
		{"PUT", "/v1/groups/workers", "shard=a", `{"size": 3}`}, {"POST", "/v1/instances", "shard=a",
			`{"group": "workers", "vars": {"a": "b"}}`},
		{"DELETE", "/v1/instances/wrk06gx5zsg2nrrqcrz0000000000", "shard=a&shard=b", "{}"},
		{"POST", "/v1/config/refresh", "shard=a", "null"},
		{"GET", "/openapi.json", "", ""}, {"PATCH", "/v1/groups/%2e%2e/x", "shard", `{"size": 1e99}`},
	} {
		f.Add(seed.method, seed.path, seed.query, seed.body)
	}
	f.Fuzz(func(t *testing.T, method, path, query, body string) {
		target := (&url.URL{Path: "/" + path, RawQuery: query}).RequestURI()
		if _, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + target +
			" HTTP/1.0\r\n\r\n"))); err != nil || method == http.MethodConnect {
			return // rejected by net/http itself
		}
		status, answer, header := x.do(t, request{method: method, path: target, body: body})
		if status >= 500 && status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout {
			t.Errorf("%q %q %q: %d %s", method, target, body, status, answer)
		}
		if status >= 400 && header.Get("Content-Type") == "application/json" && !json.Valid([]byte(answer)) {
			t.Errorf("%q %q: %q is no JSON", method, target, answer)
		}
	})
}
