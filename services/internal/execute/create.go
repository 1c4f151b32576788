package execute

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/clusterstate"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/observe"
	"github.com/nstance-kit/nstance/services/internal/plan"
)

// ErrNoCapacity means that every placement of an instance was refused for want of capacity.
var ErrNoCapacity = errors.New("no capacity left")

// placement is one combination of instance type and subnet that a VM may be asked for.
type placement struct{ instanceType, subnet string }

// create makes one managed instance of a group.
func (x *Executor) create(ctx context.Context, key config.GroupKey, action plan.Action) {
	pending := true
	settlePending := func() {
		if pending {
			pending = false
			x.World.ExpectCreates(key, -1)
		}
	}
	defer settlePending()
	group, ok := x.World.Group(key)
	if !ok || group.Deleted {
		return
	}
	err := x.attempt(ctx, group, order{action: action, instanceType: group.InstanceType, known: settlePending})
	backoffKey := observe.ErrorKey{Kind: "provider", Tenant: key.Tenant, Group: key.Group}
	switch {
	case err == nil:
		x.World.Resolve(backoffKey)
	case ctx.Err() != nil || errors.Is(err, ErrNoAuthority):
	default:
		x.Log.Warn("create failed", "tenant", key.Tenant, "group", key.Group, "error", err)
		x.World.Raise(backoffKey, fmt.Sprintf("create: %v", err))
		x.World.CreateFailed(key, err.Error())
	}
}

// CreateOnDemand makes one on-demand instance under the given ID, which the caller chose or had made. It returns once the VM is asked for and
// recorded, or definitely refused. It can be repeated with the same ID, not at the same time.
func (x *Executor) CreateOnDemand(ctx context.Context, group config.Group, id ident.ID, instanceType string, vars map[string]string) error {
	if instanceType == "" {
		instanceType = group.InstanceType
	}
	rec := x.reservation(id, group.Tenant)
	rec.Group, rec.Template, rec.OnDemand = group.GroupKey.Group, group.Template, true
	rec.Vars, rec.InstanceType = vars, instanceType
	token, err := x.Store.PutInstance(ctx, rec, "")
	var superseded *clusterstate.SupersededError
	if errors.As(err, &superseded) && superseded.Record.State == record.Reserved && superseded.Record.ReservedTerm == x.Authority.Term() &&
		superseded.Record.Group == group.GroupKey.Group {
		// An attempt of this leader's own that got no further, and nothing was asked of the provider.
		rec, token, err = superseded.Record, superseded.Token, nil
	}
	if err != nil {
		return fmt.Errorf("reserve %s: %w", id, err)
	}
	return x.attempt(ctx, group, order{onDemand: &observe.Reservation{Record: rec, Token: token}, instanceType: instanceType,
		action: plan.Action{Kind: plan.Create, Reason: "on demand"}, known: func() {}})
}

// order is one instance to make.
type order struct {
	action       plan.Action
	instanceType string
	onDemand     *observe.Reservation // its ID is fixed; otherwise every placement takes a reservation of its own
	known        func()               // called once the instance is in the World
}

// attempt tries the placements of a group in order until one is not refused for want of capacity. A refusal burns the ID: another
// placement is other parameters, and those need another token.
func (x *Executor) attempt(ctx context.Context, group config.Group, o order) error {
	var refused []string
	for _, place := range x.placements(ctx, group, o.instanceType) {
		if x.capacity.lacking(place, x.Env.Now()) {
			refused = append(refused, place.String()+": refused lately")
			continue
		}
		err := x.place(ctx, group, place, o)
		if infra.ClassOf(err) != infra.Capacity || err == nil {
			return err
		}
		x.capacity.remember(place, x.Env.Now())
		refused = append(refused, place.String()+": "+err.Error())
		if o.onDemand != nil {
			break // its ID is the caller's: there is no second one to try with
		}
	}
	return fmt.Errorf("%w: %s", ErrNoCapacity, strings.Join(refused, "; "))
}

func (x *Executor) placements(ctx context.Context, group config.Group, first string) []placement {
	subnets := group.Subnets
	if capacity, ok := infra.Capability[infra.SubnetCapacity](x.Provider); ok && len(subnets) > 1 {
		if room, err := capacity.HasRoom(ctx, subnets); err == nil {
			var kept []string
			for _, subnet := range subnets {
				if room[subnet] {
					kept = append(kept, subnet)
				}
			}
			subnets = kept
		}
	}
	types := append([]string{first}, group.InstanceTypes...)
	out := make([]placement, 0, len(types)*len(subnets))
	for _, t := range types {
		for _, s := range subnets {
			out = append(out, placement{t, s})
		}
	}
	return out
}

