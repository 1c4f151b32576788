package execute_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
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

var create = plan.Action{Kind: plan.Create, Reason: "the group is smaller than its size"}

// inBubble runs a test with a bench in a synctest bubble, and then waits for all tasks of the executor.
func inBubble(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		test(t, b)
		b.wait()
	})
}

// countFailures starts to record the failed creations. The function that it returns lists the error classes of the
// creations that failed since then.
func (b *bench) countFailures() func() string {
	var classes []string
	b.CreateFailed = func(class string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		classes = append(classes, class)
	}
	return func() string {
		b.mu.Lock()
		defer b.mu.Unlock()
		return strings.Join(classes, ", ")
	}
}

func TestCreate(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id, old := b.reserve(), b.newID()
		began := time.Now()
		var delays []time.Duration
		b.Entered = func(d time.Duration) { delays = append(delays, d) }
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind == mock.Create {
				b.Instance(shardstate.InstanceEvent{Type: "call"})
				return mock.Outcome{Latency: time.Second}
			}
			return mock.Outcome{}
		}
		action := create
		action.Replaces, action.Cause = old, plan.CauseGone
		b.do(action)
		b.wait()

		calls := b.made(mock.Create)
		if len(calls) != 1 {
			t.Fatalf("%d calls", len(calls))
		}
		want := infra.Tags{Owner: owner, Tenant: workers.Tenant, Instance: id, Term: term, InfraHash: "i1",
			Group: workers.Group, Template: "t", Kind: "wrk",
			CreatedAt: began}
		request := calls[0].Request
		if diff := cmp.Diff(want, request.Tags, cmpopts.EquateComparable(ident.ID{})); diff != "" {
			t.Errorf("tags (-want +got):\n%s", diff)
		}
		if request.InstanceType != "small" || request.Subnet != "a" || request.Arch != "amd64" ||
			string(request.Userdata) != "nonce of "+id.String() ||
			request.Args["a"] != "b" || request.Hostname != "host" || !request.Tags.CreatedAt.Equal(began) {
			t.Errorf("request %v at %v", request, request.Tags.CreatedAt)
		}
		rec := b.read(id)
		if rec.State != record.Created || rec.Revision != 2 || rec.Writer != "me" || rec.ProviderID == "" ||
			rec.Group != "workers" || rec.InstanceType != "small" ||
			rec.SubnetID != "a" || rec.Image != "image" || rec.InfraHash != "i1" || rec.IPv4 == "" ||
			rec.Hostname != "host" || rec.LaunchedAt.IsZero() {
			t.Errorf("%+v", rec)
		}
		if view := b.view(id); view.Plan.Work != plan.Idle || view.Plan.Provider.Value != plan.ProviderRunning ||
			view.Plan.Provider.At != began {
			t.Errorf("%+v", view.Plan)
		}
		b.mu.Lock()
		if e := b.events[1]; e.Type != shardstate.EventCreating || e.Replaces != old || e.Reason != create.Reason ||
			e.Cause != plan.CauseGone || !e.At.Equal(began) {
			t.Errorf("%+v", e)
		}
		b.mu.Unlock()
		b.wantEvents("call", shardstate.EventCreating, shardstate.EventCreated)
		if len(delays) != 1 || delays[0] != 0 || b.pending() != 0 || b.backoff().Failures != 0 {
			t.Errorf("entered after %v, %d pending, back-off %+v", delays, b.pending(), b.backoff())
		}
		// The executor must have refilled the pool in the background.
		if n := b.State.ReservationsLeft(pool); n != execute.ReservePool {
			t.Errorf("%d reservations", n)
		}
	})
}

// TestCreateDoesNotWaitForStorage checks that a create with a reservation calls the provider before any storage
// request.
func TestCreateDoesNotWaitForStorage(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.reserve()
		b.storeFault = func(mem.Request) mem.Fault { return mem.Fault{Before: time.Hour} }
		began := time.Now()
		b.Env.Go("create", func() { b.do(create) })
		synctest.Wait()
		if calls := b.made(mock.Create); len(calls) != 1 || time.Since(began) != 0 {
			t.Errorf("%d calls after %v", len(calls), time.Since(began))
		}
	})
}

