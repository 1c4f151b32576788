package health

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestServe(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var probe Probe
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, listener, &probe, map[string]http.Handler{
			"/metrics": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "numbers")
			})})
	}()
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get("http://" + listener.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, strings.TrimSpace(string(body))
	}
	expect := func(path string, status int, body string) {
		t.Helper()
		if gotStatus, gotBody := get(path); gotStatus != status || gotBody != body {
			t.Errorf("%s answered %d %q, want %d %q", path, gotStatus, gotBody, status, body)
		}
	}
	expect("/health", 503, "starting")
	probe.NotReady("reading the configuration")
	expect("/", 503, "reading the configuration")
	expect("/metrics", 200, "numbers")
	probe.Ready()
	expect("/health", 200, "ok")
	probe.Says = func() string { return "no leader" }
	expect("/health", 200, "no leader")
	if status, _ := get("/other"); status != 404 {
		t.Errorf("/other answered %d", status)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestJSON(t *testing.T) {
	probe := Probe{Details: func() any { return map[string]int{"term": 7} }}
	for _, ready := range []bool{false, true} {
		code, want := 503, `{"ready":false,"says":"starting","details":{"term":7}}`
		if ready {
			probe.Ready()
			code, want = 200, `{"ready":true,"says":"ok","details":{"term":7}}`
		}
		req := httptest.NewRequest(http.MethodGet, "/health", http.NoBody)
		req.Header.Set("Accept", "application/json")
		w := httptest.NewRecorder()
		probe.ServeHTTP(w, req)
		if got := strings.TrimSpace(w.Body.String()); w.Code != code || got != want {
			t.Errorf("got %d %s, want %d %s", w.Code, got, code, want)
		}
	}
}
