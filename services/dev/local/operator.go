package local

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// Operator is a client of the operator API for the default tenant. It calls the server that leads. While
// [Operator.Watch] runs, the client acknowledges every drain. Its methods may be called concurrently.
type Operator struct {
	nstancev1.OperatorServiceClient
	conns *serverConns

	mu     sync.Mutex
	events []*nstancev1.InstanceEvent
	errors []*nstancev1.ErrorEvent
	news   chan struct{} // closed and replaced when something is appended
}

// Connect registers an operator in the bucket and prepares connections with its identity.
func (s *Stack) Connect(ctx context.Context) (*Operator, error) {
	return s.ConnectAs(ctx, "")
}

// ConnectAs is like Connect. If dir is not empty, ConnectAs also writes the identity to this directory for
// nstance-admin --identity-dir.
func (s *Stack) ConnectAs(ctx context.Context, dir string) (*Operator, error) {
	cert, roots, err := s.identity(ctx, dir)
	if err != nil {
		return nil, err
	}
	return s.connect(cert, roots)
}

// ConnectWith prepares connections with an identity that nstance-admin wrote to a directory.
func (s *Stack) ConnectWith(dir string) (*Operator, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "identity.crt"), filepath.Join(dir, "identity.key"))
	if err != nil {
		return nil, fmt.Errorf("identity in %s: %w", dir, err)
	}
	authorities, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(dir, "ca.crt"))
	}
	return s.connect(cert, roots)
}

func (s *Stack) connect(cert tls.Certificate, roots *x509.CertPool) (*Operator, error) {
	creds := credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		RootCAs: roots, ServerName: loopback})
	conns := &serverConns{}
	for _, addr := range s.operatorAddrs() {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5,
					MaxDelay: 500 * time.Millisecond},
				MinConnectTimeout: 2 * time.Second,
			}))
		if err != nil {
			return nil, errors.Join(err, conns.close())
		}
		conns.all = append(conns.all, conn)
	}
	return &Operator{OperatorServiceClient: nstancev1.NewOperatorServiceClient(conns), conns: conns,
		news: make(chan struct{})}, nil
}

// Close closes the connections.
func (o *Operator) Close() { _ = o.conns.close() } // the only error is that they are closed already

// Watch collects instance and error events until ctx ends. When the leader changes, Watch connects to the new leader.
func (o *Operator) Watch(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { repeat(ctx, o.watchInstances) })
	both.Go(func() { repeat(ctx, o.watchErrors) })
	both.Wait()
}

// repeat calls fn again each time fn returns, until ctx ends. fn reads a stream from the leader. When the leader's term
// ends, the stream ends too.
func repeat(ctx context.Context, fn func(context.Context) error) {
	for ctx.Err() == nil {
		_ = fn(ctx)                         // the next call opens the stream again
		_ = Pause(ctx, 50*time.Millisecond) // the loop checks ctx
	}
}

func (o *Operator) watchInstances(ctx context.Context) error {
	stream, err := o.WatchInstances(ctx, &nstancev1.WatchInstancesRequest{})
	if err != nil {
		return err
	}
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		event := answer.GetEvent()
		o.mu.Lock()
		o.events = append(o.events, event)
		close(o.news)
		o.news = make(chan struct{})
		o.mu.Unlock()
		if event.GetType() == nstancev1.InstanceEvent_TYPE_PENDING_DELETION && event.GetDrain() {
			// The error is ignored, because the drain ends at its deadline even without an acknowledgment.
			_, _ = o.AcknowledgeDrained(ctx, &nstancev1.AcknowledgeDrainedRequest{
				InstanceId: event.GetInstance().GetInstanceId()})
		}
	}
}

func (o *Operator) watchErrors(ctx context.Context) error {
	stream, err := o.WatchErrors(ctx, &nstancev1.WatchErrorsRequest{})
	if err != nil {
		return err
	}
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		o.mu.Lock()
		o.errors = append(o.errors, answer.GetEvent())
		o.mu.Unlock()
	}
}

// Mark returns the number of events that the client has received so far. Pass it to Await, which then skips these
// events.
func (o *Operator) Mark() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.events)
}

// Await waits for a matching event after the mark `since`, and returns the event.
func (o *Operator) Await(ctx context.Context, since int, match func(*nstancev1.InstanceEvent) bool) (
	*nstancev1.InstanceEvent, error) {
	for {
		o.mu.Lock()
		news := o.news
		for ; since < len(o.events); since++ {
			if match(o.events[since]) {
				event := o.events[since]
				o.mu.Unlock()
				return event, nil
			}
		}
		o.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Events returns the instance events and the error events so far.
func (o *Operator) Events() ([]*nstancev1.InstanceEvent, []*nstancev1.ErrorEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.events), slices.Clone(o.errors)
}

// transient reports whether a failed call may succeed when it is repeated, for example after the election of a leader.
func transient(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted:
		return true
	}
	return false
}

// retry calls fn again as long as fn fails with a transient error. It gives up when ctx ends.
func retry[T any](ctx context.Context, fn func(context.Context) (T, error)) (T, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		value, err := fn(attempt)
		cancel()
		if err == nil || !transient(err) {
			return value, err
		}
		if ended := Pause(ctx, 50*time.Millisecond); ended != nil {
			return value, fmt.Errorf("%w: %w", ended, err)
		}
	}
}

