// Package execute performs the planner's actions. For each action, it writes the intent, checks that this leader may
// still act, calls the provider, and records the result.
//
// Invariants:
//   - A VM is requested only after its record is durable.
//   - A running VM is terminated only after the intent to delete it is durable.
//   - Every mutation is made under the leader's authority. Destructive mutations need a fresh confirmation of the
//     authority.
package execute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Authority is the leader's permission to act in its term.
type Authority interface {
	// Term returns the leader's term.
	Term() uint64
	// Remaining returns how long this leader may still act without another confirmation.
	Remaining() time.Duration
	// Confirm proves that this leader still leads. The proof is the answer to a request that is sent after the call of
	// Confirm.
	Confirm(ctx context.Context) error
	// Refuse ends the authority because a higher term was found.
	Refuse(term uint64)
}

// Store is the durable store of instances.
type Store interface {
	// PutInstance writes a record if token is still the token of the stored record. If token is "", there must be no
	// record. If the store gives no clear answer, PutInstance finds out the result. It fails with
	// *clusterstate.SupersededError if the stored record has another token.
	PutInstance(ctx context.Context, rec record.Instance, token objstore.Token) (objstore.Token, error)
	// GetInstance reads one record. It fails with objstore.ErrNotFound if there is none.
	GetInstance(ctx context.Context, tenant string, id ident.ID) (record.Instance, objstore.Token, error)
	// DeleteInstance removes a tombstone.
	DeleteInstance(ctx context.Context, tenant string, id ident.ID) error
}

// Renderer renders the request for the VM of one instance from its group's configuration.
type Renderer interface {
	// Images returns the ID of each image of the shard, by name.
	Images() map[string]string
	Render(ctx context.Context, group config.Group, rec record.Instance) (filegen.Machine, error)
}

// Files sends files, roles and the begin of drains to instances.
type Files interface {
	// Push starts the generation of an instance's files and their delivery on the instance's open stream. It does not
	// wait for the agent.
	Push(ctx context.Context, id ident.ID) error
	// Drain makes the agent of an announced instance run its drain hook, if its template has one. It does not wait for
	// the agent.
	Drain(id ident.ID)
	// Role tells an instance's agent its role. It does not wait for the agent.
	Role(id ident.ID)
}

// Groups is the durable store of dynamic groups, and of what is known about the rollouts of all groups.
type Groups interface {
	// Forget removes a deleted group from the bucket. It also succeeds if the bucket does not have the group.
	Forget(ctx context.Context, key config.GroupKey) error
	// Halt, EndHalt and KeepGood are the methods of shardconfig.Manager.
	Halt(ctx context.Context, key config.GroupKey, version record.GroupVersion, reason string, at time.Time) error
	EndHalt(ctx context.Context, key config.GroupKey) error
	KeepGood(ctx context.Context, key config.GroupKey, version record.GroupVersion, images map[string]string,
		at time.Time) error
}

const (
	// ReservePool is the number of reservations that are kept ready for each tenant and each kind of instance.
	ReservePool = 8
	// margin is the minimum remaining authority for starting a provider call.
	margin = 500 * time.Millisecond
	// capacityMemory is how long a placement counts as lacking capacity after the provider refused it.
	capacityMemory = 3 * time.Minute
)

// Executor performs the actions of one leader. All methods are safe for concurrent use.
type Executor struct {
	State     *shardstate.State
	Store     Store
	Provider  infra.Provider
	Authority Authority
	Renderer  Renderer
	Files     Files
	Groups    Groups
	Env       tasks.Env
	Log       *slog.Logger
	Owner     infra.Owner
	// Incarnation identifies this run of the server. It is part of every record, so that two writers never write
	// identical bytes.
	Incarnation string
	// Entered, if set, is called when a create call starts, with the time since the create action began.
	Entered func(time.Duration)
	// CreateFailed, if set, is called with the class of each creation that failed.
	CreateFailed func(class string)

	// Batches, if set, returns from how many creates on one call makes them, usually SmallestBatch. 0 means never.
	Batches func() int

	batches  batches
	capacity capacity
	delays   delays
	refills  refills
	turns    turns
}

// ErrNoAuthority means that this leader may no longer act, or not for long enough.
var ErrNoAuthority = errors.New("no authority left to act")

