// Package fleet calls the operator API of any number of shards with an operator's identity. It finds each shard's
// leader and converts answers and errors to a form for people and programs.
//
// Invariant: the client exchanges data only with a server of its own cluster and of the intended shard. The failure of
// one shard never withholds the answer of another.
package fleet

import (
	"context"
	"crypto/tls"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
)

// Options configure [New]. All are required.
type Options struct {
	// Servers holds the operator addresses of each shard. They are tried in turn.
	Servers []endpoints.Shard
	// IdentityDir is read for every new connection, so that a renewed certificate is used without a restart.
	IdentityDir string
	// Timeout limits one call to one shard, including the time to connect.
	Timeout time.Duration
	Now     func() time.Time
	// Rand is the source of randomness for instance IDs.
	Rand io.Reader
}

// Fleet calls servers. It is safe for concurrent use. The caller must call Close.
type Fleet struct {
	options Options
	clients map[string]*operatorclient.Client // by shard
}

// New returns a Fleet without connections.
func New(options Options) *Fleet {
	f := &Fleet{options: options, clients: map[string]*operatorclient.Client{}}
	for _, shard := range options.Servers {
		f.clients[shard.Name] = operatorclient.New(operatorclient.Options{Addresses: shard.Addrs,
			TLS: func() (*tls.Config, error) {
				identity, err := f.Identity()
				if err != nil {
					return nil, err
				}
				return identity.Config(shard.Name, options.Now)
			}})
	}
	return f
}

// Shards returns the names of the shards with a known address.
func (f *Fleet) Shards() []string {
	var names []string
	for _, shard := range f.options.Servers {
		names = append(names, shard.Name)
	}
	return names
}

// Identity reads the identity with which the fleet calls servers.
func (f *Fleet) Identity() (operatorclient.Identity, error) {
	return operatorclient.LoadIdentity(f.options.IdentityDir)
}

// Close closes all connections.
func (f *Fleet) Close() {
	for _, client := range f.clients {
		client.Close()
	}
}

// Client is the operator API of one shard.
type Client = nstancev1.OperatorServiceClient

// call runs one unary call against a shard's leader, within the timeout.
func (f *Fleet) call(ctx context.Context, shard string, do func(context.Context, Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, f.options.Timeout)
	defer cancel()
	return f.reach(ctx, shard, do)
}

// reach runs `do` against a shard's leader, as [operatorclient.Client.Call] does. Errors are *[Error].
func (f *Fleet) reach(ctx context.Context, shard string, do func(context.Context, Client) error) error {
	client := f.clients[shard]
	if client == nil {
		return refuse(shard, codes.NotFound, "add it to --servers or NSTANCE_ADMIN_SERVERS as "+shard+"=host:port",
			"there is no address of this shard")
	}
	err := client.Call(ctx, func(ctx context.Context, to *grpc.ClientConn) error {
		return do(ctx, nstancev1.NewOperatorServiceClient(to))
	})
	if err == nil {
		return nil
	}
	e := explainError(shard, err, f.options.Now())
	if role := neededRole(e); role != "" {
		e.Hint = f.registration(role)
	}
	return e
}
