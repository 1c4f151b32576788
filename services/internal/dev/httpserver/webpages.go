package httpserver

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// refuseWebPages refuses requests that a browser sends for a web page. Some of them have an Origin header, or a
// Sec-Fetch-Site header that marks them as sent by a page (https://www.w3.org/TR/fetch-metadata). Others name a host
// that an attacker's DNS server can resolve to this machine. Programs other than browsers use an IP address or
// localhost, or name no host, as HTTP/1.0 permits.
func refuseWebPages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site := r.Header.Get("Sec-Fetch-Site")
		switch {
		case r.Header.Get("Origin") != "" || site != "" && site != "none":
			http.Error(w, "requests of web pages are refused", http.StatusForbidden)
		case r.Host != "" && !isLocalName(r.Host):
			http.Error(w, "host "+r.Host+" is refused: use an IP address or localhost", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isLocalName reports whether hostport names an IP address, localhost or a name below localhost (RFC 6761, 6.3). The
// port is optional.
func isLocalName(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost" || strings.HasSuffix(host, ".localhost")
}
