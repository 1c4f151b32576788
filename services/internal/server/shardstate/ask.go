package shardstate

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

const (
	// askWindow is how long the Asker collects questions before it asks the provider. If many agents lose their streams
	// at once, all questions about them arrive within this time.
	askWindow = 2 * time.Millisecond
	// askSingly is the largest number of questions that are sent as single calls. More questions become one list call.
	askSingly = 10
	// askAtOnce is the maximum number of single calls that run at the same time.
	askAtOnce = 20
	// listPause is the minimum time between the end of one list call and the start of the next, if both calls answer
	// questions.
	listPause = 250 * time.Millisecond
)

// Asker batches questions about VMs to the provider. It sends a few questions as single calls in parallel, so that a
// slow call does not delay the others. It sends many questions as one list call. A question that arrives during a list
// call waits for the next list call, because an answer shows only what happened before its call. The next list call
// starts at least listPause after the end of the last one.
type Asker struct {
	State    *State
	Provider infra.Provider
	Owner    infra.Owner
	Env      tasks.Env
	// Failed is called with the error if the provider does not answer. Answer is called if the provider answers. Both
	// may be called concurrently.
	Failed func(error)
	Answer func()

	mu      sync.Mutex
	waiting map[ident.ID]struct{}
	awaited map[ident.ID][]chan error // the calls of Await that wait for an answer
	running bool                      // true while a task sends questions
	singles int                       // single calls that are running
	listing bool
	lastEnd time.Time // end of the last list
}

// Ask queues a question about an instance. It does not block.
func (a *Asker) Ask(ctx context.Context, id ident.ID) {
	a.mu.Lock()
	if a.waiting == nil {
		a.waiting = map[ident.ID]struct{}{}
	}
	a.waiting[id] = struct{}{}
	a.mu.Unlock()
	a.startSending(ctx)
}

// Await queues a question about an instance like Ask, and waits for the answer until ctx ends. The question itself runs
// under the context term, because it may be sent for several callers.
func (a *Asker) Await(ctx, term context.Context, id ident.ID) error {
	answer := make(chan error, 1)
	a.mu.Lock()
	if a.awaited == nil {
		a.awaited = map[ident.ID][]chan error{}
	}
	a.awaited[id] = append(a.awaited[id], answer)
	a.mu.Unlock()
	a.Ask(term, id)
	var err error
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		err = ctx.Err()
	case <-term.Done():
		err = term.Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	left := slices.DeleteFunc(a.awaited[id], func(c chan error) bool { return c == answer })
	if a.awaited[id] = left; len(left) == 0 {
		delete(a.awaited, id)
	}
	return err
}

// startSending starts the sending task if questions wait and the task is not already running.
func (a *Asker) startSending(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.running && len(a.waiting) > 0 {
		a.running = true
		a.Env.Go("ask the provider", func() { a.send(ctx) })
	}
}

// send sends the waiting questions. It returns when no question waits, or when the questions must wait for a running
// list call. When that call ends, askMany calls startSending.
func (a *Asker) send(ctx context.Context) {
	for pause := askWindow; pause > 0; pause = a.next(ctx) {
		_ = a.Env.Sleep(ctx, pause)
	}
}

// next sends the questions that can be sent now. It returns the time until the next attempt, or zero if send can stop.
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
		for _, id := range a.takeQueue() {
			a.Env.Go("ask about an instance", func() { a.askOne(ctx, id) })
		}
		return askWindow
	case a.listing:
	case pause > 0 && !a.lastEnd.IsZero():
		return pause
	default:
		a.listing = true
		ids := a.takeQueue()
		a.Env.Go("ask about many instances", func() { a.askMany(ctx, ids) })
		return askWindow
	}
	a.running = false
	return 0
}

// takeQueue empties the queue and returns its IDs in order. Call with mu held.
func (a *Asker) takeQueue() []ident.ID {
	ids := slices.SortedFunc(maps.Keys(a.waiting), ident.ID.Compare)
	clear(a.waiting)
	return ids
}

func (a *Asker) askOne(ctx context.Context, id ident.ID) {
	a.recordAnswers(ctx, a.Get(ctx, id), id)
	a.mu.Lock()
	a.singles--
	a.mu.Unlock()
	a.startSending(ctx)
}

func (a *Asker) askMany(ctx context.Context, ids []ident.ID) {
	a.recordAnswers(ctx, a.List(ctx), ids...)
	a.mu.Lock()
	a.listing, a.lastEnd = false, a.Env.Now()
	a.mu.Unlock()
	a.startSending(ctx)
}

// recordAnswers ends the questions about the instances in ids, and notes whether the provider answered them. The
// planner asks again after a backoff if there was no answer.
func (a *Asker) recordAnswers(ctx context.Context, err error, ids ...ident.ID) {
	unlisted, known := infra.UnlistedBy(err)
	for _, id := range ids {
		failed := !known
		a.State.change(id, func(i *instance) {
			failed = !known || !plan.Covered(i.plan, unlisted)
			i.plan = plan.ApplyAskResult(i.plan, failed, a.Env.Now())
		})
		answer := err
		if !failed {
			answer = nil
		}
		a.mu.Lock()
		for _, awaiting := range a.awaited[id] {
			awaiting <- answer
		}
		delete(a.awaited, id)
		a.mu.Unlock()
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		a.Failed(err)
	default:
		a.Answer()
	}
}

// List asks the provider for all VMs of the shard and records the VMs in the answer. It returns an [infra.PartialError]
// if the answer lacks some VMs.
func (a *Asker) List(ctx context.Context) error {
	asked := a.Env.Now()
	vms, err := a.Provider.List(ctx, a.Owner)
	if unlisted, known := infra.UnlistedBy(err); known {
		a.State.Listed(vms, unlisted, asked)
	}
	return err
}

// Get asks the provider for one instance and records the answer. Unlike Ask, it waits for the answer and sends the
// question immediately.
func (a *Asker) Get(ctx context.Context, id ident.ID) error {
	known, ok := a.State.VM(id)
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
		if err == nil && infra.CheckOwned("", vm.Tags, infra.Target(a.Owner, id, "").Tags) != nil {
			err = infra.NotFound // the record names a VM that is not the instance's
		}
	}
	switch {
	case errors.Is(err, infra.NotFound):
		a.State.NotFound(id, asked)
		return nil
	case err != nil:
		return err
	}
	a.State.Answered(id, vm, asked)
	return nil
}
