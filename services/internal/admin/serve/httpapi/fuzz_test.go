package httpapi_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// FuzzRequest sends arbitrary requests. No request may cause an internal error, and every refusal is JSON.
func FuzzRequest(f *testing.F) {
	x := newAPI(f, "")
	close(x.ended) // so that event streams end immediately
	for _, seed := range []struct{ method, path, query, body string }{
		{"GET", "groups", "shard=a", ""}, {"GET", "instances", "all_shards=true&group=workers", ""},
		{"GET", "groups", "shard=a&group=workers", ""}, {"GET", "group/explain", "shard=a&instance_id=x", ""},
		{"GET", "status", "shard=a", ""}, {"GET", "events", "shard=a&since=1h&kinds=a&kinds=b", ""},
		{"GET", "openapi.json", "", ""}, {"POST", "group/pause", "shard=a", `{"group": "workers", "size": 3}`},
		{"POST", "group", "shard=a&group=web&must_create=true", `{"template": "worker", "size": 1e99}`},
		{"POST", "group", "shard=a&group=workers", `{"vars": {"a": null}, "rollout": {"canary": 1}}`},
		{"POST", "instance/create", "shard=a", `{"group": "workers", "vars": {"a": "b"}}`},
		{"POST", "instance/delete", "shard=a&shard=b", `{"instance_id": "wrk06gx5zsg2nrrqcrz0000000000"}`},
		{"POST", "config/refresh", "shard=a", "null"}, {"POST", "server/step-down", "shard", "{}"},
	} {
		status, answer, _ := x.do(f, request{method: seed.method, path: "/" + seed.path + "?" + seed.query,
			body: seed.body})
		if status == http.StatusMethodNotAllowed || strings.Contains(answer, "/openapi.json describes what there is") {
			f.Fatalf("%s %s: no route: %d, %s", seed.method, seed.path, status, answer)
		}
		f.Add(seed.method, seed.path, seed.query, seed.body)
	}
	f.Add("PATCH", "groups/%2e%2e/x", "shard", `{"size": 1e99}`)
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
		if kind := header.Get("Content-Type"); status >= 400 &&
			(kind != "application/json" || !json.Valid([]byte(answer))) {
			t.Errorf("%q %q: %d %s %q is no JSON", method, target, status, kind, answer)
		}
	})
}
