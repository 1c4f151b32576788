// Package operatorclient calls the leader of a shard with an operator's certificate. nstance-admin, the Terraform
// provider, the Kubernetes operator and nstance-dev use it.
//
// Invariant: a client exchanges data only with servers of the operator's cluster and of the intended shard.
package operatorclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/tunnel"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/pasted"
)

const (
	// A client pings a connection that has had no traffic for PingAfter. It closes the connection if the answer takes
	// longer than PingTimeout. gRPC allows no shorter PingAfter.
	PingAfter, PingTimeout = 10 * time.Second, 3 * time.Second
	// connectTimeout limits the time to make a connection, including TLS.
	connectTimeout = 5 * time.Second
	// tunnelTimeout is the same through a tunnel: its program may have to start a session first.
	tunnelTimeout = 30 * time.Second
	// maxMessage is the largest accepted answer in bytes. It has room for a list of about 20,000 instances.
	maxMessage = 16 << 20
)

// Options configure [New]. TLS and Addresses are required.
type Options struct {
	// TLS returns the configuration of a handshake, such as [Identity.Config] does. It is called for each handshake, so
	// that a renewed certificate is used without a restart.
	TLS func() (*tls.Config, error)
	// Addresses are host:port pairs of the shard's servers, to be tried in turn. The certificate of a server must match
	// the host.
	Addresses []string
	// LeaderAddr returns the address to follow from the answer of a standby. The default is the address of the operator
	// API.
	LeaderAddr func(*nstancev1.NotLeader) string
	// Via is the way to the servers, if this machine cannot reach them directly. The server at its end must have a
	// certificate for the address that is called.
	Via tunnel.Way
	// Proxy means that connections use the proxy that the environment variable HTTPS_PROXY names.
	Proxy bool
	// Dial holds additional options of every connection.
	Dial []grpc.DialOption
}

// Client calls the leader of one shard. It is safe for concurrent use. The caller must call Close.
type Client struct {
	options Options
	dialer  *tunnel.Dialer

	mu    sync.Mutex
	conns map[string]*conn // by address
	// first is the address to try first: the one that last answered as the leader.
	first string
}

// conn is a connection to one server. It is closed after its last call, once a call has found it unavailable.
type conn struct {
	*grpc.ClientConn
	credentials *Credentials
	calls       int
}

// New returns a Client without connections.
func New(o Options) *Client {
	if o.LeaderAddr == nil {
		o.LeaderAddr = (*nstancev1.NotLeader).GetOperatorAddr
	}
	return &Client{options: o, dialer: tunnel.New(o.Via), conns: map[string]*conn{}}
}

// Close closes the connections. It waits until the programs of a tunnel have ended.
func (c *Client) Close() {
	defer c.dialer.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.conns {
		_ = one.Close() // fails only if it is closed already
	}
	clear(c.conns)
}

// Error says why no server answered a call as the leader, or with which error the leader answered.
type Error struct {
	// Addr is the address of the server whose failure explains the call's failure, and Err is that failure: of the last
	// server that was tried, unless an earlier one named a leader.
	Addr string
	Err  error
	// Tried holds the failures of all servers that were tried, in that order.
	Tried []*Error
}

func (e *Error) Error() string {
	if len(e.Tried) < 2 {
		return fmt.Sprintf("%s: %v", e.Addr, e.Err)
	}
	errs := make([]error, len(e.Tried))
	for i, one := range e.Tried {
		errs[i] = one
	}
	return errors.Join(errs...).Error()
}

// Unwrap returns the failures of all servers.
func (e *Error) Unwrap() (errs []error) {
	errs = append(errs, e.Err)
	for _, one := range e.Tried {
		errs = append(errs, one.Err)
	}
	return errs
}

// GRPCStatus returns the status of Err.
func (e *Error) GRPCStatus() *status.Status { return status.Convert(e.Err) }

// HandshakeError says why there is no connection to a server. Its gRPC code is Unavailable.
type HandshakeError struct{ Cause error }

func (e *HandshakeError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *HandshakeError) Unwrap() error { return e.Cause }

// GRPCStatus returns the code Unavailable with the cause.
func (e *HandshakeError) GRPCStatus() *status.Status { return status.New(codes.Unavailable, e.Error()) }

