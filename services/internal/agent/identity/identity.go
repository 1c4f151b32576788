// Package identity stores the agent's identity: its key, its certificate, the CA bundle that it trusts, and its nonce
// until the nonce is consumed.
//
// Invariant: a key is durable before any certificate is issued for it. The nonce is removed only after the certificate
// is durable. After a crash between any two writes, the agent can therefore continue the same registration. It sends
// the same key and nonce, and the server issues a certificate again. Each renewal generates the next key. The next key
// replaces the present key only after the next certificate is durable, so an interrupted renewal can be continued too.
package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/pasted"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
	"github.com/nstance-kit/nstance/services/internal/agent/keypair"
)

// Files of the identity folder. The VM's userdata writes the CA file and the nonce file.
const (
	CAFile          = "ca.crt"
	NonceFile       = "nonce.jwt"
	KeyFile         = "identity.key"
	CertificateFile = "identity.crt"
	// NextKeyFile contains the next key until a renewal is finished.
	NextKeyFile = "identity-next.key"
	// InstanceFile contains the ID of the instance to which the other files of the agent belong. The boot script reads
	// it, too.
	InstanceFile = "instance"
)

// ErrIncomplete means that the CA file is missing, or that the nonce file is missing or empty. Userdata may still write
// the file.
var ErrIncomplete = errors.New("identity is incomplete")

// Nonce is a registration nonce. It is a secret, so it prints as a placeholder.
type Nonce string

const redacted = "[redacted]"

func (Nonce) String() string { return redacted }

// GoString redacts the nonce for %#v.
func (Nonce) GoString() string { return redacted }

// LogValue redacts the nonce in log records.
func (Nonce) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON redacts the nonce in JSON.
func (Nonce) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// Certificate is the agent's client certificate with its key, ready for use in TLS.
type Certificate struct {
	TLS  tls.Certificate
	Leaf *x509.Certificate
	// Cluster is the agent's cluster according to the certificate.
	Cluster string
}

// Expired reports whether the certificate has expired. An expired certificate only permits its own renewal.
func (c *Certificate) Expired(now time.Time) bool { return !now.Before(c.Leaf.NotAfter) }

// Life returns the time from the issue of the certificate to its expiry. The CA issues a certificate [authority.Skew]
// after its NotBefore, so Life is shorter than the validity period.
func (c *Certificate) Life() time.Duration {
	return max(c.Leaf.NotAfter.Sub(c.Leaf.NotBefore)-authority.Skew, 0)
}

// RenewAt returns the time of renewal, which is after two thirds of the certificate's life.
func (c *Certificate) RenewAt() time.Time { return c.Leaf.NotAfter.Add(-c.Life() / 3) }

// Store keeps one instance's identity in a folder. Its methods are not safe for concurrent use.
type Store struct {
	dir  folder.Folder
	id   ident.ID
	mode fs.FileMode
}

// NewStore returns the store of an instance. Files get the given mode. Key files get the same mode, but only with the
// permissions of the owner and the group.
func NewStore(dir folder.Folder, id ident.ID, mode fs.FileMode) *Store {
	return &Store{dir: dir, id: id, mode: mode}
}

