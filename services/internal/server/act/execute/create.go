package execute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// ErrNotPermitted means that the shard's configuration no longer permits what an operator chose for the group.
var ErrNotPermitted = errors.New("not permitted")

// ErrNoCapacity means that the provider refused every placement of an instance for lack of capacity.
var ErrNoCapacity = errors.New("no capacity left")

// create creates one managed instance of a group.
func (x *Executor) create(ctx context.Context, key config.GroupKey, action plan.Action) {
	pending := shardstate.PendingOf(action)
	settlePending := func() {
		x.State.ExpectCreates(key, shardstate.Pending{Members: -pending.Members, Spot: -pending.Spot,
			Spares: -pending.Spares})
		pending = shardstate.Pending{}
	}
	defer settlePending()
	group, ok := x.State.Group(key)
	if !ok || group.Deleted {
		return
	}
	places, refused := x.placements(group, group.InstanceType, action.Spot)
	if action.Spot && len(places) == 0 {
		x.State.SpotRefused(key)
		if action.Fallback {
			var others []string
			places, others = x.placements(group, group.InstanceType, false)
			refused = append(refused, others...)
		}
	}
	err := x.attempt(ctx, group, places, refused, order{action: action, known: settlePending,
		begun: x.Env.Now()})
	x.report(ctx, key, action, err)
}

// report reports the result of a create action to the State.
func (x *Executor) report(ctx context.Context, key config.GroupKey, action plan.Action, err error) {
	backoffKey := shardstate.GroupError(plan.AlertProvider, key, ident.ID{})
	switch {
	case err == nil:
		x.State.ResolveError(backoffKey)
		if action.Cause.Advised() {
			x.State.AdvisedCreate(key, "")
		}
	case ctx.Err() != nil || errors.Is(err, errWithdrawn) || errors.Is(err, errElsewhere):
	case action.Cause == plan.CauseReturnToSpot && errors.Is(err, ErrNoCapacity):
		x.Log.Info("no spot capacity to return to", "tenant", key.Tenant, "group", key.Group, "error", err)
		x.State.SpotRefused(key) // the instance that it would replace stays
	case action.Cause.Advised():
		x.countFailure(err)
		x.Log.Warn("no replacement for an instance with a recommendation or maintenance", "tenant", key.Tenant,
			"group", key.Group, "instance", action.Replaces.String(), "error", err)
		if _, ok := x.State.Group(key); ok && !errors.Is(err, ErrNoCapacity) {
			x.State.RaiseError(backoffKey, fmt.Sprintf("create: %v", err))
		}
		x.State.AdvisedCreate(key, err.Error()) // the instance that it would replace stays
	default:
		x.countFailure(err)
		x.Log.Warn("create failed", "tenant", key.Tenant, "group", key.Group, "error", err)
		if _, ok := x.State.Group(key); ok {
			x.State.RaiseError(backoffKey, fmt.Sprintf("create: %v", err))
		}
		if action.Spare {
			x.State.SpareFailed(key, err.Error())
		} else {
			x.State.CreateFailed(key, err.Error())
		}
	}
}

// countFailure calls CreateFailed for a failed creation.
func (x *Executor) countFailure(err error) {
	if x.CreateFailed == nil {
		return
	}
	class := string(infra.ClassOf(err))
	switch {
	case errors.Is(err, ErrNoCapacity):
		class = string(infra.Capacity)
	case errors.Is(err, ErrNotPermitted):
		class = "not permitted"
	}
	x.CreateFailed(class)
}

// CreateOnDemand creates one on-demand instance with the given ID. It returns after the VM was requested and recorded,
// or after the provider definitely refused the request. After a refusal the ID cannot be used again. CreateOnDemand
// fails with *clusterstate.SupersededError if the ID already has a record. If no placement can be tried now, it writes
// nothing and returns ErrNoCapacity, and the caller may use the ID later. ctx must be the leader's context and not the
// client's, because the client may disconnect during the call.
func (x *Executor) CreateOnDemand(ctx context.Context, group config.Group, id ident.ID, instanceType string,
	vars map[string]string) error {
	instanceType = cmp.Or(instanceType, group.InstanceType)
	places, refused := x.placements(group, instanceType, false)
	if len(places) == 0 {
		err := noCapacity(refused)
		x.countFailure(err)
		return err
	}
	rec := x.reservation(id, group.Tenant)
	rec.Group, rec.Template, rec.OnDemand = group.GroupKey.Group, group.Template, true
	rec.Vars, rec.InstanceType = vars, instanceType
	token, err := x.Store.PutInstance(ctx, rec, "")
	if err != nil {
		return fmt.Errorf("reserve %s: %w", id, err)
	}
	reservation, used := shardstate.Reservation{Record: rec, Token: token}, false
	// Only the first placement is tried: the caller chose the instance's ID, and each placement needs an ID of its own.
	err = x.attempt(ctx, group, places[:1], refused, order{onDemand: &reservation,
		action: plan.Action{Kind: plan.Create, Reason: "on demand"}, known: func() { used = true },
		begun: x.Env.Now()})
	if err != nil && ctx.Err() == nil && !errors.Is(err, errWithdrawn) {
		x.countFailure(err)
	}
	if !used {
		x.State.AddLeftover(reservation) // nothing was requested with it, so garbage collection makes it a tombstone
	}
	return err
}

