package execute_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// batching renders batches, unless differ is set.
type batching struct {
	*bench
	differ bool
}

func (b batching) RenderBatch(_ context.Context, _ config.Group, _ record.Instance, batch ident.Batch) (filegen.Machine,
	bool, error) {
	return filegen.Machine{Userdata: []byte("nonce of " + batch.String()), Hostname: "host", Image: "image"}, !b.differ,
		b.render
}

// batched makes the executor batch creates.
func (b *bench) batched() {
	b.Renderer, b.Batches = batching{bench: b}, func() int { return execute.SmallestBatch }
}

// createMany performs creates that one plan of the group has.
func (b *bench) createMany(n int, change ...func(*plan.Action)) {
	b.t.Helper()
	var actions []plan.Action
	spots := 0
	for range n {
		action := create
		for _, change := range change {
			change(&action)
		}
		if action.Spot {
			spots++
		}
		actions = append(actions, action)
	}
	b.State.ExpectCreates(workers, shardstate.Pending{Members: n, Spot: spots})
	for _, part := range b.Together(workers, actions) {
		if len(part) == 1 {
			b.Do(b.t.Context(), workers, part[0])
		} else {
			b.CreateMany(b.t.Context(), workers, part)
		}
	}
}

// states counts the records of each state, without unused reservations.
func (b *bench) states() map[record.State]int {
	states := map[record.State]int{}
	for id, rec := range b.records() {
		if _, left := b.State.Leftover(id); rec.State != record.Reserved || left {
			states[rec.State]++
		}
	}
	return states
}

func (b *bench) wantStates(created, deleted, vms int) {
	b.t.Helper()
	if got := b.states(); got[record.Created] != created || got[record.Deleted] != deleted ||
		len(b.provider.VMs()) != vms || b.pending() != 0 {
		b.t.Errorf("%v, %d VMs, %d pending; want %d created, %d deleted, %d VMs", got, len(b.provider.VMs()),
			b.pending(), created, deleted, vms)
	}
}

func TestBatch(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.batched()
		reserved := 0
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind == mock.CreateBatch {
				reserved = len(b.records())
			}
			return mock.Outcome{}
		}
		b.createMany(10)
		b.wait()
		calls := b.made(mock.CreateBatch)
		if len(calls) != 1 || len(b.made(mock.Create)) != 0 || reserved != 10 {
			t.Fatalf("%d batches, %d creates, %d records before the call", len(calls), len(b.made(mock.Create)),
				reserved)
		}
		req := calls[0].Batch
		if tags := req.VM.Tags; req.Count != 10 || tags.Group != workers.Group || tags.Term != term ||
			!tags.Instance.IsZero() || req.VM.InstanceType != "small" || req.VM.Subnet != "a" ||
			req.VM.Arch != "amd64" || string(req.VM.Userdata) != "nonce of "+req.Batch.String() {
			t.Errorf("%+v", req)
		}
		for _, vm := range b.provider.VMs() {
			rec := b.read(vm.Tags.Instance)
			if rec.State != record.Created || rec.ProviderID != vm.ProviderID || rec.Group != workers.Group ||
				rec.InstanceType != "small" || rec.SubnetID != "a" || rec.Image != "image" || rec.InfraHash != "i1" ||
				rec.IPv4 != vm.IPv4 || !req.Batch.Has(rec.ID) || b.view(rec.ID).Plan.Work != plan.Idle {
				t.Errorf("%+v of %+v", rec, vm)
			}
		}
		b.wantStates(10, 0, 10)
		told := map[shardstate.InstanceEventType]int{}
		for _, e := range b.events {
			told[e.Type]++
		}
		if told[shardstate.EventCreating] != 10 || told[shardstate.EventCreated] != 10 {
			t.Errorf("told %v", told)
		}
	})
}

