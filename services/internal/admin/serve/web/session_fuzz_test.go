package web

import (
	"net/url"
	"strings"
	"testing"
	"time"
)

// FuzzSession checks that only the cookie of a login is a session, and that a login leads only to pages of this site.
func FuzzSession(f *testing.F) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	var s sessions
	good := s.begin(Client{Name: "victor"}, now)
	if client, ok := s.find(good, now); !ok || client.Name != "victor" {
		f.Fatal(client, ok)
	}
	f.Add(good, "/ui/events")
	f.Add(good+".", "//evil.example/")
	f.Add("", "/ui/\\evil.example")
	f.Fuzz(func(t *testing.T, cookie, to string) {
		if client, ok := s.find(cookie, now); ok && cookie != good {
			t.Errorf("the cookie %q is a session of %+v", cookie, client)
		}
		u, err := url.Parse(localPath(to))
		if err == nil && (u.Host != "" || u.Scheme != "" || !strings.HasPrefix(u.Path, Path)) {
			t.Errorf("%q leads to %s", to, u)
		}
	})
}