func TestCreateWithoutReservation(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind == mock.Create {
				if _, _, err := b.state.GetInstance(context.Background(), workers.Tenant, call.Instance); err != nil {
					t.Errorf("at the call: %v", err)
				}
			}
			return mock.Outcome{}
		}
		b.do(create)
		b.wait()
		if calls := b.made(mock.Create); len(calls) != 1 {
			t.Errorf("%d calls", len(calls))
		}
	})
}

// TestCreateAmbiguousAnswers checks that the executor repeats the identical request after an indeterminate answer.
func TestCreateAmbiguousAnswers(t *testing.T) {
	for name, outcome := range map[string]mock.Outcome{
		"refused with no reason": {Err: infra.Errorf(infra.Indeterminate, "create", "internal error")},
		"answer lost":            {Lost: true},
		"lands late":             {Late: 3 * time.Second},
		"throttled":              {Err: infra.Errorf(infra.Throttled, "create", "slow down")},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				id := b.reserve()
				n := 0
				b.script = func(call mock.Call) mock.Outcome {
					if n++; call.Kind == mock.Create && n < 6 {
						return outcome
					}
					return mock.Outcome{}
				}
				began := time.Now()
				b.do(create)
				b.wait()
				calls := b.made(mock.Create)
				if len(calls) != 6 {
					t.Fatalf("%d calls", len(calls))
				}
				digest, _ := calls[0].Request.Digest()
				for _, call := range calls {
					if other, _ := call.Request.Digest(); other != digest {
						t.Errorf("another request: %v", call.Request)
					}
				}
				least := 5 * time.Second
				if infra.ClassOf(outcome.Err) == infra.Throttled {
					least = time.Second // the shard's pace decides
				}
				if took := time.Since(began); took < least || took > 10*time.Second {
					t.Errorf("six calls in %v", took)
				}
				b.wantState(id, record.Created)
				if vms := b.provider.VMs(); len(vms) != 1 || b.standing() != nil || b.backoff().Failures != 0 {
					t.Errorf("%d VMs, standing %v, back-off %+v", len(vms), b.standing(), b.backoff())
				}
			})
		})
	}
}

// TestCreateRefusedAfterALostAnswer covers a first call that created the VM without an answer, and a repeated call that
// was refused. The executor must find the VM.
func TestCreateRefusedAfterALostAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		made, unmade := b.reserve(), b.reserve()
		calls := map[ident.ID]int{}
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind != mock.Create {
				return mock.Outcome{}
			}
			switch calls[call.Instance]++; {
			case calls[call.Instance] > 1:
				return mock.Outcome{Err: infra.Errorf(infra.Denied, "create", "no permission any more")}
			case call.Instance == made:
				return mock.Outcome{Lost: true}
			default:
				return mock.Outcome{Err: infra.Errorf(infra.Indeterminate, "create", "internal error")}
			}
		}
		b.do(create)
		b.do(create)
		b.wait()
		b.wantState(made, record.Created)
		b.wantState(unmade, record.Deleted)
		if b.backoff().Failures != 1 {
			t.Errorf("back-off %+v", b.backoff())
		}
	})
}

// register registers an instance's agent like the registration service.
func (b *bench) register(t *testing.T, id ident.ID) {
	t.Helper()
	if _, err := b.Update(t.Context(), id, func(r *record.Instance) {
		r.State, r.RegisteredAt, r.PublicKey, r.NonceID = record.Registered, time.Now(), make([]byte, 32), "n"
		r.Certificate = &record.CertificateRef{Serial: strings.Repeat("0", 32), NotAfter: time.Now()}
	}); err != nil {
		t.Error(err)
	}
}

