package shardstate_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// asking is an Asker in front of a mock provider, in a synctest bubble.
type asking struct {
	*shardstate.Asker
	state    *shardstate.State
	provider *mock.Provider
	wait     func()
	script   func(mock.Call) mock.Outcome
	mu       sync.Mutex
	failed   []error
	answered int
}

func newAsking(t *testing.T) *asking {
	a := &asking{script: func(mock.Call) mock.Outcome { return mock.Outcome{Latency: 20 * time.Millisecond} }}
	env, wait := tasks.Real()
	a.wait = wait
	a.provider = mock.New(mock.Config{Now: time.Now, Sleep: env.Sleep,
		Script: func(_ context.Context, call mock.Call) mock.Outcome {
			return a.script(call)
		}})
	a.state = shardstate.New(shardstate.Options{Term: 1, Now: time.Now,
		Wake: func() {}})
	a.state.Configure((&config.Shard{}).WithDefaults(), map[config.GroupKey]config.Group{workers: {GroupKey: workers,
		Kind: "wrk", Size: 1}})
	a.Asker = &shardstate.Asker{State: a.state, Provider: a.provider, Owner: owner, Env: env,
		Failed: func(err error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.failed = append(a.failed, err)
		},
		Answer: func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.answered++
		}}
	return a
}

// lose creates n registered instances with VMs that have stopped without notice.
func (a *asking) lose(t *testing.T, n int) []ident.ID {
	t.Helper()
	var ids []ident.ID
	for k := range n {
		id, err := ident.NewID("wrk", time.Now().Add(time.Duration(k)*time.Millisecond), constant(k))
		if err != nil {
			t.Fatal(err)
		}
		vm := infra.VM{ProviderID: "vm-" + id.String(), State: infra.Stopped, LaunchedAt: time.Now(),
			Tags: infra.Tags{Owner: owner, Tenant: workers.Tenant, Group: workers.Group, Instance: id}}
		if err := a.provider.Plant(vm); err != nil {
			t.Fatal(err)
		}
		a.state.PutRecord(record.Instance{ID: id, State: record.Registered, Revision: 1, Tenant: workers.Tenant,
			Group: workers.Group, CreatedAt: time.Now(),
			RegisteredAt: time.Now(), ProviderID: vm.ProviderID}, "t")
		ids = append(ids, id)
	}
	return ids
}

// askAll asks about each instance if State.Plan permits the question, as the reconciler does.
func (a *asking) askAll(t *testing.T, ids []ident.ID) {
	t.Helper()
	for _, id := range ids {
		if a.state.Plan(plan.Action{Kind: plan.Ask, Instance: id}, plan.Idle) {
			a.Ask(t.Context(), id)
		}
	}
}

func (a *asking) wantStopped(t *testing.T, ids []ident.ID) {
	t.Helper()
	for _, id := range ids {
		if view, _ := a.state.Instance(id); view.Plan.Provider.Value != plan.ProviderStopped || view.Plan.Asking {
			t.Fatalf("%s: %+v", id, view.Plan)
		}
	}
}

func (a *asking) wantCalls(t *testing.T, gets, lists uint64) {
	t.Helper()
	if g, l := a.provider.Count(mock.Get), a.provider.Count(mock.List); g != gets || l != lists {
		t.Errorf("%d single questions and %d lists, want %d and %d", g, l, gets, lists)
	}
}

func TestThousandQuestionsAreOneList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		ids := a.lose(t, 1000)
		began := time.Now()
		a.askAll(t, ids)
		a.askAll(t, ids) // a queued question is not asked twice
		a.wait()
		a.wantStopped(t, ids)
		a.wantCalls(t, 0, 1)
		if took := time.Since(began); took > 30*time.Millisecond || a.answered != 1 || a.failed != nil {
			t.Errorf("%v, %d answers, %v", took, a.answered, a.failed)
		}
	})
}

func TestFewQuestionsAreSingleCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		ids := a.lose(t, 3)
		began := time.Now()
		a.askAll(t, ids)
		a.wait()
		a.wantStopped(t, ids)
		a.wantCalls(t, 3, 0)
		if took := time.Since(began); took > 30*time.Millisecond {
			t.Errorf("side by side they took %v", took)
		}
	})
}

