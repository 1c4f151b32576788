// Package tasks owns the edge between straight-line code and whatever runs it: the clock, sleeping, starting work,
// randomness.
//
// Code written against [Env] runs unchanged on goroutines and the machine's clock, or as coroutines in a simulator's
// single-threaded, seeded world. For that it must start work only through Env, hold no lock across a call that may
// block, and take its time-outs from Env as well.
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
	// Now is the wall clock, for ages and deadlines; leases have a clock of their own.
	Now func() time.Time
	// Sleep waits for d or until ctx ends, whose error it then returns.
	Sleep func(ctx context.Context, d time.Duration) error
	// Go starts fn. The name is for people.
	Go func(name string, fn func())
	// ForEach calls fn for 0..n-1, at most limit at a time, and returns the first error after all that were started
	// have ended.
	ForEach func(ctx context.Context, n, limit int, fn func(ctx context.Context, i int) error) error
	// Rand yields unpredictable bytes.
	Rand io.Reader
}

// Real runs tasks on goroutines and the machine's clock. Wait blocks until no task started through the Env runs; one
// that is started while it waits, by somebody who has not heard of the end yet, is waited for as well.
func Real() (env Env, wait func()) {
	var mu sync.Mutex // not a WaitGroup: that one forbids a start while it waits
	ended := sync.NewCond(&mu)
	running := 0
	return Env{
			Now:   time.Now,
			Sleep: sleep,
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
			ForEach: forEach,
			Rand:    rand.Reader,
		}, func() {
			mu.Lock()
			defer mu.Unlock()
			for running > 0 {
				ended.Wait()
			}
		}
}

func sleep(ctx context.Context, d time.Duration) error {
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

func forEach(ctx context.Context, n, limit int, fn func(ctx context.Context, i int) error) error {
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

// Run runs daemons side by side until ctx ends or one of them returns; the first error ends the rest and is returned. A
// daemon that returns nil before ctx ends ends the others too: a daemon has no business returning.
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
