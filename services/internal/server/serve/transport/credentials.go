package transport

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// Peer is the client at the other end of one connection. Each connection has its own Peer, so equal pointers mean the
// same connection.
type Peer struct {
	// Identity, PublicKey and NotAfter come from the client certificate. They are zero on the registration port.
	Identity  authority.Identity
	PublicKey ed25519.PublicKey
	NotAfter  time.Time
	// Expired reports that the certificate had expired when the connection was made. The client may then call only
	// RenewCertificate, which refuses it when RenewalGrace has passed since the expiry. Connections with a valid
	// certificate are closed when it expires.
	Expired bool
	// Number identifies the connection. It increases with each connection of a [Source].
	Number uint64

	// problem says what is wrong with the client's certificate. It is nil if nothing is wrong.
	problem error
	conn    net.Conn
}

// AuthType implements credentials.AuthInfo.
func (*Peer) AuthType() string { return "tls" }

// GetCommonAuthInfo tells gRPC that the connection is encrypted.
func (*Peer) GetCommonAuthInfo() credentials.CommonAuthInfo {
	return credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
}

// Close closes the connection, which ends all streams on it.
func (p *Peer) Close() { p.conn.Close() }

// PeerOf returns the client that made a call.
func PeerOf(ctx context.Context) (*Peer, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if client, ok := p.AuthInfo.(*Peer); ok {
			return client, nil
		}
	}
	return nil, errors.New("the call did not arrive on a connection of this package")
}

// PeerIdentity returns the identity in the certificate of the client that made a call.
func PeerIdentity(ctx context.Context) (authority.Identity, error) {
	p, err := PeerOf(ctx)
	if err != nil {
		return authority.Identity{}, err
	}
	if p.Identity == (authority.Identity{}) {
		return authority.Identity{}, errors.New("the client has no certificate")
	}
	return p.Identity, nil
}

// serverCredentials accepts the TLS connections of one port.
type serverCredentials struct {
	credentials.TransportCredentials // of the TLS configuration

	source *Source
	config *tls.Config
	role   authority.Role
	// registrations limits the connections of each address to the registration port; nil on other ports.
	registrations *rateLimiter[netip.Addr]
	// For each client certificate, `clients` limits the open connections and `handshakes` the rate of new connections.
	// Both are nil on the registration port.
	clients    *clients
	handshakes *rateLimiter[authority.Identity]
	// bytes limits the bytes that the server reads: per client certificate, or per address on the registration port.
	// foreignBytes limits the bytes that it reads per address on connections with a certificate for another port.
	bytes, foreignBytes *rateLimiter[any]
}

// Clone implements credentials.TransportCredentials. It returns s, which is never changed.
func (s *serverCredentials) Clone() credentials.TransportCredentials { return s }

// ServerHandshake implements credentials.TransportCredentials. gRPC has set a deadline of handshakeTimeout on the
// connection.
func (s *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if from := sourceOf(raw.RemoteAddr()); s.registrations != nil && !isLocal(from) && !s.registrations.allow(from) {
		return nil, nil, fmt.Errorf("too many connections from %s", from)
	}
	leave, err := s.source.anonymous.add(raw)
	if err != nil {
		return nil, nil, err
	}
	done, err := s.source.anonymous.startHandshake(raw)
	if err != nil {
		leave()
		return nil, nil, err
	}
	conn := tls.Server(raw, s.config)
	err = conn.Handshake()
	if err == nil && conn.ConnectionState().NegotiatedProtocol != "h2" {
		err = errors.New("the client does not offer HTTP/2")
	}
	if err != nil {
		// A client that hung up before its ClientHello cost no work, so its handshake does not count as failed.
		done(conn.ConnectionState().Version != 0 || !hungUp(err))
		closeAfterAlert(raw)
		leave()
		return nil, nil, fmt.Errorf("TLS handshake: %w", err)
	}
	client, known, failed, from := &Peer{}, false, false, sourceOf(raw.RemoteAddr())
	var bytes *rate.Limiter
	switch {
	case s.role == "" && !isLocal(from):
		bytes = s.bytes.bucket(from)
	case s.role != "":
		client = s.source.identify(conn.ConnectionState())
		// A handshake also counts as failed if the client has no rights on this port, or connects too often.
		if failed = client.Identity.Role != s.role; failed {
			bytes = s.foreignBytes.bucket(from)
			break
		}
		known, failed, bytes = true, !s.handshakes.allow(client.Identity), s.bytes.bucket(client.Identity)
	}
	done(failed)
	if known {
		leave()
		leave = s.clients.add(client.Identity, raw)
	}
	client.conn, client.Number = raw, s.source.connections.Add(1)
	if s.role != "" {
		leave = s.closeInTime(client, leave)
	}
	return &limitedConn{Conn: conn, bytes: bytes, leave: leave}, client, nil
}

// closeInTime starts a timer that closes the client's connection when the client's certificate may no longer be used.
// It returns a function that stops the timer and calls leave.
func (s *serverCredentials) closeInTime(client *Peer, leave func()) func() {
	left := client.NotAfter.Sub(s.source.options.Now())
	if client.Expired {
		left = max(left+RenewalGrace, refusalTime)
	}
	timer := time.AfterFunc(left, client.Close)
	return func() {
		timer.Stop()
		leave()
	}
}

// limitedConn reads no faster than its token bucket `bytes` allows, if it has one. When the connection is closed,
// limitedConn calls leave, and the connection no longer counts towards the limits. It also calls leave when a read
// fails, because gRPC does not close a connection that fails at the first byte.
type limitedConn struct {
	*tls.Conn
	bytes *rate.Limiter
	leave func()
}

func (c *limitedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.leave()
		return n, err
	}
	if c.bytes != nil {
		time.Sleep(c.bytes.ReserveN(time.Now(), n).Delay())
	}
	return n, nil
}

func (c *limitedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// hungUp reports whether a handshake failed because no more bytes came from the client.
func hungUp(err error) bool {
	var broken *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &broken) &&
		broken.Op == "read"
}

// closeAfterAlert closes a connection so that the TLS alert sent last arrives. If the server closed a connection with
// unread bytes, the kernel would reset it and the client might not see the alert.
func closeAfterAlert(conn net.Conn) {
	defer conn.Close()
	half, ok := conn.(interface{ CloseWrite() error })
	if ok && half.CloseWrite() == nil && conn.SetReadDeadline(time.Now().Add(time.Second)) == nil {
		_, _ = io.CopyN(io.Discard, conn, 64<<10)
	}
}
