package journal_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/objstore/mem"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/cache"
	"github.com/nstance-kit/nstance/services/internal/journal"
)

// testJournal is a journal of one term that runs until stop is called.
type testJournal struct {
	*journal.Journal
	t     *testing.T
	store *mem.Store
	stop  func()
}

// start runs the journal of a term with an empty SQLite file. Call it in a bubble of synctest.
func start(t *testing.T, store *mem.Store, term uint64) *testJournal {
	t.Helper()
	c, err := cache.Open(t.Context(), cache.Path(filepath.Join(t.TempDir(), fmt.Sprint(term))))
	if err != nil {
		t.Fatal(err)
	}
	j := journal.New(journal.Options{Shard: "a", Term: term, Store: store, Cache: c,
		Retention: func() time.Duration { return 30 * 24 * time.Hour }, Now: time.Now,
		Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		stop()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &testJournal{j, t, store, stop}
}

// messages returns the messages of stored events.
func (j *testJournal) messages(q cache.EventQuery) string {
	j.t.Helper()
	q.Limit = 100_000
	events, err := j.List(j.t.Context(), q)
	if err != nil {
		j.t.Fatal(err)
	}
	return texts(events)
}

func texts(events []record.Event) string {
	var out []string
	for _, e := range events {
		if e.Kind == record.EventLeaderEnded {
			e.Message = "ended"
		}
		out = append(out, e.Message)
	}
	return strings.Join(out, " ")
}

// parts returns the messages of the events in the bucket's journal parts, with a bar between two parts.
func parts(t *testing.T, store objstore.Store) string {
	t.Helper()
	var out []string
	entries, err := store.List(t.Context(), keys.JournalPrefix("a"))
	if err != nil {
		t.Fatal(err)
	}
	var found []keys.Key
	for _, entry := range entries {
		key, err := keys.Parse(entry.Key)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, key)
	}
	slices.SortFunc(found, func(a, b keys.Key) int { return int(a.Term) - int(b.Term) + int(a.First) - int(b.First) })
	for _, key := range found {
		events, err := journal.ReadPart(t.Context(), store, key)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, texts(events))
	}
	return strings.Join(out, " | ")
}

func event(message string) record.Event {
	return record.Event{Kind: record.EventInstanceCreated, Tenant: "prod", Group: "web", Message: message}
}

// TestParts checks when events are stored: in the SQLite file within a second, and in the bucket in at most one part
// per 30 s. Without events, the journal writes nothing. A clean stop writes the remaining events.
func TestParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		puts := 0
		store := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
			if r.Op == mem.Put {
				puts++
			}
			return mem.Fault{}
		}})
		j := start(t, store, 3)
		for n := range 10 {
			j.Record(event(fmt.Sprint(n)))
			time.Sleep(time.Second)
		}
		if have := j.messages(cache.EventQuery{}); have != "0 1 2 3 4 5 6 7 8 9" {
			t.Errorf("on this machine: %q, want all ten", have)
		}
		time.Sleep(21 * time.Second)
		if have := parts(t, store); have != "0 1 2 3 4 5 6 7 8 9" {
			t.Errorf("parts after 31 s: %q, want one with all", have)
		}
		before := puts
		time.Sleep(time.Hour)
		if puts != before {
			t.Errorf("%d writes in an hour without events", puts-before)
		}
		j.Record(event("10"))
		time.Sleep(31 * time.Second)
		j.Record(event("11"))
		j.stop()
		if have := parts(t, store); have != "0 1 2 3 4 5 6 7 8 9 | 10 | 11 ended" {
			t.Errorf("parts after the stop: %q, want that with 11 too", have)
		}
	})
}

// TestUnknownResult checks that a write with an unknown result is repeated unchanged, so that no event is lost or
// written twice.
func TestUnknownResult(t *testing.T) {
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprintf("written=%v", written), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				faults := 2
				store := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
					if r.Op != mem.Put || faults == 0 {
						return mem.Fault{}
					}
					faults--
					if written {
						return mem.Fault{Lost: true}
					}
					return mem.Fault{Err: objstore.ErrIndeterminate}
				}})
				j := start(t, store, 3)
				j.Record(event("a"))
				time.Sleep(31 * time.Second)
				j.Record(event("b"))
				time.Sleep(3 * time.Minute)
				if have := parts(t, store); have != "a | b" {
					t.Errorf("parts %q, want a and b", have)
				}
			})
		})
	}
}

