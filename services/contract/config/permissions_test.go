package config

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// permissionsShard returns a shard with tenants a and b. Tenant a has a static group of template t. An argument of t
// uses the variable role. The parameter dynamic is the content of t's field dynamic. The parameter more holds further
// fields of t.
func permissionsShard(t testing.TB, dynamic, more string) *Shard {
	t.Helper()
	return mustParse(t, `{
  "cluster": {"id": "example", "secrets": {"encryption_key": {"provider": "env"}}},
  "server": {"shard": "a", "provider": {"kind": "mock"}, "subnet_pools": {"p": ["s"], "q": ["t"]}},
  "tenants": {"a": {"max_groups": 2, "max_instances": 10}, "b": {}},
  "load_balancers": {"www": {"provider": "mock"}, "other": {"provider": "mock"}},
  "certificates": {"cert": {"kind": "server", "cn": "{{ .Vars.host }}", "ttl": 1}},
  "templates": {
    "t": {"kind": "knd", "arch": "arm64", "subnet_pool": "p", "instance_type": "small", "instance_types": ["medium"],
          "vars": {"role": "r", "host": "h", "path": "p"},
          "args": {"Role": {"Name": "{{ .Vars.role }}"}, "List": [{"a": 1}], "Deep": {"A": {"B": 1}}},
          "files": {"c.crt": {"kind": "certificate", "template": "cert", "key": {"source": "agent", "name": "c.pub"}},
                    "o.json": {"kind": "storage", "source": "files/{{ .Vars.path }}"}},
          "dynamic": {`+dynamic+`}`+more+`},
    "all": {"kind": "kna", "arch": "arm64", "subnet_pool": "p", "args": {"All": "{{ range $.Vars }}{{ . }}{{ end }}"}}},
  "groups": {"a": {"static": {"template": "t", "size": 7, "instance_type": "big"}, "vars": {"template": "all"}}}
}`)
}

