// Package operatorapi serves the OperatorService to operators and nstance-admin.
//
// Invariant: a call sees and changes what belongs to the tenant in its client's certificate and nothing else; what
// belongs to another tenant does not exist for it. Nothing a client sends is acted on before it was validated, and no
// client can make the leader wait or grow.
package operatorapi

import (
	"context"
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
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/leader"
	"github.com/nstance-kit/nstance/services/internal/shardconfig"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
	"github.com/nstance-kit/nstance/services/internal/transport"
)

// Store is the durable side of operators; see clusterstate.State.
type Store interface {
	GetOperator(ctx context.Context, tenant string, id ident.ID) (record.Operator, objstore.Token, error)
	// PutOperator fails with an error that matches objstore.ErrConflict when another write came first.
	PutOperator(ctx context.Context, rec record.Operator, token objstore.Token) (objstore.Token, error)
}

// Leader is what a leader of one term needs to serve operators. All fields but ConfigModified are required; it must not
// be copied once it is in use.
type Leader struct {
	// Context ends with the leadership.
	Context        context.Context
	Cluster, Shard string
	// ID is this server's; Incarnation is written into records.
	ID, Incarnation string
	Leader          *leader.Leader
	Config          *shardconfig.Manager
	// Refresh fetches the configuration and applies it; see shardconfig.Manager.Refresh.
	Refresh func(context.Context) (shardconfig.Result, config.Problems, error)
	// ConfigModified tells when the configuration in the bucket was written.
	ConfigModified func(context.Context) (time.Time, error)
	Events         *Events
	Store          Store
	Issuer         transport.Issuer
	Now            func() time.Time
	Log            *slog.Logger

	mu        sync.Mutex
	operators map[ident.ID]checked
	creating  map[ident.ID]*creation
}

func (l *Leader) world() *shardstate.State { return l.Leader.World }

// Service implements nstancev1.OperatorServiceServer.
type Service struct {
	nstancev1.UnimplementedOperatorServiceServer
	// leader returns the current leadership, or the status error that says who leads instead.
	leader func() (*Leader, error)

	// queue is how many events a watch stream may be behind.
	queue int
	// pace is the least time between two renderings of a group for one stream; resync is how often all are looked at
	// whether or not somebody said that they changed: some of what they tell follows from the time alone.
	pace, resync time.Duration
	// recheck is how often the record of a stream's operator is looked at: one who was removed is not to listen for
	// ever.
	recheck time.Duration
}

var _ nstancev1.OperatorServiceServer = (*Service)(nil)

// New returns the service. leader is asked once a call; its error, if there is no leadership here, is the call's.
func New(leader func() (*Leader, error)) *Service {
	return &Service{leader: leader, queue: 16384, pace: 100 * time.Millisecond, resync: 10 * time.Second,
		recheck: 15 * time.Minute}
}

// call is one call of one operator.
type call struct {
	// Context ends with the client's call and with the leadership.
	context.Context
	*Leader
	service  *Service
	client   context.Context
	peer     *transport.Peer
	tenant   string
	operator ident.ID
}

// begin finds out who calls and whether there is a leadership to serve the call. end must be called.
func (s *Service) begin(ctx context.Context) (c *call, end func(), err error) {
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
		operator: peer.Identity.ID}
	end = func() {
		stop()
		cancel()
	}
	if err := c.admit(); err != nil {
		end()
		return nil, nil, c.fault("operator record", err)
	}
	return c, end, nil
}

// unary serves one call that is not a stream.
func unary[Q, A any](s *Service, ctx context.Context, what string, req Q, handle func(*call, Q) (A, error)) (answer A,
	err error) {
	c, end, err := s.begin(ctx)
	if err != nil {
		return answer, err
	}
	defer end()
	answer, err = handle(c, req)
	if err != nil {
		var none A
		return none, c.fault(what, err)
	}
	return answer, nil
}

// fault turns an error into the status that the client is to see. What failed because the leadership ended is told as
// that, and what has no code of its own is something that may work later: storage, mostly.
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
	return status.Errorf(codes.Unavailable, "%s: cannot be done now, try again: %v", what, err)
}

// lost is what a call gets whose leadership ended under it: whatever standbys answer, as soon as this server knows that
// it is one.
func (c *call) lost() error {
	if _, err := c.service.leader(); err != nil {
		return err
	}
	return notleader.Error("this server does not lead the shard any more: try again",
		&nstancev1.NotLeader{Shard: c.Shard})
}

// invalid names a field of the request and what is wrong with it.
func invalid(field, format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, field+": "+format, args...)
}

var errNotRegistered = errors.New("not registered (any more)")
