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
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

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

	mu    sync.Mutex
	conns map[target]*conn
	// leaders maps each shard to the address that last answered as its leader.
	leaders map[string]string
}

type target struct{ shard, addr string }

type conn struct {
	*grpc.ClientConn
	credentials *operatorclient.Credentials
}

// New returns a Fleet without connections.
func New(options Options) *Fleet {
	return &Fleet{options: options, conns: map[target]*conn{}, leaders: map[string]string{}}
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
	return LoadIdentity(f.options.IdentityDir)
}

// Close closes all connections.
func (f *Fleet) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		_ = c.Close() // fails only if the connection is already closed
	}
	clear(f.conns)
}

// Client is the operator API of one shard.
type Client = nstancev1.OperatorServiceClient

// call runs one unary call against a shard's leader, within the timeout.
func (f *Fleet) call(ctx context.Context, shard string, do func(context.Context, Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, f.options.Timeout)
	defer cancel()
	return f.reach(ctx, shard, do)
}

// reach runs `do` against a shard's leader. It tries the last known leader, then the configured addresses. If a server
// names another server as the leader, reach tries the named server next, but only once. reach may call `do` several
// times, so `do` must be safe to repeat. Errors are *[Error].
func (f *Fleet) reach(ctx context.Context, shard string, do func(context.Context, Client) error) error {
	queue := f.addresses(shard)
	if len(queue) == 0 {
		return refuse(shard, codes.NotFound, "add it to --servers or NSTANCE_ADMIN_SERVERS as "+shard+"=host:port",
			"there is no address of this shard")
	}
	var first *Error
	for followed := false; len(queue) > 0; {
		addr := queue[0]
		queue = queue[1:]
		err := f.try(ctx, shard, addr, do)
		if err == nil {
			f.remember(shard, addr)
			return nil
		}
		if err.Code != codes.Unavailable {
			return err
		}
		f.forget(shard, addr)
		if first == nil || first.leader == "" {
			first = err
		}
		if to := err.leader; to != "" && to != addr && !followed {
			followed = true
			queue = append([]string{to}, slices.DeleteFunc(queue, func(a string) bool { return a == to })...)
			first = nil // the leader's own error is the relevant one
		}
		if ctx.Err() != nil {
			break
		}
	}
	return first
}

func (f *Fleet) try(ctx context.Context, shard, addr string, do func(context.Context, Client) error) *Error {
	c, err := f.conn(shard, addr)
	if err == nil {
		err = do(ctx, nstancev1.NewOperatorServiceClient(c))
	}
	if err == nil {
		return nil
	}
	var cause error
	if c != nil && status.Code(err) == codes.Unavailable {
		cause = c.credentials.Failure()
	}
	e := explain(shard, addr, err, cause, f.options.Now())
	if role := neededRole(e); role != "" {
		e.Hint = f.registration(role)
	}
	return e
}

func (f *Fleet) addresses(shard string) []string {
	f.mu.Lock()
	leader := f.leaders[shard]
	f.mu.Unlock()
	var addrs []string
	for _, known := range f.options.Servers {
		if known.Name == shard {
			addrs = slices.Clone(known.Addrs)
		}
	}
	if leader == "" {
		return addrs
	}
	return append([]string{leader}, slices.DeleteFunc(addrs, func(a string) bool { return a == leader })...)
}

func (f *Fleet) remember(shard, addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leaders[shard] = addr
}

func (f *Fleet) forget(shard, addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.leaders, func(s, a string) bool { return s == shard && a == addr })
}

func (f *Fleet) conn(shard, addr string) (*conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := target{shard, addr}
	if c := f.conns[at]; c != nil {
		return c, nil
	}
	creds := operatorclient.NewCredentials(func() (*tls.Config, error) { return f.tlsConfig(shard) })
	// With "passthrough", gRPC dials the address unchanged. The host in the address must match the server's
	// certificate.
	cc, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 5 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDisableServiceConfig(),    // reach does the retries
		grpc.WithContextDialer(creds.Dial), // without a proxy: gRPC uses HTTPS_PROXY only with its own dialer
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
	if err != nil {
		return nil, err
	}
	c := &conn{cc, creds}
	f.conns[at] = c
	return c, nil
}

// maxMessage is the largest accepted answer in bytes. It has room for a list of about 20,000 instances.
const maxMessage = 16 << 20

// tlsConfig reads the current identity and returns the configuration for a handshake with a server of a shard.
func (f *Fleet) tlsConfig(shard string) (*tls.Config, error) {
	identity, err := LoadIdentity(f.options.IdentityDir)
	if err != nil {
		return nil, err
	}
	if f.options.Now().After(identity.Leaf.NotAfter) {
		return nil, &ExpiredError{identity.Leaf.NotAfter}
	}
	return identity.Config(shard, f.options.Now), nil
}
