package operatorclient

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
)

// Credentials are gRPC credentials of a client. Each handshake gets a new TLS configuration, because the client's
// certificate may have been renewed. Credentials keep the error of the last handshake, which gRPC does not return.
// Each gRPC client connection needs its own Credentials. They are safe for concurrent use.
type Credentials struct {
	credentials.TransportCredentials // for the methods that a client does not call
	config                           func() (*tls.Config, error)

	mu  sync.Mutex
	err error
}

// NewCredentials returns credentials that call the function "config" before each handshake.
func NewCredentials(config func() (*tls.Config, error)) *Credentials {
	return &Credentials{TransportCredentials: credentials.NewTLS(nil), config: config}
}

// ClientHandshake implements credentials.TransportCredentials.
func (c *Credentials) ClientHandshake(ctx context.Context, name string, raw net.Conn) (net.Conn, credentials.AuthInfo,
	error) {
	secured, info, err := c.handshake(ctx, name, raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	return secured, info, err
}

func (c *Credentials) handshake(ctx context.Context, name string, raw net.Conn) (net.Conn, credentials.AuthInfo,
	error) {
	config, err := c.config()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, name, raw)
}

// Failure returns the error of the last handshake. It returns nil if that handshake succeeded, or if Dial was called
// after that handshake.
func (c *Credentials) Failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Dial connects to an address and clears the error that [Credentials.Failure] returns. It is a dialer for
// grpc.WithContextDialer.
func (c *Credentials) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c.mu.Lock()
	c.err = nil
	c.mu.Unlock()
	return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
}

// Clone returns c itself. A copy is not needed, because only one connection uses c.
func (c *Credentials) Clone() credentials.TransportCredentials { return c }
