// Package identity owns who the agent is: its key, its certificate, the CA bundle it trusts and, until it is spent, its
// nonce.
//
// Invariant: the key is made once and durable before anything is signed for it, and the nonce is removed only after the
// certificate is durable. A crash between any two writes therefore leaves a state from which the same registration goes
// on: the server gives the same key presenting the same nonce its certificate again.
package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
	"github.com/nstance-kit/nstance/services/internal/agent/keypair"
)

// Files of the identity folder. The first two are left there by the VM's userdata.
const (
	CAFile          = "ca.crt"
	NonceFile       = "nonce.jwt"
	KeyFile         = "identity.key"
	CertificateFile = "identity.crt"
)

// ErrIncomplete means that a file which is not the agent's to make is missing: userdata may still write it.
var ErrIncomplete = errors.New("identity is incomplete")

// Nonce is a registration nonce, a secret: it prints as a placeholder.
type Nonce string

const redacted = "[redacted]"

func (Nonce) String() string { return redacted }

// GoString redacts %#v.
func (Nonce) GoString() string { return redacted }

// LogValue redacts log records.
func (Nonce) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON redacts JSON.
func (Nonce) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// Certificate is the agent's client certificate with its key, ready for TLS.
type Certificate struct {
	TLS  tls.Certificate
	Leaf *x509.Certificate
	// Cluster is the cluster that the agent belongs to, as its certificate says.
	Cluster string
}

// Expired reports whether the certificate may no longer be used, except for its own renewal.
func (c *Certificate) Expired(now time.Time) bool { return !now.Before(c.Leaf.NotAfter) }

// Life is the time from the certificate's issue to its end, which is shorter than its validity.
func (c *Certificate) Life() time.Duration {
	return max(c.Leaf.NotAfter.Sub(c.Leaf.NotBefore)-authority.Skew, 0)
}

// RenewAt is when to renew: at two thirds of the certificate's life.
func (c *Certificate) RenewAt() time.Time { return c.Leaf.NotAfter.Add(-c.Life() / 3) }

// Store keeps one instance's identity in a folder. Its methods may not run concurrently.
type Store struct {
	dir  folder.Folder
	id   ident.ID
	mode fs.FileMode
}

// NewStore returns the store of an instance. Files get the given mode; the key's is without the rights of others.
func NewStore(dir folder.Folder, id ident.ID, mode fs.FileMode) *Store {
	return &Store{dir: dir, id: id, mode: mode}
}

// Key returns the identity key, making it the first time.
func (s *Store) Key() (ed25519.PrivateKey, error) {
	text, err := s.dir.Read(KeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return s.makeKey()
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", KeyFile, err)
	}
	parsed, err := keypair.ParsePrivate(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", KeyFile, err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("read %s: want an Ed25519 key, have %T", KeyFile, parsed)
	}
	return key, nil
}

func (s *Store) makeKey() (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make identity key: %w", err)
	}
	text, err := keypair.EncodePrivate(key)
	if err != nil {
		return nil, err
	}
	if err := s.dir.Write(KeyFile, text, keypair.Private(s.mode)); err != nil {
		return nil, fmt.Errorf("write %s: %w", KeyFile, err)
	}
	return key, nil
}

// Certificate returns the stored certificate, which may have expired. It is nil, without error, when there is none; the
// error says why one that is there is not this agent's.
func (s *Store) Certificate(key ed25519.PrivateKey) (*Certificate, error) {
	text, err := s.dir.Read(CertificateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", CertificateFile, err)
	}
	cert, err := s.parse(key, text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", CertificateFile, err)
	}
	return cert, nil
}

// Roots returns the CA bundle. The error wraps [ErrIncomplete] when there is none yet.
func (s *Store) Roots() (*x509.CertPool, error) {
	text, err := s.dir.Read(CAFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is missing", ErrIncomplete, CAFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", CAFile, err)
	}
	pool, err := parseBundle(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", CAFile, err)
	}
	return pool, nil
}

