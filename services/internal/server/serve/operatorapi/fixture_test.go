package operatorapi_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/act/leader"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/journal"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/internal/server/serve/operatorapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// patience is how long a test waits for a step that should happen immediately.
const patience = 20 * time.Second

// document returns the shard's configuration. more holds additional top-level members.
func document(more string) string {
	return fmt.Sprintf(`{
  "cluster": {"id": "example", "secrets": {"encryption_key": {"provider": "env"}}},
  "server": {"shard": "a", "provider": {"kind": "mock", "region": "r", "zone": "z"}, "subnet_pools": {"p": ["s"]},
	"default_drain_timeout": "5m"},
  %s
  "tenants": {"prod": {}, "rival": {}},
  "templates": {"worker": {"kind": "knd", "arch": "arm64", "subnet_pool": "p", "instance_type": "small",
                           "vars": {"role": "worker"}, "args": {"Label": "{{ .Vars.role }}", "Deep": {"A": 1}},
                           "dynamic": {"args": ["/Deep/B", "/Own", "/a"], "instance_types": ["large", "huge"],
	"vars": ["role", "a", "n", "x"]}},
                "quick": {"kind": "knq", "arch": "arm64", "subnet_pool": "p", "instance_type": "small",
	"tenants": ["prod", "rival"]}},
  "groups": {"prod": {"static": {"template": "worker", "size": 0}}, "rival": {"theirs": {"template": "worker",
	"size": 0}}}
}`, more)
}

// testShard is a leader of shard "a" in term 3, and an operator of the tenant prod. The leader has a bucket and a
// provider, but no agents.
type testShard struct {
	*transporttest.Cluster
	nstancev1.OperatorServiceClient
	store    *mem.Store
	state    *clusterstate.State
	provider *mock.Provider
	manager  *shardconfig.Manager
	leader   *leader.Leader
	service  *operatorapi.Service
	api      *operatorapi.Leader
	ctx      context.Context
	lose     context.CancelFunc

	listener *bufconn.Listener
	id       ident.ID
	key      ed25519.PrivateKey
	cert     *tls.Certificate

	steppedDown atomic.Bool

	cut chan struct{} // closed when the leadership has ended and this server knows it

	mu     sync.Mutex
	fault  func(mem.Request) mem.Fault
	script func(context.Context, mock.Call) mock.Outcome
}

// applier passes configurations to the State of a leader, and has no other effect.
type applier struct{ *shardstate.State }

func (a applier) ApplyConfig(shard *config.Shard, groups map[config.GroupKey]config.Group) {
	a.Configure(shard, groups)
}

func (a applier) ApplyGroups(groups map[config.GroupKey]config.Group, changed []config.GroupKey) {
	a.ConfigureGroups(groups, changed)
}

func (a applier) OverridesEnded(config.GroupKey, []string) {}

// renderer returns a minimal machine without a template. Other tests cover the templates.
type renderer struct{}

func (renderer) Images() map[string]string { return nil }

func (renderer) Render(_ context.Context, group config.Group, rec record.Instance) (filegen.Machine, error) {
	return filegen.Machine{Args: group.Args, Userdata: []byte(fmt.Sprint(rec.Vars)), Hostname: rec.ID.String()}, nil
}

type noFiles struct{}

func (noFiles) Push(context.Context, ident.ID) error { return nil }
func (noFiles) Drain(ident.ID)                       {}
func (noFiles) Role(ident.ID)                        {}

func newTestShard(t testing.TB) *testShard {
	t.Helper()
	return newTestShardOf(t, document(""))
}

// newTestShardOf starts the leader with a configuration.
func newTestShardOf(t testing.TB, text string) *testShard {
	t.Helper()
	return newLoggedTestShard(t, text, slog.New(slog.DiscardHandler))
}

