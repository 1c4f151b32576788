package lastknown

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Parts lists the parts of a shard's journal, from the oldest to the newest.
func Parts(ctx context.Context, bucket objstore.Store, shard string) (parts []keys.Key, err error) {
	entries, err := bucket.List(ctx, keys.JournalPrefix(shard))
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if key, err := keys.Parse(entry.Key); err == nil {
			parts = append(parts, key)
		}
	}
	slices.SortFunc(parts, func(a, b keys.Key) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Term, b.Term), cmp.Compare(a.First, b.First))
	})
	return parts, nil
}

// ReadPart reads a part of a journal. It returns nothing if the retention of the part ended since it was listed.
func ReadPart(ctx context.Context, bucket objstore.Store, part keys.Key) ([]record.Event, error) {
	key := keys.Journal(part.Shard, part.Time, part.Term, part.First)
	object, err := bucket.Get(ctx, key)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	events, err := record.DecodeEvents(object.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", key, errDamaged, err)
	}
	return events, nil
}

// errDamaged means that a part of a journal cannot be decoded.
var errDamaged = errors.New("damaged")

// Damaged reports whether an error of ReadPart means that the part cannot be decoded.
func Damaged(err error) bool { return errors.Is(err, errDamaged) }

// Without a time since when to read, the reader reads the last day of a journal, and stops after newestEvents events.
// With such a time it stops after maxEvents.
const (
	newestEvents, maxEvents = 1_000, 10_000
	journalDay              = 24 * time.Hour
	// atOnce is the number of parts that are read at a time.
	atOnce = 16
)

// events returns the newest events of a shard's journal that `selects` selects, from the oldest to the newest. It skips
// parts that cannot be decoded: `cluster verify` names them.
func (v *view) events(ctx context.Context, since time.Time,
	selects func(record.Event) bool) (events []record.Event, err error) {
	parts, err := Parts(ctx, v.bucket, v.shard)
	if err != nil {
		return nil, err
	}
	most := newestEvents
	if !since.IsZero() {
		most = maxEvents
	}
	for len(parts) > 0 && len(events) < most {
		batch := parts[max(0, len(parts)-atOnce):]
		parts = parts[:len(parts)-len(batch)]
		read := make([][]record.Event, len(batch))
		err := v.options.ForEach(ctx, len(batch), atOnce, func(ctx context.Context, i int) error {
			var err error
			read[i], err = ReadPart(ctx, v.bucket, batch[i])
			if errors.Is(err, errDamaged) {
				return nil
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		all := slices.Concat(read...)
		if since.IsZero() && len(all) > 0 {
			since = all[len(all)-1].At.Add(-journalDay)
		}
		wanted := slices.DeleteFunc(slices.Clone(all), func(e record.Event) bool {
			return e.At.Before(since) || !selects(e)
		})
		events = append(wanted, events...)
		if len(all) > 0 && all[0].At.Before(since) {
			break
		}
	}
	slices.SortStableFunc(events, func(a, b record.Event) int { return a.At.Compare(b.At) })
	return events[max(0, len(events)-most):], nil
}
