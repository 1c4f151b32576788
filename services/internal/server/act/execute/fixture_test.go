package execute_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

var (
	owner   = infra.Owner{Cluster: "c", Shard: "s"}
	workers = config.GroupKey{Tenant: "default", Group: "workers"}
	pool    = shardstate.Pool{Tenant: "default", Kind: "wrk"}
	errTest = errors.New("test")
)

const term = 7

// bench is an Executor of term 7 with a bucket and a provider in memory. It runs in a synctest bubble.
type bench struct {
	*execute.Executor
	t        *testing.T
	store    *mem.Store
	state    *clusterstate.State
	provider *mock.Provider
	wait     func()

	mu         sync.Mutex
	storeFault func(mem.Request) mem.Fault
	script     func(mock.Call) mock.Outcome
	delays     map[string]time.Duration // of load balancers
	calls      []mock.Call
	events     []shardstate.InstanceEvent
	errors     []shardstate.ErrorEvent
	remaining  time.Duration
	confirm    error
	confirmed  int
	// requests is the number of requests to the bucket and the provider. provedAfter is their number at the time of the
	// last call of Confirm.
	requests, provedAfter  int
	refused                uint64
	render                 error
	pushed, drained, roles []ident.ID
	forgotten              []config.GroupKey
	rollouts               []string // calls of Halt, EndHalt and KeepGood
	forgetting             error
}

func (b *bench) Term() uint64 { return term }
func (b *bench) Remaining() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.remaining
}
func (b *bench) Confirm(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.confirmed++
	b.provedAfter = b.requests
	return b.confirm
}
func (b *bench) Refuse(term uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused = term
}
func (b *bench) Render(_ context.Context, group config.Group, rec record.Instance) (filegen.Machine, error) {
	return filegen.Machine{Args: map[string]any{"a": "b"}, Userdata: []byte("nonce of " + rec.ID.String()),
		Hostname: "host", Image: "image"}, b.render
}
func (b *bench) Push(_ context.Context, id ident.ID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pushed = append(b.pushed, id)
	return nil
}
func (b *bench) Role(id ident.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.roles = append(b.roles, id)
}

func (b *bench) Drain(id ident.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drained = append(b.drained, id)
}
func (b *bench) Images() map[string]string { return map[string]string{"debian": "image"} }
func (b *bench) Halt(_ context.Context, _ config.GroupKey, version record.GroupVersion, reason string,
	_ time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rollouts = append(b.rollouts, fmt.Sprintf("halt %s: %s", version.InfraHash, reason))
	return b.forgetting
}
func (b *bench) EndHalt(context.Context, config.GroupKey) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rollouts = append(b.rollouts, "end")
	return b.forgetting
}
func (b *bench) KeepGood(_ context.Context, _ config.GroupKey, version record.GroupVersion,
	images map[string]string, _ time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rollouts = append(b.rollouts, fmt.Sprintf("keep %s with %s", version.InfraHash, images["debian"]))
	return b.forgetting
}
func (b *bench) Forget(_ context.Context, key config.GroupKey) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forgotten = append(b.forgotten, key)
	return b.forgetting
}
func (b *bench) Instance(e shardstate.InstanceEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, e)
}
func (b *bench) Group(config.GroupKey) {}
func (b *bench) Error(e shardstate.ErrorEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.errors = append(b.errors, e)
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, remaining: time.Hour}
	env, wait := tasks.Real()
	b.wait = wait
	b.store = mem.New(mem.Options{Sleep: env.Sleep, Inject: func(_ context.Context, r mem.Request) mem.Fault {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.requests++
		if b.storeFault != nil {
			return b.storeFault(r)
		}
		return mem.Fault{}
	}})
	b.state = clusterstate.New(clusterstate.Options{Cluster: b.store, Shard: b.store, ClusterID: owner.Cluster,
		ShardID: owner.Shard, Now: env.Now,
		Rand: env.Rand, Sleep: env.Sleep, ForEach: env.ForEach})
	b.provider = mock.New(mock.Config{Now: time.Now, Sleep: env.Sleep, Shutdown: time.Second,
		Delay: func(lb string) (time.Duration, error) { return b.delays[lb], nil },
		Script: func(_ context.Context, call mock.Call) mock.Outcome {
			b.mu.Lock()
			b.calls = append(b.calls, call)
			b.requests++
			script := b.script
			b.mu.Unlock()
			if script != nil {
				return script(call)
			}
			return mock.Outcome{}
		}})
	state := shardstate.New(shardstate.Options{Term: term, Now: time.Now,
		Wake: func() {}, Events: b})
	b.Executor = &execute.Executor{State: state, Store: b.state, Provider: b.provider, Authority: b, Renderer: b,
		Files: b, Groups: b, Env: env,
		Log: slog.New(slog.DiscardHandler), Owner: owner, Incarnation: "me"}
	b.configure(func(*config.Group) {})
	return b
}