// Do performs one action of a group's plan and reports its result to the State. It blocks until the action ends.
func (x *Executor) Do(ctx context.Context, group config.GroupKey, action plan.Action) {
	if action.Kind == plan.Create {
		x.create(ctx, group, action)
		return
	}
	err := fmt.Errorf("action %q is not one of a group's", action.Kind)
	if known, ok := groupActions[action.Kind]; ok {
		err = known.apply(x, ctx, group, action)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrGone) && !errors.Is(err, errNotYet) {
		x.Log.Warn("action failed", "action", string(action.Kind), "tenant", group.Tenant, "group", group.Group,
			"instance", action.Instance.String(), "error", err)
		if _, _, ok := x.State.Record(action.Instance); ok {
			x.State.RaiseError(shardstate.GroupError(faultKind(err), group, action.Instance),
				fmt.Sprintf("%s: %v", action.Kind, err))
		}
	} else if err == nil {
		x.State.ResolveError(shardstate.GroupError(plan.AlertProvider, group, action.Instance))
		x.State.ResolveError(shardstate.GroupError(plan.AlertStorage, group, action.Instance))
	}
	x.State.End(action.Instance, err)
}

// groupActions are the actions of a group's plan except Create. work is what the State reports as the instance's
// current work during the action.
var groupActions = map[plan.Kind]struct {
	work  plan.Work
	apply func(*Executor, context.Context, config.GroupKey, plan.Action) error
}{
	plan.Mark:      {plan.MarkingDeleting, (*Executor).mark},
	plan.Preserve:  {plan.Preserving, (*Executor).preserve},
	plan.Promote:   {plan.Promoting, (*Executor).promote},
	plan.Sleep:     {plan.Sleeping, (*Executor).sleep},
	plan.Wake:      {plan.Waking, (*Executor).wake},
	plan.Drain:     {plan.Draining, (*Executor).drain},
	plan.Terminate: {plan.Terminating, (*Executor).terminate},
	plan.Forget:    {plan.Forgetting, (*Executor).forget},
	plan.Register:  {plan.Maintaining, (*Executor).balance},
	plan.PushFiles: {plan.Maintaining, (*Executor).pushFiles},
	plan.Settle:    {plan.Creating, (*Executor).settleUsed},
}

// Work returns what the State reports as an instance's current work during an action.
func Work(kind plan.Kind) plan.Work { return groupActions[kind].work }

func faultKind(err error) plan.AlertKind {
	if _, ok := errors.AsType[*infra.Error](err); ok {
		return plan.AlertProvider
	}
	return plan.AlertStorage
}

// Permit checks that the leader may start a provider call.
func (x *Executor) Permit(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if x.Authority.Remaining() < margin {
		return ErrNoAuthority
	}
	return nil
}

// confirm proves that the leader still leads, and then checks that it may start a provider call.
func (x *Executor) confirm(ctx context.Context) error {
	if err := x.Authority.Confirm(ctx); err != nil {
		return fmt.Errorf("confirm leadership: %w", err)
	}
	return x.Permit(ctx)
}

