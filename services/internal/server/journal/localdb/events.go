package localdb

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

// Position is the place of an event in a shard's journal. The zero Position is before all events.
type Position struct{ Term, Sequence uint64 }

// PositionOf returns the position of an event.
func PositionOf(e record.Event) Position { return Position{e.Term, e.Sequence} }

// EventQuery selects events. A zero field excludes no events.
type EventQuery struct {
	// Tenant selects the events of this tenant, and the events that concern the whole shard.
	Tenant          string
	Group, Instance string
	Kinds           []record.EventKind
	Cause           string
	// Since and Until limit the time of the events. An event at Since is selected, an event at Until is not.
	Since, Until time.Time
	// After selects the events that come after this position in the journal.
	After Position
	// Limit is the largest number of events. It must be positive.
	Limit int
}

// PutEvents stores events. It does not change an event that is already stored.
func (d *DB) PutEvents(ctx context.Context, events []record.Event) error {
	return d.write(ctx, "put events", func(tx *sql.Tx) error {
		insert, err := tx.PrepareContext(ctx, `INSERT OR IGNORE INTO events
			(term, sequence, at, tenant, "group", instance, kind, cause, event) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`)
		if err != nil {
			return err
		}
		defer func() { _ = insert.Close() }() // the end of the transaction closes it, too
		for i := range events {
			e := &events[i]
			text, err := json.Marshal(e)
			if err != nil {
				return err
			}
			if _, err := insert.ExecContext(ctx, e.Term, e.Sequence, e.At.UnixNano(), e.Tenant, e.Group, e.Instance,
				string(e.Kind), e.Cause, string(text)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Events returns the events of a query from the oldest to the newest.
func (d *DB) Events(ctx context.Context, q EventQuery) ([]record.Event, error) {
	where, args := []string{"(term, sequence) > (?, ?)"}, []any{q.After.Term, q.After.Sequence}
	add := func(condition string, values ...any) {
		where, args = append(where, condition), append(args, values...)
	}
	if q.Tenant != "" {
		add("tenant IN (?, '')", q.Tenant)
	}
	if q.Group != "" {
		add(`"group" = ?`, q.Group)
	}
	if q.Instance != "" {
		add("instance = ?", q.Instance)
	}
	if len(q.Kinds) > 0 {
		var kinds []any
		for _, kind := range q.Kinds {
			kinds = append(kinds, string(kind))
		}
		add("kind IN (?"+strings.Repeat(", ?", len(kinds)-1)+")", kinds...)
	}
	if q.Cause != "" {
		add("cause = ?", q.Cause)
	}
	if !q.Since.IsZero() {
		add("at >= ?", q.Since.UnixNano())
	}
	if !q.Until.IsZero() {
		add("at < ?", q.Until.UnixNano())
	}
	query := "SELECT event FROM events WHERE " + strings.Join(where, " AND ") + " ORDER BY term, sequence LIMIT ?"
	return read(ctx, d, query, append(args, q.Limit), func(rows *sql.Rows) (e record.Event, err error) {
		var text string
		if err := rows.Scan(&text); err != nil {
			return e, err
		}
		return e, json.Unmarshal([]byte(text), &e)
	})
}

// HasEvent reports whether the event at a position is stored.
func (d *DB) HasEvent(ctx context.Context, at Position) (bool, error) {
	found, err := read(ctx, d, `SELECT 1 FROM events WHERE term = ? AND sequence = ?`, []any{at.Term, at.Sequence},
		func(rows *sql.Rows) (n int, err error) { return n, rows.Scan(&n) })
	return len(found) > 0, err
}

// KeepEvents deletes all but the newest n events.
func (d *DB) KeepEvents(ctx context.Context, n int) error {
	return d.write(ctx, "keep events", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM events WHERE (term, sequence) <= (SELECT term, sequence FROM events
			ORDER BY term DESC, sequence DESC LIMIT 1 OFFSET ?)`, n)
		return err
	})
}