// TestFewCreatesAreSingle checks that creates are single if there are few, if their VMs differ, if batches are not
// permitted, or if they have a cause of their own.
func TestFewCreatesAreSingle(t *testing.T) {
	for name, c := range map[string]struct {
		n       int
		prepare func(*bench)
		change  func(*plan.Action)
	}{
		"few":           {3, func(*bench) {}, func(*plan.Action) {}},
		"VMs differ":    {6, func(b *bench) { b.Renderer = batching{b, true} }, func(*plan.Action) {}},
		"not permitted": {6, func(b *bench) { b.Batches = func() int { return 0 } }, func(*plan.Action) {}},
		"no renderer":   {6, func(b *bench) { b.Renderer = b }, func(*plan.Action) {}},
		"no capability": {6, func(b *bench) {
			b.Provider = struct{ infra.Provider }{b.provider}
		}, func(*plan.Action) {}},
		"return to spot": {6, func(*bench) {}, func(a *plan.Action) {
			a.Spot, a.Cause = true, plan.CauseReturnToSpot
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				b.batched()
				c.prepare(b)
				b.createMany(c.n, c.change)
				b.wait()
				if n := len(b.made(mock.CreateBatch)); n != 0 || len(b.made(mock.Create)) != c.n {
					t.Errorf("%d batches, %d creates", n, len(b.made(mock.Create)))
				}
				b.wantStates(c.n, 0, c.n)
			})
		})
	}
}

// TestPartlyFilledBatch checks that the IDs that are left over are spent, and that the rest goes to another placement in
// another batch.
func TestPartlyFilledBatch(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.batched()
		b.provider.SetCapacity(mock.Place{Type: "small", Subnet: "a"}, 6)
		b.createMany(10)
		b.wait()
		b.wantStates(6, 4, 6)
		if b.backoff().Failures != 0 {
			t.Errorf("back-off %+v", b.backoff())
		}
		b.createMany(4)
		b.wait()
		b.wantStates(10, 4, 10)
		calls := b.made(mock.CreateBatch)
		if len(calls) != 2 || calls[0].Batch.Batch == calls[1].Batch.Batch || calls[1].Batch.VM.Subnet != "b" {
			t.Fatalf("%v", calls)
		}
		for id, rec := range b.records() {
			if rec.State == record.Deleted && !calls[0].Batch.Batch.Has(id) {
				t.Errorf("%s is spent", id)
			}
		}

		// Without another placement, the group backs off.
		b.configure(func(g *config.Group) { g.Subnets, g.InstanceTypes = []string{"c"}, nil })
		b.provider.SetCapacity(mock.Place{Type: "small", Subnet: "c"}, 1)
		b.createMany(5)
		b.wait()
		b.wantStates(11, 8, 11)
		if b.backoff().Failures != 1 {
			t.Errorf("back-off %+v", b.backoff())
		}
	})
}

// TestRefusedBatchIsHalved checks that batches become smaller at a placement without room for all, and that the last
// refusal is that of single creates.
func TestRefusedBatchIsHalved(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.batched()
		b.configure(func(g *config.Group) { g.Subnets, g.InstanceTypes = []string{"a"}, nil })
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind == mock.CreateBatch && call.Batch.Count > 6 {
				return mock.Outcome{Err: infra.Errorf(infra.Capacity, "create", "no room for all")}
			}
			return mock.Outcome{}
		}
		for range 3 {
			b.createMany(20)
			b.wait()
		}
		var counts []int
		for _, call := range b.made(mock.CreateBatch) {
			counts = append(counts, call.Batch.Count)
		}
		// The third plan makes its 20 instances in batches of 5.
		if want := []int{20, 10, 5, 5, 5, 5}; !slices.Equal(counts, want) || b.backoff().Failures != 0 {
			t.Errorf("batches of %v, want %v; back-off %+v", counts, want, b.backoff())
		}
		b.wantStates(20, 30, 20)

		// What no single create can have either is a failure.
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind == mock.CreateBatch || call.Kind == mock.Create {
				return mock.Outcome{Err: infra.Errorf(infra.Denied, "create", "not permitted")}
			}
			return mock.Outcome{}
		}
		b.createMany(4)
		b.wait()
		if n := len(b.made(mock.Create)); n != 0 || b.backoff().Failures != 0 {
			t.Errorf("%d creates, back-off %+v", n, b.backoff())
		}
		b.createMany(4)
		b.wait()
		if n := len(b.made(mock.Create)); n != 4 || b.backoff().Failures != 1 {
			t.Errorf("%d creates, back-off %+v", n, b.backoff())
		}
	})
}

