package config

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clockChanges are days on which the clock of a time zone is changed.
var clockChanges = []struct{ name, zone, from, until string }{
	{"Berlin, an hour forward at 02:00", "Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
	{"Berlin, an hour back at 03:00", "Europe/Berlin", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
	{"New York, an hour forward at 02:00", "America/New_York", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"},
	{"New York, an hour back at 02:00", "America/New_York", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
	{"Lord Howe, half an hour forward at 02:00", "Australia/Lord_Howe", "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z"},
	{"Lord Howe, half an hour back at 02:00", "Australia/Lord_Howe", "2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z"},
	{"Sao Paulo, an hour forward at midnight", "America/Sao_Paulo", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
	{"Sao Paulo, an hour back at midnight", "America/Sao_Paulo", "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z"},
	{"Beirut, an hour forward at midnight", "Asia/Beirut", "2024-03-30T22:00:00Z", "2024-03-31T21:00:00Z"},
	{"Beirut, an hour back at midnight", "Asia/Beirut", "2024-10-25T21:00:00Z", "2024-10-26T22:00:00Z"},
	{"Cairo, an hour forward at midnight", "Africa/Cairo", "2024-04-25T22:00:00Z", "2024-04-26T21:00:00Z"},
	{"Cairo, an hour back at midnight", "Africa/Cairo", "2024-10-30T21:00:00Z", "2024-10-31T22:00:00Z"},
	{"Apia, without 30 December", "Pacific/Apia", "2011-12-29T10:00:00Z", "2011-12-31T10:00:00Z"},
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestSchedulesOnClockChanges lists when schedules begin on days on which the clock is changed. An entry with a fixed
// hour begins once on each day, as in cron(8): the first time in a repeated hour, and at the end of a skipped one.
func TestSchedulesOnClockChanges(t *testing.T) {
	for _, tt := range []struct{ zone, cron, from, until, want string }{
		{"Europe/Berlin", "30 2 * * *", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "01:00"},
		{"Europe/Berlin", "0 2 * * *", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "01:00"},
		{"Europe/Berlin", "0 3 * * *", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "01:00"},
		{"Europe/Berlin", "*/20 2 * * *", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "01:00"},
		{"Europe/Berlin", "30 * * * *", "2026-03-28T23:00:00Z", "2026-03-29T03:00:00Z", "23:30 00:30 01:30 02:30"},
		{"Europe/Berlin", "30 2 * * *", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "00:30"},
		{"Europe/Berlin", "30 1-3 * * *", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "23:30 00:30 02:30"},
		{"Europe/Berlin", "30 * * * *", "2026-10-24T23:00:00Z", "2026-10-25T03:00:00Z", "23:30 00:30 01:30 02:30"},
		{"Europe/Berlin", "0 */2 * * *", "2026-10-24T23:00:00Z", "2026-10-25T04:00:00Z", "00:00 01:00 03:00"},
		{"America/New_York", "30 2 * * *", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z", "07:00"},
		{"America/New_York", "30 1 * * *", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", "05:30"},
		{"Australia/Lord_Howe", "15 2 * * *", "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z", "15:30"},
		{"Australia/Lord_Howe", "45 2 * * *", "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z", "15:45"},
		{"Australia/Lord_Howe", "45 1 * * *", "2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z", "14:45"},
		{"America/Sao_Paulo", "0 0 * * *", "2018-11-03T20:00:00Z", "2018-11-05T01:00:00Z", "03:00"},
		{"America/Sao_Paulo", "30 0 * * Sun", "2018-11-03T20:00:00Z", "2018-11-11T01:00:00Z", "03:00"},
		{"America/Sao_Paulo", "30 23 * * *", "2018-02-17T12:00:00Z", "2018-02-18T12:00:00Z", "01:30"},
		{"Asia/Beirut", "0 0 * * *", "2024-03-30T12:00:00Z", "2024-03-31T20:00:00Z", "22:00"},
		{"Asia/Beirut", "15 0 31 3 *", "2024-03-30T12:00:00Z", "2024-03-31T20:00:00Z", "22:00"},
		{"Africa/Cairo", "30 0 * * Fri", "2024-04-25T12:00:00Z", "2024-04-26T20:00:00Z", "22:00"},
		{"Africa/Cairo", "30 23 * * *", "2024-10-31T12:00:00Z", "2024-11-01T12:00:00Z", "20:30"},
		{"Pacific/Apia", "0 12 * * *", "2011-12-29T11:00:00Z", "2012-01-01T09:00:00Z", "22:00 10:00 22:00 22:00"},
		{"Pacific/Apia", "0 12 30 12 *", "2011-12-29T11:00:00Z", "2011-12-31T11:00:00Z", "10:00"},
	} {
		s, err := Schedule{Cron: tt.cron, Timezone: tt.zone, Size: 1}.Parse()
		if err != nil {
			t.Fatal(err)
		}
		var begins []string
		until := instant(t, tt.until)
		for at := instant(t, tt.from).Add(-time.Second); ; {
			_, next := s.around(at)
			if next.IsZero() || next.After(until) {
				break
			}
			if last, _ := s.around(next); !last.Equal(next) {
				t.Errorf("%s %q: begins at %v, but then the last time was %v", tt.zone, tt.cron, next, last)
			}
			if last, _ := s.around(next.Add(-time.Second)); !last.Before(next) {
				t.Errorf("%s %q: begins at %v, but a second before the last time is %v", tt.zone, tt.cron, next, last)
			}
			begins = append(begins, next.UTC().Format("15:04"))
			at = next
		}
		if got := strings.Join(begins, " "); got != tt.want {
			t.Errorf("%s %q from %s: begins at %s UTC, want %s", tt.zone, tt.cron, tt.from, got, tt.want)
		}
	}
}

// TestDailySchedulesBeginOnce checks that a schedule with a fixed hour begins once on each day, whatever the hour.
func TestDailySchedulesBeginOnce(t *testing.T) {
	for _, c := range clockChanges {
		for hour := range 24 {
			s, err := Schedule{Cron: fmt.Sprintf("40 %d * * *", hour), Timezone: c.zone, Size: 1}.Parse()
			if err != nil {
				t.Fatal(err)
			}
			from := instant(t, c.from).Add(-72 * time.Hour)
			until, days := from.Add(6*24*time.Hour), 0
			for at := from; ; days++ {
				_, next := s.around(at)
				if next.IsZero() || next.After(until) {
					break
				}
				at = next
			}
			passed := dates(until.In(s.Zone)) - dates(from.In(s.Zone))
			if days < passed-1 || days > passed+1 {
				t.Errorf("%s: 40 %d * * * begins %d times in %d days", c.name, hour, days, passed)
			}
		}
	}
}

// dates counts the dates from 1970 to a local time.
func dates(t time.Time) int {
	return int(time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC).Unix() / 86400)
}

// TestWindowsOnClockChanges checks every minute of the days on which the clock is changed: a window is open exactly
// when the local time is inside it, and Open predicts the next opening.
func TestWindowsOnClockChanges(t *testing.T) {
	for _, c := range clockChanges {
		for _, times := range []string{"00:00-01:00", "00:30-02:15", "01:30-02:00", "02:00-03:00", "02:15-02:45",
			"02:30-03:30", "22:00-00:30", "23:30-00:15", "23:00-24:00", "12:00-11:59"} {
			w, err := ParseWindow("Mon-Sun " + times + " " + c.zone)
			if err != nil {
				t.Fatal(err)
			}
			begin, end, _ := strings.Cut(times, "-")
			var predicted time.Time
			until := instant(t, c.until).Add(3 * time.Hour)
			for at := instant(t, c.from).Add(-3 * time.Hour); at.Before(until); at = at.Add(time.Minute) {
				local := at.In(w.Zone).Format("15:04")
				want := begin <= local && local < end
				if end <= begin {
					want = begin <= local || local < end
				}
				open, opens := w.Open(at)
				if open != want {
					t.Errorf("%s: %s at %s (%s local): open %t, want %t", c.name, times, at.Format(time.RFC3339), local,
						open, want)
				}
				if open && !predicted.IsZero() && !predicted.Equal(at) {
					t.Errorf("%s: %s opens at %v, expected at %v", c.name, times, at, predicted)
				}
				if predicted = opens; !open && (opens.IsZero() || !opens.After(at)) {
					t.Errorf("%s: %s is closed at %v and opens at %v", c.name, times, at, opens)
				}
			}
		}
	}
}

// TestWindowOfASkippedDay checks that a window on a day that a time zone skipped opens a week later.
func TestWindowOfASkippedDay(t *testing.T) {
	w, err := ParseWindow("Fri 09:00-17:00 Pacific/Apia")
	if err != nil {
		t.Fatal(err)
	}
	open, opens := w.Open(instant(t, "2011-12-29T20:00:00Z"))
	if open || !opens.Equal(instant(t, "2012-01-05T19:00:00Z")) {
		t.Errorf("open %t, opens %v", open, opens)
	}
}

// TestZonesOfTheHostAreIgnored runs this test again in a process with ZONEINFO and TZ, in which the host says that
// Berlin has the time of UTC, and that there is a zone Mars/Phobos.
func TestZonesOfTheHostAreIgnored(t *testing.T) {
	if os.Getenv("ZONEINFO") == "" {
		dir := t.TempDir()
		utc, err := zoneData("UTC")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"Europe/Berlin", "Mars/Phobos"} {
			file := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, utc, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestZonesOfTheHostAreIgnored$", "-test.v")
		again.Env = append(os.Environ(), "ZONEINFO="+dir, "TZ=Asia/Tokyo")
		if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	berlin, err := loadZone("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	if _, offset := instant(t, "2026-07-01T00:00:00Z").In(berlin).Zone(); offset != 7200 {
		t.Errorf("Berlin is %d s from UTC in summer", offset)
	}
	if _, err := loadZone("Mars/Phobos"); err == nil {
		t.Error("a zone of the host is accepted")
	}
}
