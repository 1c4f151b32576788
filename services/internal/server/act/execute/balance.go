package execute

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
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
	case !ok && !in: // the provider has no load balancers, so it is in none
		x.State.Balanced(id, false, began)
		return nil
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

// balancersUntil returns when the load balancers of an instance's group end the requests that the instance still has,
// if it leaves them at the time now or has left them before. The zero value means that they end them immediately, or
// that the instance was never registered with them.
func (x *Executor) balancersUntil(ctx context.Context, rec record.Instance, now time.Time) (time.Time, error) {
	group, ok := x.State.Group(config.GroupKey{Tenant: rec.Tenant, Group: rec.Group})
	balancers, able := infra.Capability[infra.DeregistrationDelay](x.Provider)
	if !ok || !able || !x.maybeBalanced(rec) {
		return time.Time{}, nil
	}
	var longest time.Duration
	for _, name := range group.LoadBalancers {
		if !x.mayBeIn(ctx, name, rec) {
			continue
		}
		delay, err := x.deregistrationDelay(ctx, balancers, name)
		if errors.Is(err, infra.NotFound) {
			continue // the instance cannot be in it
		}
		if err != nil {
			return time.Time{}, err
		}
		longest = max(longest, delay)
	}
	if longest == 0 {
		return time.Time{}, nil
	}
	if view, _ := x.State.Instance(rec.ID); view.Plan.Deregistered {
		now = view.Plan.BalancedAt
	}
	return now.Add(longest), nil
}

// maybeBalanced reports whether an instance may have been registered with load balancers. A leader registers only
// instances that were healthy. It does not know whether an instance of a former leader was healthy then.
func (x *Executor) maybeBalanced(rec record.Instance) bool {
	if rec.RegisteredAt.IsZero() {
		return false
	}
	view, _ := x.State.Instance(rec.ID)
	return view.Plan.EverHealthy || rec.ReservedTerm != x.Authority.Term()
}

// mayBeIn reports whether an instance may be in a load balancer of its group. It asks the load balancer only if the
// group left the configuration, so that its load balancers are not known.
func (x *Executor) mayBeIn(ctx context.Context, name string, rec record.Instance) bool {
	balancers, able := infra.Capability[infra.LoadBalancerMembership](x.Provider)
	if !able || !x.State.MayBeOutside(config.GroupKey{Tenant: rec.Tenant, Group: rec.Group}) {
		return true
	}
	is, err := balancers.IsMember(ctx, name, infra.VM{ProviderID: rec.ProviderID})
	return is || err != nil
}

const (
	// delayMemory is how long the deregistration delay of a load balancer is remembered. failureMemory is how long it
	// is remembered that a load balancer did not tell its delay.
	delayMemory, failureMemory = time.Minute, 10 * time.Second
	// delayCheck is the time between two checks whether a load balancer that is being asked has answered.
	delayCheck = 100 * time.Millisecond
)

// delays remembers the deregistration delays of load balancers, so that the drains of many instances ask each load
// balancer only once. The zero value is ready for use. It is safe for concurrent use.
type delays struct {
	mu    sync.Mutex
	known map[string]delayAnswer // by the load balancer's name
}

// delayAnswer is what a load balancer answered. Until is when the answer is forgotten; zero while it is awaited.
type delayAnswer struct {
	delay time.Duration
	err   error
	until time.Time
}

// deregistrationDelay returns the deregistration delay of a load balancer. It asks the load balancer if the delay is
// not known, and if no other caller is asking.
func (x *Executor) deregistrationDelay(ctx context.Context, balancers infra.DeregistrationDelay, name string) (
	time.Duration, error) {
	for {
		answer, known := x.delays.get(name, x.Env.Now())
		switch {
		case !known:
			answer.delay, answer.err = balancers.DeregistrationDelay(ctx, name)
			return x.delays.set(name, answer, x.Env.Now())
		case !answer.until.IsZero():
			return answer.delay, answer.err
		}
		if err := x.Env.Sleep(ctx, delayCheck); err != nil {
			return 0, err
		}
	}
}

// get returns the answer of a load balancer. If there is none, the caller must ask the load balancer and call set.
func (d *delays) get(name string, now time.Time) (answer delayAnswer, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	answer, known = d.known[name]
	if known && (answer.until.IsZero() || now.Before(answer.until)) {
		return answer, true
	}
	if d.known == nil {
		d.known = map[string]delayAnswer{}
	}
	d.known[name] = delayAnswer{}
	return delayAnswer{}, false
}

func (d *delays) set(name string, answer delayAnswer, now time.Time) (time.Duration, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	answer.until = now.Add(delayMemory)
	if answer.err != nil {
		answer.err, answer.until = fmt.Errorf("load balancer %s: %w", name, answer.err), now.Add(failureMemory)
	}
	d.known[name] = answer
	return answer.delay, answer.err
}
