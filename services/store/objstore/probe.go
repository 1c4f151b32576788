package objstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// WithProbe returns a view of store that runs [Probe] under key before its first Put. If the probe fails, the Put fails
// with the same error. An error that wraps [ErrUnconditional] is final. After any other error the next Put runs the
// probe again. Reads and deletes run no probe.
func WithProbe(store Store, key string) Store { return &probed{Store: store, key: key} }

type probed struct {
	Store
	key string

	mu   sync.Mutex // held during the probe, so that concurrent puts wait for its result
	done bool
	err  error
}

func (p *probed) Put(ctx context.Context, key string, body []byte, cond Condition) (Token, error) {
	if err := p.probe(ctx); err != nil {
		return "", err
	}
	return p.Store.Put(ctx, key, body, cond)
}

func (p *probed) probe(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return p.err
	}
	err := Probe(ctx, p.Store, p.key)
	if p.done = err == nil || errors.Is(err, ErrUnconditional); p.done {
		p.err = err
	}
	return err
}
