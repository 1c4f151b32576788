package transport

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// Peer is the client at the other end of one connection. Each connection has a Peer of its own, so that pointers tell
// connections apart.
type Peer struct {
	// Identity is zero on the registration port, where clients show no certificate. So is all that follows.
	Identity  authority.Identity
	PublicKey ed25519.PublicKey
	NotAfter  time.Time
	// Expired: the certificate had ended when the connection was made. Only RenewCertificate may be called.
	Expired bool
	// Number rises from each connection of a [Source] to the next.
	Number uint64

	// problem: the CA issued the certificate, but not for a client of this cluster.
	problem error
	conn    net.Conn
}

// AuthType implements credentials.AuthInfo.
func (*Peer) AuthType() string { return "tls" }

// GetCommonAuthInfo tells gRPC that the connection is encrypted.
func (*Peer) GetCommonAuthInfo() credentials.CommonAuthInfo {
	return credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
}

// Close cuts the connection, whatever a stream on it is doing.
func (p *Peer) Close() { p.conn.Close() }

// PeerOf returns the client that a call came from.
func PeerOf(ctx context.Context) (*Peer, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if client, ok := p.AuthInfo.(*Peer); ok {
			return client, nil
		}
	}
	return nil, errors.New("the call did not come over a connection of this server's")
}

// PeerIdentity returns the identity in the certificate of the client that a call came from.
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

// transport is the server's side of TLS for gRPC.
type transport struct {
	source *Source
	config *tls.Config
	// clients: they show certificates.
	clients bool
	gate    *gate
	crowd   *crowd
	role    authority.Role
	// strangers are those whose certificate is good for no call here.
	strangers *crowd
	limit     *Limiter // of handshakes; nil: none
}

var _ credentials.TransportCredentials = (*transport)(nil)

// ServerHandshake takes a connection. gRPC has set a deadline on it.
func (t *transport) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if t.limit != nil && !t.limit.Allow(raw.RemoteAddr()) {
		return nil, nil, fmt.Errorf("too many connections from %s", raw.RemoteAddr())
	}
	proven := t.gate.enter(raw)
	defer proven()
	// A client that only connects has not begun a handshake, and takes no turn away from those that do.
	begun, came := &peeked{Conn: raw}, time.Now()
	if err := raw.SetReadDeadline(came.Add(silence + rand.N(silence))); err != nil {
		return nil, nil, err
	}
	if err := begun.peek(); err != nil {
		return nil, nil, fmt.Errorf("wait for the client's first byte: %w", err)
	}
	if err := raw.SetDeadline(came.Add(handshakeTimeout)); err != nil {
		return nil, nil, err
	}
	done, err := t.gate.turn(begun)
	if err != nil {
		return nil, nil, err
	}
	conn, err := t.handshake(begun)
	if err != nil {
		// who has gone before it was answered took no time
		done(begun.greeted || !hungUp(err) && !errors.Is(err, errCrowded))
		linger(begun)
		return nil, nil, fmt.Errorf("TLS handshake: %w", err)
	}
	client, crowd, from := &Peer{}, t.crowd, sourceOf(raw.RemoteAddr())
	var who any = from
	if t.clients {
		client = t.source.peer(conn.ConnectionState())
		who = client.Identity
		if client.Identity.Role != t.role {
			crowd, who = t.strangers, from // there is nobody to take its word for
		}
	}
	client.conn, client.Number = raw, t.source.connections.Add(1)
	if !t.clients && local(from) {
		done(false)
		return conn, client, nil
	}
	own, leave := crowd.enter(who, raw)
	// A handshake is in vain if its client may say nothing here, or comes so often that it has nothing left to say it
	// with. At the registration port, t.limit has counted it.
	done(t.clients && (crowd == t.strangers || !own.words.AllowN(time.Now(), int(priceHandshake))))
	return &counted{Conn: conn, own: own, rush: t.source.rush, leave: leave}, client, nil
}

func (t *transport) handshake(raw net.Conn) (*tls.Conn, error) {
	conn := tls.Server(raw, t.config)
	if err := conn.Handshake(); err != nil {
		return nil, err
	}
	if conn.ConnectionState().NegotiatedProtocol != "h2" {
		return nil, errors.New("the client does not offer HTTP/2")
	}
	return conn, nil
}

// hungUp reports whether a handshake failed because the client said no more.
func hungUp(err error) bool {
	var broken *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &broken) &&
		broken.Op == "read"
}

// linger closes a connection so that the alert that was sent last arrives: what the client has sent meanwhile would
// otherwise have the kernel throw it away.
func linger(conn net.Conn) {
	defer conn.Close()
	if half, ok := conn.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		return
	}
	if conn.SetReadDeadline(time.Now().Add(time.Second)) == nil {
		_, _ = io.CopyN(io.Discard, conn, 64<<10)
	}
}

// ClientHandshake is not a server's to do.
func (t *transport) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a server's")
}

// Info implements credentials.TransportCredentials.
func (t *transport) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns t itself: nothing in it changes.
func (t *transport) Clone() credentials.TransportCredentials { return t }

// OverrideServerName is for clients; the deprecated method has no effect here.
func (t *transport) OverrideServerName(string) error { return nil }
