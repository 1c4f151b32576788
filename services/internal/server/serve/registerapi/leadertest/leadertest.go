// Package leadertest provides the leader of a shard for tests of handlers: a shardstate.State, an executor, and a
// clusterstate.State over an object store in memory.
package leadertest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// Incarnation is the incarnation of the server under test.
const Incarnation = "incarnation-1"

// Leader is a leader of a shard in term 3.
type Leader struct {
	*transporttest.Cluster
	Shard    string
	Store    *mem.Store
	Bucket   *clusterstate.State
	State    *shardstate.State
	Executor *execute.Executor
	// Context is cancelled when the leadership ends. Lose ends the leadership.
	Context context.Context
	Lose    context.CancelFunc

	mu     sync.Mutex
	fault  func(mem.Request) mem.Fault
	events []shardstate.InstanceEvent
	wake   chan struct{}
}

// Group is the group of all instances that a Leader makes.
var Group = config.GroupKey{Tenant: "prod", Group: "workers"}

// New returns a leader of shard "a" whose active configuration has the group.
func New(t testing.TB, group config.Group) *Leader {
	t.Helper()
	return lead(t, &Leader{Cluster: transporttest.New(t), Shard: "a"}, group)
}

// Lead returns the leader of another shard of the same cluster, or a later leader of the same shard.
func (l *Leader) Lead(t testing.TB, shard string, group config.Group) *Leader {
	t.Helper()
	return lead(t, &Leader{Cluster: l.Cluster, Store: l.Store, Shard: shard}, group)
}

func lead(t testing.TB, l *Leader, group config.Group) *Leader {
	t.Helper()
	l.wake = make(chan struct{}, 1)
	l.Context, l.Lose = context.WithCancel(context.Background())
	t.Cleanup(l.Lose)
	if l.Store == nil {
		l.Store = mem.New(mem.Options{Now: l.Clock.Now, Inject: func(_ context.Context, r mem.Request) mem.Fault {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.fault == nil {
				return mem.Fault{}
			}
			return l.fault(r)
		}})
	}
	l.Bucket = clusterstate.New(clusterstate.Options{Cluster: l.Store, Shard: l.Store, ClusterID: l.Name,
		ShardID: l.Shard, Now: l.Clock.Now, Secrets: secretstore.NewObjects(secretstore.Options{Bucket: mem.New()})})
	l.State = shardstate.New(shardstate.Options{Term: l.Term(), Now: l.Clock.Now,
		Wake: func() {}, Events: sink{l}})
	group.GroupKey = Group
	shard := (&config.Shard{}).WithDefaults()
	l.State.Configure(shard, map[config.GroupKey]config.Group{Group: group})
	env, wait := tasks.Real()
	t.Cleanup(wait)
	env.Now = l.Clock.Now
	l.Executor = &execute.Executor{State: l.State, Store: l.Bucket, Authority: l, Env: env, Log: l.Log,
		Owner: infra.Owner{Cluster: l.Name, Shard: l.Shard}, Incarnation: Incarnation}
	return l
}

// Configure activates another configuration of the group.
func (l *Leader) Configure(group config.Group) {
	group.GroupKey = Group
	l.State.Configure((&config.Shard{}).WithDefaults(), map[config.GroupKey]config.Group{Group: group})
}

// Fault sets the function that injects faults into requests to the store. A nil function injects none.
func (l *Leader) Fault(fault func(mem.Request) mem.Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = fault
}

// Term implements execute.Authority.
func (*Leader) Term() uint64 { return 3 }

// Remaining implements execute.Authority.
func (*Leader) Remaining() time.Duration { return time.Minute }

// Confirm implements execute.Authority.
func (*Leader) Confirm(context.Context) error { return nil }

// Refuse implements execute.Authority. It is called when there is a higher term, and ends the leadership.
func (l *Leader) Refuse(uint64) { l.Lose() }

// Current returns nil during the leadership. Afterwards it returns the error that names another server as the leader.
func (l *Leader) Current() error {
	if l.Context.Err() == nil {
		return nil
	}
	return notleader.Error("another server leads", &nstancev1.NotLeader{Shard: l.Shard, LeaderId: "two"})
}

type sink struct{ l *Leader }

func (s sink) Instance(event shardstate.InstanceEvent) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.l.events = append(s.l.events, event)
	select {
	case s.l.wake <- struct{}{}:
	default:
	}
}

func (sink) Group(config.GroupKey)       {}
func (sink) Error(shardstate.ErrorEvent) {}

// Events returns the number of events of a type for an instance.
func (l *Leader) Events(id ident.ID, typ shardstate.InstanceEventType) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, event := range l.events {
		if event.Instance == id && event.Type == typ {
			n++
		}
	}
	return n
}

