package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// ErrNone means that the operator has no certificate yet.
var ErrNone = errors.New("the operator is not registered yet")

// Credentials are for connections to the servers of a shard. Certificate and CA are those of the moment at which a
// connection is made, so that renewed ones are used without restart. The peer has to be a server of our cluster and
// that shard, under the name that was dialled.
func (k *Keeper) Credentials(shard string) credentials.TransportCredentials {
	return &transport{keeper: k, shard: shard, client: true}
}

// transport makes TLS connections to one shard: with our certificate, or, to register, without.
type transport struct {
	keeper *Keeper
	shard  string
	client bool
}

var _ credentials.TransportCredentials = (*transport)(nil)

// ClientHandshake implements credentials.TransportCredentials.
func (t *transport) ClientHandshake(ctx context.Context, name string, raw net.Conn) (net.Conn, credentials.AuthInfo,
	error) {
	k := t.keeper
	roots := k.roots.Load()
	if roots == nil {
		return nil, nil, ErrNone
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots.pool, Time: k.Now, VerifyConnection: t.verify}
	if t.client {
		identity := k.current.Load()
		if identity == nil {
			return nil, nil, ErrNone
		}
		if k.Now().After(identity.Leaf.NotAfter) {
			return nil, nil, fmt.Errorf("the operator's certificate ended at %s",
				identity.Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		config.Certificates = []tls.Certificate{*identity.load()}
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, name, raw)
}

// verify checks who the peer is, whose chain and host name TLS has verified.
func (t *transport) verify(state tls.ConnectionState) error {
	peer, err := authority.ParseIdentity(state.PeerCertificates[0])
	switch {
	case err != nil:
		return fmt.Errorf("wrong peer: %w", err)
	case peer.Role != authority.RoleServer:
		return fmt.Errorf("wrong peer: it is of role %s, not a server", peer.Role)
	case peer.Cluster != t.keeper.Cluster:
		return fmt.Errorf("wrong peer: it is a server of cluster %s, ours is %s", peer.Cluster, t.keeper.Cluster)
	case peer.Shard != t.shard:
		return fmt.Errorf("wrong peer: it is a server of shard %s, not of %s", peer.Shard, t.shard)
	}
	return nil
}

// ServerHandshake is not a client's to do.
func (t *transport) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a client's")
}

// Info implements credentials.TransportCredentials.
func (t *transport) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns t itself: nothing in it changes.
func (t *transport) Clone() credentials.TransportCredentials { return t }

// OverrideServerName is deprecated; the host of the address is the name.
func (t *transport) OverrideServerName(string) error { return nil }
