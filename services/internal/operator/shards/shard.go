package shards

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"path"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

const (
	// grace is how long a shard may be disconnected before it counts as unreachable. The operator notices a silent
	// server only after [operatorclient.PingAfter] and [operatorclient.PingTimeout], which are 13 s together. So the
	// shard becomes unreachable 17 s after its last sign of life.
	grace = 4 * time.Second
	// settled is the length of a session after which the reconnect delay is reset.
	settled = 5 * time.Second
)

var (
	errNotConnected = errors.New("not connected yet")
	errStopped      = errors.New("the shard is no longer connected")
)

// shard holds the connection to one shard's leader and the mirror.
type shard struct {
	*mirror
	set *Set
	log *slog.Logger

	mu    sync.Mutex
	addr  string
	state State
	// conn is the connection to a leader. If there is no connection, conn is nil and lostErr is the reason.
	conn    *grpc.ClientConn
	lostErr error
	// endSession ends the current session, so that a new one starts.
	endSession context.CancelFunc
	// graceTimer marks the shard as unreachable when the grace is over.
	graceTimer *time.Timer
	// removed is closed when the shard is removed from the configuration.
	removed chan struct{}
}

var _ Shard = (*shard)(nil)

func newShard(id, addr string, set *Set) *shard {
	return &shard{mirror: newMirror(id, set.options.Now), set: set, log: set.options.Log.With("shard", id), addr: addr,
		lostErr: errNotConnected, removed: make(chan struct{})}
}

func (s *shard) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// setAddress starts a new session at another address immediately.
func (s *shard) setAddress(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr = addr
	if s.endSession != nil {
		s.endSession()
	}
}

func (s *shard) remove() { close(s.removed) }

// run keeps a session with the shard's leader until ctx ends or the shard is removed.
func (s *shard) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.setStopped()
	go func() {
		select {
		case <-s.removed:
			cancel()
		case <-ctx.Done():
		}
	}()
	delays := &backoff.ExponentialBackOff{InitialInterval: 300 * time.Millisecond, RandomizationFactor: 0.5,
		Multiplier: 2, MaxInterval: 5 * time.Second}
	delays.Reset()
	reported := ""
	for ctx.Err() == nil {
		lasted, err := s.connect(ctx)
		if ctx.Err() != nil {
			return
		}
		s.setOffline(err, s.set.grace)
		if err.Error() != reported {
			reported = err.Error()
			s.log.Warn("no session with the shard's leader; trying again", "error", err)
		}
		if lasted {
			reported = ""
			delays.Reset()
		}
		if lasted || errors.Is(err, errReconnect) {
			continue // no delay: usually another server is already the leader
		}
		_ = tasks.Sleep(ctx, delays.NextBackOff())
	}
}

// errReconnect ends a session because the shard has a new address in the configuration file, or the operator has a new
// certificate.
var errReconnect = errors.New("the shard's address or the operator's certificate has changed")

// newClient returns a client that begins at the configured address.
func (s *shard) newClient() *operatorclient.Client {
	return operatorclient.New(operatorclient.Options{Addresses: []string{s.address()}, Proxy: true,
		TLS:  func() (*tls.Config, error) { return s.set.options.TLS(s.id) },
		Dial: s.set.options.Dial})
}

// connect finds the leader and runs a session with it. lasted reports whether a session lasted for some time. The error
// is never nil.
func (s *shard) connect(ctx context.Context) (lasted bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	s.endSession = func() { cancel(errReconnect) }
	s.mu.Unlock()
	client := s.newClient()
	defer client.Close()
	err = client.Call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		began := s.now()
		met, err := s.session(ctx, conn)
		if met {
			lasted = lasted || s.now().Sub(began) >= settled
			s.setOffline(err, s.set.grace)
		}
		return err
	})
	if errors.Is(context.Cause(ctx), errReconnect) {
		err = errReconnect
	}
	return lasted, err
}

// setOnline records a connection to a leader.
func (s *shard) setOnline(conn *grpc.ClientConn) {
	s.mu.Lock()
	if s.graceTimer != nil {
		s.graceTimer.Stop()
		s.graceTimer = nil
	}
	s.conn, s.lostErr = conn, nil
	changed := !s.state.Reachable
	if changed {
		s.state.Reachable, s.state.Err = true, ""
	}
	s.mu.Unlock()
	if changed {
		s.log.Info("shard is reachable", "address", conn.Target())
		s.set.notifyAll(Change{Shard: s.id, Kind: ShardState})
	}
}

// setStopped records that no further session will begin, because the shard was removed or the operator stops.
func (s *shard) setStopped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.lostErr = nil, errStopped
	s.state.Reachable, s.state.Err = false, errStopped.Error()
	if s.graceTimer != nil {
		s.graceTimer.Stop()
	}
}