// TestCreateThatSucceedsLate covers a create call that succeeds after a lookup did not find the VM. If the agent has
// registered in between, the create counts as successful: the instance stays, and no other placement is tried.
func TestCreateThatSucceedsLate(t *testing.T) {
	for name, lost := range map[string]bool{"found then": false, "lost again": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				id := b.reserve()
				b.script = func(call mock.Call) mock.Outcome {
					switch {
					case call.Kind == mock.Create && len(b.made(mock.Create)) == 1:
						return mock.Outcome{Err: infra.Errorf(infra.Indeterminate, "create", "no answer")}
					case call.Kind == mock.Create:
						return mock.Outcome{Err: infra.Errorf(infra.Capacity, "create", "no room")}
					case call.Kind == mock.FindByInstance && len(b.made(mock.FindByInstance)) == 1:
						tags := b.made(mock.Create)[0].Request.Tags
						if err := b.provider.Plant(infra.VM{ProviderID: "landed-late", Tags: tags,
							State: infra.Running}); err != nil && !lost {
							t.Error(err)
						}
						b.register(t, id)
						return mock.Outcome{Err: infra.Errorf(infra.NotFound, "find", "not there yet")}
					case call.Kind == mock.FindByInstance && lost:
						return mock.Outcome{Err: infra.Errorf(infra.NotFound, "find", "not there any more")}
					}
					return mock.Outcome{}
				}
				b.do(create)
				b.wait()
				b.wantState(id, record.Registered)
				if rec := b.read(id); !lost && rec.ProviderID != "landed-late" {
					t.Errorf("%+v", rec)
				}
				for _, call := range b.made(mock.Create) {
					if call.Instance != id {
						t.Errorf("%s was asked for as well", call.Instance)
					}
				}
				if b.pending() != 0 || b.view(id).Plan.Work != plan.Idle || lost != b.State.VMDeleted(id) {
					t.Errorf("%d pending, %+v", b.pending(), b.view(id).Plan)
				}
			})
		})
	}
}

// TestCreateRefusedAndRegistered checks that an instance stays if its agent registers before the tombstone of the
// refused create is durable.
func TestCreateRefusedAndRegistered(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.reserve()
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind == mock.Create {
				return mock.Outcome{Err: infra.Errorf(infra.Denied, "create", "no permission")}
			}
			return mock.Outcome{}
		}
		b.storeFault = func(r mem.Request) mem.Fault {
			if r.Op == mem.Put && strings.Contains(string(r.Body), "refused: ") {
				return mem.Fault{Before: time.Second}
			}
			return mem.Fault{}
		}
		b.do(create)
		synctest.Wait()
		b.register(t, id)
		b.wait()
		b.wantState(id, record.Registered)
		if b.view(id).Plan.Work != plan.Idle {
			t.Errorf("%+v", b.view(id).Plan)
		}
	})
}

// TestCreateRefusedAfterThrottling checks that a VM is found if a throttled attempt created it and the next attempt was
// refused.
func TestCreateRefusedAfterThrottling(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		made := b.reserve()
		calls := 0
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind != mock.Create {
				return mock.Outcome{}
			}
			if calls++; calls > 1 {
				return mock.Outcome{Err: infra.Errorf(infra.Capacity, "create", "no room any more")}
			}
			if err := b.provider.Plant(infra.VM{ProviderID: "made-at-first", Tags: call.Request.Tags}); err != nil {
				t.Error(err)
			}
			return mock.Outcome{Err: infra.Errorf(infra.Throttled, "create", "slow down")}
		}
		b.do(create)
		b.wait()
		b.wantState(made, record.Created)
	})
}

// TestCreateRefused checks that a definite refusal makes the ID unusable and counts as a failure.
func TestCreateRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id, failed := b.reserve(), b.countFailures()
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind == mock.Create {
				return mock.Outcome{Err: infra.Errorf(infra.Denied, "create", "no permission")}
			}
			return mock.Outcome{}
		}
		b.do(create)
		b.wait()
		b.wantState(id, record.Deleted)
		if got := failed(); got != "denied" {
			t.Errorf("counted %q", got)
		}
		if _, _, lives := b.State.Record(id); lives || len(b.made(mock.Create)) != 1 || b.pending() != 0 {
			t.Errorf("it lives: %t; %d calls, %d pending", lives, len(b.made(mock.Create)), b.pending())
		}
		if back := b.backoff(); back.Failures != 1 || !strings.Contains(back.Reason, "no permission") {
			t.Errorf("back-off %+v", back)
		}
		if got := b.standing(); !slices.Equal(got, []string{"provider"}) {
			t.Errorf("standing %v", got)
		}
	})
}

