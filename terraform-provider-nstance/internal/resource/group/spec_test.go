package group

import (
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
)

func TestReadSpec(t *testing.T) {
	unknown := tftypes.NewValue(tftypes.DynamicPseudoType, tftypes.UnknownValue)
	for _, test := range []struct {
		name     string
		value    tftypes.Value
		known    bool
		problems []string
	}{
		{"a text", document.Decode("worker"), true, []string{"want an object, have a text"}},
		{"a list", document.Decode([]any{"worker"}), true, []string{"want an object, have a list"}},
		{"null", document.Decode(nil), true, []string{"want an object, have null"}},
		{"unknown", unknown, false, nil},
		{"too large", document.Decode(map[string]any{"template": strings.Repeat("x", 2<<20)}), true,
			[]string{"at most 98304 are allowed"}},
		{"a number that is too large", document.Decode(map[string]any{"template": "t", "size": 1e30}), true,
			[]string{"size: "}},
		{"no template", document.Decode(map[string]any{"size": 1.0}), true, []string{"template: is required"}},
		{"misspelt", document.Decode(map[string]any{"template": "t", "rollout": map[string]any{"canry": 1.0},
			"max_unhealth": "3"}), true, []string{`max_unhealth: there is no such field (did you mean "max_unhealthy"?)`,
			`rollout.canry: there is no such field (did you mean "canary"?)`}},
		{"misspelt beside an unknown value", document.Object(map[string]tftypes.Value{"template": unknown,
			"rollout": document.Decode(map[string]any{"canry": 1.0})}), false, []string{"rollout.canry: "}},
		{"wrong beside an unknown value", document.Object(map[string]tftypes.Value{"template": unknown,
			"max_surge": document.Decode(0.0)}), true, []string{"max_surge: must be more than 0"}},
		{"unknown values", document.Object(map[string]tftypes.Value{"template": unknown, "size": unknown,
			"vars": document.Object(map[string]tftypes.Value{"a": unknown})}), false, nil},
		{"good", document.Decode(map[string]any{"template": "t", "args": map[string]any{"a": []any{1.0, nil}}}), true,
			nil},
	} {
		r := readSpec(map[string]tftypes.Value{"spec": test.value})
		if len(test.problems) == 0 && r.known != test.known {
			t.Errorf("%s: known %t", test.name, r.known)
		}
		if len(r.problems) != len(test.problems) || len(r.diagnostics()) != len(test.problems) {
			t.Errorf("%s: %v", test.name, r.problems)
			continue
		}
		for i, want := range test.problems {
			if got := r.problems[i].String(); !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %s", test.name, got, want)
			}
		}
	}
}

// TestDrifted checks that a change of one field leaves the form of all others as it was.
func TestDrifted(t *testing.T) {
	before := document.Decode(map[string]any{"template": "t", "size": 3.0, "drain_timeout": "90s",
		"vars":           map[string]any{},
		"instance_types": []any{"a"}})
	have := readSpec(map[string]tftypes.Value{"spec": before})
	if len(have.problems) > 0 {
		t.Fatal(have.problems)
	}
	five := 5
	now := canonical(have.spec)
	now.Size, now.Rollout = &five, &config.Rollout{Paused: true}
	got, err := drifted(before, canonical(have.spec), now)
	if err != nil {
		t.Fatal(err)
	}
	want := document.Decode(map[string]any{"template": "t", "size": 5.0, "drain_timeout": "90s",
		"vars":           map[string]any{},
		"instance_types": []any{"a"}, "rollout": map[string]any{"paused": true}})
	if !got.Equal(want) {
		t.Errorf("%s, want %s", got, want)
	}
}
