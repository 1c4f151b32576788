package execute_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

func TestMark(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.serving()
		deadline := time.Now().Add(time.Minute)
		mark := plan.Action{Kind: plan.Mark, Instance: id, Reason: "it is silent", Cause: "unhealthy",
			Deadline: deadline}
		b.do(mark)
		rec := b.read(id)
		if rec.State != record.Deleting || rec.DeleteReason != mark.Reason || !rec.DeleteDeadline.Equal(deadline) ||
			!rec.DeletingAt.Equal(time.Now()) {
			t.Errorf("%+v", rec)
		}
		b.wantEvents(shardstate.EventPendingDeletion)
		// A second deletion request, with a later deadline, does not change the instance's record.
		mark.Deadline = deadline.Add(time.Hour)
		b.do(mark)
		if again := b.read(id); again.Revision != rec.Revision || !again.DeleteDeadline.Equal(deadline) {
			t.Errorf("%+v", again)
		}
		b.wantEvents()
		if b.backoff().Failures != 0 {
			t.Errorf("back-off %+v", b.backoff())
		}
		// The cloud takes the VM away earlier. The operators and the drain hook learn that.
		b.do(plan.Action{Kind: plan.Mark, Instance: id, Reason: "the cloud takes its VM away", Cause: plan.CauseNotice,
			Deadline: deadline.Add(-30 * time.Second)})
		if again := b.read(id); !again.DeleteDeadline.Equal(deadline.Add(-30*time.Second)) ||
			again.DeleteReason != rec.DeleteReason {
			t.Errorf("%+v", again)
		}
		b.wantEvents(shardstate.EventPendingDeletion)
		if !slices.Contains(b.drained, id) {
			t.Error("the agent does not learn that its drain is shorter")
		}

		// Another writer has changed the record since the plan was made. The executor must not mark the instance.
		id = b.serving()
		other, token, _ := b.State.Record(id)
		other.Image, other.Revision = "other", other.Revision+1
		b.write(other, token)
		mark.Instance = id
		b.do(mark)
		if rec := b.read(id); rec.State != record.Registered || rec.Revision != other.Revision {
			t.Errorf("%+v", rec)
		}
		b.wantEvents()
		b.do(mark) // the plan still wants the deletion
		if rec := b.read(id); rec.State != record.Deleting || rec.Image != "other" {
			t.Errorf("%+v", rec)
		}
		b.wantEvents(shardstate.EventPendingDeletion)

		id = b.serving()
		b.do(plan.Action{Kind: plan.Mark, Instance: id, Reason: "it did not register", Cause: "unregistered"})
		if rec := b.read(id); !rec.DeleteDeadline.Equal(time.Now()) {
			t.Errorf("%+v", rec)
		}
		if b.backoff().Failures != 1 {
			t.Errorf("back-off %+v: a creation failed", b.backoff())
		}
	})
}

// TestDrain checks that a drain is announced after the deletion is durable and after the calls to the load balancers,
// whatever their results.
func TestDrain(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.configure(func(g *config.Group) { g.LoadBalancers = []string{"lb1", "lb2"} })
		id := b.serving()
		b.do(plan.Action{Kind: plan.Register, Instance: id})
		if members := b.provider.Members("lb2"); len(members) != 1 || !b.view(id).Plan.InLoadBalancers {
			t.Fatalf("members %v", members)
		}
		b.leave(id)
		b.script = func(call mock.Call) mock.Outcome {
			if call.Name == "lb1" {
				return mock.Outcome{Err: infra.Errorf(infra.Throttled, "deregister", "slow down")}
			}
			return mock.Outcome{}
		}
		deadline := time.Now().Add(time.Minute)
		b.do(plan.Action{Kind: plan.Drain, Instance: id, Deadline: deadline})
		b.mu.Lock()
		if len(b.events) != 1 || !b.events[0].Drain || !b.events[0].Deadline.Equal(deadline) {
			t.Errorf("told %+v", b.events)
		}
		b.mu.Unlock()
		view := b.view(id)
		if len(b.drained) != 1 || b.drained[0] != id {
			t.Errorf("the hooks of %v run", b.drained)
		}
		if !view.Plan.Announced || view.Plan.Failed.Count != 1 || len(b.provider.Members("lb1")) != 1 ||
			len(b.provider.Members("lb2")) != 0 {
			t.Errorf("%+v, %v", view.Plan, b.provider.Members("lb2"))
		}
	})
}

