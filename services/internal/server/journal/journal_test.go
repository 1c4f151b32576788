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
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/journal"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// testJournal is a journal of one term that runs until stop is called.
type testJournal struct {
	*journal.Journal
	t     *testing.T
	store *mem.Store
	stop  func()
	end   context.CancelCauseFunc // ends the leadership, and does not wait
}

// start runs the journal of a term with an empty SQLite file. Call it in a bubble of synctest.
func start(t *testing.T, store *mem.Store, term uint64) *testJournal {
	t.Helper()
	c, err := localdb.Open(t.Context(), localdb.Path(filepath.Join(t.TempDir(), fmt.Sprint(term))))
	if err != nil {
		t.Fatal(err)
	}
	j := journal.New(journal.Options{Shard: "a", Term: term, Store: store, DB: c,
		Retention: func() time.Duration { return 30 * 24 * time.Hour }, Now: time.Now,
		Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel(nil)
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
	return &testJournal{j, t, store, stop, cancel}
}

// messages returns the messages of stored events.
func (j *testJournal) messages(q localdb.EventQuery) string {
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
		if have := j.messages(localdb.EventQuery{}); have != "0 1 2 3 4 5 6 7 8 9" {
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
				faults = 2
				j.Record(event("c")) // no other event comes that would wake the journal
				time.Sleep(3 * time.Minute)
				if have := parts(t, store); have != "a | b | c" {
					t.Errorf("parts %q, want a, b and c", have)
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
		for range 2 { // the second call has nothing to do
			if err := next.Restore(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		next.Record(event("now"))
		time.Sleep(time.Second)
		if have := next.messages(localdb.EventQuery{}); have != "yesterday today ended now" {
			t.Errorf("events %q, want those of yesterday, today and now", have)
		}
	})
}

// TestRestoreReadsTheNewest checks that a leader reads the newest parts first, until its file is full. If it cannot
// read the list or is stopped, Restore fails.
func TestRestoreReadsTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gets, fault := 0, mem.Fault{}
		store := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
			if r.Op == mem.Get {
				gets++
			}
			if r.Op == mem.Put {
				return mem.Fault{}
			}
			return fault
		}})
		now := time.Now()
		const each = 5000 // two parts fill the file
		for part := range uint64(3) {
			var events []record.Event
			for n := range uint64(each) {
				e := event("x")
				e.At, e.Term, e.Sequence = now, 3, part*each+n+1
				events = append(events, e)
			}
			body, err := record.EncodeEvents(events)
			if err == nil {
				_, err = store.Put(t.Context(), keys.Journal("a", now, 3, part*each+1), body, objstore.IfAbsent())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		j := start(t, store, 4)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := j.Restore(ended); err == nil {
			t.Error("restored with a context that has ended")
		}
		fault = mem.Fault{Err: errors.New("503")}
		if err := j.Restore(t.Context()); err == nil {
			t.Error("restored without a list")
		}
		gets, fault = 0, mem.Fault{}
		if err := j.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		have, err := j.List(t.Context(), localdb.EventQuery{Limit: 100_000})
		if err != nil || gets != 2 || len(have) != 2*each || have[0].Sequence != each+1 {
			t.Errorf("%d events from %d parts, %v", len(have), gets, err)
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
		foreign := keys.JournalPrefix("a") + "notes.txt" // an object that no server wrote
		if _, err := store.Put(t.Context(), foreign, nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		j := start(t, store, 3)
		j.Record(event("first"))
		time.Sleep(20 * 24 * time.Hour)
		j.Record(event("second"))
		time.Sleep(12 * 24 * time.Hour)
		j.Record(event("third"))
		time.Sleep(time.Minute)
		if _, err := store.Get(t.Context(), foreign); err != nil {
			t.Errorf("an object that is not a part: %v", err)
		}
		if err := store.Delete(t.Context(), foreign); err != nil {
			t.Fatal(err)
		}
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
		have := j.messages(localdb.EventQuery{Kinds: []record.EventKind{record.EventLost}})
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

// TestListParts lists the parts of a day. They come in the order of terms, whatever the leaders' clocks said, and other
// objects are skipped.
func TestListParts(t *testing.T) {
	store, day := mem.New(), time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	for _, key := range []string{
		keys.Journal("a", day.Add(time.Hour), 4, 1), keys.Journal("a", day.Add(2*time.Hour), 3, 9),
		keys.Journal("a", day.Add(3*time.Hour), 3, 1), keys.Journal("a", day.Add(-time.Second), 2, 1),
		keys.Journal("a", day.Add(24*time.Hour), 5, 1), keys.Journal("b", day, 1, 1),
		keys.JournalDayPrefix("a", day) + "notes.txt",
	} {
		if _, err := store.Put(t.Context(), key, []byte("x"), objstore.Always()); err != nil {
			t.Fatal(err)
		}
	}
	parts, err := journal.ListParts(t.Context(), store, "a", day)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, part := range parts {
		got = append(got, fmt.Sprint(part.Term, ".", part.First))
	}
	if text := strings.Join(got, " "); text != "3.1 3.9 4.1" {
		t.Errorf("parts %s", text)
	}
}

// TestPartOfAnotherTerm reads a part with an event of another term than the part's key. It is refused whole.
func TestPartOfAnotherTerm(t *testing.T) {
	store := mem.New()
	own, other := event("own"), event("other")
	own.At, other.At = time.Now(), time.Now()
	own.Term, own.Sequence, other.Term, other.Sequence = 4, 1, 5, 2
	for name, events := range map[string][]record.Event{"last": {own, other}, "only": {other}} {
		body, err := record.EncodeEvents(events)
		if err != nil {
			t.Fatal(err)
		}
		key := keys.Journal("a", own.At, 4, 1)
		if _, err := store.Put(t.Context(), key, body, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		part, err := keys.Parse(key)
		if err != nil {
			t.Fatal(err)
		}
		if read, err := journal.ReadPart(t.Context(), store, part); err == nil || !strings.Contains(err.Error(),
			"term 5") {
			t.Errorf("%s: read %v, %v", name, read, err)
		}
	}
}

// TestLeaderEnded checks what the last event of a term says about the end of the leadership.
func TestLeaderEnded(t *testing.T) {
	for name, test := range map[string]struct {
		cause error
		want  string
	}{
		"stopped": {nil, ""},
		"lost":    {errors.New("the lock has another owner"), "the lock has another owner"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := start(t, mem.New(), 3)
				j.end(test.cause)
				j.stop()
				events, err := j.List(t.Context(), localdb.EventQuery{Limit: 10})
				if err != nil || len(events) != 1 || events[0].Kind != record.EventLeaderEnded ||
					events[0].Actor != "leader" || events[0].Message != test.want {
					t.Errorf("events %+v, %v, want one that says %q", events, err, test.want)
				}
			})
		})
	}
}
