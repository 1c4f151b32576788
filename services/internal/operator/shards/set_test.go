package shards_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
	"github.com/nstance-kit/nstance/services/internal/proof/identitytest"
)

// testCluster is a cluster of fake servers and a Set that connects to them.
type testCluster struct {
	t       *testing.T
	cluster *fleettest.Cluster
	set     *shards.Set

	mu      sync.Mutex
	changes []shards.Change
}

func newTestCluster(t *testing.T) *testCluster {
	t.Helper()
	cluster := &testCluster{t: t, cluster: fleettest.NewCluster(t, "demo")}
	keeper := identitytest.Keeper(t, cluster.cluster, "default")
	began := time.Now()
	cluster.set = shards.New(shards.Options{
		TLS: keeper.TLS,
		Now: func() time.Time {
			return fleettest.Now.Add(time.Since(began))
		}, Log: slog.New(slog.DiscardHandler),
	})
	cluster.set.SetGrace(100 * time.Millisecond)
	cluster.set.Notify(func(c shards.Change) {
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		cluster.changes = append(cluster.changes, c)
	})
	return cluster
}

func (cluster *testCluster) start() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { cluster.set.Run(ctx) })
	cluster.t.Cleanup(func() { cancel(); wg.Wait() })
}

// dropChanges drops the changes recorded so far.
func (cluster *testCluster) dropChanges() {
	cluster.mu.Lock()
	defer cluster.mu.Unlock()
	cluster.changes = nil
}

// awaitChange waits for a change and drops all recorded changes.
func (cluster *testCluster) awaitChange(want shards.Change) {
	cluster.t.Helper()
	cluster.wait("the change", func() bool {
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		if !slices.ContainsFunc(cluster.changes, func(c shards.Change) bool { c.Error = nil; return c == want }) {
			return false
		}
		cluster.changes = nil
		return true
	})
}

func (cluster *testCluster) wait(what string, done func() bool) {
	cluster.t.Helper()
	waitFor(cluster.t, 10*time.Second, what, done)
}

func waitFor(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !done(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %[2]s for: %[1]s", what, limit)
		}
	}
}

func (cluster *testCluster) shard(id string) shards.Shard {
	cluster.t.Helper()
	s, ok := cluster.set.Shard(id)
	if !ok {
		cluster.t.Fatalf("there is no shard %s", id)
	}
	return s
}

// fakeLeader is a fake leader that serves at the address addr.
type fakeLeader struct {
	*fleettest.Shard
	addr string
	stop func()
}

func (cluster *testCluster) startLeader(shard string) fakeLeader {
	s := &fleettest.Shard{Config: &nstancev1.GetConfigStatusResponse{Shard: shard},
		GroupEvents:    make(chan *nstancev1.GroupEvent, 100),
		InstanceEvents: make(chan *nstancev1.InstanceEvent, 100), ErrorEvents: make(chan *nstancev1.ErrorEvent, 100)}
	addr, stop := cluster.cluster.Serve(cluster.t, shard, s)
	return fakeLeader{s, addr, stop}
}

// snapshot sends the initial state of the watches. It also sets the instances that ListInstances will return.
func (s fakeLeader) snapshot(groups []string, instances ...*nstancev1.InstanceStatus) fakeLeader {
	s.Do(func() { s.Instances = instances })
	for _, g := range groups {
		s.GroupEvents <- upsert(&nstancev1.GroupStatus{Group: g, Size: 1})
	}
	s.GroupEvents <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_SNAPSHOT_END}
	for _, i := range instances {
		if i.GetState() == "deleting" {
			s.InstanceEvents <- pending(i)
		}
	}
	s.InstanceEvents <- &nstancev1.InstanceEvent{Type: nstancev1.InstanceEvent_TYPE_SNAPSHOT_END}
	return s
}

func upsert(g *nstancev1.GroupStatus) *nstancev1.GroupEvent {
	return &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Status: g}
}

