package transport

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

const (
	// maxMessage is the largest message that is sent: a file of 1 MiB, or a list of a group's instances.
	maxMessage = 4 << 20
	// The largest messages that are received. A client may begin as many as it may have streams and finish none: that
	// much memory is its to take.
	maxReport       = 1 << 20   // of agents: 512 files and 128 keys with their errors are 900 KiB
	maxOperation    = 512 << 10 // of operators: vars of 96 KiB, args of 64 KiB
	maxRegistration = 16 << 10  // a nonce of 4 KiB and little else
	// A connection that says nothing for pingAfter is asked whether it lives, and closed after another pingTimeout:
	// together the 30 s of page 4.
	pingAfter, pingTimeout = 20 * time.Second, 10 * time.Second
	// handshakeTimeout is for TLS and HTTP/2's preface together.
	handshakeTimeout = 10 * time.Second
	// silence is how long a client may wait before it says its first byte, and up to as much again: those that came
	// together do not all end together.
	silence = handshakeTimeout / 2
	// idleAfter ends a connection without streams.
	idleAfter = 5 * time.Minute
	// Who registers has a minute for it, and then goes.
	registrationIdle, registrationAge, registrationGrace = 30 * time.Second, time.Minute, 10 * time.Second
	// Connections that one client may have. An agent has one, and a moment before and after a change of network
	// another; several nstance-admin may share an operator's certificate. At the registration port a client is an
	// address, of which there are many.
	agentConnections, operatorConnections, serverConnections = 4, 16, 8
	// of all together whose certificate is good for nothing at the port; a client is an address
	strangerConnections                         = 256
	addressConnections, registrationConnections = 512, 4096
	// buffers for writing are shared and small: there may be thousands of connections, and nearly all of them are
	// quiet.
	buffers = 4 << 10
	// window is what a client may send before the server has taken it, HTTP/2's least: messages are small.
	window = 64<<10 - 1
)

// calmBurst is what a client may have the server spend at once without waiting behind others: see below.
const calmBurst = 5 * time.Millisecond

// What clients may have the server spend, on all of their connections together. A flood of whatever kind takes no more
// of a core than this, and the client that sends it waits. What honest ones need, at the prices of frames.go:
//
// An agent's connection with its handshake and its calls is 2 ms, a report that tells all, a MiB in 65 DATA frames, 11
// ms; then a report a minute is 10 µs. A file of a MiB that it receives has it send some 130 WINDOW_UPDATE: 0.7 ms.
//
// An operator's call is 75 µs: a thousand at once, and then 250 a second, for the controller and all nstance-admin that
// share its certificate. Each of these is a connection, too: 50 at once and 12 a second. Other servers say less.
//
// A registration, a connection of its own, is 0.15 ms: 400 at once and 20 a second, which is what Limiter lets in from
// one address, are 60 ms and 3 ms/s.
//
// Whoever has a certificate that is good for no call of the port is told so, no more: a connection with its one call is
// 0.15 ms.
//
// Of what it may say at once, a client has the first five milliseconds for itself; for the rest it waits behind all
// others that say as much. A thousand calls of one operator at once take 0.15 s more for that.
var (
	agentPace        = pace{second: 4 * time.Millisecond, burst: 25 * time.Millisecond}
	operatorPace     = pace{second: 20 * time.Millisecond, burst: 80 * time.Millisecond}
	registrationPace = pace{second: 5 * time.Millisecond, burst: 100 * time.Millisecond}
	strangerPace     = pace{second: 2 * time.Millisecond, burst: 10 * time.Millisecond}
	rushPace         = pace{second: 500 * time.Millisecond, burst: 10 * time.Millisecond}
)

// ServerOptions returns the options of the gRPC server of one port: TLS, the role that its clients must have, every
// bound on what they may cost, and recovery from panics. role is RoleAgent, RoleOperator, or empty for the registration
// port, whose clients have no certificate and are limited by their address instead.
func ServerOptions(source *Source, role authority.Role, log *slog.Logger) []grpc.ServerOption {
	t := &transport{source: source, config: source.withClients(), clients: true, gate: source.gate, role: role,
		strangers: newCrowd(agentConnections, strangerConnections, strangerPace)}
	g := guard{role: role, log: log}
	receive, streams, idle := maxOperation, uint32(32), idleAfter
	var age, grace time.Duration // none
	switch role {
	case "":
		t.config, t.clients, t.crowd = source.config(), false, newCrowd(addressConnections, registrationConnections,
			registrationPace)
		t.limit = NewLimiter(registrationRate, registrationBurst, maxSources, source.options.Now)
		g.limit = NewLimiter(registrationRate, registrationBurst, maxSources, source.options.Now)
		receive, streams, idle, age, grace = maxRegistration, 4, registrationIdle, registrationAge, registrationGrace
	case authority.RoleAgent:
		receive, streams, t.crowd = maxReport, 8, newCrowd(agentConnections, 0, agentPace)
	case authority.RoleServer:
		receive, streams, t.crowd = maxReport, 4, newCrowd(serverConnections, 0, operatorPace)
	default:
		t.crowd = newCrowd(operatorConnections, 0, operatorPace)
	}
	return []grpc.ServerOption{
		grpc.Creds(t),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idle, MaxConnectionAge: age,
			MaxConnectionAgeGrace: grace,
			Time:                  pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second,
			PermitWithoutStream: true}),
		grpc.MaxConcurrentStreams(streams),
		grpc.MaxRecvMsgSize(receive),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxHeaderListSize(8 << 10),
		grpc.HeaderTableSize(0), // a stream has one header, and may last for days
		grpc.ReadBufferSize(0),  // TLS has a buffer of its own
		grpc.WriteBufferSize(buffers),
		grpc.SharedWriteBuffer(true),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(g.unary),
		grpc.StreamInterceptor(g.stream),
		// Windows that grow with the traffic would have every report answered with a ping that measures the line.
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
	}
}

// guard is what stands before every handler of a port.
type guard struct {
	role  authority.Role
	limit *Limiter
	log   *slog.Logger
}

func (g guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any,
	err error) {
	defer g.recover(info.FullMethod, &err)
	if err := g.admit(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (g guard) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) (err error) {
	defer g.recover(info.FullMethod, &err)
	if err := g.admit(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	if !info.IsClientStream {
		stream = shallow{stream}
	}
	return handler(srv, stream)
}

// shallow is a stream whose one message is read on another stack: see Aside.
type shallow struct{ grpc.ServerStream }

func (s shallow) RecvMsg(m any) (err error) {
	Aside(func() { err = s.ServerStream.RecvMsg(m) })
	return err
}

// recover turns a panic into an error: it is one call's, not the server's.
func (g guard) recover(method string, err *error) {
	if cause := recover(); cause != nil {
		g.log.Error("handler panicked", "method", method, "error", fmt.Sprint(cause), "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "internal error")
	}
}

// admit checks that the client may call this port.
func (g guard) admit(ctx context.Context, method string) error {
	client, err := PeerOf(ctx)
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if g.limit != nil {
		if p, ok := peer.FromContext(ctx); ok && !g.limit.Allow(p.Addr) {
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
	case client.Expired && (g.role != authority.RoleAgent || !strings.HasSuffix(method, "/RenewCertificate")):
		return status.Errorf(codes.Unauthenticated, "the client certificate expired at %s",
			client.NotAfter.Format(time.RFC3339))
	}
	return nil
}
