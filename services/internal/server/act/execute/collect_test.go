package execute_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// stray adds a VM with the shard's tags but without a record.
func (b *bench) stray() infra.VM {
	b.t.Helper()
	vm := b.plant(b.newID(), infra.Running)
	b.State.Listed([]infra.VM{vm}, nil, time.Now())
	return vm
}

func (b *bench) collect(kind plan.Kind, vm infra.VM) bool {
	b.t.Helper()
	return b.Collect(b.t.Context(), plan.Action{Kind: kind, Instance: vm.Tags.Instance, ProviderID: vm.ProviderID,
		Reason: "test"})
}

func TestConfirmOrphan(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		vm := b.stray()
		if !b.collect(plan.ConfirmOrphan, vm) {
			t.Error("it went wrong")
		}
		if s := b.State.ShardSnapshot(); len(s.Strays[0].Reads) != 1 || s.Strays[0].Reads[0] != time.Now() ||
			s.Strays[0].Busy {
			t.Errorf("%+v", s.Strays)
		}
		b.storeFault = func(mem.Request) mem.Fault { return mem.Fault{Err: errTest} }
		if b.collect(plan.ConfirmOrphan, vm) {
			t.Error("it went well")
		}
		b.storeFault = nil
		if s := b.State.ShardSnapshot(); len(s.Strays[0].Reads) != 1 || s.Strays[0].Busy {
			t.Errorf("an answer that did not come counts: %+v", s.Strays)
		}

		// The bucket has a record of the VM, but no list of the bucket has returned the record yet.
		id := vm.Tags.Instance
		b.write(record.Instance{Schema: record.InstanceSchema, ID: id, State: record.Created, Revision: 2, Term: 3,
			ReservedTerm: 3, Writer: "w",
			Cluster: owner.Cluster, Shard: owner.Shard, Tenant: workers.Tenant, Group: workers.Group, Kind: "wrk",
			CreatedAt:  time.Now().UTC(),
			ProviderID: vm.ProviderID}, "")
		if !b.collect(plan.ConfirmOrphan, vm) {
			t.Error("it went wrong")
		}
		if view := b.view(id); view.Record.State != record.Created ||
			view.Plan.Provider.Value != plan.ProviderRunning || len(b.State.ShardSnapshot().Strays) != 0 {
			t.Errorf("%+v", view)
		}
	})
}

// TestConfirmOrphanOfAReservation checks that a VM is adopted if the bucket has its reservation, even if no list of the
// bucket has returned the reservation yet.
func TestConfirmOrphanOfAReservation(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		vm := b.stray()
		id := vm.Tags.Instance
		b.write(record.Instance{Schema: record.InstanceSchema, ID: id, State: record.Reserved, Revision: 1, Term: 3,
			ReservedTerm: 3, Writer: "w",
			Cluster: owner.Cluster, Shard: owner.Shard, Tenant: workers.Tenant, Kind: "wrk",
			CreatedAt: time.Now().UTC()}, "")
		if !b.collect(plan.ConfirmOrphan, vm) {
			t.Error("it went wrong")
		}
		rec, err := b.Update(t.Context(), id, func(r *record.Instance) { r.Hostname = "new" })
		if err != nil || rec.State != record.Created || rec.Group != workers.Group || rec.ProviderID != vm.ProviderID ||
			rec.Revision != 2 {
			t.Errorf("%+v, %v", rec, err)
		}
		b.wantState(id, record.Created)
	})
}

