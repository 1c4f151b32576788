package execute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
)

// ErrGone means that the State no longer holds the instance: it was deleted.
var ErrGone = errors.New("instance is gone")

// errNotYet means that an action must wait for something else. The executor tries the action again, as after a failure,
// but does not count a failure.
var errNotYet = errors.New("not yet")

// Update changes an instance's record by compare and swap. It applies the function change to the newest known version.
// If another write came first, it applies change again, to the version of that write, so change must be idempotent. If
// change alters nothing, Update writes nothing.
//
// Update fails with *clusterstate.SupersededError if a leader of a higher term wrote the record. That also ends this
// leader's authority. It fails with ErrGone for an instance that the State does not hold.
func (x *Executor) Update(ctx context.Context, id ident.ID, change func(*record.Instance)) (record.Instance, error) {
	for {
		if err := ctx.Err(); err != nil {
			return record.Instance{}, err
		}
		have, token, ok := x.State.Record(id)
		if !ok {
			return record.Instance{}, fmt.Errorf("%s: %w", id, ErrGone)
		}
		next := have
		next.Vars = maps.Clone(have.Vars)
		change(&next)
		if reflect.DeepEqual(have, next) {
			return have, nil
		}
		x.stamp(&next)
		newToken, err := x.Store.PutInstance(ctx, next, token)
		if err == nil {
			x.State.PutRecord(next, newToken)
			return next, nil
		}
		var superseded *clusterstate.SupersededError
		if !errors.As(err, &superseded) {
			return record.Instance{}, fmt.Errorf("write record of %s: %w", id, err)
		}
		if superseded.Record.Term > x.Authority.Term() {
			x.Authority.Refuse(superseded.Record.Term)
			return record.Instance{}, err
		}
		if superseded.Token == "" || superseded.Token == token || superseded.Record.Revision < have.Revision {
			// Another program has changed the bucket. The record is absent or older than the version that the leader
			// knows, or the store refused the write although the token matched.
			return record.Instance{}, err
		}
		x.State.PutRecord(superseded.Record, superseded.Token)
	}
}

// updatePlanned is Update for a change that was planned. It applies change only to the version of the record that is
// known now. change returns whether it has changed the record.
func (x *Executor) updatePlanned(ctx context.Context, id ident.ID, change func(*record.Instance) bool) (
	rec record.Instance, changed bool, err error) {
	var planned uint64
	rec, err = x.Update(ctx, id, func(rec *record.Instance) {
		planned = cmp.Or(planned, rec.Revision)
		changed = rec.Revision == planned && change(rec)
	})
	return rec, changed, err
}

func (x *Executor) stamp(rec *record.Instance) {
	rec.Revision++
	rec.Term = x.Authority.Term()
	rec.Writer = x.Incarnation
}

// retryWrite repeats a write until the write succeeds or is definitely refused, or the authority ends. It is for the
// results of provider calls, which must be recorded.
func (x *Executor) retryWrite(ctx context.Context, write func() error) error {
	for tries := 1; ; tries++ {
		err := write()
		var superseded *clusterstate.SupersededError
		if err == nil || errors.Is(err, ErrGone) || errors.As(err, &superseded) {
			return err
		}
		if sleepErr := x.Env.Sleep(ctx, reconnect.Backoff(100*time.Millisecond, 10*time.Second,
			tries)); sleepErr != nil {
			return err
		}
	}
}
