// Package operatorclient calls the leader of a shard with an operator's certificate. nstance-admin, the Terraform
// provider, the Kubernetes operator and nstance-dev use it.
//
// Invariant: a client exchanges data only with servers of the operator's cluster and of the intended shard.
package operatorclient

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/pasted"
)

// The files of an identity directory, as written by `nstance-admin cluster register-operator`.
const (
	CAFile          = "ca.crt"
	KeyFile         = "identity.key"
	CertificateFile = "identity.crt"
)

// maxFile is the size limit of each file of an identity, in bytes.
const maxFile = 64 << 10

// Identity is an operator's certificate with its key, and the CA of the servers' certificates.
type Identity struct {
	Who   authority.Identity
	Leaf  *x509.Certificate
	roots *x509.CertPool
	// load returns the certificate with its key. It is a function, so printing an Identity does not print the key.
	load func() *tls.Certificate
}

// ErrNoIdentity means that the directory has no complete identity.
var ErrNoIdentity = errors.New("no identity")

// LoadIdentity reads and checks an identity directory. The error wraps [ErrNoIdentity] if a file is missing. No error
// quotes the key.
func LoadIdentity(dir string) (Identity, error) {
	if dir == "" {
		return Identity{}, fmt.Errorf("%w: no directory is named", ErrNoIdentity)
	}
	var texts [3][]byte
	for i, name := range []string{CAFile, CertificateFile, KeyFile} {
		text, err := readFile(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return Identity{}, fmt.Errorf("%w: %s is missing in %s", ErrNoIdentity, name, dir)
		case err != nil:
			return Identity{}, fmt.Errorf("read the identity in %s: %w", dir, err)
		}
		texts[i] = text
	}
	identity, err := ParseIdentity(texts[0], texts[1], texts[2])
	if err != nil {
		return Identity{}, fmt.Errorf("read the identity in %s: %w", dir, err)
	}
	return identity, nil
}

func readFile(path string) (data []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	data, err = io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return data, err
}

// ParseIdentity checks an identity in PEM. It accepts an expired certificate. Its errors never contain the key.
func ParseIdentity(ca, certificate, key []byte) (Identity, error) {
	bundle, err := authority.ParseBundle(ca)
	if err != nil {
		return Identity{}, fmt.Errorf("CA certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(pasted.Clean(certificate), pasted.Clean(key))
	if err != nil {
		return Identity{}, fmt.Errorf("certificate and key: %w", err)
	}
	who, err := authority.ParseIdentity(pair.Leaf)
	switch {
	case err != nil:
		return Identity{}, fmt.Errorf("certificate: %w", err)
	case len(pair.Certificate) != 1:
		return Identity{}, fmt.Errorf("%d certificates, want one", len(pair.Certificate))
	case who.Role != authority.RoleOperator:
		return Identity{}, fmt.Errorf("the certificate is of role %s, want %s", who.Role, authority.RoleOperator)
	}
	return Identity{Who: who, Leaf: pair.Leaf, roots: authority.NewPool(bundle), load: func() *tls.Certificate {
		return &pair
	}}, nil
}

// ExpiredError means that the operator's own certificate has expired.
type ExpiredError struct{ At time.Time }

func (e *ExpiredError) Error() string {
	return "the operator's certificate ended at " + e.At.UTC().Format(time.RFC3339)
}

// Config returns the TLS configuration of a connection to a server of a shard. It requires TLS 1.3 and a matching host
// name. The peer must be a server of the operator's cluster and of that shard. The error is an [ExpiredError].
func (i Identity) Config(shard string, now func() time.Time) (*tls.Config, error) {
	if now().After(i.Leaf.NotAfter) {
		return nil, &ExpiredError{i.Leaf.NotAfter}
	}
	config := ServerConfig(i.Who.Cluster, shard, i.roots, now)
	config.Certificates = []tls.Certificate{*i.load()}
	return config, nil
}

// ServerConfig returns the TLS configuration of a connection to a server of a cluster and shard. It has no client
// certificate.
func ServerConfig(cluster, shard string, roots *x509.CertPool, now func() time.Time) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Time: now,
		VerifyConnection: verifyServer(cluster, shard)}
}

// PeerError means that the peer at a server's address is not a server of the intended shard.
type PeerError struct{ Reason string }

func (e *PeerError) Error() string { return "wrong peer: " + e.Reason }

// verifyServer returns a function for [tls.Config.VerifyConnection]. That function returns a [PeerError]
// unless the peer's certificate names a server of the cluster and shard. TLS verifies the chain and the host name.
func verifyServer(cluster, shard string) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		peer, err := authority.ParseIdentity(state.PeerCertificates[0])
		switch {
		case err != nil:
			return &PeerError{err.Error()}
		case peer.Role != authority.RoleServer:
			return &PeerError{fmt.Sprintf("its role is %s, want server", peer.Role)}
		case peer.Cluster != cluster:
			return &PeerError{fmt.Sprintf("a server of cluster %s, want cluster %s", peer.Cluster, cluster)}
		case peer.Shard != shard:
			return &PeerError{fmt.Sprintf("a server of shard %s, want shard %s", peer.Shard, shard)}
		}
		return nil
	}
}