// TestTerminateStray checks that a VM without a record is terminated only after its tombstone is durable.
func TestTerminateStray(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		vm := b.stray()
		id := vm.Tags.Instance
		b.storeFault = func(mem.Request) mem.Fault { return mem.Fault{Err: errTest} }
		if b.collect(plan.TerminateStray, vm) || b.made(mock.Delete) != nil {
			t.Error("terminated without a tombstone")
		}
		b.storeFault = nil
		b.confirm = errTest
		if b.collect(plan.TerminateStray, vm) || b.made(mock.Delete) != nil {
			t.Error("terminated without proof of leadership")
		}
		b.confirm, b.remaining = nil, time.Millisecond
		if b.collect(plan.TerminateStray, vm) || b.made(mock.Delete) != nil {
			t.Error("terminated without authority")
		}
		b.remaining = time.Hour
		b.wantState(id, record.Deleted)
		b.script = func(call mock.Call) mock.Outcome {
			return mock.Outcome{Err: infra.Errorf(infra.Throttled, "delete", "slow down")}
		}
		if b.collect(plan.TerminateStray, vm) {
			t.Error("it went well")
		}
		b.script = nil
		if s := b.State.ShardSnapshot(); len(s.Strays) != 1 || !s.Strays[0].Tombstone || s.Strays[0].Busy {
			t.Errorf("%+v", s.Strays)
		}
		if !b.collect(plan.TerminateStray, vm) {
			t.Error("it went wrong")
		}
		if vm, _ := b.provider.Instance(id); vm.State != infra.Deleting {
			t.Errorf("its VM is %s", vm.State)
		}
		if s := b.State.ShardSnapshot(); len(s.Strays) != 0 {
			t.Errorf("%+v: it would be requested again immediately", s.Strays)
		}
		if rec := b.read(id); rec.Revision != 1 || rec.Group != workers.Group || rec.ProviderID != vm.ProviderID ||
			rec.DeleteReason != "test" {
			t.Errorf("%+v", rec)
		}
	})
}

// TestTerminateStrayWithARecord checks that a VM is not terminated as a stray if its record appears at the last moment.
func TestTerminateStrayWithARecord(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		vm := b.stray()
		id := vm.Tags.Instance
		b.write(record.Instance{Schema: record.InstanceSchema, ID: id, State: record.Created, Revision: 2, Term: term,
			ReservedTerm: term, Writer: "w",
			Cluster: owner.Cluster, Shard: owner.Shard, Tenant: workers.Tenant, Group: workers.Group, Kind: "wrk",
			CreatedAt:  time.Now().UTC(),
			ProviderID: vm.ProviderID}, "")
		if !b.collect(plan.TerminateStray, vm) || b.made(mock.Delete) != nil {
			t.Error("it is terminated")
		}
		if view := b.view(id); view.Record.State != record.Created {
			t.Errorf("%+v", view.Record)
		}
	})
}

func TestSettle(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		leave := func(id func() infra.VM) infra.VM {
			vm := id()
			rec := record.Instance{Schema: record.InstanceSchema, ID: vm.Tags.Instance, State: record.Reserved,
				Revision: 1, Term: 3, ReservedTerm: 3, Writer: "w",
				Cluster: owner.Cluster, Shard: owner.Shard, Tenant: workers.Tenant, Kind: "wrk",
				CreatedAt: time.Now().UTC()}
			b.State.AddLeftover(shardstate.Reservation{Record: rec, Token: b.write(rec, "")})
			return vm
		}
		adopted := leave(func() infra.VM { return b.plant(b.newID(), infra.Running) })
		unused := leave(func() infra.VM { return infra.VM{Tags: infra.Tags{Instance: b.newID()}} })

		b.script = func(call mock.Call) mock.Outcome {
			return mock.Outcome{Err: infra.Errorf(infra.Throttled, "find", "slow down")}
		}
		if b.collect(plan.Settle, adopted) || b.collect(plan.Settle, unused) {
			t.Error("settled without an answer")
		}
		b.script = nil
		b.remaining = 0
		if b.collect(plan.Settle, adopted) {
			t.Error("settled without authority")
		}
		b.remaining = time.Hour
		if !b.collect(plan.Settle, adopted) || !b.collect(plan.Settle, unused) {
			t.Error("not settled")
		}
		rec := b.read(adopted.Tags.Instance)
		if rec.State != record.Created || rec.Term != term || rec.ReservedTerm != 3 || rec.Group != workers.Group ||
			rec.ProviderID != adopted.ProviderID ||
			rec.IPv4 != "10.0.0.1" || rec.Revision != 2 || rec.Writer != "me" {
			t.Errorf("%+v", rec)
		}
		if view := b.view(rec.ID); view.Plan.Provider.Value != plan.ProviderRunning {
			t.Errorf("%+v", view.Plan)
		}
		b.wantState(unused.Tags.Instance, record.Deleted)
		for _, vm := range []infra.VM{adopted, unused} {
			if _, ok := b.State.Leftover(vm.Tags.Instance); ok {
				t.Error("it is still left over")
			}
		}
		if !b.collect(plan.Settle, adopted) {
			t.Error("what is settled is no trouble")
		}

		// Another leader, of a lower or a higher term, has already replaced the reservation by a tombstone.
		for _, by := range []uint64{4, term + 1} {
			vm := leave(func() infra.VM { return infra.VM{Tags: infra.Tags{Instance: b.newID()}} })
			left, _ := b.State.Leftover(vm.Tags.Instance)
			rec := left.Record
			rec.State, rec.DeletedAt, rec.Revision, rec.Term = record.Deleted, time.Now().UTC(), 2, by
			b.write(rec, left.Token)
			if ok := b.collect(plan.Settle, vm); ok != (by < term) {
				t.Errorf("by term %d: %t", by, ok)
			}
		}
		if b.refused != term+1 {
			t.Errorf("refused %d", b.refused)
		}
	})
}

