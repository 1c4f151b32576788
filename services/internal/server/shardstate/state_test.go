package shardstate_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

var errTest = errors.New("test")

func (p *picture) without(key config.GroupKey) map[config.GroupKey]config.Group {
	groups := maps.Clone(p.merged)
	delete(groups, key)
	return groups
}

// TestGroupsVanishAndReturn checks a group that is removed from the configuration. Its instances must be deleted before
// it is dropped. If the group returns to the configuration before it is dropped, the State must keep it.
func TestGroupsVanishAndReturn(t *testing.T) {
	p := newPicture(t)
	id := p.serving(t)
	p.CreateFailed(workers, "no room")
	p.forget()
	p.Configure(p.shard, p.without(workers))
	p.wantDirty(t, "a group vanished", others, workers)
	g, ok := p.State.Group(workers)
	if !ok || !g.Deleted || g.Size != 0 {
		t.Errorf("%+v, %t", g, ok)
	}
	p.Configure(p.shard, p.merged)
	if g, _ = p.State.Group(workers); g.Deleted || g.Size != 3 {
		t.Errorf("%+v", g)
	}
	s, _ := p.Snapshot(workers, nil)
	if len(s.Instances) != 1 || s.Instances[0].ID != id || s.Backoff.Failures != 0 {
		t.Errorf("%+v", s)
	}

	p.Configure(p.shard, p.without(workers))
	p.ForgetGroup(workers)
	if _, ok := p.State.Group(workers); !ok {
		t.Error("a group with an instance is forgotten")
	}
	p.put(id, workers, record.Deleted)
	p.Configure(p.shard, p.without(workers))
	if _, ok := p.State.Group(workers); ok {
		t.Error("an empty group without configuration exists")
	}
	if _, ok := p.Snapshot(workers, nil); ok {
		t.Error("it is even planned")
	}

	// A group with running create calls is not dropped.
	p.ExpectCreates(others, shardstate.Pending{Members: 1})
	p.Configure(p.shard, p.without(others))
	if g, ok := p.State.Group(others); !ok || !g.Deleted {
		t.Errorf("%+v, %t", g, ok)
	}
	p.ExpectCreates(others, shardstate.Pending{Members: -1})
	p.forget()
	p.ForgetGroup(others)
	if _, ok := p.State.Group(others); ok || len(p.groups) != 1 {
		t.Errorf("it exists: %t; events of %v", ok, p.groups)
	}
}

// TestRecordsOfUnknownGroups checks a record that names an unknown group. The State adds that group, marked as deleted,
// with all load balancers of the shard, because its instances may be registered with any of them.
func TestRecordsOfUnknownGroups(t *testing.T) {
	p := newPicture(t)
	p.shard.LoadBalancers = map[string]config.LoadBalancer{"b": {}, "a": {}}
	p.Configure(p.shard, p.merged)
	key := config.GroupKey{Tenant: "default", Group: "gone"}
	id := p.newID(t)
	p.put(id, key, record.Registered)
	g, ok := p.State.Group(key)
	if !ok || !g.Deleted || g.Static || g.Size != 0 || g.DrainTimeout.D() != p.shard.Server.DefaultDrainTimeout.D() ||
		len(g.LoadBalancers) != 2 ||
		g.LoadBalancers[0] != "a" {
		t.Errorf("%+v, %t", g, ok)
	}
}

func TestConfigureResetsChangedGroups(t *testing.T) {
	p := newPicture(t)
	id := p.serving(t)
	p.Balanced(id, true, p.now)
	p.CreateFailed(workers, "no room")
	p.Configure(p.shard, p.merged)
	if s, _ := p.Snapshot(workers, nil); s.Backoff.Failures != 1 || !s.Instances[0].InLoadBalancers {
		t.Errorf("the same configuration changed something: %+v", s)
	}
	groups := maps.Clone(p.merged)
	g := groups[workers]
	g.Size, g.LoadBalancers = 4, []string{"lb"}
	groups[workers] = g
	p.Configure(p.shard, groups)
	s, _ := p.Snapshot(workers, nil)
	if s.Backoff.Failures != 0 {
		t.Error("a changed group still backs off")
	}
	if s.Instances[0].InLoadBalancers {
		t.Error("an instance is taken to be in a load balancer that is new")
	}
}