// TestCreateNotPermitted checks that no VM is requested for a group that the configuration no longer permits, and that
// the alert says why.
func TestCreateNotPermitted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.reserve()
		failed := b.countFailures()
		b.configure(func(g *config.Group) { g.Refused = "template: not for this tenant" })
		b.do(create)
		b.wait()
		group, _ := b.State.Group(workers)
		if err := b.CreateOnDemand(t.Context(), group, b.newID(), "", nil); !errors.Is(err, execute.ErrNotPermitted) {
			t.Errorf("on demand: %v", err)
		}
		if got := failed(); got != "not permitted, not permitted" {
			t.Errorf("counted %q", got)
		}
		if len(b.made(mock.Create)) != 0 || b.pending() != 0 {
			t.Errorf("%d calls, %d pending", len(b.made(mock.Create)), b.pending())
		}
		if back := b.backoff(); back.Failures != 1 || !strings.Contains(back.Reason, "not for this tenant") {
			t.Errorf("back-off %+v", back)
		}
		if got := b.standing(); !slices.Equal(got, []string{"provider"}) {
			t.Errorf("standing %v", got)
		}
	})
}

// TestCreateElsewhere checks that the create after a refused create uses the next placement, under another ID.
func TestCreateElsewhere(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for range execute.ReservePool {
			b.reserve()
		}
		b.provider.SetCapacity(mock.Place{Type: "small"}, 0)
		b.provider.SetCapacity(mock.Place{Type: "large", Subnet: "a"}, 0)
		failed := b.countFailures()
		for range 4 {
			b.do(create)
			b.wait()
		}
		if got := failed(); got != "" {
			t.Errorf("counted %q although another placement was left", got)
		}
		var tried []string
		ids := map[ident.ID]bool{}
		for _, call := range b.made(mock.Create) {
			tried = append(tried, call.Request.InstanceType+"/"+call.Request.Subnet)
			ids[call.Instance] = true
		}
		if want := []string{"small/a", "small/b", "large/a", "large/b"}; !slices.Equal(tried, want) || len(ids) != 4 {
			t.Errorf("tried %v under %d IDs", tried, len(ids))
		}
		burnt := 0
		for _, rec := range b.records() {
			if rec.State == record.Deleted {
				burnt++
			}
		}
		if burnt != 3 || b.backoff().Failures != 0 || len(b.provider.VMs()) != 1 {
			t.Errorf("%d IDs burnt, back-off %+v, %d VMs", burnt, b.backoff(), len(b.provider.VMs()))
		}

		// A refused placement is not tried again for three minutes.
		b.calls = nil
		b.do(create)
		if calls := b.made(mock.Create); len(calls) != 1 || calls[0].Request.InstanceType != "large" ||
			calls[0].Request.Subnet != "b" {
			t.Errorf("%v", calls)
		}
		b.provider.SetCapacity(mock.Place{Type: "large", Subnet: "b"}, 0)
		b.do(create)
		b.wait()
		if back := b.backoff(); back.Failures != 1 || !strings.Contains(back.Reason, "no capacity left") {
			t.Errorf("back-off %+v", back)
		}
		if got := failed(); got != "no capacity" {
			t.Errorf("counted %q", got)
		}
		time.Sleep(3 * time.Minute)
		b.calls = nil
		for range 4 {
			b.do(create)
			b.wait()
		}
		if calls := b.made(mock.Create); len(calls) != 4 || b.backoff().Failures != 2 {
			t.Errorf("%d calls three minutes later, back-off %+v", len(calls), b.backoff())
		}
	})
}

// TestCreateSkipsFullSubnets checks that the executor asks the provider in the background which subnets are full, and
// not during a create.
func TestCreateSkipsFullSubnets(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.reserve()
		b.provider.SetCapacity(mock.Place{Subnet: "a"}, 0)
		b.QuerySubnetCapacity(t.Context())
		b.do(create)
		b.wait()
		if calls := b.made(mock.Create); len(calls) != 1 || calls[0].Request.Subnet != "b" ||
			len(b.made(mock.HasRoom)) != 1 {
			t.Errorf("%v, asked for room %d times", calls, len(b.made(mock.HasRoom)))
		}
		b.script = func(mock.Call) mock.Outcome {
			return mock.Outcome{Err: infra.Errorf(infra.Throttled, "has room", "slow down")}
		}
		b.QuerySubnetCapacity(t.Context())
		b.script = nil
		b.provider.SetCapacity(mock.Place{Subnet: "a"}, -1)
		b.calls = nil
		b.do(create)
		if calls := b.made(mock.Create); len(calls) != 1 || calls[0].Request.Subnet != "a" {
			t.Errorf("%v", calls)
		}
		b.wait()
		b.configure(func(g *config.Group) { g.Subnets = []string{"a"} })
		b.calls = nil
		b.QuerySubnetCapacity(t.Context())
		if b.calls != nil {
			t.Error("there is no choice, but the provider is asked")
		}

		// When a full subnet becomes the only subnet of its pool, it is used again.
		b.configure(func(g *config.Group) { g.Subnets = []string{"a", "b"} })
		b.provider.SetCapacity(mock.Place{Subnet: "a"}, 0)
		b.QuerySubnetCapacity(t.Context())
		b.configure(func(g *config.Group) { g.Subnets = []string{"a"} })
		b.provider.SetCapacity(mock.Place{Subnet: "a"}, -1)
		b.QuerySubnetCapacity(t.Context())
		b.calls = nil
		b.do(create)
		if calls := b.made(mock.Create); len(calls) != 1 {
			t.Errorf("the only subnet counts as full forever: %v", calls)
		}
		b.wait()
	})
}

