package execute

import (
	"context"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// sleep puts the VM of a spare to sleep. First it makes the decision durable, so that no leader takes the silence of
// the agent for a fault. Like mark, it changes nothing if the record has changed since the plan was made.
func (x *Executor) sleep(ctx context.Context, _ config.GroupKey, action plan.Action) error {
	now := x.Env.Now()
	decided := false
	var planned uint64
	rec, err := x.Update(ctx, action.Instance, func(rec *record.Instance) {
		if planned == 0 {
			planned = rec.Revision
		}
		decided = rec.Revision == planned && plan.RequestSleep(rec, now)
	})
	if err != nil || !rec.IsSpare() || rec.Spare.AsleepAt.IsZero() || rec.State != record.Registered {
		return err
	}
	if decided {
		x.State.Publish(shardstate.NewEvent(shardstate.EventAsleep, &rec, action.Why()))
	}
	sleeper, vm, err := x.sleeper(ctx, rec)
	if err != nil {
		return err
	}
	if err := x.confirm(ctx); err != nil { // a later leader may have made it a member
		return err
	}
	if err := sleeper.Sleep(ctx, vm, rec.Spare.Sleep); err != nil {
		return notYet(err)
	}
	x.State.SleepRequested(rec.ID)
	return nil
}

// wake wakes the VM of a member that slept as a spare.
func (x *Executor) wake(ctx context.Context, _ config.GroupKey, action plan.Action) error {
	rec, _, ok := x.State.Record(action.Instance)
	if !ok {
		return ErrGone
	}
	if rec.IsSpare() || rec.State != record.Registered {
		return nil
	}
	sleeper, vm, err := x.sleeper(ctx, rec)
	if err == nil {
		if err = x.Permit(ctx); err != nil {
			return err
		}
		err = sleeper.Wake(ctx, vm)
	}
	switch infra.ClassOf(err) {
	case "":
		x.State.WakeRequested(rec.ID)
	case infra.NotFound, infra.Invalid:
		x.State.WakeFailed(rec.ID, err.Error())
	}
	return notYet(err)
}

// notYet marks a [infra.Conflict]: the VM has not reached the state yet in which the call is possible.
func notYet(err error) error {
	if errors.Is(err, infra.Conflict) {
		return fmt.Errorf("%w: %w", errNotYet, err)
	}
	return err
}

// sleeper returns what puts the VM of a record to sleep, and the VM.
func (x *Executor) sleeper(ctx context.Context, rec record.Instance) (infra.Sleeper, infra.VM, error) {
	sleeper, ok := infra.Capability[infra.Sleeper](x.Provider)
	if !ok {
		return nil, infra.VM{}, infra.Errorf(infra.Invalid, "sleep "+rec.ID.String(),
			"the shard's provider cannot put VMs to sleep")
	}
	vm, err := x.ownVM(ctx, rec)
	return sleeper, infra.Target(x.Owner, rec.ID, vm.ProviderID), err
}
