package leader

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
)

// CreateInstance creates an on-demand instance of a group. It returns when the VM is requested from the provider and
// recorded. The client may choose the ID. A repeated call with the same ID returns the same instance, even if a later
// leader answers it. ctx is the leader's context and not the client's, because the client may disconnect during the
// call.
//
// CreateInstance fails with ErrNoGroup, ErrDead or ErrKind if the request is invalid, and with execute.ErrNoCapacity if
// there is no capacity. It fails with *clusterstate.SupersededError while the result of an earlier attempt is unknown.
func (l *Leader) CreateInstance(ctx context.Context, key config.GroupKey, id ident.ID, instanceType string,
	vars map[string]string) (ident.ID, error) {
	group, ok := l.State.Group(key)
	if !ok || group.Deleted {
		return ident.ID{}, ErrNoGroup
	}
	if id.IsZero() {
		fresh, err := ident.NewID(group.Kind, l.Executor.Env.Now(), l.Executor.Env.Rand)
		if err != nil {
			return ident.ID{}, fmt.Errorf("make an instance ID: %w", err)
		}
		id = fresh
	}
	if id.Prefix() != group.Kind {
		return id, fmt.Errorf("%w: it is %q, the group's is %q", ErrKind, id.Prefix(), group.Kind)
	}
	rec, token, lives := l.State.Record(id)
	left, unsettled := l.State.Leftover(id)
	_, dead := l.State.Tombstone(id)
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
	if age := l.Executor.Env.Now().Sub(id.Time()); age > l.State.Settings().Retention {
		return id, fmt.Errorf("%w: made %s ago, and records are kept for %s", ErrDead, age.Round(time.Second),
			l.State.Settings().Retention)
	}
	err := l.Executor.CreateOnDemand(ctx, group, id, instanceType, vars)
	if superseded, ok := errors.AsType[*clusterstate.SupersededError](err); ok && superseded.Token != "" {
		l.found(superseded.Record, superseded.Token)
	}
	return id, err
}

// DeleteInstance records the intent to delete an instance. The intent is durable when DeleteInstance returns. If the
// instance is already being deleted, DeleteInstance can only shorten its drain (plan's rule 40). If the instance is
// already deleted, DeleteInstance changes nothing.
func (l *Leader) DeleteInstance(ctx context.Context, id ident.ID, reason string) error {
	rec, _, ok := l.State.Record(id)
	if !ok {
		if _, dead := l.State.Tombstone(id); dead {
			return nil
		}
		return ErrNoInstance
	}
	drain := l.State.DrainTimeout(config.GroupKey{Tenant: rec.Tenant, Group: rec.Group})
	changed := false
	var now time.Time
	_, err := l.Executor.Update(ctx, id, func(rec *record.Instance) {
		now = l.Executor.Env.Now() // each attempt may come much later than the one before
		changed = plan.RequestDelete(rec, plan.Deletion{Reason: reason, Cause: plan.CauseRequested,
			Deadline: now.Add(drain)}, now)
	})
	if err != nil || !changed {
		return err
	}
	event := shardstate.NewEvent(shardstate.EventPendingDeletion, &rec, reason)
	event.Deadline = now.Add(drain)
	l.State.Publish(event)
	l.Executor.Files.Drain(id) // the deadline of its drain may have become earlier
	return nil
}

var (
	// ErrNoGroup means that the group does not exist.
	ErrNoGroup = errors.New("no such group")
	// ErrNoInstance means that the shard has neither an instance with this ID nor a tombstone of one.
	ErrNoInstance = errors.New("no such instance")
	// ErrDead means that the instance ID was used, or may have been used, and cannot be used again.
	ErrDead = errors.New("instance ID may have been used before")
	// ErrKind means that the prefix of the instance ID is not the group's kind.
	ErrKind = errors.New("instance ID has the wrong prefix")
)