// setOffline records the end of a session. If no new session begins within the given time, the shard becomes
// unreachable.
func (s *shard) setOffline(err error, within time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.lostErr = nil, err
	switch {
	case !s.state.Reachable:
		if s.state.Err == "" { // the first attempt to connect has failed
			go s.set.notifyAll(Change{Shard: s.id, Kind: ShardState}) // in a goroutine, because this function holds mu
		}
		s.state.Err = reason(err)
	case s.graceTimer == nil:
		s.graceTimer = time.AfterFunc(within, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.conn == nil && s.state.Reachable {
				s.setUnreachable()
			}
		})
	}
}

// setUnreachable marks the shard as unreachable. The caller must hold mu.
func (s *shard) setUnreachable() {
	s.state.Reachable, s.state.Err = false, reason(s.lostErr)
	s.graceTimer = nil
	s.log.Warn("shard is unreachable", "error", s.lostErr)
	go s.set.notifyAll(Change{Shard: s.id, Kind: ShardState}) // in a goroutine, because the caller holds mu
}

// reason returns the message of an error, without the prefix that gRPC adds to it.
func reason(err error) string {
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}

// setSynced records that the mirror is complete.
func (s *shard) setSynced() {
	s.mu.Lock()
	changed := !s.state.Synced
	s.state.Synced = true
	s.mu.Unlock()
	if changed {
		s.set.notifyAll(Change{Shard: s.id, Kind: ShardState})
	}
}

// State implements [Shard].
func (s *shard) State() State {
	s.mu.Lock()
	state := s.state
	s.mu.Unlock()
	state.Zone, state.Region = s.location()
	return state
}

// API implements [Shard].
func (s *shard) API() nstancev1.OperatorServiceClient {
	return nstancev1.NewOperatorServiceClient(leaderClient{s})
}

// callTimeout limits one call.
const callTimeout = 10 * time.Second

// leaderClient calls a shard's leader and updates the mirror from the answers. So when a call returns, the mirror
// already shows the change that the call made.
type leaderClient struct{ *shard }

var _ grpc.ClientConnInterface = leaderClient{}

// Invoke implements grpc.ClientConnInterface.
func (c leaderClient) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := c.connection()
	if err != nil && method == nstancev1.OperatorService_RenewCertificate_FullMethodName {
		// After an interrupted renewal, a leader refuses all other calls with the replaced key: there is no session.
		client := c.newClient()
		defer client.Close()
		return client.Call(limited, func(ctx context.Context, to *grpc.ClientConn) error {
			return to.Invoke(ctx, method, args, reply, opts...)
		})
	}
	if err != nil {
		return err
	}
	since, began := c.mark(), c.now()
	err = conn.Invoke(limited, method, args, reply, opts...)
	if status.Code(err) == codes.Canceled && ctx.Err() == nil {
		err = status.Error(codes.Unavailable, "the connection to the shard was lost during the call")
	}
	c.set.metrics.observeCall(c.id, path.Base(method), status.Code(err), c.now().Sub(began))
	if err == nil {
		c.set.notifyAll(c.updateMirror(since, args, reply)...)
	}
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (c leaderClient) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn, err := c.connection()
	if err != nil {
		return nil, err
	}
	return conn.NewStream(ctx, desc, method, opts...)
}

func (c leaderClient) connection() (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return nil, status.Errorf(codes.Unavailable, "shard %s is unreachable: %s", c.id, reason(c.lostErr))
	}
	return c.conn, nil
}

// updateMirror updates the mirror from the answer to a call. since is the number that mark returned before the call.
func (c leaderClient) updateMirror(since uint64, args, reply any) []Change {
	switch r := reply.(type) {
	case *nstancev1.UpsertGroupResponse:
		return c.setGroup(r.GetGroup(), since)
	case *nstancev1.DeleteGroupResponse:
		if request, ok := args.(*nstancev1.DeleteGroupRequest); ok && !r.GetRestoredStatic() {
			return c.markDeleting(request.GetGroup(), since)
		}
	case *nstancev1.CreateInstanceResponse:
		return c.setInstance(r.GetInstance(), since)
	case *nstancev1.DeleteInstanceResponse:
		changes := c.setInstance(r.GetInstance(), since)
		if r.GetGroup() != nil {
			changes = append(changes, c.setGroup(r.GetGroup(), since)...)
		}
		return changes
	case *nstancev1.GetInstanceStatusResponse:
		return c.setInstance(r.GetInstance(), since)
	case *nstancev1.AcknowledgeDrainedResponse:
		if request, ok := args.(*nstancev1.AcknowledgeDrainedRequest); ok {
			return c.endDrain(request.GetInstanceId())
		}
	}
	return nil
}
