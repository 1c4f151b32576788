package sim

import (
	"context"
	"time"
)

// scope is a context without goroutines: its end wakes, in order and in events of their own, the tasks that wait in it.
type scope struct {
	parent  context.Context
	upward  *waiter // at the parent
	err     error
	done    chan struct{}
	waiters waiter // ring
}

// waiter is told of a scope's end, unless it is forgotten before.
type waiter struct {
	prev, next *waiter
	tell       func()
}

type scopeKey struct{}

// newScope returns a scope that ends with its parent, or by cancel.
func newScope(parent context.Context) *scope {
	c := &scope{parent: parent}
	c.waiters.prev, c.waiters.next = &c.waiters, &c.waiters
	if err := parent.Err(); err != nil {
		c.err = err
		return c
	}
	c.upward = scopeOf(parent).await(c.cancel)
	return c
}

// scopeOf returns the scope that ctx is derived from, nil for none.
func scopeOf(ctx context.Context) *scope {
	c, _ := ctx.Value(scopeKey{}).(*scope)
	return c
}

// await has tell called at the end of the scope. A nil scope never ends.
func (c *scope) await(tell func()) *waiter {
	if c == nil {
		return nil
	}
	w := &waiter{tell: tell, prev: c.waiters.prev, next: &c.waiters}
	w.prev.next, w.next.prev = w, w
	return w
}

func (w *waiter) forget() {
	if w != nil && w.next != nil {
		w.prev.next, w.next.prev = w.next, w.prev
		w.next = nil
	}
}

func (c *scope) cancel() {
	if c.err != nil {
		return
	}
	c.err = context.Canceled
	c.upward.forget()
	if c.done != nil {
		close(c.done)
	}
	for c.waiters.next != &c.waiters {
		w := c.waiters.next
		w.forget()
		w.tell()
	}
}

// Deadline implements context.Context: there is none.
func (c *scope) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (c *scope) Done() <-chan struct{} {
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *scope) Err() error { return c.err }

// Value implements context.Context.
func (c *scope) Value(key any) any {
	if key == (scopeKey{}) {
		return c
	}
	return c.parent.Value(key)
}

// AfterFunc lets contexts of the standard library be derived from a scope without a goroutine (see context.AfterFunc).
func (c *scope) AfterFunc(fn func()) (stop func() bool) {
	if c.err != nil {
		fn()
		return func() bool { return false }
	}
	w := c.await(fn)
	return func() bool {
		held := w.next != nil
		w.forget()
		return held
	}
}