// order describes one instance to create.
type order struct {
	action   plan.Action
	onDemand *shardstate.Reservation // fixes the ID; if nil, every placement takes another reservation
	known    func()                  // called once the instance is in the State
	begun    time.Time
}

// errElsewhere means that the provider refused a placement for lack of capacity, and that there are other placements to
// try. The planner decides whether the instance is still wanted. The next create tries the next placement.
var errElsewhere = errors.New("refused for lack of capacity; another placement is left")

// attempt tries the first of the placements. After a refusal, the ID cannot be used again: a request for another
// placement has other parameters, and needs another idempotency key.
func (x *Executor) attempt(ctx context.Context, group config.Group, places []placement, refused []string,
	o order) error {
	if group.Refused != "" {
		return fmt.Errorf("%w: %s", ErrNotPermitted, group.Refused)
	}
	if len(places) == 0 {
		return noCapacity(refused)
	}
	err := x.place(ctx, group, places[0], o)
	if err == nil || infra.ClassOf(err) != infra.Capacity {
		return err
	}
	x.capacity.remember(places[0], err.Error(), x.Env.Now())
	if len(places) > 1 || o.action.Fallback && places[0].spot {
		return errElsewhere
	}
	return noCapacity(append(refused, places[0].String()+": "+err.Error()))
}

func noCapacity(refused []string) error {
	return fmt.Errorf("%w: %s", ErrNoCapacity, strings.Join(refused, "; "))
}

// place requests one VM at one placement, under a separate reservation.
func (x *Executor) place(ctx context.Context, group config.Group, place placement, o order) error {
	reservation, err := x.takeReservation(ctx, group, o)
	if err != nil {
		return err
	}
	rec := reservation.Record
	rec.Group, rec.Template = group.GroupKey.Group, group.Template
	rec.InstanceType, rec.SubnetID, rec.Spot = place.instanceType, place.subnet, place.spot
	rec.InfraHash = group.InfraHash
	rec.CreatedAt = x.Env.Now()
	if o.action.Spare {
		rec.Spare = &record.Spare{Sleep: group.Spares.Sleep()}
	}
	machine, err := x.Renderer.Render(ctx, group, rec)
	if err != nil {
		x.putBack(o, reservation)
		return fmt.Errorf("render: %w", err)
	}
	rec.Image = machine.Image
	if err := x.await(ctx); err != nil {
		x.putBack(o, reservation)
		return err
	}
	x.State.Use(rec, reservation.Token, o.action.Finishes())
	o.known()
	request := infra.CreateRequest{
		Tags: x.tags(&rec),
		Arch: group.Arch, InstanceType: place.instanceType, Subnet: place.subnet,
		Args: machine.Args, Userdata: machine.Userdata, Hostname: machine.Hostname,
	}
	if rec.Spare != nil {
		request.Sleep = rec.Spare.Sleep
	}
	entered := x.Env.Now()
	if x.Entered != nil {
		x.Entered(entered.Sub(o.begun))
	}
	vm, err := x.requestVM(ctx, request, plan.Turn{Group: group.GroupKey, Voluntary: o.action.Voluntary})
	// The event is published after the call, so that publishing does not delay the call. Its time is the start of the
	// call.
	event := shardstate.NewEvent(shardstate.EventCreating, &rec, o.action.Why())
	event.At, event.Replaces, event.Cause = entered, o.action.Replaces, o.action.Cause
	x.State.Publish(event)
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // the next leader resolves the result
	case errors.Is(err, errWithdrawn):
		x.State.End(rec.ID, nil)
		return err
	case err != nil:
		x.recordTombstoneRefused(ctx, rec.ID, err)
		return err
	}
	return x.recordVM(ctx, rec, vm, entered)
}

// tags returns the tags of an instance's VM.
func (x *Executor) tags(rec *record.Instance) infra.Tags {
	return infra.Tags{Owner: x.Owner, Tenant: rec.Tenant, Instance: rec.ID, Term: x.Authority.Term(),
		InfraHash: rec.InfraHash,
		Group:     rec.Group, Template: rec.Template, Kind: rec.Kind, CreatedAt: rec.CreatedAt,
		OnDemand: rec.OnDemand, Spot: rec.Spot, Spare: rec.Spare != nil}
}

