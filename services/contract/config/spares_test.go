package config

import (
	"strings"
	"testing"
	"time"
)

// TestSpares checks which spares are refused, that they count towards the quota, and that they are part of no hash.
func TestSpares(t *testing.T) {
	spares := func(rest string) string { return withGroupFields(`"spares": {` + rest + "}") }
	for _, tt := range []struct{ src, problem string }{
		{spares(`"count": -1`), "spares.count"},
		{spares(`"count": 1, "state": "asleep"`), "spares.state"},
		{withGroupFields(`"spares": {"count": 1, "state": "stopped"}, "purchase": {"spot_percent": 10}`),
			`groups.default.g.spares.state: "stopped" is not possible together with purchase`},
		{withGroupFields(`"spares": {"count": 1, "state": "stopped"}, "args": {"market": "spot"}`),
			`"stopped" is not possible together with groups.default.g.args.market`},
		{spares(`"count": 1, "max_age": "-1h"`), "spares.max_age"},
	} {
		_, problems := Parse("a.jsonc", []byte(tt.src))
		if text := problems.Error(); len(problems) == 0 || !strings.Contains(text, tt.problem) {
			t.Errorf("%q, want %q", text, tt.problem)
		}
	}
	s, plain := mustParse(t, spares(`"count": 2, "max_age": "24h"`)), mustParse(t, withGroupFields(`"max_surge": 1`))
	groups, _ := s.Merged(Groups{})
	before, _ := plain.Merged(Groups{})
	key := GroupKey{"default", "g"}
	g := groups[key]
	if g.Spares != (Spares{Count: 2, State: SparesRunning, MaxAge: Duration(24 * time.Hour)}) {
		t.Errorf("%+v", g.Spares)
	}
	if g.InfraHash != before[key].InfraHash || g.RuntimeHash != before[key].RuntimeHash {
		t.Error("spares change a hash: they would replace the group")
	}
	if n := g.MostInstances(); n != 5 || MostInstances(s, key, GroupSpec{}) != 5 {
		t.Errorf("%d instances count towards the quota, want 5", n)
	}
}
