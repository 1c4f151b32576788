// Package journal keeps the history of a shard: every decision and every change is one event.
//
// Each event goes to two places. The server's SQLite file has the newest events. The bucket has all events until their
// retention is over, in parts of many events each. A new leader reads the last day back from the bucket.
//
// Invariants:
//   - Recording an event never waits: neither for the disk nor for the bucket.
//   - At most one part is written in 30 s, and none while nothing happens. A crash loses at most 30 s of the journal,
//     and never any state, because nothing depends on the journal.
package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
	"github.com/nstance-kit/nstance/services/internal/server/watch"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

const (
	// storeDelay is how long events are collected before they are stored together. Without storeDelay, a burst of
	// events would slow down the code that records the events.
	storeDelay = 100 * time.Millisecond
	// partInterval is the time from the first event of a part (an object in the bucket) until the part is written. It
	// is also the minimum time between two parts.
	partInterval = 30 * time.Second
	// putTimeout limits one request to the bucket, even at a clean stop.
	putTimeout = 5 * time.Second
	// maxQueue is the largest number of events that wait for the disk. maxUnsent is the largest number of events that
	// wait for the bucket. The journal loses events beyond these limits, and only counts them.
	maxQueue, maxUnsent = 16384, 32768
	// keepEvents is the number of events in the SQLite file. The file is trimmed after every trimEvery new events.
	keepEvents, trimEvery = 10_000, 1_000
	// restoreFor is how far back a new leader reads the journal.
	restoreFor = 24 * time.Hour
)

// Options are the dependencies of a Journal. All are required unless their comment says otherwise.
type Options struct {
	Shard string
	Term  uint64
	Store objstore.Store
	DB    *localdb.DB
	// Retention returns how long parts stay in the bucket.
	Retention func() time.Duration
	Now       func() time.Time
	Log       *slog.Logger
	// Stored, if set, is called with each batch of events after the batch is stored. The batches come in order.
	Stored func([]record.Event)
}

// Journal is the journal of one term. Its methods are safe for concurrent use.
type Journal struct {
	options Options
	hub     watch.Hub[localdb.Position, record.Event]
	wake    chan struct{} // capacity 1

	mu       sync.Mutex
	sequence uint64
	queue    []record.Event // not yet in the SQLite file
	lost     int            // events since the last event that found no place

	// unsentSince is the time of the oldest event that is not in the bucket, in Unix nanoseconds; 0 if all events are
	// there.
	unsentSince atomic.Int64
}

// New returns a journal without events. Record works before Run is called.
func New(o Options) *Journal { return &Journal{options: o, wake: make(chan struct{}, 1)} }

// Record adds an event to a queue in memory, and does not wait until the event is stored. It sets the event's term and
// sequence number. It also sets the time if the time is zero.
func (j *Journal) Record(e record.Event) {
	e.At = cmp.Or(e.At, j.options.Now())
	j.mu.Lock()
	if len(j.queue) >= maxQueue {
		j.lost++
		j.mu.Unlock()
		return
	}
	if j.lost > 0 {
		j.add(record.Event{At: e.At, Kind: record.EventLost,
			Message: fmt.Sprintf("%d events came faster than they could be stored", j.lost)})
		j.lost = 0
	}
	j.add(e)
	j.mu.Unlock()
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// Lag returns the age of the oldest event that waits for the bucket, or 0 if none waits.
func (j *Journal) Lag() time.Duration {
	since := j.unsentSince.Load()
	if since == 0 {
		return 0
	}
	return max(0, j.options.Now().Sub(time.Unix(0, since)))
}

// add queues an event. Call with mu held.
func (j *Journal) add(e record.Event) {
	j.sequence++
	e.Term, e.Sequence, e.At = j.options.Term, j.sequence, e.At.UTC().Round(0)
	j.queue = append(j.queue, e)
}

// take returns the queued events.
func (j *Journal) take() []record.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	events := j.queue
	j.queue = nil
	return events
}

