package config

import (
	"strings"
	"testing"
	"time"
)

// TestPreserve checks which values of preserve are refused, that a group inherits those of its template and can end
// them, that they count towards the quota, and that they are part of no hash.
func TestPreserve(t *testing.T) {
	with := func(rest string) string {
		return strings.Replace(strings.Replace(fleet, "%s", "", 1), `"size": 3,`, `"size": 3, `+rest+",", 1)
	}
	for _, tt := range []struct{ src, problem string }{
		{with(`"preserve": {"max": -1, "for": "24h"}`), "groups.default.g.preserve.max"},
		{with(`"preserve": {"max": 101, "for": "24h"}`), "preserve.max: 101 is more than 100"},
		{with(`"preserve": {"max": 1}`), `preserve.for: is required: how long failed instances are kept`},
		{with(`"preserve": {"max": 1, "for": "0s"}`), "preserve.for: is required"},
		{with(`"preserve": {"max": 1, "for": "-1h"}`), "cannot be negative"},
		{with(`"preserve": {"max": 1, "for": "31d"}`), "preserve.for: 31d is more than 30d"},
		{with(`"preserve": {"max": 1, "until": "24h"}`), "there is no such field"},
		{with(`"preserve": 1`), "preserve"},
		{strings.Replace(with(`"max_surge": 1`), `"kind": "knd"`, `"kind": "knd", "preserve": {"max": 2}`, 1),
			"preserve.for: is required"},
	} {
		_, problems := Parse("a.jsonc", []byte(tt.src))
		if text := problems.Error(); len(problems) == 0 || !strings.Contains(text, tt.problem) {
			t.Errorf("%q, want %q", text, tt.problem)
		}
	}
	key := GroupKey{"default", "g"}
	group := func(src string) Group {
		merged, _ := mustParse(t, src).Merged(Groups{})
		return merged[key]
	}
	plain := group(with(`"max_surge": 1`))
	two := strings.Replace(with(`"max_surge": 1`), `"kind": "knd"`,
		`"kind": "knd", "preserve": {"max": 2, "for": "1h"}`, 1)
	inherits := group(two)
	ends := group(strings.Replace(two, `"size": 3,`, `"size": 3, "preserve": {"max": 0, "for": "0s"},`, 1))
	if p := inherits.Preserve; p.Max != 2 || p.For.D() != time.Hour || ends.Preserve.Max != 0 {
		t.Errorf("inherited %+v, ended %+v", p, ends.Preserve)
	}
	if inherits.InfraHash != plain.InfraHash || inherits.RuntimeHash != plain.RuntimeHash {
		t.Error("preserve changes a hash: it would replace the group")
	}
	if n := inherits.MostInstances(); n != 5 {
		t.Errorf("%d instances count towards the quota, want 5", n)
	}
	if n := MostInstances(mustParse(t, two), key, GroupSpec{}); n != 5 {
		t.Errorf("%d instances count towards the quota, want 5", n)
	}
}
