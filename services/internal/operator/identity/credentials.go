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

// ErrNone is returned while the operator has no certificate.
var ErrNone = errors.New("the operator is not registered yet")

// Credentials returns credentials for connections to the servers of a shard. Each handshake uses the current
// certificate and CA, so renewed ones take effect without a restart. The peer must be a server of the cluster and the
// shard, with a certificate for the dialled name.
func (k *Keeper) Credentials(shard string) credentials.TransportCredentials {
	return &shardTransport{keeper: k, shard: shard, client: true}
}

// shardTransport makes TLS connections to one shard, with the operator's certificate or, for the registration, without.
type shardTransport struct {
	keeper *Keeper
	shard  string
	client bool
}

var _ credentials.TransportCredentials = (*shardTransport)(nil)

// ClientHandshake implements credentials.TransportCredentials.
func (t *shardTransport) ClientHandshake(ctx context.Context, name string, raw net.Conn) (net.Conn,
	credentials.AuthInfo,
	error) {
	k := t.keeper
	roots := k.roots.Load()
	if roots == nil {
		return nil, nil, ErrNone
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots.pool, Time: k.Now, VerifyConnection: t.verify}
	var identity *Identity
	if t.client {
		identity = k.current.Load()
		if identity == nil {
			return nil, nil, ErrNone
		}
		if k.Now().After(identity.Leaf.NotAfter) {
			return nil, nil, fmt.Errorf("the operator's certificate expired at %s",
				identity.Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		config.Certificates = []tls.Certificate{*identity.load()}
	}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, name, raw)
	if err != nil || identity == nil {
		return conn, info, err
	}
	return k.track(conn, identity), info, nil
}

// track remembers a connection until it is closed.
func (k *Keeper) track(conn net.Conn, identity *Identity) net.Conn {
	tracked := &trackedConn{Conn: conn, keeper: k}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conns == nil {
		k.conns = map[net.Conn]*Identity{}
	}
	k.conns[tracked] = identity
	return tracked
}

type trackedConn struct {
	net.Conn
	keeper *Keeper
}

func (c *trackedConn) Close() error {
	c.keeper.mu.Lock()
	delete(c.keeper.conns, c)
	c.keeper.mu.Unlock()
	return c.Conn.Close()
}

// closeOthers closes the connections that were made with another identity. Their users connect again.
func (k *Keeper) closeOthers(current *Identity) {
	k.mu.Lock()
	var others []net.Conn
	for conn, identity := range k.conns {
		if identity != current {
			others = append(others, conn)
		}
	}
	k.mu.Unlock()
	for _, conn := range others {
		_ = conn.Close() // it is given up either way
	}
}

// verify checks the identity of the peer. TLS has verified its chain and host name.
func (t *shardTransport) verify(state tls.ConnectionState) error {
	peer, err := authority.ParseIdentity(state.PeerCertificates[0])
	switch {
	case err != nil:
		return fmt.Errorf("wrong peer: %w", err)
	case peer.Role != authority.RoleServer:
		return fmt.Errorf("wrong peer: its role is %s, want server", peer.Role)
	case peer.Cluster != t.keeper.Cluster:
		return fmt.Errorf("wrong peer: a server of cluster %s, want cluster %s", peer.Cluster, t.keeper.Cluster)
	case peer.Shard != t.shard:
		return fmt.Errorf("wrong peer: a server of shard %s, want shard %s", peer.Shard, t.shard)
	}
	return nil
}

// ServerHandshake always fails: the credentials are for clients.
func (t *shardTransport) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("client credentials cannot be used by a server")
}

// Info implements credentials.TransportCredentials.
func (t *shardTransport) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns t, which is immutable.
func (t *shardTransport) Clone() credentials.TransportCredentials { return t }

// OverrideServerName does nothing. The server name is the host of the dialled address.
func (t *shardTransport) OverrideServerName(string) error { return nil }