func newLoggedTestShard(t testing.TB, text string, log *slog.Logger) *testShard {
	t.Helper()
	w := &testShard{Cluster: transporttest.New(t), cut: make(chan struct{})}
	w.Log = log
	w.store = mem.New(mem.Options{Now: w.Clock.Now, Inject: func(_ context.Context, r mem.Request) mem.Fault {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.fault == nil {
			return mem.Fault{}
		}
		return w.fault(r)
	}})
	encryptionKey, err := envelope.NewKey(make([]byte, envelope.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	w.state = clusterstate.New(clusterstate.Options{Cluster: w.store, Shard: w.store, ClusterID: w.Name, ShardID: "a",
		Now: w.Clock.Now,
		// The secrets have a separate store, in which no faults are injected.
		Secrets: secretstore.NewObjects(secretstore.Options{Bucket: mem.New(), Cluster: w.Name,
			Ring: keyring.Ring{Current: encryptionKey}, Rand: rand.Reader})})
	if _, err := w.state.StoreCA(t.Context(), w.CA); err != nil {
		t.Fatal(err)
	}
	w.provider = mock.New(mock.Config{Now: w.Clock.Now,
		Types: map[string]infra.InstanceType{"small": {CPUs: 2, MemoryMiB: 4096}},
		Script: func(ctx context.Context, call mock.Call) mock.Outcome {
			w.mu.Lock()
			script := w.script
			w.mu.Unlock()
			if script == nil {
				return mock.Outcome{}
			}
			return script(ctx, call)
		}})
	w.configure(t, text)

	ctx, authority, lose := lease.Unlimited(context.Background(), 3)
	w.ctx, w.lose = ctx, lose
	env, wait := tasks.Real()
	env.Now = w.Clock.Now
	w.manager = shardconfig.New(w.state, "a", w.Log)
	events, wake := operatorapi.NewEvents(), make(chan struct{}, 1)
	w.leader = leader.NewLeader(&execute.Executor{Owner: infra.Owner{Cluster: w.Name, Shard: "a"},
		Incarnation: "incarnation-1", Authority: authority, Provider: w.provider, Renderer: renderer{},
		Files: noFiles{}, Groups: w.manager, Env: env, Log: w.Log}, w.state, events, func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	if err := w.manager.Lead(ctx, 3, applier{w.leader.State}); err != nil {
		t.Fatal(err)
	}
	if err := w.leader.TakeOver(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- w.leader.Loop.Run(ctx, wake) }()
	t.Cleanup(func() {
		lose()
		if err := <-done; err != nil {
			t.Error(err)
		}
		wait()
	})

	w.api = &operatorapi.Leader{Context: ctx, Cluster: w.Name, Shard: "a", ID: "one", Incarnation: "incarnation-1",
		Leader: w.leader, Config: w.manager,
		Refresh:        w.manager.Refresh,
		ConfigModified: func(ctx context.Context) (time.Time, error) { return w.state.ConfigModified(ctx, "a") },
		Events:         events, Journal: newJournal(t, ctx, w), Store: w.state, Issuer: w.Issuer(), Now: w.Clock.Now,
		Log: w.Log,
		Status: func() operatorapi.Leading {
			return operatorapi.Leading{Version: "v1", LeaseLeft: new(80 * time.Second), Heir: "two",
				Standbys: []string{"three", "two"}}
		},
		StepDown: func() { w.steppedDown.Store(true) }}
	w.service = operatorapi.New(func() (*operatorapi.Leader, error) {
		select {
		case <-w.cut:
			return nil, notLeader()
		default:
			return w.api, nil
		}
	})
	w.listener = w.serve(t, operatorRole)
	w.id, w.key = w.NewID(t, "opr"), transporttest.NewKey(t)
	w.cert = w.operator(t, "prod", w.id, w.key)
	w.OperatorServiceClient = w.dial(t, w.cert)
	return w
}

// newJournal runs a journal until ctx ends.
func newJournal(t testing.TB, ctx context.Context, w *testShard) *journal.Journal {
	t.Helper()
	c, err := localdb.Open(t.Context(), localdb.Path(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	j := journal.New(journal.Options{Shard: "a", Term: 3, Store: w.store, DB: c,
		Retention: func() time.Duration { return time.Hour }, Now: w.Clock.Now, Log: w.Log})
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	t.Cleanup(func() {
		w.lose()
		if err := errors.Join(<-done, c.Close()); err != nil {
			t.Error(err)
		}
	})
	return j
}

// operatorRole is for newTestShard, where a variable named authority hides the package authority.
const operatorRole = authority.RoleOperator

func notLeader() error {
	return notleader.Error("another server leads", &nstancev1.NotLeader{Shard: "a", LeaderId: "two",
		OperatorAddr: "two:8993"})
}

// serve serves the API on a port that admits clients of the given role.
func (f *testShard) serve(t testing.TB, role authority.Role, more ...grpc.ServerOption) *bufconn.Listener {
	listener := bufconn.Listen(64 << 10)
	server := grpc.NewServer(append(transport.ServerOptions(f.Source, role, f.Log), more...)...)
	f.service.Register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return listener
}

// operator registers an operator and returns its certificate.
func (f *testShard) operator(t testing.TB, tenant string, id ident.ID, key ed25519.PrivateKey) *tls.Certificate {
	t.Helper()
	cert := f.Certificate(t, authority.Identity{Role: authority.RoleOperator, Cluster: f.Name, Tenant: tenant, ID: id},
		key)
	_, err := f.state.PutOperator(t.Context(), record.Operator{Schema: record.OperatorSchema, Revision: 1, ID: id,
		Cluster: f.Name, Tenant: tenant,
		Writer: "test", PublicKey: transporttest.Public(key), CreatedAt: f.Clock.Now(),
		Certificate: record.CertificateRef{Serial: authority.Serial(cert.Leaf), NotAfter: cert.Leaf.NotAfter}}, "")
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (f *testShard) dial(t testing.TB, cert *tls.Certificate) nstancev1.OperatorServiceClient {
	t.Helper()
	return f.dialTo(t, f.listener, cert)
}

func (f *testShard) dialTo(t testing.TB, listener *bufconn.Listener, cert *tls.Certificate,
	options ...grpc.DialOption) nstancev1.OperatorServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///bufconn", append(options,
		grpc.WithTransportCredentials(credentials.NewTLS(f.ClientTLS(cert))),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		}), grpc.WithDisableRetry())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return nstancev1.NewOperatorServiceClient(conn)
}

// rival returns a client for an operator of a second tenant with the name "rival".
func (f *testShard) rival(t testing.TB) nstancev1.OperatorServiceClient {
	t.Helper()
	return f.dial(t, f.operator(t, "rival", f.NewID(t, "opr"), transporttest.NewKey(t)))
}

// configure writes the configuration to the bucket, as Terraform does.
func (f *testShard) configure(t testing.TB, text string) {
	t.Helper()
	if _, err := f.store.Put(t.Context(), keys.Config("a"), []byte(text), objstore.Always()); err != nil {
		t.Fatal(err)
	}
}

// breakStore sets the function that injects faults into requests to the store.
func (f *testShard) breakStore(fault func(mem.Request) mem.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

func outOfOrder(mem.Request) mem.Fault { return mem.Fault{Err: errors.New("out of order")} }

// provide sets the function that answers calls to the provider.
func (f *testShard) provide(script func(context.Context, mock.Call) mock.Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = script
}

// end ends the leadership. The service then answers like a standby.
func (f *testShard) end() {
	close(f.cut)
	f.lose()
}

// stream receives one watch in the background.
type stream[M any] struct {
	t    testing.TB
	news chan M
	err  error // valid after news is closed
	stop context.CancelFunc
}

func receive[M, A any](t testing.TB, open func(ctx context.Context) (grpc.ServerStreamingClient[A], error),
	event func(*A) M) *stream[M] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	client, err := open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s := &stream[M]{t: t, news: make(chan M, 10_000), stop: cancel}
	go func() {
		defer close(s.news)
		for {
			answer, err := client.Recv()
			if err != nil {
				s.err = err
				return
			}
			s.news <- event(answer)
		}
	}()
	return s
}

// await returns the first event that matches and drops those before it.
func (s *stream[M]) await(what string, match func(M) bool) M {
	s.t.Helper()
	for event := range s.news {
		if match(event) {
			return event
		}
	}
	s.t.Fatalf("the stream ended before %s: %v", what, s.err)
	panic("unreachable")
}

// ended returns the error at the end of the stream and the events before it.
func (s *stream[M]) ended() (before []M, err error) {
	for event := range s.news {
		before = append(before, event)
	}
	return before, s.err
}

type (
	instanceEvent = nstancev1.InstanceEvent
	groupEvent    = nstancev1.GroupEvent
	errorEvent    = nstancev1.ErrorEvent
)

func watchInstances(t testing.TB, client nstancev1.OperatorServiceClient) *stream[*instanceEvent] {
	t.Helper()
	return receive(t, func(ctx context.Context) (grpc.ServerStreamingClient[nstancev1.WatchInstancesResponse], error) {
		return client.WatchInstances(ctx, &nstancev1.WatchInstancesRequest{})
	}, (*nstancev1.WatchInstancesResponse).GetEvent)
}

func watchGroups(t testing.TB, client nstancev1.OperatorServiceClient) *stream[*groupEvent] {
	t.Helper()
	return receive(t, func(ctx context.Context) (grpc.ServerStreamingClient[nstancev1.WatchGroupsResponse], error) {
		return client.WatchGroups(ctx, &nstancev1.WatchGroupsRequest{})
	}, (*nstancev1.WatchGroupsResponse).GetEvent)
}

func watchErrors(t testing.TB, client nstancev1.OperatorServiceClient) *stream[*errorEvent] {
	t.Helper()
	return receive(t, func(ctx context.Context) (grpc.ServerStreamingClient[nstancev1.WatchErrorsResponse], error) {
		return client.WatchErrors(ctx, &nstancev1.WatchErrorsRequest{})
	}, (*nstancev1.WatchErrorsResponse).GetEvent)
}

func ofType(typ nstancev1.InstanceEvent_Type) func(*instanceEvent) bool {
	return func(e *instanceEvent) bool { return e.GetType() == typ }
}

// live opens a watch and reads its snapshot.
func live(t testing.TB, client nstancev1.OperatorServiceClient) *stream[*instanceEvent] {
	t.Helper()
	s := watchInstances(t, client)
	s.await("the end of the snapshot", ofType(nstancev1.InstanceEvent_TYPE_SNAPSHOT_END))
	return s
}

// scale creates or changes a dynamic group with the template "worker".
func (f *testShard) scale(t testing.TB, group string, size uint32) *nstancev1.GroupStatus {
	t.Helper()
	answer, err := f.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: group,
		Patch: fmt.Sprintf(`{"template": "worker", "size": %d}`, size)})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetGroup()
}

