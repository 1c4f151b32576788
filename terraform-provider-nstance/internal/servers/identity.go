package servers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// maxFile is the maximum size of each identity file in bytes.
const maxFile = 64 << 10

// Identity holds an operator's certificate and key, and the CA that issues the servers' certificates.
type Identity struct {
	Who   authority.Identity
	leaf  *x509.Certificate
	roots *x509.CertPool
	// load returns the certificate with its key. It is a function so that no formatting verb can print the key.
	load func() *tls.Certificate
}

// loadIdentity reads and checks an identity. Its errors never contain the key.
func loadIdentity(s Settings) (Identity, error) {
	ca, cert, key := []byte(s.CA), []byte(s.Certificate), []byte(s.PrivateKey)
	if s.IdentityDir != "" {
		for _, file := range []struct {
			name string
			into *[]byte
		}{{"ca.crt", &ca}, {"identity.crt", &cert}, {"identity.key", &key}} {
			data, err := readFile(filepath.Join(s.IdentityDir, file.name))
			if err != nil {
				return Identity{}, fmt.Errorf("%w: %w", ErrIdentity, err)
			}
			*file.into = data
		}
	}
	if len(ca)+len(cert)+len(key) == 0 {
		return Identity{}, ErrNoIdentity
	}
	bundle, err := authority.ParseBundle(ca)
	if err != nil {
		return Identity{}, fmt.Errorf("%w: CA certificate: %w", ErrIdentity, err)
	}
	roots := x509.NewCertPool()
	for _, cert := range bundle {
		roots.AddCert(cert)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return Identity{}, fmt.Errorf("%w: %w", ErrIdentity, err)
	}
	who, err := authority.ParseIdentity(pair.Leaf)
	switch {
	case err != nil:
		return Identity{}, fmt.Errorf("%w: certificate: %w", ErrIdentity, err)
	case who.Role != authority.RoleOperator:
		return Identity{}, fmt.Errorf("%w: the certificate is of role %s, want %s", ErrIdentity, who.Role,
			authority.RoleOperator)
	case time.Now().After(pair.Leaf.NotAfter):
		return Identity{}, fmt.Errorf("%w: the certificate ended at %s", ErrIdentity,
			pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return Identity{Who: who, leaf: pair.Leaf, roots: roots, load: func() *tls.Certificate { return &pair }}, nil
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

// PeerError means that the peer at a server's address is not a server of the operator's cluster and the requested
// shard.
type PeerError struct{ Reason string }

func (e *PeerError) Error() string { return "wrong peer: " + e.Reason }

// config returns the TLS configuration for a connection to a server of shard. It requires TLS 1.3 and a matching host
// name. The peer must be a server of the same cluster and of that shard.
func (i Identity) config(shard string) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		RootCAs:      i.roots,
		Certificates: []tls.Certificate{*i.load()},
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

// transport makes TLS connections and keeps the error of the last handshake, because gRPC does not return it. It is
// safe for concurrent use.
type transport struct {
	shard    string
	identity Identity

	mu  sync.Mutex
	err error
}

var _ credentials.TransportCredentials = (*transport)(nil)

func (t *transport) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *transport) ClientHandshake(ctx context.Context, name string, raw net.Conn) (net.Conn, credentials.AuthInfo,
	error) {
	secured, info, err := credentials.NewTLS(t.identity.config(t.shard)).ClientHandshake(ctx, name, raw)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
	return secured, info, err
}

// ServerHandshake always fails: these credentials are for clients.
func (t *transport) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a client's")
}

// Info implements credentials.TransportCredentials.
func (t *transport) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns t itself, because t belongs to one connection.
func (t *transport) Clone() credentials.TransportCredentials { return t }

// OverrideServerName does nothing. The method is deprecated, and the host of the address is the server name.
func (t *transport) OverrideServerName(string) error { return nil }
