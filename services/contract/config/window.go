package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
)

// Window is a range of times of day on some days of the week, in a time zone.
type Window struct {
	// Days are the weekdays on which the range begins, by [time.Weekday].
	Days [7]bool
	// From and To are minutes since midnight. If To is not after From, the range ends on the next day.
	From, To int
	Zone     *time.Location
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// ParseWindow parses days, times and a time zone: "Mon-Fri 09:00-17:00 Europe/Berlin".
func ParseWindow(text string) (Window, error) {
	fields := strings.Fields(text)
	if len(fields) != 3 {
		return Window{}, fmt.Errorf("%s is not a window such as \"Mon-Fri 09:00-17:00 Europe/Berlin\"", quote(text))
	}
	var w Window
	for part := range strings.SplitSeq(fields[0], ",") {
		first, last, isRange := strings.Cut(strings.ToLower(part), "-")
		from, to := slices.Index(weekdays, first), slices.Index(weekdays, last)
		if !isRange {
			to = from
		}
		if from < 0 || to < 0 {
			return Window{}, fmt.Errorf("%s has days that are not such as Mon, Sat,Sun or Mon-Fri: %s", quote(text),
				quote(part))
		}
		w.Days[from] = true
		for day := from; day != to; {
			day = (day + 1) % 7
			w.Days[day] = true
		}
	}
	from, to, _ := strings.Cut(fields[1], "-")
	begin, err := time.Parse("15:04", from)
	end, endErr := time.Parse("15:04", to)
	if to == "24:00" {
		end, endErr = time.Time{}, nil
	}
	if err != nil || endErr != nil || from == to {
		return Window{}, fmt.Errorf("%s has times that are not such as 09:00-17:00: %s", quote(text), quote(fields[1]))
	}
	w.From, w.To = 60*begin.Hour()+begin.Minute(), 60*end.Hour()+end.Minute()
	w.Zone, err = loadZone(fields[2])
	return w, err
}

// Open reports whether the local time at t is inside the window. If it is not, opens is when it will be next.
func (w Window) Open(t time.Time) (open bool, opens time.Time) {
	for at := t; ; {
		p := periodAt(w.Zone, at)
		from := p.clock(at)
		for day := -1; day <= 7; day++ {
			midnight := time.Date(from.Year(), from.Month(), from.Day()+day, 0, 0, 0, 0, time.UTC)
			begin, end := midnight.Add(time.Duration(w.From)*time.Minute), midnight.Add(time.Duration(w.To)*time.Minute)
			if w.To <= w.From {
				end = end.AddDate(0, 0, 1)
			}
			if !w.Days[midnight.Weekday()] || !from.Before(end) {
				continue
			}
			if begin.Before(from) {
				begin = from
			}
			switch opens = p.instant(begin); {
			case opens.Equal(t):
				return true, time.Time{}
			case p.contains(opens):
				return false, opens
			}
		}
		if p.end.IsZero() {
			return false, time.Time{}
		}
		at = p.end
	}
}

// SizeSchedule is a parsed [Schedule].
type SizeSchedule struct {
	Cron string
	Zone *time.Location
	Size int
}

var cronParser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// cronTimes holds the parsed form of cron expressions by their text.
var cronTimes sync.Map

func parseCron(text string) (cron.Schedule, error) {
	if known, ok := cronTimes.Load(text); ok {
		return known.(cron.Schedule), nil //nolint:forcetypeassert // nothing else is stored
	}
	if strings.Contains(text, "=") { // the library takes it for a time zone
		return nil, fmt.Errorf("cron: %s contains =; the time zone has a field", quote(text))
	}
	times, err := cronParser.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("cron: %s is not such as \"0 7 * * Mon-Fri\": %w", quote(text), err)
	}
	cronTimes.Store(text, times)
	return times, nil
}

// Parse checks a schedule and returns its parsed form.
func (s Schedule) Parse() (SizeSchedule, error) {
	times, err := parseCron(s.Cron)
	if err != nil {
		return SizeSchedule{}, err
	}
	zone, err := loadZone(cmp.Or(s.Timezone, "UTC"))
	if err != nil {
		return SizeSchedule{}, err
	}
	if times.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, zone)).IsZero() {
		return SizeSchedule{}, fmt.Errorf("cron: the time of %s never comes", quote(s.Cron))
	}
	return SizeSchedule{Cron: s.Cron, Zone: zone, Size: s.Size}, nil
}

