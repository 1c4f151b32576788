package httpserver

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestRefuseWebPages sends requests like those of programs, and requests like those that a browser sends for a web
// page. Some of them have the page's host name, as after DNS rebinding.
func TestRefuseWebPages(t *testing.T) {
	server := refuseWebPages(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, tc := range []struct {
		host   string
		header http.Header
		want   int
	}{
		{host: "127.0.0.1:8989", want: 200},
		{host: "[::1]:8989", want: 200},
		{host: "192.0.2.7", want: 200},
		{host: "localhost:8989", want: 200},
		{host: "dev.localhost:8989", want: 200},
		{host: "LOCALHOST", want: 200},
		{host: "evil.example.com", want: 403},
		{host: "evil.example.com:8989", want: 403},
		{host: "localhost.example.com:8989", want: 403},
		{host: "evillocalhost", want: 403},
		{host: "", want: 200},
		{host: "127.0.0.1:8989", header: http.Header{"Origin": {"https://evil.example.com"}}, want: 403},
		{host: "127.0.0.1:8989", header: http.Header{"Origin": {"null"}}, want: 403},
		{host: "127.0.0.1:8989", header: http.Header{"Sec-Fetch-Site": {"cross-site"}}, want: 403},
		{host: "127.0.0.1:8989", header: http.Header{"Sec-Fetch-Site": {"none"}}, want: 200}, // typed by the user
	} {
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodOptions} {
			r := httptest.NewRequest(method, "/dev/cluster/ca.crt", nil)
			r.Host = tc.host
			if tc.header != nil {
				r.Header = tc.header
			}
			w := httptest.NewRecorder()
			server.ServeHTTP(w, r)
			if w.Code != tc.want {
				t.Errorf("%s with host %q and header %v: status %d, want %d", method, tc.host, tc.header, w.Code,
					tc.want)
			}
		}
	}
}
