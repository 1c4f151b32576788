package config_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
)

func TestParsePartialLeavesOutWhatFollowsFromUnknownValues(t *testing.T) {
	const src = `{"cluster": {"id": "c", "secrets": {"prefix": null, "encryption_key": {"provider": "env"}}},
		"server": {"shard": "s", "provider": {"kind": "mock"}, "subnet_pools": {"p": ["a"]}},
		"templates": {"t": {"kind": "wrk", "arch": "riscv", "args": {"A": null},
			"files": {"x.env": {"kind": "env", "vars": {"A": "{{ .Vars.a }}"}}}}},
		"groups": {"default": {"g": {"template": "t"}, "h": null}}}`
	paths := func(src string, unknown ...string) (out []string) {
		s, problems := config.ParsePartial([]byte(src), unknown...)
		if (s == nil) != (len(problems) > 0) {
			t.Errorf("%v with %v", s, problems)
		}
		for _, p := range problems {
			out = append(out, p.Path)
		}
		slices.Sort(out)
		return out
	}
	all := []string{"groups.default.g.subnet_pool", "templates.t.arch", "templates.t.files[\"x.env\"].vars.A"}
	if diff := cmp.Diff(all, paths(src)); diff != "" {
		t.Errorf("everything known (-want +got):\n%s", diff)
	}
	for _, vars := range []string{"templates.t.vars", "templates.t.vars.a", "templates.t.vars[\"b c\"]"} {
		if diff := cmp.Diff(all[1:2], paths(src, "templates.t.subnet_pool", vars)); diff != "" {
			t.Errorf("subnet pool and %s unknown (-want +got):\n%s", vars, diff)
		}
	}
	s, problems := config.ParsePartial([]byte(strings.NewReplacer("riscv", "arm64", `"kind": "wrk"`,
		`"kind": "wrk", "subnet_pool": "p", "vars": {"a": "b"}`).Replace(src)))
	if len(problems) > 0 || len(s.Groups["default"]) != 1 || len(s.Templates["t"].Args) != 1 {
		t.Errorf("null: %v, %+v", problems, s)
	}
	misspelt := strings.NewReplacer("encryption_key", "encryption_kye", `"g": {`,
		`"g": {"max_unhealth": "3", `).Replace(src)
	if got := paths(misspelt, "templates", "server"); !slices.Contains(got, "groups.default.g.max_unhealth") ||
		!slices.Contains(got, "cluster.secrets.encryption_kye") {
		t.Errorf("misspelt: %q", got)
	}
	for name, want := range map[string]string{
		"web":      `groups.web.template: want an object, have a text (groups are below their tenant: groups.default.web)`,
		"acme/web": `groups["acme/web"].template: want an object, have a text (groups are below their tenant: groups.acme.web)`,
	} {
		_, problems := config.ParsePartial(fmt.Appendf(nil, `{"groups": {%q: {"template": "t"}}}`, name))
		if text := problems.Error(); !strings.Contains(text, want) {
			t.Errorf("the group %s without its tenant: %s", name, text)
		}
	}
	for _, src := range []string{`null`, `"x"`, `[]`, `{"server": {"shard": null, "shrad": null}}`} {
		if got := paths(src); len(got) == 0 {
			t.Errorf("%s is accepted", src)
		}
	}
}

func TestParseTree(t *testing.T) {
	got, problems := config.ParseTree("args", []byte(`{"a": [1, {"b": null}], /* c */ "d": "x",}`))
	if diff := cmp.Diff(map[string]any{"a": []any{1.0, map[string]any{"b": nil}}, "d": "x"}, got); diff != "" ||
		problems != nil {
		t.Errorf("%v (-want +got):\n%s", problems, diff)
	}
	for src, want := range map[string]string{
		`{"a": 1, "a": 2}`:         "args:1:10: a: the field is there twice",
		`{"a": 12345678901234567}`: "args:1:7: a: 12345678901234567 is too large",
		`{"a": `:                   "args:1:",
	} {
		got, problems := config.ParseTree("args", []byte(src))
		if got != nil || !strings.HasPrefix(problems.Error(), want) {
			t.Errorf("%s: %v, %v, want %s", src, got, problems, want)
		}
	}
}

// FuzzParseTree checks that every accepted text is JSON, and that its encoding parses to the same value.
func FuzzParseTree(f *testing.F) {
	for _, src := range []string{`{"a": [1, {"b": null}],}`, `"x"`, `[1e3, -0.5] // c`, `{"a": 1, "a": 2}`,
		`12345678901234567`, ``, `{`} {
		f.Add([]byte(src))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		value, problems := config.ParseTree("tree", src)
		if len(problems) > 0 {
			if value != nil {
				t.Fatalf("a value beside %v", problems)
			}
			return
		}
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		again, problems := config.ParseTree("tree", text)
		if diff := cmp.Diff(value, again); diff != "" || problems != nil {
			t.Fatalf("%s: %v\n%s", text, problems, diff)
		}
	})
}
