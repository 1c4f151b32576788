package secretstore

import (
	"context"
	"sync"
	"time"
)

// Cached returns a view of store that answers Get from memory for ttl after a secret was read. It caches neither
// missing secrets nor errors. Put and Delete through the view take effect in it immediately. If ttl is not positive,
// Cached returns store itself.
func Cached(store Store, ttl time.Duration, now func() time.Time) Store {
	if ttl <= 0 {
		return store
	}
	return &cache{store: store, ttl: ttl, now: now, entries: map[string]cached{}}
}

type cache struct {
	store Store
	ttl   time.Duration
	now   func() time.Time

	mu      sync.Mutex
	entries map[string]cached
	changes uint64 // Puts and Deletes started or ended; a Get that overlaps one is not cached
}

type cached struct {
	secret Secret
	until  time.Time
}

func (c *cache) Get(ctx context.Context, name string) (Secret, error) {
	now := c.now()
	c.mu.Lock()
	entry, ok := c.entries[name]
	changes := c.changes
	c.mu.Unlock()
	if ok && now.Before(entry.until) {
		return entry.secret, nil
	}
	secret, err := c.store.Get(ctx, name)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		delete(c.entries, name)
		return Secret{}, err
	case c.changes == changes:
		c.entries[name] = cached{secret, now.Add(c.ttl)}
	}
	return secret, nil
}

func (c *cache) Put(ctx context.Context, name string, value Value, cond Condition) error {
	c.forget(name)
	defer c.forget(name)
	return c.store.Put(ctx, name, value, cond)
}

func (c *cache) Delete(ctx context.Context, name string) error {
	c.forget(name)
	defer c.forget(name)
	return c.store.Delete(ctx, name)
}

func (c *cache) List(ctx context.Context) ([]string, error) { return c.store.List(ctx) }

func (c *cache) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, name)
	c.changes++
}