func (b *bench) configure(change func(g *config.Group)) {
	g := config.Group{GroupKey: workers, Static: true, Kind: "wrk", Template: "t", Arch: "amd64", Size: 3, MaxSurge: 1,
		InstanceType:  "small",
		InstanceTypes: []string{"large"}, Subnets: []string{"a", "b"}, InfraHash: "i1",
		DrainTimeout: config.Duration(time.Minute)}
	change(&g)
	b.State.Configure((&config.Shard{}).WithDefaults(), map[config.GroupKey]config.Group{workers: g})
}

func (b *bench) reserve() ident.ID {
	b.t.Helper()
	id := b.newID()
	rec := record.Instance{Schema: record.InstanceSchema, ID: id, State: record.Reserved, Revision: 1, Term: term,
		ReservedTerm: term, Writer: "me",
		Cluster: owner.Cluster, Shard: owner.Shard, Tenant: pool.Tenant, Kind: pool.Kind, CreatedAt: time.Now().UTC()}
	b.State.AddReservation(shardstate.Reservation{Record: rec, Token: b.write(rec, "")})
	return id
}

func (b *bench) newID() ident.ID {
	id, err := ident.NewID("wrk", time.Now(), b.Env.Rand)
	if err != nil {
		b.t.Fatal(err)
	}
	return id
}

// write puts a record into the bucket without the executor's knowledge.
func (b *bench) write(rec record.Instance, token objstore.Token) objstore.Token {
	b.t.Helper()
	token, err := b.state.PutInstance(b.t.Context(), rec, token)
	if err != nil {
		b.t.Fatal(err)
	}
	return token
}

// serving adds a registered instance with a running VM.
func (b *bench) serving() ident.ID {
	b.t.Helper()
	id := b.newID()
	now := time.Now().UTC()
	rec := record.Instance{Schema: record.InstanceSchema, ID: id, State: record.Registered, Revision: 3, Term: term,
		ReservedTerm: term, Writer: "me",
		Cluster: owner.Cluster, Shard: owner.Shard, Tenant: workers.Tenant, Group: workers.Group, Template: "t",
		Kind: "wrk", CreatedAt: now,
		ProviderID: "vm-" + id.String(), RegisteredAt: now, PublicKey: make([]byte, 32), NonceID: "n",
		Certificate: &record.CertificateRef{Serial: "00000000000000000000000000000001", NotAfter: now}}
	b.State.PutRecord(rec, b.write(rec, ""))
	b.plant(id, infra.Running)
	return id
}

// balanced adds a healthy instance with a running VM, which is registered with the load balancers of its group.
func (b *bench) balanced() ident.ID {
	b.t.Helper()
	id := b.serving()
	stream, _ := b.State.Connected(id)
	b.State.Reported(id, stream, shardstate.Report{Healthy: true})
	b.do(plan.Action{Kind: plan.Register, Instance: id})
	return id
}

