package policy_test

import (
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/policy"
)

func TestEvaluate(t *testing.T) {
	const zone = `resource.name.startsWith("projects/p/zones/z/`
	attributes := policy.Attributes{Name: "projects/p/zones/z/instances/wrk-1", Type: "compute.googleapis.com/Instance",
		API: map[string]string{"storage.googleapis.com/objectListPrefix": "shard/a/"}}
	for expression, want := range map[string]bool{
		zone + `")`: true, `resource.name.startsWith("projects/p/zones/y/")`: false,
		zone + `") && !` + zone + `instances/wrk")`:                                            false,
		`resource.name.endsWith("x") || resource.type == "compute.googleapis.com/Instance"`:    true,
		`!(resource.name.endsWith("x") || resource.name.endsWith("1"))`:                        false,
		`api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("shard/")`: true,
		`api.getAttribute("other", "shard/b").startsWith("shard/a")`:                           false,
		`resource.name == "a b" || resource.name.startsWith("projects")`:                       true,
	} {
		if got, err := policy.Evaluate(expression, attributes); err != nil || got != want {
			t.Errorf("%s is %t, %v, want %t", expression, got, err, want)
		}
	}
	for _, expression := range []string{``, `resource.name`, `resource.labels.x == "1"`, `resource.name.matches("x")`,
		`resource.name.startsWith("x"`, `resource.name == "a" + "b"`,
		`(resource.name == "a"`, `resource.name == "a" "b"`} {
		if got, err := policy.Evaluate(expression, attributes); err == nil {
			t.Errorf("%s is %t, want an error", expression, got)
		}
	}
}

func TestPolicy(t *testing.T) {
	var p policy.Policy
	before := p.Get(3)
	conditional := map[string]any{"version": 3, "etag": before["etag"], "bindings": []any{
		map[string]any{"role": "roles/a", "members": []any{"user:x"}},
		map[string]any{"role": "roles/b", "members": []any{"user:x"}, "condition": map[string]any{"title": "t",
			"expression": `resource.name.startsWith("a")`}},
		map[string]any{"role": "roles/c", "members": []any{}},
	}}
	if _, err := p.Set(conditional); err != nil {
		t.Fatal(err)
	}
	if got := len(p.Bindings()); got != 2 {
		t.Errorf("%d bindings, want those with members", got)
	}
	if _, err := p.Set(map[string]any{"etag": before["etag"]}); err == nil {
		t.Error("a stale etag is accepted")
	}
	delete(conditional, "etag")
	conditional["version"] = 1
	if _, err := p.Set(conditional); err == nil {
		t.Error("a condition in a policy of version 1 is accepted")
	}
	conditional["version"] = 3
	conditional["bindings"] = []any{map[string]any{"role": "roles/b", "members": []any{"user:x"},
		"condition": map[string]any{"title": "a", "expression": strings.Repeat(`resource.name == "a" || `, 13) +
			`resource.name == "b"`}}}
	if _, err := p.Set(conditional); err == nil {
		t.Error("a condition with 13 logical operators is accepted")
	}
	if p.Get(1)["version"] != 1 || p.Get(3)["version"] != 3 {
		t.Errorf("versions %v and %v, want those that the caller knows", p.Get(1)["version"], p.Get(3)["version"])
	}
	for name, want := range map[string]bool{"abc": true, "xyz": false} {
		if got := p.Allows("user:x", policy.Attributes{Name: name}, func(role string) bool {
			return role == "roles/b"
		}); got != want {
			t.Errorf("%s is allowed: %t", name, got)
		}
	}
	if p.Allows("user:y", policy.Attributes{}, func(string) bool { return true }) {
		t.Error("another member is allowed")
	}
}
