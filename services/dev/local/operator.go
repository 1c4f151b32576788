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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// Operator is a client of the operator API for the default tenant. It calls the server that leads. While
// [Operator.Watch] runs, the client acknowledges every drain. Its methods may be called concurrently.
type Operator struct {
	nstancev1.OperatorServiceClient
	client *operatorclient.Client

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
	state, err := s.State(ctx)
	if err != nil {
		return nil, err
	}
	identity, err := Identity(ctx, state, dir)
	if err != nil {
		return nil, err
	}
	return s.connect(identity), nil
}

// ConnectWith prepares connections with an identity that nstance-admin wrote to a directory.
func (s *Stack) ConnectWith(dir string) (*Operator, error) {
	identity, err := operatorclient.LoadIdentity(dir)
	if err != nil {
		return nil, err
	}
	return s.connect(identity), nil
}

func (s *Stack) connect(identity operatorclient.Identity) *Operator {
	client := operatorclient.New(operatorclient.Options{Addresses: s.operatorAddrs(),
		TLS: func() (*tls.Config, error) { return identity.Config(Shard, time.Now) }})
	return &Operator{OperatorServiceClient: client.API(), client: client, news: make(chan struct{})}
}

// Close closes the connections.
func (o *Operator) Close() { o.client.Close() }

// Watch collects instance and error events until ctx ends. When the leader changes, Watch connects to the new leader.
func (o *Operator) Watch(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { o.repeat(ctx, o.watchInstances) })
	both.Go(func() { o.repeat(ctx, o.watchErrors) })
	both.Wait()
}

// repeat calls the leader again each time fn returns, until ctx ends. fn reads a stream from the leader. When the
// leader's term ends, the stream ends too.
func (o *Operator) repeat(ctx context.Context, fn func(context.Context, nstancev1.OperatorServiceClient) error) {
	for ctx.Err() == nil {
		_ = o.client.Call(ctx, func(ctx context.Context, to *grpc.ClientConn) error {
			return fn(ctx, nstancev1.NewOperatorServiceClient(to))
		}) // the next call opens the stream again
		_ = Pause(ctx, 50*time.Millisecond) // the loop checks ctx
	}
}

func (o *Operator) watchInstances(ctx context.Context, client nstancev1.OperatorServiceClient) error {
	stream, err := client.WatchInstances(ctx, &nstancev1.WatchInstancesRequest{})
	return operatorclient.Receive(stream, err, func(answer *nstancev1.WatchInstancesResponse) {
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
	})
}

func (o *Operator) watchErrors(ctx context.Context, client nstancev1.OperatorServiceClient) error {
	stream, err := client.WatchErrors(ctx, &nstancev1.WatchErrorsRequest{})
	return operatorclient.Receive(stream, err, func(answer *nstancev1.WatchErrorsResponse) {
		o.mu.Lock()
		o.errors = append(o.errors, answer.GetEvent())
		o.mu.Unlock()
	})
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

// ResetSize gives a group its configured size again, or lets the leader choose it.
func (o *Operator) ResetSize(ctx context.Context, group string) error {
	_, err := retry(ctx, func(ctx context.Context) (*nstancev1.UpsertGroupResponse, error) {
		return o.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{Group: group, Patch: `{"size": null}`, MustExist: true})
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

// AwaitGroups waits until there are groups, and every group has as many instances as it should have, all healthy.
func (o *Operator) AwaitGroups(ctx context.Context) error {
	for {
		groups, err := o.Groups(ctx)
		if err != nil {
			return err
		}
		if len(groups) > 0 && !slices.ContainsFunc(groups, func(g *nstancev1.GroupStatus) bool {
			return g.GetActualSize() != g.GetSize() || g.GetHealthy() < g.GetSize()
		}) {
			return nil
		}
		if err := Pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
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