// TestSetImages checks that a change of a group's configuration makes its image unknown until a lookup for the new
// configuration. Another image resets the count of failed instances.
func TestSetImages(t *testing.T) {
	p := newPicture(t)
	image := func() string {
		s, _ := p.Snapshot(workers, nil)
		return s.Image
	}
	looked := func(id string) {
		p.SetImages(map[config.GroupKey]config.Group{workers: p.merged[workers]},
			map[config.GroupKey]string{workers: id})
	}
	looked("image-1")
	p.wantDirty(t, "an image", workers)
	looked("image-1")
	p.wantDirty(t, "the same image")
	p.RolloutFailed(workers, "its VM is bad")
	p.forget()
	looked("image-2")
	p.wantDirty(t, "another image", workers)
	if s, _ := p.Snapshot(workers, nil); s.RolloutFailures != 0 || s.Image != "image-2" {
		t.Errorf("%d failures, image %q", s.RolloutFailures, s.Image)
	}
	g := p.merged[workers]
	g.InfraHash = "i2"
	p.ConfigureGroups(map[config.GroupKey]config.Group{workers: g}, []config.GroupKey{workers})
	if got := image(); got != "" {
		t.Errorf("another configuration has the image %q of the former one", got)
	}
	looked("image-2") // for the former configuration
	if got := image(); got != "" {
		t.Errorf("another configuration has the image %q", got)
	}
	p.SetImages(map[config.GroupKey]config.Group{workers: g}, map[config.GroupKey]string{workers: "image-3"})
	if got := image(); got != "image-3" {
		t.Errorf("image %q", got)
	}
}

// TestConfigureResetsChangedLoadBalancers checks that instances are registered again with a load balancer that keeps
// its name and gets other target groups.
func TestConfigureResetsChangedLoadBalancers(t *testing.T) {
	p := newPicture(t)
	g := p.merged[workers]
	g.LoadBalancers = []string{"web"}
	p.merged[workers] = g
	configure := func(arn string) {
		web := config.LoadBalancer{Provider: "aws"}
		web.TargetGroupARNs = []string{arn}
		p.shard.LoadBalancers = map[string]config.LoadBalancer{"web": web}
		p.Configure(p.shard, p.merged)
	}
	configure("old")
	id := p.serving(t)
	p.Balanced(id, true, p.now)
	configure("old")
	if s, _ := p.Snapshot(workers, nil); !s.Instances[0].InLoadBalancers {
		t.Error("the same load balancer is taken to be another one")
	}
	configure("new")
	if s, _ := p.Snapshot(workers, nil); s.Instances[0].InLoadBalancers {
		t.Error("an instance is taken to be in a target group that is new")
	}
}

func TestDirtyMarks(t *testing.T) {
	p := newPicture(t)
	p.TouchGroup(others)
	p.TouchGroup(config.GroupKey{Tenant: "x", Group: "y"})
	p.wantDirty(t, "one touched", others)
	p.Mark(workers)
	if p.wakes != 0 {
		t.Error("a mark wakes the loop")
	}
	if got := p.TakeDirty(); len(got) != 1 || got[0] != workers || len(p.TakeDirty()) != 0 {
		t.Errorf("%v", got)
	}
}

// TestSameFaultIsRaisedOnce checks that attempts that fail in the same way raise one error, although their messages
// name different instances and requests.
func TestSameFaultIsRaisedOnce(t *testing.T) {
	p := newPicture(t)
	key := shardstate.GroupError("provider", workers, ident.ID{})
	storage := shardstate.ErrorKey{Kind: "storage"}
	for request := range 3 {
		id := p.newID(t)
		p.RaiseError(key, fmt.Sprintf("create: create %s: denied: RunInstances: UnauthorizedOperation (request %d)", id,
			request))
		p.RaiseError(storage, fmt.Sprintf("refill reservations: put %s: operation error S3: PutObject, https response "+
			"error StatusCode: 403, RequestID: R%d, HostID: H/%d=, api error AccessDenied: no", id.Storage(), request,
			request))
	}
	if len(p.errors) != 2 {
		t.Errorf("two faults are raised %d times: %v", len(p.errors), p.errors)
	}
	p.RaiseError(key, fmt.Sprintf("create: create %s: no capacity: RunInstances: InsufficientInstanceCapacity",
		p.newID(t)))
	if len(p.errors) != 3 {
		t.Errorf("another fault is not raised: %v", p.errors)
	}
}

