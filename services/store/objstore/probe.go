package objstore

import (
	"context"
	"errors"
	"fmt"
)

// Probe checks that the store honors conditions, also those of concurrent puts. It uses one object under key, and
// removes the object at the end. No other caller may use the key, so it must contain a nonce.
//
// The error wraps ErrUnconditional if the store accepted a write that it must refuse, or refused a write that it must
// accept. Two leaders could act at the same time on such a store, so no server may lead on it. Any other error (no
// access, no connection, an unknown result) proves nothing: try again with another key.
func Probe(ctx context.Context, store Store, key string) (err error) {
	defer func() {
		if derr := store.Delete(ctx, key); derr != nil && err == nil {
			err = fmt.Errorf("probe: %w", derr)
		}
	}()
	created, err := store.Put(ctx, key, []byte(key+" created\n"), IfAbsent())
	if err != nil {
		return fmt.Errorf("probe: create: %w", err)
	}
	replaced, err := race(ctx, store, key, "replaced in a race", IfToken(created), "replace-if-unchanged (If-Match)")
	if err != nil {
		return err
	}
	if err := store.Delete(ctx, key); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	_, err = store.Put(ctx, key, []byte(key+" replaced after its end\n"), IfToken(replaced))
	if err == nil {
		return unconditional("replace-if-unchanged (If-Match) created an object that does not exist", nil)
	}
	if !errors.Is(err, ErrConflict) {
		return fmt.Errorf("probe: replace a deleted object: %w", err)
	}
	_, err = race(ctx, store, key, "created in a race", IfAbsent(), "create-if-absent (If-None-Match: *)")
	return err
}

func unconditional(complaint string, cause error) error {
	const advice = "two servers could lead at once on it; use a store with conditional writes or a newer version of " +
		"this one"
	if cause != nil {
		return fmt.Errorf("probe: %w: %s; %s: %w", ErrUnconditional, complaint, advice, cause)
	}
	return fmt.Errorf("probe: %w: %s; %s", ErrUnconditional, complaint, advice)
}
