package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
)

// Settle waits between its attempts. The wait doubles from settleFirst to settleLast.
const (
	settleFirst = 50 * time.Millisecond
	settleLast  = 2 * time.Second
)

// Settle puts body under cond and repeats the put until the result is known. The caller guarantees that no other writer
// ever writes the same bytes, because body contains the writer's incarnation, term and revision. The bytes must also
// differ from the current object.
//
// If the first attempt fails with a conflict, Settle returns ErrConflict. After an attempt with an unknown result, only
// a changed token decides:
//
//   - If the object holds body, Settle succeeds with the token that it read.
//   - If the object holds other bytes, or is missing although a version was expected, Settle returns ErrConflict.
//
// While the token is unchanged, the write may still take effect. Settle then waits with sleep and sends the same bytes
// again. sleep must return early with an error when ctx ends. A nil sleep uses the real clock. If ctx ends first, the
// error is ErrIndeterminate, and the write may still take effect.
//
// ErrConflict after an unknown attempt means that the object does not hold body now. It may have held body for a
// moment, until another writer that had read body replaced it.
func Settle(ctx context.Context, store Store, key string, body []byte, cond Condition,
	sleep func(context.Context, time.Duration) error) (Token, error) {
	if sleep == nil {
		sleep = sleepReal
	}
	token, err := store.Put(ctx, key, body, cond)
	if !errors.Is(err, ErrIndeterminate) {
		return token, err
	}
	for tries := 1; ; tries++ {
		token, settled, rerr := readResult(ctx, store, key, body, cond)
		if settled {
			return token, rerr
		}
		if serr := sleep(ctx, reconnect.Backoff(settleFirst, settleLast, tries)); serr != nil {
			return "", indeterminate(key, serr, err)
		}
		if ctx.Err() != nil {
			return "", indeterminate(key, ctx.Err(), err)
		}
		// From here on, an error of Put does not end Settle, because an earlier attempt may have taken effect or may
		// still do so.
		token, again := store.Put(ctx, key, body, cond)
		if again == nil {
			return token, nil
		}
		if !errors.Is(again, ErrNotSent) {
			err = again // otherwise an earlier attempt may have reached the store
		}
	}
}

// readResult checks whether the object has changed from the state that cond expects. If the read fails, settled is
// false.
func readResult(ctx context.Context, store Store, key string, body []byte, cond Condition) (token Token, settled bool,
	err error) {
	obj, err := store.Get(ctx, key)
	absent := errors.Is(err, ErrNotFound)
	switch {
	case err != nil && !absent:
		return "", false, nil
	case !absent && bytes.Equal(obj.Body, body):
		return obj.Token, true, nil
	case cond.Holds(obj.Token, !absent):
		return "", false, nil
	}
	return "", true, fmt.Errorf("settle put %q: another writer was first: %w", key, ErrConflict)
}

func indeterminate(key string, ended, last error) error {
	if errors.Is(last, ErrIndeterminate) {
		return fmt.Errorf("settle put %q: %w: %w", key, ended, last)
	}
	return fmt.Errorf("settle put %q: %w: %w: %w", key, ErrIndeterminate, ended, last)
}

func sleepReal(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