// Nonce returns the registration nonce. The error wraps [ErrIncomplete] when there is none.
func (s *Store) Nonce() (Nonce, error) {
	text, err := s.dir.Read(NonceFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %s is missing", ErrIncomplete, NonceFile)
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", NonceFile, err)
	}
	text = bytes.TrimSpace(text)
	switch {
	case len(text) == 0:
		return "", fmt.Errorf("%w: %s is empty", ErrIncomplete, NonceFile)
	case len(text) > authority.MaxNonce:
		return "", fmt.Errorf("read %s: %d bytes are too many for a nonce", NonceFile, len(text))
	}
	return Nonce(text), nil
}

// Accept checks and stores what a server answered to a registration or a renewal: the certificate, and the CA bundle
// unless it is empty. Afterwards the nonce is spent and removed. Everything is durable when Accept returns.
func (s *Store) Accept(key ed25519.PrivateKey, certificate, bundle []byte) (*Certificate, error) {
	cert, err := s.parse(key, certificate)
	if err != nil {
		return nil, fmt.Errorf("the server's certificate for us: %w", err)
	}
	current, err := s.dir.Read(CAFile)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", CAFile, err)
	}
	if len(bundle) == 0 {
		bundle = current
	}
	pool, err := parseBundle(bundle)
	if err != nil {
		return nil, fmt.Errorf("the server's CA bundle: %w", err)
	}
	if _, err := cert.Leaf.Verify(x509.VerifyOptions{
		Roots:       pool,
		CurrentTime: cert.Leaf.NotBefore, // our clock need not agree with the server's
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return nil, fmt.Errorf("the server's certificate for us: %w", err)
	}
	if !bytes.Equal(bundle, current) {
		if err := s.dir.Write(CAFile, bundle, s.mode); err != nil {
			return nil, fmt.Errorf("write %s: %w", CAFile, err)
		}
	}
	if err := s.dir.Write(CertificateFile, certificate, s.mode); err != nil {
		return nil, fmt.Errorf("write %s: %w", CertificateFile, err)
	}
	return cert, s.Spend()
}

// Spend removes the nonce, which a stored certificate makes useless.
func (s *Store) Spend() error {
	if err := s.dir.Remove(NonceFile); err != nil {
		return fmt.Errorf("remove %s: %w", NonceFile, err)
	}
	return nil
}

// parse reads one PEM certificate and checks that it is for this key and instance.
func (s *Store) parse(key ed25519.PrivateKey, text []byte) (*Certificate, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 ||
		!bytes.HasPrefix(text, []byte("-----BEGIN")) {
		return nil, errors.New("want exactly one PEM certificate")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	if public, ok := leaf.PublicKey.(ed25519.PublicKey); !ok || !public.Equal(key.Public()) {
		return nil, errors.New("it is for another key")
	}
	who, err := authority.ParseIdentity(leaf)
	if err != nil {
		return nil, err
	}
	if who.Role != authority.RoleAgent || who.ID != s.id {
		return nil, fmt.Errorf("it is for %s %s", who.Role, who.ID)
	}
	return &Certificate{
		TLS:     tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf},
		Leaf:    leaf,
		Cluster: who.Cluster,
	}, nil
}

// VerifyServer checks that a certificate, whose chain and host name TLS has verified, belongs to a server of the
// cluster. Agents and operators have certificates of the same CA. An empty cluster accepts any.
func VerifyServer(leaf *x509.Certificate, cluster string) error {
	who, err := authority.ParseIdentity(leaf)
	switch {
	case err != nil:
		return fmt.Errorf("server: %w", err)
	case who.Role != authority.RoleServer:
		return fmt.Errorf("server: its certificate is an %s's", who.Role)
	case cluster != "" && who.Cluster != cluster:
		return fmt.Errorf("server: it is of cluster %q, ours is %q", who.Cluster, cluster)
	}
	return nil
}

func parseBundle(text []byte) (*x509.CertPool, error) {
	certs, err := authority.ParseBundle(text)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	for _, cert := range certs {
		pool.AddCert(cert)
	}
	return pool, nil
}
