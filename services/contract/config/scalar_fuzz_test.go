package config

import (
	"strings"
	"testing"
	"time"
)

// FuzzParseDuration checks that an accepted duration is encoded in a form that parses to the same duration. A refused
// text must be quoted in the error, at limited length.
func FuzzParseDuration(f *testing.F) {
	for _, text := range []string{"90s", "1h30m", "21d", "1d12h", "1.5d", "0", "0d", "", "d", "-1s", "1d-1s", "106751d",
		"106752d", "9223372036854775807ns", "1e3d", "1..5d", "1d1d", "10h0m10s", "100h", "1m0.5s"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDuration(text)
		if err != nil {
			if len(err.Error()) > 1<<10 || !strings.HasPrefix(err.Error(), `"`) {
				t.Errorf("%q is refused with %q", text, err)
			}
			return
		}
		if d < 0 {
			t.Errorf("%q is %d", text, d)
		}
		if back, err := ParseDuration(d.String()); err != nil || back != d {
			t.Errorf("%q is written as %s, which is read as %v, %v", text, d, back, err)
		}
		if plain, err := time.ParseDuration(text); err == nil && Duration(plain) != d {
			t.Errorf("%q is %s, Go says %s", text, d, plain)
		}
	})
}

// FuzzParseLimit checks that a limit is encoded as it was written. It also checks that a percentage of a group's size
// is at least minPercentLimit, and at most the larger of minPercentLimit and the size.
func FuzzParseLimit(f *testing.F) {
	for _, text := range []string{"0", "3", "40%", "100%", "101%", "-1", "+1", "03", "%", "", "9223372036854775807",
		"9223372036854775808", "1 %"} {
		f.Add(text, 7)
	}
	f.Fuzz(func(t *testing.T, text string, n int) {
		l, err := ParseLimit(text)
		if err != nil {
			if len(err.Error()) > 1<<10 || !strings.HasPrefix(err.Error(), `"`) {
				t.Errorf("%q is refused with %q", text, err)
			}
			return
		}
		if l.String() != text {
			t.Errorf("%q is written as %q", text, l)
		}
		if n = max(n, -n-1); l.Percent && (l.Of(n) < minPercentLimit || l.Of(n) > max(n, minPercentLimit)) ||
			!l.Percent && l.Of(n) != l.Value {
			t.Errorf("%q of %d is %d", text, n, l.Of(n))
		}
	})
}
