package objstore

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// ValidatePrefix refuses a prefix with which [WithPrefix] makes no valid key. Slashes at its ends are ignored.
func ValidatePrefix(prefix string) error {
	trimmed := strings.Trim(prefix, "/")
	if trimmed == "" {
		return nil
	}
	if err := ValidateKey(trimmed); err != nil {
		return fmt.Errorf("prefix %q: %w", prefix, err)
	}
	return nil
}

// WithPrefix returns a view of store that adds prefix and a slash to every key. It trims slashes around prefix. An
// empty prefix returns store itself. Errors name the full key.
func WithPrefix(store Store, prefix string) Store {
	prefix = strings.Trim(prefix, "/")
	if prefix == "" {
		return store
	}
	return &prefixed{store: store, prefix: prefix + "/"}
}

type prefixed struct {
	store  Store
	prefix string
}

func (p *prefixed) Get(ctx context.Context, key string) (Object, error) {
	if err := ValidateKey(key); err != nil { // with the prefix, "" would become a directory
		return Object{}, err
	}
	obj, err := p.store.Get(ctx, p.prefix+key)
	if err == nil {
		obj.Key = key
	}
	return obj, err
}

func (p *prefixed) Put(ctx context.Context, key string, body []byte, cond Condition) (Token, error) {
	if err := ValidatePut(key, cond); err != nil {
		return "", err
	}
	return p.store.Put(ctx, p.prefix+key, body, cond)
}

func (p *prefixed) Delete(ctx context.Context, key string) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	return p.store.Delete(ctx, p.prefix+key)
}

func (p *prefixed) List(ctx context.Context, prefix string) ([]Entry, error) {
	entries, err := p.store.List(ctx, p.prefix+prefix)
	for i := range entries {
		entries[i].Key = strings.TrimPrefix(entries[i].Key, p.prefix)
	}
	return entries, err
}

// WithTimeout bounds each call on store. request is the limit of a get, put or delete; list is the limit of a whole
// listing with all its pages. A Put that exceeds its limit returns ErrIndeterminate, like a Put whose context ended.
func WithTimeout(store Store, request, list time.Duration) Store {
	return WithTimeouts(store, func() (time.Duration, time.Duration) { return request, list })
}

// WithTimeouts is WithTimeout with variable limits. It calls the function "timeouts" before each call on store.
func WithTimeouts(store Store, timeouts func() (request, list time.Duration)) Store {
	return &intercepted{store, func(ctx context.Context, op, _ string, call func(context.Context) error) error {
		limit, list := timeouts()
		if op == opList {
			limit = list
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return call(ctx)
	}}
}

// The names of a Store's calls, as errors show them.
const (
	opGet    = "get"
	opPut    = "put"
	opDelete = "delete"
	opList   = "list"
)

// intercepted is a Store that forwards every call to another Store. The function intercept makes these calls.
type intercepted struct {
	store     Store
	intercept func(ctx context.Context, op, key string, call func(context.Context) error) error
}

func (i *intercepted) Get(ctx context.Context, key string) (obj Object, err error) {
	err = i.intercept(ctx, opGet, key, func(ctx context.Context) (err error) {
		obj, err = i.store.Get(ctx, key)
		return err
	})
	return obj, err
}

func (i *intercepted) Put(ctx context.Context, key string, body []byte, cond Condition) (token Token, err error) {
	err = i.intercept(ctx, opPut, key, func(ctx context.Context) (err error) {
		token, err = i.store.Put(ctx, key, body, cond)
		return err
	})
	return token, err
}

func (i *intercepted) Delete(ctx context.Context, key string) error {
	return i.intercept(ctx, opDelete, key, func(ctx context.Context) error { return i.store.Delete(ctx, key) })
}

func (i *intercepted) List(ctx context.Context, prefix string) (entries []Entry, err error) {
	err = i.intercept(ctx, opList, prefix, func(ctx context.Context) (err error) {
		entries, err = i.store.List(ctx, prefix)
		return err
	})
	return entries, err
}

// WithObserver calls the function "observe" after each call on store, with the call's duration and error. observe must
// not block. op is get, put, delete or list. A list is one call, regardless of its pages.
func WithObserver(store Store, observe func(op string, took time.Duration, err error)) Store {
	return &intercepted{store, func(ctx context.Context, op, _ string, call func(context.Context) error) error {
		began := time.Now()
		err := call(ctx)
		observe(op, time.Since(began), err)
		return err
	}}
}

// WithLimit bounds the number of concurrent calls on store. A call over the limit waits until another call ends. If the
// ctx of the waiting call ends first, nothing was sent, and the call returns the error of ctx.
func WithLimit(store Store, calls int) Store {
	turns := make(chan struct{}, calls) // holds one element for each call in progress
	return &intercepted{store, func(ctx context.Context, op, key string, call func(context.Context) error) error {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("%s %q: wait for other requests: %w", op, key, ctx.Err())
		}
		defer func() { <-turns }()
		return call(ctx)
	}}
}
