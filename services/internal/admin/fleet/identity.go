package fleet

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
)

// The files of an identity directory, as written by `nstance-admin cluster register-operator`.
const (
	CAFile          = "ca.crt"
	KeyFile         = "identity.key"
	CertificateFile = "identity.crt"
)

// maxFile is the size limit of each of these files, in bytes.
const maxFile = 64 << 10

// ErrNoIdentity means that the directory has no complete identity.
var ErrNoIdentity = errors.New("no identity")

// Identity is an operator's certificate with its key, and the CA of the servers' certificates.
type Identity struct {
	Who   authority.Identity
	Leaf  *x509.Certificate
	roots *x509.CertPool
	// load returns the certificate with its key. It is a function so that no formatting verb prints the key.
	load func() *tls.Certificate
}

// LoadIdentity reads and checks an identity directory. The error wraps [ErrNoIdentity] if a file is missing. It never
// quotes the key.
func LoadIdentity(dir string) (Identity, error) {
	if dir == "" {
		return Identity{}, fmt.Errorf("%w: no directory is named", ErrNoIdentity)
	}
	var content [3][]byte
	for i, name := range []string{CAFile, CertificateFile, KeyFile} {
		data, err := readFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return Identity{}, fmt.Errorf("%w: %s is missing in %s", ErrNoIdentity, name, dir)
		}
		if err != nil {
			return Identity{}, fmt.Errorf("read identity: %w", err)
		}
		content[i] = data
	}
	bundle, err := authority.ParseBundle(content[0])
	if err != nil {
		return Identity{}, fmt.Errorf("read identity: %s: %w", CAFile, err)
	}
	pair, err := tls.X509KeyPair(content[1], content[2])
	if err != nil {
		return Identity{}, fmt.Errorf("read identity: %s and %s: %w", CertificateFile, KeyFile, err)
	}
	who, err := authority.ParseIdentity(pair.Leaf)
	switch {
	case err != nil:
		return Identity{}, fmt.Errorf("read identity: %s: %w", CertificateFile, err)
	case len(pair.Certificate) != 1:
		return Identity{}, fmt.Errorf("read identity: %s: %d certificates, want one", CertificateFile,
			len(pair.Certificate))
	case who.Role != authority.RoleOperator:
		return Identity{}, fmt.Errorf("read identity: %s: is of role %s, want %s", CertificateFile, who.Role,
			authority.RoleOperator)
	}
	return Identity{Who: who, Leaf: pair.Leaf, roots: authority.NewPool(bundle), load: func() *tls.Certificate {
		return &pair
	}}, nil
}

// RenewAt returns the time to renew the certificate, which is after two thirds of its life.
func (i Identity) RenewAt() time.Time {
	return authority.RenewAt(i.Leaf)
}

// config returns the TLS configuration of a connection to a server of a shard. It requires TLS 1.3 and a matching host
// name. The peer must be a server of the same cluster and of that shard.
func (i Identity) config(shard string, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		RootCAs:      i.roots,
		Certificates: []tls.Certificate{*i.load()},
		Time:         now,
		VerifyConnection: func(state tls.ConnectionState) error {
			peer, err := authority.ParseIdentity(state.PeerCertificates[0])
			switch {
			case err != nil:
				return &PeerError{err.Error()}
			case peer.Role != authority.RoleServer:
				return &PeerError{fmt.Sprintf("it is of role %s, not a server", peer.Role)}
			case peer.Cluster != i.Who.Cluster:
				return &PeerError{fmt.Sprintf("it is a server of cluster %s, ours is %s", peer.Cluster, i.Who.Cluster)}
			case peer.Shard != shard:
				return &PeerError{fmt.Sprintf("it is a server of shard %s, not of %s", peer.Shard, shard)}
			}
			return nil
		},
	}
}

// PeerError means that the peer at a server's address is not a server of the intended shard.
type PeerError struct{ Reason string }

func (e *PeerError) Error() string { return "wrong peer: " + e.Reason }

// ExpiredError means that the operator's own certificate has expired.
type ExpiredError struct{ At time.Time }

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("the certificate %s in the identity directory ended at %s", CertificateFile,
		e.At.UTC().Format(time.RFC3339))
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
