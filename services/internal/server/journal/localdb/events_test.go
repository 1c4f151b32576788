package localdb

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// TestEvents checks each field of a query, and the order of the answer. It also checks that an event is stored once
// even if it is put twice.
func TestEvents(t *testing.T) {
	ctx := context.Background()
	c := open(t, Path(t.TempDir()))
	events := []record.Event{
		{Term: 10, Sequence: 1, At: noon.Add(2 * time.Minute), Kind: "b", Message: "4"},
		{Term: 9, Sequence: 1, At: noon, Kind: "a", Tenant: "prod", Group: "web", Instance: "i1", Message: "1"},
		{Term: 9, Sequence: 2, At: noon.Add(time.Minute), Kind: "a", Tenant: "dev", Group: "web", Message: "2"},
		{Term: 9, Sequence: 10, At: noon.Add(time.Minute), Kind: "b", Tenant: "prod", Group: "db", Cause: "gone",
			Message: "3"},
	}
	for range 2 {
		if err := c.PutEvents(ctx, events); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		query EventQuery
		want  string
	}{
		{EventQuery{}, "1 2 3 4"},
		{EventQuery{Limit: 2}, "1 2"},
		{EventQuery{After: Position{9, 2}}, "3 4"},
		{EventQuery{After: Position{10, 0}}, "4"},
		{EventQuery{Tenant: "prod"}, "1 3 4"},
		{EventQuery{Tenant: "prod", Group: "web"}, "1"},
		{EventQuery{Instance: "i1"}, "1"},
		{EventQuery{Kinds: []record.EventKind{"b", "c"}}, "3 4"},
		{EventQuery{Cause: "gone"}, "3"},
		{EventQuery{Since: noon.Add(time.Minute), Until: noon.Add(2 * time.Minute)}, "2 3"},
	} {
		if test.query.Limit == 0 {
			test.query.Limit = 100
		}
		found, err := c.Events(ctx, test.query)
		if have := messages(found); err != nil || have != test.want {
			t.Errorf("%+v: %q, %v, want %q", test.query, have, err, test.want)
		}
	}
	if has, err := c.HasEvent(ctx, Position{9, 10}); err != nil || !has {
		t.Errorf("has a stored event: %v, %v", has, err)
	}
	if has, err := c.HasEvent(ctx, Position{9, 3}); err != nil || has {
		t.Errorf("has an event that was not stored: %v, %v", has, err)
	}
	if err := c.KeepEvents(ctx, 2); err != nil {
		t.Fatal(err)
	}
	if found, err := c.Events(ctx, EventQuery{Limit: 10}); err != nil || messages(found) != "3 4" {
		t.Errorf("after keeping two: %q, %v", messages(found), err)
	}
	if err := c.KeepEvents(ctx, 2); err != nil {
		t.Errorf("keeping as many as there are: %v", err)
	}
}

func messages(events []record.Event) string {
	var out []string
	for _, e := range events {
		out = append(out, e.Message)
	}
	return strings.Join(out, " ")
}

// BenchmarkEventsOfInstance lists the events of one instance among a million.
func BenchmarkEventsOfInstance(b *testing.B) {
	ctx := context.Background()
	c := open(b, Path(b.TempDir()))
	const all, perInstance = 1_000_000, 10
	batch := make([]record.Event, 10_000)
	for n := 0; n < all; n += len(batch) {
		for i := range batch {
			number := n + i
			batch[i] = record.Event{Term: 7, Sequence: uint64(number + 1), At: noon.Add(time.Duration(number)),
				Kind:   "a",
				Tenant: "prod", Group: "web", Instance: fmt.Sprint(number % (all / perInstance)),
				Message: "something happened"}
		}
		if err := c.PutEvents(ctx, batch); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		found, err := c.Events(ctx, EventQuery{Tenant: "prod", Instance: "4711", Limit: 1000})
		if err != nil || len(found) != perInstance {
			b.Fatalf("%d events, %v", len(found), err)
		}
	}
}

// TestRefusedQueryLosesNothing makes SQLite refuse a query: with more variables than a statement may have. The file is
// not damaged, so its events must stay.
func TestRefusedQueryLosesNothing(t *testing.T) {
	c, err := Open(t.Context(), Path(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stored := record.Event{Term: 1, Sequence: 1, At: time.Now().UTC(), Kind: record.EventInstanceCreated}
	if err := c.PutEvents(t.Context(), []record.Event{stored}); err != nil {
		t.Fatal(err)
	}
	query := EventQuery{Kinds: make([]record.EventKind, 40_000), Limit: 10}
	if events, err := c.Events(t.Context(), query); err == nil {
		t.Errorf("40,000 kinds gave %v", events)
	}
	if events, err := c.Events(t.Context(), EventQuery{Limit: 10}); err != nil || len(events) != 1 {
		t.Errorf("after a refused query: %v, %v", events, err)
	}
}
