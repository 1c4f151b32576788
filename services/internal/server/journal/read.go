package journal

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
	"github.com/nstance-kit/nstance/services/internal/server/watch"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// List returns the events in the SQLite file that match a query, from the oldest to the newest. Events of the last
// moments may be missing.
func (j *Journal) List(ctx context.Context, q localdb.EventQuery) ([]record.Event, error) {
	return j.options.DB.Events(ctx, q)
}

// KeepScaling stores by what a group is scaled. The point stays on this machine for a day, and does not go to the
// bucket.
func (j *Journal) KeepScaling(ctx context.Context, point localdb.ScalingPoint) error {
	return j.options.DB.PutScaling(ctx, j.options.Now(), point)
}

// Scaling returns the points of a group that this machine has stored within the last day, from the oldest to the
// newest.
func (j *Journal) Scaling(ctx context.Context, group config.GroupKey) ([]localdb.ScalingPoint, error) {
	return j.options.DB.Scaling(ctx, group, j.options.Now())
}

// Subscribe returns a queue of the events that are stored from now on. If more than limit events wait in the queue, the
// queue ends with watch.ErrSlow.
func (j *Journal) Subscribe(limit int) *watch.Subscription[localdb.Position, record.Event] {
	return j.hub.Subscribe(limit, nil)
}

// Restore copies the events of the last day from the bucket into the SQLite file. It reads the newest parts first, and
// stops when it has read keepEvents events. It skips parts that the file already has. It logs and skips parts that
// cannot be read.
func (j *Journal) Restore(ctx context.Context) error {
	now := j.options.Now()
	var parts []keys.Key
	for _, day := range []time.Time{now.Add(-restoreFor), now} {
		found, err := ListParts(ctx, j.options.Store, j.options.Shard, day)
		if err != nil {
			return err
		}
		parts = append(parts, found...)
	}
	slices.SortFunc(parts, comparePositions)
	restored := 0
	for _, part := range slices.Backward(parts) {
		if restored >= keepEvents {
			break
		}
		has, err := j.options.DB.HasEvent(ctx, localdb.Position{Term: part.Term, Sequence: part.First})
		if err != nil {
			return err
		}
		if has {
			continue
		}
		events, err := ReadPart(ctx, j.options.Store, part)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			j.options.Log.Warn("part of the journal not read", "error", err)
			continue
		}
		if err := j.options.DB.PutEvents(ctx, events); err != nil {
			return err
		}
		restored += len(events)
	}
	return nil
}

func comparePositions(a, b keys.Key) int {
	return cmp.Or(cmp.Compare(a.Term, b.Term), cmp.Compare(a.First, b.First))
}

// ListParts lists the parts of a shard's journal whose first event happened on the given day (UTC), from the oldest to
// the newest. It skips other objects.
func ListParts(ctx context.Context, store objstore.Store, shard string, day time.Time) ([]keys.Key, error) {
	entries, err := store.List(ctx, keys.JournalDayPrefix(shard, day))
	if err != nil {
		return nil, fmt.Errorf("list the journal: %w", err)
	}
	var parts []keys.Key
	for _, entry := range entries {
		if key, err := keys.Parse(entry.Key); err == nil {
			parts = append(parts, key)
		}
	}
	slices.SortFunc(parts, comparePositions)
	return parts, nil
}

// ReadPart reads one part of a journal. It fails if an event has another term than the part.
func ReadPart(ctx context.Context, store objstore.Store, part keys.Key) ([]record.Event, error) {
	key := keys.Journal(part.Shard, part.Time, part.Term, part.First)
	object, err := store.Get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	events, err := record.DecodeEvents(object.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	for _, e := range events {
		if e.Term != part.Term {
			return nil, fmt.Errorf("%s: it has an event of term %d", key, e.Term)
		}
	}
	return events, nil
}