// Scale changes the size of an existing group.
func (o *Operator) Scale(ctx context.Context, group string, size uint32) error {
	n := int(size)
	patch := config.PatchOf(config.GroupSpec{Size: &n}).JSON()
	_, err := retry(ctx, func(ctx context.Context) (*nstancev1.UpsertGroupResponse, error) {
		return o.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{Group: group, Patch: patch, MustExist: true})
	})
	return err
}

// Refresh makes the leader read its configuration now. It fails if the leader refuses the configuration.
func (o *Operator) Refresh(ctx context.Context) (nstancev1.RefreshResult, error) {
	answer, err := retry(ctx, func(ctx context.Context) (*nstancev1.RefreshConfigResponse, error) {
		return o.RefreshConfig(ctx, &nstancev1.RefreshConfigRequest{})
	})
	if err == nil && answer.GetResult() == nstancev1.RefreshResult_REFRESH_RESULT_INVALID {
		err = fmt.Errorf("the server refused the configuration: %v", answer.GetProblems())
	}
	return answer.GetResult(), err
}

// Instances lists the instances of the tenant.
func (o *Operator) Instances(ctx context.Context) ([]*nstancev1.InstanceStatus, error) {
	answer, err := retry(ctx, func(ctx context.Context) (*nstancev1.ListInstancesResponse, error) {
		return o.ListInstances(ctx, &nstancev1.ListInstancesRequest{})
	})
	return answer.GetInstances(), err
}

// Groups lists the groups of the tenant.
func (o *Operator) Groups(ctx context.Context) ([]*nstancev1.GroupStatus, error) {
	answer, err := retry(ctx, func(ctx context.Context) (*nstancev1.ListGroupsResponse, error) {
		return o.ListGroups(ctx, &nstancev1.ListGroupsRequest{})
	})
	return answer.GetGroups(), err
}

// Healthy reports whether an instance is registered and healthy.
func Healthy(i *nstancev1.InstanceStatus) bool {
	return i.GetState() == "registered" && i.GetHealth() == "healthy"
}

// AwaitHealthy waits until exactly count instances exist and all are healthy, and returns them.
func (o *Operator) AwaitHealthy(ctx context.Context, count int) ([]*nstancev1.InstanceStatus, error) {
	var last string
	for {
		instances, err := o.Instances(ctx)
		if err != nil {
			return nil, errors.Join(err, lastSeen(last))
		}
		live := slices.DeleteFunc(slices.Clone(instances), func(i *nstancev1.InstanceStatus) bool {
			return i.GetState() == "deleted"
		})
		healthy := 0
		last = ""
		for _, i := range live {
			if Healthy(i) {
				healthy++
			}
			last += fmt.Sprintf("\n  %s state=%s provider=%s health=%s %s", i.GetInstanceId(), i.GetState(),
				i.GetProviderState(), i.GetHealth(), i.GetHealthMessage())
		}
		if len(live) == count && healthy == count {
			return live, nil
		}
		if ended := Pause(ctx, 50*time.Millisecond); ended != nil {
			return nil, fmt.Errorf("%w: want %d healthy instances and no others: %w", ended, count, lastSeen(last))
		}
	}
}

func lastSeen(instances string) error {
	if instances == "" {
		return errors.New("there were no instances")
	}
	return errors.New("last seen:" + instances)
}

// serverConns holds one connection to each server of a shard. Calls use the current connection. If a call shows that
// the server of this connection does not lead or does not answer, the next connection becomes the current one.
// serverConns implements [grpc.ClientConnInterface].
type serverConns struct {
	all     []*grpc.ClientConn
	current atomic.Uint32 // modulo len(all)
}

func (c *serverConns) close() error {
	var errs []error
	for _, conn := range c.all {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

func (c *serverConns) pick() (*grpc.ClientConn, uint32) {
	at := c.current.Load()
	return c.all[int(at)%len(c.all)], at
}

// skip makes the next connection current if the error shows that the server of the given connection does not lead or
// does not answer. It does nothing if the given connection is no longer the current one.
func (c *serverConns) skip(at uint32, err error) {
	if transient(err) {
		c.current.CompareAndSwap(at, at+1)
	}
}

// Invoke implements [grpc.ClientConnInterface].
func (c *serverConns) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, at := c.pick()
	err := conn.Invoke(ctx, method, args, reply, opts...)
	c.skip(at, err)
	return err
}

// NewStream implements [grpc.ClientConnInterface].
func (c *serverConns) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error) {
	conn, at := c.pick()
	stream, err := conn.NewStream(ctx, desc, method, opts...)
	c.skip(at, err)
	if err != nil {
		return nil, err
	}
	return &serverStream{ClientStream: stream, conns: c, at: at}, nil
}

// serverStream is a stream of serverConns. An error of the stream may make the next connection current (skip), so that
// the next call uses another server.
type serverStream struct {
	grpc.ClientStream
	conns *serverConns
	at    uint32
}

// RecvMsg implements [grpc.ClientStream].
func (s *serverStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.conns.skip(s.at, err)
	return err
}
