package transport

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

const (
	// maxMessage is the largest message that a server sends: a file of 1 MiB, or the list of a group's instances.
	maxMessage = 4 << 20
	// If a connection has no traffic for pingAfter, the server sends a ping. It closes the connection if no answer
	// arrives within pingTimeout.
	pingAfter, pingTimeout = 20 * time.Second, 10 * time.Second
	// refusalTime is how long the connection of a client stays open whose certificate expired too long ago. The client
	// needs it to learn why it is refused.
	refusalTime = 10 * time.Second
	// handshakeTimeout limits the total time for the TLS handshake and HTTP/2's preface.
	handshakeTimeout = 10 * time.Second
	// writeBuffer is small because there may be thousands of connections, nearly all of them quiet.
	writeBuffer = 4 << 10
	// window is HTTP/2's default flow control window. Messages are small, so they need no larger one.
	window = 64<<10 - 1
)

// portLimits are the limits of one port.
type portLimits struct {
	// message is the size of the largest message that the server accepts, in bytes. A client may start one message per
	// stream and finish none of them, so every stream may occupy this much memory.
	message int
	// streams is per connection.
	streams uint32
	// following is the limit of calls per client certificate that the server answers with a stream; zero is no limit. A
	// client that does not read them occupies up to 200 KiB of the server with each.
	following int
	// connections is the limit of open connections per client certificate.
	connections int
	// Each client certificate has a token bucket for handshakes. handshakesPerSecond is its rate, and handshakeBurst is
	// its size.
	handshakesPerSecond rate.Limit
	handshakeBurst      int
	// Each client certificate has a token bucket for the bytes that the server reads. A client without a certificate
	// has one for its address. bytesPerSecond is the rate, and byteBurst the size. The buckets limit processor time:
	// small HTTP/2 frames cost much more time to read than to send. With 64 KiB a client can open and reset about a
	// thousand streams, which costs the server 50 ms of one core.
	bytesPerSecond rate.Limit
	byteBurst      int
	// idle, age and grace limit how long a connection stays open; zero is no limit. See keepalive.ServerParameters.
	idle, age, grace time.Duration
}

// The limits of each port, by the role of its clients.
var limitsOf = map[authority.Role]portLimits{
	// A registration is short, and its request is little more than a nonce of 4 KiB.
	"": {message: 16 << 10, streams: 4, bytesPerSecond: 64 << 10, byteBurst: 64 << 10,
		idle: 30 * time.Second, age: time.Minute, grace: 10 * time.Second},
	// A report on 512 files has 60 KiB, or 900 KiB if each file has a long error. So a message may have 1 MiB. An agent
	// has one connection, and a second one for a moment after a change of network.
	authority.RoleAgent: {message: 1 << 20, streams: 8, connections: 4, handshakesPerSecond: 1, handshakeBurst: 10,
		bytesPerSecond: 64 << 10, byteBurst: 64 << 10, idle: 5 * time.Minute},
	// A group has vars of up to 96 KiB and args of up to 64 KiB. Several nstance-admin processes may share a
	// certificate.
	authority.RoleOperator: {message: 512 << 10, streams: 32, following: 64, connections: 16, handshakesPerSecond: 10,
		handshakeBurst: 50, bytesPerSecond: 256 << 10, byteBurst: 1 << 20, idle: 5 * time.Minute},
	authority.RoleServer: {message: 1 << 20, streams: 4, connections: 8, handshakesPerSecond: 10,
		handshakeBurst: 50, bytesPerSecond: 256 << 10, byteBurst: 1 << 20, idle: 5 * time.Minute},
}

// newRegistrationLimiter limits the requests of each source address at the registration port. An agent registers only
// once in its life, but all agents of a site may share an address.
func newRegistrationLimiter(source *Source) *rateLimiter[netip.Addr] {
	return &rateLimiter[netip.Addr]{perSecond: 20, burst: 100, now: source.options.Now}
}

