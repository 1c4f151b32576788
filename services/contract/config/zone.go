package config

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"fmt"
	"io/fs"
	"sync"
	"time"
)

// zoneinfo is the time zone database of the Go distribution. Programs use only this copy, so that a schedule means the
// same on all machines: [time.LoadLocation] would prefer the host's database.
//
//go:generate sh -c "cp \"$(go env GOROOT)/lib/time/zoneinfo.zip\" zoneinfo.zip"
//go:embed zoneinfo.zip
var zoneinfo []byte

// zones holds the time zones that were loaded, so that equal names give the same pointer.
var zones sync.Map

func loadZone(name string) (*time.Location, error) {
	if known, ok := zones.Load(name); ok {
		return known.(*time.Location), nil //nolint:forcetypeassert // nothing else is stored
	}
	zone, err := readZone(name)
	if err != nil {
		return nil, fmt.Errorf("%s is not a time zone such as \"Europe/Berlin\" or \"UTC\"", quote(name))
	}
	known, _ := zones.LoadOrStore(name, zone)
	return known.(*time.Location), nil //nolint:forcetypeassert // nothing else is stored
}

func readZone(name string) (*time.Location, error) {
	if name == "UTC" {
		return time.UTC, nil
	}
	data, err := zoneData(name)
	if err != nil {
		return nil, err
	}
	return time.LoadLocationFromTZData(name, data)
}

// zoneData returns the embedded description of a time zone.
func zoneData(name string) ([]byte, error) {
	archive, err := zip.NewReader(bytes.NewReader(zoneinfo), int64(len(zoneinfo)))
	if err != nil {
		return nil, fmt.Errorf("open the time zone database: %w", err)
	}
	return fs.ReadFile(archive, name)
}

// period is a time in which a zone has one offset from UTC, from its begin to just before its end. A zero begin or end
// means that there is none.
type period struct {
	begin, end time.Time
	offset     time.Duration
}

func periodAt(zone *time.Location, t time.Time) period {
	local := t.In(zone)
	_, offset := local.Zone()
	begin, end := local.ZoneBounds()
	return period{begin, end, time.Duration(offset) * time.Second}
}

// clock returns what a clock of the zone shows at t, as a time in UTC.
func (p period) clock(t time.Time) time.Time { return t.UTC().Add(p.offset) }

// instant returns when a clock with the offset of the period shows the given time.
func (p period) instant(clock time.Time) time.Time { return clock.Add(-p.offset) }

func (p period) contains(t time.Time) bool {
	return !t.Before(p.begin) && (p.end.IsZero() || t.Before(p.end))
}

// firstInstant returns when the clocks of a zone first show the given time. If they skip it, the result is the end of
// the skipped time.
func firstInstant(zone *time.Location, clock time.Time) time.Time {
	p := periodAt(zone, clock.Add(-48*time.Hour)) // no offset is that large
	for {
		at := p.instant(clock)
		if p.contains(at) {
			return at
		}
		if at.Before(p.begin) {
			return p.begin
		}
		p = periodAt(zone, p.end)
	}
}
