// Package loopback sends HTTP requests to programs on this machine.
package loopback

import (
	"context"
	"net"
	"net/http"
	"strconv"
)

// maxHeader is the maximum size of an answer's header.
const maxHeader = 64 << 10

// client uses no proxy, follows no redirects, and opens a connection for each request.
var client = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: dial,
		MaxResponseHeaderBytes: maxHeader},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// Get sends a GET request to a port of the loopback address. accept is the header Accept; it may be empty. The caller
// must close the answer's body.
func Get(ctx context.Context, port uint32, path, accept string) (*http.Response, error) {
	host := net.JoinHostPort("localhost", strconv.FormatUint(uint64(port), 10))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "nstance-agent")
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	return client.Do(req)
}

// dial connects to this machine, at the port in addr. It tries IPv4 first, and then IPv6.
func dial(ctx context.Context, _, addr string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	if conn, err6 := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("::1", port)); err6 == nil {
		return conn, nil
	}
	return nil, err
}
