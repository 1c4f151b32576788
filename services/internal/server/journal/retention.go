package journal

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

const (
	day = 24 * time.Hour
	// retainRetry is the time between two attempts to delete old parts.
	retainRetry = 10 * time.Minute
	// deletions is the number of parts that are deleted at the same time.
	deletions = 16
)

// retain deletes the parts of all days that are older than the retention: when the term begins, and then once a day. It
// tries again until all of them are deleted. It returns when ctx ends.
func (j *Journal) retain(ctx context.Context) {
	var done time.Time // all parts of earlier days are deleted
	for wait := time.Minute; tasks.Sleep(ctx, wait) == nil; {
		now := j.options.Now()
		oldest := now.Add(-j.options.Retention()).UTC().Truncate(day)
		if err := j.deleteBetween(ctx, done, oldest); err != nil {
			if ctx.Err() == nil {
				j.options.Log.Warn("old parts of the journal not deleted: it is tried again", "error", err)
			}
			wait = retainRetry
			continue
		}
		done = oldest
		wait = now.UTC().Truncate(day).Add(day).Sub(now)
	}
}

// deleteBetween deletes the parts of the days from the first day up to, but not including, the last. Without a first
// day, it lists the whole journal, because a server that did not lead for long does not know the oldest day.
func (j *Journal) deleteBetween(ctx context.Context, first, last time.Time) error {
	if first.IsZero() {
		return j.deleteBefore(ctx, keys.JournalPrefix(j.options.Shard), last)
	}
	for ; first.Before(last); first = first.Add(day) {
		if err := j.deleteBefore(ctx, keys.JournalDayPrefix(j.options.Shard, first), last); err != nil {
			return err
		}
	}
	return nil
}

// deleteBefore deletes the parts below a prefix whose day is before the given one.
func (j *Journal) deleteBefore(ctx context.Context, prefix string, before time.Time) error {
	parts, err := j.options.Store.List(ctx, prefix)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(deletions)
	for _, part := range parts {
		if key, err := keys.Parse(part.Key); err == nil && key.Time.Before(before) && ctx.Err() == nil {
			group.Go(func() error {
				ctx, cancel := context.WithTimeout(ctx, putTimeout)
				defer cancel()
				return j.options.Store.Delete(ctx, part.Key)
			})
		}
	}
	return group.Wait()
}
