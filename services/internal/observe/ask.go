package observe

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/tasks"
)

const (
	// askWindow is how long questions are collected before the provider is asked: a thousand streams do not close in one instant.
	askWindow = 2 * time.Millisecond
	// askSingly is up to how many questions are asked one by one; more are one list.
	askSingly = 10
	// listPause is the least time between two lists that questions lead to.
	listPause = 250 * time.Millisecond
)

// Asker shares questions to the provider between those who ask: a few are single calls, many are one list. While a list is under way
// further questions wait for the next, which begins no sooner than listPause after it, since an answer only covers what happened
// before it was asked for.
type Asker struct {
	World    *World
	Provider infra.Provider
	Owner    infra.Owner
	Env      tasks.Env
	// Failed is told of a provider that does not answer, Answer of one that does again.
	Failed func(error)
	Answer func()

	mu      sync.Mutex
	waiting map[ident.ID]struct{}
	running bool
	lastEnd time.Time
}

// Ask asks the provider about an instance, soon. It does not block.
func (a *Asker) Ask(ctx context.Context, id ident.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting == nil {
		a.waiting = map[ident.ID]struct{}{}
	}
	a.waiting[id] = struct{}{}
	if !a.running {
		a.running = true
		a.Env.Go("ask the provider", func() { a.run(ctx) })
	}
}

func (a *Asker) run(ctx context.Context) {
	for {
		_ = a.Env.Sleep(ctx, askWindow)
		a.mu.Lock()
		ids := make([]ident.ID, 0, len(a.waiting))
		for id := range a.waiting {
			ids = append(ids, id)
		}
		if len(ids) == 0 || ctx.Err() != nil {
			a.running = false
			clear(a.waiting)
			a.mu.Unlock()
			return
		}
		pause := time.Duration(0)
		if len(ids) > askSingly && !a.lastEnd.IsZero() {
			pause = listPause - a.Env.Now().Sub(a.lastEnd)
		}
		if pause <= 0 {
			clear(a.waiting)
		}
		a.mu.Unlock()
		if pause > 0 {
			_ = a.Env.Sleep(ctx, pause)
			continue
		}
		slices.SortFunc(ids, ident.ID.Compare)
		if err := a.ask(ctx, ids); ctx.Err() == nil {
			if err != nil {
				a.Failed(err)
			} else {
				a.Answer()
			}
		}
	}
}

func (a *Asker) ask(ctx context.Context, ids []ident.ID) error {
	if len(ids) > askSingly {
		err := a.List(ctx)
		a.mu.Lock()
		a.lastEnd = a.Env.Now()
		a.mu.Unlock()
		return a.asked(ids, err)
	}
	return a.asked(ids, a.Env.ForEach(ctx, len(ids), len(ids), func(ctx context.Context, i int) error { return a.get(ctx, ids[i]) }))
}

// asked notes a question that was not answered, so that the planner asks again after its back-off instead of at once.
func (a *Asker) asked(ids []ident.ID, err error) error {
	for _, id := range ids {
		a.World.change(id, func(i *instance) {
			i.plan.Answered(a.Env.Now(), err != nil)
		})
	}
	return err
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
