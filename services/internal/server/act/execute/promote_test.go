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
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// spare makes an instance that serves a warm spare.
func (b *bench) spare() ident.ID {
	b.t.Helper()
	id := b.serving()
	if _, err := b.Update(b.t.Context(), id, func(r *record.Instance) { r.Spare = &record.Spare{} }); err != nil {
		b.t.Fatal(err)
	}
	b.events = nil
	return id
}

// TestPromote checks that a spare becomes a member with one write of its record, and that its agent is told, also if
// the answer to the write is lost.
func TestPromote(t *testing.T) {
	for _, lost := range []bool{false, true} {
		inBubble(t, func(t *testing.T, b *bench) {
			b.configure(func(g *config.Group) { g.Spares.Count = 1 })
			old, id := b.serving(), b.spare()
			view, _ := b.State.GroupView(workers)
			if view.Actual != 1 || view.SparesThere != 1 {
				t.Errorf("%d members, %d spares", view.Actual, view.SparesThere)
			}
			promote := plan.Action{Kind: plan.Promote, Instance: id, Replaces: old, Reason: "it is silent",
				Cause: plan.CauseUnhealthy, Rule: 78}
			before := b.read(id).Revision
			if lost {
				b.storeFault = func(mem.Request) mem.Fault { return mem.Fault{Lost: true} }
			}
			b.do(promote)
			b.storeFault = nil
			rec := b.read(id)
			if rec.IsSpare() || rec.Spare == nil || rec.State != record.Registered || rec.Revision != before+1 {
				t.Errorf("%+v, revision %d after %d", rec.Spare, rec.Revision, before)
			}
			if len(b.roles) != 1 || b.roles[0] != id {
				t.Errorf("told %v", b.roles)
			}
			if len(b.events) != 1 || b.events[0].Replaces != old || b.events[0].Cause != plan.CauseUnhealthy {
				t.Errorf("%+v", b.events)
			}
			b.wantEvents(shardstate.EventPromoted)
			if p := b.view(id).Plan; p.Spare || p.PromotedAt.IsZero() || p.Finishes != old {
				t.Errorf("%+v", p)
			}
			b.do(promote) // an old plan
			b.wantEvents()
			if view, _ = b.State.GroupView(workers); view.Actual != 2 || view.SparesThere != 0 {
				t.Errorf("%d members, %d spares", view.Actual, view.SparesThere)
			}
		})
	}
}

// TestPromoteWhatIsLeaving checks that an instance whose deletion was recorded meanwhile does not become a member.
func TestPromoteWhatIsLeaving(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.spare()
		b.leave(id)
		b.do(plan.Action{Kind: plan.Promote, Instance: id, Reason: "the group is smaller than its size"})
		if rec := b.read(id); !rec.IsSpare() || len(b.roles) != 0 {
			t.Errorf("%+v, told %v", rec.Spare, b.roles)
		}
		b.wantEvents()
	})
}

// TestCreateSpare checks that a spare has its role in its record and its tags, that a later leader finds it by them,
// and that a failed creation delays only spares.
func TestCreateSpare(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.configure(func(g *config.Group) { g.Spares.Count = 1 })
		id := b.reserve()
		create := plan.Action{Kind: plan.Create, Spare: true, Voluntary: true, Reason: "too few", Rule: 79}
		b.do(create)
		if rec := b.read(id); !rec.IsSpare() || rec.State != record.Created {
			t.Errorf("%+v", rec)
		}
		if calls := b.made(mock.Create); len(calls) != 1 || !calls[0].Request.Tags.Spare {
			t.Errorf("%+v", calls)
		}
		s, _ := b.State.Snapshot(workers, nil)
		if s.PendingSpares != 0 || s.PendingCreates != 0 || len(s.Instances) != 1 || !s.Instances[0].Spare {
			t.Errorf("%+v", s)
		}

		b.script = func(call mock.Call) mock.Outcome {
			return mock.Outcome{Err: infra.Errorf(infra.Invalid, string(call.Kind), "no such image")}
		}
		b.do(create)
		time.Sleep(time.Second)
		if s, _ = b.State.Snapshot(workers, nil); s.SpareBackoff.Failures != 1 || s.Backoff.Failures != 0 {
			t.Errorf("backoff of spares %+v, of others %+v", s.SpareBackoff, s.Backoff)
		}
	})
}