func TestTerminate(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.serving()
		terminate := plan.Action{Kind: plan.Terminate, Instance: id}
		b.do(terminate)
		if b.made(mock.Delete) != nil || b.view(id).Plan.Failed.Count != 1 {
			t.Error("a running VM is terminated without an intent")
		}
		b.leave(id)

		b.confirm = errTest
		b.do(terminate)
		b.confirm, b.remaining = nil, 100*time.Millisecond
		b.do(terminate)
		if b.made(mock.Delete) != nil || b.confirmed != 2 || !b.view(id).Plan.TerminateRequested.IsZero() {
			t.Errorf("%d calls after %d proofs of leadership", len(b.made(mock.Delete)), b.confirmed)
		}
		b.remaining = time.Hour
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind == mock.Delete {
				return mock.Outcome{Err: infra.Errorf(infra.Throttled, "delete", "slow down")}
			}
			return mock.Outcome{}
		}
		b.do(terminate)
		if got := b.standing(); !slices.Equal(got, []string{"provider", "storage"}) &&
			!slices.Equal(got, []string{"storage", "provider"}) {
			t.Errorf("standing %v", got)
		}
		b.script = nil
		b.do(terminate)
		if view := b.view(id); view.Plan.TerminateRequested != time.Now() || view.Plan.Failed.Count != 0 ||
			b.standing() != nil {
			t.Errorf("%+v, standing %v", view.Plan, b.standing())
		}
		if vm, _ := b.provider.Instance(id); vm.State != infra.Deleting {
			t.Errorf("its VM is %s", vm.State)
		}
		// The provider answers that it does not know the VM. The termination then counts as successful.
		b.script = func(call mock.Call) mock.Outcome {
			return mock.Outcome{Err: infra.Errorf(infra.NotFound, "delete", "what VM")}
		}
		b.do(terminate)
		if view := b.view(id); view.Plan.Failed.Count != 0 {
			t.Errorf("%+v", view.Plan)
		}
	})
}

// TestTerminateWithoutProviderID checks that a VM without a known provider ID is looked up by its tag. A VM that the
// provider does not know yet does not count as gone.
func TestTerminateWithoutProviderID(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.reserve()
		reservation, _, _ := b.State.TakeReservation(pool)
		rec := reservation.Record
		rec.Group, rec.Revision = workers.Group, 2
		rec.State, rec.DeletingAt, rec.DeleteReason, rec.DeleteDeadline = record.Deleting, time.Now().UTC(), "test",
			time.Now().UTC()
		b.State.PutRecord(rec, b.write(rec, reservation.Token))
		terminate := plan.Action{Kind: plan.Terminate, Instance: id}

		b.do(terminate)
		if view := b.view(id); view.Plan.Failed.Count != 1 || view.Plan.Provider.Value == plan.ProviderGone ||
			b.standing() != nil {
			t.Errorf("%+v, standing %v", view.Plan, b.standing()) // tried again after the backoff
		}
		b.plant(id, infra.Running)
		b.do(terminate)
		if vm, _ := b.provider.Instance(id); vm.State != infra.Deleting {
			t.Errorf("its VM is %s", vm.State)
		}

		other := b.newID()
		rec.ID, rec.Revision = other, 1
		b.State.PutRecord(rec, b.write(rec, ""))
		time.Sleep(2 * time.Minute)
		terminate.Instance = other
		b.do(terminate)
		if view := b.view(other); view.Plan.Failed.Count != 0 || view.Plan.Provider.Value != plan.ProviderGone {
			t.Errorf("%+v", view.Plan)
		}
		b.script = func(call mock.Call) mock.Outcome {
			return mock.Outcome{Err: infra.Errorf(infra.Throttled, "find", "slow down")}
		}
		b.do(terminate)
		if view := b.view(other); view.Plan.Failed.Count != 1 {
			t.Errorf("%+v", view.Plan)
		}
	})
}

