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
	"sync"
	"time"

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

// Service implements nstancev1.OperatorServiceServer.
type Service struct {
	nstancev1.UnimplementedOperatorServiceServer
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

var _ nstancev1.OperatorServiceServer = (*Service)(nil)

// New returns the service. Every call invokes leader once. If leader returns an error, the call returns it to the
// client.
func New(leader func() (*Leader, error)) *Service {
	return &Service{leader: leader, queue: 16384, pace: 100 * time.Millisecond, resync: 10 * time.Second,
		recheck: time.Minute}
}

// call is one call of one operator.
type call struct {
	// Context is cancelled when the client's call or the leadership ends.
	context.Context
	*Leader
	service  *Service
	client   context.Context
	peer     *transport.Peer
	tenant   string
	operator ident.ID
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

// begin identifies the client and gets the leadership that serves the call. next is the new key in a renewal that
// changes the key, and nil in all other calls. The caller must call end.
func (s *Service) begin(ctx context.Context, next ed25519.PublicKey) (c *call, end func(), err error) {
	peer, err := transport.PeerOf(ctx)
	if err != nil {
		return nil, nil, status.Error(codes.Unauthenticated, err.Error())
	}
	if peer.Identity.Role != authority.RoleOperator {
		return nil, nil,
			status.Errorf(codes.PermissionDenied, "this service is for the role %s, the client has the role %q",
				authority.RoleOperator, peer.Identity.Role)
	}
	leader, err := s.leader()
	if err != nil {
		return nil, nil, err
	}
	inner, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(leader.Context, cancel)
	c = &call{Context: inner, Leader: leader, service: s, client: ctx, peer: peer, tenant: peer.Identity.Tenant,
		operator: peer.Identity.ID, next: next}
	end = func() {
		stop()
		cancel()
	}
	if err = c.admit(); err != nil {
		err = c.fault("operator record", err)
	} else {
		err = c.permit(ctx)
	}
	if err != nil {
		c.logRefusal(err)
		end()
		return nil, nil, err
	}
	c.requestRenewal()
	return c, end, nil
}

// unary serves one call that is not a stream.
func unary[Q, A any](s *Service, ctx context.Context, what string, req Q, handle func(*call, Q) (A, error)) (answer A,
	err error) {
	var next ed25519.PublicKey
	if renewal, ok := any(req).(*nstancev1.OperatorServiceRenewCertificateRequest); ok {
		next = renewal.GetPublicKey()
	}
	c, end, err := s.begin(ctx, next)
	if err != nil {
		return answer, err
	}
	defer end()
	answer, err = handle(c, req)
	if err != nil {
		err = c.fault(what, err)
		c.logRefusal(err)
		var none A
		return none, err
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