func TestPermissions(t *testing.T) {
	const pointers = `"args": ["/Deep/A", "/Deep/C/D", "/a~1b~0c", "/List", "/"]`
	size := func(n int) *int { return &n }
	static, dynamic := GroupKey{"a", "static"}, GroupKey{"a", "new"}
	for _, tt := range []struct {
		name          string
		dynamic, more string // see permissionsShard
		key           GroupKey
		spec          GroupSpec // of template t if it names none
		args          string
		want          string // paths of the refused fields
	}{
		{name: "the defaults", key: dynamic, spec: GroupSpec{Size: size(500), InstanceType: "medium",
			InstanceTypes: []string{"small"}, SubnetPool: "p", Vars: map[string]string{"free": "x"}}},
		{name: "nothing by default", key: dynamic, spec: GroupSpec{InstanceType: "big",
			InstanceTypes: []string{"small", "huge"},
			SubnetPool:    "q", LoadBalancers: []string{"www"}}, args: `{"X": 1}`,
			want: "instance_type instance_types[1] subnet_pool load_balancers[0] args.X"},
		{name: "another tenant's template", key: GroupKey{"b", "new"}, args: `{"X": 1}`, want: "template"},
		{name: "a name of another tenant's static group", key: GroupKey{"b", "static"}, want: "template"},
		{name: "listed tenants", more: `, "tenants": ["b"]`, key: GroupKey{"b", "new"}},
		{name: "tenants that are not listed", more: `, "tenants": ["b"]`, key: dynamic, want: "template"},
		{name: "no tenant", more: `, "tenants": []`, key: dynamic, want: "template"},
		{name: "no tenant, and a static group", more: `, "tenants": []`, key: static, spec: GroupSpec{Size: size(9)}},
		{name: "a template that does not exist", key: dynamic, spec: GroupSpec{Template: "gone"}},

		{name: "largest size", dynamic: `"max_size": 5`, key: dynamic, spec: GroupSpec{Size: size(5)}},
		{name: "size", dynamic: `"max_size": 5`, key: dynamic, spec: GroupSpec{Size: size(6)}, want: "size"},
		{name: "configured size", dynamic: `"max_size": 5`, key: static, spec: GroupSpec{Size: size(7)}},
		{name: "size of a static group", dynamic: `"max_size": 5`, key: static, spec: GroupSpec{Size: size(8)},
			want: "size"},

		{name: "patterns", dynamic: `"instance_types": ["t4g.*", "m?"]`, key: dynamic,
			spec: GroupSpec{InstanceType: "t4g.nano",
				InstanceTypes: []string{"m7", "m7g", "xt4g.a", "T4g.nano", "t4g/", "t4g./"}},
			want: "instance_types[1] instance_types[2] instance_types[3] instance_types[4] instance_types[5]"},
		{name: "type of the static group", key: static, spec: GroupSpec{InstanceType: "big"}},
		{name: "another type for a static group", key: static, spec: GroupSpec{InstanceType: "huge"},
			want: "instance_type"},

		{name: "listed pool", dynamic: `"subnet_pools": ["q"]`, key: dynamic, spec: GroupSpec{SubnetPool: "q"}},
		{name: "no pool", dynamic: `"subnet_pools": []`, key: dynamic, spec: GroupSpec{SubnetPool: "q"},
			want: "subnet_pool"},
		{name: "listed load balancer", dynamic: `"load_balancers": ["www"]`, key: dynamic,
			spec: GroupSpec{LoadBalancers: []string{"www", "other"}}, want: "load_balancers[1]"},

		{name: "a permitted object", dynamic: pointers, key: dynamic, args: `{"Deep": {"A": {"B": 2, "X": [1]}}}`},
		{name: "a permitted object is replaced", dynamic: pointers, key: dynamic, args: `{"Deep": {"A": null}}`},
		{name: "below a permitted object", dynamic: pointers, key: dynamic, args: `{"Deep": {"C": {"D": {"E": 1}}}}`},
		{name: "above a permitted object", dynamic: pointers, key: dynamic, args: `{"Deep": {"C": {}}}`,
			want: "args.Deep.C"},
		{name: "a list above a permitted object", dynamic: pointers, key: dynamic, args: `{"Deep": [{"A": 1}]}`,
			want: "args.Deep"},
		{name: "null above a permitted object", dynamic: pointers, key: dynamic, args: `{"Deep": null}`,
			want: "args.Deep"},
		{name: "beside a permitted object", dynamic: pointers, key: dynamic,
			args: `{"Deep": {"A": 1, "B": 1, "C": {"D": 1, "E": 1}}}`,
			want: "args.Deep.B args.Deep.C.E"},
		{name: "a permitted list", dynamic: pointers, key: dynamic, args: `{"List": []}`},
		{name: "escapes", dynamic: pointers, key: dynamic, args: `{"a/b~c": 1, "a~1b~0c": 1, "a": {"b~c": 1}, "": 1}`,
			want: "args.a args[\"a~1b~0c\"]"},
		{name: "case", dynamic: pointers, key: dynamic, args: `{"deep": {"A": 1}, "DEEP": {"A": 1}, "list": []}`,
			want: "args.DEEP args.deep args.list"},
		{name: "the name is a path", dynamic: pointers, key: dynamic, args: `{"Deep/A": 1, "/Deep/A": 1, "Deep.A": 1}`,
			want: `args["/Deep/A"] args["Deep.A"] args["Deep/A"]`},
		{name: "arguments of a static group are ignored", key: static, args: `{"X": 1}`},

		{name: "variables that choose", key: dynamic, spec: GroupSpec{Vars: map[string]string{"role": "x", "host": "x",
			"path": "x", "other": "x"}}, want: "vars.host vars.path vars.role"},
		{name: "listed variables", dynamic: `"vars": ["role"]`, key: dynamic, spec: GroupSpec{Vars: map[string]string{
			"role": "x", "other": "x"}}, want: "vars.other"},
		{name: "no variable", dynamic: `"vars": []`, key: dynamic, spec: GroupSpec{
			Vars: map[string]string{"other": "x"}},
			want: "vars.other"},
		{name: "variables of a static group", key: static, spec: GroupSpec{Vars: map[string]string{"role": "x",
			"o": "x"}},
			want: "vars.role"},
		{name: "an argument reads all variables", key: dynamic, spec: GroupSpec{Template: "all",
			Vars: map[string]string{"any": "x"}}, want: "vars.any"},
	} {
		s := permissionsShard(t, tt.dynamic, tt.more)
		spec := tt.spec
		if spec.Template == "" {
			spec.Template = "t"
		}
		if tt.args != "" {
			if err := json.Unmarshal([]byte(tt.args), &spec.Args); err != nil {
				t.Fatal(err)
			}
		}
		c := &checker{s: s.WithDefaults()}
		c.permissions(tt.key, spec, "")
		problems := c.problems()
		var have []string
		for _, p := range problems {
			have = append(have, p.Path)
			if !strings.Contains(p.Hint, "in the shard's configuration") {
				t.Errorf("%s: %s does not say what to do", tt.name, p)
			}
		}
		if diff := cmp.Diff(tt.want, strings.Join(have, " ")); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
		if tt.spec.Template == "gone" {
			continue
		}
		var denied *DeniedError
		if err := CheckUpsert(s, tt.key, spec); errors.As(err, &denied) != (tt.want != "") {
			t.Errorf("%s: CheckUpsert: %v", tt.name, err)
		}
		// Merged checks stored groups by the same rules as CheckUpsert. A refused group keeps its size.
		one := Groups{Tenants: map[string]map[string]GroupSpec{tt.key.Tenant: {tt.key.Group: spec}}}
		merged, _ := s.Merged(one)
		if g := merged[tt.key]; (g.Refused == "") != (tt.want == "") || spec.Size != nil && g.Size != *spec.Size {
			t.Errorf("%s: the recorded group is %+v", tt.name, g)
		}
	}
}