// ServerOptions returns the options of the gRPC server of one port: TLS, the role that its clients must have, limits on
// connections, streams and messages, and recovery from panics. The role is empty for the registration port: its clients
// have no certificate and are limited by their address.
func ServerOptions(source *Source, role authority.Role, log *slog.Logger) []grpc.ServerOption {
	limits := limitsOf[role]
	creds, g := &serverCredentials{source: source, role: role}, guard{role: role, now: source.options.Now, log: log}
	if limits.following > 0 {
		g.following = &following{limit: limits.following, streams: map[authority.Identity]int{}}
	}
	creds.bytes = &rateLimiter[any]{perSecond: limits.bytesPerSecond, burst: limits.byteBurst, now: time.Now}
	creds.foreignBytes = &rateLimiter[any]{perSecond: 8 << 10, burst: 64 << 10, now: time.Now}
	if role == "" {
		creds.config = source.config()
		creds.registrations, g.registrations = newRegistrationLimiter(source), newRegistrationLimiter(source)
	} else {
		creds.config = source.clientAuthConfig()
		creds.clients = &clients{limit: limits.connections, conns: map[authority.Identity][]net.Conn{}}
		creds.handshakes = &rateLimiter[authority.Identity]{perSecond: limits.handshakesPerSecond,
			burst: limits.handshakeBurst, now: source.options.Now}
	}
	creds.TransportCredentials = credentials.NewTLS(creds.config)
	return []grpc.ServerOption{
		grpc.Creds(creds),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: limits.idle, MaxConnectionAge: limits.age,
			MaxConnectionAgeGrace: limits.grace, Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second,
			PermitWithoutStream: true}),
		grpc.MaxConcurrentStreams(limits.streams),
		grpc.MaxRecvMsgSize(limits.message),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxHeaderListSize(8 << 10),
		grpc.HeaderTableSize(0), // streams last for days and have one header, so compression saves nothing
		grpc.ReadBufferSize(0),  // TLS has its own buffer
		grpc.WriteBufferSize(writeBuffer),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(g.unary),
		grpc.StreamInterceptor(g.stream),
		// With dynamic windows, gRPC would answer every report with a ping to measure the bandwidth.
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
	}
}

// guard checks each call to a port before the call's handler runs.
type guard struct {
	role          authority.Role
	registrations *rateLimiter[netip.Addr]
	following     *following // nil: no limit
	now           func() time.Time
	log           *slog.Logger
}

func (g guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any,
	err error) {
	defer g.recoverPanic(info.FullMethod, &err)
	if err := g.checkCaller(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (g guard) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) (err error) {
	defer g.recoverPanic(info.FullMethod, &err)
	if err := g.checkCaller(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	if g.following != nil {
		leave, err := g.following.add(stream.Context())
		if err != nil {
			return err
		}
		defer leave()
	}
	return handler(srv, stream)
}

// recoverPanic turns a panic of a handler into an error of its call.
func (g guard) recoverPanic(method string, err *error) {
	if cause := recover(); cause != nil {
		g.log.Error("handler panicked", "method", method, "error", fmt.Sprint(cause), "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "internal error")
	}
}

// checkCaller returns an error if the client may not call the method on the guard's port.
func (g guard) checkCaller(ctx context.Context, method string) error {
	client, err := PeerOf(ctx)
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if g.registrations != nil {
		if from := sourceOf(client.conn.RemoteAddr()); !isLocal(from) && !g.registrations.allow(from) {
			return status.Error(codes.ResourceExhausted, "too many registrations from this address: try again later")
		}
	}
	switch {
	case g.role == "":
		return nil
	case client.problem != nil:
		return status.Error(codes.Unauthenticated, client.problem.Error())
	case client.Identity.Role != g.role:
		return status.Errorf(codes.PermissionDenied,
			"this port is for the role %s, the client certificate of %s has the role %s",
			g.role, client.Identity.ID, client.Identity.Role)
	case !g.inTime(client, method):
		return status.Errorf(codes.Unauthenticated, "the client certificate expired at %s",
			client.NotAfter.Format(time.RFC3339))
	}
	return nil
}

// inTime reports whether a client's certificate is still valid. It also returns true if an agent renews a certificate
// that had expired when the connection was made.
func (g guard) inTime(client *Peer, method string) bool {
	if client.Expired {
		return g.role == authority.RoleAgent && strings.HasSuffix(method, "/RenewCertificate")
	}
	return !g.now().After(client.NotAfter)
}

// A [RefusalLog] writes at most refusalRate lines per second on average, and at most refusalBurst lines at one time.
const refusalRate, refusalBurst = 10, 100

// RefusalLog limits the log lines about refused calls, so that a hostile client cannot fill the log. A refusal is an
// error that the client caused, such as an invalid argument. The zero value is ready to use. It is safe for concurrent
// use.
type RefusalLog struct {
	once    sync.Once
	limiter *rate.Limiter
}

// Admits reports whether err is a refusal that may be logged now.
func (l *RefusalLog) Admits(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.NotFound, codes.AlreadyExists:
		return l.Allows()
	}
	return false
}

// Allows reports whether a refusal may be logged now.
func (l *RefusalLog) Allows() bool {
	l.once.Do(func() { l.limiter = rate.NewLimiter(refusalRate, refusalBurst) })
	return l.limiter.Allow()
}

// PeerAddress returns the address that a call came from. It is invalid if the call did not come over a network.
func PeerAddress(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	from, err := netip.ParseAddrPort(p.Addr.String())
	if err != nil {
		return netip.Addr{}
	}
	return from.Addr().Unmap().WithZone("")
}