// TestCreateConflict covers a create call for an ID that already has a VM. The create uses that VM, or fails if the VM
// is gone.
func TestCreateConflict(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		made, terminated := b.reserve(), b.reserve()
		b.plant(made, infra.Running)
		if err := b.provider.Terminate(b.plant(terminated, infra.Running).ProviderID); err != nil {
			t.Fatal(err)
		}
		b.do(create)
		b.wantState(made, record.Created)
		if got := b.read(made).ProviderID; got != "vm-"+made.String() {
			t.Errorf("its VM is %s", got)
		}
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind == mock.FindByInstance {
				return mock.Outcome{Err: infra.Errorf(infra.NotFound, "find", "forgotten")}
			}
			return mock.Outcome{}
		}
		b.do(create)
		b.wait()
		b.wantState(terminated, record.Deleted)
		if b.backoff().Failures != 1 {
			t.Errorf("back-off %+v", b.backoff())
		}
	})
}

// TestCreateWaitsForAuthority checks that the executor makes no provider call, and counts no failure, while the
// remaining authority is too short.
func TestCreateWaitsForAuthority(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.reserve()
		b.remaining = 100 * time.Millisecond
		b.Env.Go("create", func() { b.do(create) })
		time.Sleep(time.Second)
		if len(b.made(mock.Create)) != 0 {
			t.Error("the provider is called")
		}
		b.mu.Lock()
		b.remaining = time.Minute
		b.mu.Unlock()
		time.Sleep(time.Second)
		b.wait()
		b.wantState(id, record.Created)
		if b.backoff().Failures != 0 {
			t.Errorf("back-off %+v", b.backoff())
		}
	})
}

// TestCreateCutOff checks that the executor does not change the record if the leadership ends during the create call.
// The next leader finds out whether the VM exists.
func TestCreateCutOff(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.reserve()
		b.script = func(call mock.Call) mock.Outcome { return mock.Outcome{Latency: time.Minute} }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b.State.ExpectCreates(workers, shardstate.Pending{Members: 1})
		b.Do(ctx, workers, create)
		b.wait()
		b.wantState(id, record.Reserved)
		if b.backoff().Failures != 0 || b.standing() != nil || b.view(id).Plan.Work != plan.Creating {
			t.Errorf("back-off %+v, standing %v, %+v", b.backoff(), b.standing(), b.view(id).Plan)
		}
	})
}

func TestCreateThatCannotBeRendered(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.reserve()
		b.render = errTest
		b.do(create)
		b.wait()
		left := b.State.ReservationsLeft(pool) // one more if the pool was full before the reservation came back
		if left != execute.ReservePool && left != execute.ReservePool+1 || len(b.made(mock.Create)) != 0 ||
			b.backoff().Failures != 1 || b.pending() != 0 {
			t.Errorf("%d reservations, %d calls, back-off %+v, %d pending", left,
				len(b.made(mock.Create)), b.backoff(), b.pending())
		}
	})
}

func TestCreateForAGroupThatIsGone(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.reserve()
		b.State.ExpectCreates(workers, shardstate.Pending{Members: 1})
		b.State.Configure((&config.Shard{}).WithDefaults(), nil)
		b.Do(t.Context(), workers, create)
		if len(b.made(mock.Create)) != 0 || b.pending() != 0 {
			t.Errorf("%d calls, %d pending", len(b.made(mock.Create)), b.pending())
		}
	})
}