// LastEvent returns the last event of an instance.
func (l *Leader) LastEvent(id ident.ID) (last shardstate.InstanceEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, event := range l.events {
		if event.Instance == id {
			last = event
		}
	}
	return last
}

// AwaitEvent waits up to 10 s until an instance has had n events of a type. Calls must not overlap.
func (l *Leader) AwaitEvent(t testing.TB, id ident.ID, typ shardstate.InstanceEventType, n int) {
	t.Helper()
	timeout := time.After(10 * time.Second)
	for l.Events(id, typ) < n {
		select {
		case <-l.wake:
		case <-timeout:
			t.Fatalf("%d events %q of %s, want %d", l.Events(id, typ), typ, id, n)
		}
	}
}

// reserved returns the record of a new instance.
func (l *Leader) reserved(t testing.TB) record.Instance {
	id := l.NewID(t, "knd")
	return record.Instance{Schema: record.InstanceSchema, ID: id, State: record.Reserved, Revision: 1, Term: l.Term(),
		ReservedTerm: l.Term(), Writer: Incarnation,
		Cluster: l.Name, Shard: l.Shard, Tenant: Group.Tenant, Kind: "knd", CreatedAt: l.Clock.Now()}
}

// Put writes a record to the bucket and adds it to State, as the leader would.
func (l *Leader) Put(t testing.TB, rec record.Instance, token objstore.Token) {
	t.Helper()
	token, err := l.Bucket.PutInstance(context.Background(), rec, token)
	if err != nil {
		t.Fatal(err)
	}
	l.State.PutRecord(rec, token)
}

// Reserved makes an instance whose creation is in progress: its record is reserved, and the provider has not answered.
// If leftover is set, State does not know the instance.
func (l *Leader) Reserved(t testing.TB, leftover bool) ident.ID {
	t.Helper()
	rec := l.reserved(t)
	token, err := l.Bucket.PutInstance(context.Background(), rec, "")
	if err != nil {
		t.Fatal(err)
	}
	if !leftover {
		rec.Group, rec.Template, rec.InstanceType, rec.InfraHash = Group.Group, "worker", "small", "i1"
		l.State.Use(rec, token, ident.ID{})
	}
	return rec.ID
}

// Answer makes the provider report that an instance's VM is running.
func (l *Leader) Answer(id ident.ID) {
	l.State.Answered(id, infra.VM{ProviderID: "vm-" + id.String(), State: infra.Running, IPv4: "10.1.2.3",
		LaunchedAt: l.Clock.Now()}, l.Clock.Now())
}

// Created makes an instance that has a VM, but whose agent has not registered.
func (l *Leader) Created(t testing.TB) ident.ID {
	t.Helper()
	return l.CreatedAs(t, l.NewID(t, "knd"))
}

// CreatedAs is Created for an instance with a given ID.
func (l *Leader) CreatedAs(t testing.TB, id ident.ID) ident.ID {
	t.Helper()
	rec := l.reserved(t)
	rec.ID = id
	rec.State, rec.Group, rec.Template, rec.InstanceType, rec.InfraHash = record.Created, Group.Group, "worker",
		"small", "i1"
	rec.ProviderID, rec.LaunchedAt = "vm-"+rec.ID.String(), l.Clock.Now()
	l.Put(t, rec, "")
	l.Answer(rec.ID)
	return rec.ID
}

// Change changes an instance's record and returns the new record.
func (l *Leader) Change(t testing.TB, id ident.ID, change func(*record.Instance)) record.Instance {
	t.Helper()
	rec, err := l.Executor.Update(context.Background(), id, change)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// Delete marks an instance for deletion. If dead is set, it then makes the record a tombstone.
func (l *Leader) Delete(t testing.TB, id ident.ID, dead bool) {
	t.Helper()
	l.Change(t, id, func(r *record.Instance) {
		r.State, r.DeleteReason, r.DeletingAt, r.DeleteDeadline = record.Deleting, "test", l.Clock.Now(), l.Clock.Now()
	})
	if dead {
		l.Change(t, id, func(r *record.Instance) { r.State, r.DeletedAt = record.Deleted, l.Clock.Now() })
	}
}

// Stored returns an instance's record from the bucket.
func (l *Leader) Stored(t testing.TB, id ident.ID) record.Instance {
	t.Helper()
	rec, _, err := l.Bucket.GetInstance(context.Background(), Group.Tenant, id)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		t.Fatal(err)
	}
	return rec
}

// Agent returns the identity of an instance's agent.
func (l *Leader) Agent(id ident.ID) authority.Identity {
	return authority.Identity{Role: authority.RoleAgent, Cluster: l.Name, Tenant: Group.Tenant, ID: id}
}