// TestFlapsAreAnEvent checks that the alert about an instance that flaps is an event of that instance, and is known to
// the planner until it is resolved.
func TestFlapsAreAnEvent(t *testing.T) {
	p := newPicture(t)
	id := p.serving(t)
	p.instances = nil
	key := shardstate.GroupError(plan.AlertFlaps, workers, id)
	raised := func() bool {
		s, _ := p.Snapshot(workers, nil)
		for _, i := range s.Instances {
			if i.ID == id {
				return i.FlapsRaised
			}
		}
		t.Fatalf("%s is not in the snapshot", id)
		return false
	}
	for range 2 {
		p.RaiseError(key, "it restarted 5 times")
	}
	if len(p.instances) != 1 || p.instances[0].Type != shardstate.EventFlaps || p.instances[0].Instance != id ||
		p.instances[0].Reason != "it restarted 5 times" || !raised() {
		t.Errorf("events %+v, raised %t; want one event", p.instances, raised())
	}
	p.ResolveError(key)
	if raised() || len(p.instances) != 1 {
		t.Errorf("after the end: events %+v, raised %t", p.instances, raised())
	}
}

// TestErrorsEndWithTheirObject checks that the errors of an instance or group are resolved when it is removed. If they
// were kept, they would accumulate in a leader that runs for months.
func TestErrorsEndWithTheirObject(t *testing.T) {
	p := newPicture(t)
	id := p.serving(t)
	about := func(kind plan.AlertKind, key config.GroupKey, id ident.ID) shardstate.ErrorKey {
		return shardstate.ErrorKey{Kind: kind, Tenant: key.Tenant, Group: key.Group, Instance: id}
	}
	p.RaiseError(about("provider", workers, id), "slow down")
	p.RaiseError(about("provider", workers, id), "slow down")
	p.RaiseError(about("storage", workers, id), "no")
	p.RaiseError(about("backoff", workers, ident.ID{}), "no room")
	p.RaiseError(shardstate.ErrorKey{Kind: "config"}, "refused")
	if len(p.errors) != 4 || len(p.Standing("default")) != 4 || len(p.Standing("other")) != 1 {
		t.Fatalf("events %v, standing %v", p.errors, p.Standing("default"))
	}
	p.RaiseError(about("provider", workers, id), "denied")
	if len(p.errors) != 5 || len(p.Standing("default")) != 4 {
		t.Error("another message is not reported")
	}
	p.errors = nil
	p.put(id, workers, record.Deleted)
	if len(p.errors) != 2 || !p.errors[0].Resolved || p.errors[0].Kind != "provider" || p.errors[1].Kind != "storage" ||
		len(p.Standing("default")) != 2 {
		t.Errorf("events %v, standing %v", p.errors, p.Standing("default"))
	}
	p.RaiseError(about("provider", workers, ident.ID{}), "no capacity left")
	p.errors = nil
	smaller := maps.Clone(p.merged)
	group := smaller[workers]
	group.Size--
	smaller[workers] = group
	p.Configure(p.shard, smaller)
	if len(p.errors) != 1 || !p.errors[0].Resolved || p.errors[0].Kind != "provider" {
		t.Errorf("after a change of the size, which ends the backoff: events %v", p.errors)
	}
	p.errors = nil
	p.Configure(p.shard, p.without(workers))
	if len(p.errors) != 1 || p.errors[0].Kind != "backoff" || !p.errors[0].Resolved || len(p.Standing("default")) != 1 {
		t.Errorf("events %v, standing %v", p.errors, p.Standing("default"))
	}
	p.errors = nil
	p.ResolveError(shardstate.ErrorKey{Kind: "config"})
	p.ResolveError(shardstate.ErrorKey{Kind: "config"})
	if len(p.errors) != 1 || !p.errors[0].Resolved {
		t.Errorf("told %v", p.errors)
	}
}