func pending(i *nstancev1.InstanceStatus) *nstancev1.InstanceEvent {
	return &nstancev1.InstanceEvent{Type: nstancev1.InstanceEvent_TYPE_PENDING_DELETION, Instance: i, Reason: "expired",
		Drain:    true,
		Deadline: timestamppb.New(fleettest.Now.Add(time.Minute))}
}

func instance(id, state string) *nstancev1.InstanceStatus {
	return &nstancev1.InstanceStatus{InstanceId: id, Group: "web", State: state, Zone: "zone-1", Region: "region"}
}

func ids(all []*nstancev1.InstanceStatus) (out []string) {
	for _, i := range all {
		out = append(out, i.GetInstanceId())
	}
	return out
}

func names(all []*nstancev1.GroupStatus) (out []string) {
	for _, g := range all {
		out = append(out, g.GetGroup())
	}
	return out
}

func drains(all []shards.Drain) (out []string) {
	for _, d := range all {
		out = append(out, d.Instance.GetInstanceId()+" "+d.Reason)
	}
	return out
}

func TestMirrorsAShard(t *testing.T) {
	cluster := newTestCluster(t)
	a := cluster.startLeader("a").snapshot([]string{"web", "db"}, instance("wrk1", "registered"),
		instance("wrk2", "deleting"))
	cluster.set.Configure(map[string]string{"a": a.addr})
	if state := cluster.shard("a").State(); state.Reachable || state.Synced || state.Err != "" {
		t.Errorf("before it runs: %+v", state)
	}
	cluster.start()
	cluster.wait("synced", func() bool { return cluster.shard("a").State().Synced })
	one := cluster.shard("a")
	if state := one.State(); !state.Reachable || state.Err != "" || state.Zone != "zone-1" || state.Region != "region" {
		t.Errorf("state %+v", state)
	}
	if d := cmp.Diff([]string{"db", "web"}, names(one.Groups())); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"wrk1", "wrk2"}, ids(one.Instances("web"))); d != "" {
		t.Error(d)
	}
	if len(one.Instances("db")) != 0 || len(one.Instances("")) != 2 {
		t.Error("instances of other groups")
	}
	if d := cmp.Diff([]string{"wrk2 expired"}, drains(one.Drains())); d != "" {
		t.Error(d)
	}

	cluster.dropChanges()
	a.GroupEvents <- upsert(&nstancev1.GroupStatus{Group: "web", Size: 5})
	cluster.awaitChange(shards.Change{Shard: "a", Kind: shards.GroupChanged, Group: "web"})
	if g, ok := one.Group("web"); !ok || g.GetSize() != 5 {
		t.Errorf("group %v", g)
	}
	a.GroupEvents <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_DELETE, Group: "db"}
	cluster.awaitChange(shards.Change{Shard: "a", Kind: shards.GroupChanged, Group: "db"})
	a.InstanceEvents <- pending(instance("wrk1", "deleting"))
	cluster.awaitChange(shards.Change{Shard: "a", Kind: shards.DrainPending, Group: "web", Instance: "wrk1"})
	a.InstanceEvents <- &nstancev1.InstanceEvent{Type: nstancev1.InstanceEvent_TYPE_DELETED,
		Instance: instance("wrk2", "deleted")}
	cluster.awaitChange(shards.Change{Shard: "a", Kind: shards.InstanceChanged, Group: "web", Instance: "wrk2"})
	if d := cmp.Diff([]string{"wrk1 expired"}, drains(one.Drains())); d != "" {
		t.Error(d)
	}
	kept := pending(instance("wrk3", "registered"))
	kept.Type, kept.Reason = nstancev1.InstanceEvent_TYPE_PRESERVED, "it is silent"
	a.InstanceEvents <- kept
	cluster.awaitChange(shards.Change{Shard: "a", Kind: shards.DrainPending, Group: "web", Instance: "wrk3"})
	if d := cmp.Diff([]string{"wrk1 expired", "wrk3 it is silent"}, drains(one.Drains())); d != "" {
		t.Error(d)
	}
	if i, ok := one.Instance("wrk2"); !ok || i.GetState() != "deleted" {
		t.Errorf("deleted instance: %v", i)
	}
	a.ErrorEvents <- &nstancev1.ErrorEvent{Kind: "provider", Group: "web"}
	cluster.awaitChange(shards.Change{Shard: "a", Kind: shards.ErrorReported, Group: "web"})

	// If a watch is too slow, the leader ends it. The operator must then start the watch again on the same connection,
	// and remove from the mirror what no longer exists.
	a.Do(func() { a.Instances = nil; a.Ended = status.Error(codes.ResourceExhausted, "slow") })
	old := a.GroupEvents
	a.Do(func() {
		a.GroupEvents, a.InstanceEvents = make(chan *nstancev1.GroupEvent, 10), make(chan *nstancev1.InstanceEvent, 10)
	})
	a.snapshot(nil)
	close(old)
	cluster.awaitChange(shards.Change{Shard: "a", Kind: shards.GroupChanged, Group: "web"})
	cluster.wait("the instance gone", func() bool { i, _ := one.Instance("wrk1"); return i.GetState() == "deleted" })
	if len(one.Drains()) != 0 {
		t.Error("a drain that was not announced again is still in the mirror")
	}
	met := 0
	a.Do(func() {
		for _, call := range a.Calls {
			if call == "GetConfigStatus" {
				met++
			}
		}
	})
	if met != 1 || !one.State().Reachable {
		t.Errorf("%d connections, state %+v", met, one.State())
	}
}

