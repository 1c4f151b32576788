package execute_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// TestDrainHonoursTheDeregistrationDelay checks until when a drain waits for load balancers. It waits for the longest
// delay since the deregistration. It waits until its deadline if a load balancer does not remove the instance or does
// not tell its delay.
func TestDrainHonoursTheDeregistrationDelay(t *testing.T) {
	const second, deadline = time.Second, time.Minute
	slow := func(kind mock.Kind, lb string) func(mock.Call) mock.Outcome {
		return func(call mock.Call) mock.Outcome {
			if call.Kind == kind && call.Name == lb {
				return mock.Outcome{Err: infra.Errorf(infra.Throttled, string(kind), "slow down")}
			}
			return mock.Outcome{}
		}
	}
	for name, test := range map[string]struct {
		balancers []string
		delays    map[string]time.Duration
		script    func(mock.Call) mock.Outcome
		want      time.Duration // since the drain began; 0: there is nothing to wait for
		failed    bool
		asked     int
	}{
		"no load balancers": {},
		"no delay":          {balancers: []string{"web"}, asked: 1},
		"one": {balancers: []string{"web"}, delays: map[string]time.Duration{"web": 20 * second}, want: 20 * second,
			asked: 1},
		"the longest": {balancers: []string{"api", "web", "old"}, delays: map[string]time.Duration{"api": 5 * second,
			"web": 20 * second}, want: 20 * second, asked: 3},
		"longer than the drain": {balancers: []string{"web"}, delays: map[string]time.Duration{"web": time.Hour},
			want: time.Hour, asked: 1},
		"from the deregistration": {balancers: []string{"web"}, delays: map[string]time.Duration{"web": 20 * second},
			script: func(call mock.Call) mock.Outcome {
				if call.Kind == mock.Get {
					return mock.Outcome{}
				}
				return mock.Outcome{Latency: 3 * second}
			}, want: 23 * second, asked: 1},
		"it does not tell": {balancers: []string{"api", "web"}, delays: map[string]time.Duration{"api": second},
			script: slow(mock.DeregistrationDelay, "web"), want: deadline, asked: 2},
		"it does not remove": {balancers: []string{"api", "web"}, delays: map[string]time.Duration{"api": second},
			script: slow(mock.Deregister, "web"), want: deadline, failed: true, asked: 2},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				b.configure(func(g *config.Group) { g.LoadBalancers = test.balancers })
				id := b.balanced()
				b.leave(id)
				b.delays, b.script = test.delays, test.script
				began := time.Now()
				b.do(plan.Action{Kind: plan.Drain, Instance: id, Deadline: began.Add(deadline)})
				b.wantBalancersUntil(id, began, test.want)
				if failed := b.view(id).Plan.Failed.Count > 0; failed != test.failed {
					t.Errorf("the drain failed: %t, want %t", failed, test.failed)
				}
				if asked := len(b.made(mock.DeregistrationDelay)); asked != test.asked {
					t.Errorf("%d questions, want %d", asked, test.asked)
				}
			})
		})
	}
}

func (b *bench) wantBalancersUntil(id ident.ID, began time.Time, want time.Duration) {
	b.t.Helper()
	until := time.Time{}
	if want > 0 {
		until = began.Add(want)
	}
	if p := b.view(id).Plan; !p.Announced || !p.BalancersUntil.Equal(until) {
		b.t.Errorf("announced: %t, load balancers until %s, want %s", p.Announced, p.BalancersUntil, until)
	}
}

// TestDrainOfAnInstanceThatNeverServed checks that a drain waits for load balancers only if the instance may have been
// registered with them. A new leader does not know whether an instance of a former leader was.
func TestDrainOfAnInstanceThatNeverServed(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.configure(func(g *config.Group) { g.LoadBalancers = []string{"web"} })
		b.delays = map[string]time.Duration{"web": 20 * time.Second}
		drain := func(id ident.ID) {
			t.Helper()
			b.leave(id)
			b.do(plan.Action{Kind: plan.Drain, Instance: id, Deadline: time.Now().Add(time.Minute)})
		}
		// write stores another version of an instance's record.
		write := func(id ident.ID, change func(*record.Instance)) {
			rec, token, _ := b.State.Record(id)
			rec.Revision++
			change(&rec)
			b.State.PutRecord(rec, b.write(rec, token))
		}
		unhealthy, booting, older := b.serving(), b.serving(), b.serving()
		write(booting, func(rec *record.Instance) {
			rec.State, rec.RegisteredAt, rec.PublicKey, rec.NonceID, rec.Certificate = record.Created, time.Time{},
				nil, "", nil
			rec.ReservedTerm = term - 1
		})
		write(older, func(rec *record.Instance) { rec.ReservedTerm = term - 1 })
		drain(unhealthy)
		b.wantBalancersUntil(unhealthy, time.Time{}, 0)
		drain(booting)
		b.wantBalancersUntil(booting, time.Time{}, 0)
		drain(older)
		b.wantBalancersUntil(older, time.Now(), 20*time.Second)
	})
}

