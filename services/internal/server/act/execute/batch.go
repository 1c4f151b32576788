package execute

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// BatchRenderer renders one request for all VMs of a batch. A [Renderer] that is none makes every create a single one.
type BatchRenderer interface {
	// RenderBatch renders the VMs of a batch. rec is the record of one of its instances. ok is false if the group's
	// configuration makes a difference between its VMs.
	RenderBatch(ctx context.Context, group config.Group, rec record.Instance, batch ident.Batch) (
		machine filegen.Machine, ok bool, err error)
}

const (
	// SmallestBatch is the number of creates from which on one call should make them. Fewer creates use reservations
	// that are there already. So they start earlier alone than together.
	SmallestBatch = 4
	// batchWrites is the number of records of a batch that are written in parallel.
	batchWrites = 32
	// batchThrottled is how often the provider may throttle the call for a batch before the batch is made smaller.
	batchThrottled = 4
)

// errReplan means that the instances of a batch were not made, and that the planner must decide again. It is no
// failure of the group.
var errReplan = errors.New("not made in this batch")

// batches remembers how many VMs one call may ask for.
type batches struct {
	mu sync.Mutex
	// single has the configurations whose VMs differ in more than their IDs.
	single map[string]bool
	// limits are the sizes of the batches that are worth a try at a placement.
	limits map[placement]batchLimit
}

type batchLimit struct {
	size int
	at   time.Time
}

func (b *batches) limit(p placement, now time.Time) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l, ok := b.limits[p]; ok && now.Sub(l.at) < capacityMemory {
		return l.size
	}
	return ident.BatchSize
}

func (b *batches) remember(p placement, size int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limits == nil {
		b.limits = map[placement]batchLimit{}
	}
	b.limits[p] = batchLimit{max(size, 1), now}
}

func (b *batches) isSingle(infraHash string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.single[infraHash]
}

func (b *batches) makeSingle(infraHash string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.single == nil {
		b.single = map[string]bool{}
	}
	b.single[infraHash] = true
}

// smallestBatch returns from how many creates of a group on one call makes them. 0 means never.
func (x *Executor) smallestBatch(group config.Group) int {
	if x.Batches == nil || x.batches.isSingle(group.InfraHash) {
		return 0
	}
	_, renders := x.Renderer.(BatchRenderer)
	_, creates := infra.Capability[infra.Batch](x.Provider)
	if !renders || !creates {
		return 0
	}
	return x.Batches()
}

// perCall returns how many instances of a group the next call can create.
func (x *Executor) perCall(key config.GroupKey) int {
	group, ok := x.State.Group(key)
	if !ok || x.smallestBatch(group) == 0 {
		return 1
	}
	places, _ := x.placements(group, group.InstanceType, false)
	if len(places) == 0 {
		return 1
	}
	return x.batches.limit(places[0], x.Env.Now())
}

// Together divides the actions of a group's plan. Creates that one call can make are in one part. Each other action is
// a part of its own.
func (x *Executor) Together(key config.GroupKey, actions []plan.Action) (parts [][]plan.Action) {
	group, _ := x.State.Group(key)
	if smallest := x.smallestBatch(group); smallest == 0 || len(actions) < smallest {
		for i := range actions {
			parts = append(parts, actions[i:i+1])
		}
		return parts
	}
	type kind struct{ spot, fallback, voluntary bool }
	part := map[kind]int{}
	for i := range actions {
		a := &actions[i]
		if a.Kind != plan.Create || a.Spare || a.Cause.Advised() || a.Cause == plan.CauseReturnToSpot {
			parts = append(parts, actions[i:i+1:i+1])
			continue
		}
		k := kind{a.Spot, a.Fallback, a.Voluntary}
		if n, ok := part[k]; ok {
			parts[n] = append(parts[n], *a)
			continue
		}
		part[k] = len(parts)
		parts = append(parts, actions[i:i+1:i+1])
	}
	return parts
}

