package shards

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"
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
	// remove ends the method run, because the shard was removed from the configuration. The lock of set guards it.
	remove func()

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
}

var _ Shard = (*shard)(nil)

func newShard(id, addr string, set *Set) *shard {
	return &shard{mirror: newMirror(id, set.options.Now), set: set, log: set.options.Log.With("shard", id), addr: addr,
		lostErr: errNotConnected, remove: func() {}}
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

// run keeps a session with the shard's leader until ctx ends.
func (s *shard) run(ctx context.Context) {
	defer s.setStopped()
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
	took := c.now().Sub(began)
	c.set.calls.WithLabelValues(c.id, path.Base(method), status.Code(err).String()).Observe(took.Seconds())
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

const (
	// firstAnswer limits the time to make a new connection, including TLS and the first answer.
	firstAnswer = 10 * time.Second
	// relist is the time after which the operator lists all instances again. A random delay of up to a tenth is added.
	// Lists are needed because not every change of an instance causes an event.
	relist = time.Minute
	// parallelQueries is the number of concurrent calls about missing instances.
	parallelQueries = 8
	// resubscribe is the pause before the operator restarts a watch that the leader ended because the operator read too
	// slowly.
	resubscribe = 250 * time.Millisecond
)

// session mirrors the state of the leader until the connection ends. met reports whether the server was a leader. The
// error is never nil.
func (s *shard) session(ctx context.Context, conn *grpc.ClientConn) (met bool, err error) {
	client := nstancev1.NewOperatorServiceClient(conn)
	if err := s.verifyLeader(ctx, client); err != nil {
		return false, err
	}
	s.setOnline(conn)
	for {
		err := s.runWatches(ctx, client)
		if status.Code(err) != codes.ResourceExhausted || ctx.Err() != nil {
			return true, err
		}
		s.log.Warn("watch of the shard fell behind; starting it again", "error", err)
		_ = tasks.Sleep(ctx, resubscribe)
	}
}

// verifyLeader makes a call that only a leader answers.
func (s *shard) verifyLeader(ctx context.Context, client nstancev1.OperatorServiceClient) error {
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	answer, err := client.GetConfigStatus(ctx, &nstancev1.GetConfigStatusRequest{})
	if err == nil {
		s.log.Debug("shard leader answered", "leader", answer.GetLeaderId(), "term", answer.GetTerm())
	}
	return err
}

// runWatches runs the three watches and lists the instances regularly, until a watch or the first list fails.
func (s *shard) runWatches(ctx context.Context, client nstancev1.OperatorServiceClient) error {
	group, ctx := errgroup.WithContext(ctx)
	// watchGroups calls the function "whole" after it has read all groups. listRegularly calls it after it has read all
	// instances. After both calls, the mirror is complete.
	parts := make(chan struct{}, 2)
	whole := func() {
		parts <- struct{}{}
		if len(parts) == cap(parts) {
			s.setSynced()
		}
	}
	group.Go(func() error { return s.watchGroups(ctx, client, whole) })
	listed := make(chan struct{})
	group.Go(func() error { return s.watchInstances(ctx, client, listed) })
	group.Go(func() error { return s.listRegularly(ctx, client, listed, whole) })
	group.Go(func() error {
		stream, err := client.WatchErrors(ctx, &nstancev1.WatchErrorsRequest{})
		return operatorclient.Receive(stream, err, func(r *nstancev1.WatchErrorsResponse) {
			e := r.GetEvent()
			s.set.notifyAll(Change{Shard: s.id, Kind: ErrorReported, Group: e.GetGroup(), Instance: e.GetInstanceId(),
				Error: e})
		})
	})
	return group.Wait()
}

func (s *shard) watchGroups(ctx context.Context, client nstancev1.OperatorServiceClient, whole func()) error {
	stream, err := client.WatchGroups(ctx, &nstancev1.WatchGroupsRequest{})
	first := map[string]*nstancev1.GroupStatus{} // nil once the snapshot has ended
	return operatorclient.Receive(stream, err, func(r *nstancev1.WatchGroupsResponse) {
		switch e := r.GetEvent(); e.GetType() {
		case nstancev1.GroupEvent_TYPE_UPSERT:
			if first != nil {
				first[e.GetStatus().GetGroup()] = e.GetStatus()
				return
			}
			s.set.notifyAll(s.setGroup(e.GetStatus(), latest)...)
		case nstancev1.GroupEvent_TYPE_DELETE:
			delete(first, e.GetGroup())
			if first == nil {
				s.set.notifyAll(s.removeGroup(e.GetGroup())...)
			}
		case nstancev1.GroupEvent_TYPE_SNAPSHOT_END:
			if first != nil {
				s.set.notifyAll(s.replaceGroups(first)...)
				first = nil
				whole()
			}
		}
	})
}

// watchInstances watches the instances. The watch begins with a snapshot, which has only the instances that are being
// deleted or are preserved. After the snapshot, watchInstances closes the channel "listed". Only then may the instances
// be listed, so
// that no later change is missed.
func (s *shard) watchInstances(ctx context.Context, client nstancev1.OperatorServiceClient,
	listed chan<- struct{}) error {
	stream, err := client.WatchInstances(ctx, &nstancev1.WatchInstancesRequest{})
	first := map[string]Drain{} // nil once the snapshot has ended
	return operatorclient.Receive(stream, err, func(r *nstancev1.WatchInstancesResponse) {
		e := r.GetEvent()
		if e.GetType() == nstancev1.InstanceEvent_TYPE_SNAPSHOT_END {
			if first != nil {
				s.set.notifyAll(s.replaceDrains(first)...)
				first = nil
				close(listed)
			}
			return
		}
		changes := s.setInstance(e.GetInstance(), latest)
		leaves := e.GetType() == nstancev1.InstanceEvent_TYPE_PENDING_DELETION ||
			e.GetType() == nstancev1.InstanceEvent_TYPE_PRESERVED
		if leaves && e.GetDrain() {
			d := drainOf(e, time.Now())
			if first != nil {
				first[e.GetInstance().GetInstanceId()] = d
			} else {
				changes = append(changes, s.setDrain(d)...)
			}
		}
		s.set.notifyAll(changes...)
	})
}

// drainOf returns the drain that an event announces. The parameter now is the time at which the event arrived. The
// deadline is counted from there by the remaining time, because the leader's clock may differ from the operator's.
// Earlier servers do not send the remaining time.
func drainOf(e *nstancev1.InstanceEvent, now time.Time) Drain {
	d := Drain{Instance: e.GetInstance(), Reason: e.GetReason()}
	if e.GetDeadline() == nil {
		return d
	}
	d.Announced = e.GetDeadline().AsTime()
	d.Deadline = d.Announced
	if e.GetRemaining() != nil {
		d.Deadline = now.Add(e.GetRemaining().AsDuration())
	}
	return d
}

// listRegularly waits until the channel "may" is closed. It then lists all instances, calls the function "whole", and
// repeats the list at intervals. It returns an error if the first list fails.
func (s *shard) listRegularly(ctx context.Context, client nstancev1.OperatorServiceClient, may <-chan struct{},
	whole func()) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-may:
	}
	if err := s.listOnce(ctx, client); err != nil {
		return fmt.Errorf("list instances: %w", err)
	}
	whole()
	for {
		_ = tasks.Sleep(ctx, relist+rand.N(relist/10))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := s.listOnce(ctx, client); err != nil {
			s.log.Debug("failed to list instances; trying again later", "error", err)
		}
	}
}

func (s *shard) listOnce(ctx context.Context, client nstancev1.OperatorServiceClient) error {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	since := s.mark()
	answer, err := client.ListInstances(limited, &nstancev1.ListInstancesRequest{})
	if err != nil {
		return err
	}
	changes, missing := s.applyList(answer.GetInstances(), since)
	s.set.notifyAll(changes...)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelQueries)
	for _, id := range missing {
		group.Go(func() error { return s.queryInstance(ctx, client, id) })
	}
	return group.Wait()
}

// queryInstance asks the leader about an instance that is no longer listed.
func (s *shard) queryInstance(ctx context.Context, client nstancev1.OperatorServiceClient, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	since := s.mark()
	answer, err := client.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id})
	switch {
	case err == nil:
		s.set.notifyAll(s.setInstance(answer.GetInstance(), since)...)
	case status.Code(err) == codes.NotFound:
		s.set.notifyAll(s.markUnknown(id, since)...)
	default:
		return err
	}
	return nil
}
