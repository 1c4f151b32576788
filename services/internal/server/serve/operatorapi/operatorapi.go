// Package operatorapi serves the OperatorService to operators and nstance-admin.
//
// Invariant: a call sees and changes only objects of the tenant in its client's certificate. Objects of other tenants
// do not exist for the call. Every field of a request is validated before use. No client can block the leader or make
// its memory grow without bound.
package operatorapi

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/act/leader"
	"github.com/nstance-kit/nstance/services/internal/server/journal"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Store reads and writes the durable records of operators. See clusterstate.State.
type Store interface {
	GetOperator(ctx context.Context, tenant string, id ident.ID) (record.Operator, objstore.Token, error)
	// PutOperator fails with an error that matches objstore.ErrConflict if another write came first.
	PutOperator(ctx context.Context, rec record.Operator, token objstore.Token) (objstore.Token, error)
}

// Leader holds what the leader of one term needs to serve operators. All fields except ConfigModified are required. A
// Leader must not be copied after first use.
type Leader struct {
	// Context ends with the leadership.
	Context        context.Context
	Cluster, Shard string
	// ID identifies this server. Incarnation identifies the present process of this server. Records contain the
	// Incarnation of their writer.
	ID, Incarnation string
	Leader          *leader.Leader
	Config          *shardconfig.Manager
	// Refresh reads the configuration from the bucket and applies it. See shardconfig.Manager.Refresh.
	Refresh func(context.Context) (shardconfig.Result, config.Problems, error)
	// ConfigModified returns the time at which the configuration in the bucket was written.
	ConfigModified func(context.Context) (time.Time, error)
	Events         *Events
	Journal        *journal.Journal
	// OrphansConfirmed, if set, is called after a person has confirmed orphans.
	OrphansConfirmed func(context.Context)
	// Status describes the leadership. StepDown makes this server hand the leadership over to another server soon.
	Status   func() Leading
	StepDown func()
	Store    Store
	Issuer   transport.Issuer
	Now      func() time.Time
	Log      *slog.Logger

	mu        sync.Mutex
	operators map[admission]checked
	creating  map[ident.ID]*creation
	types     map[string]*nstancev1.GetInstanceTypeResponse // nil: the provider does not know the type
}

func (l *Leader) state() *shardstate.State { return l.Leader.State }

// Service serves the OperatorService. A [call] handles each of its calls.
type Service struct {
	// leader returns the current leadership, or the status error with the address of the actual leader.
	leader func() (*Leader, error)

	// queue is the number of events that a watch stream may be behind.
	queue int
	// pace is the shortest time between two renderings of a group for one stream. resync is how often a stream renders
	// all groups, even without an event, because some fields of a status change as time passes.
	pace, resync time.Duration
	// recheck is the time between two checks of whether a stream's operator is still admitted.
	recheck time.Duration

	refusals transport.RefusalLog
}

// New returns the service. Every call invokes leader once. If leader returns an error, the call returns it to the
// client.
func New(leader func() (*Leader, error)) *Service {
	return &Service{leader: leader, queue: 16384, pace: 100 * time.Millisecond, resync: 10 * time.Second,
		recheck: time.Minute}
}

// Register registers the service with a server.
func (s *Service) Register(server grpc.ServiceRegistrar) {
	desc := nstancev1.OperatorService_ServiceDesc
	desc.Methods, desc.Streams = slices.Clone(desc.Methods), slices.Clone(desc.Streams)
	for i := range desc.Methods {
		method := &desc.Methods[i]
		generated := method.Handler
		method.Handler = func(_ any, ctx context.Context, decode func(any) error,
			outer grpc.UnaryServerInterceptor) (any, error) {
			c := &call{service: s}
			return generated(c, ctx, decode, func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
				handle grpc.UnaryHandler) (any, error) {
				inner := func(ctx context.Context, req any) (any, error) { return c.serveUnary(ctx, req, handle) }
				if outer == nil {
					return inner(ctx, req)
				}
				return outer(ctx, req, info, inner)
			})
		}
	}
	for i := range desc.Streams {
		stream := &desc.Streams[i]
		generated := stream.Handler
		stream.Handler = func(_ any, to grpc.ServerStream) error {
			c := &call{service: s}
			end, err := c.begin(to.Context())
			if err != nil {
				return err
			}
			defer end()
			return generated(c, to)
		}
	}
	server.RegisterService(&desc, &call{service: s})
}