// membership is a provider whose load balancers tell whether a VM is in them or finishes its requests.
type membership struct {
	*mock.Provider
	of map[string]string // provider ID by load balancer; "?": the load balancer does not tell
}

func (m membership) IsMember(_ context.Context, lb string, vm infra.VM) (bool, error) {
	if m.of[lb] == "?" {
		return false, infra.Throttled
	}
	return m.of[lb] == vm.ProviderID, nil
}

// TestDrainOfAGroupThatLeftTheConfiguration checks that a drain waits only for the load balancers that the instance is
// in, of all load balancers of the shard. It waits for those that do not tell.
func TestDrainOfAGroupThatLeftTheConfiguration(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		rec, _, _ := b.State.Record(b.serving())
		b.State.Configure((&config.Shard{LoadBalancers: map[string]config.LoadBalancer{"lb1": {}, "lb2": {}}}).
			WithDefaults(), nil)
		id := b.newID()
		rec.ID, rec.ProviderID, rec.ReservedTerm, rec.Group = id, b.plant(id, infra.Running).ProviderID, term-1, "gone"
		b.State.PutRecord(rec, b.write(rec, ""))
		b.delays = map[string]time.Duration{"lb1": 20 * time.Second, "lb2": 40 * time.Second}
		b.leave(id)
		for _, c := range []struct {
			of   map[string]string
			want time.Duration
		}{{nil, 0}, {map[string]string{"lb1": rec.ProviderID, "lb2": "other"}, 20 * time.Second},
			{map[string]string{"lb1": rec.ProviderID, "lb2": "?"}, 40 * time.Second}} {
			b.Provider = membership{b.provider, c.of}
			began := b.view(id).Plan.BalancedAt
			if began.IsZero() {
				began = time.Now()
			}
			b.do(plan.Action{Kind: plan.Drain, Instance: id, Deadline: time.Now().Add(time.Minute)})
			b.wantBalancersUntil(id, began, c.want)
		}
	})
}

// TestDrainsShareTheirQuestions drains many instances at once. The executor must ask each load balancer once, must ask
// again after a minute, and must soon ask again after a failure.
func TestDrainsShareTheirQuestions(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.configure(func(g *config.Group) { g.LoadBalancers = []string{"api", "web"} })
		b.delays = map[string]time.Duration{"web": 20 * time.Second}
		asked := 0
		round := func(want int, wait time.Duration) {
			t.Helper()
			var ids []ident.ID
			for range 10 {
				ids = append(ids, b.balanced())
				b.leave(ids[len(ids)-1])
			}
			began := time.Now()
			var wg sync.WaitGroup
			for _, id := range ids {
				wg.Go(func() {
					b.do(plan.Action{Kind: plan.Drain, Instance: id, Deadline: began.Add(time.Minute)})
				})
			}
			wg.Wait()
			for _, id := range ids {
				b.wantBalancersUntil(id, began, wait)
			}
			if got := int(b.provider.Count(mock.DeregistrationDelay)) - asked; got != want {
				t.Errorf("%d questions, want %d", got, want)
			}
			asked += want
		}
		slow := func(out mock.Outcome) func(mock.Call) mock.Outcome {
			return func(call mock.Call) mock.Outcome {
				if call.Kind == mock.DeregistrationDelay {
					return out
				}
				return mock.Outcome{}
			}
		}
		b.script = slow(mock.Outcome{Latency: time.Second, Err: infra.Errorf(infra.Denied, "ask", "no")})
		round(1, time.Minute)
		time.Sleep(5 * time.Second)
		b.script = slow(mock.Outcome{Latency: time.Second})
		round(0, time.Minute)
		time.Sleep(5 * time.Second)
		round(2, 20*time.Second)
		time.Sleep(50 * time.Second)
		round(0, 20*time.Second)
		time.Sleep(10 * time.Second)
		round(2, 20*time.Second)
	})
}