// Claim makes sure that the identity belongs to this instance. The disk of a VM may be a copy of another VM's disk. An
// identity of another instance is removed, and so is a key without a certificate that no agent of this instance made.
// foreign reports whether there was such an identity, or may have been: the agent's other files then belong to the
// other instance, too. Claim reports this once, so the caller must call the function discard to remove the other files
// first.
func (s *Store) Claim(discard func() error) (foreign bool, err error) {
	owner, err := s.dir.Read(InstanceFile)
	switch {
	case err == nil && string(bytes.TrimSpace(owner)) == s.id.String():
		return false, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	own, err := s.ownsCertificate()
	if err != nil {
		return false, err
	}
	if !own {
		// The certificate is removed last: as long as it is there, the next start calls discard again.
		if _, err := s.dir.Stat(KeyFile); err == nil {
			foreign = true
		}
		if err := discard(); err != nil {
			return false, err
		}
		if err := s.DiscardKeys(); err != nil {
			return false, err
		}
		if err := s.dir.Remove(CertificateFile); err != nil {
			return false, err
		}
	}
	if err := s.dir.Write(InstanceFile, []byte(s.id.String()+"\n"), s.mode); err != nil {
		return false, err
	}
	return foreign, nil
}

// ownsCertificate reports whether there is a certificate of this instance. An agent of an earlier version may have
// stored it.
func (s *Store) ownsCertificate() (bool, error) {
	text, err := s.dir.Read(CertificateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	leaf, err := authority.ParseCertificate(text)
	if err != nil {
		return true, nil //nolint:nilerr // damaged: a person must decide
	}
	who, err := authority.ParseIdentity(leaf)
	return err == nil && who.Role == authority.RoleAgent && who.ID == s.id, nil
}

// DiscardKeys removes the identity's keys.
func (s *Store) DiscardKeys() error {
	if err := s.DiscardNextKey(); err != nil {
		return err
	}
	return s.dir.Remove(KeyFile)
}

// Key returns the identity key. The first call generates it. If a crash interrupted a renewal after its certificate was
// stored, Key completes the renewal and returns the next key.
func (s *Store) Key() (ed25519.PrivateKey, error) {
	if next, err := s.readKey(NextKeyFile); err == nil {
		if cert, err := s.Certificate(next); err == nil && cert != nil {
			return next, s.replaceKey(next)
		}
	}
	key, err := s.readKey(KeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return s.makeKey(KeyFile)
	}
	return key, err
}

// NextKey returns the key for the next certificate. If an unfinished renewal has such a key, NextKey returns it.
// Otherwise it generates one.
func (s *Store) NextKey() (ed25519.PrivateKey, error) {
	key, err := s.readKey(NextKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return s.makeKey(NextKeyFile)
	}
	return key, err
}

// Renewing reports whether a renewal is unfinished. The server may already have issued the new certificate.
func (s *Store) Renewing() bool {
	_, err := s.dir.Stat(NextKeyFile)
	return err == nil
}

// replaceKey makes the next key the identity key. The stored certificate must already be for the next key.
func (s *Store) replaceKey(next ed25519.PrivateKey) error {
	if err := s.writeKey(KeyFile, next); err != nil {
		return err
	}
	return s.DiscardNextKey()
}

// DiscardNextKey removes the key for the next certificate.
func (s *Store) DiscardNextKey() error {
	return s.dir.Remove(NextKeyFile)
}

func (s *Store) readKey(file string) (ed25519.PrivateKey, error) {
	text, err := s.dir.Read(file)
	if err != nil {
		return nil, err
	}
	key, err := authority.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return key, nil
}

func (s *Store) makeKey(file string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make identity key: %w", err)
	}
	return key, s.writeKey(file, key)
}

func (s *Store) writeKey(file string, key ed25519.PrivateKey) error {
	text, err := authority.EncodePrivateKey(key)
	if err != nil {
		return err
	}
	return s.dir.Write(file, text, keypair.Private(s.mode))
}

// Certificate returns the stored certificate, which may have expired. If no certificate is stored, it returns nil and
// no error. If the stored certificate does not belong to this agent, the error says why.
func (s *Store) Certificate(key ed25519.PrivateKey) (*Certificate, error) {
	text, err := s.dir.Read(CertificateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	cert, err := s.parse(key, text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", CertificateFile, err)
	}
	return cert, nil
}

// Roots returns the CA bundle. The error wraps [ErrIncomplete] if there is no bundle yet.
func (s *Store) Roots() (*x509.CertPool, error) {
	text, err := s.dir.Read(CAFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is missing", ErrIncomplete, CAFile)
	}
	if err != nil {
		return nil, err
	}
	pool, err := parseBundle(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", CAFile, err)
	}
	return pool, nil
}

// Nonce returns the registration nonce. The error wraps [ErrIncomplete] if there is no nonce.
func (s *Store) Nonce() (Nonce, error) {
	text, err := s.dir.Read(NonceFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %s is missing", ErrIncomplete, NonceFile)
	}
	if err != nil {
		return "", err
	}
	text = pasted.Clean(text)
	switch {
	case len(text) == 0:
		return "", fmt.Errorf("%w: %s is empty", ErrIncomplete, NonceFile)
	case len(text) > authority.MaxNonce:
		return "", fmt.Errorf("read %s: %d bytes are too many for a nonce", NonceFile, len(text))
	}
	return Nonce(text), nil
}

// Accept checks and stores the server's answer to a registration or a renewal. The answer is a certificate and a CA
// bundle. If bundle is empty, the stored one stays. Accept then removes the nonce, which is consumed. Everything is
// durable when Accept returns. If only the removal fails, Accept returns both the certificate and an error.
func (s *Store) Accept(key ed25519.PrivateKey, certificate, bundle []byte) (*Certificate, error) {
	cert, err := s.parse(key, certificate)
	if err != nil {
		return nil, fmt.Errorf("the server's certificate for us: %w", err)
	}
	current, err := s.dir.Read(CAFile)
	if err != nil {
		return nil, err
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
		CurrentTime: cert.Leaf.NotBefore, // the agent's clock may differ from the server's
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return nil, fmt.Errorf("the server's certificate for us: %w", err)
	}
	if !bytes.Equal(bundle, current) {
		if err := s.dir.Write(CAFile, bundle, s.mode); err != nil {
			return nil, err
		}
	}
	if err := s.dir.Write(CertificateFile, certificate, s.mode); err != nil {
		return nil, err
	}
	return cert, s.Spend()
}

// AcceptRenewal checks and stores the server's answer to a renewal, like Accept. If the certificate is for the key
// `next`, then `next` replaces the present key. If the server kept the present key, the certificate is for `key`, and
// AcceptRenewal removes `next`.
func (s *Store) AcceptRenewal(key, next ed25519.PrivateKey, certificate, bundle []byte) (*Certificate, error) {
	if _, err := s.parse(next, certificate); err != nil {
		cert, err := s.Accept(key, certificate, bundle)
		if cert == nil {
			return nil, err
		}
		return cert, errors.Join(err, s.DiscardNextKey())
	}
	cert, err := s.Accept(next, certificate, bundle)
	if cert == nil {
		return nil, err
	}
	return cert, errors.Join(err, s.replaceKey(next))
}

// Spend removes the nonce. An agent that has a certificate needs no nonce.
func (s *Store) Spend() error {
	return s.dir.Remove(NonceFile)
}

// parse reads one PEM certificate and checks that it belongs to this key and this instance.
func (s *Store) parse(key ed25519.PrivateKey, text []byte) (*Certificate, error) {
	leaf, err := authority.ParseCertificate(text)
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

// VerifyServer checks that a certificate belongs to a server of the cluster. TLS has already verified the chain and
// host name, but the same CA also signs the certificates of agents and operators. If cluster is empty, a server of any
// cluster is accepted.
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
	return authority.NewPool(certs), nil
}
