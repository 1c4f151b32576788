package localdb

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
)

const (
	// ScalingInterval is the most time between two points of a group while a server leads.
	ScalingInterval = 5 * time.Minute
	// keepScaling is how long points are kept.
	keepScaling = 24 * time.Hour
)

// ScalingPoint is what the leader knew of a group with scaling at a time.
type ScalingPoint struct {
	config.GroupKey `json:"-"`

	At time.Time `json:"-"`
	// Size is the group's size from then on, and Wanted the one that the metrics asked for.
	Size    int            `json:"size"`
	Wanted  int            `json:"wanted"`
	Metrics []ScalingValue `json:"metrics"`
}

// ScalingValue is a metric of a point. Value is nil if it was unknown. Total means that it is that of the whole group.
type ScalingValue struct {
	Name   string   `json:"name"`
	Value  *float64 `json:"value,omitempty"`
	Target float64  `json:"target"`
	Wanted int      `json:"wanted"`
	Total  bool     `json:"total,omitempty"`
}

// PutScaling stores a point, and deletes all points that are older than a day.
func (d *DB) PutScaling(ctx context.Context, now time.Time, p ScalingPoint) error {
	return d.write(ctx, "put a point of scaling", func(tx *sql.Tx) error {
		text, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx,
			`INSERT OR REPLACE INTO scaling (tenant, "group", at, point) VALUES (?, ?, ?, ?)`,
			p.Tenant, p.Group, p.At.UnixNano(), string(text)); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM scaling WHERE at < ?`, now.Add(-keepScaling).UnixNano())
		return err
	})
}

// Scaling returns the points of a group within the last day, from the oldest to the newest.
func (d *DB) Scaling(ctx context.Context, group config.GroupKey, now time.Time) ([]ScalingPoint, error) {
	return read(ctx, d, `SELECT at, point FROM scaling WHERE tenant = ? AND "group" = ? AND at >= ? ORDER BY at`,
		[]any{group.Tenant, group.Group, now.Add(-keepScaling).UnixNano()},
		func(rows *sql.Rows) (p ScalingPoint, err error) {
			var at int64
			var text string
			if err := rows.Scan(&at, &text); err != nil {
				return p, err
			}
			p.GroupKey, p.At = group, time.Unix(0, at).UTC()
			return p, json.Unmarshal([]byte(text), &p)
		})
}