func TestDynamicSubnetPools(t *testing.T) {
	s := permissionsShard(t, "", "")
	check := func(pool string) string {
		if err := CheckUpsert(s, GroupKey{"a", "new"}, GroupSpec{Template: "t", SubnetPool: pool}); err != nil {
			return err.Error()
		}
		return ""
	}
	s.Server.DynamicSubnetPools = []string{"q"}
	if problem := check("q"); problem != "" {
		t.Error(problem)
	}
	if problem := check(""); !strings.HasPrefix(problem, `subnet_pool: "p" is not among the pools`) {
		t.Errorf("the template's pool is closed to dynamic groups: %s", problem)
	}
	s.Server.DynamicSubnetPools = []string{}
	if check("") == "" || check("q") == "" {
		t.Error("a dynamic group was accepted although no pool is open")
	}
}

func TestCheckQuota(t *testing.T) {
	s := permissionsShard(t, "", "")
	for _, tt := range []struct {
		tenant        string
		before, after Usage
		want          []string
	}{
		{"a", Usage{1, 9}, Usage{2, 10}, nil},
		{"a", Usage{2, 10}, Usage{3, 10},
			[]string{"group: tenant a would have 3 dynamic groups, at most 2 are permitted " +
				"(to permit more, change tenants.a.max_groups in the shard's configuration)"}},
		{"a", Usage{2, 10}, Usage{2, 11}, []string{"size: tenant a would have 11 instances, at most 10 are permitted " +
			"(to permit more, change tenants.a.max_instances in the shard's configuration)"}},
		{"a", Usage{5, 50}, Usage{5, 50}, nil},
		{"a", Usage{5, 50}, Usage{5, 49}, nil},
		{"b", Usage{}, Usage{100, 10_000}, nil},
		{"default", Usage{}, Usage{100, 10_000}, nil},
	} {
		if diff := cmp.Diff(tt.want, lines(CheckQuota(s, tt.tenant, tt.before, tt.after))); diff != "" {
			t.Errorf("%s, %v to %v: (-want +got)\n%s", tt.tenant, tt.before, tt.after, diff)
		}
	}
	// Stored groups that together exceed a quota are reported. Static groups count towards the quota.
	_, problems := s.Merged(groupsOf(t,
		`{"a": {"x": {"template": "t", "size": 1}, "y": {"template": "t"}, "z": {"template": "t", "deleted": true}}}`))
	want := []string{
		`a: tenant a would have 3 dynamic groups, at most 2 are permitted (to permit more, change tenants.a.max_groups in the shard's configuration)`}
	if diff := cmp.Diff(want, lines(problems)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// FuzzParsePointer checks that an accepted pointer names exactly one member. The parsed names, escaped and joined
// again, must give the same pointer.
func FuzzParsePointer(f *testing.F) {
	for _, seed := range []string{"", "/", "/a/b", "/a~1b/~0", "/~01", "/~", "/~2", "a", "//", "/a/0"} {
		f.Add(seed)
	}
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	f.Fuzz(func(t *testing.T, text string) {
		names, err := parsePointer(text)
		if err != nil {
			if strings.HasPrefix(text, "/") && !strings.Contains(text, "~") {
				t.Errorf("%q is refused: %v", text, err)
			}
			return
		}
		again := ""
		for _, name := range names {
			again += "/" + escape.Replace(name)
		}
		if again != text {
			t.Errorf("%q was read as %q", text, names)
		}
		// args has the member that the pointer names, and is permitted. other has another member in its place, and is
		// refused.
		args := map[string]any{names[len(names)-1]: 1}
		other := map[string]any{names[len(names)-1] + "x": 1}
		for i := len(names) - 2; i >= 0; i-- {
			args, other = map[string]any{names[i]: args}, map[string]any{names[i]: other}
		}
		for n, tree := range []map[string]any{args, other} {
			c := &checker{}
			if c.permittedArgs(tree, [][]string{names}, "t", "args"); len(c.found) != n {
				t.Errorf("%q with %v: %v", text, tree, c.problems())
			}
		}
	})
}