// call is one call of one operator. It implements nstancev1.OperatorServiceServer: the method of the call's RPC handles
// the call after [call.begin].
type call struct {
	nstancev1.UnimplementedOperatorServiceServer
	// Context is cancelled when the client's call or the leadership ends.
	context.Context
	*Leader
	// Config is that of the Leader, or a copy of it in a rehearsal.
	Config *shardconfig.Manager
	// rehearsal is set while the call plans a change instead of making it.
	rehearsal *rehearsal
	service   *Service
	client    context.Context
	peer      *transport.Peer
	tenant    string
	operator  ident.ID
	// name and role come from the operator's record.
	name string
	role record.OperatorRole
	// next is the new key in a renewal that changes the key. It is nil in a renewal that keeps the key, and in all
	// other calls.
	next ed25519.PublicKey
	// refused holds attributes for the log entry about a refused request: the group and the refused fields. It is nil
	// if there are none.
	refused []any
}

// begin identifies the client and gets the leadership that serves the call. The caller must call end.
func (c *call) begin(ctx context.Context) (end func(), err error) {
	peer, err := transport.PeerOf(ctx)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	if peer.Identity.Role != authority.RoleOperator {
		return nil, status.Errorf(codes.PermissionDenied, "this service is for the role %s, the client has the role %q",
			authority.RoleOperator, peer.Identity.Role)
	}
	leader, err := c.service.leader()
	if err != nil {
		return nil, err
	}
	inner, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(leader.Context, cancel)
	c.Context, c.Leader, c.Config, c.client = inner, leader, leader.Config, ctx
	c.peer, c.tenant, c.operator = peer, peer.Identity.Tenant, peer.Identity.ID
	end = func() {
		stop()
		cancel()
	}
	if err = c.admit(); err != nil {
		err = c.fault("operator record", err)
	} else {
		err = c.permit(methodOf(ctx))
	}
	if err != nil {
		c.logRefusal(err)
		end()
		return nil, err
	}
	c.requestRenewal()
	return end, nil
}

// serveUnary serves one call that is not a stream.
func (c *call) serveUnary(ctx context.Context, req any, handle grpc.UnaryHandler) (any, error) {
	if renewal, ok := req.(*nstancev1.OperatorServiceRenewCertificateRequest); ok {
		c.next = renewal.GetPublicKey()
		if len(c.next) > 0 {
			if err := transport.CheckPublicKey(c.next); err != nil {
				return nil, invalid("public_key", "%v", err)
			}
		}
	}
	end, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	answer, err := handle(ctx, req)
	if err != nil {
		err = c.fault(methodOf(ctx), err)
		c.logRefusal(err)
		return nil, err
	}
	return answer, nil
}

// fault converts an error to the status error that the client gets. If the leadership has ended, the client gets the
// error of [call.lost]. An error without a status becomes Unavailable: most such errors come from storage, and a retry
// may succeed.
func (c *call) fault(what string, err error) error {
	if c.client.Err() == nil && c.Leader.Context.Err() != nil {
		return c.lost()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if c.client.Err() != nil {
		return status.FromContextError(c.client.Err()).Err()
	}
	c.Log.Warn("operator's call failed", "tenant", c.tenant, "operator", c.operator.String(), "call", what, "error",
		err)
	return status.Errorf(codes.Unavailable, "%s: cannot be done now: try again: %v", what, err)
}

// lost returns the error for a call that was in progress when the leadership ended. Once this server knows that it is a
// standby, lost returns the error that standbys return.
func (c *call) lost() error {
	if _, err := c.service.leader(); err != nil {
		return err
	}
	return notleader.Error("this server no longer leads the shard: try again",
		&nstancev1.NotLeader{Shard: c.Shard})
}

// invalid returns an error that says what is wrong with a field of the request.
func invalid(field, format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, field+": "+format, args...)
}

var errNotRegistered = errors.New("not registered, or no longer registered")