func TestFollowsTheLeader(t *testing.T) {
	cluster := newTestCluster(t)
	first := cluster.startLeader("a").snapshot([]string{"web"}, instance("wrk1", "registered"))
	second := cluster.startLeader("a").snapshot([]string{"web"}, instance("wrk2", "registered"))
	standby := cluster.startLeader("a")
	var at string
	standby.Before = func(string) error { return fleettest.NotLeader("a", "x", at) }
	standby.Do(func() { at = first.addr })
	cluster.set.Configure(map[string]string{"a": standby.addr})
	cluster.start()
	cluster.wait("synced", func() bool { return cluster.shard("a").State().Synced })
	if _, ok := cluster.shard("a").Instance("wrk1"); !ok {
		t.Error("the mirror does not show the first leader's instance")
	}
	standby.Do(func() { at = second.addr })
	first.stop()
	cluster.wait("the second leader's mirror", func() bool { _, ok := cluster.shard("a").Instance("wrk2"); return ok })
	cluster.wait("what vanished with the first", func() bool {
		i, _ := cluster.shard("a").Instance("wrk1")
		return i.GetState() == "deleted"
	})

	// No server is the leader, and the standby knows no leader.
	standby.Do(func() { at = "" })
	second.stop()
	cluster.wait("unreachable", func() bool {
		state := cluster.shard("a").State()
		return !state.Reachable && strings.Contains(state.Err, "does not lead")
	})
	if state := cluster.shard("a").State(); !state.Synced {
		t.Errorf("state %+v", state)
	}
	_, err := cluster.shard("a").API().ListGroups(t.Context(), &nstancev1.ListGroupsRequest{})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a call to an unreachable shard: %v", err)
	}
	// The standby becomes the leader.
	standby.snapshot([]string{"web"})
	standby.Do(func() { standby.Before = nil })
	cluster.wait("reachable", func() bool { return cluster.shard("a").State().Reachable })
}