// place asks for one VM at one placement under a reservation of its own.
func (x *Executor) place(ctx context.Context, group config.Group, place placement, o order) error {
	reservation, err := x.take(ctx, group, o)
	if err != nil {
		return err
	}
	rec := reservation.Record
	rec.Group, rec.Template = group.GroupKey.Group, group.Template
	rec.InstanceType, rec.SubnetID = place.instanceType, place.subnet
	rec.InfraHash = group.InfraHash
	rec.CreatedAt = x.Env.Now()
	machine, err := x.Renderer.Render(ctx, group, rec)
	if err != nil {
		x.putBack(o, reservation)
		return fmt.Errorf("render: %w", err)
	}
	rec.Image = machine.Image
	if err := x.permit(ctx); err != nil {
		x.putBack(o, reservation)
		return err
	}
	x.World.Use(rec, reservation.Token)
	o.known()
	request := infra.CreateRequest{
		Tags: infra.Tags{Owner: x.Owner, Tenant: rec.Tenant, Instance: rec.ID, Term: x.Authority.Term(), InfraHash: rec.InfraHash,
			Group: rec.Group, Template: rec.Template, Kind: rec.Kind, CreatedAt: rec.CreatedAt, OnDemand: rec.OnDemand},
		Arch: group.Arch, InstanceType: place.instanceType, Subnet: place.subnet,
		Args: machine.Args, Userdata: machine.Userdata, Hostname: machine.Hostname,
	}
	entered := x.Env.Now()
	vm, err := x.ask(ctx, request)
	// Told after the call was entered, so that telling is not on the way; the time is that of the call.
	x.World.Publish(observe.InstanceEvent{Type: observe.EventCreating, Tenant: rec.Tenant, Group: rec.Group, Instance: rec.ID, At: entered,
		Reason: o.action.Reason, Replaces: o.action.Replaces})
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err() // the next leader settles it
		}
		x.burn(ctx, rec.ID, err)
		return err
	}
	x.World.Answered(rec.ID, vm, entered)
	err = x.insist(ctx, func() error {
		_, err := x.update(ctx, rec.ID, func(r *record.Instance) { created(r, rec, vm) })
		return err
	})
	x.World.End(rec.ID, err)
	if err != nil {
		return fmt.Errorf("record %s: %w", rec.ID, err)
	}
	x.World.Publish(observe.InstanceEvent{Type: observe.EventCreated, Tenant: rec.Tenant, Group: rec.Group, Instance: rec.ID})
	return nil
}

// created folds into a record what the provider answered; the agent may have registered before.
func created(r *record.Instance, want record.Instance, vm infra.VM) {
	if r.State == record.Reserved {
		r.State = record.Created
	}
	r.Group, r.Template, r.OnDemand, r.Vars = want.Group, want.Template, want.OnDemand, want.Vars
	r.InstanceType, r.SubnetID, r.Image, r.InfraHash, r.CreatedAt = want.InstanceType, want.SubnetID, want.Image, want.InfraHash, want.CreatedAt
	r.ProviderID, r.LaunchedAt = vm.ProviderID, vm.LaunchedAt
	if r.IPv4 == "" {
		r.IPv4 = address(vm.IPv4)
	}
	if r.IPv6 == "" {
		r.IPv6 = address(vm.IPv6)
	}
	if r.Hostname == "" {
		r.Hostname = vm.Hostname
	}
}

// address returns an address in canonical form, or nothing for what is none: a provider's spelling must not spoil a record.
func address(s string) string {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return ""
	}
	return addr.Unmap().WithZone("").String()
}

// ask calls the provider until its answer is definite. An ambiguous answer is met with exactly the same bytes; so is throttling, more
// slowly. A conflict means that this ID was asked for before: the VM is found by its tag.
func (x *Executor) ask(ctx context.Context, request infra.CreateRequest) (infra.VM, error) {
	for delay := 250 * time.Millisecond; ; delay = min(2*delay, 30*time.Second) {
		vm, err := x.Provider.Create(ctx, request)
		if err == nil {
			return vm, nil
		}
		switch infra.ClassOf(err) {
		case infra.Conflict:
			vm, findErr := x.Provider.FindByInstance(ctx, x.Owner, request.Tags.Instance)
			if findErr == nil {
				return vm, nil
			}
			if errors.Is(findErr, infra.NotFound) {
				return infra.VM{}, err // a token whose VM is gone
			}
		case infra.Indeterminate, infra.Throttled:
			x.World.Raise(observe.ErrorKey{Kind: "provider", Tenant: request.Tags.Tenant, Group: request.Tags.Group}, fmt.Sprintf("create: %v", err))
		default:
			return infra.VM{}, err
		}
		if sleepErr := x.Env.Sleep(ctx, delay); sleepErr != nil {
			return infra.VM{}, err
		}
		if permitErr := x.permit(ctx); permitErr != nil {
			return infra.VM{}, permitErr
		}
	}
}

