package execute

import (
	"context"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

func (x *Executor) balance(ctx context.Context, _ config.GroupKey, action plan.Action) error {
	return x.setBalanced(ctx, action.Instance, true)
}

// setBalanced registers an instance with every load balancer of its group if `in` is true. If `in` is false, it
// deregisters the instance.
func (x *Executor) setBalanced(ctx context.Context, id ident.ID, in bool) error {
	began := x.Env.Now()
	rec, _, ok := x.State.Record(id)
	if !ok {
		return nil
	}
	group, ok := x.State.Group(config.GroupKey{Tenant: rec.Tenant, Group: rec.Group})
	if !ok || len(group.LoadBalancers) == 0 {
		return nil
	}
	if in && group.Deleted {
		x.State.Balanced(id, true, began) // the group is being deleted, so there is no need to register the instance
		return nil
	}
	balancers, ok := infra.Capability[infra.LoadBalancers](x.Provider)
	switch {
	case !ok && !in:
		return nil // the provider has no load balancers, so it is in none
	case !ok:
		return infra.Errorf(infra.Invalid, "register "+id.String(),
			"the shard's provider has no load balancers, group %s names %d", group.GroupKey,
			len(group.LoadBalancers))
	}
	vm, err := x.ownVM(ctx, rec)
	if err != nil {
		return err
	}
	call := balancers.Register
	if !in {
		call = balancers.Deregister
	}
	var errs []error
	for _, name := range group.LoadBalancers {
		if err := x.Permit(ctx); err != nil {
			return err
		}
		if err := call(ctx, name, vm); err != nil && (in || !errors.Is(err, infra.NotFound)) {
			errs = append(errs, fmt.Errorf("load balancer %s: %w", name, err))
		}
	}
	if err = errors.Join(errs...); err == nil {
		x.State.Balanced(id, in, began)
	}
	return err
}
