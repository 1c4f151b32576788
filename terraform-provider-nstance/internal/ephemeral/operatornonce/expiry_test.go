package operatornonce

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
)

func TestParseExpiry(t *testing.T) {
	for text, want := range map[string]time.Duration{"30m": 30 * time.Minute, "1d": 24 * time.Hour, "1s": time.Second,
		"999ms": 0, "0": 0, "-1h": 0, "": 0, "x": 0, "106752d": 0} {
		if got, err := parseExpiry(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

// FuzzParseExpiry checks that an accepted expiry is at least one second, and that its canonical form parses to the same
// value.
func FuzzParseExpiry(f *testing.F) {
	for _, seed := range []string{"3h", "30m", "1d12h", "1.5h", "-1h", "999ms", "1e9h", "106751d", "9999999999999h",
		""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := parseExpiry(text)
		if err != nil {
			if d != 0 {
				t.Errorf("%q: %s beside %v", text, d, err)
			}
			return
		}
		if d < time.Second || time.Unix(0, 0).Add(d).Before(time.Unix(1, 0)) {
			t.Errorf("%q is %s", text, d)
		}
		if again, err := parseExpiry(config.Duration(d).String()); err != nil || again != d {
			t.Errorf("%q is %s, then %s, %v", text, d, again, err)
		}
	})
}
