package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nstance-kit/nstance/services/contract/clusterstate"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/execute"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/plan"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
	"github.com/nstance-kit/nstance/services/internal/tasks"
)

// Records is the durable side of a shard's instances.
type Records interface {
	execute.Store
	// LoadInstances reads every instance record of the shard, in parallel, and hands each to take, one at a time.
	LoadInstances(ctx context.Context, take func(record.Instance, objstore.Token)) error
	// LoadUnseen does the same with those of which seen does not know the listed version.
	LoadUnseen(ctx context.Context, seen func(ident.ID, objstore.Token) bool,
		take func(record.Instance, objstore.Token)) error
}

// Parts are what a leader is made of.
type Parts struct {
	Owner       infra.Owner
	Incarnation string
	Authority   execute.Authority
	Records     Records
	Provider    infra.Provider
	Renderer    execute.Renderer
	Files       execute.Files
	Groups      execute.Groups
	Env         tasks.Env
	Events      shardstate.Events
	Log         *slog.Logger
	// Wake is called whenever there may be something to plan: it makes Loop.Pass run soon.
	Wake func()
}

// Leader is one term's picture of the shard and everything that acts on it.
type Leader struct {
	World    *shardstate.World
	Executor *execute.Executor
	Asker    *shardstate.Asker
	Loop     *Loop

	parts Parts
	// listed is when TakeOver asked the provider for everything; zero if it got no answer.
	listed time.Time
}

// NewLeader wires a leader of the authority's term. It does nothing yet.
func NewLeader(p Parts) *Leader {
	world := shardstate.New(shardstate.Options{Cluster: p.Owner.Cluster, Shard: p.Owner.Shard, Term: p.Authority.Term(),
		Now: p.Env.Now, Wake: p.Wake,
		Events: p.Events, Log: p.Log})
	executor := &execute.Executor{World: world, Store: p.Records, Provider: p.Provider, Authority: p.Authority,
		Renderer: p.Renderer, Files: p.Files,
		Groups: p.Groups, Env: p.Env, Log: p.Log, Owner: p.Owner, Incarnation: p.Incarnation}
	listKey := shardstate.ErrorKey{Kind: plan.AlertProvider}
	asker := &shardstate.Asker{World: world, Provider: p.Provider, Owner: p.Owner, Env: p.Env,
		Failed: func(err error) { world.Raise(listKey, fmt.Sprintf("ask the provider: %v", err)) },
		Answer: func() { world.Resolve(listKey) }}
	loop := &Loop{World: world, Executor: executor, Asker: asker, Env: p.Env, Log: p.Log}
	return &Leader{World: world, Executor: executor, Asker: asker, Loop: loop, parts: p}
}

// TakeOver rebuilds the picture from the bucket and the provider, asked side by side. Configure the World first. It
// fails only if the bucket cannot be read, or holds a record of a higher term, which ends the authority; a provider
// that does not answer a few times is asked again by Collect, and until then nothing counts as gone.
func (l *Leader) TakeOver(ctx context.Context) error {
	asked := l.parts.Env.Now()
	var vms []infra.VM
	var listErr error
	var highest uint64
	err := l.parts.Env.ForEach(ctx, 2, 2, func(ctx context.Context, i int) error {
		if i == 0 {
			vms, listErr = l.list(ctx)
			return nil
		}
		return l.parts.Records.LoadInstances(ctx, func(rec record.Instance, token objstore.Token) {
			highest = max(highest, rec.Term)
			if rec.State == record.Reserved {
				l.World.AddLeftover(shardstate.Reservation{Record: rec, Token: token})
				return
			}
			l.World.PutRecord(rec, token)
		})
	})
	if err != nil {
		return fmt.Errorf("read the shard's instances: %w", err)
	}
	if term := l.World.Term(); highest > term {
		l.parts.Authority.Refuse(highest)
		return fmt.Errorf("read the shard's instances: one was written in term %d, this is term %d", highest, term)
	}
	if listErr != nil {
		l.Asker.Failed(listErr)
		return nil
	}
	l.World.Listed(vms, asked)
	l.listed = asked
	return l.readStrays(ctx)
}

const (
	listTries = 3
	listPause = 250 * time.Millisecond
	// listPatience is after how long a provider that does not answer is not asked again at once: planning does not wait
	// for it.
	listPatience = 2 * time.Second
)

// list asks the provider for everything. A moment's throttling should not leave a new leader in the dark.
func (l *Leader) list(ctx context.Context) (vms []infra.VM, err error) {
	began := l.parts.Env.Now()
	for try := 1; ; try++ {
		vms, err = l.parts.Provider.List(ctx, l.parts.Owner)
		if err == nil || try == listTries || l.parts.Env.Now().Sub(began) > listPatience {
			return vms, err
		}
		if sleepErr := l.parts.Env.Sleep(ctx, listPause); sleepErr != nil {
			return nil, err
		}
	}
}

