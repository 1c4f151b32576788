package shardstate

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/plan"
	"github.com/nstance-kit/nstance/services/internal/tasks"
)

const (
	// askWindow is how long questions are collected before the provider is asked: a thousand streams do not close in
	// one instant.
	askWindow = 2 * time.Millisecond
	// askSingly is up to how many questions are asked one by one; more are one list.
	askSingly = 10
	// askAtOnce is how many single questions are under way at most.
	askAtOnce = 20
	// listPause is the least time between two lists that questions lead to.
	listPause = 250 * time.Millisecond
)

// Asker shares questions to the provider between those who ask: a few are single calls, side by side, so that a slow
// one does not hold up the others; many are one list. While a list is under way many further questions wait for the
// next, which begins no sooner than listPause after it, since an answer only covers what happened before it was asked
// for.
type Asker struct {
	World    *State
	Provider infra.Provider
	Owner    infra.Owner
	Env      tasks.Env
	// Failed is told of a provider that does not answer, Answer of one that does. Both may be called by several at
	// once.
	Failed func(error)
	Answer func()

	mu      sync.Mutex
	waiting map[ident.ID]struct{}
	running bool // the task that sends questions
	singles int  // questions under way
	listing bool
	lastEnd time.Time // of a list
}

// Ask asks the provider about an instance, soon. It does not block.
func (a *Asker) Ask(ctx context.Context, id ident.ID) {
	a.mu.Lock()
	if a.waiting == nil {
		a.waiting = map[ident.ID]struct{}{}
	}
	a.waiting[id] = struct{}{}
	a.mu.Unlock()
	a.kick(ctx)
}

// kick starts sending, if there is something to send and nobody does.
func (a *Asker) kick(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.running && len(a.waiting) > 0 {
		a.running = true
		a.Env.Go("ask the provider", func() { a.send(ctx) })
	}
}

// send sends what is waiting, until nothing is or a list has to end first: its end goes on.
func (a *Asker) send(ctx context.Context) {
	for pause := askWindow; pause > 0; pause = a.next(ctx) {
		_ = a.Env.Sleep(ctx, pause)
	}
}

// next sends what can be sent now and returns when to look again, zero for never.
func (a *Asker) next(ctx context.Context) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() != nil {
		clear(a.waiting)
	}
	n := len(a.waiting)
	switch pause := listPause - a.Env.Now().Sub(a.lastEnd); {
	case n == 0:
	case n <= askSingly && a.singles+n <= askAtOnce:
		a.singles += n
		for _, id := range a.take() {
			a.Env.Go("ask about an instance", func() { a.ask(ctx, id) })
		}
		return askWindow
	case a.listing:
	case pause > 0 && !a.lastEnd.IsZero():
		return pause
	default:
		a.listing = true
		ids := a.take()
		a.Env.Go("ask about many instances", func() { a.askMany(ctx, ids) })
		return askWindow
	}
	a.running = false
	return 0
}

// take empties the queue, in order. Call with mu held.
func (a *Asker) take() []ident.ID {
	ids := slices.SortedFunc(maps.Keys(a.waiting), ident.ID.Compare)
	clear(a.waiting)
	return ids
}

func (a *Asker) ask(ctx context.Context, id ident.ID) {
	a.told(ctx, a.get(ctx, id), id)
	a.mu.Lock()
	a.singles--
	a.mu.Unlock()
	a.kick(ctx)
}

func (a *Asker) askMany(ctx context.Context, ids []ident.ID) {
	a.told(ctx, a.List(ctx), ids...)
	a.mu.Lock()
	a.listing, a.lastEnd = false, a.Env.Now()
	a.mu.Unlock()
	a.kick(ctx)
}

// told notes that questions have been answered, or were not: then the planner asks again after its back-off instead of
// at once.
func (a *Asker) told(ctx context.Context, err error, ids ...ident.ID) {
	for _, id := range ids {
		a.World.change(id, func(i *instance) {
			i.plan = plan.ApplyAskResult(i.plan, err != nil, a.Env.Now())
		})
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		a.Failed(err)
	default:
		a.Answer()
	}
}

// List asks for everything and folds it in.
func (a *Asker) List(ctx context.Context) error {
	asked := a.Env.Now()
	vms, err := a.Provider.List(ctx, a.Owner)
	if err != nil {
		return err
	}
	a.World.Listed(vms, asked)
	return nil
}

func (a *Asker) get(ctx context.Context, id ident.ID) error {
	known, ok := a.World.VM(id)
	if !ok {
		return nil
	}
	asked := a.Env.Now()
	var vm infra.VM
	var err error
	if known.ProviderID == "" {
		vm, err = a.Provider.FindByInstance(ctx, a.Owner, id)
	} else {
		vm, err = a.Provider.Get(ctx, known.ProviderID)
	}
	switch {
	case errors.Is(err, infra.NotFound):
		a.World.NotFound(id, asked)
		return nil
	case err != nil:
		return err
	}
	a.World.Answered(id, vm, asked)
	return nil
}