// Run stores events until ctx ends, which happens when the leadership ends. Then it records the end of the leadership
// as an event, and writes the last part. It returns nil.
func (j *Journal) Run(ctx context.Context) error {
	defer j.hub.Close()
	w := &writer{Journal: j}
	var retention sync.WaitGroup
	retention.Go(func() { j.retain(ctx) })
	defer retention.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-j.wake:
			if tasks.Sleep(ctx, storeDelay) == nil {
				w.store(ctx, j.take())
			}
		case <-timer.C:
		}
		if wait, due := w.due(); due {
			timer.Reset(wait)
			if wait <= 0 && ctx.Err() == nil {
				w.write(ctx) // the timer has fired: the next round sets it again if events remain
			}
		}
	}
	ended := record.Event{Kind: record.EventLeaderEnded, Actor: "leader"}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		ended.Message = cause.Error()
	}
	j.Record(ended)
	last := context.WithoutCancel(ctx)
	w.store(last, j.take())
	for len(w.part)+len(w.unsent) > 0 && w.write(last) {
	}
	return nil
}

// writer contains the fields of a running Journal that only the goroutine of Run uses.
type writer struct {
	*Journal
	// unsent are events that no part (an object in the bucket) contains yet. part contains the events of a part whose
	// write failed or has an unknown result. These events never change, so that repeating the write is safe.
	unsent, part []record.Event
	repeated     bool // part was written before
	dropped      int
	written      time.Time // when the last write began
	untrimmed    int
}

// store puts events into the SQLite file and hands them to subscribers. If it cannot write the file, store only logs
// the error, because the events still go to the bucket.
func (w *writer) store(ctx context.Context, events []record.Event) {
	if len(events) == 0 {
		return
	}
	if err := w.options.DB.PutEvents(ctx, events); err != nil && ctx.Err() == nil {
		w.options.Log.Warn("events not stored on this machine", "events", len(events), "error", err)
	}
	for _, e := range events {
		w.hub.Publish(localdb.PositionOf(e), e)
	}
	if w.options.Stored != nil {
		w.options.Stored(events)
	}
	w.unsent = append(w.unsent, events...)
	if extra := len(w.unsent) - maxUnsent; extra > 0 {
		w.unsent, w.dropped = w.unsent[extra:], w.dropped+extra
	}
	w.setLag()
	if w.untrimmed += len(events); w.untrimmed >= trimEvery {
		w.untrimmed = 0
		if err := w.options.DB.KeepEvents(ctx, keepEvents); err != nil && ctx.Err() == nil {
			w.options.Log.Warn("old events not removed from this machine", "error", err)
		}
	}
}

// setLag stores the time of the oldest event that is not in the bucket.
func (w *writer) setLag() {
	oldest := int64(0)
	for _, waiting := range [][]record.Event{w.part, w.unsent} {
		if len(waiting) > 0 {
			oldest = waiting[0].At.UnixNano()
			break
		}
	}
	w.unsentSince.Store(oldest)
}

// due reports whether there are events to write to the bucket. If so, it also returns the time until the next write.
func (w *writer) due() (wait time.Duration, due bool) {
	from := w.written
	switch {
	case w.part != nil:
	case len(w.unsent) == 0:
		return 0, false
	case w.unsent[0].At.After(from):
		from = w.unsent[0].At
	}
	return max(0, from.Add(partInterval).Sub(w.options.Now())), true
}

// write writes one part and reports whether it succeeded. A part that failed is written again, unchanged, by the next
// call.
func (w *writer) write(ctx context.Context) (ok bool) {
	w.written = w.options.Now()
	if w.part == nil {
		n := min(len(w.unsent), record.MaxEvents)
		w.part, w.unsent = w.unsent[:n:n], w.unsent[n:]
	}
	ctx, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	if w.dropped > 0 {
		w.options.Log.Warn("events not written to the bucket, because too many waited for it", "events", w.dropped)
		w.dropped = 0
	}
	first := w.part[0]
	body, err := record.EncodeEvents(w.part)
	if err == nil {
		_, err = w.options.Store.Put(ctx, keys.Journal(w.options.Shard, first.At, first.Term, first.Sequence), body,
			objstore.IfAbsent())
	}
	switch {
	case err == nil:
	case errors.Is(err, objstore.ErrConflict) && w.repeated:
		// The bucket already has this part, because an earlier write of it has succeeded. No other server writes parts
		// of this term.
	case errors.Is(err, objstore.ErrConflict):
		// An earlier leader with the same term has written a part with the same key. That happens if the bucket was
		// restored or its lock was deleted.
		w.options.Log.Warn("part of the journal not written: the bucket has another one of the same term",
			"events", len(w.part), "error", err)
	default:
		w.options.Log.Warn("part of the journal not written: it is tried again", "events", len(w.part), "error", err)
		w.repeated = true
		return false
	}
	w.part, w.repeated = nil, false
	w.setLag()
	return true
}
