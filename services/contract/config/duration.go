package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a non-negative length of time. Its text form is that of [time.Duration], with the additional unit d for
// days of 24 hours: "90s", "1h30m", "21d", "1d12h".
type Duration time.Duration

// ParseDuration parses the text form of a duration.
func ParseDuration(s string) (Duration, error) {
	const day = 24 * time.Hour
	bad := fmt.Errorf("%s is not a duration such as \"30s\", \"1h30m\" or \"21d\"", quote(s))
	if strings.HasPrefix(s, "-") {
		return 0, fmt.Errorf("%s: a duration cannot be negative", quote(s))
	}
	rest := s
	var total time.Duration
	if text, after, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || strings.Trim(text, "0123456789.") != "" {
			return 0, bad
		}
		if n*float64(day) >= math.MaxInt64 {
			return 0, fmt.Errorf("%s is too long", quote(s))
		}
		total, rest = time.Duration(n*float64(day)), after
	}
	if rest != "" || total == 0 && rest == s {
		if strings.ContainsAny(rest, "+-") {
			return 0, bad
		}
		d, err := time.ParseDuration(rest)
		if err != nil {
			return 0, bad
		}
		if total += d; total < 0 {
			return 0, fmt.Errorf("%s is too long", quote(s))
		}
	}
	return Duration(total), nil
}

// D returns the duration, or zero for nil.
func (d *Duration) D() time.Duration {
	if d == nil {
		return 0
	}
	return time.Duration(*d)
}

// String returns the shortest text form: "5m", not "5m0s". Whole days are "21d".
func (d Duration) String() string {
	const day = Duration(24 * time.Hour)
	if d > 0 && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText returns [Duration.String]. It fails for a negative duration.
func (d Duration) MarshalText() ([]byte, error) {
	if d < 0 {
		return nil, fmt.Errorf("duration %s is negative", time.Duration(d))
	}
	return []byte(d.String()), nil
}

// UnmarshalText accepts the same texts as [ParseDuration].
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := ParseDuration(string(text))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}

// quote quotes s and shortens it, so that messages stay short for any input.
func quote(s string) string {
	const limit = 64
	if len(s) > limit {
		return fmt.Sprintf("%q…", s[:limit])
	}
	return fmt.Sprintf("%q", s)
}
