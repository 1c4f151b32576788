package execute_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// changing are the actions that change something at the provider. Each function prepares an action and returns a
// function that performs it.
var changing = map[string]func(b *bench) func(context.Context){
	"create": func(b *bench) func(context.Context) {
		b.reserve()
		return func(ctx context.Context) { b.doUntil(ctx, plan.Action{Kind: plan.Create}) }
	},
	"create on demand": func(b *bench) func(context.Context) {
		group, _ := b.State.Group(workers)
		return func(ctx context.Context) { _ = b.CreateOnDemand(ctx, group, b.newID(), "", nil) }
	},
	"register": func(b *bench) func(context.Context) {
		id := b.serving()
		return func(ctx context.Context) { b.doUntil(ctx, plan.Action{Kind: plan.Register, Instance: id}) }
	},
	"drain": func(b *bench) func(context.Context) {
		id := b.serving()
		b.leave(id)
		return func(ctx context.Context) { b.doUntil(ctx, plan.Action{Kind: plan.Drain, Instance: id}) }
	},
	"terminate": func(b *bench) func(context.Context) {
		id := b.serving()
		b.leave(id)
		return func(ctx context.Context) { b.doUntil(ctx, plan.Action{Kind: plan.Terminate, Instance: id}) }
	},
	"terminate without a provider ID": func(b *bench) func(context.Context) {
		id := b.reserve()
		reservation, _, _ := b.State.TakeReservation(pool)
		rec, now := reservation.Record, time.Now().UTC()
		rec.Group, rec.Revision, rec.State = workers.Group, 2, record.Deleting
		rec.DeletingAt, rec.DeleteReason, rec.DeleteDeadline = now, "test", now
		b.State.PutRecord(rec, b.write(rec, reservation.Token))
		b.plant(id, infra.Running)
		return func(ctx context.Context) { b.doUntil(ctx, plan.Action{Kind: plan.Terminate, Instance: id}) }
	},
	"forget": func(b *bench) func(context.Context) {
		id := b.serving()
		b.leave(id)
		return func(ctx context.Context) { b.doUntil(ctx, plan.Action{Kind: plan.Forget, Instance: id}) }
	},
	"terminate a stray": func(b *bench) func(context.Context) {
		vm := b.stray()
		return func(ctx context.Context) {
			b.Collect(ctx, plan.Action{Kind: plan.TerminateStray, Instance: vm.Tags.Instance,
				ProviderID: vm.ProviderID, Reason: "test"})
		}
	},
}

// TestAuthorityEndsDuringAnAction lets the authority end during each request of each action, to the bucket or to the
// provider. No later call may change anything at the provider. Each delete call needs a proof of leadership that is
// newer than the answers to all earlier requests of its action.
func TestAuthorityEndsDuringAnAction(t *testing.T) {
	changes := []mock.Kind{mock.Create, mock.Delete, mock.Register, mock.Deregister}
	for name, prepare := range changing {
		for last, requests := 1, 1; last <= requests+1; last++ {
			t.Run(fmt.Sprintf("%s, request %d", name, last), func(t *testing.T) {
				changed := 0
				inBubble(t, func(t *testing.T, b *bench) {
					b.configure(func(g *config.Group) { g.LoadBalancers = []string{"lb1", "lb2"} })
					perform := prepare(b)
					before := b.requests
					// Each request takes a second. Between a check of the authority and the start of the next call no
					// time passes, so the authority never ends there.
					begin := func() {
						if b.requests == before+last {
							time.AfterFunc(time.Second/2, func() {
								b.mu.Lock()
								defer b.mu.Unlock()
								b.remaining, b.confirm = 0, errTest
							})
						}
					}
					b.storeFault = func(mem.Request) mem.Fault {
						begin()
						return mem.Fault{Before: time.Second}
					}
					b.script = func(call mock.Call) mock.Outcome {
						b.mu.Lock()
						defer b.mu.Unlock()
						if slices.Contains(changes, call.Kind) {
							changed++
							if b.remaining == 0 {
								t.Errorf("%s is called without authority", call.Kind)
							}
							if call.Kind == mock.Delete && b.provedAfter != b.requests-1 {
								t.Errorf("the proof for %s is older than the request before it", call.Kind)
							}
						}
						begin()
						if call.Kind == mock.Create && changed == 1 {
							return mock.Outcome{Latency: time.Second, Lost: true}
						}
						return mock.Outcome{Latency: time.Second}
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					perform(ctx)
					b.wait()
					requests = b.requests - before
				})
				if last > requests && changed == 0 {
					t.Error("the action changes nothing")
				}
			})
		}
	}
}