// TestForget checks that an instance is removed from its load balancers before its tombstone is written. Once the
// tombstone is written, nothing would remove the instance from them.
func TestForget(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.configure(func(g *config.Group) { g.LoadBalancers = []string{"lb"} })
		id := b.serving()
		b.do(plan.Action{Kind: plan.Register, Instance: id})
		forget := plan.Action{Kind: plan.Forget, Instance: id, Reason: "its VM is gone"}
		b.script = func(call mock.Call) mock.Outcome {
			return mock.Outcome{Err: infra.Errorf(infra.Throttled, "deregister", "slow down")}
		}
		b.do(forget)
		b.wantState(id, record.Registered)
		b.script = nil
		b.do(forget)
		if rec := b.read(id); rec.State != record.Deleted || rec.DeleteReason != forget.Reason ||
			!rec.DeletedAt.Equal(time.Now()) {
			t.Errorf("%+v", rec)
		}
		if members := b.provider.Members("lb"); len(members) != 0 || b.standing() != nil {
			t.Errorf("members %v, standing %v", members, b.standing())
		}
		b.wantEvents(shardstate.EventDeleted)

		// The tombstone is written even if a load balancer is gone or refuses to remove the instance.
		for _, class := range []infra.Class{infra.NotFound, infra.Denied} {
			id := b.serving()
			b.leave(id)
			b.script = func(call mock.Call) mock.Outcome {
				return mock.Outcome{Err: infra.Errorf(class, "deregister", "no")}
			}
			b.do(plan.Action{Kind: plan.Forget, Instance: id, Reason: "its VM is gone"})
			if rec := b.read(id); rec.State != record.Deleted || rec.DeleteReason != "test" {
				t.Errorf("%s: %+v", class, rec)
			}
		}
	})
}

func TestLoadBalancersThatAreNotThere(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.configure(func(g *config.Group) { g.LoadBalancers = []string{"lb"} })
		id := b.serving()
		b.Provider = struct{ infra.Provider }{b.provider}
		b.do(plan.Action{Kind: plan.Register, Instance: id})
		if view := b.view(id); view.Plan.MaintenanceFailed.Count != 1 || view.Plan.InLoadBalancers {
			t.Errorf("%+v", view.Plan)
		}
		b.do(plan.Action{Kind: plan.Forget, Instance: id, Reason: "gone"})
		b.wantState(id, record.Deleted)
	})
}

// TestNoLoadBalancersForADeletedGroup checks that an instance of a deleted group is not registered with the group's
// load balancers.
func TestNoLoadBalancersForADeletedGroup(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.serving()
		b.configure(func(g *config.Group) { g.LoadBalancers, g.Deleted = []string{"lb"}, true })
		b.do(plan.Action{Kind: plan.Register, Instance: id})
		if len(b.provider.Members("lb")) != 0 || !b.view(id).Plan.InLoadBalancers {
			t.Errorf("members %v, %+v", b.provider.Members("lb"), b.view(id).Plan)
		}
	})
}

// TestRegisterWhileLoadBalancersChange changes a group's load balancers while an instance is being registered with the
// old ones. The instance must not count as registered.
func TestRegisterWhileLoadBalancersChange(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.configure(func(g *config.Group) { g.LoadBalancers = []string{"old"} })
		id := b.serving()
		b.script = func(call mock.Call) mock.Outcome {
			time.Sleep(time.Second)
			if call.Name == "old" {
				b.configure(func(g *config.Group) { g.LoadBalancers = []string{"new"} })
			}
			return mock.Outcome{}
		}
		register := plan.Action{Kind: plan.Register, Instance: id}
		b.do(register)
		if members := b.provider.Members("new"); len(members) != 0 || b.view(id).Plan.InLoadBalancers {
			t.Errorf("members %v, %+v: want that the instance is registered again", members, b.view(id).Plan)
		}
		b.do(register)
		if members := b.provider.Members("new"); len(members) != 1 || !b.view(id).Plan.InLoadBalancers {
			t.Errorf("members %v, %+v", members, b.view(id).Plan)
		}
	})
}

