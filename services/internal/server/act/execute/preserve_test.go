package execute_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// TestPreserve checks that a failed instance is preserved durably, counts as failed, and leaves its load balancers,
// also when a call fails or another leader has recorded it.
func TestPreserve(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.configure(func(g *config.Group) {
			g.LoadBalancers = []string{"lb1"}
			g.Preserve = config.Preserve{Max: 1, For: config.Duration(time.Hour)}
		})
		id := b.balanced()
		b.events = nil
		preserve := plan.Action{Kind: plan.Preserve, Instance: id, Reason: "it is silent", Cause: "unhealthy", Rule: 12,
			Deadline: time.Now().Add(time.Minute)}

		b.storeFault = func(mem.Request) mem.Fault { return mem.Fault{Err: errTest} }
		b.do(preserve)
		if rec := b.view(id).Record; rec.Preserved != nil || len(b.provider.Members("lb1")) != 1 {
			t.Errorf("%+v: the bucket does not answer", rec)
		}
		b.storeFault = nil
		b.script = func(call mock.Call) mock.Outcome {
			return mock.Outcome{Err: infra.Errorf(infra.Throttled, string(call.Kind), "slow down")}
		}
		b.do(preserve)
		rec := b.read(id)
		if want := (record.Preserved{At: time.Now().UTC(), Reason: "it is silent (rule 12)"}); rec.Preserved == nil ||
			*rec.Preserved != want || rec.State != record.Registered {
			t.Errorf("%+v, want %+v", rec.Preserved, want)
		}
		b.mu.Lock()
		if len(b.events) != 1 || !b.events[0].Drain || b.events[0].Cause != "unhealthy" {
			t.Errorf("told %+v", b.events)
		}
		b.mu.Unlock()
		b.wantEvents(shardstate.EventPreserved)
		view := b.view(id)
		if view.Plan.PreservedAt.IsZero() || view.Plan.Deregistered || view.Plan.Failed.Count != 2 ||
			!view.PreservedUntil.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("%+v", view.Plan)
		}
		b.script = nil
		b.do(plan.Action{Kind: plan.Preserve, Instance: id, Reason: "it is preserved"})
		if view := b.view(id); !view.Plan.Deregistered || len(b.provider.Members("lb1")) != 0 ||
			b.read(id).Revision != rec.Revision {
			t.Errorf("%+v", view.Plan)
		}
		b.wantEvents()
		if group, _ := b.State.GroupView(workers); group.Preserved != 1 || group.Actual != 0 {
			t.Errorf("%d preserved, %d in all", group.Preserved, group.Actual)
		}
		// Its deletion waits until its load balancers have finished its requests since it left them.
		left := time.Now()
		time.Sleep(20 * time.Second)
		b.delays = map[string]time.Duration{"lb1": 30 * time.Second}
		b.leave(id)
		b.do(plan.Action{Kind: plan.Drain, Instance: id, Deadline: time.Now().Add(time.Minute)})
		b.wantBalancersUntil(id, left, 30*time.Second)
		if view := b.view(id); !view.PreservedUntil.IsZero() || view.Record.Preserved == nil {
			t.Errorf("%+v", view.Plan)
		}
	})
}

// TestPreserveCountsAsFailure checks the group's backoff, and what happens if the record has changed meanwhile.
func TestPreserveCountsAsFailure(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.serving()
		preserve := plan.Action{Kind: plan.Preserve, Instance: id, Reason: "it did not register", Cause: "unregistered"}
		other, token, _ := b.State.Record(id)
		other.Image, other.Revision = "other", other.Revision+1
		b.write(other, token)
		b.do(preserve)
		if rec := b.read(id); rec.Preserved != nil || b.backoff().Failures != 0 {
			t.Errorf("%+v: another writer has changed the record", rec.Preserved)
		}
		b.do(preserve)
		if rec := b.read(id); rec.Preserved == nil || b.backoff().Failures != 1 {
			t.Errorf("%+v, %d failures", rec.Preserved, b.backoff().Failures)
		}
		b.wantEvents(shardstate.EventPreserved)
		b.do(preserve)
		if b.backoff().Failures != 1 {
			t.Errorf("%d failures", b.backoff().Failures)
		}
		b.wantEvents()

		id = b.serving()
		b.leave(id)
		preserve.Instance = id
		b.do(preserve)
		if rec := b.read(id); rec.Preserved != nil {
			t.Errorf("%+v: it is being deleted", rec.Preserved)
		}
	})
}
