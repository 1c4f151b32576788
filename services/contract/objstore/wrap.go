package objstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// WithPrefix returns a view of store in which every key lies under prefix and a slash. It trims slashes around prefix.
// An empty prefix returns store itself. Errors name the full key.
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

// WithTimeout bounds each call on store. The limit request applies to get, put and delete, and list applies to a whole
// listing with all its pages. A Put that exceeds its limit is ErrIndeterminate, as after any other ended context.
func WithTimeout(store Store, request, list time.Duration) Store {
	return WithTimeouts(store, func() (time.Duration, time.Duration) { return request, list })
}

// WithTimeouts is WithTimeout with variable limits. It calls timeouts before each call on store.
func WithTimeouts(store Store, timeouts func() (request, list time.Duration)) Store {
	return &bounded{store: store, timeouts: timeouts}
}

type bounded struct {
	store    Store
	timeouts func() (request, list time.Duration)
}

func (b *bounded) request(ctx context.Context) (context.Context, context.CancelFunc) {
	request, _ := b.timeouts()
	return context.WithTimeout(ctx, request)
}

func (b *bounded) Get(ctx context.Context, key string) (Object, error) {
	ctx, cancel := b.request(ctx)
	defer cancel()
	return b.store.Get(ctx, key)
}

func (b *bounded) Put(ctx context.Context, key string, body []byte, cond Condition) (Token, error) {
	ctx, cancel := b.request(ctx)
	defer cancel()
	return b.store.Put(ctx, key, body, cond)
}

func (b *bounded) Delete(ctx context.Context, key string) error {
	ctx, cancel := b.request(ctx)
	defer cancel()
	return b.store.Delete(ctx, key)
}

func (b *bounded) List(ctx context.Context, prefix string) ([]Entry, error) {
	_, list := b.timeouts()
	ctx, cancel := context.WithTimeout(ctx, list)
	defer cancel()
	return b.store.List(ctx, prefix)
}

// Counts are numbers of calls, including failed calls. A List is one call, regardless of its pages.
type Counts struct {
	Get, Put, Delete, List uint64
	// Failed counts the calls that returned an error, except ErrNotFound from Get and ErrConflict from Put.
	Failed uint64
}

// Total returns the number of all calls.
func (c Counts) Total() uint64 { return c.Get + c.Put + c.Delete + c.List }

// Sub returns the number of calls since an earlier reading.
func (c Counts) Sub(earlier Counts) Counts {
	return Counts{
		Get:    c.Get - earlier.Get,
		Put:    c.Put - earlier.Put,
		Delete: c.Delete - earlier.Delete,
		List:   c.List - earlier.List,
		Failed: c.Failed - earlier.Failed,
	}
}

// Counted is a Store that counts the calls to another store, for metrics and benchmarks.
type Counted struct {
	store                          Store
	get, put, remove, list, failed atomic.Uint64
}

// NewCounted wraps store.
func NewCounted(store Store) *Counted { return &Counted{store: store} }

// Counts reads the counters one after the other. Calls in progress may be included in some counters and not in others.
func (c *Counted) Counts() Counts {
	return Counts{Get: c.get.Load(), Put: c.put.Load(), Delete: c.remove.Load(), List: c.list.Load(),
		Failed: c.failed.Load()}
}

func (c *Counted) note(counter *atomic.Uint64, err error, answer error) {
	counter.Add(1)
	if err != nil && (answer == nil || !errors.Is(err, answer)) {
		c.failed.Add(1)
	}
}

// Get implements Store.
func (c *Counted) Get(ctx context.Context, key string) (Object, error) {
	obj, err := c.store.Get(ctx, key)
	c.note(&c.get, err, ErrNotFound)
	return obj, err
}

// Put implements Store.
func (c *Counted) Put(ctx context.Context, key string, body []byte, cond Condition) (Token, error) {
	token, err := c.store.Put(ctx, key, body, cond)
	c.note(&c.put, err, ErrConflict)
	return token, err
}

// Delete implements Store.
func (c *Counted) Delete(ctx context.Context, key string) error {
	err := c.store.Delete(ctx, key)
	c.note(&c.remove, err, nil)
	return err
}

// List implements Store.
func (c *Counted) List(ctx context.Context, prefix string) ([]Entry, error) {
	entries, err := c.store.List(ctx, prefix)
	c.note(&c.list, err, nil)
	return entries, err
}

// WithLimit bounds the number of concurrent calls on store. Other calls wait until their ctx ends. If ctx ends first,
// nothing was sent, and the error is that of ctx.
func WithLimit(store Store, calls int) Store {
	return &limited{store: store, turns: make(chan struct{}, calls)}
}

type limited struct {
	store Store
	turns chan struct{} // holds one element for each call in progress
}

// begin waits for a slot in turns. After a nil error the caller must receive from turns at the end of the call.
func (l *limited) begin(ctx context.Context, call, key string) error {
	select {
	case l.turns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s %q: wait for other requests: %w", call, key, ctx.Err())
	}
}

func (l *limited) Get(ctx context.Context, key string) (Object, error) {
	if err := l.begin(ctx, "get", key); err != nil {
		return Object{}, err
	}
	defer func() { <-l.turns }()
	return l.store.Get(ctx, key)
}

func (l *limited) Put(ctx context.Context, key string, body []byte, cond Condition) (Token, error) {
	if err := l.begin(ctx, "put", key); err != nil {
		return "", err
	}
	defer func() { <-l.turns }()
	return l.store.Put(ctx, key, body, cond)
}

func (l *limited) Delete(ctx context.Context, key string) error {
	if err := l.begin(ctx, "delete", key); err != nil {
		return err
	}
	defer func() { <-l.turns }()
	return l.store.Delete(ctx, key)
}

func (l *limited) List(ctx context.Context, prefix string) ([]Entry, error) {
	if err := l.begin(ctx, "list", prefix); err != nil {
		return nil, err
	}
	defer func() { <-l.turns }()
	return l.store.List(ctx, prefix)
}
