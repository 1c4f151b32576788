package execute

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// turnCheck is how long a throttled create call waits before it checks again whether its turn has come.
const turnCheck = 10 * time.Millisecond

// turns makes create calls wait for their turn while the provider throttles them. The zero value is ready for use. It
// is safe for concurrent use.
type turns struct {
	mu      sync.Mutex
	pace    plan.Pace
	waiting []plan.Turn // in the order of their arrival, with tickets
	tickets []uint64
	served  map[config.GroupKey]uint64 // number of the last turn of each group, while calls wait
	last    uint64                     // number of the last ticket or turn
}

// takeTurn waits until this create call may start in the order of all waiting create calls. It fails if ctx ends first.
func (x *Executor) takeTurn(ctx context.Context, turn plan.Turn) error {
	ticket := x.turns.enter(turn)
	for {
		wait := x.turns.start(ticket, x.Env.Now())
		if wait == 0 {
			return nil
		}
		if err := x.Env.Sleep(ctx, wait); err != nil {
			x.turns.leave(ticket)
			return err
		}
	}
}

func (t *turns) enter(turn plan.Turn) (ticket uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.waiting, t.tickets = append(t.waiting, turn), append(t.tickets, t.last)
	return t.last
}

func (t *turns) leave(ticket uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(slices.Index(t.tickets, ticket))
}

// remove removes a waiting call. Call with mu held.
func (t *turns) remove(n int) {
	t.waiting, t.tickets = slices.Delete(t.waiting, n, n+1), slices.Delete(t.tickets, n, n+1)
	if len(t.waiting) == 0 {
		t.served = nil
	}
}

// start checks whether it is the turn of the call with the given ticket. If so, it starts the call and returns 0.
// Otherwise it returns how long the call must wait before it tries again.
func (t *turns) start(ticket uint64, now time.Time) (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := slices.Index(t.tickets, ticket)
	if t.pace.Limited(now) {
		if wait := t.pace.Next.Sub(now); wait > 0 {
			return wait
		}
		if plan.NextTurn(t.waiting, t.served) != n {
			return turnCheck
		}
		t.pace = t.pace.ApplyCall(now)
	}
	if t.served == nil {
		t.served = map[config.GroupKey]uint64{}
	}
	t.last++
	t.served[t.waiting[n].Group] = t.last
	t.remove(n)
	return 0
}

// answered adapts the pace of create calls to the provider's answer to one of them.
func (t *turns) answered(err error, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch infra.ClassOf(err) {
	case infra.Throttled:
		t.pace = t.pace.ApplyThrottled(now)
	case infra.Indeterminate:
	default:
		t.pace = t.pace.ApplyAccepted(now)
	}
}

// WaitingCreates counts the create calls that wait for their turn. The plan of the group depends on the counts.
func (x *Executor) WaitingCreates(group config.GroupKey) plan.WaitingCreates {
	perCall := x.perCall(group)
	t := &x.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	w := plan.WaitingCreates{Pace: t.pace, PerCall: perCall}
	for _, turn := range t.waiting {
		switch {
		case turn.Voluntary && turn.Group == group:
			w.Voluntary++
		case turn.Voluntary:
		case turn.Group == group:
			w.Needed++
			w.ShardNeeded++
		default:
			w.ShardNeeded++
		}
	}
	return w
}
