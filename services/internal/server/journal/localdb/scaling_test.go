package localdb

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// TestScaling checks that the points of a group are there after a restart of the server, for a day, and that older
// ones leave the file.
func TestScaling(t *testing.T) {
	ctx, path := context.Background(), Path(t.TempDir())
	c := open(t, path)
	key := config.GroupKey{Tenant: "prod", Group: "web"}
	at := func(hours int) time.Time { return noon.Add(time.Duration(hours) * time.Hour) }
	for h := range 30 {
		for _, p := range []ScalingPoint{{GroupKey: key, At: at(h), Size: h, Wanted: h + 1,
			Metrics: []ScalingValue{{Name: "cpu", Value: new(float64(h)), Target: 60, Wanted: h + 1}, {Name: "memory",
				Target: 80}}}, {GroupKey: config.GroupKey{Tenant: "dev", Group: "web"}, At: at(h)}} {
			if err := c.PutScaling(ctx, at(h), p); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = open(t, path)
	points, err := c.Scaling(ctx, key, at(30))
	if err != nil || len(points) != 24 || !points[0].At.Equal(at(6)) {
		t.Fatalf("%d points, %v, want those of the last 24 hours", len(points), err)
	}
	want := ScalingPoint{GroupKey: key, At: at(29), Size: 29, Wanted: 30, Metrics: []ScalingValue{{Name: "cpu",
		Value: new(29.), Target: 60, Wanted: 30}, {Name: "memory", Target: 80}}}
	if diff := cmp.Diff(want, points[23]); diff != "" {
		t.Error(diff)
	}
	rows, err := read(ctx, c, `SELECT count(*) FROM scaling`, nil,
		func(rows *sql.Rows) (n int, err error) { return n, rows.Scan(&n) })
	if err != nil || fmt.Sprint(rows) != "[50]" {
		t.Errorf("rows in the file: %v, %v, want those of 24 hours and a point", rows, err)
	}
}
