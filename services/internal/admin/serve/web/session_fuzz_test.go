package web

import (
	"net/url"
	"strings"
	"testing"
	"time"
)

// FuzzSession checks that [page.open] accepts only cookies from [page.seal], and that a login leads only to pages of
// this site.
func FuzzSession(f *testing.F) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	p := &page{Options: Options{Now: func() time.Time { return now }}}
	good, err := p.seal(session{Client: Client{Name: "victor"}, Expires: now.Add(time.Hour)})
	if err != nil {
		f.Fatal(err)
	}
	if s, err := p.open(good); err != nil || s.Name != "victor" {
		f.Fatal(s, err)
	}
	f.Add(good, "/ui/events")
	f.Add(strings.Replace(good, ".", "..", 1), "//evil.example/")
	f.Add("e30.", "/ui/\\evil.example")
	f.Fuzz(func(t *testing.T, cookie, to string) {
		if s, err := p.open(cookie); err == nil && s.Name != "victor" {
			t.Errorf("the cookie %q is the session %+v", cookie, s)
		}
		u, err := url.Parse(localPath(to))
		if err == nil && (u.Host != "" || u.Scheme != "" || !strings.HasPrefix(u.Path, Path)) {
			t.Errorf("%q leads to %s", to, u)
		}
	})
}
