// Package localdb keeps the public keys that agents submitted, the newest events of the journal, and what groups were
// scaled by during the last day, in the server's SQLite file.
//
// Invariant: the server can do without the file. It gets the keys again from the agents, and the events from the
// bucket.
// If the file is corrupt, has another version, or is deleted while the server runs, the package replaces it by a new,
// empty file.
package localdb

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"modernc.org/sqlite" // registers the driver "sqlite", too
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// version is the version of the schema. A file with another version is replaced. The application ID prevents the
// package from replacing another program's database.
const (
	version     = 4
	application = 0x6e737463 // "nstc"
)

const schema = `
CREATE TABLE public_keys (
	instance TEXT NOT NULL, name TEXT NOT NULL, pkix BLOB NOT NULL,
	PRIMARY KEY (instance, name)
) WITHOUT ROWID;
CREATE TABLE events (
	term INTEGER NOT NULL, sequence INTEGER NOT NULL, at INTEGER NOT NULL, tenant TEXT NOT NULL,
	"group" TEXT NOT NULL, instance TEXT NOT NULL, kind TEXT NOT NULL, cause TEXT NOT NULL, event TEXT NOT NULL,
	PRIMARY KEY (term, sequence)
) WITHOUT ROWID;
CREATE INDEX events_of_instance ON events (instance, term, sequence);
CREATE INDEX events_of_group ON events (tenant, "group", term, sequence);
CREATE TABLE scaling (
	tenant TEXT NOT NULL, "group" TEXT NOT NULL, at INTEGER NOT NULL, point TEXT NOT NULL,
	PRIMARY KEY (tenant, "group", at)
) WITHOUT ROWID;
CREATE INDEX scaling_at ON scaling (at);
`

// Key is a public key that an agent submitted: the base name of its file, and the key in PKIX as DER.
type Key struct {
	Name string
	PKIX []byte
}

// Path returns the path of the database inside the server's cache directory.
func Path(dir string) string { return filepath.Join(dir, "db", "nstance.db") }

// DB is the open database. Its methods are safe for concurrent use and run one at a time. A method returns an error
// if the file is unusable and could not be replaced. The caller may log the error and otherwise ignore it.
type DB struct {
	path string

	mu sync.Mutex
	db *sql.DB // nil after a failure or Close
	// closed means that Close was called. The file is then not opened again.
	closed bool
}

// Open opens the database at path. It creates a missing database, including its directory. It replaces a file that is
// corrupt or has another version. It returns an error if the path is a directory, if the server may not write there, or
// if the file is another program's database.
func Open(ctx context.Context, path string) (*DB, error) {
	d := &DB{path: path}
	if err := d.open(ctx); err != nil {
		return nil, fmt.Errorf("open the local database: %w", err)
	}
	return d, nil
}

// Close closes the database. Later calls fail.
func (d *DB) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return d.shut()
}

func (d *DB) shut() error {
	if d.db == nil {
		return nil
	}
	err := d.db.Close()
	d.db = nil
	return err
}

// PutKeys stores public keys of an instance. A new key replaces an old one with the same name.
func (d *DB) PutKeys(ctx context.Context, instance ident.ID, keys []Key) error {
	return d.write(ctx, "put keys", func(tx *sql.Tx) error {
		for _, key := range keys {
			if _, err := tx.ExecContext(ctx,
				`INSERT OR REPLACE INTO public_keys (instance, name, pkix) VALUES (?, ?, ?)`,
				instance.Storage(), key.Name, key.PKIX); err != nil {
				return err
			}
		}
		return nil
	})
}

// Keys returns an instance's public keys, sorted by name.
func (d *DB) Keys(ctx context.Context, instance ident.ID) ([]Key, error) {
	return read(ctx, d, `SELECT name, pkix FROM public_keys WHERE instance = ? ORDER BY name`,
		[]any{instance.Storage()}, func(rows *sql.Rows) (k Key, err error) {
			return k, rows.Scan(&k.Name, &k.PKIX)
		})
}

