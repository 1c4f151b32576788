// Package tasks separates code from the environment that runs it: clock, sleeping, starting tasks, randomness.
//
// Code that uses [Env] runs unchanged in two environments: on goroutines and the system clock, or as coroutines in a
// single-threaded, seeded simulator. For that, the code must start tasks and get timeouts only through Env. It must not
// hold a lock during a call that may block.
package tasks

import (
	"context"
	"crypto/rand"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Env runs tasks. All functions are safe for concurrent use.
type Env struct {
	// Now returns the wall clock time, for ages and deadlines. Leases use another clock.
	Now func() time.Time
	// Sleep waits for d, or until ctx ends. If ctx ends first, Sleep returns the error of ctx.
	Sleep func(ctx context.Context, d time.Duration) error
	// Go starts fn. The name is for display only.
	Go func(name string, fn func())
	// ForEach calls fn for 0 to n-1, with at most `limit` calls at a time. It returns the first error after all started
	// calls have ended.
	ForEach func(ctx context.Context, n, limit int, fn func(ctx context.Context, i int) error) error
	// Rand is a source of cryptographically secure random bytes.
	Rand io.Reader
}

// Real returns an Env that runs tasks on goroutines and the system clock. The function wait blocks until no task of
// this Env runs. It also waits for tasks that start in the meantime.
func Real() (env Env, wait func()) {
	var mu sync.Mutex // not a WaitGroup, which forbids Add while Wait runs with a zero counter
	ended := sync.NewCond(&mu)
	running := 0
	return Env{
			Now:   time.Now,
			Sleep: Sleep,
			Go: func(_ string, fn func()) {
				mu.Lock()
				running++
				mu.Unlock()
				go func() {
					defer func() {
						mu.Lock()
						running--
						mu.Unlock()
						ended.Broadcast()
					}()
					fn()
				}()
			},
			ForEach: ForEach,
			Rand:    rand.Reader,
		}, func() {
			mu.Lock()
			defer mu.Unlock()
			for running > 0 {
				ended.Wait()
			}
		}
}

// Sleep waits for d, or until ctx ends. If ctx ends first, Sleep returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// ForEach implements [Env].ForEach.
func ForEach(ctx context.Context, n, limit int, fn func(ctx context.Context, i int) error) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(limit)
	for i := range n {
		if inner.Err() != nil {
			break
		}
		group.Go(func() error { return fn(inner, i) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// Run runs daemons in parallel until ctx ends or one of them returns, even with a nil error. Then it ends the others
// and returns the first error.
func Run(ctx context.Context, daemons ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for _, daemon := range daemons {
		group.Go(func() error {
			defer cancel()
			return daemon(ctx)
		})
	}
	return group.Wait()
}