func TestOtherActions(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.serving()
		b.do(plan.Action{Kind: plan.PushFiles, Instance: id})
		if len(b.pushed) != 1 || b.pushed[0] != id {
			t.Errorf("pushed %v", b.pushed)
		}
		b.do(plan.Action{Kind: plan.ForgetGroup, Instance: id})
		if view := b.view(id); view.Plan.Failed.Count+view.Plan.MaintenanceFailed.Count != 1 {
			t.Errorf("an action that is none of a group's went well: %+v", view.Plan)
		}

		unknown := b.newID()
		for _, kind := range []plan.Kind{plan.Mark, plan.Drain, plan.Terminate, plan.Forget, plan.Settle} {
			b.Do(t.Context(), workers, plan.Action{Kind: kind, Instance: unknown, Reason: "test"})
		}
		for _, e := range b.State.Standing(workers.Tenant) {
			if e.Instance == unknown {
				t.Errorf("%+v stands for an instance that is not there", e)
			}
		}
		if b.made(mock.Delete) != nil {
			t.Error("the provider is asked to delete an unknown instance")
		}
	})
}

func TestForgetGroup(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.configure(func(g *config.Group) { g.Deleted, g.Static = true, false })
		b.forgetting = errTest
		b.ForgetGroup(t.Context(), workers)
		if _, ok := b.State.Group(workers); !ok || !slices.Equal(b.standing(), []string{"storage"}) {
			t.Errorf("it is there: %t, standing %v", ok, b.standing())
		}
		b.forgetting = nil
		b.ForgetGroup(t.Context(), workers)
		if _, ok := b.State.Group(workers); ok || len(b.forgotten) != 2 || b.standing() != nil {
			t.Errorf("it is there: %t, standing %v", ok, b.standing())
		}
	})
}

// TestStoreRollout checks that the executor stores what the planner asks for, and raises an alert if that fails.
func TestStoreRollout(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		version := record.GroupVersion{InfraHash: "v2"}
		b.forgetting = errTest
		for _, c := range []struct {
			action plan.Action
			want   string
		}{
			{plan.Action{Kind: plan.Halt, Version: version, Reason: "it failed"}, "halt v2: it failed"},
			{plan.Action{Kind: plan.KeepGood, Version: version}, "keep v2 with image"},
			{plan.Action{Kind: plan.EndHalt}, "end"},
		} {
			if !b.State.StoreRollout(workers) || b.State.StoreRollout(workers) {
				t.Fatal("one action at a time may store something")
			}
			b.StoreRollout(t.Context(), workers, c.action)
			if got := b.rollouts[len(b.rollouts)-1]; got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			failed := b.forgetting != nil
			s, _ := b.State.Snapshot(workers, nil)
			if s.StoringRollout || (s.StoreFailed.Count > 0) != failed || (b.standing() != nil) != failed {
				t.Errorf("%s: %+v, standing %v", c.want, s.StoreFailed, b.standing())
			}
			b.forgetting = nil
		}
	})
}

// TestUpdate checks that a change is applied to the newest version of the record.
func TestUpdate(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.serving()
		setHostname := func(r *record.Instance) { r.Hostname = "new" }

		before := b.read(id)
		if rec, err := b.Update(t.Context(), id, func(r *record.Instance) {}); err != nil ||
			rec.Revision != before.Revision || b.read(id).Revision != before.Revision {
			t.Errorf("no change: %+v, %v", rec, err)
		}

		// Update keeps a change from another write in the same term, such as an earlier attempt whose answer was lost.
		rec, token, _ := b.State.Record(id)
		rec.Image, rec.Revision = "other", rec.Revision+1
		b.write(rec, token)
		got, err := b.Update(t.Context(), id, setHostname)
		if err != nil || got.Image != "other" || got.Hostname != "new" || b.read(id).Revision != rec.Revision+1 {
			t.Errorf("%+v, %v", got, err)
		}

		// The store's answer to a write is lost, the write takes effect late, or the answer is indeterminate.
		for name, fault := range map[string]mem.Fault{"lost": {Lost: true}, "late": {Late: 3},
			"indeterminate": {Err: objstore.ErrIndeterminate}} {
			n := 0
			b.storeFault = func(r mem.Request) mem.Fault {
				if r.Op == mem.Put {
					if n++; n <= 2 {
						return fault
					}
				}
				return mem.Fault{}
			}
			want := b.read(id).Revision + 1
			if got, err := b.Update(t.Context(), id, func(r *record.Instance) {
				r.Hostname = name
			}); err != nil || got.Hostname != name || b.read(id).Revision != want {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		b.storeFault = nil

		// Update gives its callback a copy of the record.
		_, _ = b.Update(t.Context(), id, func(r *record.Instance) { r.Vars = map[string]string{"a": "b"} })
		b.storeFault = func(mem.Request) mem.Fault { return mem.Fault{Err: errTest} }
		if _, err := b.Update(t.Context(), id, func(r *record.Instance) {
			r.Vars["a"] = "c"
		}); !errors.Is(err, errTest) {
			t.Error(err)
		}
		b.storeFault = nil
		if rec, _, _ := b.State.Record(id); rec.Vars["a"] != "b" {
			t.Errorf("a write that failed is remembered: %v", rec.Vars)
		}
	})
}

func TestUpdateRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		change := func(r *record.Instance) { r.Hostname = "new" }
		var superseded *clusterstate.SupersededError

		id := b.serving()
		rec, token, _ := b.State.Record(id)
		rec.Revision, rec.Term = rec.Revision+1, term+1
		b.write(rec, token)
		if _, err := b.Update(t.Context(), id, change); !errors.As(err, &superseded) || b.refused != term+1 {
			t.Errorf("%v, refused %d: a leader of a higher term has written", err, b.refused)
		}

		id = b.serving()
		if err := b.state.DeleteInstance(t.Context(), workers.Tenant, id); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Update(t.Context(), id, change); !errors.As(err, &superseded) || superseded.Token != "" {
			t.Errorf("%v: its record is gone", err)
		}
		// In a restored bucket, the record has an older version than the one that the leader knows. Update must not
		// change the older version.
		rec, _, _ = b.State.Record(id)
		rec.Revision = 1
		b.write(rec, "")
		if _, err := b.Update(t.Context(), id, change); !errors.As(err, &superseded) ||
			superseded.Record.Revision != 1 {
			t.Errorf("%v: its record is an older one", err)
		}
		if _, err := b.Update(t.Context(), b.newID(), change); err == nil {
			t.Error("an unknown instance is changed")
		}
	})
}

func TestWork(t *testing.T) {
	for kind, want := range map[plan.Kind]plan.Work{plan.Mark: plan.MarkingDeleting, plan.Drain: plan.Draining,
		plan.Terminate: plan.Terminating,
		plan.Forget:    plan.Forgetting, plan.Register: plan.Maintaining, plan.PushFiles: plan.Maintaining,
		plan.Settle: plan.Creating, plan.Preserve: plan.Preserving, plan.Ask: plan.Idle} {
		if got := execute.Work(kind); got != want {
			t.Errorf("%s keeps an instance busy with %v, want %v", kind, got, want)
		}
	}
}

// TestForeignVM gives an instance's record the provider ID of a VM of another cluster. The executor must neither delete
// that VM nor change its load balancers, and must say why.
func TestForeignVM(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.configure(func(g *config.Group) { g.LoadBalancers = []string{"lb"} })
		foreign := infra.VM{ProviderID: "foreign", State: infra.Running, Tags: infra.Tags{
			Owner: infra.Owner{Cluster: "other", Shard: owner.Shard}, Instance: b.newID()}}
		if err := b.provider.Plant(foreign); err != nil {
			t.Fatal(err)
		}
		if err := b.provider.Register(t.Context(), "lb", foreign); err != nil {
			t.Fatal(err)
		}
		id := b.serving()
		b.leave(id)
		rec, token, _ := b.State.Record(id)
		rec.ProviderID, rec.Revision = foreign.ProviderID, rec.Revision+1
		b.State.PutRecord(rec, b.write(rec, token))
		b.do(plan.Action{Kind: plan.Terminate, Instance: id})
		if calls := b.made(mock.Delete); len(calls) != 0 {
			t.Errorf("deleted %v", calls)
		}
		if calls := b.made(mock.Deregister); len(calls) != 0 {
			t.Errorf("deregistered %v", calls)
		}
		if got := b.standing(); !slices.Contains(got, string(plan.AlertProvider)) {
			t.Errorf("alerts %v", got)
		}
		b.do(plan.Action{Kind: plan.Register, Instance: id})
		if calls := b.made(mock.Register); len(calls) != 0 {
			t.Errorf("registered %v", calls)
		}
	})
}