func (b *bench) plant(id ident.ID, state infra.State) infra.VM {
	b.t.Helper()
	vm := infra.VM{ProviderID: "vm-" + id.String(), State: state, Hostname: "host", IPv4: "10.0.0.1",
		Tags: infra.Tags{Owner: owner, Tenant: workers.Tenant, Group: workers.Group, Template: "t", Kind: "wrk",
			Instance: id, InfraHash: "i1"}}
	if err := b.provider.Plant(vm); err != nil {
		b.t.Fatal(err)
	}
	return vm
}

// leave marks an instance for deletion, durably.
func (b *bench) leave(id ident.ID) {
	b.t.Helper()
	b.do(plan.Action{Kind: plan.Mark, Instance: id, Reason: "test", Cause: "scale_down",
		Deadline: time.Now().Add(time.Minute)})
	b.wantState(id, record.Deleting)
	b.events, b.calls, b.confirmed = nil, nil, 0
}

func (b *bench) do(action plan.Action) {
	b.t.Helper()
	b.doUntil(b.t.Context(), action)
}

// doUntil performs an action, which ends at the latest when ctx ends.
func (b *bench) doUntil(ctx context.Context, action plan.Action) {
	b.t.Helper()
	if action.Kind == plan.Create {
		b.State.ExpectCreates(workers, shardstate.PendingOf(action))
	} else if !b.State.Plan(action, execute.Work(action.Kind)) {
		b.t.Fatalf("%s cannot be begun for %s", action.Kind, action.Instance)
	}
	b.Do(ctx, workers, action)
}

func (b *bench) read(id ident.ID) record.Instance {
	b.t.Helper()
	rec, _, err := b.state.GetInstance(b.t.Context(), workers.Tenant, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return rec
}

func (b *bench) wantState(id ident.ID, want record.State) {
	b.t.Helper()
	if got := b.read(id); got.State != want {
		b.t.Errorf("the record of %s says %s, want %s", id, got.State, want)
	}
}

// made returns the recorded provider calls of the given kind.
func (b *bench) made(kind mock.Kind) (calls []mock.Call) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, call := range b.calls {
		if call.Kind == kind {
			calls = append(calls, call)
		}
	}
	return calls
}

func (b *bench) records() map[ident.ID]record.Instance {
	b.t.Helper()
	out := map[ident.ID]record.Instance{}
	if err := b.state.LoadInstances(b.t.Context(), func(rec record.Instance, _ objstore.Token) {
		out[rec.ID] = rec
	}); err != nil {
		b.t.Fatal(err)
	}
	return out
}

func (b *bench) backoff() plan.Backoff {
	view, _ := b.State.GroupView(workers)
	return view.Backoff
}

// pending returns the number of the group's creates that have no ID yet.
func (b *bench) pending() int {
	s, _ := b.State.Snapshot(workers, nil)
	return s.PendingCreates
}

func (b *bench) view(id ident.ID) shardstate.InstanceView {
	b.t.Helper()
	view, ok := b.State.Instance(id)
	if !ok {
		b.t.Fatalf("%s is not known", id)
	}
	return view
}

// wantEvents checks the instance events since the previous check.
func (b *bench) wantEvents(want ...shardstate.InstanceEventType) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var got []shardstate.InstanceEventType
	for _, e := range b.events {
		got = append(got, e.Type)
	}
	b.events = nil
	if len(got) != len(want) {
		b.t.Errorf("told %v, want %v", got, want)
		return
	}
	for n := range got {
		if got[n] != want[n] {
			b.t.Errorf("told %v, want %v", got, want)
		}
	}
}

// standing returns the kinds of the errors that are not resolved.
func (b *bench) standing() (kinds []string) {
	for _, e := range b.State.Standing(workers.Tenant) {
		kinds = append(kinds, string(e.Kind))
	}
	return kinds
}