// recordVM records the provider's answer to a create call that was made at the time entered.
func (x *Executor) recordVM(ctx context.Context, rec record.Instance, vm infra.VM, entered time.Time) error {
	x.State.Answered(rec.ID, vm, entered)
	err := x.retryWrite(ctx, func() error {
		_, err := x.Update(ctx, rec.ID, func(r *record.Instance) { created(r, rec, vm) })
		return err
	})
	x.State.End(rec.ID, err)
	if err != nil {
		return fmt.Errorf("record %s: %w", rec.ID, err)
	}
	x.State.Publish(shardstate.NewEvent(shardstate.EventCreated, &rec, ""))
	return nil
}

// created adds the provider's answer to a record. The agent may have registered before the answer.
func created(r *record.Instance, want record.Instance, vm infra.VM) {
	if r.State == record.Reserved {
		r.State = record.Created
	}
	r.Group, r.Template, r.OnDemand, r.Vars = want.Group, want.Template, want.OnDemand, want.Vars
	r.InstanceType, r.SubnetID, r.Image, r.InfraHash, r.CreatedAt = want.InstanceType, want.SubnetID, want.Image,
		want.InfraHash, want.CreatedAt
	r.Spot = want.Spot
	if r.Spare == nil {
		r.Spare = want.Spare
	}
	r.ProviderID, r.LaunchedAt = vm.ProviderID, vm.LaunchedAt
	r.IPv4, r.IPv6 = cmp.Or(r.IPv4, address(vm.IPv4)), cmp.Or(r.IPv6, address(vm.IPv6))
	r.Hostname = cmp.Or(r.Hostname, vm.Hostname)
}

// address returns an address in canonical form, or "" if s is not an address. Records accept canonical addresses only.
func address(s string) string {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return ""
	}
	return addr.Unmap().WithZone("").String()
}

// requestVM calls the provider until the answer is definite. It repeats the identical request after an indeterminate
// answer and after throttling. While the provider throttles, all create calls of the shard wait in one queue for their
// turns.
//
// A conflict means that an earlier call used this ID. A refusal after an indeterminate answer does not prove that the
// earlier calls failed. In both cases requestVM looks the VM up by its tag. If the VM is not found but its agent has
// registered, an earlier call has succeeded late. requestVM then continues until the VM is found or known to be gone.
func (x *Executor) requestVM(ctx context.Context, request infra.CreateRequest, turn plan.Turn) (infra.VM, error) {
	ambiguous := false
	for tries := 1; ; {
		if err := x.takeTurn(ctx, turn); err != nil {
			return infra.VM{}, err
		}
		if err := x.await(ctx); err != nil {
			return infra.VM{}, err
		}
		if rec, _, ok := x.State.Record(request.Tags.Instance); !ok || rec.State == record.Deleting {
			return infra.VM{}, errWithdrawn
		}
		vm, err := x.Provider.Create(ctx, request)
		x.turns.answered(err, x.Env.Now())
		if err == nil || ctx.Err() != nil {
			return vm, err
		}
		class := infra.ClassOf(err)
		switch {
		case class == infra.Indeterminate || class == infra.Throttled:
			ambiguous = true // the provider's client may have retried, and an earlier try may have succeeded
			message := fmt.Sprintf("create: %v", err)
			if class == infra.Throttled {
				message = throttledMessage(err)
			}
			x.State.RaiseError(shardstate.GroupError(plan.AlertProvider, turn.Group, ident.ID{}), message)
		case class == infra.Conflict || ambiguous:
			asked := x.Env.Now()
			vm, findErr := x.Provider.FindByInstance(ctx, x.Owner, request.Tags.Instance)
			if findErr == nil {
				return vm, nil
			}
			if errors.Is(findErr, infra.NotFound) {
				if rec, _, ok := x.State.Record(request.Tags.Instance); !ok || rec.State != record.Registered {
					return infra.VM{}, err
				}
				if x.State.NotFound(request.Tags.Instance, asked); x.State.VMDeleted(request.Tags.Instance) {
					return infra.VM{}, errWithdrawn // the VM existed and is lost
				}
			}
		default:
			return infra.VM{}, err
		}
		if class == infra.Throttled {
			continue // its next turn is late enough
		}
		if sleepErr := x.Env.Sleep(ctx, reconnect.Backoff(250*time.Millisecond, 30*time.Second,
			tries)); sleepErr != nil {
			return infra.VM{}, err
		}
		tries++
	}
}

// throttledMessage returns the text of the alert about a throttled create call. The text is the same for all calls that
// exceeded the same quota.
func throttledMessage(err error) string {
	message := "the provider throttles creates"
	if quota := infra.QuotaOf(err); quota != "" {
		message += " (quota " + quota + ")"
	}
	return message
}

