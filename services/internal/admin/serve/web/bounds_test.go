package web_test

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/admin/serve/web"
)

// parameters returns the names of all query parameters and fields of forms, from the templates and the code.
func parameters(t *testing.T) []string {
	t.Helper()
	names := map[string]bool{}
	for _, pattern := range []string{"*.go", "templates/*.html"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range regexp.MustCompile(`(?:FormValue\(|query\.Get\(| name=)"([a-z_]+)"`).
				FindAllStringSubmatch(string(text), -1) {
				names[match[1]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// TestEveryPartOfARequestIsBounded sends requests to every route of the page with one part of the path, one query
// parameter or one field of a form that is much too large. Each is refused in few words before a shard is called.
func TestEveryPartOfARequestIsBounded(t *testing.T) {
	const most = 2048
	s := newSite(t, "")
	calls := func() (n int) {
		s.a.Do(func() { n += len(s.a.Calls) })
		s.b.Do(func() { n += len(s.b.Calls) })
		return n
	}
	values := map[string]string{"{$}": "", "{hash}": "x", "{shard}": "a", "{group}": "workers", "{instance}": first,
		"{action}": "pause"}
	huge := strings.Repeat("x", 7<<10) // the server permits 16 KiB of headers
	checked := 0
	refused := func(what, method, path string, form url.Values) {
		t.Helper()
		checked++
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // an accepted stream ends then
		defer cancel()
		req := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(form.Encode()))
		req.Host = "127.0.0.1:8080"
		if form != nil {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		called, logged, w := calls(), s.log.Len(), httptest.NewRecorder()
		s.page.ServeHTTP(w, req)
		if text := w.Body.String(); w.Code < 400 || w.Code >= 500 || strings.Contains(text, huge[:most]) {
			t.Errorf("%s %.60s with a huge %s: %d, an answer of %d bytes", method, path, what, w.Code, len(text))
		}
		if n := calls() - called; n > 0 {
			t.Errorf("%s %.60s with a huge %s: %d calls of shards", method, path, what, n)
		}
		for line := range strings.Lines(s.log.String()[logged:]) {
			if len(line) > most {
				t.Errorf("%s %.60s with a huge %s: a line in the log: %.300s", method, path, what, line)
			}
		}
	}
	names := parameters(t)
	for _, route := range web.Routes() {
		pattern := web.Path + route[1]
		fill := func(huge, with string) string {
			path := pattern
			for name, value := range values {
				if name == huge {
					value = with
				}
				path = strings.ReplaceAll(path, name, value)
			}
			return path
		}
		method := route[0]
		if method == "" {
			method = http.MethodPost
		}
		for _, part := range regexp.MustCompile(`{[a-z]+}`).FindAllString(pattern, -1) {
			if _, ok := values[part]; !ok {
				t.Fatalf("the test has no value for %s", part)
			}
			refused(part, method, fill(part, huge), nil)
		}
		refused("rest of the path", method, strings.TrimSuffix(fill("", ""), "/")+"/"+huge, nil)
		for _, name := range append(names, "unknown") {
			refused("parameter "+name, method, fill("", "")+"?"+name+"="+huge, nil)
			if method == http.MethodPost {
				form := url.Values{"confirm": {"workers"}, name: {strings.Repeat("x", 50<<10)}}
				refused("field "+name, method, fill("", ""), form)
			}
		}
		refused("name of a parameter", method, fill("", "")+"?"+huge+"=x", nil)
	}
	if len(names) < 12 || checked < 150 {
		t.Errorf("%d parts of requests were checked, with the parameters %v", checked, names)
	}
}