// TestNewLeaderReadsTheLastDay checks that a leader with an empty file reads the parts of the last day, and skips those
// that are damaged.
func TestNewLeaderReadsTheLastDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mem.New()
		j := start(t, store, 3)
		j.Record(event("long-ago"))
		time.Sleep(49 * time.Hour)
		j.Record(event("yesterday"))
		time.Sleep(20 * time.Hour)
		j.Record(event("today"))
		j.stop()
		damaged := keys.Journal("a", time.Now(), 4, 1)
		if _, err := store.Put(t.Context(), damaged, []byte("{"), objstore.Always()); err != nil {
			t.Fatal(err)
		}
		next := start(t, store, 5)
		if err := next.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		next.Record(event("now"))
		time.Sleep(time.Second)
		if have := next.messages(cache.EventQuery{}); have != "yesterday today ended now" {
			t.Errorf("events %q, want those of yesterday, today and now", have)
		}
	})
}

// TestRetention checks that parts of the journal that are older than the retention are deleted, and that younger parts
// stay. The oldest part is a year old.
func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mem.New()
		body, err := record.EncodeEvents([]record.Event{event("ancient")})
		if err == nil {
			_, err = store.Put(t.Context(), keys.Journal("a", time.Now().AddDate(-1, 0, 0), 1, 1), body,
				objstore.IfAbsent())
		}
		if err != nil {
			t.Fatal(err)
		}
		j := start(t, store, 3)
		j.Record(event("first"))
		time.Sleep(20 * 24 * time.Hour)
		j.Record(event("second"))
		time.Sleep(12 * 24 * time.Hour)
		j.Record(event("third"))
		time.Sleep(time.Minute)
		if have := parts(t, store); have != "second | third" {
			t.Errorf("parts %q, want the first deleted after 32 days", have)
		}
	})
}

// TestTooManyEvents records events faster than they can be stored. Recording must not wait, and the journal must count
// the events that it loses.
func TestTooManyEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := start(t, mem.New(), 3)
		for n := range 16384 + 5 {
			j.Record(event(fmt.Sprint(n)))
		}
		time.Sleep(time.Second)
		j.Record(event("later"))
		time.Sleep(time.Second)
		have := j.messages(cache.EventQuery{Kinds: []record.EventKind{record.EventLost}})
		if have != "5 events came faster than they could be stored" {
			t.Errorf("events about the loss: %q, want one that says 5", have)
		}
	})
}

// TestBrokenBucket records events while the bucket fails. The journal must write them when the bucket works again.
func TestBrokenBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := true
		store := mem.New(mem.Options{Inject: func(context.Context, mem.Request) mem.Fault {
			if broken {
				return mem.Fault{Err: errors.New("down")}
			}
			return mem.Fault{}
		}})
		j := start(t, store, 3)
		for n := range 4 {
			j.Record(event(fmt.Sprint(n)))
			time.Sleep(10 * time.Minute)
		}
		if lag := j.Lag(); lag != 40*time.Minute {
			t.Errorf("the journal lags %v behind, want 40m", lag)
		}
		broken = false
		time.Sleep(2 * time.Minute)
		if have := parts(t, store); have != "0 | 1 2 3" {
			t.Errorf("parts %q, want all events of the outage", have)
		}
		if lag := j.Lag(); lag != 0 {
			t.Errorf("the journal lags %v behind although all is written", lag)
		}
	})
}

// TestSubscribe checks that a subscriber gets every event once, in order.
func TestSubscribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := start(t, mem.New(), 3)
		sub := j.Subscribe(100)
		for n := range 3 {
			j.Record(event(fmt.Sprint(n)))
		}
		for n := range 3 {
			e, err := sub.Next(t.Context())
			if err != nil || e.Message != fmt.Sprint(n) || e.Sequence != uint64(n+1) || e.Term != 3 {
				t.Errorf("event %d: %+v, %v", n, e, err)
			}
		}
	})
}