// errWithdrawn means that the instance was marked for deletion, or was lost, before the provider answered. The executor
// looks up the result of the create calls when it deletes the instance.
var errWithdrawn = errors.New("deleted while it was being created")

// recordTombstoneRefused writes a tombstone after a definite refusal, so that the ID is not used again. If the
// instance's agent registers before the tombstone is durable, an earlier call has succeeded late and the VM exists. The
// instance then stays.
func (x *Executor) recordTombstoneRefused(ctx context.Context, id ident.ID, why error) {
	x.Env.Go("record a tombstone for a refused reservation", func() {
		now := x.Env.Now()
		err := x.retryWrite(ctx, func() error {
			rec, err := x.Update(ctx, id, func(r *record.Instance) {
				if r.State != record.Registered {
					r.State, r.DeletedAt, r.DeleteReason = record.Deleted, now, "refused: "+string(infra.ClassOf(why))
				}
			})
			if err == nil && rec.State == record.Registered {
				x.State.End(id, nil)
			}
			return err
		})
		if err != nil && ctx.Err() == nil {
			x.Log.Error("refused reservation stays", "instance", id.String(), "error", err)
		}
	})
}

// takeReservation returns the reservation for one placement. It takes one from the pool. If the pool is empty, it
// writes a new one.
func (x *Executor) takeReservation(ctx context.Context, group config.Group, o order) (shardstate.Reservation, error) {
	if o.onDemand != nil {
		return *o.onDemand, nil
	}
	pool := shardstate.Pool{Tenant: group.Tenant, Kind: group.Kind}
	reservation, left, ok := x.State.TakeReservation(pool)
	if !ok || left < ReservePool {
		x.Refill(ctx, pool)
	}
	if ok {
		return reservation, nil
	}
	return x.reserve(ctx, pool)
}

func (x *Executor) putBack(o order, reservation shardstate.Reservation) {
	if o.onDemand == nil {
		x.State.AddReservation(reservation)
	}
}

// reserve writes one new reservation.
func (x *Executor) reserve(ctx context.Context, pool shardstate.Pool) (shardstate.Reservation, error) {
	id, err := ident.NewID(pool.Kind, x.Env.Now(), x.Env.Rand)
	if err != nil {
		return shardstate.Reservation{}, fmt.Errorf("make an instance ID: %w", err)
	}
	rec := x.reservation(id, pool.Tenant)
	token, err := x.Store.PutInstance(ctx, rec, "")
	if err != nil {
		return shardstate.Reservation{}, fmt.Errorf("reserve %s: %w", id, err)
	}
	return shardstate.Reservation{Record: rec, Token: token}, nil
}

func (x *Executor) reservation(id ident.ID, tenant string) record.Instance {
	rec := record.Instance{Schema: record.InstanceSchema, ID: id, State: record.Reserved, Cluster: x.Owner.Cluster,
		Shard:  x.Owner.Shard,
		Tenant: tenant, Kind: id.Prefix(), ReservedTerm: x.Authority.Term(), CreatedAt: x.Env.Now().UTC()}
	x.stamp(&rec)
	return rec
}

// refills ensures that each pool has at most one running refill.
type refills struct {
	mu   sync.Mutex
	busy map[shardstate.Pool]bool
}

// Refill fills a pool up to ReservePool reservations in the background, with parallel writes. It does not block.
func (x *Executor) Refill(ctx context.Context, pool shardstate.Pool) {
	x.refills.mu.Lock()
	defer x.refills.mu.Unlock()
	if x.refills.busy == nil {
		x.refills.busy = map[shardstate.Pool]bool{}
	}
	if x.refills.busy[pool] {
		return
	}
	x.refills.busy[pool] = true
	x.Env.Go("refill reservations", func() {
		key := shardstate.ErrorKey{Kind: plan.AlertStorage, Tenant: pool.Tenant} // all pools of the tenant share it
		failed := false
		for tries := 1; ; tries++ {
			want := ReservePool - x.State.ReservationsLeft(pool)
			if want <= 0 || !slices.Contains(x.State.Pools(), pool) {
				if failed {
					x.State.ResolveError(key)
				}
				break
			}
			err := x.Env.ForEach(ctx, want, want, func(ctx context.Context, _ int) error {
				reservation, err := x.reserve(ctx, pool)
				if err == nil {
					x.State.AddReservation(reservation)
				}
				return err
			})
			if err == nil {
				continue
			}
			if failed = true; ctx.Err() == nil {
				x.State.RaiseError(key, fmt.Sprintf("refill reservations: %v", err))
			}
			if x.Env.Sleep(ctx, reconnect.Backoff(time.Second, time.Minute, tries)) != nil {
				break
			}
		}
		x.refills.mu.Lock()
		x.refills.busy[pool] = false
		x.refills.mu.Unlock()
	})
}
