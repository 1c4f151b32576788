package shards_test

import (
	"context"
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
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleettest"
	"github.com/nstance-kit/nstance/services/internal/operator/identity/identitytest"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// lab is a cluster of servers, and a set that is connected to some.
type lab struct {
	t       *testing.T
	cluster *fleettest.Cluster
	set     *shards.Set

	mu      sync.Mutex
	changes []shards.Change
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, cluster: fleettest.NewCluster(t, "demo")}
	keeper := identitytest.Keeper(t, l.cluster, "default")
	began := time.Now()
	l.set = shards.New(shards.Options{
		Credentials: func(shard string) credentials.TransportCredentials { return keeper.Credentials(shard) },
		Now: func() time.Time {
			return fleettest.Now.Add(time.Since(began))
		}, Log: slog.New(slog.DiscardHandler),
	})
	l.set.SetGrace(100 * time.Millisecond)
	l.set.Notify(func(c shards.Change) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changes = append(l.changes, c)
	})
	return l
}

func (l *lab) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { l.set.Run(ctx) })
	l.t.Cleanup(func() { cancel(); wg.Wait() })
}

// forget forgets the changes so far.
func (l *lab) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes = nil
}

// saw waits until a change was told of, and forgets all.
func (l *lab) saw(want shards.Change) {
	l.t.Helper()
	l.wait("the change", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !slices.ContainsFunc(l.changes, func(c shards.Change) bool { c.Error = nil; return c == want }) {
			return false
		}
		l.changes = nil
		return true
	})
}

func (l *lab) wait(what string, done func() bool) {
	l.t.Helper()
	waitFor(l.t, 10*time.Second, what, done)
}

func waitFor(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !done(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come in %s", what, limit)
		}
	}
}

func (l *lab) shard(id string) shards.Shard {
	l.t.Helper()
	s, ok := l.set.Shard(id)
	if !ok {
		l.t.Fatalf("there is no shard %s", id)
	}
	return s
}

// leader is a server with what it sends at the beginning of watches.
type leader struct {
	*fleettest.Shard
	addr string
	stop func()
}

func (l *lab) serve(shard string) leader {
	s := &fleettest.Shard{Config: &nstancev1.GetConfigStatusResponse{Shard: shard},
		GroupEvents:    make(chan *nstancev1.GroupEvent, 100),
		InstanceEvents: make(chan *nstancev1.InstanceEvent, 100), ErrorEvents: make(chan *nstancev1.ErrorEvent, 100)}
	addr, stop := l.cluster.Serve(l.t, shard, s)
	return leader{s, addr, stop}
}

// snapshot sends what is there, and has instances listed.
func (s leader) snapshot(groups []string, instances ...*nstancev1.InstanceStatus) leader {
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
	l := newLab(t)
	a := l.serve("a").snapshot([]string{"web", "db"}, instance("wrk1", "registered"), instance("wrk2", "deleting"))
	l.set.Configure(map[string]string{"a": a.addr})
	if state := l.shard("a").State(); state.Reachable || state.Synced || state.Err == "" {
		t.Errorf("before it runs: %+v", state)
	}
	l.run()
	l.wait("synced", func() bool { return l.shard("a").State().Synced })
	one := l.shard("a")
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

	l.forget()
	a.GroupEvents <- upsert(&nstancev1.GroupStatus{Group: "web", Size: 5})
	l.saw(shards.Change{Shard: "a", Kind: shards.GroupChanged, Group: "web"})
	if g, ok := one.Group("web"); !ok || g.GetSize() != 5 {
		t.Errorf("group %v", g)
	}
	a.GroupEvents <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_DELETE, Group: "db"}
	l.saw(shards.Change{Shard: "a", Kind: shards.GroupChanged, Group: "db"})
	a.InstanceEvents <- pending(instance("wrk1", "deleting"))
	l.saw(shards.Change{Shard: "a", Kind: shards.DrainPending, Group: "web", Instance: "wrk1"})
	a.InstanceEvents <- &nstancev1.InstanceEvent{Type: nstancev1.InstanceEvent_TYPE_DELETED,
		Instance: instance("wrk2", "deleted")}
	l.saw(shards.Change{Shard: "a", Kind: shards.InstanceChanged, Group: "web", Instance: "wrk2"})
	if d := cmp.Diff([]string{"wrk1 expired"}, drains(one.Drains())); d != "" {
		t.Error(d)
	}
	if i, ok := one.Instance("wrk2"); !ok || i.GetState() != "deleted" {
		t.Errorf("deleted instance: %v", i)
	}
	a.ErrorEvents <- &nstancev1.ErrorEvent{Kind: "provider", Group: "web"}
	l.saw(shards.Change{Shard: "a", Kind: shards.ErrorReported, Group: "web"})

	// A watch that was too slow begins anew on the same connection, and what vanished meanwhile is noticed.
	a.Do(func() { a.Instances = nil; a.Ended = status.Error(codes.ResourceExhausted, "slow") })
	old := a.GroupEvents
	a.Do(func() {
		a.GroupEvents, a.InstanceEvents = make(chan *nstancev1.GroupEvent, 10), make(chan *nstancev1.InstanceEvent, 10)
	})
	a.snapshot(nil)
	close(old)
	l.saw(shards.Change{Shard: "a", Kind: shards.GroupChanged, Group: "web"})
	l.wait("the instance gone", func() bool { i, _ := one.Instance("wrk1"); return i.GetState() == "deleted" })
	if len(one.Drains()) != 0 {
		t.Error("a drain that is not announced again is still there")
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
	l := newLab(t)
	first := l.serve("a").snapshot([]string{"web"}, instance("wrk1", "registered"))
	second := l.serve("a").snapshot([]string{"web"}, instance("wrk2", "registered"))
	standby := l.serve("a")
	var at string
	standby.Before = func(string) error { return fleettest.NotLeader("a", "x", at) }
	standby.Do(func() { at = first.addr })
	l.set.Configure(map[string]string{"a": standby.addr})
	l.run()
	l.wait("synced", func() bool { return l.shard("a").State().Synced })
	if _, ok := l.shard("a").Instance("wrk1"); !ok {
		t.Error("not the first leader's mirror")
	}
	standby.Do(func() { at = second.addr })
	first.stop()
	l.wait("the second leader's mirror", func() bool { _, ok := l.shard("a").Instance("wrk2"); return ok })
	l.wait("what vanished with the first", func() bool {
		i, _ := l.shard("a").Instance("wrk1")
		return i.GetState() == "deleted"
	})

	// Nobody leads, and nobody knows who will.
	standby.Do(func() { at = "" })
	second.stop()
	l.wait("unreachable", func() bool {
		state := l.shard("a").State()
		return !state.Reachable && strings.Contains(state.Err, "not the leader")
	})
	if state := l.shard("a").State(); !state.Synced {
		t.Errorf("state %+v", state)
	}
	_, err := l.shard("a").API().ListGroups(t.Context(), &nstancev1.ListGroupsRequest{})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a call to an unreachable shard: %v", err)
	}
	// The one that was a standby takes over itself.
	standby.snapshot([]string{"web"})
	standby.Do(func() { standby.Before = nil })
	l.wait("reachable", func() bool { return l.shard("a").State().Reachable })
}