// CreateMany performs create actions that [Executor.Together] has put into one part. It blocks until all have ended.
func (x *Executor) CreateMany(ctx context.Context, key config.GroupKey, actions []plan.Action) {
	for len(actions) > 0 {
		group, ok := x.State.Group(key)
		b := batch{group: group, begun: x.Env.Now()}
		smallest := x.smallestBatch(group)
		if ok && !group.Deleted && group.Refused == "" && smallest > 0 {
			b.places, b.refused = x.placements(group, group.InstanceType, actions[0].Spot)
		}
		size := 0
		if len(b.places) > 0 {
			size = min(len(actions), x.batches.limit(b.places[0], b.begun))
		}
		if size < max(smallest, 1) {
			x.each(ctx, len(actions), len(actions), func(i int) { x.create(ctx, key, actions[i]) })
			return
		}
		pending := len(actions)
		b.actions, actions = actions[:size], actions[size:]
		b.known = func(n int) {
			pending -= n
			spots := 0
			if b.actions[0].Spot {
				spots = n
			}
			x.State.ExpectCreates(key, shardstate.Pending{Members: -n, Spot: -spots})
		}
		err := x.createBatch(ctx, &b)
		switch {
		case errors.Is(err, errSingly):
			x.batches.makeSingle(group.InfraHash)
			actions = slices.Concat(b.actions, actions)
			continue
		case errors.Is(err, errUnreserved) && ctx.Err() == nil:
			// There may be reservations from before the bucket stopped to answer.
			x.Log.Warn("no batch", "tenant", key.Tenant, "group", key.Group, "error", err)
			actions = slices.Concat(b.actions, actions)
			x.each(ctx, len(actions), len(actions), func(i int) { x.create(ctx, key, actions[i]) })
			return
		case !errors.Is(err, errReplan):
			x.report(ctx, key, b.actions[0], err)
		}
		if err != nil {
			b.known(pending) // the planner decides again
			return
		}
	}
}

// each calls do for 0 to n-1, with at most limit calls at a time. What do leaves running in the background must use
// ctx.
func (x *Executor) each(ctx context.Context, n, limit int, do func(i int)) {
	_ = x.Env.ForEach(ctx, n, limit, func(_ context.Context, i int) error {
		do(i)
		return nil
	})
}

// batch is one batch that is being created.
type batch struct {
	group   config.Group
	actions []plan.Action
	places  []placement
	refused []string
	begun   time.Time
	known   func(n int) // called once n of the instances are in the State

	id      ident.Batch
	records []record.Instance
	tokens  []objstore.Token
}

// errSingly means that the group's configuration makes a difference between VMs.
var errSingly = errors.New("the VMs differ in more than their IDs")

// errUnreserved means that the reservations of a batch could not be written.
var errUnreserved = errors.New("not reserved")

// createBatch creates a batch at the first of its placements. The IDs that get no VM are spent, see [infra.Batch].
func (x *Executor) createBatch(ctx context.Context, b *batch) error {
	place := b.places[0]
	request, err := x.prepareBatch(ctx, b, place)
	if err != nil {
		return err
	}
	if err := x.reserveBatch(ctx, b); err != nil {
		return err
	}
	for i := range b.records {
		x.State.Use(b.records[i], b.tokens[i], b.actions[i].Finishes())
	}
	b.known(len(b.records))
	entered := x.Env.Now()
	if x.Entered != nil {
		for range b.records {
			x.Entered(entered.Sub(b.begun))
		}
	}
	vms, err := x.requestBatch(ctx, b, request)
	for i := range b.records {
		event := shardstate.NewEvent(shardstate.EventCreating, &b.records[i], b.actions[i].Why())
		event.At, event.Replaces, event.Cause = entered, b.actions[i].Replaces, b.actions[i].Cause
		x.State.Publish(event)
	}
	if ctx.Err() != nil {
		return ctx.Err() // the next leader resolves the result
	}
	made := map[ident.ID]infra.VM{}
	for _, vm := range vms {
		made[vm.Tags.Instance] = vm
	}
	left := err
	if left == nil && len(made) < len(b.records) {
		left = infra.Errorf(infra.Capacity, "create "+b.id.String(), "the provider had room for %d of %d VMs",
			len(made), len(b.records))
	}
	x.each(ctx, len(b.records), batchWrites, func(i int) {
		if vm, ok := made[b.records[i].ID]; !ok {
			x.unmade(ctx, b.records[i].ID, left)
		} else if err := x.recordVM(ctx, b.records[i], vm, entered); err != nil && ctx.Err() == nil {
			x.Log.Warn("create failed", "instance", b.records[i].ID.String(), "error", err)
		}
	})
	return x.batchResult(b, place, len(made), left)
}