// Call runs `do` with a connection to the shard's leader. It does not know which server leads, so it runs `do` for one
// server after the other until the result is not Unavailable, each server at most once. If a server says that another
// server leads, Call tries that one next, but only once. So `do` must be safe to repeat. A failure of `do` is returned
// as an *[Error].
func (c *Client) Call(ctx context.Context, do func(context.Context, *grpc.ClientConn) error) error {
	queue := c.addresses()
	if len(queue) == 0 {
		return status.Error(codes.Unavailable, "no address of a server is known")
	}
	var failed *Error
	var tried []*Error
	for followed := false; len(queue) > 0; {
		addr := queue[0]
		queue = queue[1:]
		err := c.try(ctx, addr, do)
		if err == nil {
			c.prefer(addr)
			return nil
		}
		one := &Error{Addr: addr, Err: err}
		switch status.Code(err) {
		case codes.Unavailable:
			c.prefer("")
		case codes.DeadlineExceeded:
			c.prefer(append(queue, "")[0]) // the server may be suspended, so the next call begins with another one
			return one
		default:
			return one
		}
		tried = append(tried, one)
		if failed == nil || c.leaderIn(failed) == "" {
			failed = one
		}
		if leader := c.leaderIn(one); leader != "" && leader != addr && !followed && ctx.Err() == nil {
			followed, failed = true, nil // the leader's own failure is the relevant one
			queue = append([]string{leader}, without(queue, leader)...)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return &Error{Addr: failed.Addr, Err: failed.Err, Tried: tried}
}

// leaderIn returns the address of the leader that a standby's answer names, or "".
func (c *Client) leaderIn(e *Error) string { return c.options.LeaderAddr(notleader.FromError(e.Err)) }

func (c *Client) try(ctx context.Context, addr string, do func(context.Context, *grpc.ClientConn) error) error {
	to, err := c.connect(addr)
	if err != nil {
		return err
	}
	err = do(ctx, to.ClientConn)
	unavailable := status.Code(err) == codes.Unavailable
	if cause := to.credentials.Failure(); cause != nil && unavailable {
		err = &HandshakeError{cause}
	}
	c.release(addr, to, unavailable)
	return err
}

// connect returns a connection to an address. The caller must release it.
func (c *Client) connect(addr string) (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to := c.conns[addr]
	if to == nil {
		credentials := NewCredentials(c.options.TLS)
		dial, limit := c.options.Dial, connectTimeout
		if !c.options.Proxy || !c.options.Via.IsZero() { // gRPC uses HTTPS_PROXY only with its own dialer
			dial = append([]grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn,
				error) {
				return credentials.dial(ctx, addr, c.dialer.Dial)
			})}, dial...)
		}
		if !c.options.Via.IsZero() {
			limit = tunnelTimeout
		}
		// With "passthrough", gRPC dials the address unchanged. The host in the address must match the server's
		// certificate.
		made, err := grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{
			grpc.WithTransportCredentials(credentials),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: PingAfter, Timeout: PingTimeout,
				PermitWithoutStream: true}),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig,
				MinConnectTimeout: limit}),
			grpc.WithDisableServiceConfig(), // Call does the retries
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
			grpc.WithIdleTimeout(0),
		}, dial...)...)
		if err != nil {
			return nil, err
		}
		to = &conn{ClientConn: made, credentials: credentials}
		c.conns[addr] = to
	}
	to.calls++
	return to, nil
}

// release gives back a connection. If the connection is unavailable, later calls make a new one.
func (c *Client) release(addr string, to *conn, unavailable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to.calls--
	if unavailable && c.conns[addr] == to {
		delete(c.conns, addr)
	}
	if c.conns[addr] != to && to.calls == 0 {
		_ = to.Close() // fails only if Close has closed it
	}
}

// addresses returns the addresses in the order in which they are tried.
func (c *Client) addresses() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first == "" {
		return slices.Clone(c.options.Addresses)
	}
	return append([]string{c.first}, without(c.options.Addresses, c.first)...)
}

// prefer sets the address that the next call tries first, "" for the order of the options.
func (c *Client) prefer(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.first = addr
}

func without(addrs []string, addr string) []string {
	return slices.DeleteFunc(slices.Clone(addrs), func(a string) bool { return a == addr })
}

// API returns a client of the leader's operator API. Each of its calls is a [Client.Call]. It cannot open streams: use
// Call for them.
func (c *Client) API() nstancev1.OperatorServiceClient {
	return nstancev1.NewOperatorServiceClient(unary{c})
}

type unary struct{ *Client }

// Invoke implements grpc.ClientConnInterface.
func (c unary) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.Call(ctx, func(ctx context.Context, to *grpc.ClientConn) error {
		return to.Invoke(ctx, method, args, reply, opts...)
	})
}

// NewStream implements grpc.ClientConnInterface. It always fails.
func (unary) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "a stream must be opened with Client.Call")
}

// Receive passes every message of a stream to the function "each". err is the error of the call that opened the stream.
// Receive returns the error that ended the stream, which is never nil.
func Receive[R any](stream interface{ Recv() (R, error) }, err error, each func(R)) error {
	for err == nil {
		var r R
		if r, err = stream.Recv(); err == nil {
			each(r)
		}
	}
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Unavailable, "the server ended the stream")
	}
	return err
}

// Credentials are gRPC credentials of a client. Each handshake gets a new TLS configuration, because the client's
// certificate may have been renewed. Credentials keep the error of the last handshake, which gRPC does not return.
// Each gRPC client connection needs its own Credentials. They are safe for concurrent use.
type Credentials struct {
	credentials.TransportCredentials // for the methods that a client does not call
	config                           func() (*tls.Config, error)

	mu  sync.Mutex
	err error
}

// NewCredentials returns credentials that call the function "config" before each handshake.
func NewCredentials(config func() (*tls.Config, error)) *Credentials {
	return &Credentials{TransportCredentials: credentials.NewTLS(nil), config: config}
}

// ClientHandshake implements credentials.TransportCredentials.
func (c *Credentials) ClientHandshake(ctx context.Context, name string, raw net.Conn) (net.Conn, credentials.AuthInfo,
	error) {
	secured, info, err := c.handshake(ctx, name, raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	return secured, info, err
}

func (c *Credentials) handshake(ctx context.Context, name string, raw net.Conn) (net.Conn, credentials.AuthInfo,
	error) {
	config, err := c.config()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, name, raw)
}

// Failure returns the error of the last handshake. It returns nil if that handshake succeeded, or if a new
// connection was begun after that handshake.
func (c *Credentials) Failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// dial connects to an address and clears the error that [Credentials.Failure] returns, or sets it to the failure of a
// tunnel.
func (c *Credentials) dial(ctx context.Context, addr string,
	dial func(context.Context, string) (net.Conn, error)) (net.Conn, error) {
	c.mu.Lock()
	c.err = nil
	c.mu.Unlock()
	conn, err := dial(ctx, addr)
	if failed, ok := errors.AsType[*tunnel.Error](err); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err = failed
	}
	return conn, err
}

// Clone returns c itself. A copy is not needed, because only one connection uses c.
func (c *Credentials) Clone() credentials.TransportCredentials { return c }

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