func TestShardsComeAndGo(t *testing.T) {
	l := newLab(t)
	a, b, b2 := l.serve("a").snapshot([]string{"web"}), l.serve("b").snapshot([]string{"web"}),
		l.serve("b").snapshot([]string{"web", "new"})
	l.run()
	l.set.Configure(map[string]string{"a": a.addr, "b": b.addr})
	l.wait("both", func() bool { return l.shard("a").State().Synced && l.shard("b").State().Synced })
	l.saw(shards.Change{Shard: "b", Kind: shards.ShardState})
	l.forget()
	l.set.Configure(map[string]string{"b": b2.addr})
	l.saw(shards.Change{Shard: "a", Kind: shards.ShardState})
	if _, ok := l.set.Shard("a"); ok || !slices.Equal(l.set.IDs(), []string{"b"}) {
		t.Errorf("shards %v", l.set.IDs())
	}
	l.wait("the new address", func() bool { _, ok := l.shard("b").Group("new"); return ok })
	if !l.shard("b").State().Reachable {
		t.Error("a changed address made the shard unreachable")
	}
	// A server of another shard under the address of ours is not believed.
	l.set.Configure(map[string]string{"b": b2.addr, "c": b.addr})
	l.wait("the refusal", func() bool { return strings.Contains(l.shard("c").State().Err, "wrong peer") })
}

func TestOwnChangesAreSeenAtOnce(t *testing.T) {
	l := newLab(t)
	const id = "wrk0000000001r0000000000000000"
	a := l.serve("a").snapshot([]string{"web"}, instance("wrk2", "deleting"))
	a.Groups = []*nstancev1.GroupStatus{{Group: "web", Size: 1}}
	l.set.Configure(map[string]string{"a": a.addr})
	l.run()
	l.wait("synced", func() bool { return l.shard("a").State().Synced })
	one, ctx, size := l.shard("a"), t.Context(), uint32(7)
	l.forget()
	if _, err := one.API().UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{Group: "web", Size: &size}); err != nil {
		t.Fatal(err)
	}
	if g, _ := one.Group("web"); g.GetSize() != 7 {
		t.Errorf("group %v", g)
	}
	l.saw(shards.Change{Shard: "a", Kind: shards.GroupChanged, Group: "web"})
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
	// What a leader does not know, it may yet be asked to make: it is not remembered as deleted.
	if _, err := one.API().GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id}); status.Code(
		err) != codes.NotFound {
		t.Errorf("unknown instance: %v", err)
	}
	if _, ok := one.Instance(id); ok {
		t.Error("an unknown instance is in the mirror")
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(l.set); err != nil {
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

// relay forwards connections to an address until it goes silent: then it takes bytes, and says nothing.
type relay struct {
	mu     sync.Mutex
	silent bool
}

func (r *relay) quiet() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.silent
}

func (r *relay) copy(to, from net.Conn) {
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

func (r *relay) serve(t *testing.T, to string) string {
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

// A network that swallows everything, as a lost machine's does, is noticed by keepalives.
func TestSilenceIsNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as a keepalive")
	}
	t.Parallel()
	l := newLab(t)
	l.set.SetGrace(4 * time.Second)
	a, b := l.serve("a").snapshot(nil), l.serve("b").snapshot(nil)
	between := new(relay)
	l.set.Configure(map[string]string{"a": between.serve(t, a.addr), "b": b.addr})
	l.run()
	l.wait("both", func() bool { return l.shard("a").State().Synced && l.shard("b").State().Synced })
	between.mu.Lock()
	between.silent = true
	between.mu.Unlock()
	waitFor(t, 20*time.Second, "unreachable", func() bool { return !l.shard("a").State().Reachable })
	if !l.shard("b").State().Reachable {
		t.Error("the other shard is unreachable too")
	}
}
