package shard

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// TestEndsWarning checks that the plan of a shard's destroy names what ends, and warns of nothing if nothing can end.
func TestEndsWarning(t *testing.T) {
	const template = `"w": {"kind": "wrk"}`
	for name, test := range map[string]struct {
		groups, templates string
		want, not         string
	}{
		"static groups": {`"a": {"template": "w", "size": 2}, "b": {"template": "w", "size": 0}, "c": {"template": "w",
			"size": 1}`, template, "those of the static groups (default/a, default/c) and of all dynamic groups", "default/b"},
		"only dynamic groups": {"", template, "drained and deleted first: those of all dynamic groups.", "static"},
		"nothing":             {"", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := new(config.Shard)
			if err := json.Unmarshal([]byte(`{"server": {"shard": "dev-1"}, "templates": {`+test.templates+`},
				"groups": {"default": {`+test.groups+`}}}`), s); err != nil {
				t.Fatal(err)
			}
			diags := endsWarning(document{shard: s})
			if test.want == "" {
				if len(diags) > 0 {
					t.Errorf("a warning: %v", diags)
				}
				return
			}
			if len(diags) != 1 || diags.HasError() {
				t.Fatalf("%v", diags)
			}
			text := diags[0].Summary() + ": " + diags[0].Detail()
			if !strings.Contains(text, "All instances of shard dev-1 will end") || !strings.Contains(text, test.want) ||
				test.not != "" && strings.Contains(text, test.not) {
				t.Errorf("%s", text)
			}
		})
	}
}
