package notice

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"unicode"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// scripted is a metadata service that gives odd answers until it is made healthy.
type scripted struct {
	token, body, etag, flavor atomic.Pointer[string]
	status                    atomic.Int32
}

const goodToken = "AQAEAA=="

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == tokenPath {
		_, _ = io.WriteString(w, *s.token.Load())
		return
	}
	w.Header()["Etag"], w.Header()["Metadata-Flavor"] = []string{*s.etag.Load()}, []string{*s.flavor.Load()}
	w.WriteHeader(int(s.status.Load()))
	_, _ = io.WriteString(w, *s.body.Load())
}

func (s *scripted) set(status int, token, body, etag, flavor string) {
	s.status.Store(int32(status))
	s.token.Store(&token)
	s.body.Store(&body)
	s.etag.Store(&etag)
	s.flavor.Store(&flavor)
}

// FuzzService checks that the watchers recover from any answer of a metadata service. When the service is healthy
// again, they report its notice.
func FuzzService(f *testing.F) {
	f.Add(200, goodToken, `{"action":"terminate","time":"2026-11-21T08:22:00Z"}`, "1", "Google")
	f.Add(200, "a\x00b", "TRUE", "a b&c", "Google")
	f.Add(200, "", "FALSE\n", "", "")
	f.Add(200, "a\nb", "TRUE ", "\x80", "google")
	f.Add(404, strings.Repeat("t", maxAnswer+1), "", "1", "Google")
	f.Add(503, "é", strings.Repeat("{", maxAnswer), "1", "Google")
	s := &scripted{}
	server := httptest.NewServer(s)
	f.Cleanup(server.Close)
	f.Fuzz(func(t *testing.T, status int, token, body, etag, flavor string) {
		if status != http.StatusOK && (status < 400 || status > 599) {
			return
		}
		o := Options{Base: server.URL, Client: server.Client(), Log: slog.New(slog.DiscardHandler)}
		a, g := NewAWS(o), NewGCP(o)
		s.set(status, token, body, etag, flavor)
		ctx := context.Background()
		if notice, err := a.readAction(ctx); err == nil && status == http.StatusOK && notice == nil {
			t.Errorf("%q is no notice and no error", body)
		} else if err != nil && len(err.Error()) > 4<<10 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
		text, next, err := g.readChange(ctx, preemptedPath, "")
		if err == nil && (status != http.StatusOK || flavor != "Google" || text != strings.TrimSpace(body)) {
			t.Errorf("%d %q of %q: %q", status, body, flavor, text)
		}
		for _, took := range []func() (*nstancev1.Maintenance, error){
			func() (*nstancev1.Maintenance, error) { return a.readScheduled(ctx) },
			func() (*nstancev1.Maintenance, error) { return g.readUpcoming(ctx) },
		} {
			if found, err := took(); err == nil && (len(found.GetKind()) > maxKind ||
				strings.ContainsFunc(found.GetKind(), unicode.IsControl) ||
				found.GetBegins() != nil && found.GetBegins().CheckValid() != nil) {
				t.Errorf("%q is the maintenance %v", body, found)
			}
		}

		s.set(http.StatusOK, goodToken, `{"action":"stop"}`, "2", "Google")
		if notice, err := a.readAction(ctx); err != nil || notice.GetKind() != "spot-stop" {
			t.Errorf("after the token %q: %v, %v", token, notice, err)
		}
		s.set(http.StatusOK, goodToken, "TRUE", "2", "Google")
		if text, _, err := g.readChange(ctx, preemptedPath, next); err != nil || text != "TRUE" {
			t.Errorf("after the version %q: %q, %v", next, text, err)
		}
	})
}