// DeleteKeys deletes an instance's public keys.
func (d *DB) DeleteKeys(ctx context.Context, instance ident.ID) error {
	return d.write(ctx, "delete keys", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM public_keys WHERE instance = ?`, instance.Storage())
		return err
	})
}

// KeepKeys deletes the public keys of all instances for which keep returns false. It also deletes rows with an invalid
// instance ID.
func (d *DB) KeepKeys(ctx context.Context, keep func(instance ident.ID) bool) error {
	rows, err := read(ctx, d, `SELECT DISTINCT instance FROM public_keys`, nil,
		func(rows *sql.Rows) (instance string, err error) {
			return instance, rows.Scan(&instance)
		})
	if err != nil {
		return err
	}
	return d.write(ctx, "delete keys", func(tx *sql.Tx) error {
		for _, row := range rows {
			if id, err := ident.ParseStorageID(row); err == nil && keep(id) {
				continue
			}
			if _, err := tx.ExecContext(ctx, `DELETE FROM public_keys WHERE instance = ?`, row); err != nil {
				return err
			}
		}
		return nil
	})
}

// write runs fn in a transaction. If the first attempt fails, it tries once more with a new database.
func (d *DB) write(ctx context.Context, what string, fn func(*sql.Tx) error) error {
	return d.attempt(ctx, what, func(db *sql.DB) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	})
}

func read[T any](ctx context.Context, d *DB, query string, args []any, scan func(*sql.Rows) (T, error)) (out []T,
	err error) {
	err = d.attempt(ctx, "read", func(db *sql.DB) error {
		out = nil
		rows, err := db.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			v, err := scan(rows)
			if err != nil {
				return fmt.Errorf("%w: %w", errRow, err)
			}
			out = append(out, v)
		}
		return rows.Err()
	})
	return out, err
}

// attempt calls fn with the database. If the file is damaged or missing, attempt replaces the database and calls fn
// once more. If the file cannot be used for another reason, for example a disk that was full before, attempt opens the
// file again and calls fn once more. A query that SQLite refuses changes nothing.
func (d *DB) attempt(ctx context.Context, what string, fn func(*sql.DB) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("local database: %s: it is closed", what)
	}
	if d.db != nil && present(d.path) {
		err := fn(d.db)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("local database: %s: %w", what, err)
		}
		if refused(err) {
			return fmt.Errorf("local database: %s: %w", what, err)
		}
		_ = d.shut()
		if damaged(err) {
			if err := discard(d.path); err != nil {
				return fmt.Errorf("local database: %s: %w", what, err)
			}
		}
	}
	_ = d.shut()
	if err := d.open(ctx); err != nil {
		return fmt.Errorf("local database: %s: %w", what, err)
	}
	if err := fn(d.db); err != nil {
		return fmt.Errorf("local database: %s: %w", what, err)
	}
	return nil
}

// code returns SQLite's primary result code of an error, or 0.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// damaged reports whether an error means that the file's content is not usable: SQLite says so, a table is missing, or
// a row cannot be decoded.
func damaged(err error) bool {
	switch code(err) {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return true
	case sqlite3.SQLITE_ERROR:
		return strings.Contains(err.Error(), "no such table") || strings.Contains(err.Error(), "no such column")
	case 0:
		return errors.Is(err, errRow)
	}
	return false
}

// refused reports whether an error means that SQLite refuses a statement, for example because it has too many
// variables. The file is then in order.
func refused(err error) bool {
	switch code(err) {
	case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_MISUSE,
		sqlite3.SQLITE_RANGE, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED,
		sqlite3.SQLITE_NOMEM,
		sqlite3.SQLITE_INTERRUPT:
		return !damaged(err)
	}
	return false
}

// errRow means that a row of the database cannot be decoded.
var errRow = errors.New("the row is damaged")

func present(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// open opens the file and replaces it if it cannot be used.
func (d *DB) open(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(d.path), 0o750); err != nil {
		return err
	}
	info, err := os.Lstat(d.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// The database file was deleted. Remove its journal files too, because they do not belong to the new database.
		if err := discard(d.path); err != nil {
			return err
		}
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a file: remove it, or give another --cachedir", d.path)
	}
	db, err := connect(ctx, d.path)
	if err == nil {
		d.db = db
		return nil
	}
	if ctx.Err() != nil || errors.Is(err, errForeign) || code(err) != 0 && !damaged(err) {
		return err
	}
	if err := discard(d.path); err != nil {
		return err
	}
	if d.db, err = connect(ctx, d.path); err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	return nil
}

var errForeign = errors.New("it is another program's database")

// connect opens the file, checks its integrity and version, and creates the schema if the file is empty.
func connect(ctx context.Context, path string) (*sql.DB, error) {
	// A single connection means that there is only one writer at a time. synchronous(OFF) means that no write waits for
	// the disk. A power failure may destroy data, but the server can get it again.
	db, err := sql.Open("sqlite", "file:"+escape(path)+
		"?_pragma=busy_timeout(2000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_pragma=cache_size(-1024)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if err := prepare(ctx, db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func prepare(ctx context.Context, db *sql.DB) error {
	var app, have, tables int
	if err := db.QueryRowContext(ctx, `SELECT a.application_id, v.user_version, (SELECT count(*) FROM sqlite_schema)
		FROM pragma_application_id a, pragma_user_version v`).Scan(&app, &have, &tables); err != nil {
		return err
	}
	if tables == 0 {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("%s PRAGMA application_id = %d; PRAGMA user_version = %d;", schema,
			application, version)); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}
	if app != application {
		return fmt.Errorf("%w (application ID %d)", errForeign, app)
	}
	if have != version {
		return fmt.Errorf("the schema is version %d, not %d", have, version)
	}
	var verdict string
	if err := db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("the file is damaged: %s", verdict)
	}
	return nil
}

// discard removes the database's files.
func discard(path string) error {
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("throw away the old file: %w", err)
		}
	}
	return nil
}

// escape escapes a path for an SQLite URI (sqlite.org/uri.html, section 3.1).
func escape(path string) string {
	var out []byte
	for i := range len(path) {
		switch c := path[i]; c {
		case '%', '?', '#':
			out = fmt.Appendf(out, "%%%02x", c)
		default:
			out = append(out, c)
		}
	}
	return string(out)
}

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
