package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
)

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
