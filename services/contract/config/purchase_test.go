package config

import (
	"strings"
	"testing"
)

// TestPurchaseProblems checks which purchase options are refused, and which path each problem has.
func TestPurchaseProblems(t *testing.T) {
	group := func(rest string) string {
		return strings.Replace(strings.Replace(fleet, "%s", "", 1), `"size": 3,`, `"size": 3, `+rest+",", 1)
	}
	const eighty = `"purchase": {"spot_percent": 80}`
	for _, tt := range []struct{ src, problem string }{
		{group(`"purchase": {"on_demand_base": 1}`), "spot_percent"},
		{group(`"purchase": {"spot_percent": 101}`), "purchase.spot_percent: is 101, want 1 to 100"},
		{group(`"purchase": {"spot_percent": -1}`), "purchase.spot_percent: is -1, want 1 to 100"},
		{group(`"purchase": {"spot_percent": 80, "on_demand_base": -1}`), "on_demand_base"},
		{group(`"purchase": {"spot_percent": 80, "fallback": "ondemand"}`), "is none of none, on_demand"},
		{strings.Replace(group(eighty), `"kind": "mock"`, `"kind": "tmux"`, 1),
			"purchase: is not possible: provider tmux has no spot market"},
		{group(eighty + `, "args": {"market": "spot"}`), "purchase: contradicts groups.default.g.args.market"},
		{strings.Replace(group(eighty), `"templates"`, `"defaults": {"args": {"market": "spot"}}, "templates"`, 1),
			"purchase: contradicts defaults.args.market"},
	} {
		_, problems := Parse("a.jsonc", []byte(tt.src))
		if text := problems.Error(); len(problems) == 0 || !strings.Contains(text, tt.problem) {
			t.Errorf("%q, want %q", text, tt.problem)
		}
	}
	s := mustParse(t, group(`"purchase": {"spot_percent": 80, "on_demand_base": 2, "fallback": "on_demand",
		"return_to_spot": "1h"}`))
	plain := mustParse(t, group(`"max_surge": 1`))
	groups, _ := s.Merged(Groups{})
	before, _ := plain.Merged(Groups{})
	key := GroupKey{"default", "g"}
	if p := groups[key].Purchase; p.SpotPercent != 80 || p.OnDemandBase != 2 || p.Fallback != FallbackOnDemand ||
		p.ReturnToSpot.D().Hours() != 1 {
		t.Errorf("%+v", p)
	}
	if groups[key].InfraHash != before[key].InfraHash {
		t.Error("purchase options change the infra hash: they would replace the group")
	}
}
