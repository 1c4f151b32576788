package leader

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// TakeOver rebuilds the State from the bucket and the provider, which it reads in parallel. The caller configures the
// State first. TakeOver fails if it cannot read the bucket. If the bucket has a record of a higher term, TakeOver fails
// and ends the leader's authority. If the provider does not answer after a few tries, TakeOver still succeeds, and
// Collect asks the provider again. Until the provider answers, no instance counts as gone.
func (l *Leader) TakeOver(ctx context.Context) error {
	asked := l.Executor.Env.Now()
	var vms []infra.VM
	var listErr error
	var highest uint64
	err := l.Executor.Env.ForEach(ctx, 2, 2, func(ctx context.Context, i int) error {
		if i == 0 {
			vms, listErr = l.list(ctx)
			return nil
		}
		return l.records.LoadInstances(ctx, func(rec record.Instance, token objstore.Token) {
			highest = max(highest, rec.Term)
			if rec.State == record.Reserved {
				l.State.AddLeftover(shardstate.Reservation{Record: rec, Token: token})
				return
			}
			l.State.PutRecord(rec, token)
		})
	})
	if err != nil {
		return fmt.Errorf("read the shard's instances: %w", err)
	}
	if term := l.State.Term(); highest > term {
		l.Executor.Authority.Refuse(highest)
		return fmt.Errorf("read the shard's instances: one was written in term %d, this is term %d", highest, term)
	}
	unlisted, known := infra.UnlistedBy(listErr)
	if listErr != nil {
		l.Asker.Failed(listErr)
	}
	if !known {
		return nil
	}
	l.State.Listed(vms, unlisted, asked)
	if len(unlisted) == 0 {
		l.listed = asked
	}
	return l.readStrays(ctx)
}

const (
	listTries = 3
	listPause = 250 * time.Millisecond
	// listPatience limits the retries if the provider is slow. After that time, list does not ask again, so that
	// planning can start.
	listPatience = 2 * time.Second
)

// list returns the provider's list, which may be partial. It retries, because a short throttling must not leave a new
// leader without information.
func (l *Leader) list(ctx context.Context) (vms []infra.VM, err error) {
	began := l.Executor.Env.Now()
	for try := 1; ; try++ {
		vms, err = l.Executor.Provider.List(ctx, l.Executor.Owner)
		_, known := infra.UnlistedBy(err)
		if known || try == listTries || l.Executor.Env.Now().Sub(began) > listPatience {
			return vms, err
		}
		if sleepErr := l.Executor.Env.Sleep(ctx, listPause); sleepErr != nil {
			return nil, err
		}
	}
}

// readParallel is the number of stray records that are read in parallel.
const readParallel = 16

// readStrays reads the record of each VM of the provider for which the bucket's list contained no record. Most of these
// VMs have no record. A record that was written just before the bucket was listed may be missing from the list, and its
// group would then get a VM too many.
func (l *Leader) readStrays(ctx context.Context) error {
	strays := l.State.Orphans()
	return l.Executor.Env.ForEach(ctx, len(strays), readParallel, func(ctx context.Context, i int) error {
		vm := strays[i]
		rec, token, err := l.records.GetInstance(ctx, vm.Tags.Tenant, vm.Tags.Instance)
		if errors.Is(err, objstore.ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the record of %s: %w", vm.Tags.Instance, err)
		}
		l.found(rec, token)
		return nil
	})
}

// Collect performs three tasks at every collection interval: it fills the pools of reservations, checks whether the
// provider's subnets are full, and lists the provider's VMs. If the list fails, Collect repeats the tasks sooner. It
// returns when ctx ends. The list that TakeOver has read counts as the first list. To list thousands of VMs a second
// time would delay the actions that follow from the first list.
func (l *Leader) Collect(ctx context.Context) {
	list := func() error {
		if !l.listed.IsZero() {
			return nil
		}
		return l.Asker.List(ctx)
	}
	for failures := 0; ; {
		for _, pool := range l.State.Pools() {
			l.Executor.Refill(ctx, pool)
		}
		l.Executor.QuerySubnetCapacity(ctx)
		err := list()
		if ctx.Err() != nil {
			return
		}
		wait := l.State.Settings().CollectInterval
		if err != nil {
			l.Asker.Failed(err)
			failures++
			wait = reconnect.Backoff(time.Second, time.Minute, failures)
		} else {
			l.Asker.Answer()
			failures = 0
		}
		l.listed = time.Time{}
		if l.Executor.Env.Sleep(ctx, wait) != nil {
			return
		}
	}
}
