package execute_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// messages returns the texts of the alerts of a kind that were raised so far.
func (b *bench) messages(kind plan.AlertKind) (out []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.errors {
		if e.Kind == kind && !e.Resolved {
			out = append(out, e.Message)
		}
	}
	return out
}

// TestAlertsNameWhatIsMissing checks the alerts of refused creates. Each names the exceeded quota, or says what the
// provider denied.
func TestAlertsNameWhatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		err  infra.Error
		want string
	}{
		"throttled": {infra.Error{Class: infra.Throttled, Quota: "RunInstances request bucket refill rate"},
			"the provider throttles creates (quota RunInstances request bucket refill rate)"},
		"quota": {infra.Error{Class: infra.Capacity, Quota: "Running On-Demand G and VT instances"},
			"(quota Running On-Demand G and VT instances)"},
		"denied": {infra.Error{Class: infra.Denied, Op: "create", Err: errTest}, "create: denied: test"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.reserve()
				refusals := 0
				b.script = func(call mock.Call) mock.Outcome {
					if call.Kind != mock.Create || refusals == 4 {
						return mock.Outcome{}
					}
					refusals++
					return mock.Outcome{Err: &c.err}
				}
				for try := 0; try < 4 && len(b.messages(plan.AlertProvider)) == 0; try++ { // one for each placement
					b.do(plan.Action{Kind: plan.Create, Reason: "test"})
				}
				got := b.messages(plan.AlertProvider)
				if len(got) != 1 || !strings.Contains(got[0], c.want) {
					t.Errorf("alerts %q, want one with %q", got, c.want)
				}
				b.wait()
			})
		})
	}
}

// TestThrottledCallWaitsForItsTurn checks the time of each attempt, and that a call whose context ends leaves the
// queue.
func TestThrottledCallWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.reserve()
		began := time.Now()
		var at []time.Duration
		b.script = func(call mock.Call) mock.Outcome {
			if call.Kind != mock.Create {
				return mock.Outcome{}
			}
			at = append(at, time.Since(began))
			if len(at) < 4 {
				return mock.Outcome{Err: infra.Errorf(infra.Throttled, "create", "slow down")}
			}
			return mock.Outcome{}
		}
		b.do(plan.Action{Kind: plan.Create, Reason: "test"})
		for n, want := range []time.Duration{0, 250 * time.Millisecond, 500 * time.Millisecond,
			750 * time.Millisecond} {
			if len(at) <= n || at[n] != want {
				t.Fatalf("attempts after %v, want the %dth after %s", at, n, want)
			}
		}
		if w := b.WaitingCreates(workers); w.Needed != 0 || w.ShardNeeded != 0 || !w.Pace.Limited(time.Now()) {
			t.Errorf("after the call: %+v", w)
		}
		b.script = func(mock.Call) mock.Outcome {
			return mock.Outcome{Err: infra.Errorf(infra.Throttled, "create", "slow down")}
		}
		ctx, cancel := context.WithCancel(t.Context())
		b.State.ExpectCreates(workers, shardstate.Pending{Members: 1})
		b.Env.Go("create", func() { b.Do(ctx, workers, plan.Action{Kind: plan.Create, Voluntary: true}) })
		time.Sleep(100 * time.Millisecond)
		if w := b.WaitingCreates(workers); w.Voluntary != 1 || w.Needed != 0 {
			t.Errorf("while the call waits: %+v", w)
		}
		cancel()
		b.wait()
		if w := b.WaitingCreates(workers); w.Voluntary != 0 {
			t.Errorf("after the context ended: %+v", w)
		}
	})
}
