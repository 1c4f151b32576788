package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// whole returns the golden config and the golden groups. The config sets every field.
func whole(t testing.TB) (*Shard, Groups) {
	s := mustParse(t, string(read(t, testdata+"/v1/config.jsonc")))
	groups, problems := ParseGroups("groups.jsonc", read(t, testdata+"/v1/groups.jsonc"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return s, groups
}

func mustMerge(t testing.TB, s *Shard, dynamic Groups) map[GroupKey]Group {
	t.Helper()
	merged, problems := s.Merged(dynamic)
	if len(problems) > 0 {
		t.Fatalf("unexpected problems:\n%v", problems)
	}
	return merged
}

func TestMergeOrder(t *testing.T) {
	s := mustParse(t, `{
  "cluster": {"id": "example", "secrets": {"encryption_key": {"provider": "env"}}},
  "server": {"shard": "a", "provider": {"kind": "mock"}, "subnet_pools": {"p": ["s1", "s2"], "q": ["s3"]}, "default_drain_timeout": "7m"},
  "load_balancers": {"www": {"provider": "mock"}},
  "defaults": {"args": {"d": "d", "dt": "d", "tree": {"d": 1, "dt": 1, "deep": {"d": true, "dg": "d"}}, "list": [1, 2], "object": {"x": 1}, "scalar": 1},
               "vars": {"d": "d", "dt": "d", "dg": "d"}, "userdata": {"content": "defaults"}},
  "templates": {"t": {"kind": "knd", "arch": "arm64", "size": 4, "instance_type": "tt", "instance_types": ["t2"], "subnet_pool": "p",
                      "args": {"dt": "t", "tree": {"dt": 2, "deep": {"t": null}}, "list": [3], "object": "text", "scalar": {"y": 1}},
                      "vars": {"dt": "t", "t": "t"}},
                "u": {"kind": "knu", "arch": "amd64", "subnet_pool": "q", "userdata": {"encoding": "base64", "content": "template"}}},
  "groups": {"default": {
    "plain": {"template": "t"},
    "rich": {"template": "t", "size": 0, "instance_type": "gt", "instance_types": ["g2", "g3"], "subnet_pool": "q", "args": {"tree": {"deep": {"dg": "g"}}, "list": []},
             "vars": {"dg": "g"}, "load_balancers": ["www"], "drain_timeout": "0s", "max_surge": 3, "max_unhealthy": "5"},
    "other": {"template": "u"}}}
}`)
	merged := mustMerge(t, s, Groups{})
	want := map[GroupKey]Group{
		{"default", "plain"}: {
			Template: "t", Kind: "knd", Arch: "arm64", Size: 4, InstanceType: "tt", InstanceTypes: []string{"t2"},
			SubnetPool: "p", Subnets: []string{"s1", "s2"},
			Args: map[string]any{"d": "d", "dt": "t", "tree": map[string]any{"d": 1.0, "dt": 2.0,
				"deep": map[string]any{"d": true, "dg": "d", "t": nil}}, "list": []any{3.0},
				"object": "text", "scalar": map[string]any{"y": 1.0}},
			Vars:         map[string]string{"d": "d", "dt": "t", "dg": "d", "t": "t"},
			Userdata:     Userdata{Source: "inline", Encoding: "plain", Content: "defaults"},
			DrainTimeout: Duration(7 * time.Minute), MaxSurge: 1, MaxUnhealthy: Limit{Value: 40, Percent: true},
		},
		{"default", "rich"}: {
			Template: "t", Kind: "knd", Arch: "arm64", Size: 0, InstanceType: "gt", InstanceTypes: []string{"g2", "g3"},
			SubnetPool: "q", Subnets: []string{"s3"},
			Args: map[string]any{"d": "d", "dt": "t", "tree": map[string]any{"d": 1.0, "dt": 2.0,
				"deep": map[string]any{"d": true, "dg": "g", "t": nil}}, "list": []any{},
				"object": "text", "scalar": map[string]any{"y": 1.0}},
			Vars:          map[string]string{"d": "d", "dt": "t", "dg": "g", "t": "t"},
			Userdata:      Userdata{Source: "inline", Encoding: "plain", Content: "defaults"},
			LoadBalancers: []string{"www"}, DrainTimeout: 0, MaxSurge: 3, MaxUnhealthy: Limit{Value: 5},
		},
		{"default", "other"}: {
			Template: "u", Kind: "knu", Arch: "amd64", Size: 1, SubnetPool: "q", Subnets: []string{"s3"},
			Args: map[string]any{"d": "d", "dt": "d", "tree": map[string]any{"d": 1.0, "dt": 1.0,
				"deep": map[string]any{"d": true, "dg": "d"}}, "list": []any{1.0, 2.0},
				"object": map[string]any{"x": 1.0}, "scalar": 1.0},
			Vars: map[string]string{"d": "d", "dt": "d", "dg": "d"}, Userdata: Userdata{Source: "inline",
				Encoding: "base64", Content: "template"},
			DrainTimeout: Duration(7 * time.Minute), MaxSurge: 1, MaxUnhealthy: Limit{Value: 40, Percent: true},
		},
	}
	for key, g := range want {
		g.GroupKey, g.Static = key, true
		want[key] = g
	}
	if diff := cmp.Diff(want, merged, cmpopts.IgnoreFields(Group{}, "RuntimeHash", "InfraHash"),
		cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// spoil modifies everything that can be modified inside a value without replacing the value.
func spoil(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			if v.Kind() == reflect.Pointer && v.Elem().CanSet() && v.Elem().Kind() != reflect.Struct {
				v.Elem().SetZero()
			} else {
				spoil(v.Elem())
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			spoil(v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			spoil(v.Index(i))
			v.Index(i).SetZero()
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			spoil(v.MapIndex(key))
			v.SetMapIndex(key, reflect.Value{})
		}
	}
}

func TestMergeSharesNoMemory(t *testing.T) {
	s, dynamic := whole(t)
	merged := mustMerge(t, s, dynamic)
	before, beforeDynamic, want := cloned(s), cloned(dynamic), cloned(merged)
	again := mustMerge(t, s, dynamic)
	defaults := s.WithDefaults()

	spoil(reflect.ValueOf(merged))
	spoil(reflect.ValueOf(defaults))
	if diff := cmp.Diff(before, s); diff != "" {
		t.Errorf("changing the result changed the shard:\n%s", diff)
	}
	if diff := cmp.Diff(beforeDynamic, dynamic); diff != "" {
		t.Errorf("changing the result changed the dynamic groups:\n%s", diff)
	}
	spoil(reflect.ValueOf(s))
	spoil(reflect.ValueOf(&dynamic).Elem())
	if diff := cmp.Diff(want, again); diff != "" {
		t.Errorf("changing the sources changed the result:\n%s", diff)
	}

	// A change of one group must not change another group of the same template.
	s, dynamic = whole(t)
	merged = mustMerge(t, s, dynamic)
	spoil(reflect.ValueOf(merged[GroupKey{"default", "batch"}]))
	for key := range want {
		if key != (GroupKey{"default", "batch"}) {
			if diff := cmp.Diff(want[key], merged[key]); diff != "" {
				t.Errorf("changing another group changed %s:\n%s", key, diff)
			}
		}
	}
}

// TestHashesCoverTheirFields changes one value at a time and checks which hashes change.
func TestHashesCoverTheirFields(t *testing.T) {
	key := GroupKey{"default", "workers"}
	base, _ := whole(t)
	none := Groups{}
	before := mustMerge(t, base, none)[key]
	template := func(change func(*Template)) func(*Shard) {
		return func(s *Shard) {
			tmpl := s.Templates["worker"]
			change(&tmpl)
			s.Templates["worker"] = tmpl
		}
	}
	group := func(change func(*GroupSpec)) func(*Shard) {
		return func(s *Shard) {
			g := s.Groups["default"]["workers"]
			change(&g)
			s.Groups["default"]["workers"] = g
		}
	}
	file := func(name string, change func(*File)) func(*Shard) {
		return template(func(tmpl *Template) {
			f := tmpl.Files[name]
			change(&f)
			tmpl.Files[name] = f
		})
	}
	second := Duration(time.Second)
	two := 2
	for _, tt := range []struct {
		name           string
		runtime, infra bool
		change         func(*Shard)
	}{
		{"vars of defaults", true, false, func(s *Shard) { s.Defaults.Vars["channel"] = "x" }},
		{"vars of template", true, false, template(func(tmpl *Template) { tmpl.Vars["new"] = "x" })},
		{"vars of group", true, false, group(func(g *GroupSpec) { g.Vars = map[string]string{"new": "x"} })},
		{"overridden var", false, false, func(s *Shard) { s.Defaults.Vars["role"] = "x" }},
		{"file added", true, false, template(func(tmpl *Template) { tmpl.Files["new"] = File{Kind: "string"} })},
		{"file content", true, false, file("motd", func(f *File) { f.Content = "x" })},
		{"file json", true, false, file("node.json", func(f *File) { f.JSON = []any{1.0} })},
		{"file vars", true, false, file("node.env", func(f *File) { f.Vars["X"] = "y" })},
		{"file source", true, false, file("registry.token", func(f *File) { f.Source = "other" })},
		{"file key", true, false, file("kubelet.server.crt", func(f *File) { f.Key.Algorithm = "ed25519" })},
		{"certificate used", true, false, func(s *Shard) {
			c := s.Certificates["kubelet.server"]
			c.TTL++
			s.Certificates["kubelet.server"] = c
		}},
		{"certificate not used", false, false, func(s *Shard) {
			c := s.Certificates["unused"]
			c.TTL++
			s.Certificates["unused"] = c
		}},

		{"args of defaults", false, true, func(s *Shard) { s.Defaults.Args["ImageId"] = "ami-2" }},
		{"args of template", false, true, template(func(tmpl *Template) { tmpl.Args["Ipv6AddressCount"] = 1.0 })},
		{"args of group", false, true, group(func(g *GroupSpec) { g.Args = map[string]any{"Ipv6AddressCount": 1.0} })},
		{"arg to null", false, true, group(func(g *GroupSpec) { g.Args = map[string]any{"EbsOptimized": nil} })},
		{"instance type of template", false, true, template(func(tmpl *Template) { tmpl.InstanceType = "x" })},
		{"instance type of group", false, true, group(func(g *GroupSpec) { g.InstanceType = "x" })},
		{"subnet pool", false, true, group(func(g *GroupSpec) { g.SubnetPool = "control" })},
		{"userdata", false, true, func(s *Shard) { s.Defaults.Userdata.Content += "x" }},
		{"userdata encoding", false, true, func(s *Shard) { s.Defaults.Userdata.Encoding = "base64" }},
		{"userdata source", false, true, func(s *Shard) {
			s.Defaults.Userdata = &Userdata{Source: "storage", Content: "files/x"}
		}},
		{"kind", false, true, template(func(tmpl *Template) { tmpl.Kind = "xyz" })},
		{"arch", false, true, template(func(tmpl *Template) { tmpl.Arch = "amd64" })},

		{"size", false, false, group(func(g *GroupSpec) { g.Size = &two })},
		{"fallback types", false, false, group(func(g *GroupSpec) { g.InstanceTypes = []string{"x"} })},
		{"subnets of the pool", false, false, func(s *Shard) { s.Server.SubnetPools["workers"] = []string{"x"} }},
		{"load balancers", false, false, group(func(g *GroupSpec) { g.LoadBalancers = nil })},
		{"drain time-out", false, false, group(func(g *GroupSpec) { g.DrainTimeout = &second })},
		{"drain hook", false, false, func(s *Shard) {
			t := s.Templates["worker"]
			t.Drain = &DrainHook{Exec: []string{"x"}}
			s.Templates["worker"] = t
			for _, groups := range s.Groups {
				for name, g := range groups {
					g.DrainTimeout = &second
					groups[name] = g
				}
			}
		}},
		{"surge", false, false, group(func(g *GroupSpec) { g.MaxSurge = &two })},
		{"unhealthy", false, false, group(func(g *GroupSpec) { g.MaxUnhealthy = "1" })},
		{"image fallback", false, false, func(s *Shard) {
			i := s.Images["debian_13_arm64"]
			i.Fallback = "ami-2"
			s.Images["debian_13_arm64"] = i
		}},
		{"template's name", false, false, func(s *Shard) {
			s.Templates["renamed"] = s.Templates["worker"]
			group(func(g *GroupSpec) { g.Template = "renamed" })(s)
		}},
		{"roll", false, true, group(func(g *GroupSpec) { g.Rollout = &Rollout{Revision: "2"} })},
		{"rollout", false, false, group(func(g *GroupSpec) { g.Rollout = &Rollout{Paused: true, Canary: 1} })},
		{"default written out", false, false, func(s *Shard) { s.Defaults.Userdata.Source = "" }},
		{"another template", false, false, func(s *Shard) {
			delete(s.Groups["default"], "controllers")
			delete(s.Templates, "control")
		}},
	} {
		s := cloned(base)
		tt.change(s)
		if problems := validate(s); len(problems) > 0 {
			t.Errorf("%s: %v", tt.name, problems)
		}
		after := mustMerge(t, s, none)[key]
		if got := after.RuntimeHash != before.RuntimeHash; got != tt.runtime {
			t.Errorf("%s: the runtime hash changed: %t", tt.name, got)
		}
		if got := after.InfraHash != before.InfraHash; got != tt.infra {
			t.Errorf("%s: the infra hash changed: %t", tt.name, got)
		}
	}

	seen := map[string]string{}
	for name, typ := range map[string]reflect.Type{"runtime": reflect.TypeFor[runtimeInput](),
		"infra": reflect.TypeFor[infraInput]()} {
		for f := range typ.Fields() {
			seen[f.Name] = name
		}
	}
	if diff := cmp.Diff(map[string]string{"Vars": "runtime", "Files": "runtime", "Certificates": "runtime",
		"HealthChecks": "runtime",
		"Args":         "infra", "InstanceType": "infra", "SubnetPool": "infra", "Userdata": "infra", "Kind": "infra",
		"Arch": "infra", "Revision": "infra"}, seen); diff != "" {
		t.Errorf("the hashes cover other fields than the configuration page lists:\n%s", diff)
	}
}

// TestHashesDoNotDependOnSpelling checks that comments, the order of fields, and the place where a value is set do not
// affect the hashes.
func TestHashesDoNotDependOnSpelling(t *testing.T) {
	one := mustMerge(t, mustParse(t, with("", `, "args": {"a": 1, "b": {"c": [1.0]}}, "vars": {"x": "1", "y": "2"}`, "",
		"")), Groups{})
	other := mustMerge(t, mustParse(t, with("", `, "vars": {"y": "2", /* c */ "x": "0"}, "args": {"b": {"c": [1]}}`,
		`, "args": {"a": 1e0}, "vars": {"x": "1"}`, "")), Groups{})
	for key, g := range one {
		if o := other[key]; o.RuntimeHash != g.RuntimeHash || o.InfraHash != g.InfraHash {
			t.Errorf("%s: hashes %s %s and %s %s", key, g.RuntimeHash, g.InfraHash, o.RuntimeHash, o.InfraHash)
		}
		if len(g.RuntimeHash) != 32 || strings.Trim(g.RuntimeHash+g.InfraHash, "0123456789abcdef") != "" {
			t.Errorf("hashes %s %s", g.RuntimeHash, g.InfraHash)
		}
	}
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "1s": time.Second, "1m30s": 90 * time.Second, "250ms": 250 * time.Millisecond,
		"1.5h": 90 * time.Minute,
		"21d":  21 * 24 * time.Hour, "1d12h": 36 * time.Hour, "0.5d": 12 * time.Hour, "0d": 0, "0d1s": time.Second,
	} {
		d, err := ParseDuration(text)
		if err != nil || d.D() != want {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", text, d, err, want)
		}
	}
	for _, text := range []string{"", " ", "1", "s", "-1s", "-0s", "+1s", "1d-1h", "d", "1e3d", "1dd", "1d1d", "1d 1h",
		"NaNd", "Infd", "0x1d", "999999d", "106751d24h", "1y", ".d", "1h+1s", "9999999h"} {
		if d, err := ParseDuration(text); err == nil {
			t.Errorf("ParseDuration(%q) = %v", text, d)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 5 * time.Minute: "5m", time.Hour: "1h", 90 * time.Minute: "1h30m",
		90 * time.Second: "1m30s", 24 * time.Hour: "1d", 25 * time.Hour: "25h",
		21 * 24 * time.Hour: "21d", 250 * time.Millisecond: "250ms", time.Hour + time.Second: "1h0m1s",
		10 * time.Minute: "10m", 20 * time.Hour: "20h",
	} {
		if got := Duration(d).String(); got != want {
			t.Errorf("%v is written %s, want %s", d, got, want)
		}
	}
	for i := range 5000 {
		d := Duration(time.Duration(i*i*i) * 79 * time.Microsecond)
		if back, err := ParseDuration(d.String()); err != nil || back != d {
			t.Errorf("%s reads as %s, %v", d, back, err)
		}
	}
	if (*Duration)(nil).D() != 0 {
		t.Error("nil is not 0")
	}
	if _, err := Duration(-1).MarshalText(); err == nil {
		t.Error("a negative duration was written")
	}
}

func TestLimits(t *testing.T) {
	for _, tt := range []struct {
		text string
		of   map[int]int
	}{
		{"0", map[int]int{0: 0, 10: 0}},
		{"1", map[int]int{0: 1, 10: 1}},
		{"40%", map[int]int{0: 2, 1: 2, 4: 2, 5: 2, 7: 2, 8: 3, 10: 4, 1000: 400, 99: 39, 1<<62 +
			100: (1<<62+100)/100*40 + 1}},
		{"0%", map[int]int{100: 2}},
		{"100%", map[int]int{1: 2, 7: 7}},
	} {
		l, err := ParseLimit(tt.text)
		if err != nil || l.String() != tt.text {
			t.Errorf("ParseLimit(%q) = %s, %v", tt.text, l, err)
		}
		for n, want := range tt.of {
			if got := l.Of(n); got != want {
				t.Errorf("%s of %d is %d, want %d", l, n, got, want)
			}
		}
	}
	for _, text := range []string{"", "%", "-1", "+1", "01", "1.5", "101%", "40 %", "40%%", "x",
		"99999999999999999999"} {
		if l, err := ParseLimit(text); err == nil {
			t.Errorf("ParseLimit(%q) = %v", text, l)
		}
	}
	if fmt.Sprint(Limit{}) != "0" {
		t.Error("the zero limit is not none")
	}
}

// TestOverrideOfARollout checks that an operator can pause and resume the rollout of a static group, whatever the
// configuration says. The other settings of the rollout stay those of the configuration.
func TestOverrideOfARollout(t *testing.T) {
	base, _ := whole(t)
	key := GroupKey{"default", "controllers"}
	for _, tt := range []struct {
		configured bool
		override   *Rollout
		paused     bool
	}{
		{true, nil, true},
		{true, &Rollout{}, false},
		{true, &Rollout{Paused: true}, true},
		{false, nil, false},
		{false, &Rollout{}, false},
		{false, &Rollout{Paused: true}, true},
	} {
		s := cloned(base)
		spec := s.Groups[key.Tenant][key.Group]
		spec.Rollout = &Rollout{Paused: tt.configured, Canary: 2}
		s.Groups[key.Tenant][key.Group] = spec
		overrides := Groups{}
		if tt.override != nil {
			overrides.Tenants = map[string]map[string]GroupSpec{key.Tenant: {key.Group: {Rollout: tt.override}}}
		}
		got := mustMerge(t, s, overrides)[key].Rollout
		if got.Paused != tt.paused || got.Canary != 2 {
			t.Errorf("paused %t in the configuration, override %+v: got %+v, want paused %t and canary 2",
				tt.configured,
				tt.override, got, tt.paused)
		}
	}
}
