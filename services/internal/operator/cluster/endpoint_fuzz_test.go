package cluster

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// FuzzEndpoint checks that an accepted address of an API server has a valid host and port. Formatting and parsing the
// address again must give the same address.
func FuzzEndpoint(f *testing.F) {
	for _, text := range []string{"https://api:6443", "http://api", "api", "api:6443", "10.0.0.1:443",
		"https://[::1]:6443/prefix", "[::1]", "https://", "https://api:0", "https://u:p@api?x", "://", "api:x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := endpointOf(&rest.Config{Host: text})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "address of the API server: ") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if got.Host == "" || got.Port < 1 || got.Port > 65535 {
			t.Errorf("%q: %+v", text, got)
		}
		if again, err := endpointOf(&rest.Config{Host: (&netAddr{got.Host, got.Port}).String()}); err != nil ||
			again != got {
			t.Errorf("%q: %+v is read again as %+v, %v", text, got, again, err)
		}
	})
}

type netAddr struct {
	host string
	port int32
}

// String returns the address in the form used in a URL. There, "%25" separates an IPv6 address from its zone (RFC
// 6874).
func (a *netAddr) String() string {
	return net.JoinHostPort(strings.ReplaceAll(a.host, "%", "%25"), strconv.Itoa(int(a.port)))
}
