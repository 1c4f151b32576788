package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
)

const (
	quickConflicts = 3 // are repeated without a pause, because another writer made progress
	mostConflicts  = 20
	conflictPause  = 50 * time.Millisecond
	longestPause   = 5 * time.Second
)

// Conflicts counts the conflicts of one conditional write, for a caller that reads the object and writes it again. Some
// stores answer with a conflict although nobody else writes, so the repetitions have pauses and a limit. The zero value
// is ready to use. It is not safe for concurrent use.
type Conflicts struct{ count int }

// Again reports whether the caller should read the object and write it again, because err is ErrConflict. It pauses
// before it returns true. It returns false after twenty conflicts, and when ctx has ended.
func (c *Conflicts) Again(ctx context.Context, err error) bool {
	if !errors.Is(err, ErrConflict) || ctx.Err() != nil {
		return false
	}
	c.count++
	switch {
	case c.count >= mostConflicts:
		return false
	case c.count <= quickConflicts:
		return true
	}
	return Sleep(ctx, reconnect.Backoff(conflictPause, longestPause, c.count-quickConflicts)) == nil
}

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
		sleep = Sleep
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

// Sleep waits for d, or until ctx ends. If ctx ends first, Sleep returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// contenders is the number of concurrent puts in a race of [Probe].
const contenders = 32

// race sends concurrent puts with the same condition, which holds for all of them when they are sent. Exactly one put
// may succeed, and the object must then have the content of that put. race returns the token of that put. A put that
// fails without a conflict, for example because the store throttles it, proves nothing. It is ignored, unless it took
// effect.
func race(ctx context.Context, store Store, key, round string, cond Condition, promise string) (Token, error) {
	type result struct {
		body  []byte
		token Token
		err   error
	}
	results := make([]result, contenders)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range results {
		results[i].body = fmt.Appendf(nil, "%s %s %d\n", key, round, i)
		wg.Go(func() {
			<-start
			results[i].token, results[i].err = store.Put(ctx, key, results[i].body, cond)
		})
	}
	close(start)
	wg.Wait()

	var winner result
	winners := 0
	var trouble error
	for _, r := range results {
		switch {
		case r.err == nil:
			winners++
			winner = r
		case !errors.Is(r.err, ErrConflict):
			trouble = r.err
		}
	}
	switch {
	case winners > 1:
		return "", unconditional(fmt.Sprintf("%d of %d concurrent puts succeeded under %s, which promises one", winners,
			contenders, promise), nil)
	case winners == 0 && trouble == nil:
		return "", explainConflicts(ctx, store, key, cond, promise)
	case winners == 0:
		return "", fmt.Errorf("probe: race: %w", trouble)
	}
	obj, err := store.Get(ctx, key)
	switch {
	case err != nil:
		return "", fmt.Errorf("probe: race: read: %w", err)
	case bytes.Equal(obj.Body, winner.body) && obj.Token == winner.token:
		return winner.token, nil
	case trouble != nil:
		return "", fmt.Errorf("probe: race: %w", trouble) // that put may have been the first or the last
	}
	return "", unconditional("after concurrent puts under "+promise+
		", the object does not hold what the acknowledged one wrote", nil)
}

// explainConflicts returns the error for concurrent puts that all failed with a conflict. It sends one more put. If
// that put also fails with a conflict, although its condition holds, the error wraps ErrUnconditional.
func explainConflicts(ctx context.Context, store Store, key string, cond Condition, promise string) error {
	_, puterr := store.Put(ctx, key, []byte(key+" alone\n"), cond)
	obj, err := store.Get(ctx, key)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("probe: race: read: %w", err)
	}
	if errors.Is(puterr, ErrConflict) && cond.Holds(obj.Token, err == nil) {
		return unconditional(promise+" refused a put although its condition holds", puterr)
	}
	return fmt.Errorf("probe: race: none of %d concurrent puts succeeded under %s", contenders, promise)
}