// prepareBatch gives the batch its IDs and renders its request.
func (x *Executor) prepareBatch(ctx context.Context, b *batch, place placement) (infra.BatchRequest, error) {
	id, err := ident.NewBatch(b.group.Kind, x.Env.Now(), x.Env.Rand)
	if err != nil {
		return infra.BatchRequest{}, fmt.Errorf("make the IDs of a batch: %w", err)
	}
	b.id = id
	now := x.Env.Now()
	for i := range b.actions {
		member, _ := id.Member(i)
		rec := x.reservation(member, b.group.Tenant)
		rec.Group, rec.Template = b.group.GroupKey.Group, b.group.Template
		rec.InstanceType, rec.SubnetID, rec.Spot = place.instanceType, place.subnet, place.spot
		rec.InfraHash, rec.CreatedAt = b.group.InfraHash, now
		b.records = append(b.records, rec)
	}
	first := &b.records[0]
	machine, ok, err := x.Renderer.(BatchRenderer).RenderBatch(ctx, b.group, *first, id)
	if err != nil {
		return infra.BatchRequest{}, fmt.Errorf("render: %w", err)
	}
	if !ok {
		return infra.BatchRequest{}, errSingly
	}
	for i := range b.records {
		b.records[i].Image = machine.Image
	}
	tags := x.tags(first)
	tags.Instance = ident.ID{}
	return infra.BatchRequest{Batch: id, Count: len(b.records), VM: infra.CreateRequest{Tags: tags, Arch: b.group.Arch,
		InstanceType: place.instanceType, Subnet: place.subnet, Args: machine.Args, Userdata: machine.Userdata}}, nil
}

// reserveBatch writes the reservations of a batch. If one cannot be written, the others become leftovers.
func (x *Executor) reserveBatch(ctx context.Context, b *batch) error {
	b.tokens = make([]objstore.Token, len(b.records))
	errs := make([]error, len(b.records))
	x.each(ctx, len(b.records), batchWrites, func(i int) {
		b.tokens[i], errs[i] = x.Store.PutInstance(ctx, reserved(b.records[i]), "")
	})
	err := errors.Join(errs...)
	if err == nil {
		err = x.await(ctx) // fails if ctx has ended
	}
	if err == nil {
		return nil
	}
	for i, token := range b.tokens {
		if token != "" {
			x.State.AddLeftover(shardstate.Reservation{Record: reserved(b.records[i]), Token: token})
		}
	}
	if n := slices.IndexFunc(errs, func(err error) bool { return err != nil }); n >= 0 {
		err = errs[n] // the others are likely the same
	}
	return fmt.Errorf("reserve %s: %w: %w", b.id, errUnreserved, err)
}

// reserved returns a record as it is before its instance belongs to a group.
func reserved(rec record.Instance) record.Instance {
	rec.Group, rec.Template, rec.InstanceType, rec.SubnetID, rec.InfraHash, rec.Image = "", "", "", "", "", ""
	rec.Spot = false
	rec.CreatedAt = rec.CreatedAt.UTC()
	return rec
}

