package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// Back-off between the attempts of Settle: doubled from the first to the last.
const (
	settleFirst = 50 * time.Millisecond
	settleLast  = 2 * time.Second
)

// Settle puts body under cond and stays with it until the result is known. The caller guarantees that nobody else ever
// writes these very bytes (they hold its incarnation, term and revision), and that they differ from what is there.
//
// A conflict of the first attempt is a conflict. After an attempt with an unknown result, only a changed token decides:
// our bytes are there, won, with the token that was read; other bytes, or nothing where a version was expected,
// ErrConflict. While the token is unchanged the write may still land, so the same bytes are sent again, after a wait
// through sleep (which returns early, with an error, when ctx ends; nil waits on the real clock). When ctx ends first
// the error is ErrIndeterminate, and the write may still land.
//
// ErrConflict after an unknown attempt means that the object does not hold our bytes now; they may have been there for
// a moment before another writer, who had seen them, replaced them.
func Settle(ctx context.Context, store Store, key string, body []byte, cond Condition,
	sleep func(context.Context, time.Duration) error) (Token, error) {
	if sleep == nil {
		sleep = sleepReal
	}
	token, err := store.Put(ctx, key, body, cond)
	if err == nil || !errors.Is(err, ErrIndeterminate) {
		return token, err
	}
	for wait := settleFirst; ; wait = min(2*wait, settleLast) {
		token, settled, rerr := readResult(ctx, store, key, body, cond)
		if settled {
			return token, rerr
		}
		if serr := sleep(ctx, wait); serr != nil {
			return "", indeterminate(key, serr, err)
		}
		if ctx.Err() != nil {
			return "", indeterminate(key, ctx.Err(), err)
		}
		// Errors from here on decide nothing: an earlier attempt may still land, or have landed.
		if token, err = store.Put(ctx, key, body, cond); err == nil {
			return token, nil
		}
	}
}

// readResult looks whether the object has changed from what cond expects. A failed read settles nothing.
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
