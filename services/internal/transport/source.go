// Package transport owns who is at the other end of a connection: the server's own certificate, the verification of
// clients' certificates, the roles that a port accepts, and the bounds under which connections are taken at all.
//
// Invariant: a handler behind [ServerOptions] sees only peers whose certificate the cluster's CA issued for the port's
// role, and the identity in it is the only one it may act for. TLS 1.3 only; no session is resumed, so every connection
// shows its certificate.
package transport

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// RenewalGrace is for how long after its end an agent's certificate may still be exchanged for a new one.
const RenewalGrace = 30 * 24 * time.Hour

// Options of a [Source]. All are required.
type Options struct {
	// Identity of this server: role, cluster, shard, server.
	Identity authority.Identity
	// Hosts are the names and addresses under which the server is reached: advertised ones and the leader's.
	Hosts []string
	CA    authority.CA
	// Bundle are the CA certificates that clients' certificates may come from.
	Bundle []*x509.Certificate
	Rand   io.Reader // crypto/rand.Reader except in tests
	Now    func() time.Time
	Log    *slog.Logger
}

// Source issues this server's own certificate from the CA, in memory, and holds the CA bundle that clients are verified
// against. It is safe for concurrent use.
type Source struct {
	options Options
	key     ed25519.PrivateKey
	roots   atomic.Pointer[x509.CertPool]

	connections atomic.Uint64
	// gate is that of every port, and so is what clients share that say much at once.
	gate *gate
	rush *rate.Limiter

	mu      sync.Mutex
	ca      authority.CA
	current *tls.Certificate
	renewAt time.Time
}

// NewSource issues the first certificate.
func NewSource(options Options) (*Source, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(options.Rand, seed); err != nil {
		return nil, fmt.Errorf("make the server's key: %w", err)
	}
	s := &Source{options: options, key: ed25519.NewKeyFromSeed(seed), gate: newGate(unprovenLimit(), maxHandshakes,
		runtime.GOMAXPROCS(0)), rush: rushPace.limiter()}
	if err := s.Use(options.CA, options.Bundle); err != nil {
		return nil, err
	}
	return s, nil
}

// Use makes the CA, and the bundle that clients are verified against, those of every later connection.
func (s *Source) Use(ca authority.CA, bundle []*x509.Certificate) error {
	roots := x509.NewCertPool()
	for _, cert := range bundle {
		roots.AddCert(cert)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.issue(ca); err != nil {
		return err
	}
	s.ca = ca
	s.roots.Store(roots)
	return nil
}

// issue makes a new certificate. Call with mu held.
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

// Certificate returns the server's certificate, a new one from half of the life of the one before. If that cannot be
// issued, the one before serves to its end.
func (s *Source) Certificate() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.options.Now(); !now.Before(s.renewAt) {
		if err := s.issue(s.ca); err != nil {
			if !now.Before(s.current.Leaf.NotAfter) {
				return nil, err
			}
			s.options.Log.Error("server certificate cannot be renewed", "error", err)
			s.renewAt = now.Add(time.Minute)
		}
	}
	return s.current, nil
}

// config returns what all ports have in common.
func (s *Source) config() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{"h2"},
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.Certificate() },
		SessionTicketsDisabled: true,
		Time:                   s.options.Now,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			if begun, ok := hello.Conn.(*peeked); ok {
				return nil, begun.greet()
			}
			return nil, nil //nolint:nilnil // the configuration remains this one
		},
	}
}

// withClients returns the configuration of a port for clients with certificates. The chain is verified by verify alone:
// Go's own check would refuse expired certificates before anybody could say so.
func (s *Source) withClients() *tls.Config {
	config := s.config()
	config.ClientAuth = tls.RequireAnyClientCert
	config.VerifyConnection = func(state tls.ConnectionState) error {
		_, err := s.verify(state.PeerCertificates)
		return err
	}
	return config
}

// verify checks a client's chain, as of now or, for up to RenewalGrace after its end, as of its last second. expired
// tells which.
func (s *Source) verify(chain []*x509.Certificate) (expired bool, err error) {
	if len(chain) != 1 {
		return false, fmt.Errorf("client certificate: %d certificates, want the client's alone", len(chain))
	}
	leaf, now := chain[0], s.options.Now()
	if now.After(leaf.NotAfter) {
		if now.Sub(leaf.NotAfter) > RenewalGrace {
			return false, fmt.Errorf("client certificate: expired at %s", leaf.NotAfter.Format(time.RFC3339))
		}
		expired, now = true, leaf.NotAfter
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: s.roots.Load(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return false, fmt.Errorf("client certificate: %w", err)
	}
	return expired, nil
}

// peer reads who an established connection's client is. What is wrong with it is told at its first call.
func (s *Source) peer(state tls.ConnectionState) *Peer {
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
