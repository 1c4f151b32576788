package sim

import (
	"context"
	"slices"
	"time"
)

// scope is a context without goroutines. When it ends, it wakes the tasks that wait in it, in order, each in a separate
// event.
type scope struct {
	parent  context.Context
	upward  *waiter // registered at the parent
	err     error
	done    chan struct{}
	waiters []*waiter
}

// waiter is a callback for the end of a scope. The method forget removes it.
type waiter struct {
	scope *scope
	tell  func()
}

type scopeKey struct{}

// newScope returns a scope that ends with its parent, or when cancel is called.
func newScope(parent context.Context) *scope {
	c := &scope{parent: parent}
	if err := parent.Err(); err != nil {
		c.err = err
		return c
	}
	c.upward = scopeOf(parent).await(c.cancel)
	return c
}

// scopeOf returns the scope from which ctx is derived, or nil.
func scopeOf(ctx context.Context) *scope {
	c, _ := ctx.Value(scopeKey{}).(*scope)
	return c
}

// await registers the callback tell for the end of the scope. A nil scope never ends.
func (c *scope) await(tell func()) *waiter {
	if c == nil {
		return nil
	}
	w := &waiter{c, tell}
	c.waiters = append(c.waiters, w)
	return w
}

// forget removes the callback. It reports whether the callback was still registered.
func (w *waiter) forget() bool {
	if w == nil {
		return false
	}
	at := slices.Index(w.scope.waiters, w)
	if at >= 0 {
		w.scope.waiters = slices.Delete(w.scope.waiters, at, at+1)
	}
	return at >= 0
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
	for len(c.waiters) > 0 {
		w := c.waiters[0]
		w.forget()
		w.tell()
	}
}

// Deadline implements context.Context. A scope has no deadline.
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

// AfterFunc calls fn when the scope ends. With AfterFunc, package context can make a child of a scope without starting
// a goroutine (see context.AfterFunc).
func (c *scope) AfterFunc(fn func()) (stop func() bool) {
	if c.err != nil {
		fn()
		return func() bool { return false }
	}
	return c.await(fn).forget
}
