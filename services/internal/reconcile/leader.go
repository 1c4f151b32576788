package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/execute"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/observe"
	"github.com/nstance-kit/nstance/services/internal/tasks"
)

// Records is the durable side of a shard's instances.
type Records interface {
	execute.Store
	// LoadInstances reads every instance record of the shard, in parallel, and hands each to take, one at a time.
	LoadInstances(ctx context.Context, take func(record.Instance, objstore.Token)) error
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
	Events      observe.Events
	Log         *slog.Logger
	// Wake is called whenever there may be something to plan: it makes Loop.Pass run soon.
	Wake func()
}

// Leader is one term's picture of the shard and everything that acts on it.
type Leader struct {
	World    *observe.World
	Executor *execute.Executor
	Asker    *observe.Asker
	Loop     *Loop

	parts Parts
}

// NewLeader wires a leader of the authority's term. It does nothing yet.
func NewLeader(p Parts) *Leader {
	world := observe.New(observe.Options{Cluster: p.Owner.Cluster, Shard: p.Owner.Shard, Term: p.Authority.Term(), Now: p.Env.Now, Wake: p.Wake,
		Events: p.Events, Log: p.Log})
	executor := &execute.Executor{World: world, Store: p.Records, Provider: p.Provider, Authority: p.Authority, Renderer: p.Renderer, Files: p.Files,
		Groups: p.Groups, Env: p.Env, Log: p.Log, Owner: p.Owner, Incarnation: p.Incarnation}
	listKey := observe.ErrorKey{Kind: "provider"}
	asker := &observe.Asker{World: world, Provider: p.Provider, Owner: p.Owner, Env: p.Env,
		Failed: func(err error) { world.Raise(listKey, fmt.Sprintf("ask the provider: %v", err)) },
		Answer: func() { world.Resolve(listKey) }}
	loop := &Loop{World: world, Executor: executor, Asker: asker, Env: p.Env, Log: p.Log}
	return &Leader{World: world, Executor: executor, Asker: asker, Loop: loop, parts: p}
}

// TakeOver rebuilds the picture from the bucket and the provider, asked side by side. Configure the World first. It fails only if the
// bucket cannot be read; a provider that does not answer is asked again by Collect, and until then nothing counts as gone.
func (l *Leader) TakeOver(ctx context.Context) error {
	asked := l.parts.Env.Now()
	var vms []infra.VM
	var listErr error
	err := l.parts.Env.ForEach(ctx, 2, 2, func(ctx context.Context, i int) error {
		if i == 0 {
			vms, listErr = l.parts.Provider.List(ctx, l.parts.Owner)
			return nil
		}
		return l.parts.Records.LoadInstances(ctx, func(rec record.Instance, token objstore.Token) {
			if rec.State == record.Reserved {
				l.World.AddLeftover(observe.Reservation{Record: rec, Token: token})
				return
			}
			l.World.PutRecord(rec, token)
		})
	})
	if err != nil {
		return fmt.Errorf("read the shard's instances: %w", err)
	}
	if listErr != nil {
		l.Asker.Failed(listErr)
		return nil
	}
	l.World.Listed(vms, asked)
	return nil
}

// Collect lists the provider's VMs every collection interval, sooner while that fails, and keeps the reservations filled, until ctx ends.
func (l *Leader) Collect(ctx context.Context) {
	for delay := time.Second; ; {
		for _, pool := range l.World.Pools() {
			l.Executor.Refill(ctx, pool)
		}
		err := l.Asker.List(ctx)
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
		if l.parts.Env.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// CreateInstance makes an on-demand instance of a group. The ID may be the client's; repeated with the same ID it returns the same
// instance. Errors match ErrNoGroup, ErrDead or ErrKind where the request itself is wrong.
func (l *Leader) CreateInstance(ctx context.Context, key config.GroupKey, id ident.ID, instanceType string, vars map[string]string) (ident.ID, error) {
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
	if rec, _, ok := l.World.Record(id); ok {
		if rec.Tenant != key.Tenant || rec.Group != key.Group || !rec.OnDemand {
			return id, ErrDead
		}
		return id, nil
	}
	if _, dead := l.World.Tombstone(id); dead {
		return id, ErrDead
	}
	if age := l.parts.Env.Now().Sub(id.Time()); age > l.World.Settings().Retention {
		return id, fmt.Errorf("%w: made %s ago, and records are kept for %s", ErrDead, age.Round(time.Second), l.World.Settings().Retention)
	}
	return id, l.Executor.CreateOnDemand(ctx, group, id, instanceType, vars)
}

// DeleteInstance records the intent to delete an instance; it is durable when this returns. Deleting what is already on its way out
// changes nothing.
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
	_, err := l.Executor.Update(ctx, id, func(rec *record.Instance) {
		if rec.State == record.Deleting || rec.State == record.Deleted {
			return
		}
		rec.State, rec.DeletingAt, rec.DeleteReason, rec.DeleteDeadline = record.Deleting, now, reason, now.Add(drain)
	})
	if err != nil {
		return err
	}
	l.World.Publish(observe.InstanceEvent{Type: observe.EventPendingDeletion, Tenant: rec.Tenant, Group: rec.Group, Instance: id, Reason: reason,
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