// TestCreateIsNotRepeatedForADeletedInstance checks that a create call is not repeated for an instance that is marked
// for deletion. The deletion looks up the result of the earlier calls.
func TestCreateIsNotRepeatedForADeletedInstance(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.reserve()
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind == mock.Create {
				return mock.Outcome{Lost: true}
			}
			return mock.Outcome{}
		}
		b.Env.Go("create", func() { b.do(create) })
		synctest.Wait()
		now := time.Now()
		if _, err := b.Update(t.Context(), id, func(r *record.Instance) {
			r.State, r.DeletingAt, r.DeleteReason, r.DeleteDeadline = record.Deleting, now, "requested", now
		}); err != nil {
			t.Fatal(err)
		}
		b.wait()
		if n := len(b.made(mock.Create)); n != 1 {
			t.Errorf("asked %d times", n)
		}
		if view := b.view(id); view.Record.State != record.Deleting || view.Plan.Work != plan.Idle ||
			b.backoff().Failures != 0 {
			t.Errorf("%+v, back-off %+v", view.Plan, b.backoff())
		}
		b.do(plan.Action{Kind: plan.Terminate, Instance: id})
		if calls := b.made(mock.Delete); len(calls) != 1 {
			t.Errorf("%v", calls)
		}
	})
}

// TestRegisteredWhileCreated covers an agent that registers before the provider's answer is recorded. The record must
// have the data of both the registration and the create.
func TestRegisteredWhileCreated(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.reserve()
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind == mock.Create {
				return mock.Outcome{Latency: 10 * time.Second}
			}
			return mock.Outcome{}
		}
		b.Env.Go("create", func() { b.do(create) })
		synctest.Wait()
		if _, err := b.Update(t.Context(), id, func(r *record.Instance) {
			r.State, r.RegisteredAt, r.PublicKey, r.NonceID, r.IPv4 = record.Registered, time.Now(), make([]byte, 32),
				"n", "10.9.9.9"
			r.Certificate = &record.CertificateRef{Serial: strings.Repeat("0", 32), NotAfter: time.Now()}
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		b.wait()
		rec := b.read(id)
		if rec.State != record.Registered || rec.ProviderID == "" || rec.IPv4 != "10.9.9.9" || rec.NonceID != "n" ||
			rec.InstanceType != "small" || rec.LaunchedAt.IsZero() {
			t.Errorf("%+v", rec)
		}
	})
}

// TestCreatedIsRecorded checks that the result of a create is recorded even if the bucket fails for minutes.
func TestCreatedIsRecorded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		id := b.reserve()
		down := time.Now().Add(5 * time.Minute)
		b.storeFault = func(mem.Request) mem.Fault {
			if time.Now().Before(down) {
				return mem.Fault{Err: errTest}
			}
			return mem.Fault{}
		}
		b.do(create)
		b.wait()
		b.wantState(id, record.Created)
		if len(b.made(mock.Create)) != 1 {
			t.Errorf("%d calls", len(b.made(mock.Create)))
		}
	})
}

func TestOnDemand(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		group, _ := b.State.Group(workers)
		id := b.newID()
		if err := b.CreateOnDemand(t.Context(), group, id, "huge", map[string]string{"a": "b"}); err != nil {
			t.Fatal(err)
		}
		rec := b.read(id)
		if rec.State != record.Created || !rec.OnDemand || rec.InstanceType != "huge" || rec.Vars["a"] != "b" ||
			rec.ReservedTerm != term {
			t.Errorf("%+v", rec)
		}
		if calls := b.made(mock.Create); len(calls) != 1 || !calls[0].Request.Tags.OnDemand || calls[0].Instance != id {
			t.Errorf("%v", calls)
		}
		var superseded *clusterstate.SupersededError
		if err := b.CreateOnDemand(t.Context(), group, id, "", nil); !errors.As(err, &superseded) ||
			len(b.made(mock.Create)) != 1 {
			t.Errorf("a second time: %v, %d calls", err, len(b.made(mock.Create)))
		}

		// The caller chose the ID, and an ID is for one placement only, so no other placement is tried.
		b.provider.SetCapacity(mock.Place{}, 0)
		b.calls = nil
		refused := b.newID()
		if err := b.CreateOnDemand(t.Context(), group, refused, "", nil); !errors.Is(err, execute.ErrNoCapacity) ||
			len(b.made(mock.Create)) != 1 {
			t.Errorf("%v after %d calls", err, len(b.made(mock.Create)))
		}
		b.wait()
		b.wantState(refused, record.Deleted)
		if b.backoff().Failures != 0 {
			t.Error("an on-demand instance that failed keeps the group waiting")
		}
	})
}