// await waits until the leader may start a provider call. It fails if ctx ends first.
func (x *Executor) await(ctx context.Context) error {
	for {
		err := x.Permit(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if err := x.Env.Sleep(ctx, margin/5); err != nil {
			return err
		}
	}
}

// mark makes the intent to delete durable. If the record has changed since the plan was made, mark changes nothing, and
// the planner plans the group again. A plan can be old: a leader with an heir can act for more than a minute without
// the bucket. Since the plan was made, other instances of the group may have disappeared.
func (x *Executor) mark(ctx context.Context, group config.GroupKey, action plan.Action) error {
	now := x.Env.Now()
	deletion := plan.Deletion{Reason: action.Why(), Cause: action.Cause, Deadline: action.Deadline}
	again := false // it is being deleted already
	rec, marked, err := x.updatePlanned(ctx, action.Instance, func(rec *record.Instance) bool {
		again = rec.State == record.Deleting
		return plan.RequestDelete(rec, deletion, now)
	})
	if err != nil || !marked {
		return err
	}
	x.countFailed(group, action)
	event := shardstate.NewEvent(shardstate.EventPendingDeletion, &rec, deletion.Reason)
	event.Cause = action.Cause
	event.Deadline = rec.DeleteDeadline
	x.State.Publish(event)
	if again {
		x.Files.Drain(action.Instance) // the deadline of its drain is earlier now
	}
	return nil
}

// countFailed counts an instance that is deleted or preserved because it failed.
func (x *Executor) countFailed(group config.GroupKey, action plan.Action) {
	deletion := plan.Deletion{Cause: action.Cause}
	view, ok := x.State.Instance(action.Instance)
	switch {
	case action.Cause == plan.CauseNotWoken:
		x.State.NotWoken(group)
	case !deletion.CountsAsFailedCreation():
	case ok && view.Record.IsSpare():
		x.State.SpareFailed(group, action.Reason)
	default:
		x.State.CreateFailed(group, action.Reason)
	}
	if ok && deletion.FailsRollout(view.InfraDrift) {
		x.State.RolloutFailed(group, action.Fault())
	}
}

// preserve makes the intent to preserve a failed instance durable, asks operators to drain its node, and removes it
// from its load balancers. Like mark, it changes nothing if the record has changed since the plan was made. If the
// instance is preserved already, it only repeats the removal.
func (x *Executor) preserve(ctx context.Context, group config.GroupKey, action plan.Action) error {
	now := x.Env.Now()
	rec, preserved, err := x.updatePlanned(ctx, action.Instance, func(rec *record.Instance) bool {
		return action.Cause != plan.CauseNone && plan.RequestPreserve(rec, action.Why(), now)
	})
	if err != nil {
		return err
	}
	if preserved {
		x.countFailed(group, action)
		event := shardstate.NewEvent(shardstate.EventPreserved, &rec, rec.Preserved.Reason)
		event.Cause, event.Deadline, event.Drain = action.Cause, action.Deadline, !action.Deadline.IsZero()
		x.State.Publish(event)
	}
	if rec.Preserved == nil || rec.State == record.Deleting {
		return nil
	}
	return x.setBalanced(ctx, action.Instance, false)
}

// promote makes a spare a member of its group: one conditional write of its record. Like mark, it changes nothing if
// the record has changed since the plan was made. Then it tells the agent. A leader that follows tells it, too.
func (x *Executor) promote(ctx context.Context, group config.GroupKey, action plan.Action) error {
	now := x.Env.Now()
	known, _, _ := x.State.Record(action.Instance)
	rec, _, err := x.updatePlanned(ctx, action.Instance, func(rec *record.Instance) bool {
		return plan.RequestPromote(rec, now)
	})
	if err != nil || rec.IsSpare() || !known.IsSpare() {
		return err
	}
	x.Files.Role(action.Instance)
	x.State.Promoted(action.Instance, action.Finishes())
	if action.Cause.Advised() {
		x.State.AdvisedCreate(group, "")
	}
	event := shardstate.NewEvent(shardstate.EventPromoted, &rec, action.Why())
	event.Replaces, event.Cause = action.Replaces, action.Cause
	x.State.Publish(event)
	return nil
}

// drain announces that the instance's node must be drained, and removes the instance from its load balancers. If a load
// balancer does not answer, the drain lasts until its deadline, unless a repetition succeeds. It also does if a
// deregistration delay is not known.
func (x *Executor) drain(ctx context.Context, _ config.GroupKey, action plan.Action) error {
	rec, _, ok := x.State.Record(action.Instance)
	if !ok {
		return ErrGone
	}
	event := shardstate.NewEvent(shardstate.EventPendingDeletion, &rec, rec.DeleteReason)
	event.Deadline, event.Drain = action.Deadline, true
	x.State.Publish(event)
	x.State.Announced(action.Instance, action.Deadline)
	x.Files.Drain(action.Instance)
	err := x.setBalanced(ctx, action.Instance, false)
	until, unknown := x.balancersUntil(ctx, rec, x.Env.Now())
	if unknown != nil {
		x.Log.Warn("a deregistration delay is not known, so the drain lasts until its deadline",
			"instance", action.Instance.String(), "deadline", action.Deadline, "error", unknown)
	}
	if unknown == nil && (err == nil || until.IsZero()) {
		x.State.Announced(action.Instance, until)
	}
	return err
}

// terminate asks the provider to delete a VM. The intent to delete the VM is durable already.
func (x *Executor) terminate(ctx context.Context, _ config.GroupKey, action plan.Action) error {
	rec, _, ok := x.State.Record(action.Instance)
	if !ok {
		return ErrGone
	}
	if rec.State != record.Deleting {
		return fmt.Errorf("terminate %s: its deletion is not recorded", action.Instance)
	}
	if err := x.setBalanced(ctx, action.Instance, false); err != nil {
		x.Log.Warn("instance stays in a load balancer", "instance", action.Instance.String(), "error", err)
	}
	vm, err := x.ownVM(ctx, rec)
	if err != nil {
		return err
	}
	if vm.ProviderID == "" {
		asked := x.Env.Now()
		vm, err = x.Provider.FindByInstance(ctx, x.Owner, action.Instance)
		if errors.Is(err, infra.NotFound) {
			if x.State.NotFound(action.Instance, asked); !x.State.VMDeleted(action.Instance) {
				return fmt.Errorf("terminate %s: %w: the provider does not know its VM", action.Instance, errNotYet)
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
	if err := x.confirm(ctx); err != nil { // last, because the authority may end during each request above
		return err
	}
	err = x.Provider.Delete(ctx, infra.Target(x.Owner, rec.ID, vm.ProviderID))
	if err != nil && !errors.Is(err, infra.NotFound) {
		return err
	}
	x.State.TerminateRequested(action.Instance)
	return nil
}

// ownVM returns the VM of a record, for a call that changes the VM. It fails with class [infra.Invalid] if the VM's own
// tags name another owner or instance, so that a wrong provider ID in a record harms no other VM. If the State has no
// description of the VM, ownVM asks the provider. The ProviderID is empty if it is not known.
func (x *Executor) ownVM(ctx context.Context, rec record.Instance) (infra.VM, error) {
	vm, _ := x.State.VM(rec.ID)
	providerID := cmp.Or(rec.ProviderID, vm.ProviderID)
	if providerID == "" {
		return infra.VM{}, nil
	}
	want := infra.Target(x.Owner, rec.ID, providerID)
	if vm.ProviderID != providerID || vm.Tags.Instance.IsZero() {
		var err error
		if vm, err = x.Provider.Get(ctx, providerID); errors.Is(err, infra.NotFound) {
			return want, nil // providers accept calls for a VM that is gone
		} else if err != nil {
			return infra.VM{}, err
		}
	}
	return vm, infra.CheckOwned("change "+providerID, vm.Tags, want.Tags)
}

// forget replaces the record of an instance with a tombstone, once its VM is known to be gone. First it removes the
// instance from its load balancers, because nothing removes it after that. A throttled or indeterminate removal stops
// forget. Other errors do not.
func (x *Executor) forget(ctx context.Context, _ config.GroupKey, action plan.Action) error {
	now := x.Env.Now()
	switch err := x.setBalanced(ctx, action.Instance, false); infra.ClassOf(err) {
	case "":
	case infra.Throttled, infra.Indeterminate:
		return err
	default:
		x.Log.Warn("instance stays in a load balancer", "instance", action.Instance.String(), "error", err)
	}
	rec, err := x.Update(ctx, action.Instance, func(rec *record.Instance) {
		if rec.State == record.Deleted {
			return
		}
		rec.DeleteReason = cmp.Or(rec.DeleteReason, action.Reason)
		rec.State, rec.DeletedAt = record.Deleted, now
	})
	if err != nil {
		return err
	}
	x.State.Publish(shardstate.NewEvent(shardstate.EventDeleted, &rec, rec.DeleteReason))
	return nil
}

func (x *Executor) pushFiles(ctx context.Context, _ config.GroupKey, action plan.Action) error {
	return x.Files.Push(ctx, action.Instance)
}

// ForgetGroup drops a deleted group that has no instances. A dynamic group is also removed from the bucket.
func (x *Executor) ForgetGroup(ctx context.Context, key config.GroupKey) {
	if err := x.Groups.Forget(ctx, key); err != nil {
		if ctx.Err() == nil {
			x.State.RaiseError(shardstate.GroupError(plan.AlertStorage, key, ident.ID{}),
				fmt.Sprintf("forget group: %v", err))
		}
		return
	}
	x.State.ForgetGroup(key)
}

// StoreRollout stores a halt of a group's rollout, its end, or the group's good configuration. The caller has called
// StoreRollout of the State.
func (x *Executor) StoreRollout(ctx context.Context, key config.GroupKey, action plan.Action) {
	var err error
	switch now := x.Env.Now(); action.Kind {
	case plan.Halt:
		err = x.Groups.Halt(ctx, key, action.Version, action.Reason, now)
	case plan.EndHalt:
		err = x.Groups.EndHalt(ctx, key)
	case plan.KeepGood:
		err = x.Groups.KeepGood(ctx, key, action.Version, x.Renderer.Images(), now)
	}
	about := shardstate.GroupError(plan.AlertStorage, key, ident.ID{})
	switch {
	case err == nil:
		x.State.ResolveError(about)
	case ctx.Err() == nil:
		x.Log.Warn("rollout not stored", "action", string(action.Kind), "tenant", key.Tenant, "group", key.Group,
			"error", err)
		x.State.RaiseError(about, fmt.Sprintf("%s: %v", action.Kind, err))
	}
	x.State.RolloutStored(key, err)
}
