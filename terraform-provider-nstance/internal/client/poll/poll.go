// Package poll repeats a check of something outside the provider until the check succeeds.
//
// Invariant: a failed check does not end the wait, unless maxFailures checks in a row failed.
package poll

import (
	"context"
	"time"
)

const (
	// interval is the minimum pause between two checks. A pause is also at least four times as long as the check before
	// it.
	interval = 500 * time.Millisecond
	// maxFailures is the number of failed checks in a row after which Until gives up.
	maxFailures = 5
)

// Until calls the function look until it reports done. It returns the last error after maxFailures failures in a row,
// or the error of ctx when ctx ends.
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