// readParallel is how many records of strays are read at a time.
const readParallel = 16

// readStrays reads the records of VMs that the bucket's list did not show. Most have none; but one that was written
// just before may be missing from a list, and its group would get a VM too many.
func (l *Leader) readStrays(ctx context.Context) error {
	strays := l.World.Orphans()
	return l.parts.Env.ForEach(ctx, len(strays), readParallel, func(ctx context.Context, i int) error {
		vm := strays[i]
		rec, token, err := l.parts.Records.GetInstance(ctx, vm.Tags.Tenant, vm.Tags.Instance)
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

// Collect lists the provider's VMs and asks for room in its subnets every collection interval, sooner while that fails,
// and keeps the reservations filled, until ctx ends. The list that TakeOver got counts as the first: thousands of VMs
// twice in a row would only hold up what is to be done about the first.
func (l *Leader) Collect(ctx context.Context) {
	list := func() error {
		if !l.listed.IsZero() {
			return nil
		}
		return l.Asker.List(ctx)
	}
	for delay := time.Second; ; {
		for _, pool := range l.World.Pools() {
			l.Executor.Refill(ctx, pool)
		}
		l.Executor.LookForRoom(ctx)
		err := list()
		if ctx.Err() != nil {
			return
		}
		wait := l.World.Settings().CollectInterval
		if err != nil {
			l.Asker.Failed(err)
			wait, delay = delay, min(2*delay, time.Minute)
		} else {
			l.Asker.Answer()
			delay = time.Second
		}
		l.listed = time.Time{}
		if l.parts.Env.Sleep(ctx, wait) != nil {
			return
		}
	}
}

const (
	// recheckFirst is when most of what an earlier leader had sent when its lease ended has landed or never will:
	// clients give up sooner.
	recheckFirst = time.Minute
	// recheckEvery bounds for how long the picture may lack what is in the bucket; it costs a request for a thousand
	// records.
	recheckEvery = 10 * time.Minute
)

// Recheck looks for records that somebody else wrote after TakeOver had read them: a write of an earlier leader whose
// process stood still between its last look at the lease and its request is fenced by the record's version only, and a
// leader that does not write this record would never know. It returns when ctx ends.
func (l *Leader) Recheck(ctx context.Context) {
	for wait := recheckFirst; l.parts.Env.Sleep(ctx, wait) == nil; wait = recheckEvery {
		err := l.parts.Records.LoadUnseen(ctx, l.World.Seen, func(rec record.Instance, token objstore.Token) {
			if rec.Term < l.World.Term() {
				l.parts.Log.Info("found a record that an earlier leader wrote late", "instance", rec.ID.String(),
					"state", string(rec.State), "term", rec.Term)
			}
			l.found(rec, token)
		})
		if err != nil && ctx.Err() == nil {
			l.parts.Log.Warn("records not compared with the bucket's, next try later", "error", err, "in", recheckEvery)
		}
	}
}

const (
	// addressCheck is how often the leader makes sure that the shard's address is still its own.
	addressCheck = time.Minute
	// addressRelease bounds giving it up, which the ending leadership does not wait for longer.
	addressRelease = 5 * time.Second
)

// HoldAddress makes the shard's fixed address this machine's own, looks after it every minute, and releases it when ctx
// ends. Nobody waits for it: who plans needs no address.
func (l *Leader) HoldAddress(ctx context.Context, network infra.LeaderNetwork, machineID string) {
	key := shardstate.ErrorKey{Kind: plan.AlertLeaderNetwork}
	began, held := l.parts.Env.Now(), false
	for delay := time.Second; ; {
		wait := addressCheck
		err := l.Executor.Permit(ctx)
		if err == nil {
			err = network.Acquire(ctx, machineID)
		}
		switch {
		case err == nil:
			l.World.Resolve(key)
			delay = time.Second
			if !held {
				held = true
				l.parts.Log.Info("holding the leader's address", "after", l.parts.Env.Now().Sub(began).String())
			}
		default:
			if ctx.Err() == nil {
				l.World.Raise(key, fmt.Sprintf("acquire the leader's address: %v", err))
			}
			wait, delay = delay, min(2*delay, addressCheck)
		}
		if l.parts.Env.Sleep(ctx, wait) != nil {
			break
		}
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), addressRelease)
	defer cancel()
	if err := network.Release(release, machineID); err != nil {
		l.parts.Log.Warn("the leader's address is not released", "error", err)
	}
}

// CreateInstance makes an on-demand instance of a group and returns when its VM is asked for and recorded. The ID may
// be the client's; repeated with the same ID, also with a later leader, it returns the same instance. ctx is the
// leader's: who asked may go away in the middle. Errors match ErrNoGroup, ErrDead or ErrKind where the request itself
// is wrong, execute.ErrNoCapacity, or *clusterstate.SupersededError while it is not settled what came of an earlier
// attempt.
func (l *Leader) CreateInstance(ctx context.Context, key config.GroupKey, id ident.ID, instanceType string,
	vars map[string]string) (ident.ID, error) {
	group, ok := l.World.Group(key)
	if !ok || group.Deleted {
		return ident.ID{}, ErrNoGroup
	}
	if id.IsZero() {
		fresh, err := ident.NewID(group.Kind, l.parts.Env.Now(), l.parts.Env.Rand)
		if err != nil {
			return ident.ID{}, fmt.Errorf("make an instance ID: %w", err)
		}
		id = fresh
	}
	if id.Prefix() != group.Kind {
		return id, fmt.Errorf("%w: it is %q, the group's is %q", ErrKind, id.Prefix(), group.Kind)
	}
	rec, token, lives := l.World.Record(id)
	left, unsettled := l.World.Leftover(id)
	_, dead := l.World.Tombstone(id)
	switch {
	case dead || lives && (rec.Tenant != key.Tenant || rec.Group != key.Group || !rec.OnDemand):
		return id, ErrDead
	case lives && rec.State != record.Reserved:
		return id, nil
	case lives:
		return id, &clusterstate.SupersededError{ID: id, Record: rec, Token: token}
	case unsettled:
		return id, &clusterstate.SupersededError{ID: id, Record: left.Record, Token: left.Token}
	}
	if age := l.parts.Env.Now().Sub(id.Time()); age > l.World.Settings().Retention {
		return id, fmt.Errorf("%w: made %s ago, and records are kept for %s", ErrDead, age.Round(time.Second),
			l.World.Settings().Retention)
	}
	err := l.Executor.CreateOnDemand(ctx, group, id, instanceType, vars)
	var superseded *clusterstate.SupersededError
	if errors.As(err, &superseded) && superseded.Token != "" {
		l.found(superseded.Record, superseded.Token)
	}
	return id, err
}

// found takes a record that this leader did not know of. What it has learnt since the record was read is newer.
func (l *Leader) found(rec record.Instance, token objstore.Token) {
	_, _, lives := l.World.Record(rec.ID)
	_, dead := l.World.Tombstone(rec.ID)
	switch {
	case rec.Term > l.World.Term():
		l.parts.Authority.Refuse(rec.Term)
	case rec.State != record.Reserved:
		l.World.PutRecord(rec, token)
	case rec.ReservedTerm < l.World.Term() && !lives && !dead:
		l.World.AddLeftover(shardstate.Reservation{Record: rec, Token: token})
	}
}

// DeleteInstance records the intent to delete an instance; it is durable when this returns. Deleting what is already on
// its way out changes nothing.
func (l *Leader) DeleteInstance(ctx context.Context, id ident.ID, reason string) error {
	now := l.parts.Env.Now()
	rec, _, ok := l.World.Record(id)
	if !ok {
		if _, dead := l.World.Tombstone(id); dead {
			return nil
		}
		return ErrNoInstance
	}
	drain := l.World.DrainTimeout(config.GroupKey{Tenant: rec.Tenant, Group: rec.Group})
	marked := false
	_, err := l.Executor.Update(ctx, id, func(rec *record.Instance) {
		marked = plan.RequestDelete(rec, plan.Deletion{Reason: reason, Cause: plan.CauseRequested,
			Deadline: now.Add(drain)}, now)
	})
	if err != nil || !marked {
		return err
	}
	l.World.Publish(shardstate.InstanceEvent{Type: shardstate.EventPendingDeletion, Tenant: rec.Tenant,
		Group: rec.Group, Instance: id, Reason: reason,
		Deadline: now.Add(drain)})
	return nil
}

var (
	// ErrNoGroup: there is no such group.
	ErrNoGroup = errors.New("no such group")
	// ErrNoInstance: there is no such instance, and no memory of one.
	ErrNoInstance = errors.New("no such instance")
	// ErrDead: this instance ID had its life, or may have had it.
	ErrDead = errors.New("instance ID cannot be used (again)")
	// ErrKind: the instance ID's prefix is not the group's kind.
	ErrKind = errors.New("instance ID has the wrong prefix")
)
