package execute

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Collect performs one garbage collection action and reports whether it succeeded. It blocks until the action ends.
func (x *Executor) Collect(ctx context.Context, action plan.Action) bool {
	var err error
	switch action.Kind {
	case plan.ConfirmOrphan:
		err = x.confirmOrphan(ctx, action)
	case plan.TerminateStray:
		err = x.terminateStray(ctx, action)
	case plan.Settle:
		err = x.settle(ctx, action)
	case plan.RemoveTombstone:
		err = x.removeTombstone(ctx, action)
	default:
		err = fmt.Errorf("action %q does not belong to garbage collection", action.Kind)
	}
	if err != nil && ctx.Err() == nil {
		x.Log.Warn("collection failed", "action", string(action.Kind), "instance", action.Instance.String(), "error",
			err)
	}
	return err == nil
}

// confirmOrphan reads the record of a VM from the bucket, because the State may not have seen the record yet.
func (x *Executor) confirmOrphan(ctx context.Context, action plan.Action) error {
	vm, ok := x.State.BeginStray(action.ProviderID)
	if !ok {
		return nil
	}
	at := x.Env.Now()
	rec, token, err := x.Store.GetInstance(ctx, vm.Tags.Tenant, vm.Tags.Instance)
	switch {
	case err == nil:
		x.State.EndStray(action.ProviderID, true)
		if rec.State == record.Reserved && rec.Group == "" {
			adopt(&rec, vm)
		}
		x.State.PutRecord(rec, token)
		x.State.Answered(rec.ID, vm, at)
		return nil
	case errors.Is(err, objstore.ErrNotFound):
		x.State.ReadMissing(action.ProviderID, at)
		return nil
	default:
		x.State.EndStray(action.ProviderID, false)
		return err
	}
}

// terminateStray terminates a VM that has no live record. First it writes a tombstone, as the durable intent to
// terminate.
func (x *Executor) terminateStray(ctx context.Context, action plan.Action) error {
	vm, ok := x.State.BeginStray(action.ProviderID)
	if !ok {
		return nil
	}
	deleted := false
	defer func() { x.State.EndStray(action.ProviderID, deleted) }()
	id := vm.Tags.Instance
	if _, dead := x.State.Tombstone(id); !dead {
		now := x.Env.Now().UTC()
		rec := x.reservation(id, vm.Tags.Tenant)
		rec.State, rec.DeletedAt, rec.DeleteReason, rec.Group = record.Deleted, now, action.Reason, vm.Tags.Group
		rec.ProviderID = vm.ProviderID
		token, err := x.Store.PutInstance(ctx, rec, "")
		if superseded, ok := errors.AsType[*clusterstate.SupersededError](err); ok {
			deleted = true // the VM has a record after all
			x.State.PutRecord(superseded.Record, superseded.Token)
			return nil
		}
		if err != nil {
			return fmt.Errorf("record the end of %s: %w", id, err)
		}
		x.State.PutRecord(rec, token)
	}
	if err := x.confirm(ctx); err != nil {
		return err
	}
	x.Log.Info("terminating a stray VM", "instance", id.String(), "reason", action.Reason)
	err := x.Provider.Delete(ctx, infra.Target(x.Owner, id, action.ProviderID))
	if err != nil && !errors.Is(err, infra.NotFound) {
		return err
	}
	deleted = true // until a list shows the VM again
	return nil
}

// settle resolves a leftover reservation. If the reservation's VM exists, settle adopts the VM. Otherwise the
// reservation becomes a tombstone.
func (x *Executor) settle(ctx context.Context, action plan.Action) error {
	left, ok := x.State.Leftover(action.Instance)
	if !ok {
		return nil
	}
	asked := x.Env.Now()
	vm, err := x.Provider.FindByInstance(ctx, x.Owner, action.Instance)
	found := err == nil
	if err != nil && !errors.Is(err, infra.NotFound) {
		return err
	}
	next := left.Record
	if found {
		adopt(&next, vm)
	} else {
		next.State, next.DeletedAt, next.DeleteReason = record.Deleted, asked.UTC(), "reserved, never used"
	}
	if err := x.Permit(ctx); err != nil {
		return err
	}
	x.stamp(&next)
	token, err := x.Store.PutInstance(ctx, next, left.Token)
	if superseded, ok := errors.AsType[*clusterstate.SupersededError](err); ok {
		if superseded.Record.Term > x.Authority.Term() {
			x.Authority.Refuse(superseded.Record.Term)
			return err
		}
		x.State.PutRecord(superseded.Record, superseded.Token)
		return nil
	}
	if err != nil {
		return err
	}
	x.State.PutRecord(next, token)
	if found {
		x.State.Answered(next.ID, vm, asked)
	}
	return nil
}

// settleUsed resolves an instance of this leader whose create call ended without a recorded result. If a VM exists,
// settleUsed adopts the VM. Otherwise the record becomes a tombstone.
func (x *Executor) settleUsed(ctx context.Context, group config.GroupKey, action plan.Action) error {
	asked := x.Env.Now()
	vm, err := x.Provider.FindByInstance(ctx, x.Owner, action.Instance)
	found := err == nil
	if err != nil && !errors.Is(err, infra.NotFound) {
		return err
	}
	_, err = x.Update(ctx, action.Instance, func(rec *record.Instance) {
		switch {
		case rec.State != record.Reserved:
		case found:
			adopt(rec, vm)
		default:
			rec.State, rec.DeletedAt, rec.DeleteReason = record.Deleted, asked.UTC(), "its create call made no VM"
		}
	})
	if err != nil {
		return err
	}
	if found {
		x.State.Answered(action.Instance, vm, asked)
	} else {
		x.State.CreateFailed(group, "a create call made no VM")
	}
	return nil
}

// adopt completes the record of a reservation from the tags of its VM.
func adopt(rec *record.Instance, vm infra.VM) {
	rec.State = record.Created
	rec.Group, rec.Template, rec.OnDemand = vm.Tags.Group, vm.Tags.Template, vm.Tags.OnDemand
	rec.InfraHash, rec.Spot = vm.Tags.InfraHash, vm.Tags.Spot
	if vm.Tags.Spare && rec.Spare == nil {
		rec.Spare = &record.Spare{}
	}
	rec.ProviderID, rec.LaunchedAt = vm.ProviderID, vm.LaunchedAt
	rec.IPv4, rec.IPv6, rec.Hostname = address(vm.IPv4), address(vm.IPv6), vm.Hostname
	rec.CreatedAt = cmp.Or(vm.Tags.CreatedAt, rec.CreatedAt)
}

func (x *Executor) removeTombstone(ctx context.Context, action plan.Action) error {
	rec, ok := x.State.Tombstone(action.Instance)
	if !ok {
		return nil
	}
	if err := x.Permit(ctx); err != nil {
		return err
	}
	if err := x.Store.DeleteInstance(ctx, rec.Tenant, rec.ID); err != nil {
		return err
	}
	x.State.RemoveTombstone(action.Instance)
	return nil
}
