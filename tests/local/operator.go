package local

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// Operator speaks to whichever server leads, as an operator of the default tenant does. It also plays one: while
// [Operator.Watch] runs, every drain that is announced is acknowledged.
type Operator struct {
	nstancev1.OperatorServiceClient
	conn *grpc.ClientConn

	mu     sync.Mutex
	events []*nstancev1.InstanceEvent
	errors []*nstancev1.ErrorEvent
	news   chan struct{} // closed and replaced when something is appended
}

// Connect registers an operator in the bucket and prepares a connection with its identity.
func (s *Stack) Connect(ctx context.Context) (*Operator, error) {
	return s.ConnectAs(ctx, "")
}

// ConnectAs does the same and leaves the identity in a directory, for nstance-admin's --identity-dir; "": nowhere.
func (s *Stack) ConnectAs(ctx context.Context, dir string) (*Operator, error) {
	cert, roots, err := s.identity(ctx, dir)
	if err != nil {
		return nil, err
	}
	creds := credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		RootCAs: roots, ServerName: loopback})
	conn, err := grpc.NewClient(s.address(Leader, s.Ports.Operator), grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5,
				MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}))
	if err != nil {
		return nil, err
	}
	return &Operator{OperatorServiceClient: nstancev1.NewOperatorServiceClient(conn), conn: conn,
		news: make(chan struct{})}, nil
}

// Close ends the connection.
func (o *Operator) Close() { _ = o.conn.Close() } // it says only that it was closed before

// Watch follows instance and error events until ctx ends, whoever leads.
func (o *Operator) Watch(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { again(ctx, o.watchInstances) })
	both.Go(func() { again(ctx, o.watchErrors) })
	both.Wait()
}

// again calls fn until ctx ends: streams end whenever a leader does.
func again(ctx context.Context, fn func(context.Context) error) {
	for ctx.Err() == nil {
		_ = fn(ctx) // a stream's end is no news; whoever waits for an event has a time-out
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (o *Operator) watchInstances(ctx context.Context) error {
	stream, err := o.WatchInstances(ctx, &nstancev1.WatchInstancesRequest{}, grpc.WaitForReady(true))
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
			// If it does not arrive, the deadline ends the drain.
			_, _ = o.AcknowledgeDrained(ctx, &nstancev1.AcknowledgeDrainedRequest{
				InstanceId: event.GetInstance().GetInstanceId()})
		}
	}
}

func (o *Operator) watchErrors(ctx context.Context) error {
	stream, err := o.WatchErrors(ctx, &nstancev1.WatchErrorsRequest{}, grpc.WaitForReady(true))
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

// Mark is a position in what was seen so far; pass it to Await to look at later events only.
func (o *Operator) Mark() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.events)
}

// Await returns the first event since the mark that matches.
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

// Events returns what was seen so far.
func (o *Operator) Events() ([]*nstancev1.InstanceEvent, []*nstancev1.ErrorEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.events), slices.Clone(o.errors)
}

// transient tells an error that goes away when a server leads again.
func transient(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted:
		return true
	}
	return false
}

// try calls fn until it succeeds, fails for good, or ctx ends.
func try[T any](ctx context.Context, fn func(context.Context) (T, error)) (T, error) {
	for {
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		value, err := fn(one)
		cancel()
		if err == nil || !transient(err) {
			return value, err
		}
		select {
		case <-ctx.Done():
			return value, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Scale sets a group's size and nothing else.
func (o *Operator) Scale(ctx context.Context, group string, size uint32) error {
	_, err := try(ctx, func(ctx context.Context) (*nstancev1.UpsertGroupResponse, error) {
		return o.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{Group: group, Size: &size, MustExist: true})
	})
	return err
}

// Refresh makes the leader read its configuration now. One that it refuses is an error.
func (o *Operator) Refresh(ctx context.Context) (nstancev1.RefreshResult, error) {
	answer, err := try(ctx, func(ctx context.Context) (*nstancev1.RefreshConfigResponse, error) {
		return o.RefreshConfig(ctx, &nstancev1.RefreshConfigRequest{})
	})
	if err == nil && answer.GetResult() == nstancev1.RefreshResult_REFRESH_RESULT_INVALID {
		err = fmt.Errorf("the server refused the configuration: %v", answer.GetProblems())
	}
	return answer.GetResult(), err
}

// Instances lists the tenant's instances.
func (o *Operator) Instances(ctx context.Context) ([]*nstancev1.InstanceStatus, error) {
	answer, err := try(ctx, func(ctx context.Context) (*nstancev1.ListInstancesResponse, error) {
		return o.ListInstances(ctx, &nstancev1.ListInstancesRequest{})
	})
	return answer.GetInstances(), err
}

// Groups lists the tenant's groups.
func (o *Operator) Groups(ctx context.Context) ([]*nstancev1.GroupStatus, error) {
	answer, err := try(ctx, func(ctx context.Context) (*nstancev1.ListGroupsResponse, error) {
		return o.ListGroups(ctx, &nstancev1.ListGroupsRequest{})
	})
	return answer.GetGroups(), err
}

// Healthy says whether an instance is in service: its agent reports that all is well.
func Healthy(i *nstancev1.InstanceStatus) bool {
	return i.GetState() == "registered" && i.GetHealth() == "healthy"
}

// AwaitHealthy waits until exactly so many instances exist and all of them are healthy, and returns them.
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
		well := 0
		last = ""
		for _, i := range live {
			if Healthy(i) {
				well++
			}
			last += fmt.Sprintf("\n  %s state=%s provider=%s health=%s %s", i.GetInstanceId(), i.GetState(),
				i.GetProviderState(), i.GetHealth(), i.GetHealthMessage())
		}
		if len(live) == count && well == count {
			return live, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: want %d healthy instances and no others: %w", context.Cause(ctx), count,
				lastSeen(last))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// pause waits for d or until ctx ends, whose cause it then returns.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func lastSeen(what string) error {
	if what == "" {
		return errors.New("none seen")
	}
	return errors.New("last seen:" + what)
}