func TestBlockedIsReportedOnce(t *testing.T) {
	p := newPicture(t)
	p.Planned(workers, plan.Decision{Blocked: "no room", BlockedUntil: p.now})
	until := p.now.Add(time.Minute) // not an event
	p.Planned(workers, plan.Decision{Blocked: "no room", BlockedUntil: until})
	p.Planned(config.GroupKey{Tenant: "x"}, plan.Decision{Blocked: "no group"})
	if len(p.groups) != 1 || p.groups[0] != workers {
		t.Errorf("events of %v", p.groups)
	}
	if view, _ := p.GroupView(workers); view.Blocked != "no room" || !view.BlockedUntil.Equal(until) {
		t.Errorf("%+v", view)
	}
}

// TestBlockedSince checks that BlockedSince stays the same while the reason changes, and is zero when there is no
// reason.
func TestBlockedSince(t *testing.T) {
	p := newPicture(t)
	began := p.now
	for _, step := range []struct {
		why, rollout string
		since        time.Time
	}{
		{"no room", "", began},
		{"no room", "paused", began},
		{"still no room", "paused", began},
		{"", "paused", time.Time{}},
		{"no room", "", began.Add(4 * time.Minute)},
	} {
		p.Planned(workers, plan.Decision{Blocked: step.why, Rollout: step.rollout})
		if view, _ := p.GroupView(workers); !view.BlockedSince.Equal(step.since) {
			t.Errorf("%+v: blocked since %v", step, view.BlockedSince)
		}
		p.now = p.now.Add(time.Minute)
	}
}

// TestShardGuard checks that all groups get time to recover after too many instances of the shard were silent. This
// must include groups in which nothing else changed.
func TestShardGuard(t *testing.T) {
	p := newPicture(t)
	interval := p.Settings().HealthInterval
	var ids []ident.ID
	for n := range 10 {
		id := p.newID(t)
		p.put(id, []config.GroupKey{workers, others}[n/9], record.Registered)
		ids = append(ids, id)
	}
	report := func(ids []ident.ID) {
		for _, id := range ids {
			stream, _ := p.Connected(id)
			p.Reported(id, stream, shardstate.Report{Healthy: true, RuntimeHash: "r1"})
		}
	}
	report(ids)
	p.now = p.now.Add(2 * interval)
	if health := p.Health(p.now); health.Silent != 10 || !health.HoldUntil.IsZero() {
		t.Errorf("all are silent: %+v", health)
	}
	report(ids[:6])
	p.forget()
	health := p.Health(p.now)
	if hold := health.HoldUntil.Sub(p.now); health.Silent != 4 || hold < 2*interval-interval/2 {
		t.Errorf("four are silent: %+v, the guard goes on for %v", health, hold)
	}
	p.wantDirty(t, "the share fell", others, workers)
	p.now = p.now.Add(time.Second)
	report(ids[6:])
	p.forget()
	if again := p.Health(p.now); again.HoldUntil != health.HoldUntil {
		t.Errorf("none is silent: %+v, before it was %+v", again, health)
	}
	p.wantDirty(t, "the share fell further")
}

func TestReservations(t *testing.T) {
	p := newPicture(t)
	pool := shardstate.Pool{Tenant: "default", Kind: "wrk"}
	if got := p.Pools(); len(got) != 1 || got[0] != pool {
		t.Errorf("pools %v", got)
	}
	if _, _, ok := p.TakeReservation(pool); ok {
		t.Error("taken from an empty pool")
	}
	var ids []ident.ID
	for range 2 {
		id := p.newID(t)
		ids = append(ids, id)
		p.AddReservation(shardstate.Reservation{Record: record.Instance{ID: id, State: record.Reserved,
			Tenant: "default", Kind: "wrk"}, Token: "t"})
	}
	for n, id := range ids {
		r, left, ok := p.TakeReservation(pool)
		if !ok || r.Record.ID != id || left != 1-n || p.ReservationsLeft(pool) != left {
			t.Errorf("%v, %d, %t", r.Record.ID, left, ok)
		}
	}
	// Reservations are not instances.
	if views := p.Instances("default", ""); len(views) != 0 {
		t.Errorf("%v", views)
	}
	// A call of Use must turn the reservation into an instance immediately.
	rec := record.Instance{ID: ids[0], State: record.Reserved, Tenant: "default", Group: "workers", CreatedAt: p.now}
	p.Use(rec, "t", ident.ID{})
	if _, token, ok := p.Record(ids[0]); !ok || token != "t" {
		t.Error("a used reservation is not known")
	}
}