// TestLostAnswerOfBatch checks that a call without an answer is repeated with the same batch, and that the VMs of a call
// that took effect are found.
func TestLostAnswerOfBatch(t *testing.T) {
	for name, script := range map[string]func(n int) mock.Outcome{
		"lost": func(n int) mock.Outcome { return mock.Outcome{Lost: n < 3} },
		"lost, then refused": func(n int) mock.Outcome {
			if n == 1 {
				return mock.Outcome{Lost: true}
			}
			return mock.Outcome{Err: infra.Errorf(infra.Capacity, "create", "no room")}
		},
		"throttled": func(n int) mock.Outcome {
			if n < 3 {
				return mock.Outcome{Err: infra.Errorf(infra.Throttled, "create", "slow down")}
			}
			return mock.Outcome{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				b.batched()
				n := 0
				b.script = func(call mock.Call) mock.Outcome {
					if call.Kind != mock.CreateBatch {
						return mock.Outcome{}
					}
					n++
					return script(n)
				}
				b.createMany(5)
				b.wait()
				b.wantStates(5, 0, 5)
				calls := b.made(mock.CreateBatch)
				for _, call := range calls {
					if call.Batch.Batch != calls[0].Batch.Batch || call.Batch.Count != 5 {
						t.Errorf("a repeat is %v, not %v", call.Batch, calls[0].Batch)
					}
				}
			})
		})
	}
}

// TestThrottledBatchBecomesSmaller checks that a leader does not wait until the provider's bucket has a token for each
// instance of a batch.
func TestThrottledBatchBecomesSmaller(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.batched()
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind == mock.CreateBatch && call.Batch.Count > 10 {
				return mock.Outcome{Err: infra.Errorf(infra.Throttled, "create", "slow down")}
			}
			return mock.Outcome{}
		}
		began := time.Now()
		b.createMany(20)
		b.createMany(20)
		b.wait()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %s", took)
		}
		b.wantStates(20, 20, 20)
	})
}

// TestWithdrawnBatch checks that no VM is requested if an instance of the batch is deleted before the call.
func TestWithdrawnBatch(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.batched()
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind != mock.CreateBatch {
				return mock.Outcome{}
			}
			return mock.Outcome{Err: infra.Errorf(infra.Throttled, "create", "slow down")}
		}
		b.Env.Go("throttled", func() { b.createMany(4) })
		synctest.Wait()
		b.script = nil
		b.Env.Go("waits for its turn", func() { b.createMany(4) })
		synctest.Wait()
		snapshot, _ := b.State.Snapshot(workers, nil)
		last := snapshot.Instances[slices.IndexFunc(snapshot.Instances, func(i plan.Instance) bool {
			return !b.made(mock.CreateBatch)[0].Batch.Batch.Has(i.ID)
		})].ID
		if _, err := b.Update(t.Context(), last, func(rec *record.Instance) {
			plan.RequestDelete(rec, plan.Deletion{Reason: "requested", Deadline: time.Now()}, time.Now())
		}); err != nil {
			t.Fatal(err)
		}
		b.wait()
		for _, call := range b.made(mock.CreateBatch) {
			if call.Batch.Batch.Has(last) {
				t.Errorf("%v was requested", call.Batch)
			}
		}
		if states := b.states(); states[record.Created] != 4 || states[record.Deleted] != 3 ||
			states[record.Deleting] != 1 || b.backoff().Failures != 0 {
			t.Errorf("%v, back-off %+v", states, b.backoff())
		}
	})
}

// TestUnreservedBatch checks that no batch is requested if a reservation cannot be written, that the other reservations
// are left for garbage collection, and that single creates take its place.
func TestUnreservedBatch(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.batched()
		writes := 0
		b.storeFault = func(r mem.Request) mem.Fault {
			if r.Op == mem.Put {
				if writes++; writes == 3 {
					return mem.Fault{Err: errTest}
				}
			}
			return mem.Fault{}
		}
		b.createMany(5)
		b.wait()
		left := 0
		for id := range b.records() {
			if _, ok := b.State.Leftover(id); ok {
				left++
			}
		}
		if len(b.made(mock.CreateBatch)) != 0 || len(b.made(mock.Create)) != 5 || left != 4 || b.pending() != 0 ||
			b.backoff().Failures != 0 {
			t.Errorf("%d creates, %d leftovers, %d pending, back-off %+v", len(b.made(mock.Create)), left, b.pending(),
				b.backoff())
		}
	})
}
