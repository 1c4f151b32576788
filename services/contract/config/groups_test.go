package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// fleet is a config with a static group, templates for dynamic groups, and two pools. Dynamic groups may use only the
// pool p.
const fleet = `{
  "cluster": {"id": "example", "secrets": {"encryption_key": {"provider": "env"}}},
  "server": {"shard": "a", "provider": {"kind": "mock"}, "subnet_pools": {"p": ["s"], "own": ["t"]}, "dynamic_subnet_pools": ["p"]},
  "tenants": {"prod": {}},
  "load_balancers": {"www": {"provider": "mock"}},
  "templates": {"t": {"kind": "knd", "arch": "arm64", "subnet_pool": "p", "instance_type": "small", "vars": {"v": "t"}, "args": {"a": "{{ .Vars.v }}"},
                      "tenants": ["default", "prod"], "dynamic": {"args": ["/b", "/x"], "instance_types": ["large", "?"], "load_balancers": ["www"], "vars": ["a", "v", "x"]}},
                "closed": {"kind": "knc", "arch": "arm64", "subnet_pool": "own", "tenants": ["prod"]},
                "needy": {"kind": "knn", "arch": "arm64", "subnet_pool": "p", "args": {"a": "{{ .Vars.needed }}"}, "tenants": ["prod"], "dynamic": {"vars": ["needed"]}}},
  "groups": {"default": {"g": {"template": "t", "size": 3, "vars": {"v": "g", "w": "g"}}}}%s
}`

func fleetShard(t testing.TB, rest string) *Shard {
	t.Helper()
	return mustParse(t, strings.Replace(fleet, "%s", rest, 1))
}

func groupsOf(t testing.TB, src string) Groups {
	t.Helper()
	g, problems := ParseGroups("groups.jsonc", []byte(src))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return g
}