func TestShardsAreAddedAndRemoved(t *testing.T) {
	cluster := newTestCluster(t)
	a, b, b2 := cluster.startLeader("a").snapshot([]string{"web"}), cluster.startLeader("b").snapshot([]string{"web"}),
		cluster.startLeader("b").snapshot([]string{"web", "new"})
	cluster.start()
	cluster.set.Configure(map[string]string{"a": a.addr, "b": b.addr})
	cluster.wait("both", func() bool { return cluster.shard("a").State().Synced && cluster.shard("b").State().Synced })
	cluster.awaitChange(shards.Change{Shard: "b", Kind: shards.ShardState})
	cluster.dropChanges()
	cluster.set.Configure(map[string]string{"b": b2.addr})
	cluster.awaitChange(shards.Change{Shard: "a", Kind: shards.ShardState})
	if all := cluster.set.All(); len(all) != 1 || all[0].ID() != "b" {
		t.Errorf("shards %v", all)
	}
	cluster.wait("the new address", func() bool { _, ok := cluster.shard("b").Group("new"); return ok })
	if !cluster.shard("b").State().Reachable {
		t.Error("a changed address made the shard unreachable")
	}
	// A server of another shard is refused.
	cluster.set.Configure(map[string]string{"b": b2.addr, "c": b.addr})
	cluster.wait("the refusal", func() bool { return strings.Contains(cluster.shard("c").State().Err, "wrong peer") })
}

// TestRenewsWithoutSession checks that a renewal reaches a leader that refuses all other calls.
func TestRenewsWithoutSession(t *testing.T) {
	cluster := newTestCluster(t)
	a := cluster.startLeader("a")
	a.Do(func() {
		a.Before = func(method string) error {
			if method == "RenewCertificate" {
				return status.Error(codes.AlreadyExists, "reached")
			}
			return status.Error(codes.PermissionDenied, "registered with another key")
		}
	})
	cluster.set.Configure(map[string]string{"a": a.addr})
	cluster.start()
	cluster.wait("the refusal", func() bool { return strings.Contains(cluster.shard("a").State().Err, "another key") })
	_, err := cluster.shard("a").API().RenewCertificate(t.Context(),
		&nstancev1.OperatorServiceRenewCertificateRequest{})
	if status.Code(err) != codes.AlreadyExists {
		t.Error(err)
	}
}

// TestReconnect checks that Reconnect makes a new connection, and that the shard stays reachable.
func TestReconnect(t *testing.T) {
	cluster := newTestCluster(t)
	cluster.set.SetGrace(10 * time.Second)
	a := cluster.startLeader("a").snapshot([]string{"web"})
	cluster.set.Configure(map[string]string{"a": a.addr})
	cluster.start()
	cluster.wait("synced", func() bool { return cluster.shard("a").State().Synced })
	a.snapshot([]string{"web", "new"})
	cluster.set.Reconnect()
	cluster.wait("a second connection", func() (again bool) {
		a.Do(func() {
			again = len(slices.DeleteFunc(slices.Clone(a.Calls), func(call string) bool {
				return call != "GetConfigStatus"
			})) == 2
		})
		if !cluster.shard("a").State().Reachable {
			t.Fatal("the shard became unreachable")
		}
		return again
	})
}

