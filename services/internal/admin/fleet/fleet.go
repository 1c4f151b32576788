// Package fleet calls the operator API of any number of shards with an operator's identity. It finds each shard's
// leader and converts answers and errors to a form for people and programs.
//
// Invariant: the client exchanges data only with a server of its own cluster and of the intended shard. The failure of
// one shard never withholds the answer of another.
package fleet

import (
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/api/tunnel"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

// Options configure [New]. All but Via are required.
type Options struct {
	// Servers holds the operator addresses of each shard. They are tried in turn.
	Servers []endpoints.Shard
	// Via holds the way to the servers of a shard, if this machine cannot reach them directly.
	Via map[string]tunnel.Way
	// IdentityDir is read for every new connection, so that a renewed certificate is used without a restart.
	IdentityDir string
	// Timeout limits one call to one shard, including the time to connect.
	Timeout time.Duration
	Now     func() time.Time
	// Rand is the source of randomness for instance IDs.
	Rand io.Reader
	// LastKnown answers calls that only read if no leader answers. It may be nil.
	LastKnown LastKnown
}

// LastKnown answers calls from what is known without a leader.
type LastKnown interface {
	// Answer answers a request for a tenant, and returns the time until which the answer was true as far as is known.
	// It returns nothing for a request that it cannot answer, such as one that changes something.
	Answer(ctx context.Context, shard, tenant string, request proto.Message) (proto.Message, time.Time, error)
}

// Fleet calls servers. It is safe for concurrent use. The caller must call Close.
type Fleet struct {
	options Options
	clients map[string]*operatorclient.Client // by shard
}

// New returns a Fleet without connections.
func New(options Options) *Fleet {
	f := &Fleet{options: options, clients: map[string]*operatorclient.Client{}}
	for _, shard := range options.Servers {
		f.clients[shard.Name] = operatorclient.New(operatorclient.Options{Addresses: shard.Addrs,
			Via: options.Via[shard.Name],
			TLS: func() (*tls.Config, error) {
				identity, err := f.Identity()
				if err != nil {
					return nil, err
				}
				return identity.Config(shard.Name, options.Now)
			}})
	}
	return f
}

// Live returns the fleet without what is last known, for callers that need the leaders' answers.
func (f *Fleet) Live() *Fleet {
	live := *f
	live.options.LastKnown = nil
	return &live
}

// Shards returns the names of the shards with a known address.
func (f *Fleet) Shards() []string {
	var names []string
	for _, shard := range f.options.Servers {
		names = append(names, shard.Name)
	}
	return names
}

// Identity reads the identity with which the fleet calls servers.
func (f *Fleet) Identity() (operatorclient.Identity, error) {
	return operatorclient.LoadIdentity(f.options.IdentityDir)
}

// Close closes all connections.
func (f *Fleet) Close() {
	for _, client := range f.clients {
		client.Close()
	}
}

// Client is the operator API of one shard.
type Client = nstancev1.OperatorServiceClient

// Method is a call of the operator API, such as Client.ListGroups.
type Method[Q, M proto.Message] = func(Client, context.Context, Q, ...grpc.CallOption) (M, error)

// reach runs `do` against a shard's leader, as [operatorclient.Client.Call] does. Errors are *[Error].
func (f *Fleet) reach(ctx context.Context, shard string, do func(context.Context, Client) error) error {
	client := f.clients[shard]
	if client == nil {
		return refuse(shard, codes.NotFound, "add it to --servers or NSTANCE_ADMIN_SERVERS as "+shard+"=host:port",
			"there is no address of this shard")
	}
	err := client.Call(ctx, func(ctx context.Context, to *grpc.ClientConn) error {
		return do(ctx, nstancev1.NewOperatorServiceClient(to))
	})
	if err == nil {
		return nil
	}
	e := explainError(shard, err, f.options.Now())
	if via := f.options.Via[shard]; !via.IsZero() && e.Code == codes.Unavailable {
		e.via(via)
	}
	if role := neededRole(e); role != "" {
		e.Hint = f.registration(role)
	}
	return e
}

// Event is an event in a shard: one of Group, Instance and Error is set. If Snapshot is set, the event describes state
// from before the watch began. Times are from the server's clock.
type Event struct {
	Shard    string                            `json:"shard"`
	Snapshot bool                              `json:"snapshot"`
	Group    Message[*nstancev1.GroupEvent]    `json:"group_event,omitzero"`
	Instance Message[*nstancev1.InstanceEvent] `json:"instance_event,omitzero"`
	Error    Message[*nstancev1.ErrorEvent]    `json:"error_event,omitzero"`
}

// Subject returns the group and the instance that the event is about. Each may be empty.
func (e Event) Subject() (group, instance string) {
	return cmp.Or(e.Group.Of.GetGroup(), e.Group.Of.GetStatus().GetGroup(), e.Instance.Of.GetInstance().GetGroup(),
		e.Error.Of.GetGroup()), cmp.Or(e.Instance.Of.GetInstance().GetInstanceId(), e.Error.Of.GetInstanceId())
}

// Watcher receives the events of shards. Its functions are never called concurrently. They may block, and the events of
// all shards then wait.
type Watcher struct {
	// Event is called for every event. Each stream begins with the current state, also after a reconnection. The events
	// of the current state have Snapshot set, except in the stream of errors.
	Event func(Event)
	// Lost is called when a shard's event streams fail. The fleet opens them again after the duration `retry`. If retry
	// is zero, the fleet gives up. Found is called when events arrive again.
	Lost  func(err *Error, retry time.Duration)
	Found func(shard string)
}

// FollowShards watches shards until ctx ends. It reconnects after every lost connection. It gives up on a shard after a
// permanent error. FollowShards returns the permanent errors when ctx ends or when it has given up on all shards.
func (f *Fleet) FollowShards(ctx context.Context, shards []string, watcher Watcher) []*Error {
	return f.follow(ctx, shards, watcher, func(ctx context.Context, c Client, shard string, emit func(func())) error {
		return watch(ctx, c, shard, func(e Event) { emit(func() { watcher.Event(e) }) })
	})
}

// FollowJournals is like FollowShards for the events of the shards' journals: first the stored events after the
// position of a shard in `after`, then new ones. It passes each event once, and calls watcher.Event never.
func (f *Fleet) FollowJournals(ctx context.Context, shards []string, filter *nstancev1.EventFilter,
	after map[string]string, watcher Watcher, each func(Entry)) []*Error {
	positions := make(map[string]*string, len(shards))
	for _, shard := range shards {
		position := after[shard]
		positions[shard] = &position
	}
	return f.follow(ctx, shards, watcher, func(ctx context.Context, c Client, shard string, emit func(func())) error {
		stream, err := c.FollowEvents(ctx, &nstancev1.FollowEventsRequest{After: *positions[shard], Filter: filter})
		return operatorclient.Receive(stream, err, func(r *nstancev1.FollowEventsResponse) {
			*positions[shard] = r.GetEvent().GetPosition()
			emit(func() { each(Entry{shard, r.GetEvent()}) })
		})
	})
}

// Entry is an event of a shard's journal.
type Entry struct {
	Shard string
	*nstancev1.JournalEvent
}

// MarshalJSON returns the event as JSON, with the shard beside its other members.
func (e Entry) MarshalJSON() ([]byte, error) {
	return object(struct {
		Shard string `json:"shard"`
	}{e.Shard}, e.JournalEvent)
}

// follow keeps a stream of each shard open until ctx ends, as FollowShards does. `open` reads a stream until it fails.
// It passes a function to `emit` for everything that it receives.
func (f *Fleet) follow(ctx context.Context, shards []string, watcher Watcher,
	open func(ctx context.Context, c Client, shard string, emit func(func())) error) []*Error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	errs := make([]*Error, len(shards))
	for i, shard := range shards {
		wg.Go(func() { errs[i] = f.followShard(ctx, shard, &mu, watcher, open) })
	}
	wg.Wait()
	var failed []*Error
	for _, err := range errs {
		if err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}

func (f *Fleet) followShard(ctx context.Context, shard string, mu *sync.Mutex, watcher Watcher,
	open func(ctx context.Context, c Client, shard string, emit func(func())) error) *Error {
	delays := &backoff.ExponentialBackOff{InitialInterval: 300 * time.Millisecond, RandomizationFactor: 0.3,
		Multiplier: 2, MaxInterval: 10 * time.Second}
	delays.Reset()
	lost := false
	for !ended(ctx) {
		e := asError(shard, f.reach(ctx, shard, func(ctx context.Context, c Client) error {
			return open(ctx, c, shard, func(received func()) {
				mu.Lock()
				defer mu.Unlock()
				if lost {
					lost = false
					watcher.Found(shard)
				}
				delays.Reset()
				received()
			})
		})) // a watch only ends with an error
		if ended(ctx) {
			break
		}
		switch e.Code {
		case codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented, codes.InvalidArgument, codes.NotFound:
			mu.Lock()
			watcher.Lost(e, 0)
			mu.Unlock()
			return e
		}
		delay := delays.NextBackOff()
		mu.Lock()
		if !lost {
			lost = true
			watcher.Lost(e, delay)
		}
		mu.Unlock()
		_ = tasks.Sleep(ctx, delay)
	}
	return nil
}

func ended(ctx context.Context) bool { return ctx.Err() != nil }

// watch reads the three watch streams of one server until one of them ends. It always returns an error.
func watch(ctx context.Context, c Client, shard string, emit func(Event)) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		stream, err := c.WatchGroups(ctx, &nstancev1.WatchGroupsRequest{})
		snapshot := true
		return operatorclient.Receive(stream, err, func(r *nstancev1.WatchGroupsResponse) {
			emit(Event{Shard: shard, Snapshot: snapshot, Group: MessageOf(r.GetEvent())})
			snapshot = snapshot && r.GetEvent().GetType() != nstancev1.GroupEvent_TYPE_SNAPSHOT_END
		})
	})
	group.Go(func() error {
		stream, err := c.WatchInstances(ctx, &nstancev1.WatchInstancesRequest{Observe: true})
		snapshot := true
		return operatorclient.Receive(stream, err, func(r *nstancev1.WatchInstancesResponse) {
			emit(Event{Shard: shard, Snapshot: snapshot, Instance: MessageOf(r.GetEvent())})
			snapshot = snapshot && r.GetEvent().GetType() != nstancev1.InstanceEvent_TYPE_SNAPSHOT_END
		})
	})
	group.Go(func() error {
		stream, err := c.WatchErrors(ctx, &nstancev1.WatchErrorsRequest{})
		return operatorclient.Receive(stream, err, func(r *nstancev1.WatchErrorsResponse) {
			emit(Event{Shard: shard, Error: MessageOf(r.GetEvent())})
		})
	})
	return group.Wait()
}
