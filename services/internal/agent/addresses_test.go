package agent

import (
	"slices"
	"strings"
	"testing"
)

func TestParseAnnounced(t *testing.T) {
	long := strings.Repeat("host.example:1,", 80)
	for text, want := range map[string][]string{
		"10.0.0.9:8994":                      {"10.0.0.9:8994"},
		"10.0.0.9:8994,[2001:db8::1]:8994\n": {"10.0.0.9:8994", "[2001:db8::1]:8994"},
		"leader.nstance.internal:8994,leader.nstance.internal:8994": {"leader.nstance.internal:8994"},
		"": nil, "10.0.0.9": nil, "10.0.0.9:0": nil, "a b:1": nil, long: nil,
		"a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1": nil,
	} {
		if got, err := parseAnnounced(text); !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
}

// FuzzParseAnnounced checks that parseAnnounced accepts only lists of at most maxAddrs addresses. An accepted list must
// stay the same when it is stored and loaded.
func FuzzParseAnnounced(f *testing.F) {
	f.Add("10.0.0.9:8994,[2001:db8::1]:8994")
	f.Add("leader.nstance.internal:8994\n")
	f.Fuzz(func(t *testing.T, text string) {
		addrs, err := parseAnnounced(text)
		if err != nil {
			return
		}
		again, err := parseAnnounced(strings.Join(addrs, ",") + "\n")
		if err != nil || !slices.Equal(addrs, again) || len(addrs) == 0 || len(addrs) > maxAddrs {
			t.Errorf("%q: %v, then %v, %v", text, addrs, again, err)
		}
	})
}
