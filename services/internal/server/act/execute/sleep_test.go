package execute_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// sleepy creates a spare whose VM can sleep, and lets it register.
func (b *bench) sleepy() ident.ID {
	b.t.Helper()
	b.configure(func(g *config.Group) { g.Spares = config.Spares{Count: 1, State: config.SparesStopped} })
	id := b.reserve()
	b.do(plan.Action{Kind: plan.Create, Spare: true, Voluntary: true, Reason: "too few", Rule: 79})
	if calls := b.made(mock.Create); len(calls) != 1 || calls[0].Request.Sleep != config.SparesStopped {
		b.t.Errorf("%+v", calls)
	}
	now := time.Now().UTC()
	if _, err := b.Update(b.t.Context(), id, func(r *record.Instance) {
		r.State, r.RegisteredAt, r.PublicKey, r.NonceID = record.Registered, now, make([]byte, 32), "n"
		r.Certificate = &record.CertificateRef{Serial: "00000000000000000000000000000001", NotAfter: now}
	}); err != nil {
		b.t.Fatal(err)
	}
	b.events, b.calls, b.confirmed = nil, nil, 0
	return id
}

// vmState is the state of an instance's VM.
func (b *bench) vmState(id ident.ID) infra.State {
	b.t.Helper()
	vm, err := b.provider.FindByInstance(b.t.Context(), owner, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return vm.State
}

func asksTo(kind plan.Kind, id ident.ID) plan.Action {
	return plan.Action{Kind: kind, Instance: id, Reason: "test", Rule: 82}
}

// TestSleepAndWake puts a spare to sleep, makes it a member, and wakes it.
func TestSleepAndWake(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.sleepy()
		stream, _ := b.State.Connected(id)
		b.do(asksTo(plan.Sleep, id))
		if rec := b.read(id); rec.Spare.AsleepAt.IsZero() || b.confirmed != 1 || b.vmState(id) != infra.Stopped {
			t.Errorf("%+v, confirmed %d times, its VM is %s", rec.Spare, b.confirmed, b.vmState(id))
		}
		b.State.Disconnected(id, stream, "test")
		if err := b.State.Reported(id, stream, shardstate.Report{Stopping: plan.PowerOff}); !err {
			t.Error("its report is refused")
		}
		b.State.Answered(id, infra.VM{ProviderID: b.read(id).ProviderID, State: infra.Stopped}, time.Now())
		b.wantEvents(shardstate.EventAsleep)
		view, _ := b.State.GroupView(workers)
		if view.SparesThere != 1 || view.SparesReady != 1 {
			t.Errorf("%d spares, %d ready", view.SparesThere, view.SparesReady)
		}
		before := b.read(id).Revision
		b.do(asksTo(plan.Sleep, id)) // as a leader does that takes over
		b.do(asksTo(plan.Wake, id))  // an old plan
		if b.read(id).Revision != before || len(b.made(mock.Sleep)) != 2 || len(b.made(mock.Wake)) != 0 {
			t.Errorf("a repeated call changed something: %+v", b.calls)
		}
		b.do(plan.Action{Kind: plan.Promote, Instance: id, Reason: "test", Rule: 78})
		b.do(asksTo(plan.Sleep, id)) // an old plan
		if p := b.view(id).Plan; !p.Waking() || len(b.made(mock.Sleep)) != 2 {
			t.Errorf("%+v", p)
		}
		b.do(asksTo(plan.Wake, id))
		if p := b.view(id).Plan; p.WakeRequested.IsZero() || b.vmState(id) != infra.Running {
			t.Errorf("%+v, its VM is %s", p, b.vmState(id))
		}
		b.wantEvents(shardstate.EventPromoted)
		stream, _ = b.State.Connected(id)
		b.State.Reported(id, stream, shardstate.Report{Healthy: true, Role: plan.RoleMember})
		if p := b.view(id).Plan; !p.Woken || !p.Healthy {
			t.Errorf("%+v", p)
		}
		b.State.Disconnected(id, stream, "test")
		b.wantEvents(shardstate.EventHealthy, shardstate.EventLost)
	})
}