func TestOnDemandWithoutSubnetQuery(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.configure(func(g *config.Group) { g.InstanceTypes, g.Subnets = nil, []string{"a"} })
		group, _ := b.State.Group(workers)
		b.provider.SetCapacity(mock.Place{}, 0)
		_ = b.CreateOnDemand(t.Context(), group, b.newID(), "", nil)
		b.wait()

		// While the provider's refusal of the only placement is remembered, CreateOnDemand writes nothing. A later call
		// can use the same ID.
		id := b.newID()
		if err := b.CreateOnDemand(t.Context(), group, id, "", nil); !errors.Is(err, execute.ErrNoCapacity) {
			t.Error(err)
		}
		if _, _, err := b.state.GetInstance(t.Context(), workers.Tenant, id); !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("its record: %v", err)
		}
		b.provider.SetCapacity(mock.Place{}, -1)
		time.Sleep(3 * time.Minute)
		if err := b.CreateOnDemand(t.Context(), group, id, "", nil); err != nil {
			t.Error(err)
		}

		// The call fails after it has written the reservation. Garbage collection then settles the unused reservation.
		id = b.newID()
		b.render = errTest
		if err := b.CreateOnDemand(t.Context(), group, id, "", nil); !errors.Is(err, errTest) {
			t.Error(err)
		}
		if _, ok := b.State.Leftover(id); !ok {
			t.Error("its reservation belongs to no instance")
		}
		if !b.Collect(t.Context(), plan.Action{Kind: plan.Settle, Instance: id}) {
			t.Error("it cannot be settled")
		}
		b.wantState(id, record.Deleted)
	})
}

func TestRefill(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		failures := 3
		b.storeFault = func(r mem.Request) mem.Fault {
			if failures--; failures >= 0 {
				return mem.Fault{Before: time.Second, Err: errTest}
			}
			return mem.Fault{Before: time.Second}
		}
		for range 3 {
			b.Refill(t.Context(), pool) // one call refills, the others do nothing
		}
		time.Sleep(1500 * time.Millisecond)
		if got := b.standing(); !slices.Equal(got, []string{"storage"}) {
			t.Errorf("standing %v", got)
		}
		b.wait()
		if n := b.State.ReservationsLeft(pool); n != execute.ReservePool || b.standing() != nil {
			t.Errorf("%d reservations, standing %v", n, b.standing())
		}
		for _, rec := range b.records() {
			if rec.State != record.Reserved || rec.Group != "" || rec.ReservedTerm != term || rec.Writer != "me" ||
				rec.Tenant != pool.Tenant {
				t.Errorf("%+v", rec)
			}
		}

		// A pool that no group uses is not filled.
		b.State.Configure((&config.Shard{}).WithDefaults(), nil)
		b.State.TakeReservation(pool)
		b.Refill(t.Context(), pool)
		b.wait()
		if n := b.State.ReservationsLeft(pool); n != execute.ReservePool-1 {
			t.Errorf("%d reservations", n)
		}
	})
}

// TestRefillKeepsItsAlert checks that a failing refill raises its alert once, and resolves the alert when the writes
// succeed. Further failures with other messages do not affect the alert, nor does a refill of another pool of the
// tenant.
func TestRefillKeepsItsAlert(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		mends := time.Now().Add(5 * time.Minute)
		b.storeFault = func(mem.Request) mem.Fault {
			if time.Now().Before(mends) {
				return mem.Fault{Err: errTest}
			}
			return mem.Fault{}
		}
		b.Refill(t.Context(), pool)
		for time.Now().Before(mends) {
			b.Refill(t.Context(), shardstate.Pool{Tenant: pool.Tenant, Kind: "xyz"}) // no group uses it: nothing to do
			time.Sleep(10 * time.Second)
		}
		b.wait()
		if len(b.errors) != 2 || b.errors[0].Resolved || !b.errors[1].Resolved {
			t.Errorf("%+v: want one alert, and its end", b.errors)
		}
	})
}

func TestRefillEndsWithTheLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.storeFault = func(r mem.Request) mem.Fault { return mem.Fault{Err: errTest} }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		b.Refill(ctx, pool)
		b.wait()
		if b.State.ReservationsLeft(pool) != 0 {
			t.Error("filled")
		}
	})
}
