// Package transport identifies the other end of each connection: it issues the server's own certificate, verifies
// client certificates, admits only the role that a port is for, and limits connections.
//
// Invariant: in a server with [ServerOptions], a handler gets calls only from clients with a certificate that the
// cluster's CA issued for the port's role. The client may act only for the identity in its certificate. TLS 1.3 is
// required. Sessions are never resumed, so every client sends its certificate on every connection.
package transport

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// RenewalGrace is how long after the expiry of an agent's certificate the agent may still exchange it for a new one.
// The handler of RenewCertificate checks it, so that the agent and the leader learn why there is no new certificate.
const RenewalGrace = 30 * 24 * time.Hour

// Options of a [Source]. All are required.
type Options struct {
	// Identity of this server: role, cluster, shard, server.
	Identity authority.Identity
	// Hosts are the names and addresses at which clients reach the server: those that the server advertises, and the
	// leader address of the shard.
	Hosts []string
	CA    authority.CA
	// Bundle holds the CA certificates that may have issued client certificates.
	Bundle []*x509.Certificate
	Rand   io.Reader // crypto/rand.Reader except in tests
	Now    func() time.Time
	Log    *slog.Logger
}

// Source issues this server's certificate from the CA, in memory, and has the CA bundle with which the server verifies
// clients. All ports of a server share one Source. It is safe for concurrent use.
type Source struct {
	options     Options
	key         ed25519.PrivateKey
	roots       atomic.Pointer[x509.CertPool]
	connections atomic.Uint64
	anonymous   *anonymous

	mu      sync.Mutex
	ca      authority.CA
	bundle  []*x509.Certificate
	current *tls.Certificate
	renewAt time.Time
}

// NewSource returns a Source that has issued its first certificate.
func NewSource(options Options) (*Source, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(options.Rand, seed); err != nil {
		return nil, fmt.Errorf("make the server's key: %w", err)
	}
	s := &Source{options: options, key: ed25519.NewKeyFromSeed(seed), anonymous: newAnonymous(anonymousLimit())}
	if err := s.SetCA(options.CA, options.Bundle); err != nil {
		return nil, err
	}
	return s, nil
}

// SetCA sets the CA that issues this server's certificate, and the bundle against which the server verifies clients.
// Both apply to later connections.
func (s *Source) SetCA(ca authority.CA, bundle []*x509.Certificate) error {
	roots := authority.NewPool(bundle)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.issue(ca); err != nil {
		return err
	}
	s.ca, s.bundle = ca, bundle
	s.roots.Store(roots)
	return nil
}

// CAExpires returns the expiry time of the CA that issues this server's certificates.
func (s *Source) CAExpires() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ca.Certificate().NotAfter
}

// Uses reports whether a CA and a bundle are those that the Source uses.
func (s *Source) Uses(ca authority.CA, bundle []*x509.Certificate) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ca.Certificate().Equal(ca.Certificate()) && slices.EqualFunc(s.bundle, bundle, (*x509.Certificate).Equal)
}

// issue issues a new server certificate. Call with mu held.
func (s *Source) issue(ca authority.CA) error {
	now := s.options.Now()
	cert, err := ca.IssueServer(authority.ServerSpec{Identity: s.options.Identity, PublicKey: s.key.Public(),
		Hosts: s.options.Hosts}, s.options.Rand, now)
	if err != nil {
		return fmt.Errorf("issue the server's certificate: %w", err)
	}
	s.current = &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: s.key, Leaf: cert}
	s.renewAt = now.Add(cert.NotAfter.Sub(now) / 2)
	return nil
}

// Certificate returns the server's certificate. It issues a new one after half of the lifetime. If that fails, it
// returns the old certificate until the old one expires.
func (s *Source) Certificate() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.options.Now(); !now.Before(s.renewAt) {
		if err := s.issue(s.ca); err != nil {
			if !now.Before(s.current.Leaf.NotAfter) {
				return nil, err
			}
			s.options.Log.Error("server certificate not renewed", "error", err)
			s.renewAt = now.Add(time.Minute)
		}
	}
	return s.current, nil
}

// config returns the TLS configuration that all ports have in common.
func (s *Source) config() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{"h2"},
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.Certificate() },
		SessionTicketsDisabled: true,
		Time:                   s.options.Now,
	}
}

// clientAuthConfig returns the TLS configuration of a port that requires client certificates. Only Source.verify checks
// the chain: crypto/tls would refuse an expired certificate, but an agent may still renew an expired one.
func (s *Source) clientAuthConfig() *tls.Config {
	config := s.config()
	config.ClientAuth = tls.RequireAnyClientCert
	config.VerifyConnection = func(state tls.ConnectionState) error {
		_, err := s.verify(state.PeerCertificates)
		return err
	}
	return config
}

// verify checks a client's certificate chain. If the certificate has expired, expired is true, and verify checks the
// certificate as if it had not expired yet.
func (s *Source) verify(chain []*x509.Certificate) (expired bool, err error) {
	if len(chain) != 1 {
		return false, fmt.Errorf("client certificate: %d certificates, want only the client's own", len(chain))
	}
	leaf, now := chain[0], s.options.Now()
	if now.After(leaf.NotAfter) {
		expired, now = true, leaf.NotAfter
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: s.roots.Load(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return false, fmt.Errorf("client certificate: %w", err)
	}
	return expired, nil
}

// identify returns the client of an established connection. It returns no error for a bad certificate, but notes the
// problem in the Peer. Every call of the client then fails with it.
func (s *Source) identify(state tls.ConnectionState) *Peer {
	leaf := state.PeerCertificates[0]
	p := &Peer{NotAfter: leaf.NotAfter}
	if p.Expired, p.problem = s.verify(state.PeerCertificates); p.problem != nil {
		return p
	}
	identity, err := authority.ParseIdentity(leaf)
	key, ok := leaf.PublicKey.(ed25519.PublicKey)
	switch {
	case err != nil:
		p.problem = err
	case !ok:
		p.problem = errors.New("client certificate: its key is not Ed25519")
	case identity.Cluster != s.options.Identity.Cluster:
		p.problem = fmt.Errorf("client certificate: of cluster %q, this is %q", identity.Cluster,
			s.options.Identity.Cluster)
	default:
		p.Identity, p.PublicKey = identity, slices.Clone(key)
	}
	return p
}
