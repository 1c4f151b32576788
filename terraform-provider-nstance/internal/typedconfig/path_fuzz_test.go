package typedconfig

import (
	"slices"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/path"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// FuzzAttributePath checks that AttributePath returns an attribute of the schema, or the empty path, for every input.
func FuzzAttributePath(f *testing.F) {
	for _, seed := range []string{
		"", "server.shard", `groups.default.workers.args["a.b"].c`, `groups["default"]`, "groups.default",
		"defaults.instance_types[3]", "templates.worker.files", "nosuch[0].x", "[", `["`,
		"subnet_pools.a.subnets[999999999999]", `groups["a/b"]["c"].size`, "size", "args.x", "vars[1]",
	} {
		f.Add(seed)
	}
	names := Names()
	f.Fuzz(func(t *testing.T, problem string) {
		at := AttributePath(problem)
		steps := at.Steps()
		if len(steps) == 0 {
			return
		}
		if first, ok := steps[0].(path.PathStepAttributeName); !ok || !slices.Contains(names, string(first)) {
			t.Errorf("%q: %s is no attribute of a shard", problem, at)
		}
		if elements, err := config.SplitPath(problem); err != nil || len(steps) > len(elements) {
			t.Errorf("%q: %s is longer, or %v", problem, at, err)
		}
	})
}

func TestSplitKey(t *testing.T) {
	for key, good := range map[string]bool{"default/workers": true, "": false, "/": false, "a": false, "a/": false,
		"/b": false, "a/b/c": false} {
		if _, _, err := splitKey(key); (err == nil) != good {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// FuzzSplitKey checks that splitKey returns two nonempty names that form the key when they are joined again.
func FuzzSplitKey(f *testing.F) {
	for _, seed := range []string{"default/workers", "/", "a/b/c", "a//b", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		outer, inner, err := splitKey(key)
		switch {
		case err != nil && outer+inner != "":
			t.Errorf("%q: %q, %q beside %v", key, outer, inner, err)
		case err == nil && (outer+"/"+inner != key || outer == "" || inner == "" ||
			config.GroupKey{Tenant: outer, Group: inner}.String() != key):
			t.Errorf("%q is %q, %q", key, outer, inner)
		}
	})
}
