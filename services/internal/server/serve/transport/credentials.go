package transport

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
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
	"github.com/nstance-kit/nstance/services/contract/record"
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

// ClientCredentials returns the credentials with which this server connects to another server of its shard. This server
// presents its own certificate. The other server's certificate must be from the cluster's CA, for the given server ID
// and the dialed address.
func ClientCredentials(source *Source, server string) credentials.TransportCredentials {
	self := source.options.Identity
	want := authority.Identity{Role: authority.RoleServer, Cluster: self.Cluster, Shard: self.Shard, Server: server}
	config := source.config()
	config.GetCertificate = nil
	config.RootCAs = source.roots.Load()
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return source.Certificate()
	}
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("server certificate: there is none")
		}
		identity, err := authority.ParseIdentity(state.PeerCertificates[0])
		if err != nil {
			return err
		}
		if identity != want {
			return fmt.Errorf("server certificate: it is of %s, want %s", identity.URI(), want.URI())
		}
		return nil
	}
	return credentials.NewTLS(config)
}

// Issuer issues the client certificates of agents and operators. It is safe for concurrent use if Rand is.
type Issuer struct {
	CA authority.CA
	// Bundle is the CA bundle in PEM, which clients receive with their certificates.
	Bundle []byte
	// Trust identifies CA and Bundle, see authority.Trust.
	Trust string
	Rand  io.Reader // crypto/rand.Reader except in tests
	Now   func() time.Time
}

// Issue issues a certificate. It also returns a reference to the certificate, for the client's record.
func (i Issuer) Issue(identity authority.Identity, key ed25519.PublicKey) (*x509.Certificate, record.CertificateRef,
	error) {
	cert, err := i.CA.IssueClient(authority.ClientSpec{Identity: identity, PublicKey: key}, i.Rand, i.Now())
	if err != nil {
		return nil, record.CertificateRef{}, err
	}
	return cert, record.CertificateRef{Serial: authority.Serial(cert), NotAfter: cert.NotAfter.UTC(),
		Trust: i.Trust}, nil
}

// Reissue issues a certificate a second time, for a client that did not receive it. ref refers to that certificate. The
// client's record does not change. ok is false if Reissue cannot make the same certificate, if half of the
// certificate's lifetime has passed, or if a CA rotation has changed the CA or the bundle. The caller then issues a new
// one.
func (i Issuer) Reissue(identity authority.Identity, key ed25519.PublicKey,
	ref record.CertificateRef) (cert *x509.Certificate, ok bool) {
	ttl := authority.AgentTTL
	if identity.Role == authority.RoleOperator {
		ttl = authority.OperatorTTL
	}
	serial, err := hex.DecodeString(ref.Serial)
	if err != nil || ref.Trust != i.Trust || ref.NotAfter.Sub(i.Now()) < ttl/2 {
		return nil, false
	}
	// IssueClient takes the serial from the first random bytes. So these bytes must be the serial of the certificate to
	// issue again.
	rand := io.MultiReader(bytes.NewReader(serial), i.Rand)
	cert, err = i.CA.IssueClient(authority.ClientSpec{Identity: identity, PublicKey: key, TTL: ttl}, rand,
		ref.NotAfter.Add(-ttl))
	if err != nil || authority.Serial(cert) != ref.Serial || !cert.NotAfter.Equal(ref.NotAfter) {
		return nil, false
	}
	return cert, true
}

// CheckPublicKey returns what is wrong with a public key from a message, or nil.
func CheckPublicKey(key []byte) error {
	if len(key) != ed25519.PublicKeySize {
		return fmt.Errorf("has %d bytes, a raw Ed25519 key has %d", len(key), ed25519.PublicKeySize)
	}
	return nil
}