// TestSlowAnswerDelaysNoOtherQuestion checks that a question without an answer does not delay the others.
func TestSlowAnswerDelaysNoOtherQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		ids := a.lose(t, 2)
		slow := "vm-" + ids[0].String()
		a.script = func(call mock.Call) mock.Outcome {
			if call.ProviderID == slow {
				return mock.Outcome{Latency: 30 * time.Second}
			}
			return mock.Outcome{}
		}
		a.askAll(t, ids[:1])
		time.Sleep(time.Second)
		a.askAll(t, ids[1:])
		time.Sleep(10 * time.Millisecond)
		a.wantStopped(t, ids[1:])
		if view, _ := a.state.Instance(ids[0]); !view.Plan.Asking {
			t.Error("the slow question is taken to be answered")
		}
		a.wait()
		a.wantStopped(t, ids)
	})
}

// TestQuestionsDuringAListWaitForTheNext checks that a question that is asked during a list call waits for the next
// list call. An answer says nothing about what happened after its call started.
func TestQuestionsDuringAListWaitForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		ids := a.lose(t, 100)
		a.askAll(t, ids[:50])
		time.Sleep(10 * time.Millisecond) // the list is running now
		a.askAll(t, ids[50:])
		time.Sleep(15 * time.Millisecond) // the list has ended now
		a.wantStopped(t, ids[:50])
		if view, _ := a.state.Instance(ids[50]); !view.Plan.Asking {
			t.Error("a question was answered by a list that began before it")
		}
		ended := time.Now()
		a.wait()
		a.wantStopped(t, ids)
		a.wantCalls(t, 0, 2)
		if took := time.Since(ended); took < 200*time.Millisecond || took > 400*time.Millisecond {
			t.Errorf("the second list came %v after the first", took)
		}
	})
}

// TestTooManySingleCallsBecomeAList checks that questions become a list call while too many single calls are running.
func TestTooManySingleCallsBecomeAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		a.script = func(call mock.Call) mock.Outcome { return mock.Outcome{Latency: time.Second} }
		ids := a.lose(t, 25)
		for n := 0; n < len(ids); n += 5 {
			a.askAll(t, ids[n:n+5])
			time.Sleep(10 * time.Millisecond)
		}
		a.wait()
		a.wantStopped(t, ids)
		a.wantCalls(t, 20, 1)
	})
}

func TestUnansweredQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		ids := a.lose(t, 2)
		bad := "vm-" + ids[0].String()
		a.script = func(call mock.Call) mock.Outcome {
			if call.ProviderID == bad {
				return mock.Outcome{Err: infra.Errorf(infra.Throttled, "get", "slow down")}
			}
			return mock.Outcome{}
		}
		a.askAll(t, ids)
		a.wait()
		if len(a.failed) != 1 || !errors.Is(a.failed[0], infra.Throttled) || a.answered != 1 {
			t.Errorf("failed %v, answered %d", a.failed, a.answered)
		}
		// The question about the first instance got no answer, so only this instance has a backoff.
		for n, want := range []int{1, 0} {
			if view, _ := a.state.Instance(ids[n]); view.Plan.Asking || view.Plan.AskFailed.Count != want {
				t.Errorf("%+v", view.Plan)
			}
		}

		a.script = func(mock.Call) mock.Outcome {
			return mock.Outcome{Err: infra.Errorf(infra.Throttled, "list", "slow down")}
		}
		if err := a.List(t.Context()); !errors.Is(err, infra.Throttled) {
			t.Errorf("list: %v", err)
		}
	})
}

// TestQuestionsWithoutProviderID checks that a VM without a known provider ID is looked up by its tag, and that an
// unknown instance causes no call.
func TestQuestionsWithoutProviderID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		id := a.lose(t, 1)[0]
		a.state.PutRecord(record.Instance{ID: id, State: record.Deleted, Revision: 2}, "t")
		a.state.RemoveTombstone(id)
		a.Ask(t.Context(), id)
		a.wait()
		a.wantCalls(t, 0, 0)

		a.state.PutRecord(record.Instance{ID: id, State: record.Registered, Revision: 1, Tenant: workers.Tenant,
			Group: workers.Group, CreatedAt: time.Now(),
			RegisteredAt: time.Now()}, "t")
		a.askAll(t, []ident.ID{id})
		a.wait()
		a.wantStopped(t, []ident.ID{id})
		if n := a.provider.Count(mock.FindByInstance); n != 1 {
			t.Errorf("looked up %d times", n)
		}
	})
}

func TestQuestionsEndWithTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		ids := a.lose(t, 20)
		ctx, cancel := context.WithCancel(t.Context())
		for _, id := range ids {
			a.Ask(ctx, id)
		}
		cancel()
		a.wait()
		a.wantCalls(t, 0, 0)
		if a.failed != nil || a.answered != 0 {
			t.Errorf("failed %v, answered %d", a.failed, a.answered)
		}
	})
}
