package unit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Infinity is the time span "infinity".
const Infinity = time.Duration(math.MaxInt64)

var spans = map[string]time.Duration{
	"usec": time.Microsecond, "us": time.Microsecond, "µs": time.Microsecond,
	"msec": time.Millisecond, "ms": time.Millisecond,
	"seconds": time.Second, "second": time.Second, "sec": time.Second, "s": time.Second, "": time.Second,
	"minutes": time.Minute, "minute": time.Minute, "min": time.Minute, "m": time.Minute,
	"hours": time.Hour, "hour": time.Hour, "hr": time.Hour, "h": time.Hour,
	"days": 24 * time.Hour, "day": 24 * time.Hour, "d": 24 * time.Hour,
	"weeks": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour, "w": 7 * 24 * time.Hour,
}

// Span parses time spans such as "2s", "5min 20s", "1.5h" and "infinity". A number without a unit is in seconds. It
// follows systemd.time(7), without months and years.
func Span(text string) (time.Duration, error) {
	if text == "infinity" {
		return Infinity, nil
	}
	rest := strings.TrimSpace(text)
	if rest == "" {
		return 0, fmt.Errorf("%q is no time span", text)
	}
	total := 0.0
	for rest != "" {
		n := len(rest) - len(strings.TrimLeft(rest, "0123456789."))
		number, err := strconv.ParseFloat(rest[:n], 64)
		if err != nil {
			return 0, fmt.Errorf("%q is no time span", text)
		}
		rest = strings.TrimLeft(rest[n:], " ")
		n = strings.IndexAny(rest, "0123456789. ")
		if n < 0 {
			n = len(rest)
		}
		unit, ok := spans[rest[:n]]
		if !ok {
			return 0, fmt.Errorf("%q: unknown unit %q", text, rest[:n])
		}
		total += number * float64(unit)
		rest = strings.TrimLeft(rest[n:], " ")
	}
	if total >= float64(Infinity) {
		return 0, fmt.Errorf("%q is too long", text)
	}
	return time.Duration(total), nil
}
