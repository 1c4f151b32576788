package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
)

// Probe checks with one object under key that the store honors conditions, also those of concurrent puts, and then
// removes the object. No other caller may use the key, so it must contain a nonce.
//
// The error wraps ErrUnconditional if a write succeeded that must be refused, or was refused although it must succeed.
// Two leaders could act at the same time on such a store, so no server may lead on it. Any other error (no access, no
// connection, an unknown result) proves nothing: try again with another key.
func Probe(ctx context.Context, store Store, key string) (err error) {
	defer func() {
		if derr := store.Delete(ctx, key); derr != nil && err == nil {
			err = fmt.Errorf("probe: %w", derr)
		}
	}()
	body := func(step string) []byte { return []byte(key + " " + step + "\n") }

	first, err := store.Put(ctx, key, body("created"), IfAbsent())
	if err != nil {
		return fmt.Errorf("probe: create: %w", err)
	}
	if err := refused(ctx, store, key, body("created twice"), IfAbsent(),
		"create-if-absent (If-None-Match: *) replaced an object that exists"); err != nil {
		return err
	}
	// This token was never a token of this object. The mangled token keeps the form of the store's tokens.
	if err := refused(ctx, store, key, body("replaced by a wrong token"), IfToken(mangle(first)),
		"replace-if-unchanged (If-Match) ignored a wrong ETag"); err != nil {
		return err
	}
	second, err := store.Put(ctx, key, body("replaced"), IfToken(first))
	if errors.Is(err, ErrConflict) {
		return unconditional("replace-if-unchanged (If-Match) refused the current ETag", err)
	}
	if err != nil {
		return fmt.Errorf("probe: replace: %w", err)
	}
	if err := refused(ctx, store, key, body("replaced by a stale token"), IfToken(first),
		"replace-if-unchanged (If-Match) accepted a stale ETag"); err != nil {
		return err
	}
	obj, err := store.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("probe: read: %w", err)
	}
	if !bytes.Equal(obj.Body, body("replaced")) || obj.Token != second {
		return unconditional("an object does not hold what was acknowledged last", nil)
	}
	if err := store.Delete(ctx, key); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if err := refused(ctx, store, key, body("replaced after its end"), IfToken(second),
		"replace-if-unchanged (If-Match) created an object that does not exist"); err != nil {
		return err
	}
	created, err := race(ctx, store, key, "created in a race", IfAbsent(), "create-if-absent (If-None-Match: *)")
	if err != nil {
		return err
	}
	_, err = race(ctx, store, key, "replaced in a race", IfToken(created), "replace-if-unchanged (If-Match)")
	return err
}

// refused sends a put that must fail with a conflict.
func refused(ctx context.Context, store Store, key string, body []byte, cond Condition, complaint string) error {
	_, err := store.Put(ctx, key, body, cond)
	switch {
	case err == nil:
		return unconditional(complaint, nil)
	case errors.Is(err, ErrConflict):
		return nil
	}
	return fmt.Errorf("probe: put %s: %w", cond, err)
}

func unconditional(complaint string, cause error) error {
	const advice = "two servers could lead at once on it; use a store with conditional writes or a newer version of " +
		"this one"
	if cause != nil {
		return fmt.Errorf("probe: %w: %s; %s: %w", ErrUnconditional, complaint, advice, cause)
	}
	return fmt.Errorf("probe: %w: %s; %s", ErrUnconditional, complaint, advice)
}

// mangle returns a different token of the same form: hexadecimal digits stay hexadecimal, decimal digits stay decimal.
func mangle(t Token) Token {
	b := []byte(t)
	for i, c := range b {
		if '0' <= c && c <= '8' {
			b[i] = c + 1
			return Token(b)
		}
	}
	return t + "0"
}
