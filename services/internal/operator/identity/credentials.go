package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nstance-kit/nstance/services/api/operatorclient"
)

// ErrNone is returned while the operator has no certificate.
var ErrNone = errors.New("the operator is not registered yet")

// Credentials returns credentials for connections to the servers of a shard. Each handshake uses the current
// certificate and CA, so a renewal needs no restart. The peer must be a server of this cluster and shard, and its
// certificate must contain the dialled name.
func (k *Keeper) Credentials(shard string) credentials.TransportCredentials {
	return k.transport(shard, true)
}

// shardTransport makes TLS connections to one shard. If client is true, it presents the operator's certificate. For the
// registration, which happens without a certificate, client is false.
type shardTransport struct {
	credentials.TransportCredentials // for the methods that a client does not call

	keeper *Keeper
	shard  string
	client bool
}

func (k *Keeper) transport(shard string, client bool) *shardTransport {
	return &shardTransport{TransportCredentials: credentials.NewTLS(nil), keeper: k, shard: shard, client: client}
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *shardTransport) ClientHandshake(ctx context.Context, name string, raw net.Conn) (net.Conn,
	credentials.AuthInfo,
	error) {
	k := t.keeper
	roots := k.roots.Load()
	if roots == nil {
		return nil, nil, ErrNone
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots.pool, Time: k.Now,
		VerifyConnection: operatorclient.VerifyServer(k.Cluster, t.shard)}
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

// closeOthers closes the connections that do not use the identity "current". The gRPC clients then connect again.
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

// Clone returns t itself, because t is never modified.
func (t *shardTransport) Clone() credentials.TransportCredentials { return t }