// grow creates a group and waits for its instances, which are not registered yet.
func (f *testShard) grow(t testing.TB, group string, size int) []ident.ID {
	t.Helper()
	s := live(t, f)
	defer s.stop()
	f.scale(t, group, uint32(size))
	var ids []ident.ID
	for range size {
		event := s.await("creation", ofType(nstancev1.InstanceEvent_TYPE_CREATED))
		ids = append(ids, parse(t, event.GetInstance().GetInstanceId()))
	}
	return ids
}

func parse(t testing.TB, text string) ident.ID {
	t.Helper()
	id, err := ident.ParseID(text)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// register acts like an instance's agent: it registers, connects, and reports.
func (f *testShard) register(t testing.TB, id ident.ID, report shardstate.Report) {
	t.Helper()
	rec, err := f.leader.Executor.Update(t.Context(), id, func(r *record.Instance) {
		r.State, r.RegisteredAt, r.PublicKey, r.NonceID = record.Registered, f.Clock.Now(),
			make([]byte, ed25519.PublicKeySize), "nonce"
		r.Certificate = &record.CertificateRef{Serial: strings.Repeat("0", 32),
			NotAfter: f.Clock.Now().Add(authority.AgentTTL)}
		r.IPv4 = "10.0.0.7"
	})
	if err != nil {
		t.Fatal(err)
	}
	f.leader.State.Publish(shardstate.InstanceEvent{Type: shardstate.EventRegistered, Tenant: rec.Tenant,
		Group: rec.Group, Instance: id})
	stream, ok := f.leader.State.Connected(id)
	if !ok || !f.leader.State.Reported(id, stream, report) {
		t.Fatalf("%s cannot report", id)
	}
}

// list merges the provider's list of all VMs into the state.
func (f *testShard) list(t testing.TB) {
	t.Helper()
	if err := f.leader.Asker.List(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// awaitListing lists the provider's VMs repeatedly until an event matches.
func (f *testShard) awaitListing(s *stream[*instanceEvent], what string,
	match func(*instanceEvent) bool) *instanceEvent {
	s.t.Helper()
	for {
		select {
		case event, ok := <-s.news:
			if !ok {
				s.t.Fatalf("the stream ended before %s: %v", what, s.err)
			}
			if match(event) {
				return event
			}
		default:
			f.list(s.t)
			runtime.Gosched()
		}
	}
}

func wants(t testing.TB, what string, err error, code codes.Code, parts ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("%s: %v, want %s", what, err, code)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %q in it", what, err, part)
		}
	}
}

// isNotLeader checks that an error contains the address of the actual leader.
func isNotLeader(t testing.TB, what string, err error) {
	t.Helper()
	wants(t, what, err, codes.Unavailable)
	if notleader.FromError(err).GetOperatorAddr() != "two:8993" {
		t.Errorf("%s: %v does not name the leader's address", what, err)
	}
}

func groupKey(tenant, group string) config.GroupKey {
	return config.GroupKey{Tenant: tenant, Group: group}
}

// upsertOf returns a request that changes a group by a patch.
func upsertOf(group, patch string) *nstancev1.UpsertGroupRequest {
	return &nstancev1.UpsertGroupRequest{Group: group, Patch: patch}
}