// requestBatch calls the provider until the answer is definite, as requestVM does for one VM.
func (x *Executor) requestBatch(ctx context.Context, b *batch, request infra.BatchRequest) ([]infra.VM, error) {
	provider, _ := infra.Capability[infra.Batch](x.Provider)
	turn := plan.Turn{Group: b.group.GroupKey, Voluntary: b.actions[0].Voluntary}
	asked, throttled := false, 0
	for tries := 1; ; {
		if err := x.takeTurn(ctx, turn); err != nil {
			return nil, err
		}
		if err := x.await(ctx); err != nil {
			return nil, err
		}
		if !asked && x.anyRecord(b, func(rec record.Instance, ok bool) bool {
			return !ok || rec.State == record.Deleting
		}) {
			return nil, errWithdrawn
		}
		vms, err := provider.CreateBatch(ctx, request)
		x.turns.answered(err, x.Env.Now())
		if err == nil || ctx.Err() != nil {
			return vms, err
		}
		class := infra.ClassOf(err)
		switch {
		case class == infra.Throttled:
			if throttled++; throttled < batchThrottled {
				break
			}
			// There may be enough tokens for fewer VMs.
			if vms, listErr := x.findBatch(ctx, b); listErr == nil && (len(vms) > 0 || !x.anyRegistered(b)) {
				return vms, unlessMade(vms, err)
			}
		case class == infra.Indeterminate:
		case class == infra.Conflict || asked:
			if vms, listErr := x.findBatch(ctx, b); listErr == nil && (len(vms) > 0 || !x.anyRegistered(b)) {
				return vms, unlessMade(vms, err)
			}
		default:
			return nil, err
		}
		asked = true // the provider's client may have retried, and an earlier try may have succeeded
		message := fmt.Sprintf("create: %v", err)
		if class == infra.Throttled {
			message = throttledMessage(err)
		}
		x.State.RaiseError(shardstate.GroupError(plan.AlertProvider, b.group.GroupKey, ident.ID{}), message)
		if class == infra.Throttled {
			continue // its next turn is late enough
		}
		if sleepErr := x.Env.Sleep(ctx, reconnect.Backoff(250*time.Millisecond, 30*time.Second,
			tries)); sleepErr != nil {
			return nil, err
		}
		tries++
	}
}

func unlessMade(vms []infra.VM, err error) error {
	if len(vms) > 0 {
		return nil
	}
	return err
}

// findBatch returns the VMs of a batch.
func (x *Executor) findBatch(ctx context.Context, b *batch) ([]infra.VM, error) {
	vms, err := x.Provider.List(ctx, x.Owner)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(vms), func(vm infra.VM) bool { return !b.id.Has(vm.Tags.Instance) }), nil
}

func (x *Executor) anyRecord(b *batch, is func(rec record.Instance, ok bool) bool) bool {
	return slices.ContainsFunc(b.records, func(rec record.Instance) bool {
		now, _, ok := x.State.Record(rec.ID)
		return is(now, ok)
	})
}

func (x *Executor) anyRegistered(b *batch) bool {
	return x.anyRecord(b, func(rec record.Instance, ok bool) bool { return ok && rec.State == record.Registered })
}

// unmade ends an instance of a batch that got no VM.
func (x *Executor) unmade(ctx context.Context, id ident.ID, why error) {
	if rec, _, ok := x.State.Record(id); errors.Is(why, errWithdrawn) && (!ok || rec.State == record.Deleting) {
		x.State.End(id, nil)
		return
	}
	x.recordTombstoneRefused(ctx, id, why)
}

// batchResult decides what the result of a batch means for the next one. err is nil if all VMs were made.
func (x *Executor) batchResult(b *batch, place placement, made int, err error) error {
	now, size := x.Env.Now(), len(b.records)
	switch class := infra.ClassOf(err); {
	case err == nil:
		return nil
	case errors.Is(err, errWithdrawn):
		return errReplan
	case made == 0 && (class == infra.Capacity || class == infra.Throttled):
		x.batches.remember(place, size/2, now)
		return errReplan
	case made == 0:
		x.batches.remember(place, 1, now) // a single create finds out whether the batch is the reason
		return errReplan
	}
	x.capacity.remember(place, err.Error(), now)
	if len(b.places) > 1 || b.actions[0].Fallback && place.spot {
		return errReplan
	}
	return noCapacity(append(b.refused, place.String()+": "+err.Error()))
}