// TestSettleAfterACreateWithoutResult settles an instance of this term with a create call that ended without a recorded
// result.
func TestSettleAfterACreateWithoutResult(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		found, lost := b.reserve(), b.reserve()
		for range 2 {
			r, _, _ := b.State.TakeReservation(pool)
			rec := r.Record
			rec.Group = workers.Group
			b.State.Use(rec, r.Token, ident.ID{})
			b.State.End(rec.ID, nil)
		}
		b.plant(found, infra.Running)
		b.script = func(call mock.Call) mock.Outcome {
			return mock.Outcome{Err: infra.Errorf(infra.Throttled, "find", "slow down")}
		}
		b.do(plan.Action{Kind: plan.Settle, Instance: found})
		b.script = nil
		if view := b.view(found); view.Plan.Failed.Count != 1 || view.Plan.Work != plan.Idle {
			t.Errorf("%+v", view.Plan)
		}
		for _, id := range []plan.Action{{Kind: plan.Settle, Instance: found}, {Kind: plan.Settle, Instance: lost}} {
			b.do(id)
		}
		b.wantState(found, record.Created)
		b.wantState(lost, record.Deleted)
		if view := b.view(found); view.Plan.Provider.Value != plan.ProviderRunning || view.Record.ProviderID != "vm-"+
			found.String() {
			t.Errorf("%+v", view.Plan)
		}
		if b.backoff().Failures != 1 {
			t.Errorf("back-off %+v", b.backoff())
		}
	})
}

func TestRemoveTombstone(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.serving()
		vm := infra.VM{Tags: infra.Tags{Instance: id}}
		if !b.collect(plan.RemoveTombstone, vm) {
			t.Error("what is no tombstone is trouble")
		}
		b.wantState(id, record.Registered)
		b.do(plan.Action{Kind: plan.Forget, Instance: id, Reason: "gone"})
		b.remaining = 0
		if b.collect(plan.RemoveTombstone, vm) {
			t.Error("removed without authority")
		}
		b.remaining = time.Hour
		b.storeFault = func(mem.Request) mem.Fault { return mem.Fault{Err: errTest} }
		if b.collect(plan.RemoveTombstone, vm) {
			t.Error("removed without an answer")
		}
		if _, ok := b.State.Tombstone(id); !ok {
			t.Error("it is forgotten, and may be there")
		}
		b.storeFault = nil
		if !b.collect(plan.RemoveTombstone, vm) {
			t.Error("it went wrong")
		}
		if _, _, err := b.state.GetInstance(t.Context(), workers.Tenant, id); !errors.Is(err, objstore.ErrNotFound) {
			t.Error(err)
		}
		if _, ok := b.State.Tombstone(id); ok {
			t.Error("it is remembered")
		}
		if b.Collect(t.Context(), plan.Action{Kind: plan.Mark}) {
			t.Error("an action that does not belong to garbage collection succeeded")
		}
	})
}
