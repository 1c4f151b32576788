package httpapi

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

// Without tokens, the API answers only requests for host names of this machine. It accepts no name that depends on DNS.
func FuzzHost(f *testing.F) {
	for _, text := range []string{"localhost", "localhost:8080", "127.0.0.1:1", "[::1]:1", "[::1]", "::1",
		"::ffff:127.0.0.1", "127.0.0.1.example.com", "localhost.example.com:80", "", "LOCALHOST", "[localhost]",
		"127.1", "0177.0.0.1", "localhost\x00", "::1%lo", "0.0.0.0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		host := hostOf(text)
		if !Loopback(host) {
			return
		}
		if addr, err := netip.ParseAddr(host); host != "localhost" && (err != nil ||
			!net.IP(addr.AsSlice()).IsLoopback()) {
			t.Errorf("%q is taken for this machine", text)
		}
		if !strings.Contains(text, host) || len(text) > len(host)+len("[]:")+8 && !strings.ContainsAny(text, "[]:") {
			t.Errorf("%q is taken for %q", text, host)
		}
	})
}