// burn ends an ID whose creation was definitely refused: its tombstone keeps it from ever living.
func (x *Executor) burn(ctx context.Context, id ident.ID, why error) {
	x.Env.Go("burn a refused reservation", func() {
		now := x.Env.Now()
		err := x.insist(ctx, func() error {
			_, err := x.update(ctx, id, func(r *record.Instance) {
				r.State, r.DeletedAt, r.DeleteReason = record.Deleted, now, "refused: "+string(infra.ClassOf(why))
			})
			return err
		})
		if err != nil && ctx.Err() == nil {
			x.Log.Error("refused reservation stays", "instance", id.String(), "error", err)
		}
	})
}

// take gets the reservation for one placement, from the pool if it has one left.
func (x *Executor) take(ctx context.Context, group config.Group, o order) (observe.Reservation, error) {
	if o.onDemand != nil {
		return *o.onDemand, nil
	}
	pool := observe.Pool{Tenant: group.Tenant, Kind: group.Kind}
	reservation, left, ok := x.World.TakeReservation(pool)
	if !ok || left < ReservePool {
		x.Refill(ctx, pool)
	}
	if ok {
		return reservation, nil
	}
	return x.reserve(ctx, pool)
}

func (x *Executor) putBack(o order, reservation observe.Reservation) {
	if o.onDemand == nil {
		x.World.AddReservation(reservation)
	}
}

// reserve writes one fresh reservation.
func (x *Executor) reserve(ctx context.Context, pool observe.Pool) (observe.Reservation, error) {
	id, err := ident.NewID(pool.Kind, x.Env.Now(), x.Env.Rand)
	if err != nil {
		return observe.Reservation{}, fmt.Errorf("make an instance ID: %w", err)
	}
	rec := x.reservation(id, pool.Tenant)
	token, err := x.Store.PutInstance(ctx, rec, "")
	if err != nil {
		return observe.Reservation{}, fmt.Errorf("reserve %s: %w", id, err)
	}
	return observe.Reservation{Record: rec, Token: token}, nil
}

func (x *Executor) reservation(id ident.ID, tenant string) record.Instance {
	rec := record.Instance{Schema: record.InstanceSchema, ID: id, State: record.Reserved, Cluster: x.Owner.Cluster, Shard: x.Owner.Shard,
		Tenant: tenant, Kind: id.Prefix(), ReservedTerm: x.Authority.Term(), CreatedAt: x.Env.Now().UTC()}
	x.stamp(&rec)
	return rec
}

// refills keeps at most one refill of a pool under way.
type refills struct {
	mu   sync.Mutex
	busy map[observe.Pool]bool
}

// Refill brings a pool back to ReservePool reservations in the background, in parallel. It does not block.
func (x *Executor) Refill(ctx context.Context, pool observe.Pool) {
	x.refills.mu.Lock()
	defer x.refills.mu.Unlock()
	if x.refills.busy == nil {
		x.refills.busy = map[observe.Pool]bool{}
	}
	if x.refills.busy[pool] {
		return
	}
	x.refills.busy[pool] = true
	x.Env.Go("refill reservations", func() {
		key := observe.ErrorKey{Kind: "storage", Tenant: pool.Tenant}
		for delay := time.Second; ; delay = min(2*delay, time.Minute) {
			want := ReservePool - x.World.ReservationsLeft(pool)
			if want <= 0 || !slices.Contains(x.World.Pools(), pool) {
				x.World.Resolve(key)
				break
			}
			err := x.Env.ForEach(ctx, want, want, func(ctx context.Context, _ int) error {
				reservation, err := x.reserve(ctx, pool)
				if err == nil {
					x.World.AddReservation(reservation)
				}
				return err
			})
			if err == nil {
				continue
			}
			if ctx.Err() == nil {
				x.World.Raise(key, fmt.Sprintf("refill reservations: %v", err))
			}
			if x.Env.Sleep(ctx, delay) != nil {
				break
			}
		}
		x.refills.mu.Lock()
		x.refills.busy[pool] = false
		x.refills.mu.Unlock()
	})
}

// capacity remembers which placements were refused for want of capacity.
type capacity struct {
	mu      sync.Mutex
	refused map[placement]time.Time
}

func (c *capacity) remember(p placement, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused == nil {
		c.refused = map[placement]time.Time{}
	}
	c.refused[p] = now
}

func (c *capacity) lacking(p placement, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.refused[p]
	return ok && now.Sub(at) < capacityMemory
}

func (p placement) String() string {
	return strings.TrimPrefix(p.instanceType+" in "+p.subnet, " ")
}