func TestOverride(t *testing.T) {
	s := fleetShard(t, "")
	key := GroupKey{"default", "g"}
	static := mustMerge(t, s, Groups{})[key]
	g := mustMerge(t, s,
		groupsOf(t, `{"default": {"g": {"size": 0, "instance_type": "large", "vars": {"v": "o", "x": "o"}}}}`))[key]
	if g.Size != 0 || g.InstanceType != "large" || !g.Static {
		t.Errorf("%+v", g)
	}
	if diff := cmp.Diff(map[string]string{"v": "o", "w": "g", "x": "o"}, g.Vars); diff != "" {
		t.Error(diff)
	}
	if g.InfraHash == static.InfraHash || g.RuntimeHash == static.RuntimeHash {
		t.Error("the hashes do not follow the override")
	}
	// An empty override changes nothing.
	if diff := cmp.Diff(static, mustMerge(t, s, groupsOf(t, `{"default": {"g": {}}}`))[key],
		cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func TestMergeIgnoresFieldsOfStaticGroups(t *testing.T) {
	s := fleetShard(t, "")
	merged, problems := s.Merged(groupsOf(t, `{"default": {
		"g": {"template": "closed", "size": 9, "subnet_pool": "own", "max_surge": 5, "args": {"b": 1}, "drain_timeout": "1s"},
		"freed": {"size": 4}}, "prod": {"free": {"vars": {"x": "y"}}}}`))
	want := []string{
		`warning: default.g.args: is ignored: the group is static`,
		`warning: default.g.drain_timeout: is ignored: the group is static`,
		`warning: default.g.max_surge: is ignored: the group is static`,
		`warning: default.g.subnet_pool: is ignored: the group is static`,
		`warning: default.g.template: is ignored: the group is static`,
		`warning: default.freed: overrides a group that the shard config does not have: the entry is ignored`,
		`warning: prod.free: overrides a group that the shard config does not have: the entry is ignored`,
	}
	if diff := cmp.Diff(want, lines(problems)); diff != "" {
		t.Error(diff)
	}
	static := mustMerge(t, s, Groups{})
	static[GroupKey{"default", "g"}] = func(g Group) Group { g.Size = 9; return g }(static[GroupKey{"default", "g"}])
	if diff := cmp.Diff(static, merged); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	// A dynamic group is being deleted, and a static group with the same name was added to the shard config.
	merged, problems = s.Merged(groupsOf(t, `{"default": {"g": {"template": "t", "size": 9, "deleted": true}}}`))
	if diff := cmp.Diff(
		[]string{
			`warning: default.g: is being deleted as a dynamic group, but the shard config has it: the entry is ignored`}, lines(problems)); diff != "" {
		t.Error(diff)
	}
	if g := merged[GroupKey{"default", "g"}]; g.Size != 3 || g.Deleted {
		t.Errorf("%+v", g)
	}
}

func TestDynamicGroups(t *testing.T) {
	s := fleetShard(t, "")
	merged := mustMerge(t, s,
		groupsOf(t,
			`{"prod": {"g": {"template": "t", "size": 2, "load_balancers": ["www"], "drain_timeout": "1d"}, "n": {"template": "needy", "vars": {"needed": "x"}}}}`))
	g := merged[GroupKey{"prod", "g"}]
	if len(merged) != 3 || g.Static || g.Size != 2 || g.InstanceType != "small" || g.Vars["v"] != "t" ||
		g.DrainTimeout != Duration(24*time.Hour) || g.LoadBalancers[0] != "www" {
		t.Errorf("%+v", merged)
	}

	// If a config removes something that dynamic groups use, that is an error. The group is still in the result, so
	// that its instances are not deleted.
	merged, problems := s.Merged(groupsOf(t, `{
		"gone": {"g": {"template": "t"}},
		"prod": {"a": {"template": "gone", "size": 6}, "b": {"template": "closed"}, "c": {"template": "t", "subnet_pool": "gone"}, "d": {"template": "t", "load_balancers": ["gone"]},
		         "e": {"template": "needy", "size": 5}, "f": {"template": "t", "args": {"x": "{{ .Foo }}"}}, "ok": {"template": "t"}}}`))
	want := []string{
		`gone.g: there is no tenant "gone" (there are prod)`,
		`gone.g.template: template t may not be used by tenant gone (to permit it, change templates.t.tenants in the shard's configuration)`,
		`prod.a.template: there is no template "gone" (there are closed, needy, t)`,
		`prod.b.subnet_pool: "own" is not among the pools of dynamic groups (to permit it, change server.dynamic_subnet_pools in the shard's configuration)`,
		`prod.c.subnet_pool: there is no subnet pool "gone" (there are own, p)`,
		`prod.c.subnet_pool: "gone" is not a permitted subnet pool (to permit it, change templates.t.dynamic.subnet_pools in the shard's configuration)`,
		`prod.d.load_balancers[0]: there is no load balancer "gone" (there are www)`,
		`prod.d.load_balancers[0]: "gone" is not a permitted load balancer (to permit it, change templates.t.dynamic.load_balancers in the shard's configuration)`,
		`templates.needy.args.a: template: line 1:8: at <.Vars.needed>: map has no entry for key "needed" (rendered for group prod/e)`,
		`prod.f.args.x: template: line 1:3: there is no .Foo; there are .Instance, .Cluster, .Server, .Provider, .Vars, .Image (rendered for group prod/f)`,
	}
	if diff := cmp.Diff(want, lines(problems)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for group, size := range map[GroupKey]int{{"gone", "g"}: 1, {"prod", "a"}: 6, {"prod", "b"}: 1, {"prod", "c"}: 1,
		{"prod", "d"}: 1, {"prod", "e"}: 5, {"prod", "f"}: 1, {"prod", "ok"}: 1} {
		if g, ok := merged[group]; !ok || g.Size != size {
			t.Errorf("%s: %+v", group, g)
		}
	}
}

func TestRemovingAStaticGroupFreesIt(t *testing.T) {
	s := fleetShard(t, "")
	dynamic := groupsOf(t, `{"default": {"g": {"template": "t", "size": 7}}}`)
	if merged, problems := s.Merged(dynamic); len(problems) != 1 || !problems[0].Warning ||
		!merged[GroupKey{"default", "g"}].Static {
		t.Errorf("%+v, %v", merged, problems)
	}
	delete(s.Groups["default"], "g")
	g, ok := mustMerge(t, s, dynamic)[GroupKey{"default", "g"}]
	if !ok || g.Static || g.Size != 7 || g.Vars["v"] != "t" {
		t.Errorf("%+v", g)
	}
}

func TestDeletedGroup(t *testing.T) {
	s := fleetShard(t, "")
	g := mustMerge(t, s,
		groupsOf(t,
			`{"prod": {"x": {"template": "t", "size": 4, "drain_timeout": "9s", "load_balancers": ["www"]}}}`))[GroupKey{"prod", "x"}]
	deleted := func(template string) Groups {
		return groupsOf(t, `{"prod": {"x": {"template": "`+template+
			`", "size": 4, "drain_timeout": "9s", "load_balancers": ["www"], "deleted": true}}}`)
	}
	// A deleted group is drained, even if its template is gone.
	for _, template := range []string{"t", "gone"} {
		deletedGroup := mustMerge(t, s, deleted(template))[g.GroupKey]
		if deletedGroup.Size != 0 || !deletedGroup.Deleted || deletedGroup.DrainTimeout != Duration(9*time.Second) ||
			deletedGroup.LoadBalancers[0] != "www" {
			t.Errorf("%+v", deletedGroup)
		}
	}
}

func TestTerminating(t *testing.T) {
	s := fleetShard(t, `, "terminating": true`)
	merged := mustMerge(t, s,
		groupsOf(t,
			`{"default": {"g": {"size": 5}}, "prod": {"a": {"template": "t", "size": 2}, "b": {"template": "gone", "size": 2}}}`))
	if len(merged) != 3 {
		t.Errorf("%+v", merged)
	}
	for key, g := range merged {
		if g.Size != 0 || g.DrainTimeout == 0 {
			t.Errorf("%s: %+v", key, g)
		}
	}
}

func TestCheckUpsert(t *testing.T) {
	s := fleetShard(t, "")
	static, dynamic := GroupKey{"default", "g"}, GroupKey{"prod", "new"}
	n, negative, zero := 2, -2, 0
	const own = "size, instance_type, vars, rollout.paused, rollout.revision"
	for _, tt := range []struct {
		name string
		key  GroupKey
		spec GroupSpec
		want string
	}{
		{"static", static, GroupSpec{Size: &n, InstanceType: "x", Vars: map[string]string{"a": "b"}}, ""},
		{"static, nothing", static, GroupSpec{}, ""},
		{"static, restricted", static, GroupSpec{Template: "t", Size: &n, Args: map[string]any{"a": "b"},
			SubnetPool: "p", LoadBalancers: []string{"www"}, Rollout: &Rollout{Paused: true, Canary: 1}},
			`args: cannot be changed: group default/g is static, only ` + own + ` can be
load_balancers: cannot be changed: group default/g is static, only ` + own + ` can be
rollout.canary: cannot be changed: group default/g is static, only ` + own + ` can be
subnet_pool: cannot be changed: group default/g is static, only ` + own + ` can be
template: cannot be changed: group default/g is static, only ` + own + ` can be`},
		{"static, negative", static, GroupSpec{Size: &negative}, "size: cannot be negative"},
		{"dynamic", dynamic, GroupSpec{Template: "t", Size: &zero, LoadBalancers: []string{"www"},
			Args: map[string]any{"x": []any{1.0, "{{ .Vars.v }}"}}}, ""},
		{"dynamic, the same name as a static one of another tenant", GroupKey{"prod", "g"}, GroupSpec{Template: "t"},
			""},
		{"no template", dynamic, GroupSpec{Size: &n}, "template: is required"},
		{"wrong template", dynamic, GroupSpec{Template: "tt"},
			`template: there is no template "tt" (did you mean "t"?)`},
		{"wrong tenant", GroupKey{"dev", "new"}, GroupSpec{Template: "t"},
			`template: template t may not be used by tenant dev (to permit it, change templates.t.tenants in the shard's configuration)`},
		{"wrong name", GroupKey{"prod", "New"}, GroupSpec{Template: "t"},
			`name "New" may only have lower-case letters, digits and dashes`},
		{"another pool", dynamic, GroupSpec{Template: "closed", SubnetPool: "p"}, ""},
		{"does not render", dynamic, GroupSpec{Template: "needy"},
			`templates.needy.args.a: template: line 1:8: at <.Vars.needed>: map has no entry for key "needed" (rendered for group prod/new)`},
		{"renders", dynamic, GroupSpec{Template: "needy", Vars: map[string]string{"needed": "x"}}, ""},
		{"args do not render", dynamic, GroupSpec{Template: "t", Args: map[string]any{
			"b": map[string]any{"c": "{{ .Nonce }}"}}},
			`args.b.c: template: line 1:3: there is no .Nonce; there are .Instance, .Cluster, .Server, .Provider, .Vars, .Image (rendered for group prod/new)`},
		{"args loop", dynamic, GroupSpec{Template: "t", Args: map[string]any{"b": "{{ range 999999999999 }}{{ end }}"}},
			`args.b: template: line 1:9: range is available over $.Vars and $.Image only (rendered for group prod/new)`},
		{"deleted", dynamic, GroupSpec{Template: "t", Deleted: true}, "deleted: is the server's own mark"},
		{"surge and limit", dynamic, GroupSpec{Template: "t", MaxSurge: &zero, MaxUnhealthy: "many"},
			`max_surge: must be more than 0
max_unhealthy: "many" is neither a count such as "3" nor a percentage such as "40%"`},
	} {
		err := CheckUpsert(s, tt.key, tt.spec)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
		// A group that CheckUpsert accepts can be merged.
		one := Groups{Tenants: map[string]map[string]GroupSpec{tt.key.Tenant: {tt.key.Group: tt.spec}}}
		if _, problems := s.Merged(one); err == nil && len(problems) > 0 {
			t.Errorf("%s was accepted, but does not merge: %v", tt.name, problems)
		}
	}
}

func TestParseGroups(t *testing.T) {
	for _, tt := range []struct {
		src  string
		want []string
	}{
		{`{}`, nil},
		{`{"$version": 1, "$term": 18446744073709551615, "$revision": 1, "default": {"g": {"size": 1}}}`, nil},
		{`{"$version": @2}`, []string{`$version: version 2 of this document is not known, the newest known is 1`}},
		{`{"$term": @-1}`, []string{`$term: -1 is not a whole number, or too large`}},
		{`{@"$x": 1}`, []string{`$x: there is no such field (there are $version, $term, $revision)`}},
		{`{@"$terms": 1}`, []string{`$terms: there is no such field (did you mean "$term"?)`}},
		{`@[]`, []string{`want an object, have a list`}},
		{`{"default": @[]}`, []string{`default: want an object, have a list`}},
		{`{@"Default": {@"G": {"size": @-1, @"sizes": 2, "max_unhealthy": @"x", "instance_types": ["a", @"a"]}}}`,
			[]string{
				`Default: name "Default" may only have lower-case letters, digits and dashes`,
				`Default.G: name "G" may only have lower-case letters, digits and dashes`,
				`Default.G.size: cannot be negative`, `Default.G.sizes: there is no such field (did you mean "size"?)`,
				`Default.G.max_unhealthy: "x" is neither a count such as "3" nor a percentage such as "40%"`,
				`Default.G.instance_types[1]: "a" is there twice`}},
		{`{"default": {"a": {}, @"a": {}}}`, []string{`default.a: the field is there twice, first in line 1`}},
	} {
		src, want := marked(tt.src, tt.want)
		g, problems := ParseGroups("f", []byte(src))
		if diff := cmp.Diff(want, lines(problems)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", src, diff)
		}
		if len(problems) > 0 && !cmp.Equal(g, Groups{}) {
			t.Errorf("%s: %+v", src, g)
		}
	}
}