// longestPast is an upper limit for the time since a schedule last took effect. A schedule for 29 February takes effect
// at least every eight years, so nine years are enough.
const longestPast = 9 * 366 * 24 * time.Hour

// around returns the last time of the schedule that is not after now, and the first time after now. A time is zero if
// there is none.
func (s SizeSchedule) around(now time.Time) (last, next time.Time) {
	times, err := parseCron(s.Cron)
	if err != nil {
		return last, next
	}
	after := s.after(times)
	next = after(now)
	for past := time.Minute; last.IsZero() && past < 8*longestPast; past *= 8 {
		for at := after(now.Add(-min(past, longestPast))); !at.IsZero() && !at.After(now); at = after(at) {
			last = at
		}
	}
	return last, next
}

// after returns a function that returns the first time of the schedule after a time, or zero. As in cron(8), an entry
// with a fixed hour takes effect once a day whatever happens to the clock: the first time if the hour is repeated, and
// at the end of the skipped time if it is skipped. An entry with a wildcard as its hour takes effect whenever the clock
// shows a matching time.
func (s SizeSchedule) after(times cron.Schedule) func(time.Time) time.Time {
	if strings.Contains(strings.Fields(s.Cron)[1], "*") {
		return func(t time.Time) time.Time { return whenever(times, s.Zone, t) }
	}
	return func(t time.Time) time.Time {
		clock := periodAt(s.Zone, t).clock(t)
		for {
			if clock = times.Next(clock); clock.IsZero() {
				return clock
			}
			if at := firstInstant(s.Zone, clock); at.After(t) {
				return at
			}
		}
	}
}

// whenever returns the first time after t at which the clock of the zone shows a time of a cron expression.
func whenever(times cron.Schedule, zone *time.Location, t time.Time) time.Time {
	from := t
	for p := periodAt(zone, t); from.Before(t.Add(longestPast)); p = periodAt(zone, p.end) {
		clock := times.Next(p.clock(from))
		if clock.IsZero() {
			return clock
		}
		if at := p.instant(clock); p.contains(at) {
			return at
		}
		from = p.end.Add(-time.Second) // the time of p.end itself may match
	}
	return time.Time{}
}

// SizeAt returns the number of instances that a group wants at a time, and the next time when that number may change.
// The next time is zero if there is none.
func (g *Group) SizeAt(now time.Time) (size int, until time.Time) {
	if g.Deleted {
		return g.Size, time.Time{}
	}
	switch size = g.Size; {
	case g.SizeUntil.IsZero():
	case now.Before(g.SizeUntil):
		until = g.SizeUntil
	default:
		size = g.ConfiguredSize
	}
	if g.Scaling == nil {
		return g.scheduledAt(now, size, until)
	}
	least, until := g.scheduledAt(now, *g.Scaling.Min, until)
	return min(max(size, least), max(g.Scaling.Max, least)), until
}

// scheduledAt returns the size of the schedule that applies at a time, or the given size if none applies yet. The time
// is the earlier one of until and the next time of a schedule.
func (g *Group) scheduledAt(now time.Time, size int, until time.Time) (int, time.Time) {
	var begun time.Time
	for _, s := range g.Schedules {
		last, next := s.around(now)
		if !last.IsZero() && !last.Before(begun) {
			size, begun = s.Size, last
		}
		if until.IsZero() || !next.IsZero() && next.Before(until) {
			until = next
		}
	}
	return size, until
}

// LeastAt returns the smallest size to which the leader may scale a group at a time.
func (g *Group) LeastAt(now time.Time) int {
	least, _ := g.scheduledAt(now, *g.Scaling.Min, time.Time{})
	return least
}

// MostInstances returns how many instances of a group count towards the quota of its tenant: its largest size at any
// time, its spares, and the failed instances that it keeps.
func (g *Group) MostInstances() int {
	size := max(g.Size, g.ConfiguredSize)
	if g.Scaling != nil {
		size = g.Scaling.Max
	}
	for _, s := range g.Schedules {
		size = max(size, s.Size)
	}
	return size + g.Preserve.Max + g.Spares.Count
}

// FixSize gives the group a size that does not change with the time.
func (g *Group) FixSize(size int) {
	g.Size, g.Schedules, g.SizeUntil, g.ConfiguredSize, g.Scaling = size, nil, time.Time{}, 0, nil
}