func TestLeftovers(t *testing.T) {
	p := newPicture(t)
	id := p.newID(t)
	p.AddLeftover(shardstate.Reservation{Record: record.Instance{ID: id, State: record.Reserved}, Token: "t"})
	if !p.GarbageCollectionDue() || p.wakes == 0 {
		t.Error("no task settles a leftover")
	}
	if !p.BeginCollect(id) || p.BeginCollect(id) {
		t.Error("it is settled twice at the same time")
	}
	if s := p.ShardSnapshot(); len(s.Leftovers) != 1 || !s.Leftovers[0].Busy {
		t.Errorf("%+v", s.Leftovers)
	}
	p.forget()
	p.EndCollect(id, false)
	if p.GarbageCollectionDue() || p.wakes != 0 {
		t.Error("a failure is retried immediately")
	}
	p.BeginCollect(id)
	p.EndCollect(id, true)
	if !p.GarbageCollectionDue() || p.wakes == 0 {
		t.Error("no task settles the others")
	}
	p.put(id, workers, record.Created)
	if _, ok := p.Leftover(id); ok {
		t.Error("a settled one is left over")
	}
}

func TestViews(t *testing.T) {
	p := newPicture(t)
	well, silent, leaving, onDemand := p.serving(t), p.serving(t), p.serving(t), p.newID(t)
	for _, id := range []ident.ID{well, silent} {
		stream, _ := p.Connected(id)
		p.Reported(id, stream, shardstate.Report{Healthy: true, RuntimeHash: "old"})
	}
	interval := p.Settings().HealthInterval
	p.now = p.now.Add(2 * interval)
	stream, _ := p.Connected(well)
	p.Reported(well, stream, shardstate.Report{Healthy: true, RuntimeHash: "r1"})
	p.now = p.now.Add(2 * interval)
	p.put(leaving, workers, record.Deleting)
	p.revision++
	p.PutRecord(record.Instance{ID: onDemand, State: record.Registered, Revision: p.revision, Tenant: "default",
		Group: "workers", OnDemand: true, InfraHash: "i0",
		CreatedAt: p.now, RegisteredAt: p.now, ProviderID: "vm"}, "t")

	view, ok := p.GroupView(workers)
	if !ok || view.Actual != 2 || view.Healthy != 1 || len(view.Instances) != 4 || len(view.ProviderIDs) != 2 {
		t.Errorf("%+v", view)
	}
	if views := p.GroupViews("default"); len(views) != 2 || views[0].GroupKey != others {
		t.Errorf("%v", views)
	}
	if got := p.Instances("default", ""); len(got) != 4 {
		t.Errorf("%d instances", len(got))
	}
	if got := p.Instances("default", "others"); len(got) != 0 {
		t.Errorf("%d instances of another group", len(got))
	}
	if v, _ := p.State.Instance(well); v.RuntimeDrift || v.InfraDrift {
		t.Errorf("%+v", v)
	}
	if v, _ := p.State.Instance(onDemand); !v.InfraDrift {
		t.Errorf("%+v", v)
	}
	if v, _ := p.State.Instance(silent); !v.RuntimeDrift {
		t.Errorf("%+v", v)
	}
	if have := p.Count(); have != (shardstate.Counts{Groups: 2, Instances: 4, Connected: 2}) {
		t.Errorf("%+v", have)
	}
	if snapshot, _ := p.Snapshot(workers, nil); snapshot.SilenceFrom.IsZero() {
		t.Error("an agent has connected, and silence does not count")
	}
	if health := p.Health(p.now); health.Running != 3 || health.Silent != 2 {
		// The instance `silent` stopped reporting. The instance `onDemand` registered, but never connected.
		t.Errorf("%+v", health)
	}
	if p.DrainTimeout(workers) != 0 || p.DrainTimeout(config.GroupKey{}) != p.shard.Server.DefaultDrainTimeout.D() ||
		p.Term() != 7 {
		t.Error("settings")
	}
	p.Publish(shardstate.InstanceEvent{Type: shardstate.EventCreated, Tenant: "default", Group: "workers"})
	if last := p.instances[len(p.instances)-1]; last.At != p.now {
		t.Errorf("%+v", last)
	}
}