func TestOwnChangesAreVisibleImmediately(t *testing.T) {
	cluster := newTestCluster(t)
	const id = "wrk0000000001r0000000000000000"
	a := cluster.startLeader("a").snapshot([]string{"web"}, instance("wrk2", "deleting"))
	a.Groups = []*nstancev1.GroupStatus{{Group: "web", Size: 1}}
	cluster.set.Configure(map[string]string{"a": a.addr})
	cluster.start()
	cluster.wait("synced", func() bool { return cluster.shard("a").State().Synced })
	one, ctx := cluster.shard("a"), t.Context()
	cluster.dropChanges()
	if _, err := one.API().UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{Group: "web",
		Patch: `{"size": 7}`}); err != nil {
		t.Fatal(err)
	}
	if g, _ := one.Group("web"); g.GetSize() != 7 {
		t.Errorf("group %v", g)
	}
	cluster.awaitChange(shards.Change{Shard: "a", Kind: shards.GroupChanged, Group: "web"})
	if _, err := one.API().DeleteInstance(ctx, &nstancev1.DeleteInstanceRequest{InstanceId: "wrk2",
		Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	if i, _ := one.Instance("wrk2"); i.GetDeleteReason() != "test" {
		t.Errorf("instance %v", i)
	}
	if _, err := one.API().DeleteGroup(ctx, &nstancev1.DeleteGroupRequest{Group: "web"}); err != nil {
		t.Fatal(err)
	}
	if g, _ := one.Group("web"); !g.GetDeleting() {
		t.Errorf("group %v", g)
	}
	// The leader does not know the instance. The mirror must not record it as deleted, because it may still be created.
	if _, err := one.API().GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id}); status.Code(
		err) != codes.NotFound {
		t.Errorf("unknown instance: %v", err)
	}
	if _, ok := one.Instance(id); ok {
		t.Error("an unknown instance is in the mirror")
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(cluster.set); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			text.WriteString(f.GetName() + " " + m.String() + "\n")
		}
	}
	for _, part := range []string{`nstance_operator_shard_reachable label:{name:"shard"  value:"a"}`,
		`nstance_operator_instances`, `value:"GetInstanceStatus"`, `value:"NotFound"`} {
		if !strings.Contains(strings.ReplaceAll(text.String(), `"shard" value`, `"shard"  value`), part) {
			t.Errorf("metrics lack %s:\n%s", part, text.String())
		}
	}
}

// tcpRelay forwards connections to an address. Once silent is set, it still reads data but forwards nothing.
type tcpRelay struct {
	mu     sync.Mutex
	silent bool
}

func (r *tcpRelay) quiet() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.silent
}

func (r *tcpRelay) copy(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			_ = to.Close()
			return
		}
		if r.quiet() {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (r *tcpRelay) serve(t *testing.T, to string) string {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			go r.copy(out, in)
			go r.copy(in, out)
		}
	}()
	return listener.Addr().String()
}

// TestSilenceIsNoticed checks that keepalives detect a connection that loses all packets.
func TestSilenceIsNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as a keepalive")
	}
	t.Parallel()
	cluster := newTestCluster(t)
	cluster.set.SetGrace(4 * time.Second)
	a, b := cluster.startLeader("a").snapshot(nil), cluster.startLeader("b").snapshot(nil)
	between := new(tcpRelay)
	cluster.set.Configure(map[string]string{"a": between.serve(t, a.addr), "b": b.addr})
	cluster.start()
	cluster.wait("both", func() bool { return cluster.shard("a").State().Synced && cluster.shard("b").State().Synced })
	between.mu.Lock()
	between.silent = true
	between.mu.Unlock()
	waitFor(t, 20*time.Second, "unreachable", func() bool { return !cluster.shard("a").State().Reachable })
	if !cluster.shard("b").State().Reachable {
		t.Error("the other shard is unreachable too")
	}
}

// TestFirstFailureIsNotified checks that there is a notification when the first attempt to connect to a shard fails, so
// that those who wait for the shard can say why.
func TestFirstFailureIsNotified(t *testing.T) {
	set := shards.New(shards.Options{Now: time.Now, Log: slog.New(slog.DiscardHandler),
		TLS: func(string) (*tls.Config, error) { return nil, errors.New("no certificate") }})
	set.Configure(map[string]string{"a": "127.0.0.1:1"})
	if one, _ := set.Shard("a"); one.State().Err != "" {
		t.Errorf("before the first attempt: %q", one.State().Err)
	}
	changed := make(chan shards.Change, 100)
	set.Notify(func(c shards.Change) { changed <- c })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() { set.Run(ctx); close(done) }()
	select {
	case c := <-changed:
		waitFor(t, 10*time.Second, "the reason", func() bool {
			one, _ := set.Shard("a")
			return c.Kind == shards.ShardState && one.State().Err != ""
		})
	case <-time.After(30 * time.Second):
		t.Error("no notification")
	}
	cancel()
	<-done
}