// TestSleepRecordsTheDecisionFirst checks that no VM is put to sleep that another leader, or this one, decided otherwise
// about.
func TestSleepRecordsTheDecisionFirst(t *testing.T) {
	for name, prepare := range map[string]func(b *bench, id ident.ID){
		"its deletion is recorded": func(b *bench, id ident.ID) { b.leave(id) },
		"it is a member": func(b *bench, id ident.ID) {
			b.do(plan.Action{Kind: plan.Promote, Instance: id, Reason: "test", Rule: 78})
		},
		"no confirmation": func(b *bench, _ ident.ID) { b.confirm = errTest },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				id := b.sleepy()
				prepare(b, id)
				b.do(asksTo(plan.Sleep, id))
				if len(b.made(mock.Sleep)) != 0 {
					t.Errorf("%+v", b.calls)
				}
			})
		})
	}
}

// TestSleepThatFails checks what follows from the errors of a provider.
func TestSleepThatFails(t *testing.T) {
	for _, c := range []struct {
		kind          plan.Kind
		class         infra.Class
		alerts, ended bool
	}{
		{plan.Sleep, infra.Conflict, false, false}, {plan.Sleep, infra.Invalid, true, false},
		{plan.Sleep, infra.NotFound, true, false}, {plan.Wake, infra.Conflict, false, false},
		{plan.Wake, infra.Capacity, true, false}, {plan.Wake, infra.Invalid, true, true},
		{plan.Wake, infra.NotFound, true, true},
	} {
		t.Run(string(c.kind)+" "+string(c.class), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				id := b.sleepy()
				if c.kind == plan.Wake {
					b.do(asksTo(plan.Sleep, id))
					b.do(plan.Action{Kind: plan.Promote, Instance: id, Reason: "test", Rule: 78})
				}
				b.script = func(call mock.Call) mock.Outcome {
					return mock.Outcome{Err: infra.Errorf(c.class, string(call.Kind), "test")}
				}
				b.do(asksTo(c.kind, id))
				p := b.view(id).Plan
				asked := p.SleepRequested
				if c.kind == plan.Wake {
					asked = p.WakeRequested
				}
				if !asked.IsZero() || p.MaintenanceFailed.Count != 1 || p.Failed.Count != 0 ||
					(p.WakeFailed != "") != c.ended || (len(b.standing()) > 0) != c.alerts {
					t.Errorf("%+v, alerts %v", p, b.standing())
				}
				b.script = nil
				b.do(asksTo(c.kind, id))
				if len(b.standing()) != 0 {
					t.Errorf("alerts %v", b.standing())
				}
			})
		})
	}
}

// TestNotWokenIsNoFailure checks that a member that did not wake halts no rollout and delays no creation, but keeps other
// spares awake.
func TestNotWokenIsNoFailure(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.sleepy()
		b.do(asksTo(plan.Sleep, id))
		b.do(plan.Action{Kind: plan.Promote, Instance: id, Reason: "test", Rule: 78})
		b.do(plan.Action{Kind: plan.Mark, Instance: id, Reason: "its VM did not wake", Cause: plan.CauseNotWoken})
		s, _ := b.State.Snapshot(workers, nil)
		if s.NotWokenAt.IsZero() || s.RolloutFailures+s.Backoff.Failures+s.SpareBackoff.Failures != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestNoSleeper checks what happens if the provider cannot put VMs to sleep.
func TestNoSleeper(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.sleepy()
		b.Provider = struct{ infra.Provider }{b.provider}
		b.do(asksTo(plan.Sleep, id))
		b.do(plan.Action{Kind: plan.Promote, Instance: id, Reason: "test", Rule: 78})
		b.do(asksTo(plan.Wake, id))
		if p := b.view(id).Plan; p.WakeFailed == "" {
			t.Errorf("%+v", p)
		}
	})
}
