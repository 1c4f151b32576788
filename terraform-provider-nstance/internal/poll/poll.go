// Package poll owns how the provider waits for what others do.
//
// Invariant: a look that fails now and then is no reason to give up; one that keeps failing is.
package poll

import (
	"context"
	"time"
)

const (
	// interval is the time between two looks; a look that takes long makes it longer.
	interval = 500 * time.Millisecond
	// maxFailures is how many looks in a row may fail.
	maxFailures = 5
)

// Until calls look until it is done, or has failed often, or the context ends, whose error it then returns.
func Until(ctx context.Context, look func(context.Context) (done bool, err error)) error {
	failures := 0
	for {
		start := time.Now()
		done, err := look(ctx)
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			failures = 0
		case ctx.Err() == nil:
			if failures++; failures == maxFailures {
				return err
			}
		}
		timer := time.NewTimer(max(interval, 4*time.Since(start)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}
