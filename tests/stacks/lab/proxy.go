package lab

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Proxy serves an HTTP proxy that connects with dial, until the test ends. Programs with the proxy's URL in HTTPS_PROXY
// reach the network of a shard through the proxy, as users do through a company's proxy. Only loopback addresses do not
// go through the proxy.
func Proxy(t *testing.T, dial func(ctx context.Context, network, address string) (net.Conn, error)) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "CONNECT only", http.StatusMethodNotAllowed)
			return
		}
		target, err := dial(r.Context(), "tcp", r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer target.Close()
		client, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer client.Close()
		if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(target, buffered) // The other direction ends with an error too.
			_ = target.Close()
		}()
		_, _ = io.Copy(client, target)
	}))
	t.Cleanup(server.Close)
	return server.URL
}
