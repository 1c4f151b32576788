package config

import (
	"strings"
	"testing"
	"time"
)

// TestWindows shows when a window is open, also around midnight, the end of the week and a change of the clock.
func TestWindows(t *testing.T) {
	for _, tt := range []struct {
		window, at string
		open       bool
		opens      string
	}{
		{"Mon-Fri 09:00-17:00 Europe/Berlin", "2026-01-05T08:00:00Z", true, ""},
		{"Mon-Fri 09:00-17:00 Europe/Berlin", "2026-01-05T07:59:59Z", false, "2026-01-05T08:00:00Z"},
		{"Mon-Fri 09:00-17:00 Europe/Berlin", "2026-01-05T16:00:00Z", false, "2026-01-06T08:00:00Z"},
		{"Mon-Fri 09:00-17:00 Europe/Berlin", "2026-01-09T16:00:00Z", false, "2026-01-12T08:00:00Z"},
		{"Mon-Fri 09:00-17:00 Europe/Berlin", "2026-07-06T07:00:00Z", true, ""}, // summer time
		{"Sat,Sun 22:00-04:00 UTC", "2026-01-05T03:59:00Z", true, ""},           // Monday, from Sunday
		{"Sat,Sun 22:00-04:00 UTC", "2026-01-05T04:00:00Z", false, "2026-01-10T22:00:00Z"},
		{"Fri-Mon 00:00-24:00 UTC", "2026-01-06T00:00:00Z", false, "2026-01-09T00:00:00Z"},
		{"Fri-Mon 00:00-24:00 UTC", "2026-01-05T23:59:59Z", true, ""},
		{"Sun 02:00-03:00 Europe/Berlin", "2026-03-28T12:00:00Z", false, "2026-04-05T00:00:00Z"}, // skipped on 29 March
	} {
		w, err := ParseWindow(tt.window)
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, tt.at)
		if err != nil {
			t.Fatal(err)
		}
		open, opens := w.Open(at)
		text := ""
		if !opens.IsZero() {
			text = opens.UTC().Format(time.RFC3339)
		}
		if open != tt.open || text != tt.opens {
			t.Errorf("%s at %s: open %t, opens %q; want %t, %q", tt.window, tt.at, open, text, tt.open, tt.opens)
		}
	}
}

// TestSizeAt checks which schedule sets the size, and when the size changes next.
func TestSizeAt(t *testing.T) {
	schedule := func(cron, zone string, size int) SizeSchedule {
		s, err := Schedule{Cron: cron, Timezone: zone, Size: size}.Parse()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	week := []SizeSchedule{schedule("0 7 * * Mon-Fri", "Europe/Berlin", 20), schedule("0 19 * * *", "Europe/Berlin", 2)}
	leapDay := []SizeSchedule{schedule("0 0 29 2 *", "", 9)}
	for _, tt := range []struct {
		schedules []SizeSchedule
		at        string
		size      int
		until     string
	}{
		{nil, "2026-01-05T06:00:00Z", 5, ""},
		{week, "2026-01-05T05:59:59Z", 2, "2026-01-05T06:00:00Z"},
		{week, "2026-01-05T06:00:00Z", 20, "2026-01-05T18:00:00Z"},
		{week, "2026-01-10T12:00:00Z", 2, "2026-01-10T18:00:00Z"}, // Saturday
		{leapDay, "2026-01-05T06:00:00Z", 9, "2028-02-29T00:00:00Z"},
		{leapDay, "2028-02-28T12:00:00Z", 9, "2028-02-29T00:00:00Z"},
		{leapDay, "2102-06-01T00:00:00Z", 9, "2104-02-29T00:00:00Z"}, // 2100 is no leap year
		{[]SizeSchedule{schedule("* * * * *", "", 9)}, "2026-01-05T06:00:30Z", 9, "2026-01-05T06:01:00Z"},
	} {
		at, err := time.Parse(time.RFC3339, tt.at)
		if err != nil {
			t.Fatal(err)
		}
		size, until := (&Group{Size: 5, Schedules: tt.schedules}).SizeAt(at)
		text := ""
		if !until.IsZero() {
			text = until.UTC().Format(time.RFC3339)
		}
		if size != tt.size || text != tt.until {
			t.Errorf("%v at %s: %d until %q, want %d until %q", tt.schedules, tt.at, size, text, tt.size, tt.until)
		}
	}
}

// TestDisruptionProblems checks which windows and schedules are refused. It also checks that a group's largest size
// counts towards the quota.
func TestDisruptionProblems(t *testing.T) {
	group := func(rest string) string {
		return strings.Replace(strings.Replace(fleet, "%s", "", 1), `"size": 3,`, `"size": 3, `+rest+",", 1)
	}
	for _, tt := range []struct{ rest, problem string }{
		{`"disruption": {"windows": ["Mon-Fri 09:00-17:00"]}`, `disruption.windows[0]: "Mon-Fri 09:00-17:00" is not a window such as`},
		{`"disruption": {"windows": ["Mo-Fri 09:00-17:00 UTC"]}`, "has days that are not such as"},
		{`"disruption": {"windows": ["Mon 9-17 UTC"]}`, "has times that are not such as"},
		{`"disruption": {"windows": ["Mon 09:00-09:00 UTC"]}`, "has times that are not such as"},
		{`"disruption": {"windows": ["Mon 09:00-17:00 Mars/Phobos"]}`, "is not a time zone"},
		{`"disruption": {"max_per_hour": -1}`, "max_per_hour"},
		{`"schedules": [{"cron": "7 * *", "size": 1}]`, "is not such as"},
		{`"schedules": [{"cron": "TZ=UTC 0 7 * * *", "size": 1}]`, "the time zone has a field"},
		{`"schedules": [{"cron": "0 0 30 2 *", "size": 1}]`, "never comes"},
		{`"schedules": [{"cron": "0 7 * * *", "timezone": "Local", "size": 1}]`, "is not a time zone"},
		{`"schedules": [{"cron": "0 7 * * *", "size": -1}]`, "size"},
	} {
		_, problems := Parse("a.jsonc", []byte(group(tt.rest)))
		if text := problems.Error(); len(problems) == 0 || !strings.Contains(text, tt.problem) {
			t.Errorf("%s: %q, want %q", tt.rest, text, tt.problem)
		}
	}
	src := strings.Replace(group(`"schedules": [{"cron": "0 7 * * *", "size": 9}]`), `"tenants": {"prod": {}}`,
		`"tenants": {"prod": {}, "default": {"max_instances": 8}}`, 1)
	if _, problems := Parse("a.jsonc", []byte(src)); len(problems) == 0 {
		t.Error("a schedule exceeds the quota")
	}
	s := mustParse(t, group(`"schedules": [{"cron": "0 7 * * *", "size": 9}]`))
	size := 4
	err := CheckUpsert(s, GroupKey{"default", "g"}, GroupSpec{Size: &size})
	if err == nil || !strings.Contains(err.Error(), "the schedules of group default/g set it") {
		t.Errorf("an operator changes the size of a group with schedules: %v", err)
	}
}
